//! The door, where a request is verified: headers and signed time first, then the capped body, then the MAC (§2.1, §2.2).
//! The inbox's layer and [`VerifyLayer`](crate::verify::VerifyLayer) have the same one.

use std::fmt::Display;
use std::time::Duration;

use bytes::Bytes;
use http::HeaderMap;
use http::header::CONTENT_LENGTH;
use http::request::Parts;
use http_body::Body;
use tokio::time::Instant;
use tracing::Span;

use crate::answer::Answer;
use crate::body::{self, BodyError, ByteBudget, Reserved};
use crate::clock::Timestamp;
use crate::probe;
use crate::verify::{Head, RequestView, Scheme, Secrets, Tolerance, Verified};

/// The default of §2.1: larger webhooks are rare, and a body is held in memory whole.
pub(crate) const BODY_LIMIT: usize = 1024 * 1024;
/// The default of §2.1.
pub(crate) const READ_TIMEOUT: Duration = Duration::from_secs(5);

/// What one source lets in.
#[derive(Clone, Copy)]
pub(crate) struct Door<'a> {
    pub(crate) source: &'a str,
    pub(crate) scheme: &'a Scheme,
    pub(crate) secrets: &'a Secrets,
    pub(crate) tolerance: &'a Tolerance,
    pub(crate) url: Option<&'a str>,
    pub(crate) body_limit: usize,
    pub(crate) read_timeout: Duration,
}

/// A request that was let in, with its body.
pub(crate) struct Passed<'b> {
    /// With the signed message's digest, for a fence (§6.7).
    pub(crate) head: Head,
    pub(crate) verified: Verified,
    pub(crate) body: Bytes,
    pub(crate) reserved: Reserved<'b>,
}

impl Door<'_> {
    /// Verifies a request, or says what to answer. Nobody but the operator's log learns why, in this span.
    pub(crate) async fn pass<'b, B: Body>(
        &self,
        span: &Span,
        parts: &Parts,
        body: B,
        now: Timestamp,
        deadline: Instant,
        bodies: &'b ByteBudget,
    ) -> Result<Passed<'b>, Answer> {
        let unauthorized = |reason: &dyn Display| {
            self.refused(span, parts, reason);
            Answer::unauthorized()
        };
        let unavailable = |reason: &dyn Display| {
            self.refused(span, parts, reason);
            // Not 401, after which the producer would never send this again (§2.2).
            Answer::unavailable("the secrets are not available")
        };
        let head = self.scheme.check_head(&parts.headers, now, self.tolerance);
        let head = head.map_err(|refusal| unauthorized(&refusal))?;
        if announced(&parts.headers) > self.body_limit as u64 {
            self.refused(span, parts, &"the announced body is over the limit");
            return Err(Answer::body_big(self.body_limit));
        }
        // Nothing is read in vain; which secrets are active is asked again when it has been read.
        self.secrets.snapshot().map_err(|e| unavailable(&e))?;
        let read = body::read(body, self.body_limit, self.read_timeout, deadline, bodies);
        let (body, reserved) = read.await.map_err(|error| {
            self.refused(span, parts, &format_args!("{error:?}"));
            match error {
                BodyError::TooBig => Answer::body_big(self.body_limit),
                BodyError::TooSlow => Answer::body_slow(),
                BodyError::Broken => Answer::body_broken(),
                BodyError::Busy => Answer::busy("bodies in memory"),
            }
        })?;
        let view = RequestView::new(&parts.method, &parts.uri, &parts.headers, &body);
        let secrets = self.secrets.snapshot().map_err(|e| unavailable(&e))?;
        let verified = head
            .verify(&view.with_url(self.url), &secrets)
            .map_err(|refusal| unauthorized(&refusal))?;
        secrets.note(self.source, &verified, now);
        Ok(Passed {
            head,
            verified,
            body,
            reserved,
        })
    }

    fn refused(&self, span: &Span, parts: &Parts, reason: &dyn Display) {
        probe::refused(&parts.extensions, reason);
        span.in_scope(|| tracing::warn!(source = self.source, %reason, "refused a delivery"));
    }
}

/// The body's announced size; 0 where nothing usable is announced, since the bytes are counted anyway.
fn announced(headers: &HeaderMap) -> u64 {
    headers
        .get(CONTENT_LENGTH)
        .and_then(|value| value.to_str().ok())
        .and_then(|value| value.parse().ok())
        .unwrap_or(0)
}
