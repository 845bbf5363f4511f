//! Mounting on axum routers and on any other tower service, and the end of both.

use std::convert::Infallible;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::routing::{get, post};
use bytes::Bytes;
use http::{Method, Request, Response, StatusCode};
use http_body_util::Full;
use tower::{Layer, ServiceExt, service_fn};
use tower_inbox::{Delivery, Origin, Outcome, Tx};

use crate::db::{Entry, TestDb};
use crate::kit::{Call, Event, Gate, Reply, SOURCE, World, eventually, numbered, within};

suite![
    a_mounted_router_merges_into_an_app,
    a_mounted_router_needs_a_known_source_and_a_route,
    the_extractors_give_transaction_and_delivery,
    an_extractor_without_an_inbox_is_a_500,
    an_extractor_that_refuses_is_the_handlers_verdict,
    a_plain_tower_service_is_served_live_and_drained,
    an_error_of_the_inner_service_is_a_500_and_the_retry_applies,
    the_layer_on_single_axum_routes_panics_with_the_fix,
    the_outcome_is_in_the_extensions_for_outer_layers,
    shutdown_refuses_new_deliveries_and_waits_for_those_that_run,
    shutdown_twice_is_once,
];

fn request(method: Method, path: &str) -> Request<Body> {
    Request::builder()
        .method(method)
        .uri(path)
        .body(Body::empty())
        .unwrap()
}

/// §3: 405 is the inbox's; what no route matches is the app's.
async fn a_mounted_router_merges_into_an_app<D: TestDb>(db: D) {
    let world = World::<D>::start(&db).await;
    let app = Router::new()
        .route("/health", get(async || "fine"))
        .merge(world.app.clone())
        .fallback(async || (StatusCode::NOT_FOUND, "the app's own page"));
    let app = world.through(app);
    app.send(&Event::new("evt_1")).await.is_applied();
    let health = app.post(request(Method::GET, "/health")).await;
    assert_eq!((health.status, health.outcome()), (200, "none"));
    for (method, path) in [
        (Method::GET, "/nowhere"),
        (Method::POST, "/hooks"),
        (Method::POST, "/hooks/a/b"),
    ] {
        let reply = app.post(request(method, path)).await;
        assert_eq!(
            (reply.status, reply.outcome(), &*reply.body),
            (404, "none", &b"the app's own page"[..])
        );
    }
    app.post(request(Method::GET, "/hooks/acme"))
        .await
        .is(405, "rejected");
    // A signature opens no path that is not there, and leaves nothing.
    let mut elsewhere = app.request(&Event::new("evt_2"));
    *elsewhere.uri_mut() = "/nowhere".parse().unwrap();
    assert_eq!(app.post(elsewhere).await.status, 404);
    assert_eq!(app.number("SELECT COUNT(*) FROM {p}event").await, 1);
    // Nested, the live path works too.
    let nested = world.through(Router::new().nest("/api", world.app.clone()));
    let mut inside = nested.request(&Event::new("evt_3"));
    *inside.uri_mut() = "/api/hooks/acme".parse().unwrap();
    nested.post(inside).await.is_applied();
}

fn panic_text(work: impl FnOnce()) -> String {
    let panic = catch_unwind(AssertUnwindSafe(work)).expect_err("it panics");
    panic
        .downcast_ref::<String>()
        .cloned()
        .unwrap_or_else(|| panic.downcast_ref::<&str>().unwrap().to_string())
}

/// (setup)
async fn a_mounted_router_needs_a_known_source_and_a_route<D: TestDb>(db: D) {
    let world = World::<D>::start(&db).await;
    let router = || Router::new().route("/hooks", post(async || "done"));
    let text = panic_text(|| drop(world.inbox.mount("cmr", router())));
    assert!(text.contains("\"cmr\"") && text.contains(SOURCE), "{text}");
    let text = panic_text(|| drop(world.inbox.layer::<Full<Bytes>>("cmr")));
    assert!(text.contains("\"cmr\"") && text.contains(SOURCE), "{text}");
    let text = panic_text(|| drop(world.inbox.mount(SOURCE, Router::new())));
    assert!(text.contains("route"), "{text}");
}

/// §2.8. ARCHITECTURE.md, "how a user's code should read".
async fn the_extractors_give_transaction_and_delivery<D: TestDb>(db: D) {
    async fn handler<D: TestDb>(
        mut tx: Tx<D::DB>,
        event: Delivery,
        axum::Json(body): axum::Json<serde_json::Value>,
    ) -> StatusCode {
        assert_eq!(
            (event.source(), event.event_type()),
            (SOURCE, Some("payment.succeeded"))
        );
        assert_eq!(
            (event.correlation_id(), event.sequence()),
            (Some("acct"), body["sequence"].as_i64())
        );
        assert_eq!(event.envelope().event_id.as_str(), event.event_id());
        let drained = i64::from(event.origin() == Origin::Drained);
        let entry = Entry {
            event_id: event.event_id().into(),
            account: String::new(),
            sequence: event.sequence(),
            amount: drained,
        };
        D::append(&mut tx, &entry).await.unwrap();
        StatusCode::CREATED
    }
    let world = World::<D>::start(&db).await;
    let router = Router::new().route("/hooks/{tenant}", post(handler::<D>));
    let world = world.through(world.inbox.mount(SOURCE, router));
    world.send(&numbered("acct", 2)).await.is_parked(1);
    world.send(&numbered("acct", 1)).await.is(201, "applied");
    eventually("2 follows", async || world.ledger().await.len() == 2).await;
    let origins: Vec<_> = world
        .ledger()
        .await
        .into_iter()
        .map(|entry| entry.amount)
        .collect();
    assert_eq!(origins, [0, 1]);
}

/// (setup). A mistake in the app, not in the request.
async fn an_extractor_without_an_inbox_is_a_500<D: TestDb>(db: D) {
    let world = World::<D>::start(&db).await;
    let app = Router::new()
        .route("/tx", post(async |_: Tx<D::DB>| "done"))
        .route("/delivery", post(async |_: Delivery| "done"));
    let app = world.through(app);
    for path in ["/tx", "/delivery"] {
        assert_eq!(
            app.post(request(Method::POST, path)).await.status,
            500,
            "{path}"
        );
    }
}

/// §3: a body that the handler's types do not fit is a verdict on the payload: 4xx, a dead letter.
async fn an_extractor_that_refuses_is_the_handlers_verdict<D: TestDb>(db: D) {
    #[derive(serde::Deserialize)]
    struct Strict {
        #[allow(dead_code, reason = "only its absence matters")]
        missing: u8,
    }
    let world = World::<D>::start(&db).await;
    let handler = async |_: Tx<D::DB>, _: axum::Json<Strict>| "done";
    let router = Router::new().route("/hooks/{tenant}", post(handler));
    let world = world.through(world.inbox.mount(SOURCE, router));
    world.send(&Event::new("evt_1")).await.is(422, "rejected");
    assert_eq!(world.in_state(3).await, 1);
    world
        .send(&Event::new("evt_2").with("missing", 1))
        .await
        .is(200, "applied");
    world.pool_is_whole().await;
}

type Whole = Full<Bytes>;

/// The ledger as a plain tower service, which fails as often as `failures` says.
async fn ledger<D: TestDb>(request: Request<Whole>) -> Result<Response<Whole>, io::Error> {
    let delivery = request
        .extensions()
        .get::<Delivery>()
        .cloned()
        .expect("a delivery");
    let mut tx = Tx::<D::DB>::take(request.extensions()).expect("a transaction");
    let entry = Entry {
        event_id: delivery.event_id().into(),
        account: request.uri().path().into(),
        sequence: delivery.sequence(),
        amount: 0,
    };
    D::append(&mut tx, &entry)
        .await
        .expect("the ledger takes it");
    if request.headers().contains_key("x-fail") {
        return Err(io::Error::other("the service's own error"));
    }
    Ok(Response::new(Whole::from("written")))
}

fn plain<D: TestDb>(world: &World<D>, event: &Event) -> Request<Whole> {
    world.request(event).map(|_| Whole::from(event.body()))
}

/// §5.9: the layer alone starts the worker as well.
async fn a_plain_tower_service_is_served_live_and_drained<D: TestDb>(db: D) {
    let world = World::<D>::start(&db).await;
    let service = world
        .inbox
        .layer::<Whole>(SOURCE)
        .layer(service_fn(ledger::<D>));
    let send = async |event: &Event| {
        let answer: Result<Response<Whole>, io::Error> =
            service.clone().oneshot(plain(&world, event)).await;
        Reply::read(answer.unwrap()).await
    };
    send(&numbered("acct", 3)).await.is_parked(1);
    send(&numbered("acct", 2)).await.is_parked(1);
    let first = send(&numbered("acct", 1)).await;
    first.is(200, "applied");
    assert_eq!(first.body, "written");
    send(&numbered("acct", 1)).await.is_duplicate();
    eventually("the others follow", async || {
        world.ledger().await.len() == 3
    })
    .await;
    let ledger = world.ledger().await;
    let sequences: Vec<_> = ledger.iter().filter_map(|entry| entry.sequence).collect();
    assert_eq!(sequences, [1, 2, 3]);
    assert!(ledger.iter().all(|entry| entry.account == "/hooks/acme"));
    // A method that no webhook has, and a forged signature.
    let get = request(Method::GET, "/").map(|_| Whole::default());
    Reply::read(service.clone().oneshot(get).await.unwrap())
        .await
        .is(405, "rejected");
    let forged = Request::post("/").body(Whole::from("{}")).unwrap();
    Reply::read(service.clone().oneshot(forged).await.unwrap())
        .await
        .is(401, "rejected");
    world.pool_is_whole().await;
}

/// §3: "the inner service returned an error".
async fn an_error_of_the_inner_service_is_a_500_and_the_retry_applies<D: TestDb>(db: D) {
    let world = World::<D>::start(&db).await;
    let service = world
        .inbox
        .layer::<Whole>(SOURCE)
        .layer(service_fn(ledger::<D>));
    let mut failing = plain(&world, &numbered("acct", 1));
    failing.headers_mut().insert("x-fail", "1".parse().unwrap());
    let reply = Reply::read(service.clone().oneshot(failing).await.unwrap()).await;
    reply.is_problem_about(500, "failed", "");
    // What the service says about itself is for the log.
    assert!(!String::from_utf8_lossy(&reply.body).contains("own error"));
    assert!(world.ledger().await.is_empty());
    let retry = service
        .clone()
        .oneshot(plain(&world, &numbered("acct", 1)))
        .await
        .unwrap();
    Reply::read(retry).await.is(200, "applied");
    assert_eq!(world.applied().await, ["evt_acct_1"]);
    world.pool_is_whole().await;
}

/// §5.3, (setup). The drain would know the last of the routes only.
async fn the_layer_on_single_axum_routes_panics_with_the_fix<D: TestDb>(db: D) {
    let world = World::<D>::start(&db).await;
    let text = panic_text(|| {
        let router: Router = Router::new()
            .route("/a", post(async || "a"))
            .route("/b", post(async || "b"));
        drop(router.layer(world.inbox.layer::<Body>(SOURCE)));
    });
    assert!(text.contains("inbox.mount(\"crm\", router)"), "{text}");
    // On a whole router it is a tower service like any other.
    let router: Router = Router::new().route("/hooks/{tenant}", post(async || "done"));
    let whole = world
        .inbox
        .layer::<Body>(SOURCE)
        .layer(router.into_service::<Body>());
    let answer: Result<_, Infallible> = whole.oneshot(world.request(&Event::new("evt_1"))).await;
    Reply::read(answer.unwrap()).await.is(200, "applied");
}

/// §3
async fn the_outcome_is_in_the_extensions_for_outer_layers<D: TestDb>(db: D) {
    let world = World::<D>::start(&db).await;
    let outcome = async |event: &Event| {
        let answer = world
            .app
            .clone()
            .oneshot(world.request(event))
            .await
            .unwrap();
        answer.extensions().get::<Outcome>().copied()
    };
    assert_eq!(outcome(&Event::new("evt_1")).await, Some(Outcome::Applied));
    assert_eq!(
        outcome(&Event::new("evt_1")).await,
        Some(Outcome::Duplicate)
    );
    assert_eq!(outcome(&numbered("acct", 2)).await, Some(Outcome::Parked));
    assert_eq!(outcome(&Event::new("")).await, Some(Outcome::Rejected));
    let control = Event::new("evt").with("event_type", "subscription.replay_started");
    assert_eq!(outcome(&control).await, Some(Outcome::Accepted));
    world.inbox.shutdown().await;
    assert_eq!(outcome(&Event::new("evt_2")).await, Some(Outcome::Failed));
}

/// (shutdown). Issue 2: deliveries in flight finish.
async fn shutdown_refuses_new_deliveries_and_waits_for_those_that_run<D: TestDb>(db: D) {
    let gate = Gate::shut();
    let held = gate.clone();
    let world = World::<D>::over(&db)
        .handler(move |mut call: Call<D>| {
            let gate = held.clone();
            async move {
                call.append().await;
                gate.pass().await;
                StatusCode::NO_CONTENT
            }
        })
        .start()
        .await;
    let running = world.spawn(&Event::new("evt_1"));
    gate.reached_by(1).await;
    let stopping = tokio::spawn({
        let inbox = world.inbox.clone();
        async move { inbox.shutdown().await }
    });
    eventually("new ones are refused", async || {
        // It comes to nothing either way, so that nobody waits for it.
        let reply = world.send(&Event::new("")).await;
        reply.status == 503
            && reply
                .is_problem_about(503, "failed", "shutting down")
                .is_problem()
    })
    .await;
    assert!(!stopping.is_finished(), "it did not wait");
    gate.open();
    running.await.unwrap().is_applied();
    within(Duration::from_secs(5), stopping).await.unwrap();
    assert!(world.applied().await.contains(&"evt_1".to_owned()));
    world.pool_is_whole().await;
}

/// (shutdown)
async fn shutdown_twice_is_once<D: TestDb>(db: D) {
    let world = World::<D>::start(&db).await;
    world.send(&Event::new("evt_1")).await.is_applied();
    for _ in 0..2 {
        within(Duration::from_secs(5), world.inbox.shutdown()).await;
    }
    world.send(&Event::new("evt_1")).await.is(503, "failed");
    world.pool_is_whole().await;
}
