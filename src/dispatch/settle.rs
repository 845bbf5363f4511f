//! Lending the transaction to the handler, and ending it by what the handler says.

use std::future::poll_fn;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::task::Poll;

use http::{Response, StatusCode};
use tokio::time::{Instant, timeout_at};

use super::open::Open;
use super::words::Refusal;
use super::{BoxFuture, Job, Run, Settled, Stop, is_retryable, seen, within};
use crate::answer::Answer;
use crate::broken::{self, Variant};
use crate::event::{Delivery, Origin, Outcome, Verdict};
use crate::fail::{at, point};
use crate::kept::{Collected, Kept};
use crate::park::Park;
use crate::probe::{Happened, Loss};
use crate::queue::End;
use crate::source::Verdicts;
use crate::store::{Attempt, Backend, Fault, Reason, State};

impl<DB: Backend> Job<'_, DB> {
    /// Lends the transaction to the handler and settles by what it says.
    pub(super) async fn call<R>(
        &self,
        mut open: Open<'_, DB>,
        from: Option<State>,
        handler: &mut dyn Run<R>,
    ) -> Result<Settled<R>, Stop> {
        let said = self.lend_timed(&mut open, handler).await;
        self.shared.fail.reached(at::HANDLED).await?;
        match said {
            Said::Commit(response) => self.settle(open, from, response).await,
            Said::Terminal(response) => self.reject(open, from, response).await,
            Said::Failed(settled) => {
                // A rollback whose own failure changes nothing: the connection is then closed.
                let _ = open.take_back(self.deadline).await;
                Ok(settled)
            }
            Said::NotYet(park) => self.put_off(open, from, park).await,
            Said::Lost(settled) => Ok(settled),
        }
    }

    /// As [`Job::lend`], and takes note of how long that takes where deliveries may share a transaction.
    pub(super) async fn lend_timed<R>(
        &self,
        open: &mut Open<'_, DB>,
        handler: &mut dyn Run<R>,
    ) -> Said<R> {
        if self.source.batch() == 1 {
            return self.lend(open, handler).await;
        }
        let began = Instant::now();
        let said = self.lend(open, handler).await;
        self.source.handler_time().took(began.elapsed());
        said
    }

    /// Lends the transaction to the handler, and finds out what it says. Every run of a handler comes by here.
    pub(super) async fn lend<R>(
        &self,
        open: &mut Open<'_, DB>,
        handler: &mut dyn Run<R>,
    ) -> Said<R> {
        let began = Instant::now();
        let said = self.lend_uncounted(open, handler).await;
        self.source
            .ran(self.envelope, said.verdict(), began.elapsed());
        said
    }

    async fn lend_uncounted<R>(
        &self,
        open: &mut Open<'_, DB>,
        handler: &mut dyn Run<R>,
    ) -> Said<R> {
        let delivery = Delivery::new(self.source.name_arc(), self.envelope.clone(), self.origin);
        let lent = open.lend();
        let mut request = self.request.clone();
        request.extensions_mut().insert(lent.clone());
        request.extensions_mut().insert(delivery.clone());
        if let Some(collect) = self.source.collects() {
            request.extensions_mut().insert(collect);
        }

        self.saw(|| Happened::Began(self.origin));
        let answered = timeout_at(self.deadline, caught(|| handler.run(request))).await;
        self.saw(|| seen::ended(answered.as_ref().map_err(drop)));
        if !lent.was_taken() {
            self.saw(|| Happened::Untaken);
        }
        let kept = !open.reclaim(&lent);
        let log = |what: &str| {
            if self.is_told_of_failure(&Judged::Fail) {
                return;
            }
            tracing::warn!(
                source = self.source.name(),
                event_id = self.key().event_id,
                "{what}"
            );
        };
        let response = match answered {
            Err(_) => {
                log("the handler took longer than the delivery's budget");
                let spent = Answer::unavailable("the delivery's time is spent");
                return Said::Lost(Settled {
                    blames_handler: true,
                    ..Settled::failed(spent)
                });
            }
            Ok(Err(())) => {
                log("the handler panicked");
                return Said::Lost(Settled::handler_failed("the handler panicked"));
            }
            Ok(Ok(_)) if kept => {
                log("the handler kept its transaction beyond its answer");
                self.saw(|| Happened::Lost(Loss::Kept));
                return Said::Lost(Settled::handler_failed(LOST));
            }
            Ok(Ok(Err(error))) => {
                tracing::warn!(
                    source = self.source.name(), event_id = self.key().event_id, %error,
                    "the inner service returned an error"
                );
                return Said::Failed(Settled::handler_failed("the handler failed"));
            }
            Ok(Ok(Ok(response))) => response,
        };
        if let Some(park) = response.extensions().get::<Park>() {
            return Said::NotYet(*park);
        }
        let judged = self.verdict(&delivery, &response);
        // In a group it is run once more, alone, and said then.
        let in_a_group = matches!(judged, Judged::Terminal) && open.members().is_some();
        let said_later = in_a_group || self.is_told_of_failure(&judged);
        if !matches!(judged, Judged::Commit) && !said_later {
            let kept = matches!(judged, Judged::Terminal) && self.source.keeps_rejected();
            tracing::warn!(
                source = self.source.name(),
                event_id = self.key().event_id,
                status = response.status().as_u16(),
                reason = kept.then_some("rejected"),
                "the handler did not apply an event{}",
                if kept {
                    ": it becomes a dead letter"
                } else {
                    ""
                }
            );
        }
        match judged {
            Judged::Commit => Said::Commit(response),
            Judged::Terminal => Said::Terminal(self.terminal(response)),
            Judged::Fail if response.status().is_success() => {
                Said::Failed(Settled::handler_failed("the handler rolled its work back"))
            }
            Judged::Fail => {
                let response = self.failure(response);
                Said::Failed(Settled::handler(End::Failed, Outcome::Failed, response))
            }
            Judged::Unrouted => {
                let outcome = if self.origin == Origin::Live {
                    Outcome::Rejected
                } else {
                    Outcome::Failed
                };
                Said::Failed(Settled::handler(End::Failed, outcome, response))
            }
        }
    }

    /// Whoever counts the attempts of a worker's says it, with when the next one is.
    fn is_told_of_failure(&self, judged: &Judged) -> bool {
        self.origin == Origin::Drained && matches!(judged, Judged::Fail | Judged::Unrouted)
    }

    /// A producer pauses the endpoint on a 410: it goes out only if the source allows it (§3).
    fn terminal<R>(&self, mut response: Response<R>) -> Response<R> {
        let passes = self.source.allows_gone() || broken::is(Variant::GoneGoesOut);
        if response.status() == StatusCode::GONE && !passes {
            *response.status_mut() = StatusCode::UNPROCESSABLE_ENTITY;
        }
        response
    }

    /// Nothing is kept of a failure, since its producer sends it again: a status after which this one would not goes out
    /// as a 503, after which it does (§3). What a worker ran has no producer to be told.
    fn failure<R>(&self, mut response: Response<R>) -> Response<R> {
        if self.origin == Origin::Live && self.source.is_lost_after(response.status()) {
            *response.status_mut() = StatusCode::SERVICE_UNAVAILABLE;
        }
        response
    }

    fn verdict<R>(&self, delivery: &Delivery, response: &Response<R>) -> Judged {
        let status = response.status();
        let stated = delivery
            .decided()
            .or_else(|| response.extensions().get::<Verdict>().copied())
            .filter(|_| !broken::is(Variant::StatusBeatsStated));
        match stated {
            Some(Verdict::Commit) => Judged::Commit,
            None if status.is_success() => Judged::Commit,
            Some(Verdict::RollBack) if status.is_success() => Judged::Fail,
            _ if is_retryable(status) && broken::is(Variant::FailureCommits) => Judged::Commit,
            _ if is_retryable(status) => Judged::Fail,
            _ if self.source.mounted_on_routes() && !delivery.was_routed() => Judged::Unrouted,
            _ => Judged::Terminal,
        }
    }

    /// RELEASE, COMMIT, and only then the answer.
    pub(super) async fn settle<R>(
        &self,
        mut open: Open<'_, DB>,
        from: Option<State>,
        mut response: Response<R>,
    ) -> Result<Settled<R>, Stop> {
        // A handler that left a transaction of its own open inside ours is found out by what RELEASE leaves.
        let refused = self.shared.probes.refuses_commit(self.key());
        if from.is_none() && !refused && open.is_shared(|| self.has_next()) {
            // For the same reason as `join`.
            return Box::pin(self.share(open, response)).await;
        }
        // Nobody waits for what a worker runs: there a handler that loses its connection is told from a commit that did.
        let apart = refused
            || self.origin != Origin::Live
            || self.source.answer_limit().is_some()
            || DB::depth(open.conn()) != 1
            || broken::is(Variant::IgnoreRelease);
        let released = within(self.deadline, open.release(apart)).await;
        match released {
            _ if broken::is(Variant::IgnoreRelease) => {}
            Ok(()) if DB::depth(open.conn()) == 1 => {}
            Err(Stop::Budget) => return Err(Stop::Budget),
            Err(Stop::Database(error)) if DB::fault(&error) == Fault::Transient => {
                return Err(Stop::Database(error));
            }
            other => return Ok(self.lost(&other)),
        }
        let kept = self.keep_answer(&mut open, &mut response).await?;
        self.shared.fail.reached(at::RELEASED).await?;
        if refused {
            let _ = open.roll_back(self.deadline).await;
            return Ok(Settled::failed(Answer::unavailable(
                "a test has refused this commit",
            )));
        }
        match open.send_commit().await {
            Ok(()) => open.clean().await,
            Err(_) if broken::is(Variant::AnswerWithoutCommit) => {}
            Err(Stop::Database(error))
                if broken::is(Variant::IgnoreCommitError)
                    && DB::fault(&error) == Fault::Refused => {}
            Err(Stop::Database(error)) if !apart && DB::is_lost(&error) => {
                return Ok(self.lost(&Err(Stop::Database(error))));
            }
            // A constraint that was deferred to the commit: the handler's own doing, and nothing was committed.
            Err(Stop::Database(error)) if DB::fault(&error) == Fault::Refused => {
                tracing::warn!(
                    source = self.source.name(), event_id = self.key().event_id, %error,
                    "the database refused the handler's commit"
                );
                return Ok(Settled::handler_failed(
                    "the database refused the commit of the handler's transaction",
                ));
            }
            Err(other) => {
                self.doubts(&other);
                return Err(other);
            }
        }
        self.saw(|| Happened::Committed);
        self.shared.fail.reached(at::COMMITTED).await?;
        if from.is_some() {
            self.applied_one();
        }
        if !response.status().is_success() {
            *response.status_mut() = StatusCode::OK;
        }
        Ok(Settled {
            kept,
            ..Settled::handler(End::Applied, Outcome::Applied, response)
        })
    }

    /// Ended, aborted or rolled back under the handler, which answered as if nothing had happened.
    fn lost<R>(&self, released: &Result<(), Stop>) -> Settled<R> {
        self.saw(|| seen::lost(released));
        tracing::warn!(
            source = self.source.name(),
            event_id = self.key().event_id,
            "the handler ended, lost or spoiled its transaction and answered with success"
        );
        Settled::handler_failed(LOST)
    }

    /// Stores the answer in the transaction that it goes out with. After RELEASE: only now it is known to be ours still.
    pub(super) async fn keep_answer<R>(
        &self,
        open: &mut Open<'_, DB>,
        response: &mut Response<R>,
    ) -> Result<Option<Arc<Kept>>, Stop> {
        let Some(limit) = self.source.answer_limit() else {
            return Ok(None);
        };
        let Some(Collected(body)) = response.extensions_mut().remove::<Collected>() else {
            return Ok(None);
        };
        let kept = Kept::of(response, &body, limit);
        let (conn, sql, at) = (open.conn(), &self.shared.sql, self.shared.clock.now());
        let stored = DB::insert_answer(conn, sql, self.key(), &kept, at);
        within(self.deadline, async { Ok(stored.await?) }).await?;
        Ok(Some(kept))
    }

    /// The handler's terminal verdict: nothing of its work, and a dead letter in the same transaction (§4.13).
    async fn reject<R>(
        &self,
        mut open: Open<'_, DB>,
        from: Option<State>,
        response: Response<R>,
    ) -> Result<Settled<R>, Stop> {
        let verdict = Refusal::of(self.source, &response);
        if let Some(lost) = self.undo(&mut open).await? {
            return Ok(lost);
        }
        let kept = self.source.keeps_rejected() && !broken::is(Variant::RejectedForgotten);
        if from.is_none() && !kept {
            open.roll_back(self.deadline).await?;
            return Ok(rejected(response));
        }
        let kept = within(self.deadline, self.keep_dead(open.conn(), from, &verdict)).await?;
        let Some(stored) = kept else {
            return self.decided_meanwhile(open, response).await;
        };
        within(self.deadline, self.skip_own_place(open.conn())).await?;
        open.commit(self.deadline).await?;
        if from.is_none() {
            self.stored_one(stored);
        }
        Ok(rejected(response))
    }

    /// Takes back all that was done since our savepoint. Something if the transaction is not what it was.
    pub(super) async fn undo<R>(
        &self,
        open: &mut Open<'_, DB>,
    ) -> Result<Option<Settled<R>>, Stop> {
        let rolled_back = within(self.deadline, async {
            point!(self.shared, "store.rollback_to");
            Ok(DB::rollback_to(open.conn()).await?)
        })
        .await;
        self.shared.fail.reached(at::UNDONE).await?;
        match rolled_back {
            Ok(()) if DB::depth(open.conn()) == 1 => Ok(None),
            Err(Stop::Budget) => Err(Stop::Budget),
            other => {
                self.saw(|| seen::lost(&other));
                Ok(Some(Settled::handler_failed(LOST)))
            }
        }
    }

    /// Another process took the event up when the lock on it was given back: its decision stands, and the handler is
    /// not run again.
    pub(super) async fn decided_meanwhile<R>(
        &self,
        mut open: Open<'_, DB>,
        response: Response<R>,
    ) -> Result<Settled<R>, Stop> {
        let found = DB::lock_event(open.conn(), &self.shared.sql, self.key());
        let found = within(self.deadline, async { Ok(found.await?) }).await?;
        let kept = self.first_answer(&mut open).await?;
        open.roll_back(self.deadline).await?;
        Ok(match found.map(|known| known.state) {
            Some(State::Applied) => Settled::answer(End::Applied, Answer::again(kept)),
            Some(State::Dead) => rejected(response),
            Some(State::Superseded) => Settled::answer(End::Superseded, Answer::superseded()),
            _ => Settled::failed(Answer::unavailable(
                "another delivery of this event is at work",
            )),
        })
    }

    /// The bytes that are stored because of it, or nothing if the row is not as it was when the handler began.
    pub(super) async fn keep_dead(
        &self,
        conn: &mut DB::Connection,
        from: Option<State>,
        verdict: &Refusal,
    ) -> Result<Option<i64>, Stop> {
        let sql = &self.shared.sql;
        let reason = Some(Reason::Rejected);
        let Some(from) = from else {
            if !self.insert_again(conn, State::Dead).await? {
                return Ok(None);
            }
            let request = self.kept(conn).await?;
            DB::insert_pending(conn, sql, &self.pending(reason, Some(verdict), &request)).await?;
            return Ok(Some(request.bytes()));
        };
        let at = self.shared.clock.now();
        // Of a dead letter too: where the rollback gave its lock back, an operator may have replayed it meanwhile.
        if !DB::swap_state(conn, sql, self.key(), from, State::Dead, at).await? {
            return Ok(None);
        }
        let attempt = Attempt {
            reason,
            not_before: at,
            status: Some(i64::from(verdict.status.as_u16())),
            error: Some(&verdict.words),
            lease: self.lease,
        };
        let recorded = DB::record_attempt(conn, sql, self.key(), &attempt).await?;
        Ok(recorded.then_some(0))
    }
}

/// For a handler that answered although its transaction is not there any more.
pub(super) const LOST: &str = "the handler lost, ended or kept its transaction";

pub(super) fn rejected<R>(response: Response<R>) -> Settled<R> {
    Settled::handler(
        End::Rejected(response.status()),
        Outcome::Rejected,
        response,
    )
}

/// What came of lending the transaction.
pub(super) enum Said<R> {
    Commit(Response<R>),
    /// Its verdict on this payload.
    Terminal(Response<R>),
    /// To be rolled back, and kept until then.
    NotYet(Park),
    /// To be rolled back, and tried again.
    Failed(Settled<R>),
    /// The transaction is lost, or in an unknown state.
    Lost(Settled<R>),
}

impl<R> Said<R> {
    fn verdict(&self) -> Verdicts {
        match self {
            Self::Commit(_) => Verdicts::Commit,
            Self::Terminal(_) => Verdicts::Reject,
            Self::NotYet(_) => Verdicts::NotYet,
            Self::Failed(_) | Self::Lost(_) => Verdicts::Fail,
        }
    }
}

enum Judged {
    Commit,
    Fail,
    Terminal,
    /// No route of the mounted router was reached: no verdict on the payload at all.
    Unrouted,
}

/// Runs a future and turns its panic into an error. What it held is dropped here, in the unwinding.
async fn caught<T>(start: impl FnOnce() -> BoxFuture<T>) -> Result<T, ()> {
    let started = catch_unwind(AssertUnwindSafe(start));
    let mut future = started.map_err(|_| ())?;
    poll_fn(move |context| {
        let polled = catch_unwind(AssertUnwindSafe(|| future.as_mut().poll(context)));
        match polled {
            Ok(Poll::Pending) => Poll::Pending,
            Ok(Poll::Ready(output)) => Poll::Ready(Ok(output)),
            Err(_) => Poll::Ready(Err(())),
        }
    })
    .await
}
