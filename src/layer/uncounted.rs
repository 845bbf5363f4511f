//! A delivery that panics on its way: its producer gets a 500, and the counts have it too.

use http::StatusCode;
use tokio::time::Instant;

use super::deliver::{Arrival, count, count_arrival};
use crate::event::Outcome;
use crate::shared::Shared;
use crate::source::SourceState;
use crate::store::Backend;

/// What a request has brought, until it is counted. A handler's own panic is caught nearer to it.
pub(super) struct Uncounted<'a, DB: Backend> {
    pub(super) shared: &'a Shared<DB>,
    pub(super) source: &'a SourceState,
    pub(super) arrivals: &'a [Arrival],
    pub(super) arrived: Instant,
}

impl<DB: Backend> Uncounted<'_, DB> {
    pub(super) fn answered(&self, outcome: Outcome, status: StatusCode) {
        let Self {
            shared,
            source,
            arrivals,
            arrived,
        } = self;
        match (arrivals, outcome) {
            // It was all about the producer's deliveries.
            ([], Outcome::Accepted) => source.counted().accepted(),
            ([], _) => count(shared, source, None, outcome, status),
            _ => {
                for Arrival { envelope, .. } in *arrivals {
                    count_arrival(shared, source, envelope, outcome, status);
                }
            }
        }
        source.counted().took(outcome, arrived.elapsed());
    }
}

impl<DB: Backend> Drop for Uncounted<'_, DB> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.answered(Outcome::Failed, StatusCode::INTERNAL_SERVER_ERROR);
        }
    }
}
