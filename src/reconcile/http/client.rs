//! One question, one answer: bounded, and asked again where that may help.

use std::fmt;
use std::time::Duration;

use bytes::Bytes;
use http::header::{ACCEPT, AUTHORIZATION, HeaderMap, HeaderValue, RETRY_AFTER, USER_AGENT};
use http::{Method, Request, StatusCode, Uri};
use http_body_util::{BodyExt as _, Full, LengthLimitError, Limited};
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::Client as Pooled;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use rustls::crypto::ring;
use tokio::time::{sleep, timeout};
use zeroize::Zeroizing;

use super::unreadable;
use crate::clock::{Clock, SystemClock};
use crate::error::{BuildError, BuildErrorKind};
use crate::reconcile::source::{ReplayError, ReplayErrorKind};
use crate::verify::time;

const TIMEOUT: Duration = Duration::from_secs(10);
/// A page of events, each as large as a delivery may be: 100 of them, of which most are small.
const BODY_LIMIT: usize = 16 * 1024 * 1024;
const ATTEMPTS: u32 = 4;
const PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(30);
/// A producer cannot send us away for longer than this.
const LONGEST_WAIT: Duration = Duration::from_secs(24 * 3_600);

/// A producer's API, and the key to it.
#[derive(Clone)]
pub(super) struct Client {
    pool: Pooled<HttpsConnector<HttpConnector>, Full<Bytes>>,
    url: Uri,
    /// `Bearer …`
    authorization: Zeroizing<Vec<u8>>,
    pub(super) timeout: Duration,
    pub(super) body_limit: usize,
    pub(super) attempts: u32,
    pub(super) pause: Duration,
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client")
            .field("url", &self.url)
            .finish_non_exhaustive()
    }
}

impl Client {
    pub(super) fn new(url: &str, key: &str, plain: bool) -> Result<Self, BuildError> {
        let refuse = |why: String| Err(BuildError::unsafe_setting(why));
        let Ok(parsed) = url.parse::<Uri>() else {
            return refuse("the producer's URL cannot be read".into());
        };
        let secure = match parsed.scheme_str() {
            Some("https") => true,
            Some("http") => false,
            _ => return refuse("the producer's URL must be https://…".into()),
        };
        let authority = parsed
            .authority()
            .map_or("", |authority| authority.as_str());
        let host = parsed.host().unwrap_or_default();
        if host.is_empty() || authority.contains('@') || parsed.query().is_some() {
            let why = "the producer's URL needs a host, and neither a user name nor a query: the key goes apart";
            return refuse(why.into());
        }
        let here = matches!(host, "localhost" | "127.0.0.1" | "[::1]");
        if !secure && !here && !plain {
            return refuse(format!(
                "the key for {host} would go over the network in plain text: use https, or say `insecure_plain_http`"
            ));
        }
        let authorization = Zeroizing::new([b"Bearer ", key.as_bytes()].concat());
        if key.is_empty() || HeaderValue::from_bytes(&authorization).is_err() {
            let why = "the producer's key must not be empty, and be visible ASCII";
            return Err(BuildError::new(BuildErrorKind::Secret, why));
        }
        let mut tcp = HttpConnector::new();
        tcp.enforce_http(false);
        tcp.set_nodelay(true);
        tcp.set_connect_timeout(Some(TIMEOUT));
        // By name: a process that has two providers compiled in would have to choose one itself.
        let provider = ring::default_provider();
        let builder = HttpsConnectorBuilder::new();
        let builder = if secure {
            let with_roots = builder.with_provider_and_native_roots(provider);
            with_roots.map_err(|error| {
                let why =
                    format!("the system has no certificates to check the producer's with: {error}");
                BuildError::unsafe_setting(why)
            })?
        } else {
            let tls = rustls::ClientConfig::builder_with_provider(provider.into())
                .with_safe_default_protocol_versions()
                .map_err(|error| BuildError::unsafe_setting(error.to_string()))?
                .with_root_certificates(rustls::RootCertStore::empty())
                .with_no_client_auth();
            builder.with_tls_config(tls)
        };
        // Over an https URL nothing goes in plain text, whatever it says.
        let builder = if secure {
            builder.https_only()
        } else {
            builder.https_or_http()
        };
        let connector = builder.enable_http1().wrap_connector(tcp);
        Ok(Self {
            pool: Pooled::builder(TokioExecutor::new()).build(connector),
            url: parsed,
            authorization,
            timeout: TIMEOUT,
            body_limit: BODY_LIMIT,
            attempts: ATTEMPTS,
            pause: PAUSE,
        })
    }

    /// The URL with more at its end, and a query.
    pub(super) fn url(&self, more: &str, query: &[(&str, &str)]) -> Result<Uri, ReplayError> {
        let mut path = self.url.path().trim_end_matches('/').to_owned();
        path.push_str(more);
        if !query.is_empty() {
            let mut pairs = form_urlencoded::Serializer::new(String::new());
            pairs.extend_pairs(query);
            path.push('?');
            path.push_str(&pairs.finish());
        }
        let mut parts = self.url.clone().into_parts();
        let path = path.parse();
        parts.path_and_query = Some(path.map_err(|_| unreadable("no URL can be made of that"))?);
        Uri::from_parts(parts).map_err(|_| unreadable("no URL can be made of that"))
    }

    /// The body of a 2xx.
    pub(super) async fn ask(&self, method: Method, url: Uri) -> Result<Bytes, ReplayError> {
        let mut pause = self.pause;
        let mut attempt = 1;
        loop {
            let once = timeout(self.timeout, self.once(&method, &url));
            let error = match once.await {
                Ok(Ok(body)) => return Ok(body),
                Ok(Err(error)) => error,
                Err(_) => {
                    let why = format!("no whole answer within {:?}", self.timeout);
                    ReplayError::new(ReplayErrorKind::Unavailable, why)
                }
            };
            let wait = error
                .wait()
                .unwrap_or(pause.mul_f64(0.75 + fastrand::f64() / 2.0));
            if error.kind() != ReplayErrorKind::Unavailable
                || attempt >= self.attempts
                || wait > LONGEST_PAUSE
            {
                return Err(error);
            }
            tracing::debug!(host = self.url.host(), attempt, %error, ?wait, "a producer's list is asked for again");
            sleep(wait).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
            attempt += 1;
        }
    }

    async fn once(&self, method: &Method, url: &Uri) -> Result<Bytes, ReplayError> {
        let mut request = Request::new(Full::default());
        *request.method_mut() = method.clone();
        *request.uri_mut() = url.clone();
        let headers = request.headers_mut();
        if let Ok(mut key) = HeaderValue::from_bytes(&self.authorization) {
            key.set_sensitive(true);
            headers.insert(AUTHORIZATION, key);
        }
        headers.insert(ACCEPT, HeaderValue::from_static("application/json"));
        let agent = concat!("tower-inbox/", env!("CARGO_PKG_VERSION"));
        headers.insert(USER_AGENT, HeaderValue::from_static(agent));
        let response = self.pool.request(request).await.map_err(|error| {
            let why = format!("the producer cannot be reached: {error}");
            ReplayError::new(ReplayErrorKind::Unavailable, why)
        })?;
        let (parts, body) = response.into_parts();
        if !parts.status.is_success() {
            return Err(refused(parts.status, &parts.headers));
        }
        let read = Limited::new(body, self.body_limit).collect().await;
        match read {
            Ok(read) => Ok(read.to_bytes()),
            Err(error) if error.is::<LengthLimitError>() => {
                let why = format!("the answer is larger than {} bytes", self.body_limit);
                Err(ReplayError::new(ReplayErrorKind::TooBig, why))
            }
            Err(_) => {
                let why = "the answer broke off";
                Err(ReplayError::new(ReplayErrorKind::Unavailable, why))
            }
        }
    }
}

/// What an answer other than success means.
fn refused(status: StatusCode, headers: &HeaderMap) -> ReplayError {
    let why = format!("the producer answered {}", status.as_u16());
    let kind = match status.as_u16() {
        401 | 403 => ReplayErrorKind::Unauthorized,
        410 => ReplayErrorKind::PageGone,
        408 | 425 | 429 | 500..=599 => ReplayErrorKind::Unavailable,
        300..=399 => {
            let why = format!("{why}: a redirect, which is not followed");
            return ReplayError::new(ReplayErrorKind::Refused, why);
        }
        _ => ReplayErrorKind::Refused,
    };
    let error = ReplayError::new(kind, why);
    match retry_after(headers) {
        Some(after) if kind == ReplayErrorKind::Unavailable => {
            error.retry_after(after.min(LONGEST_WAIT))
        }
        _ => error,
    }
}

/// Seconds, or a date (RFC 9110, 10.2.3).
fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let text = headers.get(RETRY_AFTER)?.to_str().ok()?.trim();
    if text.bytes().all(|byte| byte.is_ascii_digit()) {
        // More digits than fit are a long time, too.
        return Some(Duration::from_secs(text.parse().unwrap_or(u64::MAX)));
    }
    // Sun, 06 Nov 1994 08:49:37 GMT
    let mut parts = text.split_ascii_whitespace().skip(1);
    let (day, month, year, clock) = (parts.next()?, parts.next()?, parts.next()?, parts.next()?);
    const MONTHS: [&str; 12] = [
        "Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec",
    ];
    let month = MONTHS.iter().position(|name| *name == month)? + 1;
    let (at, _) = time::rfc3339(&format!("{year}-{month:02}-{day}T{clock}Z"))?;
    Some(at.since(SystemClock.now()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn retry_after_is_seconds_or_a_date() {
        let read = |text: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(RETRY_AFTER, text.parse().unwrap());
            retry_after(&headers)
        };
        assert_eq!(read("7"), Some(Duration::from_secs(7)));
        assert_eq!(
            read("99999999999999999999999"),
            Some(Duration::from_secs(u64::MAX))
        );
        assert_eq!(read("Sun, 06 Nov 1994 08:49:37 GMT"), Some(Duration::ZERO));
        assert!(read("Sun, 06 Nov 2394 08:49:37 GMT") > Some(Duration::from_secs(3_600)));
        for odd in ["soon", "-1", "Sun, 06 Foo 1994 08:49:37 GMT", "1.5"] {
            assert_eq!(read(odd), None, "{odd}");
        }
    }
}
