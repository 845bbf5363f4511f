//! Fail points: named places on the path of an event, at which a test holds it up, breaks it off, or ends the process.
//!
//! They are there with the feature `failpoints` only, which is for tests of this crate. Each store call has one that is
//! named after it; the others are in [`at`].

/// In the order in which an event comes by.
pub(crate) mod at {
    /// A worker has claimed a pending event, in a statement of its own.
    pub(crate) const CLAIMED: &str = "claimed";
    /// BEGIN and our savepoint are done.
    pub(crate) const BEGUN: &str = "begun";
    /// The event's row and cursor are ours; the handler has not begun.
    pub(crate) const ENTERED: &str = "entered";
    /// The handler has answered; nothing is settled.
    pub(crate) const HANDLED: &str = "handled";
    /// What the handler did is taken back, and perhaps the locks with it; nothing else is written.
    pub(crate) const UNDONE: &str = "undone";
    /// The savepoint is released; COMMIT is next.
    pub(crate) const RELEASED: &str = "released";
    /// A stream that adopts its first sequence is about to begin: its cursor is locked, COMMIT is next.
    pub(crate) const ADOPTED: &str = "adopted";
    /// A transaction with no handler in it is about to begin.
    pub(crate) const OPENING: &str = "opening";
    /// A transaction with no handler in it has all its locks; COMMIT is next.
    pub(crate) const DECIDED: &str = "decided";
    /// COMMIT has succeeded; nobody has been told, and nothing is drained.
    pub(crate) const COMMITTED: &str = "committed";
    /// It is known how a delivery ended; neither its producer nor those who wait behind it are told, and nothing is woken.
    pub(crate) const SETTLED: &str = "settled";
    /// A worker's attempt is over; what it came to is recorded nowhere but in its own transaction.
    pub(crate) const DRAINED: &str = "drained";
}

/// Every point there is, by its name; a test compares it with the sources.
#[cfg(feature = "failpoints")]
const POINTS: &[&str] = &[
    at::CLAIMED,
    at::BEGUN,
    at::ENTERED,
    at::HANDLED,
    at::UNDONE,
    at::RELEASED,
    at::ADOPTED,
    at::OPENING,
    at::DECIDED,
    at::COMMITTED,
    at::SETTLED,
    at::DRAINED,
    "store.bracket",
    "store.done",
    "store.acquire",
    "store.begin",
    "store.begin_with_first",
    "store.prepared",
    "store.release",
    "store.checkpoint",
    "store.commit",
    "store.committed",
    "store.rollback",
    "store.restore",
    "store.rollback_to",
    "watch.kill",
    "watch.look",
    "store.known",
    "store.lock_event",
    "store.insert_event",
    "store.insert_first",
    "store.insert_behind",
    "store.swap_state",
    "store.slot_holder",
    "store.yield_slot",
    "store.raise_version",
    "store.insert_fence",
    "store.fence_holder",
    "store.guard",
    "store.advance_cursor",
    "store.open_cursor",
    "store.lock_cursor",
    "store.touch_settling",
    "store.lock_settling",
    "store.lowest_parked",
    "store.settle_cursor",
    "store.settled_streams",
    "store.insert_pending",
    "store.delete_pending",
    "store.postpone",
    "store.record_attempt",
    "store.release_pending",
    "store.keep_body",
    "store.hasten",
    "store.requeue",
    "store.put_off",
    "store.expired",
    "store.stream_is_used",
    "store.pending_of_stream",
    "store.pending_counts",
    "store.erase_pending",
    "store.count_waiting",
    "store.claim",
    "store.hand_back",
    "store.hand_back_all",
    "store.due_batch",
    "store.claim_batch",
    "store.lock_batch",
    "store.mark_member",
    "store.hand_back_batch",
    "store.beat",
    "store.retire",
    "store.due_streams",
    "store.due_head",
    "store.due_events",
    "store.next_due",
    "store.due_event",
    "store.audit",
    "store.purge_fences",
    "store.stale",
    "store.insert_answer",
    "store.answer",
    "store.purge_answers",
    "store.purge",
    "store.stale_letters",
    "store.forget_letter",
    "store.erase_answers",
    "store.gone_sources",
    "store.set_gone",
    "store.stale_audit",
    "store.purge_audit",
    "store.start_burst",
    "store.orphan_burst",
    "store.adopt_burst",
    "store.burst_ended_by",
    "store.running_burst",
    "store.end_burst",
    "store.end_unknown_burst",
    "store.count_burst",
    "store.report_burst",
    "store.bursts",
    "store.alive",
    "store.stay_alive",
    "store.add_incident",
    "store.incidents",
    "store.workers",
    "store.reconciliations",
    "store.count_stale",
    "store.open_reconcile",
    "store.take_reconcile",
    "store.reconcile_state",
    "store.save_reconcile",
    "store.gaps",
    "store.claim_flush",
    "store.add_stats",
    "store.stats",
    "store.stale_stats",
    "store.purge_stats",
    "store.purge_notes",
    "store.use_secret",
    "store.secret_uses",
    "store.stored_now",
    "store.reconciled",
    "store.take_row_count",
    "store.count_rows",
    "store.save_row_count",
    "store.row_counts",
    "store.now",
    "store.schema",
    "store.ping",
    "store.move_cursor",
    "store.renew_cursor",
    "store.range_at",
    "store.ranges_after",
    "store.insert_range",
    "store.set_aside",
    "store.unplaced",
    "store.strayed",
    "store.discard_event",
    "store.cursor",
    "store.letters",
    "store.waiting",
    "store.count_apart",
    "store.source_is_known",
    "store.story",
    "store.neighbours",
    "store.waiting_streams",
    "store.urgent_streams",
    "store.stream_events",
    "store.audit_lines",
    "store.notify",
    "store.listen",
];

/// One of the points that are named after what comes next: a statement, or what else needs the database. Its error is
/// returned as if that had failed. `$at` has the [`FailPoints`] as its `fail`. Nothing without the feature.
#[cfg(feature = "failpoints")]
macro_rules! point {
    ($at:expr, $name:literal) => {
        $at.fail.reached($name).await?
    };
}
#[cfg(not(feature = "failpoints"))]
macro_rules! point {
    ($at:expr, $name:literal) => {};
}
pub(crate) use point;

#[cfg(feature = "failpoints")]
mod on {
    use std::fmt;
    use std::future::Future;
    use std::pin::Pin;
    use std::sync::Arc;

    type Reached = Pin<Box<dyn Future<Output = Result<(), sqlx::Error>> + Send>>;

    /// What happens at the fail points of one inbox.
    #[derive(Clone)]
    pub struct FailPoints(Arc<dyn Fn(&'static str) -> Reached + Send + Sync>);

    impl FailPoints {
        /// The names of all of them.
        pub const ALL: &'static [&'static str] = super::POINTS;

        /// `reached` is called with a point's name and awaited there; an error that it returns is the database's.
        pub fn new<F>(reached: impl Fn(&'static str) -> F + Send + Sync + 'static) -> Self
        where
            F: Future<Output = Result<(), sqlx::Error>> + Send + 'static,
        {
            Self(Arc::new(move |name| Box::pin(reached(name))))
        }

        pub(crate) async fn reached(&self, name: &'static str) -> Result<(), sqlx::Error> {
            (self.0)(name).await
        }
    }

    impl Default for FailPoints {
        /// Nothing happens.
        fn default() -> Self {
            Self::new(|_| async { Ok(()) })
        }
    }

    impl fmt::Debug for FailPoints {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("FailPoints")
        }
    }
}

#[cfg(not(feature = "failpoints"))]
mod off {
    /// Nothing, without the feature.
    #[derive(Clone, Debug, Default)]
    pub(crate) struct FailPoints(());

    const _: () = assert!(size_of::<FailPoints>() == 0);

    impl FailPoints {
        #[allow(clippy::unused_async, reason = "the feature's other half waits")]
        #[inline]
        pub(crate) async fn reached(&self, _: &'static str) -> Result<(), sqlx::Error> {
            Ok(())
        }
    }
}

#[cfg(not(feature = "failpoints"))]
pub(crate) use off::FailPoints;
#[cfg(feature = "failpoints")]
pub use on::FailPoints;
