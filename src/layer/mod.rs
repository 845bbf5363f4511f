//! The tower layer: verifies a delivery and runs the inner service inside the inbox's transaction.
//!
//! [`Inbox::mount`](crate::Inbox::mount) puts it on axum routes; [`Inbox::layer`](crate::Inbox::layer) makes one for any tower service
//! whose request body can be made from [`Bytes`](bytes::Bytes) and whose response body can be too, `Full<Bytes>` included. Either
//! way the worker that drains parked events starts by itself (§5.9).
//!
//! The inner service is called with the request as it will be stored: the body read whole, signatures, credentials
//! and hop-by-hop headers removed (§5.3). A drained request has the same method, URI, headers and body. What it cannot
//! have: the peer's address and whatever else outer layers put into the extensions.

mod deliver;
mod future;
mod group;
#[allow(
    clippy::module_inception,
    reason = "the layer's own file, as its neighbours have it"
)]
mod layer;
mod look;
mod service;
mod uncounted;

pub use self::future::ResponseFuture;
pub use self::layer::InboxLayer;
pub(crate) use self::service::DrainTarget;
pub use self::service::InboxService;
#[cfg(feature = "axum")]
pub(crate) use self::service::{Call, Whose};
