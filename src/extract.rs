//! The axum extractors, and mounting on axum routes.

use std::convert::Infallible;
use std::sync::Arc;
use std::task::{Context, Poll};

use axum::Router;
use axum::body::Body;
use axum::extract::{DefaultBodyLimit, FromRequestParts, Request};
use axum::response::{IntoResponse, IntoResponseParts, Response, ResponseParts};
use axum::routing::Route;
use http::request::Parts;
use http::{Method, StatusCode};
use tower_layer::layer_fn;
use tower_service::Service;

use crate::answer::Answer;
use crate::error::TxError;
use crate::event::{Delivery, Verdict};
use crate::inbox::Inbox;
use crate::layer::{Call, DrainTarget, InboxService, Whose};
use crate::order::worker;
use crate::park::Park;
use crate::store::Backend;
use crate::tenants::Tenants;
use crate::tx::Tx;

impl<S: Sync, DB: Backend> FromRequestParts<S> for Tx<DB> {
    type Rejection = TxError;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, TxError> {
        Self::take(&parts.extensions)
    }
}

impl<S: Sync> FromRequestParts<S> for Delivery {
    type Rejection = TxError;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, TxError> {
        parts
            .extensions
            .get::<Self>()
            .cloned()
            .ok_or(TxError::NoInbox)
    }
}

impl IntoResponse for TxError {
    /// A mistake in the app, not in the request: 500, so that the producer sends the event again when it is mended.
    fn into_response(self) -> Response {
        tracing::error!("{self}");
        let mut response = StatusCode::INTERNAL_SERVER_ERROR.into_response();
        // The test kit's stories say it.
        response.extensions_mut().insert(self);
        response
    }
}

/// A stated outcome in an answer: `(Verdict::RollBack, StatusCode::OK)`.
impl IntoResponseParts for Verdict {
    type Error = Infallible;

    fn into_response_parts(self, mut parts: ResponseParts) -> Result<ResponseParts, Infallible> {
        parts.extensions_mut().insert(self);
        Ok(parts)
    }
}

/// A handler's "not yet" in an answer: `(Park::after(…), StatusCode::OK)`.
impl IntoResponseParts for Park {
    type Error = Infallible;

    fn into_response_parts(self, mut parts: ResponseParts) -> Result<ResponseParts, Infallible> {
        parts.extensions_mut().insert(self);
        Ok(parts)
    }
}

impl IntoResponse for Park {
    /// The inbox makes a 202 of it. Where there is none, or something between has dropped the extension, it is a 503: the
    /// producer comes again.
    fn into_response(self) -> Response {
        (self, StatusCode::SERVICE_UNAVAILABLE).into_response()
    }
}

impl<DB: Backend> Inbox<DB> {
    /// Puts the inbox in front of every route of `router`, and starts the worker, which drains parked events of
    /// `source` into the same routes.
    ///
    /// The router that comes back can be merged into the app's. A path that no route matches stays the app's own
    /// affair: a fallback of `router` is *not* behind the inbox. Methods that no route has get 405. Path parameters
    /// work, live and drained; parameters of a router that this one is nested in do not reach a drained request.
    ///
    /// # Panics
    /// If the inbox has no source of that name, or the router has no route.
    #[track_caller]
    pub fn mount(&self, source: &str, router: Router) -> Router {
        let state = self.source_state(source);
        state.set_mounted_on_routes();
        self.mount_whose(Whose::Source(state), router)
    }

    /// As [`Inbox::mount`], for sources that come and go: each delivery's tenant is looked up before its signature is
    /// verified, by path or header. The inbox is built with
    /// [`tenants_only`](crate::InboxBuilder::tenants_only), or has sources of its own beside them.
    ///
    /// # Panics
    /// If the router has no route.
    #[track_caller]
    pub fn mount_tenants(&self, tenants: impl Tenants, router: Router) -> Router {
        let tenants: Arc<dyn Tenants> = Arc::new(tenants);
        self.shared.tenants.set(Arc::clone(&tenants));
        self.mount_whose(Whose::Tenants(tenants), router)
    }

    #[track_caller]
    fn mount_whose(&self, whose: Whose, router: Router) -> Router {
        assert!(router.has_routes(), "the router to mount has no route");
        // The drain goes through the routes too, and knows by the mark whether it reached one.
        let marked: Router = router
            .route_layer(layer_fn(Marked))
            // The inbox has read the body and held it to the source's own limit.
            .route_layer(DefaultBodyLimit::disable())
            // Otherwise axum puts the layers of a handler, this inbox among them, together anew for each request.
            .with_state(());
        worker::mount(
            &self.shared,
            whose.source(),
            DrainTarget::new(Call::<_, Body>::new(marked.clone())),
        );
        let (shared, refused) = (Arc::clone(&self.shared), whose.clone());
        marked
            .route_layer(layer_fn(move |route| {
                InboxService::new(Arc::clone(&shared), whose.clone(), Lent(Arc::new(route)))
            }))
            .method_not_allowed_fallback(move |method: Method| {
                refused.refuse_method(&method);
                async { Answer::method().into_response::<Body>() }
            })
    }
}

/// Notes in the delivery that a route was reached.
#[derive(Clone)]
struct Marked<S>(S);

impl<S: Service<Request>> Service<Request> for Marked<S> {
    type Response = S::Response;
    type Error = S::Error;
    type Future = S::Future;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.0.poll_ready(context)
    }

    fn call(&mut self, request: Request) -> S::Future {
        if let Some(delivery) = request.extensions().get::<Delivery>() {
            delivery.mark_routed();
        }
        self.0.call(request)
    }
}

/// A route that is cloned for the deliveries that call it. Axum clones what stands in front of the route for each request, and
/// a route is one allocation for each of its layers: known duplicates never get as far.
#[derive(Clone)]
struct Lent(Arc<Route>);

impl Service<Request> for Lent {
    type Response = Response;
    type Error = Infallible;
    type Future = <Route as Service<Request>>::Future;

    /// Always, as a route is: it asks its layers itself, once it is called.
    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request) -> Self::Future {
        Route::clone(&self.0).call(request)
    }
}
