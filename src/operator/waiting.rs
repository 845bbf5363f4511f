//! What is parked, in a stream or in none: it waits for its turn, for a worker, or for the time of its next attempt.

use super::letters::{Page, page};
use super::{MOST, Operator, PageKey, Rows};
use crate::clock::Timestamp;
use crate::error::OperatorError;
use crate::store::{Backend, Key, WaitingFilter};

/// Which parked events. Without anything: all.
#[derive(Clone, Debug, Default)]
#[must_use]
pub struct Waiting {
    source: Option<String>,
    apart: bool,
    later: bool,
}

impl Waiting {
    /// All that is parked.
    pub fn new() -> Self {
        Self::default()
    }

    /// Of this source.
    pub fn source(mut self, name: impl Into<String>) -> Self {
        self.source = Some(name.into());
        self
    }

    /// Those alone that have no place in a stream, which [`Operator::streams`] does not have: deferred ones, and what fails or
    /// was put off without a sequence.
    pub fn in_no_stream(mut self) -> Self {
        self.apart = true;
        self
    }

    /// Those alone that are tried again at some later time, since they have failed or their handler said "not yet": what
    /// [`Operator::try_now`] is for.
    pub fn tried_later(mut self) -> Self {
        self.later = true;
        self
    }
}

impl<DB: Backend> Operator<DB> {
    /// Parked events that match, up to `limit` (at most 1,000) after `after`, by source and event id.
    ///
    /// ```no_run
    /// # async fn example(ada: tower_inbox::Operator<sqlx::Sqlite>) -> Result<(), tower_inbox::OperatorError> {
    /// use tower_inbox::operator::Waiting;
    ///
    /// let page = ada.waiting(&Waiting::new().source("crm").in_no_stream(), None, 50).await?;
    /// for event in page.letters.iter().flatten() {
    ///     println!("{}: {} attempts, tried again at {:?}", event.event_id, event.attempts, event.not_before);
    /// }
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// If the database could not be asked.
    pub async fn waiting(
        &self,
        which: &Waiting,
        after: Option<&PageKey>,
        limit: usize,
    ) -> Result<Page, OperatorError> {
        let limit = limit.clamp(1, MOST);
        let key = after.map_or(("", ""), |key| (&key.source, &key.event_id));
        let after = Key {
            source: key.0,
            event_id: key.1,
        };
        let found = self
            .look(async |shared, conn| {
                let filter = WaitingFilter {
                    source: which.source.as_deref(),
                    not_until: match which.later {
                        true => shared.clock.now(),
                        false => Timestamp::from_micros(i64::MIN),
                    },
                    apart: which.apart,
                };
                DB::waiting(conn, &shared.sql, &filter, after, limit.rows()).await
            })
            .await?;
        Ok(page(found, limit))
    }

    /// How many parked events have no place in a stream, of one source or of all: counted up to `limit`.
    ///
    /// # Errors
    /// If the database could not be asked.
    pub async fn parked_in_no_stream(
        &self,
        source: Option<&str>,
        limit: usize,
    ) -> Result<u64, OperatorError> {
        let counted = self.look(async |shared, conn| {
            DB::count_apart(conn, &shared.sql, source, limit.rows()).await
        });
        Ok(counted.await?.unsigned_abs())
    }

    /// Whether the tables know anything of a source of this name: an event, a stream, counts of its deliveries, a decision. Not of
    /// one to which nothing was ever delivered, whoever mounts it.
    ///
    /// # Errors
    /// If the database could not be asked.
    pub async fn knows(&self, source: &str) -> Result<bool, OperatorError> {
        self.look(async |shared, conn| DB::source_is_known(conn, &shared.sql, source).await)
            .await
    }
}
