//! §4.1a, §4.6: what a delivery does to the sessions of a pool that the app shares: nothing that lasts.

use sqlx::pool::PoolOptions;

use crate::db::TestDb;
use crate::kit::{Event, Setup, World, eventually, numbered};

suite![
    a_session_is_what_it_was_after_every_end_of_a_delivery,
    a_demoted_database_gets_503_and_is_used_again_when_it_is_writable,
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
