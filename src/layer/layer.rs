use std::any::type_name;
use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;

use bytes::Bytes;
use http::{Request, Response};
use http_body::Body;
use tower_layer::Layer;
use tower_service::Service;

use super::service::{Call, DrainTarget, InboxService, Whose};
use crate::dispatch::BoxError;
use crate::inbox::Inbox;
use crate::order::worker;
use crate::shared::Shared;
use crate::source::SourceState;
use crate::store::Backend;
use crate::tenants::Tenants;

/// Puts an inbox in front of a service. Made by [`Inbox::layer`].
///
/// `B` is the type of the request's body; it follows from the service.
pub struct InboxLayer<DB: Backend, B> {
    shared: Arc<Shared<DB>>,
    whose: Whose,
    body: PhantomData<fn(B)>,
}

impl<DB: Backend> Inbox<DB> {
    /// The layer for one source, for any tower service. On axum routes use [`Inbox::mount`] instead, which keeps path
    /// parameters for drained events.
    ///
    /// # Panics
    /// If the inbox has no source of that name.
    #[track_caller]
    pub fn layer<B>(&self, source: &str) -> InboxLayer<DB, B> {
        let whose = Whose::Source(self.source_state(source));
        InboxLayer::new(Arc::clone(&self.shared), whose)
    }

    /// The layer for sources that come and go, as [`Inbox::tenant`] checks them. On axum routes use
    /// `Inbox::mount_tenants`.
    pub fn layer_tenants<B>(&self, tenants: impl Tenants) -> InboxLayer<DB, B> {
        let tenants: Arc<dyn Tenants> = Arc::new(tenants);
        self.shared.tenants.set(Arc::clone(&tenants));
        InboxLayer::new(Arc::clone(&self.shared), Whose::Tenants(tenants))
    }

    #[track_caller]
    pub(crate) fn source_state(&self, source: &str) -> Arc<SourceState> {
        match self.shared.source(source) {
            Some(state) => Arc::clone(state),
            None => panic!(
                "the inbox has no source named {source:?}; it has {:?}",
                self.shared.sources.keys()
            ),
        }
    }
}

impl<DB: Backend, B> InboxLayer<DB, B> {
    fn new(shared: Arc<Shared<DB>>, whose: Whose) -> Self {
        Self {
            shared,
            whose,
            body: PhantomData,
        }
    }
}

impl<DB: Backend, B> Clone for InboxLayer<DB, B> {
    fn clone(&self) -> Self {
        Self::new(Arc::clone(&self.shared), self.whose.clone())
    }
}

impl<DB: Backend, B> fmt::Debug for InboxLayer<DB, B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("InboxLayer")
            .field("source", &self.whose.name())
            .finish()
    }
}

impl<S, DB, B, R> Layer<S> for InboxLayer<DB, B>
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
    type Service = InboxService<S, DB>;

    /// Wraps a service, and starts the worker: parked events of this source are from now on drained into it.
    ///
    /// # Panics
    /// On a single axum route: the drain needs the whole router, [`Inbox::mount`].
    #[track_caller]
    fn layer(&self, inner: S) -> Self::Service {
        // `Router::layer` wraps route by route, and the drain would know only the last of them.
        assert!(
            !type_name::<S>().starts_with("axum::routing::route::Route"),
            "on axum routes use `inbox.mount({:?}, router)` instead of `router.layer(inbox.layer(…))`",
            self.whose.name()
        );
        let target = DrainTarget::new(Call::<S, B>::new(inner.clone()));
        worker::mount(&self.shared, self.whose.source(), target);
        InboxService::new(Arc::clone(&self.shared), self.whose.clone(), inner)
    }
}
