//! An answer, read whole, and held to what every answer promises.

use std::time::Duration;

use bytes::Bytes;
use http::header::{CONTENT_TYPE, RETRY_AFTER};
use http::{HeaderMap, Response};
use http_body::Body;
use http_body_util::BodyExt;
use serde_json::Value;
use tower_inbox::Outcome;

/// An answer.
#[derive(Clone, Debug)]
pub(crate) struct Reply {
    pub(crate) status: u16,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
}

impl Reply {
    /// Reads an answer of an inbox. What holds for all of them is checked here.
    pub(crate) async fn read<B: Body<Data = Bytes>>(response: Response<B>) -> Self {
        let (parts, body) = response.into_parts();
        let Ok(body) = body.collect().await else {
            panic!("bodies of answers are in memory")
        };
        let reply = Self {
            status: parts.status.as_u16(),
            headers: parts.headers,
            body: body.to_bytes(),
        };
        let extension = parts
            .extensions
            .get::<Outcome>()
            .map(|outcome| outcome.as_str());
        assert_eq!(
            reply.outcome(),
            extension.unwrap_or("none"),
            "header and extension: {reply:?}"
        );
        reply.check();
        reply
    }

    /// §3, for what the inbox answers by itself.
    fn check(&self) {
        if self.outcome() == "none" {
            return;
        }
        if matches!(self.status, 429 | 503) {
            assert_eq!(self.outcome(), "failed", "{self:?}");
        }
        if self.is_problem() {
            let problem = self.json();
            assert_eq!(problem["status"], self.status, "{self:?}");
            assert!(problem["title"].is_string(), "{self:?}");
            assert_eq!(
                problem["detail"].is_string(),
                self.status != 401,
                "{self:?}"
            );
            // Load and faults say when to come back; a verdict does not.
            assert_eq!(
                self.retry_after().is_some(),
                matches!(self.status, 429 | 503),
                "{self:?}"
            );
        }
    }

    /// The value of the header.
    pub(crate) fn outcome(&self) -> &str {
        match self.headers.get("inbox-outcome") {
            Some(value) => value.to_str().expect("outcomes are words"),
            None => "none",
        }
    }

    /// Whether it has the form of the inbox's own refusals and failures.
    pub(crate) fn is_problem(&self) -> bool {
        self.headers
            .get(CONTENT_TYPE)
            .is_some_and(|value| value == "application/problem+json")
    }

    pub(crate) fn retry_after(&self) -> Option<Duration> {
        let text = self.headers.get(RETRY_AFTER)?.to_str().expect("digits");
        Some(Duration::from_secs(text.parse().expect("whole seconds")))
    }

    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    /// Demands this status and outcome.
    #[track_caller]
    pub(crate) fn is(&self, status: u16, outcome: &str) -> &Self {
        assert_eq!((self.status, self.outcome()), (status, outcome), "{self:?}");
        self
    }

    /// Demands the handler's success for the first time.
    #[track_caller]
    pub(crate) fn is_applied(&self) -> &Self {
        self.is(204, "applied")
    }

    /// Demands the answer to what was applied before.
    #[track_caller]
    pub(crate) fn is_duplicate(&self) -> &Self {
        self.is(200, "duplicate");
        assert_eq!(self.body, r#"{"status":"already_processed"}"#);
        self.is_json()
    }

    /// Demands the answer to what waits for this sequence.
    #[track_caller]
    pub(crate) fn is_parked(&self, waiting_for: u64) -> &Self {
        self.is(202, "parked");
        assert_eq!(
            self.body,
            format!(r#"{{"status":"parked","waiting_for":{waiting_for}}}"#)
        );
        assert!(self.retry_after().is_some(), "{self:?}");
        self.is_json()
    }

    /// Demands the answer of a deferred source to what waits for its worker.
    #[track_caller]
    pub(crate) fn is_accepted(&self) -> &Self {
        self.is(202, "accepted");
        assert_eq!(self.body, r#"{"status":"accepted"}"#);
        self.is_json()
    }

    /// Demands the answer to an event that came after a later version.
    #[track_caller]
    pub(crate) fn is_superseded(&self) -> &Self {
        self.is(200, "duplicate");
        assert_eq!(self.body, r#"{"status":"superseded"}"#);
        self.is_json()
    }

    /// Demands a refusal or failure of the inbox itself, with this in its detail.
    #[track_caller]
    pub(crate) fn is_problem_about(&self, status: u16, outcome: &str, detail: &str) -> &Self {
        self.is(status, outcome);
        assert!(self.is_problem(), "{self:?}");
        let problem = self.json();
        assert!(
            problem["detail"]
                .as_str()
                .is_some_and(|text| text.contains(detail)),
            "{self:?}"
        );
        self
    }

    #[track_caller]
    fn is_json(&self) -> &Self {
        assert_eq!(
            self.headers.get(CONTENT_TYPE).expect("a type"),
            "application/json",
            "{self:?}"
        );
        self
    }
}
