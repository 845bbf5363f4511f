use std::borrow::Cow;
use std::fmt;
use std::marker::PhantomData;
use std::mem;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::request::Parts;
#[cfg(feature = "axum")]
use http::{Method, StatusCode};
use http::{Request, Response};
use http_body::Body;
use http_body_util::BodyExt as _;
use tokio::time::{Instant, timeout_at};
use tower_service::Service;
use tracing::{Instrument as _, Span};

use super::deliver;
use super::future::ResponseFuture;
use crate::answer::Answer;
use crate::broken::{self, Variant};
use crate::dispatch::{BoxError, BoxFuture, Run};
#[cfg(feature = "axum")]
use crate::event::Outcome;
use crate::kept::{Collect, Collected};
use crate::order::worker::Target;
use crate::outlive::{Outlives, Panicked};
use crate::shared::Shared;
use crate::source::{self, SourceState};
use crate::store::Backend;
use crate::tenants::Tenants;
use crate::trace;

/// How long after the deadline the answer waits for what the delivery itself has to say: it ends there by itself,
/// except where a COMMIT has been sent, which nothing cancels.
const GRACE: Duration = Duration::from_millis(250);

/// A tenant is known by then, or the producer had better come again.
const LOOK_UP: Duration = Duration::from_secs(2);

/// An inbox in front of a service. Made by [`InboxLayer`](super::InboxLayer) or [`Inbox::mount`](crate::Inbox::mount).
pub struct InboxService<S, DB: Backend> {
    front: Arc<Front<DB>>,
    inner: S,
}

/// What stands in front of the inner service: one pointer, since axum clones the whole for each request.
struct Front<DB: Backend> {
    shared: Arc<Shared<DB>>,
    whose: Whose,
}

/// Whose deliveries these are.
#[derive(Clone)]
pub(crate) enum Whose {
    Source(Arc<SourceState>),
    Tenants(Arc<dyn Tenants>),
}

impl Whose {
    /// Whose drain it is: one source's, or all tenants'.
    pub(crate) fn source(&self) -> Option<Arc<str>> {
        match self {
            Self::Source(source) => Some(source.name_arc()),
            Self::Tenants(_) => None,
        }
    }

    pub(crate) fn name(&self) -> &str {
        match self {
            Self::Source(source) => source.name(),
            Self::Tenants(_) => "tenants",
        }
    }

    /// A method that no route has does not come as far as the door, and is refused all the same.
    #[cfg(feature = "axum")]
    pub(crate) fn refuse_method(&self, method: &Method) {
        tracing::warn!(source = self.name(), reason = %format_args!("method {method}"), "refused a delivery");
        if let Self::Source(source) = self {
            let (status, outcome) = (StatusCode::METHOD_NOT_ALLOWED, Outcome::Rejected);
            source.counted().refused(status, outcome, false, None);
        }
    }

    /// Before the signature: no database statement of the inbox's.
    async fn find(
        &self,
        span: &Span,
        parts: &Parts,
        deadline: Instant,
    ) -> Result<Cow<'_, Arc<SourceState>>, Answer> {
        let tenants = match self {
            Self::Source(source) => return Ok(Cow::Borrowed(source)),
            Self::Tenants(tenants) => tenants,
        };
        match timeout_at(deadline, tenants.by_request(parts)).await {
            Ok(Ok(Some(tenant))) => Ok(Cow::Owned(tenant.0)),
            Ok(Ok(None)) => {
                span.in_scope(|| {
                    tracing::warn!(
                        path = parts.uri.path(),
                        reason = "unknown source",
                        "refused a delivery"
                    );
                });
                source::refused("".into(), "unknown_source");
                Err(Answer::unauthorized())
            }
            Ok(Err(error)) => {
                span.in_scope(|| tracing::warn!(%error, "could not look a tenant up"));
                Err(not_looked_up())
            }
            Err(_) => {
                span.in_scope(|| tracing::warn!("looking a tenant up takes too long"));
                Err(not_looked_up())
            }
        }
    }
}

/// Nobody's delivery is it, so that no source's numbers show it.
fn not_looked_up() -> Answer {
    source::refused("".into(), "unavailable");
    Answer::unavailable("the source cannot be looked up")
}

impl<S, DB: Backend> InboxService<S, DB> {
    pub(crate) fn new(shared: Arc<Shared<DB>>, whose: Whose, inner: S) -> Self {
        let front = Arc::new(Front { shared, whose });
        Self { front, inner }
    }
}

impl<S: Clone, DB: Backend> Clone for InboxService<S, DB> {
    fn clone(&self) -> Self {
        Self {
            front: Arc::clone(&self.front),
            inner: self.inner.clone(),
        }
    }
}

impl<S, DB: Backend> fmt::Debug for InboxService<S, DB> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("InboxService")
            .field("source", &self.front.whose.name())
            .finish_non_exhaustive()
    }
}

impl<S, DB, B, R> Service<Request<B>> for InboxService<S, DB>
where
    DB: Backend,
    S: Service<Request<B>, Response = Response<R>> + Clone + Send + 'static,
    S::Future: Send,
    S::Error: Into<BoxError>,
    B: Body + From<Bytes> + Send + 'static,
    R: Body + From<Bytes> + Send + 'static,
    R::Data: Send,
    R::Error: Into<BoxError>,
{
    type Response = Response<R>;
    type Error = S::Error;
    type Future = ResponseFuture<R, S::Error>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        // The service that was polled ready is the one to call; a clone of it may not be ready.
        let clone = self.inner.clone();
        let ready = mem::replace(&mut self.inner, clone);
        let call = Call {
            service: ready,
            ready: true,
            body: PhantomData,
        };
        let (parts, body) = request.into_parts();
        ResponseFuture::new(handle(Arc::clone(&self.front), call, parts, body))
    }
}

/// One delivery. Nothing of it is moved about before the signature is verified: what is held across an await is held twice then.
async fn handle<S, DB, B, R>(
    front: Arc<Front<DB>>,
    call: Call<S, B>,
    parts: Parts,
    body: B,
) -> Response<R>
where
    DB: Backend,
    Call<S, B>: Run<R> + 'static,
    B: Body + Send + 'static,
    R: From<Bytes> + Send + 'static,
{
    let arrived = Instant::now();
    let span = trace::delivery();
    let told = |answer: Answer| {
        let response = answer.into_response();
        trace::answered(&span, &response);
        response
    };
    let shared = &front.shared;
    let source = match front.whose.find(&span, &parts, arrived + LOOK_UP).await {
        Ok(source) => source,
        Err(answer) => return told(answer),
    };
    trace::found(&span, source.name());
    let mut deadline = arrived + source.budget();
    if broken::is(Variant::BudgetForgotten) {
        deadline += Duration::from_secs(3_600);
    }
    let Some(tracked) = shared.tracker.enter() else {
        return told(Answer::unavailable("shutting down"));
    };
    let mut admitted = match deliver::admit(&span, shared, &source, &parts, body, deadline).await {
        Ok(admitted) => admitted,
        Err(denied) => {
            denied.count(shared, &source);
            let answer = denied.answer;
            source.counted().took(answer.outcome, arrived.elapsed());
            return told(answer);
        }
    };
    let context = source.trace_context();
    trace::admitted(&span, context, &parts.headers, admitted.events());
    let remembered = span.in_scope(|| deliver::remembered(shared, &source, &mut admitted));
    if let Some(answer) = remembered {
        source.counted().took(answer.outcome, arrived.elapsed());
        return told(answer);
    }
    // From here on it goes on without its client: a client that disconnects drops this future, and a future dropped in the
    // middle of BEGIN would leave a pooled connection inside a transaction (transact-rs/sqlx 4385, 4393).
    let runtime = shared.runtime.clone();
    let runtime = (!broken::is(Variant::AbortWithClient)).then_some(runtime);
    let (shared, source) = (Arc::clone(shared), source.into_owned());
    let within = span.clone();
    let delivery = async move {
        let _tracked = tracked;
        let response = deliver::deliver(&shared, &source, parts, admitted, call, deadline).await;
        trace::answered(&Span::current(), &response);
        response
    };
    let mut delivery = Outlives::new(runtime, drop, delivery.instrument(within));
    match timeout_at(deadline + GRACE, &mut delivery).await {
        Ok(Ok(response)) => response,
        Ok(Err(Panicked)) => {
            span.in_scope(|| tracing::error!("a delivery ended abnormally"));
            told(Answer::handler_failed("the delivery was not completed"))
        }
        // The commit has been sent and goes on; the retry finds out (§4.2).
        Err(_) => Answer::unavailable("the delivery's time is spent").into_response(),
    }
}

/// Calls a service with a body made from bytes; the first time the one that was ready, later a clone made ready.
pub(crate) struct Call<S, B> {
    service: S,
    ready: bool,
    body: PhantomData<fn(B)>,
}

impl<S, B> Call<S, B> {
    pub(crate) fn new(service: S) -> Self {
        Self {
            service,
            ready: false,
            body: PhantomData,
        }
    }
}

impl<S, B, R> Run<R> for Call<S, B>
where
    S: Service<Request<B>, Response = Response<R>> + Clone + Send + 'static,
    S::Future: Send,
    S::Error: Into<BoxError>,
    B: From<Bytes> + Send + 'static,
    R: Body + From<Bytes> + Send + 'static,
    R::Data: Send,
    R::Error: Into<BoxError>,
{
    fn run(&mut self, request: Request<Bytes>) -> BoxFuture<Result<Response<R>, BoxError>> {
        let clone = self.service.clone();
        let mut service = mem::replace(&mut self.service, clone);
        let ready = mem::replace(&mut self.ready, false);
        let collect = request.extensions().get::<Collect>().copied();
        let request = request.map(B::from);
        Box::pin(async move {
            if !ready {
                std::future::poll_fn(|context| service.poll_ready(context))
                    .await
                    .map_err(Into::into)?;
            }
            let response = service.call(request).await.map_err(Into::into)?;
            if !collect.is_some_and(|collect| collect.wants(response.status())) {
                return Ok(response);
            }
            let (mut parts, body) = response.into_parts();
            let body = body.collect().await.map_err(Into::into)?.to_bytes();
            parts.extensions.insert(Collected(body.clone()));
            Ok(Response::from_parts(parts, R::from(body)))
        })
    }
}

/// What the drain calls: the same service, its response's body dropped.
pub(crate) struct DrainTarget<S, B>(Mutex<Call<S, B>>);

impl<S, B> DrainTarget<S, B> {
    pub(crate) fn new(call: Call<S, B>) -> Self {
        Self(Mutex::new(call))
    }
}

impl<S, B, R> Target for DrainTarget<S, B>
where
    S: Service<Request<B>, Response = Response<R>> + Clone + Send + 'static,
    S::Future: Send,
    S::Error: Into<BoxError>,
    B: From<Bytes> + Send + 'static,
    R: Body + From<Bytes> + Send + 'static,
    R::Data: Send,
    R::Error: Into<BoxError>,
{
    fn run(&self, request: Request<Bytes>) -> BoxFuture<Result<Response<()>, BoxError>> {
        let mut call = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let response = call.run(request);
        Box::pin(async move { Ok(response.await?.map(drop)) })
    }
}
