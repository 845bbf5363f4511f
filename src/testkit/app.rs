//! An app with its inbox, whatever it is made of.

use std::fmt;
use std::sync::Arc;

use bytes::Bytes;
use http::{Request, Response};
use http_body::Body;
use tower_service::Service;

use super::database::TestBackend;
#[cfg(feature = "axum")]
use super::receive::Routes;
use super::receive::{AnyService, Receive};
use crate::dispatch::BoxError;
use crate::inbox::Inbox;

/// An app and the inbox in it, as [`check_idempotent`](super::check_idempotent) takes it; a pair of an inbox and an axum
/// router becomes one by `into()`.
pub struct App<DB: TestBackend> {
    pub(super) inbox: Inbox<DB>,
    pub(super) app: Arc<dyn Receive>,
}

impl<DB: TestBackend> App<DB> {
    /// An axum router that this inbox is mounted on.
    #[cfg(feature = "axum")]
    pub fn new(inbox: &Inbox<DB>, router: axum::Router) -> Self {
        Self {
            inbox: inbox.clone(),
            app: Arc::new(Routes(router)),
        }
    }

    /// Any tower service that this inbox is a layer of.
    pub fn for_service<S, B, R>(inbox: &Inbox<DB>, service: S) -> Self
    where
        S: Service<Request<B>, Response = Response<R>> + Clone + Send + 'static,
        S::Future: Send,
        S::Error: Into<BoxError>,
        B: From<Bytes> + Send + 'static,
        R: Body + Send + 'static,
        R::Data: Send,
        R::Error: Into<BoxError>,
    {
        Self {
            inbox: inbox.clone(),
            app: Arc::new(AnyService::new(service)),
        }
    }
}

#[cfg(feature = "axum")]
impl<DB: TestBackend> From<(Inbox<DB>, axum::Router)> for App<DB> {
    fn from((inbox, router): (Inbox<DB>, axum::Router)) -> Self {
        Self::new(&inbox, router)
    }
}

impl<DB: TestBackend> fmt::Debug for App<DB> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("App")
            .field("inbox", &self.inbox)
            .finish_non_exhaustive()
    }
}
