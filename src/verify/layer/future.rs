use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use http::Response;

/// The future of [`VerifyService`](super::VerifyService).
#[must_use = "futures do nothing unless they are polled"]
pub struct VerifyFuture<R, E> {
    inner: Pin<Box<dyn Future<Output = Result<Response<R>, E>> + Send>>,
}

impl<R, E> VerifyFuture<R, E> {
    pub(super) fn new(
        inner: impl Future<Output = Result<Response<R>, E>> + Send + 'static,
    ) -> Self {
        Self {
            inner: Box::pin(inner),
        }
    }
}

impl<R, E> Future for VerifyFuture<R, E> {
    type Output = Result<Response<R>, E>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        self.inner.as_mut().poll(context)
    }
}

impl<R, E> fmt::Debug for VerifyFuture<R, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("VerifyFuture").finish_non_exhaustive()
    }
}
