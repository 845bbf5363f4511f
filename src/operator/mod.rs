//! What people do: look at stored events, replay and discard them, and decide about sequences that never come.
//!
//! Every action names its actor and a reason, which go into the audit table in the same transaction. Every action is
//! safe to repeat, and safe in a race with the worker, with deliveries, and with other operators, in this process or
//! another one. Transient faults are tried again for at most ten seconds.
//!
//! ```no_run
//! # async fn example(inbox: tower_inbox::Inbox<sqlx::Sqlite>) -> Result<(), tower_inbox::OperatorError> {
//! use tower_inbox::operator::{Filter, Reason};
//!
//! let ada = inbox.operator("ada")?;
//! let page = ada.dead_letters(&Filter::new().source("crm").reason(Reason::Rejected), None, 100).await?;
//! for letter in page.letters.iter().flatten() {
//!     ada.replay(&letter.source, &letter.event_id, "the account exists now").await?;
//! }
//! for stream in ada.streams(Some("crm"), None, 50).await?.streams {
//!     println!("{} waits for {:?}; {} behind it", stream.correlation_id, stream.next, stream.parked);
//! }
//! if let Some(stream) = ada.cursor("crm", "acct_1").await? {
//!     ada.skip("crm", "acct_1", stream.next, stream.seen(), "lost by the producer, ticket 7").await?;
//! }
//! # Ok(()) }
//! ```

mod audit;
mod bulk;
mod foresee;
mod keeping;
mod letters;
mod outside;
mod stream;
mod streams;
mod waiting;

use std::fmt;
use std::ops::RangeInclusive;
use std::sync::Arc;

use tokio::time::{Duration, Instant, timeout_at};

use crate::dispatch::{Change, Discard, Never, Own, Rehearsed, Replay, Reset, Stop, TryNow, own};
use crate::error::OperatorError;
use crate::inbox::Inbox;
use crate::order::hints;
use crate::order::worker::{self, Work};
use crate::shared::{Pooled, Shared};
use crate::store::{Backend, Key, Start, Stream};

pub use audit::{AuditEntry, AuditFilter, AuditPage};
#[cfg(feature = "console")]
pub(crate) use bulk::REPLAYED;
pub use bulk::{BulkOptions, BulkReport, Refusal};
pub use foresee::{AfterDiscard, Ahead};
pub use keeping::{Erased, Erasure};
pub use letters::{Filter, Letter, Neighbour, Page, PageKey, Story, Unreadable};
pub use outside::{Clocks, Incident, ListState, WorkerBeat};
use stream::info;
pub use stream::{Moved, Seen, StreamInfo};
pub use streams::{
    Head, StreamEvent, StreamKey, StreamPage, StreamView, UrgentStreams, WaitingStream,
};
pub use waiting::Waiting;

pub use crate::store::{Range, RangeKind, Reason, State};

/// For looking, outside of any transaction.
const PATIENCE: Duration = Duration::from_secs(10);
/// Rows of one page at most.
const MOST: usize = 1_000;
/// The longest reason, in bytes.
const LONGEST_REASON: usize = 2_000;

/// A number of rows, as databases count them.
trait Rows {
    fn rows(self) -> i64;
}

impl Rows for usize {
    fn rows(self) -> i64 {
        i64::try_from(self).unwrap_or(i64::MAX)
    }
}

/// An operator at work on an inbox: [`Inbox::operator`]. Cheap to clone.
pub struct Operator<DB: Backend> {
    shared: Arc<Shared<DB>>,
    actor: Arc<str>,
    rehearses: bool,
}

impl<DB: Backend> Clone for Operator<DB> {
    fn clone(&self) -> Self {
        Self {
            shared: Arc::clone(&self.shared),
            actor: Arc::clone(&self.actor),
            rehearses: self.rehearses,
        }
    }
}

impl<DB: Backend> fmt::Debug for Operator<DB> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Operator")
            .field("actor", &self.actor)
            .field("rehearses", &self.rehearses)
            .finish_non_exhaustive()
    }
}

impl<DB: Backend> Inbox<DB> {
    /// The operations on stored events and streams, in the name of `actor`, which goes into the audit table.
    ///
    /// # Errors
    /// If the actor's name is not 1 to 255 bytes without control characters.
    pub fn operator(&self, actor: &str) -> Result<Operator<DB>, OperatorError> {
        if actor.is_empty() || actor.len() > 255 || actor.chars().any(char::is_control) {
            return Err(OperatorError::invalid(
                "an actor is 1 to 255 bytes without control characters",
            ));
        }
        Ok(Operator {
            shared: Arc::clone(&self.shared),
            actor: actor.into(),
            rehearses: false,
        })
    }
}

impl<DB: Backend> Operator<DB> {
    /// One whose decisions are carried out and taken back: each comes to what it would come to now, or is refused as it would
    /// be, and nothing of it stays, in the audit table neither. For a dry run.
    ///
    /// It takes the locks that the decision takes, for as long as that needs. [`Operator::body`] is no decision: what is read
    /// stays read, and in the audit table.
    ///
    /// ```no_run
    /// # async fn example(ada: tower_inbox::Operator<sqlx::Sqlite>) -> Result<(), tower_inbox::OperatorError> {
    /// match ada.rehearsal().discard("crm", "evt_1", "a dry run").await {
    ///     Ok(true) => println!("it would be discarded"),
    ///     Ok(false) => println!("it is discarded already"),
    ///     Err(refused) => println!("it would be refused: {refused}"),
    /// }
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn rehearsal(&self) -> Self {
        Self {
            rehearses: true,
            ..self.clone()
        }
    }

    /// Carries a decision out, unless it is only rehearsed.
    async fn decide<W: Own<DB>>(&self, work: &W) -> Result<W::Done, Stop> {
        match self.rehearses {
            true => own(&self.shared, &Rehearsed(work)).await,
            false => own(&self.shared, work).await,
        }
    }

    /// Puts a dead letter (gap, handler, rejected, crash) back into its turn, with no attempts counted: the worker applies
    /// it when its turn is there, never before. False if it waits already, or is applied.
    ///
    /// # Errors
    /// Of the kinds [`SetAside`](crate::OperatorErrorKind::SetAside), if its turn never comes;
    /// [`BodyNotKept`](crate::OperatorErrorKind::BodyNotKept); [`Yielded`](crate::OperatorErrorKind::Yielded);
    /// [`Fenced`](crate::OperatorErrorKind::Fenced); [`Closed`](crate::OperatorErrorKind::Closed);
    /// [`NotFound`](crate::OperatorErrorKind::NotFound), also if nothing of its stream was ever applied and its source is not
    /// known here; and as every action: `Busy`, `Database`, `Invalid` for a reason that is not 1 to 2,000 bytes.
    pub async fn replay(
        &self,
        source: &str,
        event_id: &str,
        reason: &str,
    ) -> Result<bool, OperatorError> {
        self.replay_as(source, event_id, reason, false).await
    }

    /// Has an event applied whose turn never comes, since its sequence is skipped, passed, or of an earlier generation:
    /// **out of its order**, after events that should have come after it. The worker applies it as soon as it can. False if
    /// it is on its way already, or applied.
    ///
    /// # Errors
    /// As [`Operator::replay`], and [`InTurn`](crate::OperatorErrorKind::InTurn) if its turn is still to come.
    pub async fn replay_out_of_order(
        &self,
        source: &str,
        event_id: &str,
        reason: &str,
    ) -> Result<bool, OperatorError> {
        self.replay_as(source, event_id, reason, true).await
    }

    async fn replay_as(
        &self,
        source: &str,
        event_id: &str,
        reason: &str,
        out_of_order: bool,
    ) -> Result<bool, OperatorError> {
        check_reason(reason)?;
        let replay = Replay {
            key: Key { source, event_id },
            out_of_order,
            begins: self.begins(source).await,
            actor: &self.actor,
            reason,
        };
        let change = self.decide(&replay).await??;
        if change.changed && change.stream.is_none() {
            self.tell_of_event(source, event_id);
        }
        self.wake(source, &change);
        Ok(change.changed)
    }

    /// Has a parked event tried as soon as its turn is there, where it waits for its backoff, or for as long as its handler
    /// said "not yet": the worker comes at once. Attempts stay counted, and the next failure is waited after as before. False
    /// if it waits for no such time (it is due, or waits for its turn alone), or is applied. An attempt that is under way is
    /// waited for.
    ///
    /// # Errors
    /// Of the kinds [`Dead`](crate::OperatorErrorKind::Dead), `Fenced`, `Closed` or `NotFound`; and as every action.
    pub async fn try_now(
        &self,
        source: &str,
        event_id: &str,
        reason: &str,
    ) -> Result<bool, OperatorError> {
        check_reason(reason)?;
        let try_now = TryNow {
            key: Key { source, event_id },
            actor: &self.actor,
            reason,
        };
        let change = self.decide(&try_now).await??;
        if change.changed {
            // Of one that is replayed out of its order there is more than its stream to tell of.
            self.tell_of_event(source, event_id);
        }
        self.wake(source, &change);
        Ok(change.changed)
    }

    /// Decides that a parked, dead or fenced event is never applied: its request is removed, and its redeliveries are
    /// answered 200 `{"status":"discarded"}`. A sequence that has not been passed is skipped with it. False if it is
    /// discarded already.
    ///
    /// # Errors
    /// Of the kind [`Applied`](crate::OperatorErrorKind::Applied), `Closed` or `NotFound`; and as every action.
    pub async fn discard(
        &self,
        source: &str,
        event_id: &str,
        reason: &str,
    ) -> Result<bool, OperatorError> {
        check_reason(reason)?;
        let discard = Discard {
            key: Key { source, event_id },
            begins: self.begins(source).await,
            actor: &self.actor,
            reason,
        };
        let change = self.decide(&discard).await??;
        self.wake(source, &change);
        Ok(change.changed)
    }

    /// Decides that a sequence is never waited for. What is stored in its place becomes a dead letter `skipped`; what
    /// comes for it later is set aside as one. If it is what the stream waits for, the stream goes on behind it.
    ///
    /// # Errors
    /// Of the kinds [`CursorMoved`](crate::OperatorErrorKind::CursorMoved), unless the sequence is skipped already;
    /// `Applied`, if the sequence is passed; `NotFound`, if nothing is known of the stream and its source is not known
    /// here; `NotBegun`; and as every action.
    pub async fn skip(
        &self,
        source: &str,
        correlation_id: &str,
        sequence: i64,
        seen: Seen,
        reason: &str,
    ) -> Result<Moved, OperatorError> {
        self.skip_range(source, correlation_id, sequence..=sequence, seen, reason)
            .await
    }

    /// As [`Operator::skip`], for several sequences in a row.
    ///
    /// # Errors
    /// As [`Operator::skip`].
    pub async fn skip_range(
        &self,
        source: &str,
        correlation_id: &str,
        sequences: RangeInclusive<i64>,
        seen: Seen,
        reason: &str,
    ) -> Result<Moved, OperatorError> {
        let range = Range {
            first: *sequences.start(),
            last: *sequences.end(),
            kind: RangeKind::Skipped,
        };
        self.never(source, correlation_id, range, seen, reason)
            .await
    }

    /// Moves a stream's cursor to `to`: all below it that is not applied is never waited for.
    ///
    /// # Errors
    /// As [`Operator::skip`]. A stream that is there already, or further on, is left alone.
    pub async fn fast_forward(
        &self,
        source: &str,
        correlation_id: &str,
        to: i64,
        seen: Seen,
        reason: &str,
    ) -> Result<Moved, OperatorError> {
        let range = Range {
            first: seen.next.min(to.saturating_sub(1)),
            last: to.saturating_sub(1),
            kind: RangeKind::FastForward,
        };
        self.never(source, correlation_id, range, seen, reason)
            .await
    }

    async fn never(
        &self,
        source: &str,
        correlation_id: &str,
        range: Range,
        seen: Seen,
        reason: &str,
    ) -> Result<Moved, OperatorError> {
        check_reason(reason)?;
        check_sequences(range.first, range.last)?;
        let never = Never {
            stream: Stream {
                source,
                correlation_id,
            },
            range,
            seen,
            begins: self.begins(source).await,
            actor: &self.actor,
            reason,
        };
        let change = self.decide(&never).await??;
        self.moved(source, &change, seen)
    }

    /// Begins a stream again, with `first` as its first sequence, as after a producer's restart from scratch: its sequences
    /// from there on are others than before. What is parked or dead becomes dead letters `skipped`. Known event ids stay
    /// known. Every process must run a version of this crate that has this method.
    ///
    /// # Errors
    /// Of the kinds `CursorMoved`, also when this reset has been done already; `NotFound`; `Invalid`, if `first` is lower
    /// than the source's first sequence; and as every action.
    pub async fn reset(
        &self,
        source: &str,
        correlation_id: &str,
        first: i64,
        seen: Seen,
        reason: &str,
    ) -> Result<Moved, OperatorError> {
        check_reason(reason)?;
        check_sequences(first, first)?;
        let begins = self.begins(source).await;
        if begins.is_some_and(|begins| first < begins.next.max(0)) {
            return Err(OperatorError::invalid(
                "the source takes no sequence as low as this",
            ));
        }
        let stream = Stream {
            source,
            correlation_id,
        };
        let reset = Reset {
            stream,
            first,
            seen,
            begins,
            actor: &self.actor,
            reason,
        };
        let change = self.decide(&reset).await??;
        if let Some(cursor) = change.cursor.filter(|_| !self.rehearses) {
            self.shared.generations.learn(stream, cursor.generation);
        }
        self.moved(source, &change, seen)
    }

    /// Where a stream stands. Nothing if none of its events was applied or parked yet: it waits for its source's first
    /// sequence then, in generation 0.
    ///
    /// # Errors
    /// If the database could not be asked.
    pub async fn cursor(
        &self,
        source: &str,
        correlation_id: &str,
    ) -> Result<Option<StreamInfo>, OperatorError> {
        let stream = Stream {
            source,
            correlation_id,
        };
        self.look(async |shared, conn| info(shared, conn, stream).await)
            .await
    }

    pub(crate) fn shared(&self) -> &Arc<Shared<DB>> {
        &self.shared
    }

    /// Statements outside of any transaction.
    async fn look<T>(
        &self,
        look: impl AsyncFnOnce(&Shared<DB>, &mut Pooled<'_, DB>) -> Result<T, sqlx::Error>,
    ) -> Result<T, OperatorError> {
        let deadline = Instant::now() + PATIENCE;
        let busy = |answer: crate::answer::Answer| OperatorError::busy(answer.reason());
        let looked = async {
            let mut conn = self.shared.statements(deadline).await.map_err(busy)?;
            let found = look(&self.shared, &mut conn).await;
            conn.done(found).await.map_err(OperatorError::database)
        };
        timeout_at(deadline, looked)
            .await
            .unwrap_or_else(|_| Err(OperatorError::busy("the database is busy")))
    }

    /// Here, and in other processes.
    fn tell(&self, work: Work) {
        if self.rehearses {
            return;
        }
        worker::wake(&self.shared, work.clone());
        hints::tell(&self.shared, work);
    }

    fn tell_of_event(&self, source: &str, event_id: &str) {
        let (source, event_id) = (source.into(), event_id.into());
        self.tell(Work::Event { source, event_id });
    }

    async fn begins(&self, source: &str) -> Option<Start> {
        let source = self.shared.find_source(source).await?;
        Some(source.start(self.shared.clock.now()))
    }

    fn moved(&self, source: &str, change: &Change, seen: Seen) -> Result<Moved, OperatorError> {
        self.wake(source, change);
        Ok(Moved {
            changed: change.changed,
            cursor: change.cursor.unwrap_or(seen),
        })
    }

    fn wake(&self, source: &str, change: &Change) {
        if let Some(correlation_id) = &change.stream {
            let (source, correlation_id) = (source.into(), correlation_id.as_str().into());
            self.tell(Work::Stream {
                source,
                correlation_id,
            });
        }
    }
}

pub(crate) fn check_reason(reason: &str) -> Result<(), OperatorError> {
    if reason.is_empty() || reason.len() > LONGEST_REASON || reason.contains('\0') {
        return Err(OperatorError::invalid("a reason is 1 to 2,000 bytes"));
    }
    Ok(())
}

fn check_sequences(first: i64, last: i64) -> Result<(), OperatorError> {
    if first < 0 || last < first || last == i64::MAX {
        return Err(OperatorError::invalid(
            "sequences are integers from 0 to 2^63-2, the lower one first",
        ));
    }
    Ok(())
}
