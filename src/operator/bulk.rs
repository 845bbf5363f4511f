//! Many stored events at once: one transaction each, so that one that cannot be done stops no other.

use std::error::Error as _;
use std::num::NonZeroU32;
use std::ops::ControlFlow;
use std::time::Duration;

use tokio::time::{Instant, sleep_until};

use super::letters::{Filter, Page, PageKey};
use super::{Operator, Waiting, check_reason};
use crate::error::{OperatorError, OperatorErrorKind};
use crate::store::{Backend, Reason};

/// Events a second, unless something else is said.
const PER_SECOND: NonZeroU32 = NonZeroU32::new(100).expect("not 0");
/// Letters of a page.
const PAGE: usize = 200;
/// Events in a row that the database did nothing about, each after ten seconds perhaps: it is away, and not one of them locked.
const FAULTS: u32 = 3;
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

/// What is replayed if nothing else is said: others have no turn to come.
pub(crate) const REPLAYED: [Reason; 4] = [
    Reason::Gap,
    Reason::Handler,
    Reason::Rejected,
    Reason::Crash,
];

#[derive(Clone, Copy)]
enum Verb {
    Replay,
    Discard,
    TryNow,
}

/// Which events, all of them.
#[derive(Clone, Copy)]
enum Among<'a> {
    Stored(&'a Filter),
    Waiting(&'a Waiting),
}

impl Among<'_> {
    async fn page<DB: Backend>(
        self,
        operator: &Operator<DB>,
        after: Option<&PageKey>,
    ) -> Result<Page, OperatorError> {
        match self {
            Self::Stored(filter) => operator.dead_letters(filter, after, PAGE).await,
            Self::Waiting(which) => operator.waiting(which, after, PAGE).await,
        }
    }
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
        let filter = filter.clone().or_reasons(&REPLAYED);
        self.all(
            Verb::Replay,
            Among::Stored(&filter),
            reason,
            options,
            &mut |_| ControlFlow::Continue(()),
        )
        .await
    }

    /// [`Operator::replay_where`], telling `told` how far it is after each event. It may end it there: what was done stays done.
    ///
    /// # Errors
    /// As there.
    pub async fn replay_where_telling(
        &self,
        filter: &Filter,
        reason: &str,
        options: BulkOptions,
        mut told: impl FnMut(&BulkReport) -> ControlFlow<()> + Send,
    ) -> Result<BulkReport, OperatorError> {
        let filter = filter.clone().or_reasons(&REPLAYED);
        self.all(
            Verb::Replay,
            Among::Stored(&filter),
            reason,
            options,
            &mut told,
        )
        .await
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
        self.all(
            Verb::Discard,
            Among::Stored(filter),
            reason,
            options,
            &mut |_| ControlFlow::Continue(()),
        )
        .await
    }

    /// [`Operator::discard_where`], telling `told` how far it is after each event. It may end it there: what was done stays done.
    ///
    /// # Errors
    /// As there.
    pub async fn discard_where_telling(
        &self,
        filter: &Filter,
        reason: &str,
        options: BulkOptions,
        mut told: impl FnMut(&BulkReport) -> ControlFlow<()> + Send,
    ) -> Result<BulkReport, OperatorError> {
        self.all(
            Verb::Discard,
            Among::Stored(filter),
            reason,
            options,
            &mut told,
        )
        .await
    }

    /// Has every parked event that matches tried as soon as its turn is there, where it waits for the time of its next attempt:
    /// [`Operator::try_now`] for each.
    ///
    /// # Errors
    /// For a reason that cannot be used. What happens on the way is in the report.
    pub async fn try_now_where(
        &self,
        which: &Waiting,
        reason: &str,
        options: BulkOptions,
    ) -> Result<BulkReport, OperatorError> {
        self.try_now_where_telling(which, reason, options, |_| ControlFlow::Continue(()))
            .await
    }

    /// [`Operator::try_now_where`], telling `told` how far it is after each event. It may end it there: what was done stays done.
    ///
    /// # Errors
    /// As there.
    pub async fn try_now_where_telling(
        &self,
        which: &Waiting,
        reason: &str,
        options: BulkOptions,
        mut told: impl FnMut(&BulkReport) -> ControlFlow<()> + Send,
    ) -> Result<BulkReport, OperatorError> {
        let which = which.clone().tried_later();
        self.all(
            Verb::TryNow,
            Among::Waiting(&which),
            reason,
            options,
            &mut told,
        )
        .await
    }

    async fn all(
        &self,
        verb: Verb,
        among: Among<'_>,
        reason: &str,
        options: BulkOptions,
        told: &mut (dyn FnMut(&BulkReport) -> ControlFlow<()> + Send),
    ) -> Result<BulkReport, OperatorError> {
        check_reason(reason)?;
        let mut report = BulkReport::default();
        let (mut after, mut faults) = (None, 0);
        let mut next = Instant::now();
        loop {
            let page = match among.page(self, after.as_ref()).await {
                Ok(page) => page,
                Err(error) => {
                    report.stopped = Some(error);
                    return Ok(report);
                }
            };
            for letter in page.letters {
                report.matched += 1;
                match letter {
                    _ if options.dry_run => {}
                    Err(unreadable) => report.refused(unreadable.key, unreadable.why),
                    Ok(letter) => {
                        sleep_until(next).await;
                        next = Instant::now() + Duration::from_secs(1) / options.per_second.get();
                        let (source, event_id) = (&letter.source, &letter.event_id);
                        let done = match verb {
                            Verb::Replay => self.replay(source, event_id, reason).await,
                            Verb::Discard => self.discard(source, event_id, reason).await,
                            Verb::TryNow => self.try_now(source, event_id, reason).await,
                        };
                        faults = match &done {
                            Err(error) if is_everybodys(error) => faults + 1,
                            _ => 0,
                        };
                        match done {
                            Ok(true) => report.done += 1,
                            Ok(false) => report.left += 1,
                            Err(error) if faults == FAULTS => {
                                report.left += 1;
                                report.stopped = Some(error);
                                return Ok(report);
                            }
                            Err(error) => {
                                let key = PageKey::new(source, event_id);
                                report.refused(Some(key), error.to_string());
                            }
                        }
                    }
                }
                if told(&report).is_break() {
                    return Ok(report);
                }
            }
            after = page.next;
            if after.is_none() {
                return Ok(report);
            }
        }
    }
}

/// Of the database, and not of the one event.
fn is_everybodys(error: &OperatorError) -> bool {
    let source = error.source();
    let of_the_row = source.and_then(|source| source.downcast_ref::<sqlx::Error>());
    match error.kind() {
        OperatorErrorKind::Busy => true,
        OperatorErrorKind::Database => !matches!(
            of_the_row,
            Some(sqlx::Error::Decode(_) | sqlx::Error::ColumnDecode { .. })
        ),
        _ => false,
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
