//! §4.1a, §4.6: what a delivery does to the sessions of a pool that the app shares: nothing that lasts.

use sqlx::pool::PoolOptions;

use crate::db::TestDb;
use crate::kit::{Event, Setup, World, eventually, numbered};

suite![
    a_session_is_what_it_was_after_every_end_of_a_delivery,
    a_demoted_database_gets_503_and_is_used_again_when_it_is_writable,
    an_id_is_what_it_is_whatever_a_session_makes_of_quotes,
];

/// A world over one connection, whose session the user has given limits of his own.
async fn odd<D: TestDb>(db: &D) -> Setup<D> {
    let options = PoolOptions::new()
        .max_connections(1)
        .after_connect(|conn, _| {
            Box::pin(async move { D::execute(conn, D::ODD_SESSION).await.map(drop) })
        });
    World::<D>::over(db).pool(db.pool(options).await)
}

/// The connection's number, and all its settings.
async fn session<D: TestDb>(world: &World<D>, settings: &str, id: &str) -> (i64, Vec<String>) {
    let mut conn = world.pool.acquire().await.unwrap();
    let text = D::text_on(&mut conn, settings).await.unwrap();
    let id = D::number_on(&mut conn, id).await.unwrap();
    (id, text.lines().map(str::to_owned).collect())
}

/// §4.6. Limits belong to the transaction; the user's own come back after it.
async fn a_session_is_what_it_was_after_every_end_of_a_delivery<D: TestDb>(db: D) {
    // SQLite's connections have no settings that a delivery touches, but a progress handler that is disarmed.
    let (Some(settings), Some(id)) = (D::SESSION, D::CONNECTION_ID) else {
        return;
    };
    let world = odd(&db)
        .await
        .answers(|call| match call.delivery.event_id() {
            "evt_500" => 500,
            "evt_422" => 422,
            _ => 0,
        })
        .start()
        .await;
    let before = session(&world, settings, id).await;
    assert!(before.1.len() > 50, "{before:?}");
    let ends = [
        (Event::new("evt_1"), 204),
        (Event::new("evt_500"), 500),
        (Event::new("evt_422"), 422),
        (numbered("acct", 2), 202),
        (numbered("acct", 2), 202),
        (Event::new("evt_other").of("acct", 2), 422),
        (numbered("acct", 1), 204),
        (Event::new("evt_2"), 204),
    ];
    for (event, status) in ends {
        assert_eq!(world.send(&event).await.status, status, "{event:?}");
        let after = session(&world, settings, id).await;
        assert_eq!(
            after.0, before.0,
            "the connection was closed after {event:?}"
        );
        let changed: Vec<_> = after
            .1
            .iter()
            .filter(|line| !before.1.contains(line))
            .collect();
        assert!(changed.is_empty(), "{event:?}: {changed:?}");
    }
    eventually("the drain", async || {
        world.sequences("acct").await.len() == 2
    })
    .await;
    assert_eq!(session(&world, settings, id).await, before);
}

/// §4.7: "25006, …: close the connection, 503, so that a pool pinned to a demoted primary recovers".
async fn a_demoted_database_gets_503_and_is_used_again_when_it_is_writable<D: TestDb>(db: D) {
    // What a server cannot be made to do to one database alone is tested on a server of its own (`outage`); a SQLite
    // file has no primary.
    let Some((demote, promote)) = db.demotion() else {
        return;
    };
    let world = World::<D>::start(&db).await;
    world.send(&Event::new("evt_1")).await.is_applied();
    let mut operator = world.eyes.acquire().await.unwrap();
    D::execute(&mut operator, &demote).await.unwrap();
    // Whoever was connected is told to go, which takes effect a moment later: until then a delivery is applied.
    let (mut probes, mut refused) = (0, 0);
    eventually("it is noticed on every connection", async || {
        probes += 1;
        let reply = world.send(&Event::new(&format!("probe_{probes}"))).await;
        refused = if reply.status == 503 { refused + 1 } else { 0 };
        if refused == 0 {
            // Who came back between being told and the setting's commit is told again.
            D::execute(&mut operator, &demote).await.unwrap();
        }
        refused == 2 * world.pool.options().get_max_connections()
    })
    .await;
    for event in [Event::new("evt_2"), numbered("acct", 1)] {
        let reply = world.send(&event).await;
        assert!(reply.is(503, "failed").is_problem(), "{reply:?}");
    }
    D::execute(&mut operator, &promote).await.unwrap();
    // Sessions that only looked may still be pinned to what it was: each of them costs one 503, and is closed.
    let mut left = world.pool.options().get_max_connections();
    for event in [Event::new("evt_2"), numbered("acct", 1)] {
        loop {
            let reply = world.send(&event).await;
            if reply.status != 503 || left == 0 {
                reply.is_applied();
                break;
            }
            left -= 1;
        }
    }
    let mut applied = world.applied().await;
    applied.retain(|id| !id.starts_with("probe"));
    assert_eq!(applied, ["evt_1", "evt_2", "evt_acct_1"]);
}

/// §4.9: where a new event goes with BEGIN its values are part of the text.
async fn an_id_is_what_it_is_whatever_a_session_makes_of_quotes<D: TestDb>(db: D) {
    let odd = match D::NAME {
        "postgres" => "SET standard_conforming_strings = off; SET backslash_quote = off",
        "mysql" => "SET sql_mode = 'ANSI_QUOTES,NO_BACKSLASH_ESCAPES'",
        _ => "SELECT 1",
    };
    for (round, settings) in ["SELECT 1", odd].into_iter().enumerate() {
        let options = PoolOptions::new()
            .max_connections(2)
            .after_connect(move |conn, _| {
                Box::pin(async move { D::execute(conn, settings).await.map(drop) })
            });
        let world = World::<D>::over(&db)
            .pool(db.pool(options).await)
            .start()
            .await;
        let before = world.applied().await.len();
        let other = World::<D>::start(&db).await;
        let mut sent = Vec::new();
        for text in [
            "it's",
            "\\",
            "'",
            "\\'",
            "''\\",
            "\"",
            "a\\x41",
            "\\000",
            "$1",
            "?",
            "$$",
            "--",
            "/*",
            "é😀'\\",
            " x ",
        ] {
            let id = format!("{round}{text}");
            let events = [
                Event::new(&id),
                Event::new(&format!("1{id}")).of(&id, 1),
                Event::new(&format!("2{id}"))
                    .of(&id, 2)
                    .with("event_type", text),
            ];
            for event in events {
                world.send(&event).await.is_applied();
                // It has only the database to ask.
                other.send(&event).await.is_duplicate();
                sent.push(event.id().to_owned());
            }
        }
        assert_eq!(world.applied().await[before..], sent);
        world.stop().await;
        other.stop().await;
    }
}

/// §4.1a: "`synchronous_commit` is raised to on where the session has it off", and stays as the user has it otherwise.
#[cfg(feature = "postgres")]
#[tokio::test(flavor = "multi_thread")]
async fn a_weaker_synchronous_commit_is_raised_inside_the_transaction() {
    use crate::db::postgres::PostgresDb;
    crate::db::run(|db: PostgresDb| async move {
        for (session, inside) in [
            ("off", "on"),
            ("on", "on"),
            ("remote_write", "remote_write"),
        ] {
            let options = PoolOptions::new()
                .max_connections(2)
                .after_connect(move |conn, _| {
                    Box::pin(async move {
                        let set = format!("SET synchronous_commit = {session}");
                        PostgresDb::execute(conn, &set).await.map(drop)
                    })
                });
            let seen = std::sync::Arc::new(std::sync::Mutex::new(String::new()));
            let sight = seen.clone();
            let world = World::over(&db)
                .pool(db.pool(options).await)
                .handler(move |mut call: crate::kit::Call<PostgresDb>| {
                    let sight = sight.clone();
                    async move {
                        let shown =
                            PostgresDb::text_on(&mut call.tx, "SHOW synchronous_commit").await;
                        *sight.lock().unwrap() = shown.unwrap();
                        http::StatusCode::NO_CONTENT
                    }
                })
                .start()
                .await;
            world
                .send(&Event::new(&format!("evt_{session}")))
                .await
                .is_applied();
            assert_eq!(*seen.lock().unwrap(), inside, "{session}");
            world.stop().await;
        }
    })
    .await;
}

/// §4.1: a pooler in front of the server, or a hook of the app's, may take from a session what was prepared in it.
#[cfg(feature = "postgres")]
#[tokio::test(flavor = "multi_thread")]
async fn an_event_is_applied_although_its_session_has_lost_what_was_prepared() {
    use crate::db::postgres::PostgresDb;
    use crate::kit::numbered;
    const PREPARED: &str =
        "SELECT CAST(COUNT(*) AS TEXT) FROM pg_prepared_statements WHERE name LIKE '{p}%'";
    const FORGET: &str = "DO $$ DECLARE one TEXT; BEGIN
        FOR one IN SELECT name FROM pg_prepared_statements WHERE name LIKE '{p}%' LOOP
            EXECUTE 'DEALLOCATE ' || one;
        END LOOP; END $$";
    crate::db::run(|db: PostgresDb| async move {
        let seen = std::sync::Arc::new(std::sync::Mutex::new(Vec::new()));
        let sight = seen.clone();
        let [prepared, forget] = [PREPARED, FORGET].map(|sql| sql.replace("{p}", db.prefix()));
        let world = World::over(&db)
            .pool(db.pool(PoolOptions::new().max_connections(5)).await)
            .keeping_connections()
            .handler(move |mut call: crate::kit::Call<PostgresDb>| {
                let sight = sight.clone();
                let (prepared, forget) = (prepared.clone(), forget.clone());
                async move {
                    call.append().await;
                    let there = PostgresDb::text_on(&mut call.tx, &prepared).await.unwrap();
                    PostgresDb::execute(&mut call.tx, &forget).await.unwrap();
                    sight.lock().unwrap().push(there);
                    http::StatusCode::NO_CONTENT
                }
            })
            .start()
            .await;
        for sequence in 1..=30 {
            world.send(&numbered("acct", sequence)).await.is_applied();
        }
        let ids: Vec<_> = (1..=30).map(|n| format!("evt_acct_{n}")).collect();
        assert_eq!(world.applied().await, ids);
        let seen = seen.lock().unwrap().clone();
        let prepared = |there: &String| there != "0";
        assert!(seen.iter().any(prepared), "nothing was prepared: {seen:?}");
        assert!(!seen[20..].iter().any(prepared), "tried again: {seen:?}");
        world.stop().await;
    })
    .await;
}
