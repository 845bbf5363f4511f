//! Looks that read much: where one takes long, or too long, it is not taken again for fifty times as long.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Mutex;
use tokio::time::Instant;

/// The pause after a look, as often as what it took.
const PAUSES: u32 = 50;
/// What takes less is not worth a pause.
const QUICK: Duration = Duration::from_millis(50);
/// After a look that has failed it is left alone for as long as that took, and so long at least: everybody who asks while the
/// database is away would wait for its end, one after the other.
const FAILED: Duration = Duration::from_secs(1);

/// The last look, for everybody who asks meanwhile.
pub(crate) struct Paced<T>(Mutex<Option<Last<T>>>);

struct Last<T> {
    /// Or why there was nothing to be had.
    found: Result<Arc<T>, String>,
    /// It will do until then.
    until: Instant,
}

impl<T> Default for Paced<T> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<T> Paced<T> {
    /// Looks now, or takes the last look where that took long or has just failed.
    pub(crate) async fn or_last(
        &self,
        look: impl Future<Output = Result<T, sqlx::Error>>,
    ) -> Result<Arc<T>, sqlx::Error> {
        let mut cache = self.0.lock().await;
        if let Some(Last { found, until }) = &*cache
            && Instant::now() < *until
        {
            let found = found.as_ref().map(Arc::clone);
            // An error of the driver is nobody's to keep; its words are.
            return found.map_err(|words| sqlx::Error::Io(io::Error::other(words.as_str())));
        }
        let began = Instant::now();
        let found = look.await.map(Arc::new);
        let pause = match (&found, began.elapsed()) {
            // It has read as much as a slow one, or more, and so would the next one.
            (Err(sqlx::Error::PoolTimedOut), took) => (took * PAUSES).max(FAILED),
            (Err(_), took) => took.max(FAILED),
            (Ok(_), took) if took < QUICK => Duration::ZERO,
            (Ok(_), took) => took * PAUSES,
        };
        let last = found.as_ref().map(Arc::clone);
        *cache = Some(Last {
            found: last.map_err(|error| format!("{error}, a moment ago")),
            until: Instant::now() + pause,
        });
        found
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::{advance, sleep};

    use super::*;

    /// How often it looks in a minute, of looks that take ten seconds and end so.
    async fn looks(end: fn() -> Result<(), sqlx::Error>) -> usize {
        let (paced, mut looks) = (Paced::default(), 0);
        for _ in 0..6 {
            let look = async {
                looks += 1;
                sleep(Duration::from_secs(10)).await;
                end()
            };
            let _ = paced.or_last(look).await;
            advance(Duration::from_secs(11)).await;
        }
        looks
    }

    #[tokio::test(start_paused = true)]
    async fn what_timed_out_is_left_alone_as_what_took_long() {
        assert_eq!(looks(|| Ok(())).await, 1);
        assert_eq!(looks(|| Err(sqlx::Error::PoolTimedOut)).await, 1);
        // Of the database it says more than of the look.
        assert_eq!(looks(|| Err(sqlx::Error::WorkerCrashed)).await, 6);
    }
}
