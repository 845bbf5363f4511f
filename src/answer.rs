//! What the inbox itself answers: the vocabulary of §3, in one place.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::{CONTENT_TYPE, RETRY_AFTER};
use http::{HeaderName, HeaderValue, Response, StatusCode};

use crate::event::Outcome;
use crate::kept::Kept;

/// The header that tells a producer (and a test) what happened to its delivery.
pub static INBOX_OUTCOME: HeaderName = HeaderName::from_static("inbox-outcome");

/// Over a limit: the load may be gone in a second.
pub(crate) const RETRY_LOAD: Duration = Duration::from_secs(1);
/// A fault, or a gap: give it a moment.
pub(crate) const RETRY_FAULT: Duration = Duration::from_secs(5);

/// What most duplicates are told.
const ALREADY_PROCESSED: &str = "already_processed";

/// An answer of the inbox, before it becomes a response with the service's body type.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Answer {
    pub(crate) status: StatusCode,
    pub(crate) outcome: Outcome,
    retry_after: Option<Duration>,
    body: Body,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Body {
    Empty,
    /// `{"status": …}`, with what a parked event waits for.
    Status(&'static str, Option<u64>),
    /// RFC 9457, with the detail that the producer may know.
    Problem(Option<String>),
    /// What a handshake wants.
    Raw(&'static str, Bytes),
    /// The first answer again.
    Kept(Arc<Kept>),
}

impl Answer {
    fn status(status: StatusCode, outcome: Outcome, word: &'static str) -> Self {
        Self {
            status,
            outcome,
            retry_after: None,
            body: Body::Status(word, None),
        }
    }

    fn problem(status: StatusCode, outcome: Outcome, detail: impl Into<String>) -> Self {
        Self {
            status,
            outcome,
            retry_after: None,
            body: Body::Problem(Some(detail.into())),
        }
    }

    fn retry_after(mut self, after: Duration) -> Self {
        self.retry_after = Some(after);
        self
    }

    pub(crate) fn duplicate() -> Self {
        Self::status(StatusCode::OK, Outcome::Duplicate, ALREADY_PROCESSED)
    }

    /// The first answer again, where it was kept.
    pub(crate) fn again(kept: Option<Arc<Kept>>) -> Self {
        match kept {
            Some(kept) if kept.body.is_some() => Self {
                body: Body::Kept(kept),
                ..Self::duplicate()
            },
            _ => Self::duplicate(),
        }
    }

    pub(crate) fn fenced() -> Self {
        Self::status(StatusCode::OK, Outcome::Duplicate, "fenced")
    }

    pub(crate) fn superseded() -> Self {
        Self::status(StatusCode::OK, Outcome::Duplicate, "superseded")
    }

    pub(crate) fn discarded() -> Self {
        Self::status(StatusCode::OK, Outcome::Duplicate, "discarded")
    }

    pub(crate) fn parked(waiting_for: u64) -> Self {
        Self {
            status: StatusCode::ACCEPTED,
            outcome: Outcome::Parked,
            retry_after: Some(RETRY_FAULT),
            body: Body::Status("parked", Some(waiting_for)),
        }
    }

    /// A handler's "not yet".
    pub(crate) fn put_off(waiting_for: Option<u64>, wait: Duration) -> Self {
        Self {
            status: StatusCode::ACCEPTED,
            outcome: Outcome::Parked,
            retry_after: Some(wait),
            body: Body::Status("parked", waiting_for),
        }
    }

    /// Deferred mode.
    pub(crate) fn stored() -> Self {
        Self::status(StatusCode::ACCEPTED, Outcome::Accepted, "accepted")
    }

    pub(crate) fn set_aside() -> Self {
        Self::status(StatusCode::ACCEPTED, Outcome::Parked, "set_aside")
    }

    /// What a handshake wants, or nothing at all for a control event.
    pub(crate) fn accepted(content_type: &'static str, body: Bytes) -> Self {
        let body = if body.is_empty() {
            Body::Empty
        } else {
            Body::Raw(content_type, body)
        };
        Self {
            status: StatusCode::OK,
            outcome: Outcome::Accepted,
            retry_after: None,
            body,
        }
    }

    /// What a log line or a dead letter says of it.
    pub(crate) fn reason(&self) -> &str {
        match &self.body {
            Body::Problem(Some(detail)) => detail,
            Body::Status(word, _) => word,
            Body::Empty | Body::Problem(None) | Body::Raw(..) | Body::Kept(_) => "",
        }
    }

    /// 401 tells the caller nothing (§6.6).
    pub(crate) fn unauthorized() -> Self {
        Self {
            status: StatusCode::UNAUTHORIZED,
            outcome: Outcome::Rejected,
            retry_after: None,
            body: Body::Problem(None),
        }
    }

    /// Its owner has deregistered the source (§3): never for another reason, since producers pause the endpoint on it.
    pub(crate) fn gone() -> Self {
        let detail = "this endpoint was deregistered by its owner";
        Self::problem(StatusCode::GONE, Outcome::Rejected, detail)
    }

    pub(crate) fn bad_request(detail: impl Into<String>) -> Self {
        Self::problem(StatusCode::BAD_REQUEST, Outcome::Rejected, detail)
    }

    pub(crate) fn method() -> Self {
        Self::problem(
            StatusCode::METHOD_NOT_ALLOWED,
            Outcome::Rejected,
            "webhooks are delivered by POST",
        )
    }

    pub(crate) fn body_slow() -> Self {
        let detail = "the body did not arrive in time";
        Self::problem(StatusCode::REQUEST_TIMEOUT, Outcome::Failed, detail)
    }

    pub(crate) fn body_broken() -> Self {
        Self::bad_request("the body could not be read to its end")
    }

    pub(crate) fn body_big(limit: usize) -> Self {
        Self::problem(
            StatusCode::PAYLOAD_TOO_LARGE,
            Outcome::Rejected,
            format!("the body is larger than the {limit} bytes that this source allows"),
        )
    }

    pub(crate) fn other_content() -> Self {
        let detail = "this event id was delivered before with other content";
        Self::problem(StatusCode::UNPROCESSABLE_ENTITY, Outcome::Rejected, detail)
    }

    pub(crate) fn place_taken() -> Self {
        let detail = "this sequence of this correlation id belongs to another event id";
        Self::problem(StatusCode::UNPROCESSABLE_ENTITY, Outcome::Rejected, detail)
    }

    /// Load is 429: the producers of the seeds honour Retry-After on it.
    pub(crate) fn busy(what: &'static str) -> Self {
        Self::problem(
            StatusCode::TOO_MANY_REQUESTS,
            Outcome::Failed,
            format!("over a limit: {what}"),
        )
        .retry_after(RETRY_LOAD)
    }

    /// The handler's side went wrong.
    pub(crate) fn handler_failed(detail: &'static str) -> Self {
        Self::problem(StatusCode::INTERNAL_SERVER_ERROR, Outcome::Failed, detail)
    }

    /// Faults are 503.
    pub(crate) fn unavailable(detail: &'static str) -> Self {
        Self::problem(StatusCode::SERVICE_UNAVAILABLE, Outcome::Failed, detail)
            .retry_after(RETRY_FAULT)
    }

    /// A 4xx of the handler that ended another delivery of the same event.
    pub(crate) fn same_verdict(status: StatusCode) -> Self {
        let detail = "another delivery of this event was refused while this one waited";
        Self::problem(status, Outcome::Rejected, detail)
    }

    pub(crate) fn into_response<R: From<Bytes>>(self) -> Response<R> {
        if let Body::Kept(kept) = &self.body {
            let Some(mut response) = kept.response() else {
                return Self::duplicate().into_response();
            };
            mark(&mut response, self.outcome);
            return response;
        }
        let (content_type, body) = self.render();
        let mut response = Response::new(R::from(body));
        *response.status_mut() = self.status;
        let headers = response.headers_mut();
        if let Some(content_type) = content_type {
            headers.insert(CONTENT_TYPE, content_type);
        }
        if self.status == StatusCode::METHOD_NOT_ALLOWED {
            headers.insert(http::header::ALLOW, HeaderValue::from_static("POST"));
        }
        if let Some(after) = self.retry_after {
            headers.insert(RETRY_AFTER, HeaderValue::from(after.as_secs().max(1)));
        }
        mark(&mut response, self.outcome);
        response
    }

    fn render(&self) -> (Option<HeaderValue>, Bytes) {
        let json = Some(HeaderValue::from_static("application/json"));
        match &self.body {
            Body::Empty | Body::Kept(_) => (None, Bytes::new()),
            Body::Status(ALREADY_PROCESSED, None) => (
                json,
                Bytes::from_static(br#"{"status":"already_processed"}"#),
            ),
            Body::Status(word, None) => (json, format!(r#"{{"status":"{word}"}}"#).into()),
            Body::Status(word, Some(n)) => (
                json,
                format!(r#"{{"status":"{word}","waiting_for":{n}}}"#).into(),
            ),
            Body::Problem(detail) => {
                let title = self.status.canonical_reason().unwrap_or("Error");
                let mut problem = serde_json::json!({
                    "type": "about:blank", "title": title, "status": self.status.as_u16(),
                });
                if let Some(detail) = detail {
                    problem["detail"] = detail.as_str().into();
                }
                let content_type = HeaderValue::from_static("application/problem+json");
                (Some(content_type), problem.to_string().into())
            }
            Body::Raw(content_type, body) => {
                (Some(HeaderValue::from_static(content_type)), body.clone())
            }
        }
    }
}

/// Every answer carries its outcome, in a header for the producer and in the extensions for outer layers.
pub(crate) fn mark<R>(response: &mut Response<R>, outcome: Outcome) {
    response.headers_mut().insert(
        INBOX_OUTCOME.clone(),
        HeaderValue::from_static(outcome.as_str()),
    );
    response.extensions_mut().insert(outcome);
}
