//! What probes are told: whether the database answers, its tables are right, the worker gets on and there is room to park.

use std::time::Duration;

use axum::Router;
use axum::body::{Body, to_bytes};
use http::{Request, StatusCode};
use serde_json::{Value, json};
use tower::ServiceExt;
use tower_inbox::{Inbox, Readiness, Source};

use crate::db::TestDb;
use crate::kit::{TestClock, World, eventually, numbered};

suite![
    a_process_that_can_do_its_work_is_ready,
    tables_of_another_version_are_told_from_a_database_that_is_away,
    without_a_database_both_routes_say_503_and_why,
    a_worker_that_does_not_run_or_look_is_not_ready,
    a_source_whose_parking_is_full_is_named_and_can_be_left_out,
    a_pool_that_is_used_up_is_no_database_that_is_away,
];

/// More than a database that is there needs.
const PATIENCE: Duration = Duration::from_secs(10);

async fn ready<D: TestDb>(world: &World<D>) -> Readiness {
    world.inbox.readiness(PATIENCE).await
}

/// The names of the checks that failed, and why.
fn failed(readiness: &Readiness) -> Vec<(&str, &str)> {
    let failed = readiness.checks.iter().filter(|check| !check.ok);
    failed
        .map(|check| (check.name, check.why.as_deref().expect("a reason")))
        .collect()
}

async fn get(routes: &Router, path: &str) -> (u16, Value) {
    let request = Request::get(path).body(Body::empty()).expect("a request");
    let answer = routes.clone().oneshot(request).await.expect("an answer");
    let header = |name: &str| answer.headers()[name].to_str().expect("text").to_owned();
    assert_eq!(header("content-type"), "application/json");
    assert_eq!(header("cache-control"), "no-store");
    let status = answer.status().as_u16();
    let body = to_bytes(answer.into_body(), usize::MAX)
        .await
        .expect("a body");
    (status, serde_json::from_slice(&body).expect("JSON"))
}

/// (health)
async fn a_process_that_can_do_its_work_is_ready<D: TestDb>(db: D) {
    let world = World::<D>::start(&db).await;
    eventually("it is ready", async || ready(&world).await.is_ready()).await;
    let routes = world.inbox.health_routes();
    let ok = |name: &str| json!({"name": name, "ok": true});
    let all = [ok("database"), ok("schema"), ok("worker"), ok("parking")];
    assert_eq!(
        get(&routes, "/readyz").await,
        (200, json!({"status": "ok", "checks": all}))
    );
    assert_eq!(
        get(&routes, "/healthz").await,
        (200, json!({"status": "ok", "checks": [ok("database")]}))
    );
    let post = Request::post("/readyz")
        .body(Body::empty())
        .expect("a request");
    let answer = routes.oneshot(post).await.expect("an answer");
    assert_eq!(answer.status(), StatusCode::METHOD_NOT_ALLOWED);
}

/// (health)
async fn tables_of_another_version_are_told_from_a_database_that_is_away<D: TestDb>(db: D) {
    let world = World::<D>::start(&db).await;
    eventually("it is ready", async || ready(&world).await.is_ready()).await;
    let changes = [
        (
            "ALTER TABLE {p}incident RENAME TO {p}away",
            "ALTER TABLE {p}away RENAME TO {p}incident",
        ),
        (
            "ALTER TABLE {p}cursor RENAME COLUMN next_range TO other",
            "ALTER TABLE {p}cursor RENAME COLUMN other TO next_range",
        ),
    ];
    // By one connection: on SQLite another one would not know yet what it is to rename.
    let mut conn = world.eyes.acquire().await.expect("a connection");
    let mut execute = async |sql: &str| {
        let sql = sql.replace("{p}", db.prefix());
        D::execute(&mut conn, &sql).await.expect("it is executed");
    };
    for (spoil, mend) in changes {
        execute(spoil).await;
        let readiness = ready(&world).await;
        let [("schema", why)] = failed(&readiness)[..] else {
            panic!("{spoil}: {readiness:?}");
        };
        assert!(why.contains("migrations"), "{why}");
        assert_eq!(get(&world.inbox.health_routes(), "/healthz").await.0, 200);
        execute(mend).await;
        eventually("it is ready again", async || ready(&world).await.is_ready()).await;
    }
}

/// (health). Nothing that is said tells where the database was.
async fn without_a_database_both_routes_say_503_and_why<D: TestDb>(db: D) {
    let world = World::<D>::start(&db).await;
    eventually("it is ready", async || ready(&world).await.is_ready()).await;
    let routes = world.inbox.health_routes();
    world.pool.close().await;
    for path in ["/healthz", "/readyz"] {
        let (status, body) = get(&routes, path).await;
        assert_eq!((status, &body["status"]), (503, &json!("failed")), "{path}");
        let database = json!({
            "name": "database", "ok": false, "why": "the database did not answer within 800ms"
        });
        assert_eq!(body["checks"][0], database, "{path}");
        let schema = |check: &Value| check["name"] == "schema";
        assert!(
            !body["checks"]
                .as_array()
                .expect("checks")
                .iter()
                .any(schema),
            "{path}"
        );
    }
}

/// (health), §5.14
async fn a_worker_that_does_not_run_or_look_is_not_ready<D: TestDb>(db: D) {
    let world = World::<D>::start(&db).await;
    let idle = Inbox::builder(world.eyes.clone())
        .table_prefix(db.prefix())
        .source(Source::kudos("idle").secrets(["whk_any"]))
        .build()
        .await
        .expect("it is built");
    let why = idle.readiness(PATIENCE).await;
    let [("worker", why)] = failed(&why)[..] else {
        panic!("{why:?}");
    };
    assert!(why.contains("no source is mounted"), "{why}");
    idle.shutdown().await;

    let clock = TestClock::new();
    let of_inbox = clock.clone();
    let slow = World::<D>::over(&db)
        .inbox(|inbox| inbox.clock(of_inbox).poll_every(Duration::from_secs(100)))
        .start()
        .await;
    eventually("it has looked", async || ready(&slow).await.is_ready()).await;
    // Twice the longest pause and half a minute.
    clock.advance(Duration::from_secs(229));
    assert!(ready(&slow).await.is_ready());
    clock.advance(Duration::from_secs(371));
    let readiness = ready(&slow).await;
    assert_eq!(
        failed(&readiness),
        [("worker", "its last look for due events was 600 s ago")]
    );

    eventually("it is ready", async || ready(&world).await.is_ready()).await;
    world.inbox.shutdown().await;
    let readiness = ready(&world).await;
    let down = ("worker", "the inbox is shut down");
    assert!(failed(&readiness).contains(&down), "{readiness:?}");
}

/// (health), §5.8
async fn a_source_whose_parking_is_full_is_named_and_can_be_left_out<D: TestDb>(db: D) {
    let world = World::<D>::over(&db)
        .source(|source| source.park_limit(2))
        .start()
        .await;
    eventually("it is ready", async || ready(&world).await.is_ready()).await;
    world.send(&numbered("acct", 2)).await.is_parked(1);
    assert!(ready(&world).await.is_ready());
    world.send(&numbered("acct", 3)).await.is_parked(1);
    let routes = world.inbox.health_routes();
    let (status, body) = get(&routes, "/readyz").await;
    assert_eq!(status, 503);
    let full = body["checks"]
        .as_array()
        .expect("checks")
        .last()
        .expect("one");
    assert_eq!(
        (&full["name"], &full["source"]),
        (&json!("parking"), &json!("crm"))
    );
    assert_eq!(get(&routes, "/readyz?exclude=worker").await.0, 503);
    let (status, body) = get(&routes, "/readyz?exclude=worker&exclude=parking").await;
    assert_eq!(
        (status, body["checks"].as_array().map(Vec::len)),
        (200, Some(2))
    );
    world.send(&numbered("acct", 1)).await.is_applied();
    eventually("there is room again", async || {
        ready(&world).await.is_ready()
    })
    .await;
}

/// (health): where there is a server, probes take nothing from deliveries.
async fn a_pool_that_is_used_up_is_no_database_that_is_away<D: TestDb>(db: D) {
    if D::NAME == "sqlite" {
        return;
    }
    let world = World::<D>::over(&db).connections(3).start().await;
    eventually("it is ready", async || ready(&world).await.is_ready()).await;
    let mut held = Vec::new();
    for _ in 0..3 {
        held.push(world.pool.acquire().await.expect("a connection"));
    }
    assert!(ready(&world).await.is_ready());
}
