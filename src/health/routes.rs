//! The checks over HTTP.

use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::State;
use axum::response::Response;
use axum::routing::get;
use http::header::{CACHE_CONTROL, CONTENT_TYPE};
use http::{HeaderValue, StatusCode, Uri};

use super::Readiness;
use crate::inbox::Inbox;
use crate::store::Backend;

/// Probes want their answer within a second.
const PATIENCE: Duration = Duration::from_millis(800);

impl<DB: Backend> Inbox<DB> {
    /// Routes for probes, to merge into the app's: `GET /healthz`, which asks whether the database answers, and
    /// `GET /readyz`, which asks all of [`Inbox::readiness`]. Each answers within a second: 200, or 503 if a check failed, with
    /// `{"status":"ok","checks":[{"name":"database","ok":true}]}` or `"status":"failed"` and the reasons.
    ///
    /// `GET /readyz?exclude=parking` leaves a check out, and may name several. A source whose parking is full refuses what
    /// would be parked and takes what fills its gaps: whoever takes such a process out of service keeps that out, too.
    ///
    /// They need no authorisation and tell the names of sources: mount them where only those who may know these come.
    pub fn health_routes(&self) -> Router {
        Router::new()
            .route("/healthz", get(healthz::<DB>))
            .route("/readyz", get(readyz::<DB>))
            .with_state(self.clone())
    }
}

async fn healthz<DB: Backend>(State(inbox): State<Inbox<DB>>) -> Response {
    let mut checks = inbox.look(PATIENCE).await;
    checks.retain(|check| check.name == "database");
    answer(&Readiness { checks })
}

async fn readyz<DB: Backend>(State(inbox): State<Inbox<DB>>, uri: Uri) -> Response {
    let mut readiness = inbox.readiness(PATIENCE).await;
    let query = uri.query().unwrap_or_default();
    let excluded = |name: &str| {
        form_urlencoded::parse(query.as_bytes())
            .any(|(key, value)| key == "exclude" && value == name)
    };
    readiness.checks.retain(|check| !excluded(check.name));
    answer(&readiness)
}

fn answer(readiness: &Readiness) -> Response {
    let (status, word) = match readiness.is_ready() {
        true => (StatusCode::OK, "ok"),
        false => (StatusCode::SERVICE_UNAVAILABLE, "failed"),
    };
    let body = serde_json::json!({ "status": word, "checks": readiness.checks });
    let mut response = Response::new(Body::from(body.to_string()));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}
