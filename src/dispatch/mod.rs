//! One transaction: begin, enter, lend, call, settle. The only place that commits.

mod adopt;
mod aside;
mod batch;
mod bury;
mod cursor;
mod defer;
mod enter;
mod erase;
mod group;
mod group_commit;
mod member;
mod newer;
mod open;
mod own;
mod places;
mod put_off;
mod release;
mod retry;
mod room;
mod seen;
mod settle;
mod try_now;
mod verbs;
mod words;

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use bytes::Bytes;
use http::{Request, Response, StatusCode};
use tokio::time::{Instant, timeout_at};

use crate::answer::{self, Answer};
use crate::broken::{self, Variant};
use crate::envelope::Envelope;
use crate::event::{Origin, Outcome};
use crate::fail::{at, point};
use crate::kept::Kept;
use crate::order::hints;
use crate::order::worker::{self, Work};
use crate::probe::Happened;
use crate::queue::{End, Landed};
use crate::request::Stored;
use crate::shared::Shared;
use crate::source::SourceState;
use crate::store::{
    AT_ONCE, Attempt, Audit, Backend, Fault, Fence, Key, Lease, NewEvent, NewPending, Place,
    Reason, State, StoredRequest, Stream,
};
pub(crate) use adopt::{Adopt, Adopted};
pub(crate) use batch::{Batch, Batched};
pub(crate) use bury::Bury;
pub(crate) use erase::{Erase, Forget, SetGone, ShowBody};
pub(crate) use group::Group;
pub(crate) use group_commit::{Baton, GroupCommit, Turn};
use open::Open;
pub(crate) use own::{Ended, Own, Rehearsed, own};
pub(crate) use places::{Places, Waits};
pub(crate) use release::Release;
use retry::Tries;
pub(crate) use try_now::TryNow;
pub(crate) use verbs::{Change, Discard, Heal, Never, Replay, Reset};
use words::Refusal;
pub(crate) use words::words;

/// Whatever an inner service reports as its error.
pub(crate) type BoxError = Box<dyn std::error::Error + Send + Sync>;
pub(crate) type BoxFuture<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// The inner service, ready to be called, more than once if the database asks for a fresh transaction.
pub(crate) trait Run<R>: Send {
    fn run(&mut self, request: Request<Bytes>) -> BoxFuture<Result<Response<R>, BoxError>>;
}

/// One event on its way through one transaction.
pub(crate) struct Job<'a, DB: Backend> {
    pub(crate) shared: &'a Shared<DB>,
    pub(crate) source: &'a SourceState,
    pub(crate) envelope: &'a Envelope,
    pub(crate) origin: Origin,
    pub(crate) request: &'a Request<Bytes>,
    pub(crate) stored: Stored<'a>,
    /// Where the event id is not signed.
    pub(crate) fence: Option<Fence>,
    /// Of a worker's attempt; none with the producer waiting.
    pub(crate) lease: Lease,
    /// An operator wants it applied whatever its cursor says.
    pub(crate) out_of_order: bool,
    /// The generation of its stream, as it was known when the transaction began: the same from the insert to the
    /// commit, whatever others learn meanwhile.
    pub(crate) generation: AtomicI64,
    pub(crate) deadline: Instant,
    /// Of a delivery that may share a transaction with others.
    pub(crate) places: Option<&'a Places<DB>>,
}

/// How it ended: for those who waited behind it, and for the producer.
pub(crate) struct Settled<R> {
    pub(crate) end: End,
    pub(crate) reply: Reply<R>,
    /// A failure that the handler answers for: an attempt that counts. Others say nothing about the event.
    pub(crate) blames_handler: bool,
    /// The first answer, as it was stored.
    pub(crate) kept: Option<Arc<Kept>>,
}

pub(crate) enum Reply<R> {
    /// The handler's own response. With `Failed` and `Rejected` nothing of it was committed.
    Handler(Outcome, Response<R>),
    Inbox(Answer),
}

impl<R> Settled<R> {
    pub(crate) fn answer(end: End, answer: Answer) -> Self {
        Self {
            end,
            reply: Reply::Inbox(answer),
            blames_handler: false,
            kept: None,
        }
    }

    pub(crate) fn failed(answer: Answer) -> Self {
        Self::answer(End::Failed, answer)
    }

    /// For those that waited behind it.
    pub(crate) fn landed(&self) -> Landed {
        match (self.end, &self.reply) {
            // A worker's, whose event somebody else has dealt with meanwhile.
            (End::Failed, Reply::Inbox(answer)) if answer.outcome == Outcome::Duplicate => {
                Landed::Untried
            }
            (End::Failed, Reply::Inbox(answer))
                if answer.status == StatusCode::TOO_MANY_REQUESTS =>
            {
                Landed::Busy
            }
            _ => self.end.into(),
        }
    }

    /// Its own commit has succeeded just now: no duplicate that was found applied, which whoever applied it has seen (§2.4).
    pub(crate) fn is_own_commit(&self) -> bool {
        self.end == End::Applied && matches!(self.reply, Reply::Handler(..))
    }

    fn handler_failed(detail: &'static str) -> Self {
        let answer = Answer::handler_failed(detail);
        Self {
            blames_handler: true,
            ..Self::failed(answer)
        }
    }

    fn handler(end: End, outcome: Outcome, response: Response<R>) -> Self {
        let blames_handler = end == End::Failed;
        Self {
            end,
            reply: Reply::Handler(outcome, response),
            blames_handler,
            kept: None,
        }
    }
}

/// Why a transaction did not get to its end.
pub(crate) enum Stop {
    Budget,
    /// Worth a fresh transaction.
    Again,
    Answer(Answer),
    Database(sqlx::Error),
}

impl From<sqlx::Error> for Stop {
    fn from(error: sqlx::Error) -> Self {
        Self::Database(error)
    }
}

/// What the event's row and cursor said.
enum Entered {
    /// Ours now: the handler's turn. `from`: what its row said before; nothing if it is new.
    Run {
        from: Option<State>,
    },
    Duplicate {
        other_content: bool,
    },
    Park {
        waiting_for: i64,
    },
    /// What it carries was signed under another id before.
    Fence {
        from: Option<State>,
    },
    /// Held by the fence already.
    Fenced,
    /// To be stored for a worker.
    Store,
    /// A dead letter that is stored for a worker now.
    Requeue,
    /// Stored for a worker already.
    Stored,
    /// A later version was applied before it.
    Supersede {
        from: Option<State>,
    },
    /// That was found out already.
    Superseded,
    /// Parked already, and it stays so.
    Parked {
        waiting_for: i64,
    },
    /// Its place is never waited for, and it is a dead letter already.
    SetAside,
    /// The same, and it is to become one. `from`: what its row said before; nothing if it is new.
    Aside {
        reason: Reason,
        from: Option<State>,
    },
    /// An operator discarded it.
    Discarded,
    PlaceTaken,
    /// Nothing for a worker to do any more.
    Gone,
}

impl<DB: Backend> Job<'_, DB> {
    fn key(&self) -> Key<'_> {
        Key {
            source: self.source.name(),
            event_id: self.envelope.event_id.as_str(),
        }
    }

    fn place(&self) -> Option<Place<'_>> {
        let correlation_id = self.envelope.correlation_id.as_ref()?.as_str();
        let sequence = self.envelope.sequence?.get();
        Some(Place {
            stream: Stream {
                source: self.source.name(),
                correlation_id,
            },
            generation: self.generation.load(Ordering::Relaxed),
            sequence,
        })
    }

    fn new_event(&self) -> NewEvent<'_> {
        NewEvent {
            key: self.key(),
            fingerprint: &self.envelope.fingerprint,
            event_type: self.envelope.event_type.as_ref().map(|kind| kind.as_str()),
            correlation_id: self.envelope.correlation_id.as_ref().map(|id| id.as_str()),
            generation: self.place().map_or(0, |place| place.generation),
            sequence: self.place().map(|place| place.sequence),
            version: self.envelope.version,
            at: self.shared.clock.now(),
        }
    }

    /// Runs the event through a transaction, and through a fresh one when the database asks for it.
    pub(crate) async fn run<R>(&self, handler: &mut dyn Run<R>) -> Settled<R> {
        self.run_in(None, handler).await
    }

    /// As [`Job::run`], for an event that has waited for the one writer's turn already: its first transaction has it.
    pub(crate) async fn run_in<R>(
        &self,
        mut turn: Option<Turn<DB>>,
        handler: &mut dyn Run<R>,
    ) -> Settled<R> {
        let mut tries = Tries::new(handler);
        loop {
            match self.once(turn.take(), &mut tries).await {
                Ok(settled) => {
                    self.saw(|| settled.seen());
                    return settled;
                }
                Err(stop) => {
                    if let Some(answer) = self.stopped(stop) {
                        self.saw(|| Happened::Settled(End::Failed, answer.outcome));
                        return Settled::failed(answer);
                    }
                }
            }
            if !tries.again(self.deadline).await {
                return Settled::failed(contended());
            }
            if let Some(places) = self.places
                && let Err(answer) = places.renew(self.deadline).await
            {
                return Settled::failed(answer);
            }
        }
    }

    /// What a transaction that did not get to its end means: nothing if a fresh one is worth its while.
    fn stopped(&self, stop: Stop) -> Option<Answer> {
        match stop {
            Stop::Answer(answer) => Some(answer),
            Stop::Budget => Some(Answer::unavailable("the delivery's time is spent")),
            Stop::Again => None,
            Stop::Database(error) => {
                let fault = DB::fault(&error);
                tracing::warn!(
                    source = self.source.name(), event_id = self.key().event_id, %error, ?fault,
                    "the database failed a delivery"
                );
                (fault != Fault::Transient)
                    .then(|| Answer::unavailable("the database is not available"))
            }
        }
    }

    async fn once<R>(
        &self,
        turn: Option<Turn<DB>>,
        handler: &mut dyn Run<R>,
    ) -> Result<Settled<R>, Stop> {
        self.learn_generation();
        let (permit, shares) = match turn {
            // Apart, so that deliveries that share nothing are no larger for it.
            Some(Turn::Joined(baton)) => return Box::pin(self.join(baton, handler)).await,
            Some(Turn::Own { permit, shares }) => (permit, shares),
            None => (Open::turn(self.shared, self.deadline).await?, false),
        };
        let first = self.begins_with();
        let open = Open::begin_in(self.shared, permit, self.deadline, first.as_ref()).await?;
        let mut open = open.sharing(shares);
        self.shared.fail.reached(at::BEGUN).await?;
        let entered = within(self.deadline, self.enter(&mut open)).await?;
        self.saw(|| entered.seen());
        self.shared.fail.reached(at::ENTERED).await?;
        match entered {
            Entered::Run { from } => {
                if broken::is(Variant::MarkApart) {
                    open.commit(self.deadline).await?;
                    open = Open::begin(self.shared, self.deadline).await?;
                }
                self.call(open, from, handler).await
            }
            Entered::Park { waiting_for } => self.park(open, parked(waiting_for)).await,
            Entered::Store => self.park(open, defer::stored()).await,
            Entered::Requeue => {
                open.commit(self.deadline).await?;
                Ok(defer::stored())
            }
            Entered::Stored => {
                open.roll_back(self.deadline).await?;
                Ok(defer::stored())
            }
            Entered::Fence { from } => self.fence(open, from).await,
            Entered::Fenced => {
                open.roll_back(self.deadline).await?;
                Ok(Settled::answer(End::Fenced, Answer::fenced()))
            }
            Entered::Supersede { from } => self.supersede(open, from).await,
            Entered::Superseded => {
                open.roll_back(self.deadline).await?;
                Ok(Settled::answer(End::Superseded, Answer::superseded()))
            }
            Entered::Parked { waiting_for } => {
                open.roll_back(self.deadline).await?;
                Ok(parked(waiting_for))
            }
            Entered::Duplicate { other_content } => {
                if other_content {
                    return self
                        .refuse(open, "other_content", Answer::other_content())
                        .await;
                }
                let kept = self.first_answer(&mut open).await?;
                open.roll_back(self.deadline).await?;
                Ok(Settled {
                    kept: kept.clone(),
                    ..Settled::answer(End::Applied, Answer::again(kept))
                })
            }
            Entered::PlaceTaken => {
                self.refuse(open, "place_taken", Answer::place_taken())
                    .await
            }
            Entered::SetAside => {
                open.roll_back(self.deadline).await?;
                Ok(Settled::answer(End::SetAside, Answer::set_aside()))
            }
            Entered::Aside { reason, from } => self.set_aside(open, reason, from).await,
            Entered::Discarded => {
                open.roll_back(self.deadline).await?;
                Ok(Settled::answer(End::Discarded, Answer::discarded()))
            }
            Entered::Gone => {
                open.roll_back(self.deadline).await?;
                Ok(Settled::failed(Answer::duplicate()))
            }
        }
    }

    /// The first answer, where the source stores them.
    async fn first_answer(&self, open: &mut Open<'_, DB>) -> Result<Option<Arc<Kept>>, Stop> {
        if self.source.answer_limit().is_none() {
            return Ok(None);
        }
        let kept = DB::answer(open.conn(), &self.shared.sql, self.key());
        within(self.deadline, async { Ok(kept.await?) }).await
    }

    async fn park<R>(
        &self,
        mut open: Open<'_, DB>,
        settled: Settled<R>,
    ) -> Result<Settled<R>, Stop> {
        let room = within(self.deadline, self.room(open.conn(), self.stored.bytes())).await?;
        let reserved = match room {
            Ok(reserved) => reserved,
            Err(full) => {
                open.roll_back(self.deadline).await?;
                return Ok(Settled::failed(Answer::busy(full.of_what())));
            }
        };
        within(self.deadline, self.keep_parked(open.conn())).await?;
        open.commit(self.deadline).await?;
        self.stored_reserved(reserved);
        self.tell();
        Ok(settled)
    }

    /// Others learn of what was stored, and of a stream that may begin soon.
    fn tell(&self) {
        let source = self.source.name_arc();
        if let Some((id, _)) = self.envelope.order()
            && self
                .source
                .start(self.shared.clock.now())
                .settles_at
                .is_some()
        {
            let settling = Work::Settling {
                source: Arc::clone(&source),
                correlation_id: Arc::clone(id.as_arc()),
            };
            worker::wake(self.shared, settling);
        }
        hints::tell(self.shared, Work::on(source, self.envelope));
    }

    async fn keep_parked(&self, conn: &mut DB::Connection) -> Result<(), Stop> {
        let (sql, at) = (&self.shared.sql, self.shared.clock.now());
        let (from, to) = (self.begins_as(), State::Parked);
        if from != to && !DB::swap_state(conn, sql, self.key(), from, to, at).await? {
            return Err(Stop::Again);
        }
        if self.source.start(at).settles_at.is_some()
            && let Some(place) = self.place()
        {
            // Only of a stream that has not begun.
            DB::touch_settling(conn, sql, place.stream, at).await?;
        }
        let mut stored = std::borrow::Cow::Borrowed(&*self.stored);
        if broken::is(Variant::ParkWithoutBody) {
            stored.to_mut().body = Bytes::new();
        }
        DB::insert_pending(conn, sql, &self.pending(None, None, &stored)).await?;
        Ok(())
    }

    /// Keeps what the fence caught under its own id, with its request, for an operator to look at.
    async fn fence<R>(
        &self,
        mut open: Open<'_, DB>,
        from: Option<State>,
    ) -> Result<Settled<R>, Stop> {
        let stored = within(self.deadline, self.hold(open.conn(), from)).await?;
        open.commit(self.deadline).await?;
        self.held(stored);
        Ok(Settled::answer(End::Fenced, Answer::fenced()))
    }

    /// The bytes that were stored, if it was new.
    async fn hold(
        &self,
        conn: &mut DB::Connection,
        from: Option<State>,
    ) -> Result<Option<i64>, Stop> {
        let (sql, at) = (&self.shared.sql, self.shared.clock.now());
        let (before, held) = (self.begins_as(), State::Fenced);
        if !DB::swap_state(conn, sql, self.key(), before, held, at).await? {
            return Err(Stop::Again);
        }
        if from.is_none() {
            let request = self.kept(conn).await?;
            let pending = self.pending(Some(Reason::Fenced), None, &request);
            DB::insert_pending(conn, sql, &pending).await?;
            Ok(Some(request.bytes()))
        } else {
            let attempt = Attempt {
                reason: Some(Reason::Fenced),
                not_before: at,
                status: None,
                error: None,
                lease: self.lease,
            };
            DB::record_attempt(conn, sql, self.key(), &attempt).await?;
            Ok(None)
        }
    }

    /// What is said and counted once it is committed.
    fn held(&self, stored: Option<i64>) {
        if let Some(bytes) = stored {
            self.stored_one(bytes);
        }
        metrics::counter!("inbox_fenced_total", "source" => self.source.name_shared()).increment(1);
        tracing::warn!(
            source = self.source.name(),
            event_id = self.key().event_id,
            "fenced a delivery: what it carries was signed under another event id before"
        );
    }

    fn pending<'a>(
        &'a self,
        reason: Option<Reason>,
        verdict: Option<&'a Refusal>,
        request: &'a StoredRequest,
    ) -> NewPending<'a> {
        let event = self.new_event();
        NewPending {
            key: self.key(),
            correlation_id: event.correlation_id,
            generation: event.generation,
            sequence: event.sequence,
            reason,
            attempts: i64::from(verdict.is_some()),
            last_status: verdict.map(|verdict| i64::from(verdict.status.as_u16())),
            not_before: AT_ONCE,
            last_error: verdict.map(|verdict| &*verdict.words),
            at: event.at,
            request,
        }
    }

    /// A refusal of ours: nothing happened, and the audit table says so (§4.13).
    async fn refuse<R>(
        &self,
        mut open: Open<'_, DB>,
        action: &'static str,
        answer: Answer,
    ) -> Result<Settled<R>, Stop> {
        let (conn, sql) = (open.conn(), &self.shared.sql);
        let entry = Audit {
            at: self.shared.clock.now(),
            key: self.key(),
            correlation_id: self.envelope.correlation_id.as_ref().map(|id| id.as_str()),
            action,
            actor: "inbox",
            detail: "",
        };
        within(self.deadline, async {
            point!(sql, "store.rollback_to");
            DB::rollback_to(conn).await?;
            DB::audit(conn, sql, &entry).await?;
            Ok(())
        })
        .await?;
        open.commit(self.deadline).await?;
        tracing::warn!(
            source = self.source.name(),
            event_id = self.key().event_id,
            reason = action,
            "refused a delivery"
        );
        Ok(Settled::answer(End::Rejected(answer.status), answer))
    }
}

/// What a producer may try again (§3): the codes that could answer differently on a replay.
pub(crate) fn is_retryable(status: StatusCode) -> bool {
    status.is_server_error()
        || matches!(
            status,
            StatusCode::REQUEST_TIMEOUT | StatusCode::TOO_EARLY | StatusCode::TOO_MANY_REQUESTS
        )
}

fn contended() -> Answer {
    Answer::unavailable("the database is too contended")
}

/// What a parked event waits for, as its producer is told: the cursor, or the lowest sequence that there is where the
/// stream has not begun.
pub(crate) fn lowest_missing(next: i64) -> u64 {
    u64::try_from(next).unwrap_or(0)
}

fn parked<R>(waiting_for: i64) -> Settled<R> {
    let waiting_for = lowest_missing(waiting_for);
    Settled::answer(End::Parked { waiting_for }, Answer::parked(waiting_for))
}

async fn within<T>(
    deadline: Instant,
    work: impl Future<Output = Result<T, Stop>>,
) -> Result<T, Stop> {
    timeout_at(deadline, work)
        .await
        .unwrap_or(Err(Stop::Budget))
}

impl<R> Reply<R> {
    pub(crate) fn outcome(&self) -> Outcome {
        match self {
            Self::Handler(outcome, _) => *outcome,
            Self::Inbox(answer) => answer.outcome,
        }
    }

    pub(crate) fn status(&self) -> StatusCode {
        match self {
            Self::Handler(_, response) => response.status(),
            Self::Inbox(answer) => answer.status,
        }
    }
}

impl<R> Settled<R> {
    /// Counts an attempt that nobody waited for, if it says something about its event.
    pub(crate) fn count_aside<DB: Backend>(
        &self,
        shared: &Shared<DB>,
        source: &SourceState,
        envelope: &Envelope,
    ) {
        let outcome = self.reply.outcome();
        let counts = match outcome {
            Outcome::Applied | Outcome::Rejected => true,
            Outcome::Failed => self.blames_handler,
            _ => false,
        };
        if counts {
            let failed = self.reply.status().is_server_error();
            let at = failed.then(|| shared.clock.now());
            source.tried(envelope, outcome, at);
        }
    }
}

impl<R: From<Bytes>> Reply<R> {
    pub(crate) fn into_response(self) -> Response<R> {
        match self {
            Self::Inbox(answer) => answer.into_response(),
            Self::Handler(outcome, mut response) => {
                answer::mark(&mut response, outcome);
                response
            }
        }
    }
}

/// Until when a delivery waits for a place that others hold: half of what is left of its budget. After that the
/// producer had better come back later (429) than find too little time left for the work.
pub(crate) fn patience(deadline: Instant) -> Instant {
    let now = Instant::now();
    now + deadline.saturating_duration_since(now) / 2
}
