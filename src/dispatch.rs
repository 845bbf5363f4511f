//! One transaction: begin, enter, lend, call, settle. The only place that commits.

use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::task::Poll;

use bytes::Bytes;
use http::{Request, Response, StatusCode};
use sqlx::pool::PoolConnection;
use tokio::time::{Instant, timeout_at};

use crate::answer::{self, Answer};
use crate::envelope::Envelope;
use crate::event::{Delivery, Origin, Outcome, Verdict};
use crate::inbox::{Shared, SourceState};
use crate::queue::End;
use crate::store::{
    Attempt, Audit, Backend, Fault, Key, Known, NewEvent, NewPending, Place, Reason, State, StoredRequest,
    Stream, close_hard,
};
use crate::tx::Lent;

/// Whatever an inner service reports as its error.
pub(crate) type BoxError = Box<dyn std::error::Error + Send + Sync>;
pub(crate) type BoxFuture<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// The inner service, ready to be called, more than once if the database asks for a fresh transaction.
pub(crate) trait Run<R>: Send {
    fn run(&mut self, request: Request<Bytes>) -> BoxFuture<Result<Response<R>, BoxError>>;
}

/// The runs of one delivery's handler: the first, and at most two again (§4.7).
const RUNS: u32 = 3;
/// The looks at a row that somebody else keeps changing, within one transaction.
const LOOKS: u32 = 3;

/// One event on its way through one transaction.
pub(crate) struct Job<'a, DB: Backend> {
    pub(crate) shared: &'a Shared<DB>,
    pub(crate) source: &'a SourceState,
    pub(crate) envelope: &'a Envelope,
    pub(crate) origin: Origin,
    pub(crate) request: &'a Request<Bytes>,
    pub(crate) stored: &'a StoredRequest,
    pub(crate) deadline: Instant,
}

/// How it ended: for those who waited behind it, and for the producer.
pub(crate) struct Settled<R> {
    pub(crate) end: End,
    pub(crate) reply: Reply<R>,
}

pub(crate) enum Reply<R> {
    /// The handler's own response. With `Failed` and `Rejected` nothing of it was committed.
    Handler(Outcome, Response<R>),
    Inbox(Answer),
}

impl<R> Settled<R> {
    pub(crate) fn answer(end: End, answer: Answer) -> Self {
        Self { end, reply: Reply::Inbox(answer) }
    }

    pub(crate) fn failed(answer: Answer) -> Self {
        Self::answer(End::Failed, answer)
    }
}

/// Why a transaction did not get to its end.
enum Stop {
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
    Run { from: Option<State> },
    Duplicate { other_content: bool },
    Park { waiting_for: i64 },
    /// Parked already, and it stays so.
    Parked { waiting_for: i64 },
    SetAside,
    PlaceTaken,
    /// Nothing for a worker to do any more.
    Gone,
}

/// A transaction of ours. Dropped without a clean end, its connection is closed, never pooled (§4.4).
struct Open<'a, DB: Backend> {
    shared: &'a Shared<DB>,
    conn: Option<PoolConnection<DB>>,
    watch: Option<DB::Deadline>,
}

impl<DB: Backend> Open<'_, DB> {
    fn conn(&mut self) -> &mut DB::Connection {
        self.conn.as_deref_mut().expect("the connection is lent only while the handler runs")
    }

    /// A clean end: the pool may have it back.
    fn clean(mut self) {
        self.disarm();
        drop(self.conn.take());
    }

    fn disarm(&mut self) {
        if let Some(watch) = self.watch.take() {
            DB::disarm(watch);
        }
    }
}

impl<DB: Backend> Drop for Open<'_, DB> {
    fn drop(&mut self) {
        if let Some(conn) = self.conn.take() {
            close_hard(conn);
            self.shared.recent.clear();
        }
    }
}

impl<DB: Backend> Job<'_, DB> {
    fn key(&self) -> Key<'_> {
        Key { source: self.source.name(), event_id: self.envelope.event_id.as_str() }
    }

    fn place(&self) -> Option<Place<'_>> {
        let correlation_id = self.envelope.correlation_id.as_ref()?.as_str();
        let sequence = i64::try_from(self.envelope.sequence?.get()).ok()?;
        Some(Place { stream: Stream { source: self.source.name(), correlation_id }, sequence })
    }

    fn new_event(&self) -> NewEvent<'_> {
        NewEvent {
            key: self.key(),
            fingerprint: &self.envelope.fingerprint,
            event_type: self.envelope.event_type.as_ref().map(|kind| kind.as_str()),
            correlation_id: self.envelope.correlation_id.as_ref().map(|id| id.as_str()),
            sequence: self.place().map(|place| place.sequence),
            at: self.shared.clock.now(),
        }
    }

    /// Runs the event through a transaction, and through a fresh one when the database asks for it.
    pub(crate) async fn run<R>(&self, handler: &mut dyn Run<R>) -> Settled<R> {
        for _ in 0..RUNS {
            match self.once(handler).await {
                Ok(settled) => return settled,
                Err(Stop::Answer(answer)) => return Settled::failed(answer),
                Err(Stop::Budget) => {
                    return Settled::failed(Answer::unavailable("the delivery's time is spent"));
                }
                Err(Stop::Again) => {}
                Err(Stop::Database(error)) => {
                    let fault = DB::fault(&error);
                    tracing::warn!(
                        source = self.source.name(), event_id = self.key().event_id, %error, ?fault,
                        "the database failed a delivery"
                    );
                    if fault != Fault::Transient {
                        return Settled::failed(Answer::unavailable("the database is not available"));
                    }
                }
            }
        }
        Settled::failed(Answer::unavailable("the database is too contended"))
    }

    async fn once<R>(&self, handler: &mut dyn Run<R>) -> Result<Settled<R>, Stop> {
        let _writer = match &self.shared.writer {
            Some(writer) => {
                let turn = timeout_at(patience(self.deadline), writer.acquire()).await;
                Some(turn.map_err(|_| Stop::Answer(Answer::busy("deliveries that wait to write")))?)
            }
            None => None,
        };
        let mut open = self.begin().await?;
        let entered = within(self.deadline, self.enter(&mut open)).await?;
        match entered {
            Entered::Run { from } => self.call(open, from, handler).await,
            Entered::Park { waiting_for } => self.park(open, waiting_for).await,
            Entered::Parked { waiting_for } => {
                self.roll_back(open).await?;
                Ok(parked(waiting_for))
            }
            Entered::Duplicate { other_content } => {
                if other_content {
                    return self.refuse(open, "other_content", Answer::other_content()).await;
                }
                self.roll_back(open).await?;
                Ok(Settled::answer(End::Applied, Answer::duplicate()))
            }
            Entered::PlaceTaken => self.refuse(open, "place_taken", Answer::place_taken()).await,
            Entered::SetAside => {
                self.roll_back(open).await?;
                Ok(Settled::failed(Answer::set_aside()))
            }
            Entered::Gone => {
                self.roll_back(open).await?;
                Ok(Settled::failed(Answer::duplicate()))
            }
        }
    }

    async fn begin(&self) -> Result<Open<'_, DB>, Stop> {
        let conn = self.shared.connection(self.deadline).await.map_err(Stop::Answer)?;
        let mut open = Open { shared: self.shared, conn: Some(conn), watch: None };
        let conn = open.conn.as_mut().expect("just put there");
        let begun = timeout_at(self.deadline, DB::begin(conn, self.deadline)).await;
        open.watch = Some(begun.map_err(|_| Stop::Budget)??);
        Ok(open)
    }

    /// Event first, then cursor: everywhere in this order.
    async fn enter(&self, open: &mut Open<'_, DB>) -> Result<Entered, Stop> {
        let conn = open.conn();
        if self.origin == Origin::Drained {
            return match DB::known(conn, &self.shared.sql, self.key()).await? {
                Some(known) if known.is_waiting() => self.enter_known(conn, &known).await,
                _ => Ok(Entered::Gone),
            };
        }
        for _ in 0..LOOKS {
            if DB::insert_event(conn, &self.shared.sql, &self.new_event(), State::Applied).await? {
                return match self.place() {
                    None => Ok(Entered::Run { from: None }),
                    Some(place) => self.take_turn(conn, &place).await,
                };
            }
            if let Some(entered) = self.enter_taken(conn).await? {
                return Ok(entered);
            }
        }
        Err(Stop::Again)
    }

    /// The insert found the id taken, or the place. Nothing: look again.
    async fn enter_taken(&self, conn: &mut DB::Connection) -> Result<Option<Entered>, Stop> {
        let sql = &self.shared.sql;
        if let Some(known) = DB::known(conn, sql, self.key()).await? {
            return self.enter_known(conn, &known).await.map(Some);
        }
        let Some(place) = self.place() else { return Ok(None) };
        let Some(holder) = DB::slot_holder(conn, sql, &place).await? else { return Ok(None) };
        if holder.state != State::Dead {
            return Ok(Some(Entered::PlaceTaken));
        }
        // A dead letter yields its place to the new id; both are kept, and linked (§4.3).
        let key = Key { source: self.source.name(), event_id: &holder.event_id };
        DB::yield_slot(conn, sql, key, self.key().event_id).await?;
        Ok(None)
    }

    /// The event has a row.
    async fn enter_known(&self, conn: &mut DB::Connection, known: &Known) -> Result<Entered, Stop> {
        let sql = &self.shared.sql;
        if self.origin == Origin::Live && self.source.refuses_content(self.envelope, known) {
            return Ok(Entered::Duplicate { other_content: true });
        }
        if known.state == State::Applied {
            return Ok(Entered::Duplicate { other_content: false });
        }
        // What counts is the place that it was stored with.
        if let (Some(correlation_id), Some(sequence)) = (&known.correlation_id, known.sequence) {
            let stream = Stream { source: self.source.name(), correlation_id };
            let next = DB::lock_cursor(conn, sql, stream).await?.unwrap_or(self.source.first());
            if sequence > next {
                return Ok(Entered::Parked { waiting_for: next });
            }
            if sequence < next {
                return Ok(Entered::SetAside);
            }
            let place = Place { stream, sequence };
            if !self.advance(conn, &place).await? {
                return Err(Stop::Again);
            }
        }
        let at = self.shared.clock.now();
        if !DB::swap_state(conn, sql, self.key(), known.state, State::Applied, at).await? {
            return Err(Stop::Again);
        }
        DB::delete_pending(conn, sql, self.key()).await?;
        Ok(Entered::Run { from: Some(known.state) })
    }

    /// A new event's place against its cursor.
    async fn take_turn(&self, conn: &mut DB::Connection, place: &Place<'_>) -> Result<Entered, Stop> {
        for _ in 0..LOOKS {
            if self.advance(conn, place).await? {
                return Ok(Entered::Run { from: None });
            }
            match DB::lock_cursor(conn, &self.shared.sql, place.stream).await? {
                Some(next) if place.sequence > next => return Ok(Entered::Park { waiting_for: next }),
                // Its own row was purged: it was applied (§4.3).
                Some(next) if place.sequence < next => {
                    return Ok(Entered::Duplicate { other_content: false });
                }
                Some(_) => {}
                None => {
                    let (first, at) = (self.source.first(), self.shared.clock.now());
                    DB::open_cursor(conn, &self.shared.sql, place.stream, first, at).await?;
                }
            }
        }
        Err(Stop::Again)
    }

    async fn advance(&self, conn: &mut DB::Connection, place: &Place<'_>) -> Result<bool, Stop> {
        let at = self.shared.clock.now();
        Ok(DB::advance_cursor(conn, &self.shared.sql, place, at).await?)
    }

    async fn park<R>(&self, mut open: Open<'_, DB>, waiting_for: i64) -> Result<Settled<R>, Stop> {
        if !self.source.may_park(self.stored.bytes()) {
            self.roll_back(open).await?;
            return Ok(Settled::failed(Answer::busy("parked events of this source")));
        }
        let (conn, sql, at) = (open.conn(), &self.shared.sql, self.shared.clock.now());
        within(self.deadline, async {
            if !DB::swap_state(conn, sql, self.key(), State::Applied, State::Parked, at).await? {
                return Err(Stop::Again);
            }
            DB::insert_pending(conn, sql, &self.pending(None, None, self.stored)).await?;
            Ok(())
        })
        .await?;
        self.commit(open).await?;
        self.source.parked_one(self.stored.bytes());
        Ok(parked(waiting_for))
    }

    fn pending<'a>(
        &'a self,
        reason: Option<Reason>,
        status: Option<StatusCode>,
        request: &'a StoredRequest,
    ) -> NewPending<'a> {
        let event = self.new_event();
        NewPending {
            key: self.key(),
            correlation_id: event.correlation_id,
            sequence: event.sequence,
            reason,
            attempts: i64::from(status.is_some()),
            last_status: status.map(|status| i64::from(status.as_u16())),
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
            action,
            actor: "inbox",
            detail: "",
        };
        within(self.deadline, async {
            DB::rollback_to(conn).await?;
            DB::audit(conn, sql, &entry).await?;
            Ok(())
        })
        .await?;
        self.commit(open).await?;
        tracing::warn!(
            source = self.source.name(), event_id = self.key().event_id, reason = action, "refused a delivery"
        );
        Ok(Settled::answer(End::Rejected(answer.status), answer))
    }

    /// Lends the transaction to the handler and settles by what it says.
    async fn call<R>(
        &self,
        mut open: Open<'_, DB>,
        from: Option<State>,
        handler: &mut dyn Run<R>,
    ) -> Result<Settled<R>, Stop> {
        let delivery =
            Delivery::new(self.source.name_arc(), self.envelope.clone(), self.origin);
        let conn = open.conn.take().expect("the transaction is ours until it is lent");
        let lent = Lent::new(conn);
        let mut request = self.request.clone();
        request.extensions_mut().insert(lent.clone());
        request.extensions_mut().insert(delivery.clone());

        let answered = timeout_at(self.deadline, caught(|| handler.run(request))).await;
        open.conn = lent.reclaim();
        let kept = open.conn.is_none();
        let log = |what: &str| {
            tracing::warn!(source = self.source.name(), event_id = self.key().event_id, "{what}");
        };
        let response = match answered {
            Err(_) => {
                log("the handler took longer than the delivery's budget");
                return Err(Stop::Budget);
            }
            Ok(Err(())) => {
                log("the handler panicked");
                return Ok(Settled::failed(Answer::handler_failed("the handler panicked")));
            }
            Ok(Ok(_)) if kept => {
                log("the handler kept its transaction beyond its answer");
                self.shared.recent.clear();
                return Ok(Settled::failed(Answer::handler_failed(LOST)));
            }
            Ok(Ok(Err(error))) => {
                tracing::warn!(
                    source = self.source.name(), event_id = self.key().event_id, %error,
                    "the inner service returned an error"
                );
                self.end_failed(open).await;
                return Ok(Settled::failed(Answer::handler_failed("the handler failed")));
            }
            Ok(Ok(Ok(response))) => response,
        };
        match self.verdict(&delivery, &response) {
            Judged::Commit => self.settle(open, response).await,
            Judged::Terminal => self.reject(open, from, response).await,
            Judged::Fail => {
                self.end_failed(open).await;
                if response.status().is_success() {
                    let answer = Answer::handler_failed("the handler rolled its work back");
                    return Ok(Settled::failed(answer));
                }
                Ok(Settled { end: End::Failed, reply: Reply::Handler(Outcome::Failed, response) })
            }
            Judged::Unrouted => {
                self.end_failed(open).await;
                let outcome =
                    if self.origin == Origin::Live { Outcome::Rejected } else { Outcome::Failed };
                Ok(Settled { end: End::Failed, reply: Reply::Handler(outcome, response) })
            }
        }
    }

    fn verdict<R>(&self, delivery: &Delivery, response: &Response<R>) -> Judged {
        let status = response.status();
        let stated = delivery.decided().or_else(|| response.extensions().get::<Verdict>().copied());
        match stated {
            Some(Verdict::Commit) => Judged::Commit,
            None if status.is_success() => Judged::Commit,
            Some(Verdict::RollBack) if status.is_success() => Judged::Fail,
            _ if is_retryable(status) => Judged::Fail,
            _ if self.source.mounted_on_routes() && !delivery.was_routed() => Judged::Unrouted,
            _ => Judged::Terminal,
        }
    }

    /// RELEASE, COMMIT, and only then the answer.
    async fn settle<R>(
        &self,
        mut open: Open<'_, DB>,
        mut response: Response<R>,
    ) -> Result<Settled<R>, Stop> {
        let released = within(self.deadline, async { Ok(DB::release(open.conn()).await?) }).await;
        match released {
            Ok(()) if DB::depth(open.conn()) == 1 => {}
            Err(Stop::Budget) => return Err(Stop::Budget),
            Err(Stop::Database(error)) if DB::fault(&error) == Fault::Transient => {
                return Err(Stop::Database(error));
            }
            // Ended, aborted or rolled back under the handler, which answered as if nothing had happened.
            _ => {
                tracing::warn!(
                    source = self.source.name(), event_id = self.key().event_id,
                    "the handler ended, lost or spoiled its transaction and answered with success"
                );
                return Ok(Settled::failed(Answer::handler_failed(LOST)));
            }
        }
        match self.send_commit(&mut open).await {
            Ok(()) => open.clean(),
            // A constraint that was deferred to the commit: the handler's own doing, and nothing was committed.
            Err(Stop::Database(error)) if DB::fault(&error) == Fault::Refused => {
                tracing::warn!(
                    source = self.source.name(), event_id = self.key().event_id, %error,
                    "the database refused the handler's commit"
                );
                return Ok(Settled::failed(Answer::handler_failed("the commit was refused")));
            }
            Err(other) => return Err(other),
        }
        if !response.status().is_success() {
            *response.status_mut() = StatusCode::OK;
        }
        Ok(Settled { end: End::Applied, reply: Reply::Handler(Outcome::Applied, response) })
    }

    /// The handler's terminal verdict: nothing of its work, and a dead letter in the same transaction (§4.13).
    async fn reject<R>(
        &self,
        mut open: Open<'_, DB>,
        from: Option<State>,
        mut response: Response<R>,
    ) -> Result<Settled<R>, Stop> {
        if response.status() == StatusCode::GONE && !self.source.allows_gone() {
            *response.status_mut() = StatusCode::UNPROCESSABLE_ENTITY;
        }
        let status = response.status();
        let rejected = |response| {
            let reply = Reply::Handler(Outcome::Rejected, response);
            Ok(Settled { end: End::Rejected(status), reply })
        };
        if !self.source.keeps_rejected() && self.origin == Origin::Live {
            self.end_failed(open).await;
            return rejected(response);
        }
        let rolled_back = within(self.deadline, async { Ok(DB::rollback_to(open.conn()).await?) }).await;
        match rolled_back {
            Ok(()) if DB::depth(open.conn()) == 1 => {}
            Err(Stop::Budget) => return Err(Stop::Budget),
            _ => return Ok(Settled::failed(Answer::handler_failed(LOST))),
        }
        let kept = within(self.deadline, self.keep_dead(open.conn(), from, status)).await?;
        if !kept {
            // Somebody else decided meanwhile: the next look answers by what it finds.
            return Err(Stop::Again);
        }
        self.commit(open).await?;
        rejected(response)
    }

    /// False if the row is not as it was when the handler began.
    async fn keep_dead(
        &self,
        conn: &mut DB::Connection,
        from: Option<State>,
        status: StatusCode,
    ) -> Result<bool, Stop> {
        let sql = &self.shared.sql;
        let reason = Some(Reason::Rejected);
        let Some(from) = from else {
            if !DB::insert_event(conn, sql, &self.new_event(), State::Dead).await? {
                return Ok(false);
            }
            let mut request = self.stored.clone();
            if !self.source.may_park(request.bytes()) {
                // Over the bound a dead letter keeps id, headers and reason only (§5.8).
                request.body = Bytes::new();
            }
            DB::insert_pending(conn, sql, &self.pending(reason, Some(status), &request)).await?;
            return Ok(true);
        };
        let at = self.shared.clock.now();
        if from != State::Dead
            && !DB::swap_state(conn, sql, self.key(), from, State::Dead, at).await?
        {
            return Ok(false);
        }
        let attempt = Attempt {
            reason,
            not_before: at,
            status: Some(i64::from(status.as_u16())),
            error: None,
        };
        Ok(DB::record_attempt(conn, sql, self.key(), &attempt).await?)
    }

    /// RELEASE and COMMIT of what only the inbox wrote.
    async fn commit(&self, mut open: Open<'_, DB>) -> Result<(), Stop> {
        within(self.deadline, async { Ok(DB::release(open.conn()).await?) }).await?;
        self.send_commit(&mut open).await?;
        open.clean();
        Ok(())
    }

    /// Nothing is cancelled once COMMIT has been sent (§4.2): no deadline from here on. The answer has its own.
    async fn send_commit(&self, open: &mut Open<'_, DB>) -> Result<(), Stop> {
        open.disarm();
        DB::commit(open.conn()).await?;
        // A file that was put back while the transaction ran took the commit with it.
        if self.shared.incarnation_changed().await {
            return Err(Stop::Answer(Answer::unavailable("the database was replaced")));
        }
        Ok(())
    }

    async fn roll_back(&self, mut open: Open<'_, DB>) -> Result<(), Stop> {
        within(self.deadline, async { Ok(DB::rollback(open.conn()).await?) }).await?;
        open.clean();
        Ok(())
    }

    /// A rollback whose own failure changes nothing: the connection is then closed.
    async fn end_failed(&self, mut open: Open<'_, DB>) {
        if DB::depth(open.conn()) == 1 {
            let _ = self.roll_back(open).await;
        }
    }
}

/// For a handler that answered although its transaction is not there any more.
const LOST: &str = "the handler lost, ended or kept its transaction";

enum Judged {
    Commit,
    Fail,
    Terminal,
    /// No route of the mounted router was reached: no verdict on the payload at all.
    Unrouted,
}

/// What a producer may try again (§3): the codes that could answer differently on a replay.
pub(crate) fn is_retryable(status: StatusCode) -> bool {
    status.is_server_error()
        || matches!(
            status,
            StatusCode::REQUEST_TIMEOUT | StatusCode::TOO_EARLY | StatusCode::TOO_MANY_REQUESTS
        )
}

fn parked<R>(waiting_for: i64) -> Settled<R> {
    let waiting_for = waiting_for.unsigned_abs();
    Settled::answer(End::Parked { waiting_for }, Answer::parked(waiting_for))
}

async fn within<T>(deadline: Instant, work: impl Future<Output = Result<T, Stop>>) -> Result<T, Stop> {
    timeout_at(deadline, work).await.unwrap_or(Err(Stop::Budget))
}

/// Runs a future and turns its panic into an error. What it held is dropped here, in the unwinding.
async fn caught<T>(start: impl FnOnce() -> BoxFuture<T>) -> Result<T, ()> {
    let started = std::panic::catch_unwind(AssertUnwindSafe(start));
    let mut future = started.map_err(|_| ())?;
    std::future::poll_fn(move |context| {
        let polled =
            std::panic::catch_unwind(AssertUnwindSafe(|| future.as_mut().poll(context)));
        match polled {
            Ok(Poll::Pending) => Poll::Pending,
            Ok(Poll::Ready(output)) => Poll::Ready(Ok(output)),
            Err(_) => Poll::Ready(Err(())),
        }
    })
    .await
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
