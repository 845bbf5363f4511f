//! How long a sweep goes on before something else has its turn, and how it rests, so that deliveries get in between.

use std::time::Duration;

use tokio::time::{Instant, sleep};

use crate::shared::Shared;
use crate::store::Backend;

/// A sweep ends after this, and goes on when what else has to be done from time to time is done.
pub(super) const SLICE: Duration = Duration::from_secs(2);
/// Rows of one statement, or events of one page: short enough to hold up nobody.
pub(super) const BATCH: i64 = 500;
/// Between two batches at least, and for a batch so many times as long as it took: back to back they take a third of the
/// deliveries a second, and twice the time of the slowest; a tenth of the time they are hardly felt. At most a second, so
/// that a database that is slow by itself still forgets.
const BREATH: Duration = Duration::from_millis(50);
const BREATHS: u32 = 9;
const LONGEST_BREATH: Duration = Duration::from_secs(1);

/// A sweep's time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Slice(Option<Instant>);

impl Slice {
    /// Somebody waits for all of it.
    pub(crate) const WHOLE: Self = Self(None);

    /// From now on.
    pub(super) fn begin() -> Self {
        Self(Some(Instant::now() + SLICE))
    }

    pub(super) fn is_whole(self) -> bool {
        self.0.is_none()
    }

    pub(super) fn is_over<DB: Backend>(self, shared: &Shared<DB>) -> bool {
        shared.worker.stopped() || self.0.is_some_and(|until| Instant::now() >= until)
    }
}

/// After a batch that took so long.
pub(super) async fn breathe(took: Duration) {
    sleep((took * BREATHS).clamp(BREATH, LONGEST_BREATH)).await;
}

/// What can be read of a page of events, and whether there may be more behind it: an id that is no text comes as an empty
/// one, from a database that does not know what text is.
pub(super) fn readable<T>(mut page: Vec<T>, id: impl Fn(&T) -> &str) -> (Vec<T>, bool) {
    let is_full = page.len() as i64 == BATCH;
    page.retain(|event| !id(event).is_empty());
    let more = is_full && !page.is_empty();
    (page, more)
}
