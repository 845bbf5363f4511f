//! A tower layer in front of webhook handlers: every event applied exactly once, and in order.
#![cfg_attr(docsrs, feature(doc_cfg))]

mod answer;
pub mod clock;
mod dispatch;
pub mod envelope;
mod error;
mod event;
#[cfg(feature = "axum")]
mod extract;
mod inbox;
pub mod layer;
mod order;
pub mod preset;
mod queue;
mod recent;
mod request;
mod source;
mod store;
mod tracker;
mod tx;
pub mod verify;

pub use answer::INBOX_OUTCOME;
pub use error::{BuildError, BuildErrorKind, TxError};
pub use event::{Delivery, Origin, Outcome, Verdict};
pub use inbox::{Inbox, InboxBuilder};
pub use source::Source;
pub use store::Backend;
#[cfg(feature = "sqlite")]
pub use store::sqlite;
pub use tx::Tx;
