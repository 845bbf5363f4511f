//! The replay endpoint of the coordination brief: what was given up, and what was delivered, by event id and timestamp.

use std::collections::HashMap;
use std::sync::Arc;

use axum::extract::State;
use axum::http::header::{AUTHORIZATION, CONTENT_TYPE};
use axum::http::{HeaderMap, StatusCode, Uri};
use axum::routing::get;
use axum::{Json, Router};
use serde_json::{Map, Value, json};
use tower_inbox::clock::Timestamp;
use tower_inbox::verify::Unit;

use crate::shared::engine::Sender;
use crate::shared::plan::Plan;
use crate::shared::preset::{Attempt, rfc3339};
use crate::shared::report::{Fate, Report};

/// Events of one page.
const LONGEST_PAGE: usize = 1_000;

/// The lists of a run, and the key to them.
pub(crate) struct Lists {
    key: String,
    /// In the order of the plan.
    events: Vec<Listed>,
}

struct Listed {
    list: &'static str,
    at: Timestamp,
    kind: &'static str,
    /// Its correlation id and sequence.
    place: Option<(String, u64)>,
    item: Value,
}

impl Lists {
    /// What became of the events of a plan.
    pub(crate) fn new(key: String, plan: &Plan, sender: &Sender, report: &Report) -> Self {
        let ended = report.fates.iter().zip(&report.ended_at);
        let listed = |(event, (fate, ended_at)): (&_, (&Fate, &u64))| {
            let list = match fate {
                // What is refused is given up, too: the brief sends it to reconciliation.
                Fate::Exhausted | Fate::Refused => "exhausted",
                Fate::Waiting | Fate::Applied => "delivered",
                Fate::Unsent => return None,
            };
            let event: &crate::shared::plan::Event = event;
            let body = sender.preset.body(event);
            let now = Attempt {
                number: 1,
                first_sent: *ended_at,
                now: *ended_at,
            };
            let headers = sender.preset.headers(event, &body, now, &sender.signer);
            let headers: Map<_, _> = headers
                .iter()
                // What is put through by this list is not signed.
                .filter(|(name, _)| *name == CONTENT_TYPE || !name.as_str().contains("signature"))
                .filter_map(|(name, value)| Some((name.to_string(), value.to_str().ok()?.into())))
                .collect();
            Some(Listed {
                list,
                at: Timestamp::from_secs(i64::try_from(*ended_at).ok()?),
                kind: event.kind,
                place: event
                    .order
                    .as_ref()
                    .map(|order| (order.correlation.clone(), order.sequence)),
                item: json!({
                    "event_id": event.id, "timestamp": rfc3339(*ended_at), "event_type": event.kind,
                    "path": sender.target.hook.path(), "headers": headers,
                    "body": String::from_utf8(body).ok()?,
                }),
            })
        };
        Self {
            key,
            events: plan.events.iter().zip(ended).filter_map(listed).collect(),
        }
    }

    /// `GET /replays`.
    pub(crate) fn router(self) -> Router {
        Router::new()
            .route("/replays", get(page))
            .with_state(Arc::new(self))
    }
}

async fn page(
    State(lists): State<Arc<Lists>>,
    headers: HeaderMap,
    uri: Uri,
) -> Result<Json<Value>, StatusCode> {
    let expected = format!("Bearer {}", lists.key);
    if headers.get(AUTHORIZATION).map(|key| key.as_bytes()) != Some(expected.as_bytes()) {
        return Err(StatusCode::UNAUTHORIZED);
    }
    let query = uri.query().unwrap_or_default();
    let asked: HashMap<_, _> = form_urlencoded::parse(query.as_bytes()).collect();
    let text = |name: &str| asked.get(name).map(|value| &**value);
    let number = |name: &str| match text(name) {
        Some(text) => text
            .parse::<usize>()
            .map(Some)
            .map_err(|_| StatusCode::BAD_REQUEST),
        None => Ok(None),
    };
    let since = match text("since") {
        Some(since) => Some(Unit::Rfc3339.parse(since).ok_or(StatusCode::BAD_REQUEST)?),
        None => None,
    };
    let place = text("correlation_id").zip(number("sequence")?);
    let wanted = |event: &&Listed| match place {
        // Wherever it is listed.
        Some((stream, sequence)) => {
            let place = event.place.as_ref();
            place.is_some_and(|(id, n)| id == stream && *n == sequence as u64)
        }
        None => {
            event.list == text("list").unwrap_or("exhausted")
                && since.is_none_or(|since| event.at >= since)
                && text("event_type").is_none_or(|kind| event.kind == kind)
        }
    };
    let all: Vec<_> = lists.events.iter().filter(wanted).collect();
    let from = number("page")?.unwrap_or(0).min(all.len());
    let most = number("limit")?.unwrap_or(100).clamp(1, LONGEST_PAGE);
    let to = (from + most).min(all.len());
    let items: Vec<_> = all[from..to].iter().map(|event| &event.item).collect();
    let next = (to < all.len()).then(|| to.to_string());
    Ok(Json(
        json!({"events": items, "next": next, "total": all.len()}),
    ))
}
