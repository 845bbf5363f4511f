//! Many stored events at once: one transaction each, so that one that cannot be done stops no other.

use std::num::NonZeroU32;
use std::time::Duration;

use tokio::time::{Instant, sleep_until};

use super::letters::{Filter, PageKey};
use super::{Operator, check_reason};
use crate::error::OperatorError;
use crate::store::{Backend, Reason};

/// Events a second, unless something else is said.
const PER_SECOND: NonZeroU32 = NonZeroU32::new(100).expect("not 0");
/// Letters of a page.
const PAGE: usize = 200;
/// Refusals that are told in full.
const TOLD: usize = 20;

/// How many stored events are dealt with at once.
#[derive(Clone, Copy, Debug)]
#[must_use]
pub struct BulkOptions {
    dry_run: bool,
    per_second: NonZeroU32,
}

impl Default for BulkOptions {
    fn default() -> Self {
        Self {
            dry_run: false,
            per_second: PER_SECOND,
        }
    }
}

impl BulkOptions {
    /// Only counts what matches, and changes nothing. Default: no.
    pub fn dry_run(mut self, dry_run: bool) -> Self {
        self.dry_run = dry_run;
        self
    }

    /// At most this many events a second. Default: 100.
    pub fn per_second(mut self, events: NonZeroU32) -> Self {
        self.per_second = events;
        self
    }
}

/// What came of it.
#[derive(Debug, Default)]
#[non_exhaustive]
pub struct BulkReport {
    /// Stored events that matched.
    pub matched: u64,
    /// Those that were changed.
    pub done: u64,
    /// Those that were not: it was so already, they were refused, or could not be read.
    pub left: u64,
    /// The first twenty refusals.
    pub refusals: Vec<Refusal>,
    /// Why it ended before all was seen. What was done stays done, and it can be begun again.
    pub stopped: Option<OperatorError>,
}

/// One event that was not changed.
#[derive(Debug)]
#[non_exhaustive]
pub struct Refusal {
    /// Which one, if its key can be read.
    pub key: Option<PageKey>,
    /// Why not.
    pub why: String,
}

#[derive(Clone, Copy)]
enum Verb {
    Replay,
    Discard,
}

impl<DB: Backend> Operator<DB> {
    /// Replays every dead letter that matches: [`Operator::replay`] for each. Without reasons in the filter: those of gap,
    /// handler, rejected and crash, since others have no turn to come.
    ///
    /// # Errors
    /// For a reason that cannot be used. What happens on the way is in the report.
    pub async fn replay_where(
        &self,
        filter: &Filter,
        reason: &str,
        options: BulkOptions,
    ) -> Result<BulkReport, OperatorError> {
        let reasons = [
            Reason::Gap,
            Reason::Handler,
            Reason::Rejected,
            Reason::Crash,
        ];
        let filter = filter.clone().or_reasons(&reasons);
        self.all(Verb::Replay, &filter, reason, options).await
    }

    /// Discards every dead letter that matches: [`Operator::discard`] for each.
    ///
    /// # Errors
    /// For a reason that cannot be used. What happens on the way is in the report.
    pub async fn discard_where(
        &self,
        filter: &Filter,
        reason: &str,
        options: BulkOptions,
    ) -> Result<BulkReport, OperatorError> {
        self.all(Verb::Discard, filter, reason, options).await
    }

    async fn all(
        &self,
        verb: Verb,
        filter: &Filter,
        reason: &str,
        options: BulkOptions,
    ) -> Result<BulkReport, OperatorError> {
        check_reason(reason)?;
        let mut report = BulkReport::default();
        let mut after = None;
        let mut next = Instant::now();
        loop {
            let page = match self.dead_letters(filter, after.as_ref(), PAGE).await {
                Ok(page) => page,
                Err(error) => {
                    report.stopped = Some(error);
                    return Ok(report);
                }
            };
            for letter in page.letters {
                report.matched += 1;
                if options.dry_run {
                    continue;
                }
                let letter = match letter {
                    Ok(letter) => letter,
                    Err(unreadable) => {
                        report.refused(unreadable.key, unreadable.why);
                        continue;
                    }
                };
                sleep_until(next).await;
                next = Instant::now() + Duration::from_secs(1) / options.per_second.get();
                let (source, event_id) = (&letter.source, &letter.event_id);
                let done = match verb {
                    Verb::Replay => self.replay(source, event_id, reason).await,
                    Verb::Discard => self.discard(source, event_id, reason).await,
                };
                match done {
                    Ok(true) => report.done += 1,
                    Ok(false) => report.left += 1,
                    Err(error) => {
                        let key = PageKey::new(source, event_id);
                        report.refused(Some(key), error.to_string());
                    }
                }
            }
            after = page.next;
            if after.is_none() {
                return Ok(report);
            }
        }
    }
}

impl BulkReport {
    fn refused(&mut self, key: Option<PageKey>, why: String) {
        self.left += 1;
        if self.refusals.len() < TOLD {
            self.refusals.push(Refusal { key, why });
        }
    }
}
