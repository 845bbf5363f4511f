//! An inbox on SQLite, and a handler that says so when it runs.

use std::future::Future;
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::Body;
use axum::extract::State;
use axum::routing::post;
use http::{Request, Response, StatusCode};
use tower::ServiceExt as _;
use tower_inbox::testkit::{self, SignedRequest, TestDatabase};
use tower_inbox::{Delivery, Inbox, Preset, Source, Tx};

/// Nothing that is logged may hold it.
pub(crate) const SECRET: &str = "whk_never_to_be_seen_in_a_log";
/// More than a slow machine needs.
const LIMIT: Duration = Duration::from_secs(30);
/// What the handler says.
pub(crate) const HANDLING: &str = "handling";
/// The id of the span that a producer's trace goes on from.
pub(crate) const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
pub(crate) const SPAN: &str = "00f067aa0ba902b7";

/// A `traceparent` of this trace.
pub(crate) fn traceparent() -> String {
    format!("00-{TRACE}-{SPAN}-01")
}

/// An inbox at work.
pub(crate) struct World {
    pub(crate) inbox: Inbox<sqlx::Sqlite>,
    pub(crate) app: Router,
    _db: TestDatabase<sqlx::Sqlite>,
}

/// What the handler does beyond saying so: it answers with this status.
#[derive(Clone, Copy)]
struct Answers(fn(&Delivery) -> u16);

impl World {
    pub(crate) async fn start(change: impl FnOnce(Source) -> Source) -> Self {
        Self::answering(change, |_| 204).await
    }

    pub(crate) async fn answering(
        change: impl FnOnce(Source) -> Source,
        answers: fn(&Delivery) -> u16,
    ) -> Self {
        let router = Router::new()
            .route("/hook", post(handler))
            .with_state(Answers(answers));
        Self::with(change, router).await
    }

    pub(crate) async fn with(change: impl FnOnce(Source) -> Source, router: Router) -> Self {
        let db = testkit::sqlite().await;
        let source = change(Source::kudos("crm").secrets([SECRET]));
        let inbox = Inbox::builder(db.pool())
            .source(source)
            .poll_every(Duration::from_millis(200))
            .build()
            .await
            .expect("it is built");
        let app = inbox.mount("crm", router);
        Self {
            inbox,
            app,
            _db: db,
        }
    }

    pub(crate) async fn send(&self, request: &SignedRequest) -> Response<Body> {
        self.post(request.build()).await
    }

    pub(crate) async fn post(&self, request: Request<Body>) -> Response<Body> {
        let answer = self.app.clone().oneshot(request).await;
        answer.unwrap_or_else(|never| match never {})
    }
}

async fn handler(
    State(Answers(answers)): State<Answers>,
    mut tx: Tx<sqlx::Sqlite>,
    delivery: Delivery,
) -> StatusCode {
    tracing::info!(target: "app", id = delivery.event_id(), "{HANDLING}");
    sqlx::query("SELECT 1")
        .execute(&mut *tx)
        .await
        .expect("its transaction");
    StatusCode::from_u16(answers(&delivery)).expect("a status")
}

/// An event, signed.
pub(crate) fn event(id: &str) -> SignedRequest {
    signed(&testkit::event(id))
}

/// Its place in a stream.
pub(crate) fn numbered(stream: &str, sequence: i64) -> SignedRequest {
    signed(&testkit::event(format!("evt_{stream}_{sequence}")).stream(stream, sequence))
}

pub(crate) fn signed(event: &testkit::Event) -> SignedRequest {
    event.request(Preset::KUDOS, SECRET).to("/hook")
}

/// Waits until it is so.
#[track_caller]
pub(crate) fn eventually(what: &str, mut so: impl FnMut() -> bool) -> impl Future<Output = ()> {
    let caller = std::panic::Location::caller();
    async move {
        let began = Instant::now();
        while !so() {
            assert!(
                began.elapsed() < LIMIT,
                "not within {LIMIT:?}: {what} ({caller})"
            );
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
}
