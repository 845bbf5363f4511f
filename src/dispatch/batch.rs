//! Several events of one stream in one transaction, for the worker: all that are begun, or none.

use std::sync::Arc;

use http::Response;
use tokio::time::Instant;
use tracing::{Instrument as _, Span};

use super::open::Open;
use super::settle::Said;
use super::{Entered, Job, Run, Stop, within};
use crate::event::Outcome;
use crate::fail::at;
use crate::kept::Kept;
use crate::probe::Happened;
use crate::queue::End;
use crate::store::{Backend, Fault, Locked, Member, State, Stretch};
use crate::trace;

/// Events that were claimed together, in their order, at least one, with one lease and one deadline.
pub(crate) struct Batch<'a, DB: Backend> {
    pub(crate) jobs: &'a [Job<'a, DB>],
    pub(crate) stretch: Stretch<'a>,
}

/// How it ended.
pub(crate) enum Batched {
    /// So many of the first ones are applied, with their answers where those are stored. The leases of the others are given
    /// back.
    Applied(Vec<Option<Arc<Kept>>>),
    /// We have committed nothing. `clean`: by a rollback of ours.
    Undone { clean: bool },
    /// The database is away; no handler was called.
    Away,
    /// It is not known whether it has committed. The rows tell, and the leases with them.
    Unknown,
}

/// How far it has come.
#[derive(Clone, Copy)]
enum Reached {
    Begin,
    Handler,
    Commit,
}

impl<DB: Backend> Batch<'_, DB> {
    pub(crate) async fn run(&self, handler: &mut dyn Run<()>) -> Batched {
        let (mut reached, mut spans) = (Reached::Begin, Vec::new());
        let batched = match self.once(handler, &mut reached, &mut spans).await {
            Ok(batched) => batched,
            Err(stop) => self.stopped(stop, reached),
        };
        for (at, span) in spans.iter().enumerate() {
            match &batched {
                Batched::Applied(kept) if at < kept.len() => trace::ended(span, Outcome::Applied),
                _ => trace::undone(span),
            }
        }
        match &batched {
            Batched::Applied(kept) => self.jobs.iter().take(kept.len()).for_each(|job| {
                job.saw(|| Happened::Settled(End::Applied, Outcome::Applied));
            }),
            Batched::Undone { .. } => self.jobs.iter().for_each(|job| {
                job.saw(|| Happened::Noted("its batch was undone: it is tried alone".into()));
            }),
            Batched::Away | Batched::Unknown => {}
        }
        batched
    }

    fn stopped(&self, stop: Stop, reached: Reached) -> Batched {
        let fault = match stop {
            // Others may hold up one of its events, and not the first.
            Stop::Budget | Stop::Again => Fault::Transient,
            Stop::Answer(_) => Fault::Gone,
            Stop::Database(error) => {
                let fault = DB::fault(&error);
                tracing::warn!(
                    source = self.stretch.stream.source,
                    correlation_id = self.stretch.stream.correlation_id,
                    %error, ?fault,
                    "the database failed a batch"
                );
                fault
            }
        };
        match (reached, fault) {
            (Reached::Begin, Fault::Gone) => Batched::Away,
            (Reached::Commit, Fault::Gone) => Batched::Unknown,
            // Also what a handler did to its transaction or its connection, and a constraint that was deferred to the
            // commit.
            _ => Batched::Undone { clean: false },
        }
    }

    async fn once(
        &self,
        handler: &mut dyn Run<()>,
        reached: &mut Reached,
        spans: &mut Vec<Span>,
    ) -> Result<Batched, Stop> {
        let [first, ..] = self.jobs else {
            return Ok(Batched::Applied(Vec::new()));
        };
        let (shared, deadline) = (first.shared, first.deadline);
        let mut open = Open::begin(shared, deadline).await?;
        shared.fail.reached(at::BEGUN).await?;
        let ids: Vec<_> = self.jobs.iter().map(|job| job.key().event_id).collect();
        // All of them before the cursor: event first, then cursor, everywhere in this order.
        let locked = DB::lock_batch(open.conn(), &shared.sql, first.source.name(), &ids);
        let locked = within(deadline, async { Ok(locked.await?) }).await?;
        if !locked.all {
            return undo(open, deadline).await;
        }
        let mut kept = Vec::with_capacity(self.jobs.len());
        let (mut began, mut last) = (None, None);
        for job in self.jobs {
            let late = |began: Instant| began.elapsed() >= first.source.batch_time();
            if began.is_some_and(late) {
                break;
            }
            let is_next = within(deadline, job.mark(&mut open, locked)).await?;
            if !is_next {
                return undo(open, deadline).await;
            }
            if let Some((before, response)) = last.take() {
                kept.push(keep(before, &mut open, response).await?);
            }
            job.saw(|| {
                let from = Some(State::Parked);
                Entered::Run { from }.seen()
            });
            shared.fail.reached(at::ENTERED).await?;
            *reached = Reached::Handler;
            began.get_or_insert_with(Instant::now);
            // Each event's own: what the transaction is about is all of theirs.
            let span = job.attempt_span();
            let said = job.lend(&mut open, handler).instrument(span.clone()).await;
            spans.push(span);
            shared.fail.reached(at::HANDLED).await?;
            match said {
                Said::Commit(response) => last = Some((job, response)),
                Said::Terminal(_) | Said::NotYet(_) | Said::Failed(_) => {
                    return undo(open, deadline).await;
                }
                Said::Lost(_) => return Ok(Batched::Undone { clean: false }),
            }
        }
        within(deadline, open.release(true)).await?;
        if DB::depth(open.conn()) != 1 {
            return Ok(Batched::Undone { clean: false });
        }
        if let Some((last, response)) = last {
            kept.push(keep(last, &mut open, response).await?);
        }
        self.commit(open, kept, reached).await
    }

    /// What has been run, with the leases of the others given back. The savepoint is released.
    async fn commit(
        &self,
        mut open: Open<'_, DB>,
        kept: Vec<Option<Arc<Kept>>>,
        reached: &mut Reached,
    ) -> Result<Batched, Stop> {
        let (ran, left) = self.jobs.split_at(kept.len());
        let [first, ..] = ran else {
            return Ok(Batched::Undone { clean: false });
        };
        let (shared, deadline) = (first.shared, first.deadline);
        if !left.is_empty() {
            let mut rest = self.stretch;
            rest.first += i64::try_from(ran.len()).unwrap_or_default();
            let back = DB::hand_back_batch(open.conn(), &shared.sql, &rest);
            within(deadline, async { Ok(back.await?) }).await?;
        }
        shared.fail.reached(at::RELEASED).await?;
        if ran
            .iter()
            .any(|job| shared.probes.refuses_commit(job.key()))
        {
            return undo(open, deadline).await;
        }
        *reached = Reached::Commit;
        if let Err(stop) = open.send_commit().await {
            ran.iter().for_each(|job| job.doubts(&stop));
            return Err(stop);
        }
        open.clean().await;
        ran.iter().for_each(|job| job.saw(|| Happened::Committed));
        shared.fail.reached(at::COMMITTED).await?;
        ran.iter().for_each(Job::applied_one);
        Ok(Batched::Applied(kept))
    }
}

impl<DB: Backend> Job<'_, DB> {
    fn attempt_span(&self) -> Span {
        trace::attempt(
            self.source.name(),
            self.source.trace_context(),
            self.envelope,
            self.request,
            self.origin,
            None,
        )
    }

    /// Applied, and the cursor moved, before its handler runs; the handler before it has left the transaction as it was.
    async fn mark(&self, open: &mut Open<'_, DB>, locked: Locked) -> Result<bool, Stop> {
        let Some(place) = self.place() else {
            return Ok(false);
        };
        let member = Member {
            key: self.key(),
            place,
            lease: self.lease,
            transaction: locked.transaction,
            at: self.shared.clock.now(),
        };
        let marked = DB::mark_member(open.conn(), &self.shared.sql, &member).await?;
        // Nothing of the handler's is left open.
        Ok(marked && DB::depth(open.conn()) == 1)
    }
}

/// Stores an answer, once the transaction is known to be ours still.
async fn keep<DB: Backend>(
    job: &Job<'_, DB>,
    open: &mut Open<'_, DB>,
    mut response: Response<()>,
) -> Result<Option<Arc<Kept>>, Stop> {
    job.keep_answer(open, &mut response).await
}

/// A rollback whose own failure changes nothing: the connection is closed then.
async fn undo<DB: Backend>(open: Open<'_, DB>, deadline: Instant) -> Result<Batched, Stop> {
    let clean = open.take_back(deadline).await.is_ok();
    Ok(Batched::Undone { clean })
}
