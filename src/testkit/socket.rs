//! Deliveries over real sockets: plain HTTP/1.1, no proxies, no redirects.

use http::{Request, Uri};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;

use super::receive::{Sent, reply};
use super::reply::Reply;

/// Where a receiver listens. Cheap to clone.
#[derive(Clone)]
pub(super) struct Socket {
    origin: String,
    client: Client<HttpConnector, Sent>,
}

impl Socket {
    /// # Panics
    /// If it is no URL of plain HTTP.
    pub(super) fn new(url: &str) -> Self {
        let uri: Result<Uri, _> = url.parse();
        let origin = uri.ok().and_then(|uri| {
            let authority = uri.authority().filter(|at| !at.host().is_empty())?;
            (uri.scheme_str() == Some("http")).then(|| format!("http://{authority}"))
        });
        let Some(origin) = origin else {
            panic!("{url:?} is not like http://127.0.0.1:3000");
        };
        let mut connector = HttpConnector::new();
        connector.set_nodelay(true);
        Self {
            origin,
            client: Client::builder(TokioExecutor::new()).build(connector),
        }
    }

    /// Nothing if there is no answer: the connection is gone.
    pub(super) async fn send(&self, mut request: Request<Sent>) -> Option<Reply> {
        let path = request.uri().path_and_query()?.as_str();
        *request.uri_mut() = format!("{}{path}", self.origin).parse().ok()?;
        reply(self.client.request(request).await.ok()?).await
    }
}
