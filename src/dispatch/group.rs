//! Several events of one request: one transaction, all or nothing.

use http::Response;

use super::open::Open;
use super::settle::{LOST, Said, rejected};
use super::words::Refusal;
use super::{Entered, Job, Run, Settled, Stop, Tries, contended, defer, within};
use crate::answer::Answer;
use crate::envelope::Envelope;
use crate::queue::End;
use crate::store::{Backend, State};

/// The elements of one request, at least one, none with a place in a stream.
pub(crate) struct Group<'a, 'e, DB: Backend>(pub(crate) &'a [Job<'e, DB>]);

impl<'e, DB: Backend> Group<'_, 'e, DB> {
    /// As [`Job::run`], for all of them. `ran`: those that the last transaction has handed to the handler, which are committed
    /// if it is.
    pub(crate) async fn run<R>(
        &self,
        handler: &mut dyn Run<R>,
        ran: &mut Vec<&'e Envelope>,
    ) -> Settled<R> {
        let [first, ..] = self.0 else {
            return Settled::answer(End::Applied, Answer::duplicate());
        };
        let mut tries = Tries::new(handler);
        loop {
            ran.clear();
            match self.once(first, &mut tries, ran).await {
                Ok(settled) => {
                    self.0.iter().for_each(|job| job.saw(|| settled.seen()));
                    return settled;
                }
                Err(stop) => {
                    if let Some(answer) = first.stopped(stop) {
                        return Settled::failed(answer);
                    }
                }
            }
            if !tries.again(first.deadline).await {
                return Settled::failed(contended());
            }
        }
    }

    async fn once<R>(
        &self,
        first: &Job<'_, DB>,
        handler: &mut dyn Run<R>,
        ran: &mut Vec<&'e Envelope>,
    ) -> Result<Settled<R>, Stop> {
        let deadline = first.deadline;
        let mut open = Open::begin(first.shared, deadline).await?;
        let mut last = None;
        let (mut held, mut superseded) = (Vec::new(), Vec::new());
        // Of a deferred source: what is new, and whether something waits already.
        let (mut stored, mut waiting) = (Vec::new(), false);
        for job in self.0 {
            let from = match within(deadline, job.enter(&mut open)).await? {
                Entered::Run { from } => from,
                Entered::Fence { from } => {
                    let stored = within(deadline, job.hold(open.conn(), from)).await?;
                    held.push((job, stored));
                    continue;
                }
                Entered::Store => {
                    let bytes = job.stored.bytes();
                    let reserved = match within(deadline, job.room(open.conn(), bytes)).await? {
                        Ok(reserved) => reserved,
                        Err(full) => {
                            open.roll_back(deadline).await?;
                            return Ok(Settled::failed(Answer::busy(full.of_what())));
                        }
                    };
                    within(deadline, job.keep_parked(open.conn())).await?;
                    stored.push((job, reserved));
                    continue;
                }
                Entered::Requeue | Entered::Stored => {
                    waiting = true;
                    continue;
                }
                Entered::Supersede { from } => {
                    within(deadline, job.record_superseded(open.conn())).await?;
                    superseded.push((job, from));
                    continue;
                }
                Entered::Duplicate {
                    other_content: true,
                } => {
                    // All that came before it is undone first: the savepoint has moved past that.
                    open.roll_back(deadline).await?;
                    let open = Open::begin(job.shared, deadline).await?;
                    return job
                        .refuse(open, "other_content", Answer::other_content())
                        .await;
                }
                // Known already, in whatever way: nothing to do for this one.
                Entered::Duplicate { .. }
                | Entered::Fenced
                | Entered::Superseded
                | Entered::Park { .. }
                | Entered::Parked { .. }
                | Entered::SetAside
                | Entered::Aside { .. }
                | Entered::Discarded
                | Entered::PlaceTaken
                | Entered::Gone => continue,
            };
            match job.lend(&mut open, handler).await {
                Said::Commit(response) => {
                    ran.push(job.envelope);
                    last = Some((from, response));
                }
                Said::Terminal(response) => {
                    match open.take_back(deadline).await {
                        Ok(()) => {}
                        Err(Stop::Budget) => return Err(Stop::Budget),
                        Err(_) => return Ok(Settled::handler_failed(LOST)),
                    }
                    return self.reject(job, from, response).await;
                }
                Said::Failed(settled) => {
                    let _ = open.take_back(deadline).await;
                    return Ok(settled);
                }
                Said::NotYet(_) => {
                    let _ = open.take_back(deadline).await;
                    let detail = "an event of this request is not to be applied yet";
                    return Ok(Settled::failed(Answer::unavailable(detail)));
                }
                Said::Lost(settled) => return Ok(settled),
            }
            // Before the next element writes: is this still our transaction? Otherwise its row would be committed on
            // its own, and its handler's work perhaps not.
            match within(deadline, open.checkpoint()).await {
                Ok(()) => {}
                Err(Stop::Budget) => return Err(Stop::Budget),
                Err(_) => return Ok(Settled::handler_failed(LOST)),
            }
        }
        let settled = match last {
            Some((from, response)) => first.settle(open, from, response).await?,
            None => {
                open.commit(deadline).await?;
                waiting |= !stored.is_empty();
                for (job, reserved) in stored {
                    job.stored_reserved(reserved);
                }
                if waiting {
                    for (job, from) in held {
                        job.held(from);
                    }
                    return Ok(defer::stored());
                }
                // What is new in it is older than what was applied.
                if held.is_empty() && !superseded.is_empty() {
                    for (job, from) in superseded {
                        job.superseded(from);
                    }
                    return Ok(Settled::answer(End::Superseded, Answer::superseded()));
                }
                Settled::answer(End::Applied, Answer::duplicate())
            }
        };
        if settled.end == End::Applied {
            for (job, stored) in held {
                job.held(stored);
            }
            for (job, from) in superseded {
                job.superseded(from);
            }
        }
        Ok(settled)
    }

    /// One element's terminal verdict ends the whole request. All that is new in it is kept as dead letters when their
    /// work is undone: the producer does not send it again.
    async fn reject<R>(
        &self,
        job: &Job<'_, DB>,
        from: Option<State>,
        response: Response<R>,
    ) -> Result<Settled<R>, Stop> {
        if from.is_none() && !job.source.keeps_rejected() {
            return Ok(rejected(response));
        }
        let mut open = Open::begin(job.shared, job.deadline).await?;
        let verdict = Refusal::of(job.source, &response);
        let stored = within(job.deadline, job.keep_dead(open.conn(), from, &verdict)).await?;
        let Some(stored) = stored else {
            return job.decided_meanwhile(open, response).await;
        };
        let mut kept = Vec::new();
        if from.is_none() {
            kept.push((job, stored));
        }
        let of_others = verdict.of_others();
        for other in self.0 {
            // Not those that are known already, in whatever way.
            if other.key().event_id == job.key().event_id {
                continue;
            }
            let stored =
                within(job.deadline, other.keep_dead(open.conn(), None, &of_others)).await?;
            kept.extend(stored.map(|stored| (other, stored)));
        }
        open.commit(job.deadline).await?;
        for (job, stored) in kept {
            job.stored_one(stored);
        }
        Ok(rejected(response))
    }
}
