use std::fmt;
use std::future::Future;
use std::marker::PhantomData;
use std::pin::Pin;
use std::task::{Context, Poll};

use http::Response;

/// The future of [`InboxService`](super::InboxService).
///
/// Dropping it, as a server does when its client disconnects, stops the reading of a body, and nothing else: once the
/// signature is verified the delivery goes on to its end without it (§4.5).
#[must_use = "futures do nothing unless they are polled"]
pub struct ResponseFuture<R, E> {
    inner: Pin<Box<dyn Future<Output = Response<R>> + Send>>,
    /// The inbox answers its inner service's errors itself.
    error: PhantomData<fn() -> E>,
}

impl<R, E> ResponseFuture<R, E> {
    pub(crate) fn new(inner: impl Future<Output = Response<R>> + Send + 'static) -> Self {
        Self {
            inner: Box::pin(inner),
            error: PhantomData,
        }
    }
}

impl<R, E> Future for ResponseFuture<R, E> {
    type Output = Result<Response<R>, E>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        self.inner.as_mut().poll(context).map(Ok)
    }
}

impl<R, E> fmt::Debug for ResponseFuture<R, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ResponseFuture").finish_non_exhaustive()
    }
}
