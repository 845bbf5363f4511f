//! Erasure, and sources that their owner deregisters.

use super::{Operator, check_reason};
use crate::clock::Timestamp;
use crate::dispatch::{Erase, SetGone};
use crate::error::{OperatorError, OperatorErrorKind};
use crate::store::{Backend, ErasureFilter};

/// Whose stored requests and answers are to go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Erasure<'a> {
    /// Of one event.
    Event(&'a str),
    /// Of every event of a correlation id.
    Correlation(&'a str),
    /// Of everything that was stored before this.
    Before(Timestamp),
}

/// What was erased.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Erased {
    /// Requests of dead letters, and of what the fence holds.
    pub letters: u64,
    /// Stored answers.
    pub answers: u64,
    /// Events that still wait to be applied, with their requests: discard them, or let them be applied, and erase again.
    pub waiting: u64,
}

impl<DB: Backend> Operator<DB> {
    /// Removes stored requests (headers, body, URI) and stored answers, for a data-protection request say. The events' own
    /// rows stay, so that duplicates are known still. What is erased cannot be replayed; a duplicate whose answer is erased
    /// gets `already_processed`, from other processes within the ten minutes for which they remember small answers. What the
    /// source refuses when it is sent again is a dead letter without a request again. Nothing of what still waits to be
    /// applied is touched: [`Erased::waiting`] says how many
    /// there are. By correlation id it looks at every row of the source.
    ///
    /// # Errors
    /// As every action: `Busy`, `Database`, `Invalid`.
    pub async fn erase(
        &self,
        source: &str,
        which: Erasure<'_>,
        reason: &str,
    ) -> Result<Erased, OperatorError> {
        check_reason(reason)?;
        let erase = Erase {
            source,
            which: match which {
                Erasure::Event(id) => ErasureFilter {
                    event_id: Some(id),
                    ..ErasureFilter::default()
                },
                Erasure::Correlation(id) => ErasureFilter {
                    correlation_id: Some(id),
                    ..ErasureFilter::default()
                },
                Erasure::Before(at) => ErasureFilter {
                    before: Some(at),
                    ..ErasureFilter::default()
                },
            },
            actor: &self.actor,
            reason,
        };
        let erased = self.decide(&erase).await;
        // Whatever came of it: what was erased may be remembered.
        self.shared.recent.clear();
        Ok(erased?)
    }

    /// From now on verified deliveries of this source get 410, upon which producers pause the endpoint (§3): here at once,
    /// in other processes within some seconds, and after restarts too, until [`Operator::rearm`].
    ///
    /// # Errors
    /// `NotFound`, if this process knows no source of this name; and as every action: `Busy`, `Database`, `Invalid`.
    pub async fn deregister(&self, source: &str, reason: &str) -> Result<(), OperatorError> {
        self.set_gone(source, true, reason).await
    }

    /// Takes deliveries of a source again that was deregistered.
    ///
    /// # Errors
    /// As every action: `Busy`, `Database`, `Invalid`.
    pub async fn rearm(&self, source: &str, reason: &str) -> Result<(), OperatorError> {
        self.set_gone(source, false, reason).await
    }

    async fn set_gone(&self, source: &str, gone: bool, reason: &str) -> Result<(), OperatorError> {
        check_reason(reason)?;
        let Some(state) = self.shared.find_source(source).await else {
            return Err(OperatorError::refused(OperatorErrorKind::NotFound));
        };
        let set = SetGone {
            source,
            gone,
            actor: &self.actor,
            reason,
        };
        self.decide(&set).await?;
        if !self.rehearses {
            self.shared.tenants.set_gone(&state, gone);
        }
        Ok(())
    }
}
