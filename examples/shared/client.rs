//! HTTP over real sockets, kept alive: plain HTTP/1.1, no proxies, no redirects.

use std::time::Duration;

use bytes::Bytes;
use http::header::{HeaderMap, HeaderValue, RETRY_AFTER, USER_AGENT};
use http::{HeaderName, Method, Request, Response, Uri};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper_util::client::legacy::Client as Pooled;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use tokio::time;

/// No answer of a receiver is longer than this, whole ledgers included.
const LONGEST_ANSWER: usize = 256 << 20;

/// Where the receiver is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Target {
    pub(crate) hook: Uri,
    origin: String,
}

impl Target {
    /// From a base URL, or from the webhook's own.
    pub(crate) fn parse(url: &str, preset: &str) -> Result<Self, String> {
        let uri: Uri = url.parse().map_err(|_| "not a URL".to_owned())?;
        match uri.scheme_str() {
            Some("http") => {}
            Some("https") => return Err("TLS is left out: only http:// URLs".to_owned()),
            _ => return Err("not an http:// URL".to_owned()),
        }
        let Some(authority) = uri.authority().filter(|at| !at.host().is_empty()) else {
            return Err("no host in it".to_owned());
        };
        if authority.as_str().contains('@') {
            return Err("no user names in URLs".to_owned());
        }
        let origin = format!("http://{authority}");
        let hook = match uri.path() {
            "" | "/" => format!("{origin}/webhooks/{preset}"),
            _ => uri.to_string(),
        };
        let hook = hook.parse().map_err(|_| "not a URL".to_owned())?;
        Ok(Self { hook, origin })
    }

    /// Where an account's ledger is: at the same origin.
    pub(crate) fn ledger(&self, account: &str) -> Uri {
        let url = format!("{}/ledger/{account}", self.origin);
        url.parse().expect("account names need no escaping")
    }
}

/// What of an answer matters to a producer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Reply {
    pub(crate) status: u16,
    pub(crate) retry_after: Option<Duration>,
    /// `Inbox-Outcome`.
    pub(crate) outcome: Option<String>,
}

/// Why there was no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lost {
    Timeout,
    Connection,
}

/// A pool of connections, cheap to clone.
#[derive(Clone)]
pub(crate) struct Client {
    pool: Pooled<HttpConnector, Full<Bytes>>,
    patience: Duration,
}

impl Client {
    /// `patience`: how long an answer may take, from the connecting to its last byte.
    pub(crate) fn new(patience: Duration) -> Self {
        let mut connector = HttpConnector::new();
        connector.set_nodelay(true);
        Self {
            pool: Pooled::builder(TokioExecutor::new()).build(connector),
            patience,
        }
    }

    /// Delivers one webhook.
    pub(crate) async fn post(
        &self,
        uri: &Uri,
        headers: HeaderMap,
        body: Bytes,
    ) -> Result<Reply, Lost> {
        let mut request = Request::new(Full::new(body));
        *request.method_mut() = Method::POST;
        *request.uri_mut() = uri.clone();
        *request.headers_mut() = headers;
        let response = self.send(request).await?;
        let header = |name: HeaderName| response.headers().get(name)?.to_str().ok();
        let retry_after = header(RETRY_AFTER).and_then(|text| text.trim().parse().ok());
        Ok(Reply {
            status: response.status().as_u16(),
            retry_after: retry_after.map(Duration::from_secs),
            outcome: header(HeaderName::from_static("inbox-outcome")).map(str::to_owned),
        })
    }

    /// Gets a body, if the answer is 200.
    pub(crate) async fn get(&self, uri: Uri) -> Result<Bytes, String> {
        let mut request = Request::new(Full::default());
        *request.uri_mut() = uri.clone();
        match self.send(request).await {
            Ok(response) if response.status() == 200 => Ok(response.into_body()),
            Ok(response) => Err(format!("GET {} answered {}", uri.path(), response.status())),
            Err(Lost::Timeout) => Err(format!("GET {} took too long", uri.path())),
            Err(Lost::Connection) => Err(format!("GET {}: connection failed", uri.path())),
        }
    }

    async fn send(&self, mut request: Request<Full<Bytes>>) -> Result<Response<Bytes>, Lost> {
        let agent = HeaderValue::from_static("tower-inbox-sender");
        request.headers_mut().insert(USER_AGENT, agent);
        let answer = async {
            let response = self
                .pool
                .request(request)
                .await
                .map_err(|_| Lost::Connection)?;
            let (parts, body) = response.into_parts();
            // Read to its end, so that the connection can be used again.
            let body = Limited::new(body, LONGEST_ANSWER).collect().await;
            let body = body.map_err(|_| Lost::Connection)?.to_bytes();
            Ok(Response::from_parts(parts, body))
        };
        time::timeout(self.patience, answer)
            .await
            .unwrap_or(Err(Lost::Timeout))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_base_url_gets_the_webhooks_path_and_a_whole_one_is_kept() {
        let hook = |url| Target::parse(url, "kudos").map(|target| target.hook.to_string());
        let full = "http://127.0.0.1:3000/webhooks/kudos";
        assert_eq!(hook("http://127.0.0.1:3000"), Ok(full.to_owned()));
        assert_eq!(hook("http://127.0.0.1:3000/"), Ok(full.to_owned()));
        let own = "http://127.0.0.1:3000/in/crm?tenant=7";
        assert_eq!(hook(own), Ok(own.to_owned()));
        let ledger = Target::parse(own, "kudos").unwrap().ledger("acct-7");
        assert_eq!(ledger.to_string(), "http://127.0.0.1:3000/ledger/acct-7");
        for bad in [
            "",
            "127.0.0.1:3000",
            "/x",
            "https://h/",
            "ftp://h",
            "http://u:p@h/",
        ] {
            assert!(hook(bad).is_err(), "{bad:?}");
        }
    }
}
