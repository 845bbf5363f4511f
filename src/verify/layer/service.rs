use std::fmt;
use std::mem;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::{Request, Response};
use http_body::Body;
use tokio::time::Instant;
use tower_service::Service;
use tracing::Span;

use super::{Settings, VerifyFuture};
use crate::answer::Answer;

/// Verification in front of a service. Made by [`VerifyLayer`](super::VerifyLayer).
#[derive(Clone)]
pub struct VerifyService<S> {
    settings: Arc<Settings>,
    inner: S,
}

impl<S> VerifyService<S> {
    pub(super) fn new(settings: Arc<Settings>, inner: S) -> Self {
        Self { settings, inner }
    }
}

impl<S> fmt::Debug for VerifyService<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("VerifyService")
            .field("name", &self.settings.name)
            .finish_non_exhaustive()
    }
}

impl<S, B, R> Service<Request<B>> for VerifyService<S>
where
    S: Service<Request<B>, Response = Response<R>> + Clone + Send + 'static,
    S::Future: Send,
    B: Body + From<Bytes> + Send + 'static,
    R: From<Bytes> + Send + 'static,
{
    type Response = Response<R>;
    type Error = S::Error;
    type Future = VerifyFuture<R, S::Error>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        // The service that was polled ready is the one to call; a clone of it may not be ready.
        let clone = self.inner.clone();
        let mut ready = mem::replace(&mut self.inner, clone);
        let settings = Arc::clone(&self.settings);
        VerifyFuture::new(async move {
            match verify(&settings, request).await {
                Ok(request) => ready.call(request).await,
                Err(answer) => Ok(answer.into_response()),
            }
        })
    }
}

async fn verify<B: Body + From<Bytes>>(
    settings: &Settings,
    request: Request<B>,
) -> Result<Request<B>, Answer> {
    let (mut parts, body) = request.into_parts();
    let now = settings.clock.now();
    let deadline = Instant::now() + settings.read_timeout;
    let door = settings.door();
    let passed = door
        .pass(&Span::none(), &parts, body, now, deadline, &settings.bodies)
        .await?;
    parts.extensions.insert(passed.verified);
    Ok(Request::from_parts(parts, B::from(passed.body)))
}
