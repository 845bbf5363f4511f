//! §4.7: "safety holds at every isolation level", with two receivers on one database.

use std::sync::{Arc, Mutex};

use http::StatusCode;
use sqlx::pool::PoolOptions;

use crate::db::{Isolation, TestDb};
use crate::kit::{Call, Event, Setup, World, eventually, numbered, seeded};

suite![
    two_receivers_apply_everything_once_and_in_order_at_every_isolation_level,
    a_handler_behind_the_lock_of_its_stream_sees_what_its_predecessor_wrote,
    conflicts_are_known_by_their_codes_and_tried_again,
];

/// A world over a pool of its own, whose sessions have this isolation level.
pub(crate) async fn at<D: TestDb>(db: &D, level: Isolation, connections: u32) -> Setup<D> {
    let options = PoolOptions::new()
        .max_connections(connections)
        .after_connect(move |conn, _| {
            Box::pin(async move { D::execute(conn, level.set).await.map(drop) })
        });
    World::<D>::over(db).pool(db.pool(options).await)
}

/// The ledger; a serialisation failure is passed on as what it is: a failure.
async fn ledger<D: TestDb>(mut call: Call<D>) -> StatusCode {
    let entry = call.entry();
    passed_on(D::append(&mut call.tx, &entry).await)
}

fn passed_on<T>(result: sqlx::Result<T>) -> StatusCode {
    match result {
        Ok(_) => StatusCode::NO_CONTENT,
        Err(_) => StatusCode::SERVICE_UNAVAILABLE,
    }
}

/// Sends everything to receivers at random until all of it is acknowledged.
async fn send_all<D: TestDb>(
    worlds: &[World<D>],
    mut events: Vec<Event>,
    level: Isolation,
    random: &mut fastrand::Rng,
) {
    let mut refused = 0;
    while !events.is_empty() {
        random.shuffle(&mut events);
        let sent: Vec<_> = events
            .drain(..)
            .map(|event| (worlds[random.usize(..worlds.len())].spawn(&event), event))
            .collect();
        for (reply, event) in sent {
            let reply = reply.await.unwrap();
            match (reply.status, reply.outcome()) {
                (204, "applied") | (200, "duplicate") | (202, "parked") => {}
                (429, "failed") => events.push(event),
                (503, "failed") if level.may_fail => events.push(event),
                _ => panic!("{level:?}: {reply:?}"),
            }
        }
        refused += events.len();
    }
    eprintln!("{}: {refused} refused for contention", level.name);
}

/// §4.1, §4.7, §5.1. Issue 3: "two receiver processes on one database, 16 connections, 5 correlations shuffled, every
/// event sent twice at once: exact ledger, exact order".
async fn two_receivers_apply_everything_once_and_in_order_at_every_isolation_level<D: TestDb>(
    db: D,
) {
    const ACCOUNTS: [&str; 5] = ["a", "b", "c", "d", "e"];
    const LENGTH: u64 = 12;
    let mut random = seeded("two receivers");
    for level in D::ISOLATION {
        let worlds = [
            at(&db, *level, 8).await.handler(ledger).start().await,
            at(&db, *level, 8).await.handler(ledger).start().await,
        ];
        let mut events = Vec::new();
        for account in ACCOUNTS {
            for n in 1..=LENGTH {
                events.push(numbered(account, n));
                events.push(numbered(account, n));
            }
        }
        send_all(&worlds, events, *level, &mut random).await;
        let expected: Vec<_> = (1..=LENGTH.cast_signed()).collect();
        eventually(level.name, async || {
            worlds[0].ledger().await.len() >= ACCOUNTS.len() * expected.len()
        })
        .await;
        for account in ACCOUNTS {
            assert_eq!(worlds[0].sequences(account).await, expected, "{level:?}");
        }
        let left = "SELECT COUNT(*) FROM {p}pending";
        eventually(level.name, async || worlds[1].number(left).await == 0).await;
        worlds[0].pool_is_whole().await;
        worlds[0]
            .execute("DELETE FROM ledger; DELETE FROM {p}event; DELETE FROM {p}cursor")
            .await;
        for world in worlds {
            world.stop().await;
        }
    }
}

/// §4.7. TRAPS: "MySQL fixes its snapshot at the first plain SELECT: a handler behind the cursor's lock then reads its
/// predecessor's old values". The handler reads, and writes what it has read and one more: a lost update would show.
async fn a_handler_behind_the_lock_of_its_stream_sees_what_its_predecessor_wrote<D: TestDb>(db: D) {
    const LENGTH: u64 = 15;
    let mut random = seeded("fresh views");
    for level in D::ISOLATION {
        let stale = Arc::new(Mutex::new(Vec::new()));
        let mut worlds = Vec::new();
        for _ in 0..2 {
            let stale = Arc::clone(&stale);
            let world = at(&db, *level, 8).await.handler(move |mut call: Call<D>| {
                let stale = Arc::clone(&stale);
                async move {
                    let account = call.entry().account;
                    let (sequence, tx) = (call.entry().sequence.unwrap(), &mut call.tx);
                    let read = format!("SELECT times FROM taken WHERE n = {account}");
                    let read = match D::number_on(tx, &read).await {
                        Ok(read) => read,
                        Err(error) => return passed_on::<()>(Err(error)),
                    };
                    if read != sequence - 1 {
                        stale
                            .lock()
                            .unwrap()
                            .push((account.clone(), sequence, read));
                    }
                    let write =
                        format!("UPDATE taken SET times = {} WHERE n = {account}", read + 1);
                    passed_on(D::execute(tx, &write).await)
                }
            });
            worlds.push(world.start().await);
        }
        let events = (1..=LENGTH).flat_map(|n| ["1", "2", "3"].map(|account| numbered(account, n)));
        send_all(&worlds, events.collect(), *level, &mut random).await;
        for account in 1..=3 {
            let times = format!("SELECT times FROM taken WHERE n = {account}");
            eventually(level.name, async || {
                worlds[0].number(&times).await == LENGTH.cast_signed()
            })
            .await;
        }
        // A stale look may be followed by a failure that undoes it; what counts is above. Below it none may be.
        assert!(
            level.may_fail || stale.lock().unwrap().is_empty(),
            "{level:?}: {stale:?}"
        );
        worlds[0]
            .execute("UPDATE taken SET times = 0; DELETE FROM {p}event; DELETE FROM {p}cursor")
            .await;
        for world in worlds {
            world.stop().await;
        }
    }
}

/// Makes the next inserts of events fail with this code and text, as many as `strikes` has left: the counter stays where
/// a rollback takes back everything else.
fn striking(database: &str, code: &str, text: &str) -> Option<String> {
    match database {
        "postgres" => Some(format!(
            "CREATE OR REPLACE FUNCTION strike() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
                IF nextval('strikes') <= 2 THEN RAISE EXCEPTION '{text}' USING ERRCODE = '{code}'; END IF;
                RETURN NEW;
            END $$"
        )),
        "mysql" => Some(format!(
            "DROP TRIGGER IF EXISTS strike; CREATE TRIGGER strike BEFORE INSERT ON {{p}}event FOR EACH ROW BEGIN
                UPDATE strikes SET n = n + 1;
                IF (SELECT n FROM strikes) <= 2 THEN
                    SIGNAL SQLSTATE 'HY000' SET MYSQL_ERRNO = {code}, MESSAGE_TEXT = '{text}';
                END IF;
            END"
        )),
        // There a trigger cannot choose the code of its error.
        _ => None,
    }
}

/// §4.7. TRAPS: "Error texts are translated": a conflict in another language is one, and what only reads like one is none.
async fn conflicts_are_known_by_their_codes_and_tried_again<D: TestDb>(db: D) {
    const RUSSIAN: &str = "обнаружена взаимная блокировка";
    const ENGLISH: &str = "deadlock detected, could not serialize, try restarting transaction";
    let (conflicts, other, begin, again, count) = match D::NAME {
        "postgres" => (
            ["40001", "40P01"].as_slice(),
            "P0001",
            "CREATE SEQUENCE strikes; CREATE TRIGGER strike BEFORE INSERT ON {p}event
                FOR EACH ROW EXECUTE FUNCTION strike()",
            "ALTER SEQUENCE strikes RESTART",
            "SELECT last_value FROM strikes",
        ),
        _ => (
            ["1205", "1213", "1020", "3101"].as_slice(),
            "1644",
            "CREATE TABLE strikes (n INT) ENGINE = MyISAM; INSERT INTO strikes VALUES (0)",
            "UPDATE strikes SET n = 0",
            "SELECT n FROM strikes",
        ),
    };
    let Some(first) = striking(D::NAME, conflicts[0], RUSSIAN) else {
        return;
    };
    let world = World::<D>::start(&db).await;
    // A function before the trigger that calls it, and a table before the trigger that counts in it.
    let (before, behind) = match D::NAME {
        "postgres" => (first.as_str(), begin),
        _ => (begin, first.as_str()),
    };
    world.execute(before).await;
    world.execute(behind).await;
    for code in conflicts {
        world
            .execute(&striking(D::NAME, code, RUSSIAN).unwrap())
            .await;
        world.execute(again).await;
        let event = Event::new(&format!("evt_{code}"));
        world.send(&event).await.is_applied();
        assert_eq!(world.number(count).await, 3, "{code}: two in vain");
        assert_eq!(world.probe.runs(event.id()), 1);
    }
    world
        .execute(&striking(D::NAME, other, ENGLISH).unwrap())
        .await;
    world.execute(again).await;
    let event = Event::new("evt_other");
    let reply = world.send(&event).await;
    assert_eq!(reply.outcome(), "failed", "{reply:?}");
    assert_eq!(world.number(count).await, 1, "it was tried once");
    world.pool_is_whole().await;
}
