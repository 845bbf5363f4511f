//! Stored answers: what a duplicate gets again (§3).

use std::sync::Arc;

use bytes::Bytes;
use http::header::{
    CONTENT_LENGTH, DATE, HeaderName, PROXY_AUTHENTICATE, SET_COOKIE, WWW_AUTHENTICATE,
};
use http::{Response, StatusCode};

use crate::answer::INBOX_OUTCOME;
use crate::request::{headers_of, lines_of, strip};

/// The first answer to an event, as it went out with the commit.
#[derive(Clone, Debug, PartialEq, Eq)]
#[doc(hidden)]
pub struct Kept {
    pub status: u16,
    /// `name: value` lines, in their order, repeated ones too.
    pub headers: Bytes,
    /// Nothing if it was too large to be kept.
    pub body: Option<Bytes>,
}

/// Asks an inner service's adapter to read the answer's body whole.
#[derive(Clone, Copy)]
pub(crate) enum Collect {
    All,
    /// Of what is no success.
    Failures,
}

impl Collect {
    pub(crate) fn wants(self, status: StatusCode) -> bool {
        match self {
            Self::All => true,
            Self::Failures => !status.is_success(),
        }
    }
}

/// A body that was read whole, in the extensions of its answer.
#[derive(Clone)]
pub(crate) struct Collected(pub(crate) Bytes);

/// Fresh in every answer, or another caller's: never kept.
static NEVER: [HeaderName; 5] = [
    DATE,
    CONTENT_LENGTH,
    SET_COOKIE,
    WWW_AUTHENTICATE,
    PROXY_AUTHENTICATE,
];

impl Kept {
    /// What is kept of an answer with this body, of at most `limit` bytes.
    pub(crate) fn of<R>(response: &Response<R>, body: &Bytes, limit: usize) -> Arc<Self> {
        let mut headers = response.headers().clone();
        // Hop-by-hop headers and credentials go as they do from requests.
        strip(&mut headers, &NEVER, &[]);
        headers.remove(&INBOX_OUTCOME);
        let status = match response.status() {
            status if status.is_success() => status,
            // A stated commit beats the status (§2.9).
            _ => StatusCode::OK,
        };
        Arc::new(Self {
            status: status.as_u16(),
            headers: lines_of(&headers),
            body: (body.len() <= limit).then(|| body.clone()),
        })
    }

    /// Its size in memory, about.
    pub(crate) fn bytes(&self) -> usize {
        self.headers.len() + self.body.as_ref().map_or(0, Bytes::len)
    }

    /// The answer again, but for its outcome and its date. Nothing if its body was not kept, or its row is damaged.
    pub(crate) fn response<R: From<Bytes>>(&self) -> Option<Response<R>> {
        let mut response = Response::new(R::from(self.body.clone()?));
        *response.status_mut() = StatusCode::from_u16(self.status).ok()?;
        *response.headers_mut() = headers_of(&self.headers)?;
        Some(response)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::HeaderValue;

    /// §3
    #[test]
    fn repeated_headers_are_kept_and_what_is_anothers_or_of_the_moment_is_not() {
        let mut response = Response::new(());
        *response.status_mut() = StatusCode::CREATED;
        for (name, value) in [
            ("link", "a"),
            ("link", "b"),
            ("content-type", "text/plain"),
            ("set-cookie", "s=1"),
            ("date", "today"),
            ("connection", "close, x-hop"),
            ("x-hop", "1"),
            ("www-authenticate", "Basic"),
            ("content-length", "2"),
            ("transfer-encoding", "chunked"),
            ("inbox-outcome", "applied"),
        ] {
            response.headers_mut().append(
                HeaderName::from_static(name),
                HeaderValue::from_static(value),
            );
        }
        let kept = Kept::of(&response, &Bytes::from_static(b"hi"), 2);
        let again: Response<Bytes> = kept.response().expect("it is readable");
        assert_eq!(again.status(), 201);
        assert_eq!(again.body(), "hi");
        let headers: Vec<_> = again
            .headers()
            .iter()
            .map(|(name, value)| (name.as_str(), value.to_str().unwrap()))
            .collect();
        assert_eq!(
            headers,
            [("link", "a"), ("link", "b"), ("content-type", "text/plain")]
        );
        let too_large = Kept::of(&response, &Bytes::from_static(b"hi!"), 2);
        assert!(too_large.response::<Bytes>().is_none());
    }
}
