//! Handing a request to an app, as a server would.

use std::fmt;
use std::future::{Future, poll_fn};
use std::marker::PhantomData;
use std::pin::Pin;
use std::sync::{Mutex, PoisonError};
use std::task::{Context, Poll};

use bytes::Bytes;
use http::{Request, Response};
use http_body::{Body, Frame, SizeHint};
use http_body_util::BodyExt as _;
use tokio::sync::watch;
use tower_service::Service;

use super::Reply;
use crate::dispatch::BoxError;

/// A boxed future of this module's traits.
pub(super) type Boxed<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// An app, whatever it is made of.
pub(super) trait Receive: Send + Sync {
    /// Nothing if there is no answer: the connection is gone.
    fn receive(&self, request: Request<Sent>) -> Boxed<'static, Option<Reply>>;
}

/// The body of a request on its way.
pub(super) struct Sent {
    bytes: Option<Bytes>,
    /// The connection is lost when the bytes have come.
    breaks: bool,
    read: Option<watch::Sender<bool>>,
}

impl Sent {
    pub(super) fn whole(bytes: Bytes) -> Self {
        Self {
            bytes: Some(bytes),
            breaks: false,
            read: None,
        }
    }

    /// Half of it comes, and then the connection is lost.
    pub(super) fn broken(bytes: &Bytes) -> Self {
        Self {
            bytes: Some(bytes.slice(..bytes.len() / 2)),
            breaks: true,
            read: None,
        }
    }

    /// Says when it has been read to its end.
    pub(super) fn watched(bytes: Bytes) -> (Self, watch::Receiver<bool>) {
        let (read, watch) = watch::channel(false);
        let body = Self {
            bytes: Some(bytes),
            breaks: false,
            read: Some(read),
        };
        (body, watch)
    }
}

/// The connection was lost.
#[derive(Debug)]
pub(super) struct Lost;

impl fmt::Display for Lost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the connection is lost")
    }
}

impl std::error::Error for Lost {}

impl Body for Sent {
    type Data = Bytes;
    type Error = Lost;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Lost>>> {
        Poll::Ready(match self.bytes.take() {
            Some(bytes) => Some(Ok(Frame::data(bytes))),
            None if self.breaks => Some(Err(Lost)),
            None => {
                if let Some(read) = &self.read {
                    read.send_replace(true);
                }
                None
            }
        })
    }

    fn size_hint(&self) -> SizeHint {
        match &self.bytes {
            Some(bytes) if !self.breaks => SizeHint::with_exact(bytes.len() as u64),
            _ => SizeHint::default(),
        }
    }
}

/// An axum router.
#[cfg(feature = "axum")]
pub(super) struct Routes(pub(super) axum::Router);

#[cfg(feature = "axum")]
impl Receive for Routes {
    fn receive(&self, request: Request<Sent>) -> Boxed<'static, Option<Reply>> {
        let mut router = self.0.clone();
        Box::pin(async move {
            poll_fn(|context| Service::<Request<Sent>>::poll_ready(&mut router, context))
                .await
                .unwrap_or_else(|never| match never {});
            let response = router.call(request).await;
            reply(response.unwrap_or_else(|never| match never {})).await
        })
    }
}

/// Any service whose body is made from bytes.
pub(super) struct AnyService<S, B>(Mutex<S>, PhantomData<fn(B)>);

impl<S, B> AnyService<S, B> {
    pub(super) fn new(service: S) -> Self {
        Self(Mutex::new(service), PhantomData)
    }
}

impl<S, B, R> Receive for AnyService<S, B>
where
    S: Service<Request<B>, Response = Response<R>> + Clone + Send + 'static,
    S::Future: Send,
    S::Error: Into<BoxError>,
    B: From<Bytes> + Send + 'static,
    R: Body + Send + 'static,
    R::Data: Send,
    R::Error: Into<BoxError>,
{
    fn receive(&self, request: Request<Sent>) -> Boxed<'static, Option<Reply>> {
        let service = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let mut service = service.clone();
        Box::pin(async move {
            let (parts, body) = request.into_parts();
            // Its body is made from all bytes: of a request that breaks off nothing arrives.
            let body = body.collect().await.ok()?.to_bytes();
            poll_fn(|context| service.poll_ready(context)).await.ok()?;
            let answer = service.call(Request::from_parts(parts, body.into()));
            reply(answer.await.ok()?).await
        })
    }
}

/// Reads an answer.
pub(super) async fn reply<B: Body>(response: Response<B>) -> Option<Reply> {
    let (parts, body) = response.into_parts();
    Some(Reply {
        status: parts.status.as_u16(),
        headers: parts.headers,
        body: body.collect().await.ok()?.to_bytes(),
    })
}
