//! The routes: webhooks behind the inbox, and what one wants to see of them.

use std::sync::Arc;
use std::time::Duration;

use axum::body::Bytes;
use axum::extract::{DefaultBodyLimit, Path, State};
use axum::http::{HeaderValue, Method, StatusCode, Uri, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use metrics_exporter_prometheus::PrometheusHandle;
use serde_json::{Value, json};
use sqlx::Pool;
use tower_inbox::{Delivery, Inbox, Tx};

use crate::data::Data;
use crate::faults::{Fault, Faulty, Runs};
use crate::ledger::{Change, LedgerError};

/// A ledger that cannot be read in this time is not there.
const READ: Duration = Duration::from_secs(5);

/// What the routes share.
pub(crate) struct App<DB: Faulty> {
    pub(crate) pool: Pool<DB>,
    pub(crate) inbox: Inbox<DB>,
    pub(crate) metrics: PrometheusHandle,
    /// None: `data.fault` is not obeyed.
    pub(crate) faults: Option<Runs>,
}

/// The whole receiver.
pub(crate) fn router<DB: Faulty>(app: Arc<App<DB>>, presets: &[&str]) -> Router {
    let mut router = Router::new()
        .route("/ledger/{account}", get(ledger::<DB>))
        .route("/metrics", get(metrics::<DB>))
        // Whatever preset is not mounted: an unknown source.
        .route("/webhooks/{preset}", post(unknown).fallback(method))
        .with_state(app.clone());
    router = router.merge(app.inbox.health_routes());
    for preset in presets {
        let webhook = Router::new()
            .route(&format!("/webhooks/{preset}"), post(receive::<DB>))
            // The inbox has bounded the body already, and a layer inside of it holds for drained events too.
            .layer(DefaultBodyLimit::disable())
            .with_state(app.clone());
        router = router.merge(app.inbox.mount(preset, webhook));
    }
    router
}

/// The handler: everything it writes is committed together with the mark that the event is applied, or not at all.
async fn receive<DB: Faulty>(
    State(app): State<Arc<App<DB>>>,
    delivery: Delivery,
    mut tx: Tx<DB>,
    body: Bytes,
) -> Result<Response, Refusal> {
    let data = Data::read(delivery.source(), &body).map_err(Refusal::Content)?;
    let change = Change {
        account: &data.account,
        amount: data.amount,
        event_id: delivery.event_id(),
        event_type: delivery.event_type(),
        sequence: delivery.sequence(),
    };
    let balance = DB::append(&mut tx, &change).await?;
    let fault = match &app.faults {
        Some(runs) => fault(runs, &delivery, &data)?,
        None => None,
    };
    if let Some(fault) = fault
        && let Some(status) = fault.happen(tx).await.map_err(Refusal::Database)?
    {
        return Ok(match status {
            // These have no body.
            StatusCode::NO_CONTENT | StatusCode::RESET_CONTENT | StatusCode::NOT_MODIFIED => {
                status.into_response()
            }
            _ => (status, Json(json!({"fault": data.fault}))).into_response(),
        });
    }
    Ok(Json(json!({"status": "applied", "balance": balance})).into_response())
}

/// What shall go wrong in this run.
fn fault(runs: &Runs, delivery: &Delivery, data: &Data) -> Result<Option<Fault>, Refusal> {
    let Some(text) = &data.fault else {
        return Ok(None);
    };
    let fault = Fault::parse(text)
        .ok_or_else(|| Refusal::Content("data.fault is not a known fault".to_owned()))?;
    let run = runs.count(delivery.source(), delivery.event_id());
    if data.fault_times.is_some_and(|times| run > times) {
        return Ok(None);
    }
    tracing::info!(event_id = delivery.event_id(), ?fault, "a demo fault");
    Ok(Some(fault))
}

/// Why the handler does not take an event.
enum Refusal {
    /// It never will.
    Content(String),
    /// Another time perhaps.
    Database(sqlx::Error),
}

impl From<LedgerError> for Refusal {
    fn from(error: LedgerError) -> Self {
        match error {
            LedgerError::Overflow => Self::Content(error.to_string()),
            LedgerError::Database(error) => Self::Database(error),
        }
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        match self {
            Self::Content(detail) => problem(StatusCode::UNPROCESSABLE_ENTITY, Some(&detail)),
            Self::Database(error) => {
                tracing::warn!(%error, "the ledger could not be written");
                let status = StatusCode::SERVICE_UNAVAILABLE;
                let mut response = problem(status, Some("the ledger could not be written"));
                let seconds = HeaderValue::from_static("5");
                response.headers_mut().insert(header::RETRY_AFTER, seconds);
                response
            }
        }
    }
}

async fn ledger<DB: Faulty>(
    State(app): State<Arc<App<DB>>>,
    Path(account): Path<String>,
) -> Response {
    match tokio::time::timeout(READ, DB::read(&app.pool, &account)).await {
        Ok(Ok(account)) => Json(account).into_response(),
        Ok(Err(error)) => {
            tracing::warn!(%error, "the ledger could not be read");
            problem(
                StatusCode::SERVICE_UNAVAILABLE,
                Some("the ledger could not be read"),
            )
        }
        Err(_) => problem(
            StatusCode::SERVICE_UNAVAILABLE,
            Some("the ledger could not be read in time"),
        ),
    }
}

async fn metrics<DB: Faulty>(State(app): State<Arc<App<DB>>>) -> impl IntoResponse {
    (
        [(
            header::CONTENT_TYPE,
            "text/plain; version=0.0.4; charset=utf-8",
        )],
        app.metrics.render(),
    )
}

/// A source that is not mounted gets the same as a wrong signature.
async fn unknown(uri: Uri) -> Response {
    tracing::warn!(
        path = uri.path(),
        reason = "unknown source",
        "refused a delivery"
    );
    rejected(problem(StatusCode::UNAUTHORIZED, None))
}

async fn method(method: Method, uri: Uri) -> Response {
    tracing::warn!(path = uri.path(), %method, reason = "method", "refused a delivery");
    let mut response = problem(
        StatusCode::METHOD_NOT_ALLOWED,
        Some("webhooks are delivered by POST"),
    );
    response
        .headers_mut()
        .insert(header::ALLOW, HeaderValue::from_static("POST"));
    rejected(response)
}

fn rejected(mut response: Response) -> Response {
    response
        .headers_mut()
        .insert("inbox-outcome", HeaderValue::from_static("rejected"));
    response
}

/// RFC 9457.
fn problem(status: StatusCode, detail: Option<&str>) -> Response {
    let mut body = json!({
        "type": "about:blank", "title": status.canonical_reason(), "status": status.as_u16(),
    });
    if let Some(detail) = detail {
        body["detail"] = Value::from(detail);
    }
    (
        status,
        [(header::CONTENT_TYPE, "application/problem+json")],
        body.to_string(),
    )
        .into_response()
}
