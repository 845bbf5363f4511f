//! What came back to a producer.

use std::time::Duration;

use bytes::Bytes;
use http::HeaderMap;
use http::header::RETRY_AFTER;
use serde_json::Value;

use super::schedule::Answer;
use crate::answer::INBOX_OUTCOME;

/// An answer, read whole.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Reply {
    /// Its status code.
    pub status: u16,
    /// Its headers.
    pub headers: HeaderMap,
    /// Its body.
    pub body: Bytes,
}

impl Reply {
    /// What the inbox says happened, the header `Inbox-Outcome`: `applied`, `duplicate`, `parked`, `accepted`, `rejected` or
    /// `failed`; empty if nobody says so.
    pub fn outcome(&self) -> &str {
        let header = self.headers.get(&INBOX_OUTCOME);
        header.and_then(|value| value.to_str().ok()).unwrap_or("")
    }

    /// The seconds of `Retry-After`.
    pub fn retry_after(&self) -> Option<Duration> {
        let text = self.headers.get(RETRY_AFTER)?.to_str().ok()?;
        text.trim().parse().ok().map(Duration::from_secs)
    }

    /// The body as JSON.
    ///
    /// # Panics
    /// If it is none.
    #[track_caller]
    pub fn json(&self) -> Value {
        match serde_json::from_slice(&self.body) {
            Ok(json) => json,
            Err(error) => panic!("{error}: {:?}", self.body),
        }
    }

    /// The sequence that a parked event waits for.
    pub fn waiting_for(&self) -> Option<i64> {
        let body: Value = serde_json::from_slice(&self.body).ok()?;
        body.get("waiting_for")?.as_i64()
    }

    /// As far as its producer looks at it.
    pub(super) fn answer(&self) -> Answer {
        Answer::Status {
            status: self.status,
            retry_after: self.retry_after(),
            outcome: Some(self.outcome().to_owned()).filter(|outcome| !outcome.is_empty()),
        }
    }
}
