//! Parked events: drained in order, given up after their window, counted.
//!
//! *Due* is computed, never stored: an event is due when it is parked (or dead for a gap) and its sequence equals the
//! cursor. A worker therefore only needs to look; a wake that is lost costs a poll, and nothing else.

mod batch;
pub(crate) mod drain;
#[cfg(feature = "testkit")]
pub(crate) mod due;
mod ended;
mod expire;
mod gauges;
pub(crate) mod hints;
pub(crate) mod lease;
mod progress;
pub(crate) mod purge;
pub(crate) mod sample;
pub(crate) mod slice;
mod sweeps;
mod take_up;
pub(crate) mod upkeep;
pub(crate) mod worker;

use std::future::Future;
use std::time::Duration;

pub(crate) use hints::Hints;
pub use progress::WorkerStatus;
pub(crate) use progress::show_time;
pub use purge::Purged;
pub(crate) use upkeep::every_source;
pub(crate) use worker::Worker;

/// For a connection and a statement or two of the worker's own. A network can lose them without a word, and nobody else
/// looks for what is due.
const PATIENCE: Duration = Duration::from_secs(10);

pub(crate) async fn in_time<T>(
    work: impl Future<Output = Result<T, sqlx::Error>>,
) -> Result<T, sqlx::Error> {
    tokio::time::timeout(PATIENCE, work)
        .await
        .unwrap_or(Err(sqlx::Error::PoolTimedOut))
}
