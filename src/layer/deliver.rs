//! One delivery, in the order of §2: the door and the signature first, then what is known, then the queue, then the
//! transaction.

use std::sync::Arc;
use std::sync::atomic::AtomicI64;

use bytes::Bytes;
use http::header::CONTENT_LENGTH;
use http::{Request, Response};
use http_body::Body;
use tokio::sync::watch;
use tokio::time::{Instant, timeout_at};

use super::group;
use crate::answer::Answer;
use crate::broken::{self, Variant};
use crate::burst::{self, Control};
use crate::dispatch::{Job, Reply, Run, Settled, lowest_missing, patience};
use crate::door::Passed;
use crate::envelope::{CorrelationId, Envelope, Fingerprint, Reading};
use crate::event::{Origin, Outcome};
use crate::fail::at;
use crate::order::worker::{self, Work};
use crate::probe::{self, Happened};
use crate::queue::{End, Joined, Landing};
use crate::recent::Seen;
use crate::request;
use crate::shared::Shared;
use crate::source::SourceState;
use crate::store::{Audit, Backend, Fence, Key, Known, Lease, Reason, State};
use crate::verify::RequestView;

/// A delivery whose signature has been verified and whose envelope has been read.
pub(crate) struct Arrival {
    pub(crate) envelope: Envelope,
    /// As the handler will see it.
    pub(crate) request: Request<Bytes>,
    pub(crate) fence: Option<Fence>,
}

/// What one request turned out to be.
#[derive(Default)]
pub(crate) struct Admitted {
    /// One event, unless the source splits its requests; none if it is all about the producer's deliveries.
    pub(crate) arrivals: Vec<Arrival>,
    pub(crate) controls: Vec<Control>,
}

/// Steps 1 to 3. No database statement is caused here.
pub(crate) async fn admit<DB: Backend, B: Body>(
    shared: &Shared<DB>,
    source: &SourceState,
    request: Request<B>,
    deadline: Instant,
) -> Result<Admitted, Answer> {
    let (mut parts, body) = request.into_parts();
    let refused = |reason: &dyn std::fmt::Display| {
        probe::refused(&parts.extensions, reason);
        tracing::warn!(source = source.name(), %reason, "refused a delivery");
    };
    if !source.allows(&parts.method) {
        refused(&format_args!("method {}", parts.method));
        return Err(Answer::method());
    }
    if broken::is(Variant::LookFirst)
        && let Ok(mut conn) = shared.acquire_statements().await
    {
        let looked = DB::ping(&mut conn, &shared.sql).await;
        let _ = conn.done(looked).await;
    }
    let now = shared.clock.now();
    let door = source.door();
    let passed = door.pass(&parts, body, now, deadline, &shared.bodies);
    let Passed {
        head,
        verified,
        body,
        reserved,
    } = passed.await?;
    // From here on the delivery counts as verified, and other limits bound it.
    drop(reserved);
    if source.is_gone() {
        refused(&"the source is deregistered");
        return Err(Answer::gone());
    }
    let view =
        RequestView::new(&parts.method, &parts.uri, &parts.headers, &body).with_url(door.url);
    let bodies = match source.elements() {
        None => vec![body.clone()],
        Some(elements) => elements.split(&body).map_err(|error| {
            refused(&error);
            Answer::bad_request(error.to_string())
        })?,
    };
    let mut events = Vec::with_capacity(bodies.len());
    let mut controls = Vec::new();
    for element in bodies {
        let reading = source.mapping().read(&verified, &parts.headers, &element);
        let envelope = match reading.map_err(|error| {
            refused(&error);
            Answer::bad_request(error.to_string())
        })? {
            Reading::Event(envelope) => envelope,
            Reading::Control(envelope) => {
                controls.extend(Control::of(source, &envelope, &element));
                if !source.hands_on_control() {
                    continue;
                }
                envelope
            }
            Reading::Handshake(reply) => {
                return Err(Answer::accepted(reply.content_type, reply.body));
            }
        };
        let fence = source
            .fence(&head, &view, envelope.event_type.as_deref(), now)
            .map_err(|refusal| {
                refused(&refusal);
                Answer::unauthorized()
            })?;
        let extensions = &parts.extensions;
        shared
            .probes
            .admitted(extensions, source, &envelope, &verified);
        events.push((envelope, fence, element));
    }
    let Some(last) = events.pop() else {
        return Ok(Admitted {
            controls,
            ..Admitted::default()
        });
    };
    // Only now: the mapping and the fence read what was sent.
    let signatures = source.scheme().signature_headers(&parts.headers);
    if !broken::is(Variant::CredentialsStored) {
        request::strip(&mut parts.headers, &signatures, source.keep_headers());
    }
    if source.elements().is_some() {
        // The length that was announced is the whole array's.
        parts.headers.remove(CONTENT_LENGTH);
    }
    let arrival = |(envelope, fence, element), parts| Arrival {
        envelope,
        request: Request::from_parts(parts, element),
        fence,
    };
    let mut arrivals: Vec<_> = events
        .into_iter()
        .map(|event| arrival(event, parts.clone()))
        .collect();
    // The last one, which is the only one as a rule, takes the head itself.
    arrivals.push(arrival(last, parts));
    Ok(Admitted { arrivals, controls })
}

/// Steps 4 to 10.
pub(crate) async fn deliver<DB, R>(
    shared: &Arc<Shared<DB>>,
    source: &Arc<SourceState>,
    admitted: Admitted,
    mut handler: impl Run<R>,
    deadline: Instant,
) -> Response<R>
where
    DB: Backend,
    R: From<Bytes>,
{
    let Admitted { arrivals, controls } = admitted;
    // Before anything that the burst consists of; one that could not be noted comes again.
    if let Err(answer) = burst::note(shared, source, &controls, deadline).await {
        count(source, None, answer.outcome);
        return answer.into_response();
    }
    let reply = match arrivals.as_slice() {
        [] => Reply::Inbox(Answer::accepted("", Bytes::new())),
        [arrival] if source.elements().is_none() => {
            let delivery = Live {
                shared,
                source,
                envelope: &arrival.envelope,
                request: &arrival.request,
                fence: arrival.fence,
                deadline,
            };
            delivery.answer(&mut handler).await
        }
        arrivals => group::answer(shared, source, arrivals, &mut handler, deadline).await,
    };
    let outcome = reply.outcome();
    if arrivals.is_empty() {
        count(source, None, outcome);
    }
    for Arrival { envelope, .. } in &arrivals {
        count(source, Some(envelope), outcome);
        let mapping = source.mapping();
        if mapping.replay_types().is_some() && !mapping.is_control(envelope.event_type.as_deref()) {
            source.arrivals().count(envelope, outcome);
        }
    }
    reply.into_response()
}

/// A verified delivery with its producer waiting.
struct Live<'a, DB: Backend> {
    shared: &'a Arc<Shared<DB>>,
    source: &'a Arc<SourceState>,
    envelope: &'a Envelope,
    request: &'a Request<Bytes>,
    fence: Option<Fence>,
    deadline: Instant,
}

impl<DB: Backend> Live<'_, DB> {
    async fn answer<R>(&self, handler: &mut dyn Run<R>) -> Reply<R> {
        let (shared, name) = (self.shared, self.source.name_arc());
        let event_id = self.envelope.event_id.as_arc();
        // What is remembered may be of a database that is not there any more.
        shared.generation();
        if let Some(seen) = shared.recent.find(&name, event_id) {
            self.saw(|| Happened::Remembered);
            return Reply::Inbox(self.known_applied(seen).await);
        }
        let leader = match shared.flights.join(&name, event_id, self.envelope.print()) {
            Joined::Follower(flight) => {
                self.saw(|| Happened::Followed);
                return Reply::Inbox(self.follow(flight).await);
            }
            Joined::Leader(leader) => leader,
        };
        let epoch = shared.recent.epoch();
        let settled = self.lead(handler).await;
        if shared.fail.reached(at::SETTLED).await.is_err() {
            return Reply::Inbox(Answer::unavailable("the answer was lost"));
        }
        if settled.end == End::Applied || broken::is(Variant::MemoryOfFailures) {
            shared.remember(epoch, self.source, self.envelope, settled.kept.as_ref());
        }
        self.wake(settled.end);
        leader.land(settled.end);
        settled.reply
    }

    /// Waits for the delivery of the same event that went ahead (§4.8).
    async fn follow(&self, mut flight: watch::Receiver<Option<Landing>>) -> Answer {
        let Some(_place) = self.shared.waiting.enter() else {
            return Answer::busy("deliveries that wait");
        };
        if broken::is(Variant::FollowersDuplicate) {
            return Answer::duplicate();
        }
        let landing = match timeout_at(self.deadline, flight.wait_for(Option::is_some)).await {
            Ok(Ok(landing)) => *landing,
            _ => return Answer::unavailable("another delivery of this event takes long"),
        };
        let Some(landing) = landing else {
            return Answer::unavailable("another delivery of this event was lost");
        };
        let same = landing.fingerprint == self.envelope.print();
        match landing.end {
            End::Applied => {
                let (name, id) = (self.source.name_arc(), self.envelope.event_id.as_arc());
                let seen = self.shared.recent.find(&name, id);
                self.known_applied(seen.unwrap_or(Seen {
                    fingerprint: landing.fingerprint,
                    kept: None,
                }))
                .await
            }
            End::Parked { waiting_for } if same => Answer::parked(waiting_for),
            End::Parked { waiting_for } => match self.other_content().await {
                Some(refusal) => refusal,
                None => Answer::parked(waiting_for),
            },
            End::Stored => self.known_as(landing.fingerprint, Answer::stored()).await,
            End::PutOff { waiting_for, until } => {
                let wait = until.since(self.shared.clock.now());
                let answer = Answer::put_off(waiting_for, wait);
                self.known_as(landing.fingerprint, answer).await
            }
            End::Fenced => self.known_as(landing.fingerprint, Answer::fenced()).await,
            End::Superseded => {
                self.known_as(landing.fingerprint, Answer::superseded())
                    .await
            }
            End::SetAside => {
                self.known_as(landing.fingerprint, Answer::set_aside())
                    .await
            }
            End::Discarded => {
                self.known_as(landing.fingerprint, Answer::discarded())
                    .await
            }
            // A redirect is the handler's own to give, with where to (§3).
            End::Rejected(status) if same && status.is_client_error() => {
                Answer::same_verdict(status)
            }
            End::Rejected(_) | End::Failed => {
                Answer::unavailable("another delivery of this event failed just now")
            }
        }
    }

    async fn known_applied(&self, seen: Seen) -> Answer {
        if let Some(refusal) = self.refusal(seen.fingerprint).await {
            return refusal;
        }
        if seen.kept.is_some() || self.source.answer_limit().is_none() {
            return Answer::again(seen.kept);
        }
        let stored = async {
            let mut conn = self.shared.statements(self.deadline).await?;
            let kept = DB::answer(&mut conn, &self.shared.sql, self.key()).await;
            let kept = conn.done(kept).await;
            kept.map_err(|error| self.database_failed(&error))
        };
        match timeout_at(self.deadline, stored).await {
            Ok(Ok(kept)) => Answer::again(kept),
            Ok(Err(answer)) => answer,
            Err(_) => Answer::unavailable("the delivery's time is spent"),
        }
    }

    /// For content that is known, this answer.
    async fn known_as(&self, seen: Fingerprint, answer: Answer) -> Answer {
        self.refusal(seen).await.unwrap_or(answer)
    }

    /// For content that is not what was seen before, unless the policy is to note.
    async fn refusal(&self, seen: Fingerprint) -> Option<Answer> {
        if seen == self.envelope.print() {
            return None;
        }
        self.other_content().await
    }

    /// A known id with other content: the refusal, once it is in the audit table; nothing where the policy is to note.
    async fn other_content(&self) -> Option<Answer> {
        self.source
            .refuses_other_content(self.envelope)
            .then_some(())?;
        self.saw(|| Happened::Entered("but with other content: refused"));
        let entry = Audit {
            at: self.shared.clock.now(),
            key: self.key(),
            action: "other_content",
            actor: "inbox",
            detail: "",
        };
        let audited = async {
            let _turn = self.shared.turn().await;
            let mut conn = self.shared.statements(self.deadline).await?;
            let written = DB::audit(&mut conn, &self.shared.sql, &entry).await;
            let written = conn.done(written).await;
            written.map_err(|error| self.database_failed(&error))
        };
        let audited = timeout_at(self.deadline, audited).await;
        Some(match audited {
            Ok(Ok(())) => {
                tracing::warn!(
                    source = self.source.name(),
                    event_id = self.key().event_id,
                    reason = "other_content",
                    "refused a delivery"
                );
                Answer::other_content()
            }
            Ok(Err(answer)) => answer,
            Err(_) => Answer::unavailable("the delivery's time is spent"),
        })
    }

    async fn lead<R>(&self, handler: &mut dyn Run<R>) -> Settled<R> {
        let Some(place) = self.shared.waiting.enter() else {
            return Settled::failed(Answer::busy("deliveries that wait"));
        };
        let since = probe::Since::now();
        match timeout_at(self.deadline, self.look()).await {
            Err(_) => return Settled::failed(Answer::unavailable("the delivery's time is spent")),
            Ok(Err(answer)) => return Settled::failed(answer),
            Ok(Ok(Some(settled))) => return settled,
            Ok(Ok(None)) => {}
        }
        let _lane = match &self.envelope.correlation_id {
            // What is only stored waits for no handler.
            Some(id) if self.envelope.is_ordered() && !self.source.is_deferred() => {
                let name = self.source.name_arc();
                let lane = self.shared.lanes.enter(&name, id.as_arc());
                match timeout_at(patience(self.deadline), lane).await {
                    Ok(lane) => Some(lane),
                    Err(_) => {
                        return Settled::failed(Answer::busy("deliveries of this correlation id"));
                    }
                }
            }
            _ => None,
        };
        let Ok(_permits) = self.shared.permits(self.source, self.deadline).await else {
            return Settled::failed(Answer::busy("deliveries in flight"));
        };
        drop(place);
        self.saw(|| Happened::Queued(since.elapsed()));
        let (parts, body) = self.request.clone().into_parts();
        let stored = request::store(&parts, &body);
        let job = Job {
            shared: &**self.shared,
            source: self.source,
            envelope: self.envelope,
            origin: Origin::Live,
            request: self.request,
            stored: &stored,
            fence: self.fence,
            lease: Lease::NONE,
            out_of_order: false,
            generation: AtomicI64::default(),
            deadline: self.deadline,
        };
        job.run(handler).await
    }

    /// One statement, outside any transaction: what the database knows already (§2.4).
    async fn look<R>(&self) -> Result<Option<Settled<R>>, Answer> {
        let mut conn = self.shared.statements(self.deadline).await?;
        let kept = self.source.answer_limit().is_some();
        let known = DB::known(&mut conn, &self.shared.sql, self.key(), kept).await;
        let known = conn.done(known).await;
        let Some(known) = known.map_err(|error| self.database_failed(&error))? else {
            return Ok(None);
        };
        let (end, answer) = match self.standing(&known) {
            Standing::Open => return Ok(None),
            Standing::Fenced => return Ok(Some(Settled::answer(End::Fenced, Answer::fenced()))),
            Standing::Applied => (End::Applied, Answer::again(known.kept.clone())),
            Standing::Superseded => (End::Superseded, Answer::superseded()),
            Standing::SetAside => (End::SetAside, Answer::set_aside()),
            Standing::Discarded => (End::Discarded, Answer::discarded()),
            Standing::Stored => (End::Stored, Answer::stored()),
            Standing::Waiting(waiting_for) => {
                (End::Parked { waiting_for }, Answer::parked(waiting_for))
            }
        };
        if !self.source.same_content(self.envelope, &known)
            && let Some(refusal) = self.other_content().await
        {
            return Ok(Some(Settled::answer(
                End::Rejected(refusal.status),
                refusal,
            )));
        }
        Ok(Some(Settled {
            kept: known.kept,
            ..Settled::answer(end, answer)
        }))
    }

    fn standing(&self, known: &Known) -> Standing {
        match (known.state, known.sequence, known.next_sequence) {
            (State::Applied, _, _) => Standing::Applied,
            (State::Fenced, _, _) => Standing::Fenced,
            (State::Superseded, _, _) => Standing::Superseded,
            (State::Discarded, _, _) => Standing::Discarded,
            _ if known.is_set_aside() => Standing::SetAside,
            // For operators alone (§5.11): it says what holds it up, or that it is out of the way.
            (State::Dead, Some(sequence), Some(next))
                if known.reason == Some(Reason::Crash)
                    && sequence == next
                    && !known.has_yielded =>
            {
                Standing::Waiting(lowest_missing(next))
            }
            (State::Dead, None, _) if known.reason == Some(Reason::Crash) => Standing::SetAside,
            (State::Parked, _, _) if self.source.is_deferred() => Standing::Stored,
            (State::Dead, _, _)
                if self.source.is_deferred()
                    && known.is_waiting()
                    && self.source.revives_gaps() =>
            {
                Standing::Stored
            }
            // A deferred source's dead letter is stored anew.
            (State::Dead, _, _) if self.source.is_deferred() => Standing::Open,
            (_, Some(sequence), Some(next)) if known.is_waiting() && sequence > next => {
                Standing::Waiting(lowest_missing(next))
            }
            _ => Standing::Open,
        }
    }

    fn saw(&self, happened: impl FnOnce() -> Happened) {
        self.shared.probes.saw(self.key(), happened);
    }

    fn key(&self) -> Key<'_> {
        Key {
            source: self.source.name(),
            event_id: self.envelope.event_id.as_str(),
        }
    }

    fn database_failed(&self, error: &sqlx::Error) -> Answer {
        tracing::warn!(source = self.source.name(), %error, "the database failed a delivery");
        self.shared.recent.clear();
        Answer::unavailable("the database is not available")
    }

    /// What a worker may have to do now, or later.
    fn wake(&self, end: End) {
        let id = self.envelope.correlation_id.as_ref();
        let may_wait = |id: &CorrelationId| self.source.room().may_wait(id.as_str());
        let is_due = match end {
            // The next one of this stream may be waiting for this commit.
            End::Applied => self.envelope.order().is_some() && id.is_some_and(may_wait),
            End::Stored | End::PutOff { .. } => true,
            _ => false,
        };
        if is_due {
            let work = Work::on(self.source.name_arc(), self.envelope);
            worker::wake(self.shared, work);
        }
    }
}

/// What the database knew before the transaction.
enum Standing {
    /// Only the transaction can tell.
    Open,
    Applied,
    Fenced,
    Superseded,
    /// For a worker.
    Stored,
    SetAside,
    Discarded,
    Waiting(u64),
}

pub(crate) fn count(source: &SourceState, envelope: Option<&Envelope>, outcome: Outcome) {
    let kind = envelope.and_then(|envelope| envelope.event_type.as_ref());
    let kind = source.type_label(kind.map(|kind| kind.as_arc()));
    metrics::counter!(
        "inbox_deliveries_total",
        "source" => source.name_shared(), "event_type" => kind, "outcome" => outcome.as_str()
    )
    .increment(1);
}
