//! One delivery, in the order of §2: the door and the signature first, then what is known, then the queue, then the
//! transaction.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::AtomicI64;
use std::time::Duration;

use bytes::Bytes;
use http::header::CONTENT_LENGTH;
use http::request::Parts;
use http::{Request, Response, StatusCode};
use http_body::Body;
use smallvec::{SmallVec, smallvec};
use tokio::sync::watch;
use tokio::time::{Instant, timeout, timeout_at};
use tracing::Span;

use super::group;
use super::look::Found;
use super::uncounted::Uncounted;
use crate::answer::Answer;
use crate::broken::{self, Variant};
use crate::burst::{self, Control};
use crate::clock::Timestamp;
use crate::dispatch::{Job, Places, Reply, Run, Settled, Turn, Waits};
use crate::door::Passed;
use crate::envelope::{CorrelationId, Envelope, Fingerprint, Reading};
use crate::event::{Origin, Outcome};
use crate::fail::at;
use crate::order::worker::{self, Work};
use crate::probe::{self, Happened};
use crate::queue::{End, Joined, Landed, Landing};
use crate::recent::Seen;
use crate::request::{self, Stored};
use crate::shared::Shared;
use crate::source::SourceState;
use crate::store::{Audit, Backend, Fence, Key, Lease};
use crate::trace;
use crate::verify::RequestView;

/// A delivery whose signature has been verified and whose envelope has been read.
pub(crate) struct Arrival {
    pub(crate) envelope: Envelope,
    /// As the handler will see it.
    pub(crate) request: Request<Bytes>,
    pub(crate) fence: Option<Fence>,
}

/// What one request turned out to be.
pub(crate) struct Admitted {
    /// One, unless the source splits its requests; none if it is all about the producer's deliveries.
    events: SmallVec<[(Envelope, Option<Fence>, Bytes); 1]>,
    controls: Vec<Control>,
    /// What this process remembers of its one event, if that has been looked up.
    memory: Option<Option<Seen>>,
}

impl Admitted {
    /// Each event, with the size of its body in bytes.
    pub(crate) fn events(&self) -> impl ExactSizeIterator<Item = (&Envelope, usize)> {
        let events = self.events.iter();
        events.map(|(envelope, _, body)| (envelope, body.len()))
    }

    /// As the handler will see them.
    fn arrivals(self, source: &SourceState, mut parts: Parts) -> Vec<Arrival> {
        let mut events = self.events;
        let Some(last) = events.pop() else {
            return Vec::new();
        };
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
        arrivals
    }
}

/// A request that is answered before it is known which event it carries.
pub(crate) struct Denied {
    pub(crate) answer: Answer,
    /// By its signature it is from the producer.
    verified: bool,
}

impl Denied {
    fn unverified(answer: Answer) -> Self {
        Self {
            answer,
            verified: false,
        }
    }

    fn verified(answer: Answer) -> Self {
        Self {
            answer,
            verified: true,
        }
    }

    pub(crate) fn count<DB: Backend>(&self, shared: &Shared<DB>, source: &SourceState) {
        let Answer {
            status, outcome, ..
        } = self.answer;
        let (counted, at) = (source.counted(), failed_at(shared, status));
        match outcome {
            // A handshake.
            Outcome::Accepted => counted.accepted(),
            _ => counted.refused(status, outcome, self.verified, at),
        }
    }
}

/// The time now, for an answer of 5xx.
fn failed_at<DB: Backend>(shared: &Shared<DB>, status: StatusCode) -> Option<Timestamp> {
    status.is_server_error().then(|| shared.clock.now())
}

/// Steps 1 to 3. No database statement is caused here. `span`: where the log says why it was refused.
pub(crate) async fn admit<DB: Backend, B: Body>(
    span: &Span,
    shared: &Shared<DB>,
    source: &SourceState,
    parts: &Parts,
    body: B,
    deadline: Instant,
) -> Result<Admitted, Denied> {
    let refused = |reason: &dyn std::fmt::Display| {
        probe::refused(&parts.extensions, reason);
        span.in_scope(|| tracing::warn!(source = source.name(), %reason, "refused a delivery"));
    };
    if !source.allows(&parts.method) {
        refused(&format_args!("method {}", parts.method));
        return Err(Denied::unverified(Answer::method()));
    }
    if broken::is(Variant::LookFirst) {
        // In a piece of memory of its own: every delivery's future would have room for it.
        Box::pin(look_first(shared)).await;
    }
    let now = shared.clock.now();
    let door = source.door();
    let passed = door.pass(span, parts, body, now, deadline, &shared.bodies);
    let Passed {
        head,
        verified,
        body,
        reserved,
    } = passed.await.map_err(Denied::unverified)?;
    // From here on the delivery counts as verified, and other limits bound it.
    drop(reserved);
    if source.is_gone() {
        refused(&"the source is deregistered");
        return Err(Denied::verified(Answer::gone()));
    }
    let view =
        RequestView::new(&parts.method, &parts.uri, &parts.headers, &body).with_url(door.url);
    let bodies: SmallVec<[_; 1]> = match source.elements() {
        None => smallvec![body.clone()],
        Some(elements) => {
            let split = elements.split(&body).map_err(|error| {
                refused(&error);
                Denied::verified(Answer::bad_request(error.to_string()))
            });
            split?.into()
        }
    };
    let mut events = SmallVec::with_capacity(bodies.len());
    let mut controls = Vec::new();
    for element in bodies {
        let reading = source.mapping().read(&verified, &parts.headers, &element);
        let envelope = match reading.map_err(|error| {
            refused(&error);
            Denied::verified(Answer::bad_request(error.to_string()))
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
                let answer = Answer::accepted(reply.content_type, reply.body);
                return Err(Denied::verified(answer));
            }
        };
        let fence = source
            .fence(&head, &view, envelope.event_type.as_deref(), now)
            .map_err(|refusal| {
                refused(&refusal);
                Denied::verified(Answer::unauthorized())
            })?;
        let extensions = &parts.extensions;
        shared
            .probes
            .admitted(extensions, source, &envelope, &verified);
        events.push((envelope, fence, element));
    }
    Ok(Admitted {
        events,
        controls,
        memory: None,
    })
}

/// What no delivery may cause before its signature is verified.
async fn look_first<DB: Backend>(shared: &Shared<DB>) {
    if let Ok(mut conn) = shared.acquire_statements().await {
        let looked = DB::ping(&mut conn, &shared.sql).await;
        let _ = conn.done(looked).await;
    }
}

/// Steps 4 to 10.
pub(crate) async fn deliver<DB, R>(
    shared: &Arc<Shared<DB>>,
    source: &Arc<SourceState>,
    mut parts: Parts,
    mut admitted: Admitted,
    mut handler: impl Run<R>,
    deadline: Instant,
) -> Response<R>
where
    DB: Backend,
    R: From<Bytes>,
{
    let memory = admitted.memory.take();
    let controls = std::mem::take(&mut admitted.controls);
    trace::mark(&mut parts.extensions);
    let arrivals = admitted.arrivals(source, parts);
    let uncounted = Uncounted {
        shared,
        source,
        arrivals: &arrivals,
        arrived: deadline - source.budget(),
    };
    // Before anything that the burst consists of; one that could not be noted comes again.
    if let Err(answer) = burst::note(shared, source, &controls, deadline).await {
        count(shared, source, None, answer.outcome, answer.status);
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
            let seen = memory.unwrap_or_else(|| recall(shared, source, &arrival.envelope));
            delivery.answer(seen, &mut handler).await
        }
        arrivals => group::answer(shared, source, arrivals, &mut handler, deadline).await,
    };
    uncounted.answered(reply.outcome(), reply.status());
    reply.into_response()
}

/// What this process saw committed needs no statement, no queue and no task (§2.4).
pub(crate) fn remembered<DB: Backend>(
    shared: &Shared<DB>,
    source: &SourceState,
    admitted: &mut Admitted,
) -> Option<Answer> {
    let [(envelope, ..)] = admitted.events.as_slice() else {
        return None;
    };
    // Controls are noted first, which takes its time.
    if source.elements().is_some() || !admitted.controls.is_empty() {
        return None;
    }
    let seen = recall(shared, source, envelope);
    let told = |seen: &Seen| {
        let has_answer = seen.kept.is_some() || source.answer_limit().is_none();
        seen.fingerprint == envelope.print() && has_answer
    };
    let Some(seen) = seen.as_ref().filter(|seen| told(seen)).cloned() else {
        admitted.memory = Some(seen);
        return None;
    };
    let key = Key {
        source: source.name(),
        event_id: &envelope.event_id,
    };
    shared.probes.saw(key, || Happened::Remembered);
    let answer = Answer::again(seen.kept);
    count_arrival(shared, source, envelope, answer.outcome, answer.status);
    Some(answer)
}

/// What this process remembers of an event. It may be of a database that is not there any more: that is looked at first.
fn recall<DB: Backend>(
    shared: &Shared<DB>,
    source: &SourceState,
    envelope: &Envelope,
) -> Option<Seen> {
    shared.generation();
    shared.recent.find(source.name(), &envelope.event_id)
}

pub(super) fn count_arrival<DB: Backend>(
    shared: &Shared<DB>,
    source: &SourceState,
    envelope: &Envelope,
    outcome: Outcome,
    status: StatusCode,
) {
    count(shared, source, Some(envelope), outcome, status);
    let mapping = source.mapping();
    if mapping.replay_types().is_some() && !mapping.is_control(envelope.event_type.as_deref()) {
        source.arrivals().count(envelope, outcome);
    }
}

/// A delivery that gets its places in this time does not look up what is known, unless duplicates are about. Above what a
/// busy inbox makes it wait, where everybody's look would make everybody wait longer.
const AT_ONCE: Duration = Duration::from_millis(100);

/// A verified delivery with its producer waiting.
pub(super) struct Live<'a, DB: Backend> {
    pub(super) shared: &'a Arc<Shared<DB>>,
    pub(super) source: &'a Arc<SourceState>,
    pub(super) envelope: &'a Envelope,
    request: &'a Request<Bytes>,
    fence: Option<Fence>,
    pub(super) deadline: Instant,
}

impl<DB: Backend> Live<'_, DB> {
    /// `seen`: what this process remembers of its event.
    async fn answer<R>(&self, seen: Option<Seen>, handler: &mut dyn Run<R>) -> Reply<R> {
        let (shared, name) = (self.shared, self.source.name_arc());
        let event_id = self.envelope.event_id.as_arc();
        if let Some(seen) = seen {
            self.saw(|| Happened::Remembered);
            return Reply::Inbox(self.known_applied(seen).await);
        }
        let leader = loop {
            match shared.flights.join(&name, event_id, self.envelope.print()) {
                Joined::Leader(leader) => break leader,
                Joined::Follower(flight) => {
                    self.saw(|| Happened::Followed);
                    if let Some(answer) = self.follow(flight).await {
                        return Reply::Inbox(answer);
                    }
                }
            }
        };
        let epoch = shared.recent.epoch();
        let settled = self.lead(handler).await;
        if shared.fail.reached(at::SETTLED).await.is_err() {
            return Reply::Inbox(Answer::unavailable("the answer was lost"));
        }
        if settled.is_own_commit() || broken::is(Variant::MemoryOfFailures) {
            shared.remember(epoch, self.source, self.envelope, settled.kept.as_ref());
        }
        self.wake(settled.end);
        leader.land(settled.landed());
        settled.reply
    }

    /// Waits for the delivery of the same event that went ahead (§4.8). Nothing if that has tried nothing.
    async fn follow(&self, mut flight: watch::Receiver<Option<Landing>>) -> Option<Answer> {
        let Some(_place) = self.shared.waiting.enter() else {
            return Some(Answer::busy("deliveries that wait"));
        };
        if broken::is(Variant::FollowersDuplicate) {
            return Some(Answer::duplicate());
        }
        let landing = match timeout_at(self.deadline, flight.wait_for(Option::is_some)).await {
            Ok(Ok(landing)) => *landing,
            _ => {
                let long = "another delivery of this event takes long";
                return Some(Answer::unavailable(long));
            }
        };
        let Some(landing) = landing else {
            let lost = "another delivery of this event was lost";
            return Some(Answer::unavailable(lost));
        };
        match landing.landed {
            Landed::Untried => None,
            Landed::Busy => Some(Answer::busy("deliveries of this event")),
            Landed::End(end) => Some(self.as_ended(end, landing.fingerprint).await),
        }
    }

    /// What those get that waited behind a delivery with this content.
    async fn as_ended(&self, end: End, fingerprint: Fingerprint) -> Answer {
        let same = fingerprint == self.envelope.print();
        match end {
            End::Applied => {
                let Key { source, event_id } = self.key();
                let seen = self.shared.recent.find(source, event_id);
                self.known_applied(seen.unwrap_or(Seen {
                    fingerprint,
                    kept: None,
                }))
                .await
            }
            End::Parked { waiting_for } if same => Answer::parked(waiting_for),
            End::Parked { waiting_for } => match self.other_content().await {
                Some(refusal) => refusal,
                None => Answer::parked(waiting_for),
            },
            End::Stored => self.known_as(fingerprint, Answer::stored()).await,
            End::PutOff { waiting_for, until } => {
                let wait = until.since(self.shared.clock.now());
                let answer = Answer::put_off(waiting_for, wait);
                self.known_as(fingerprint, answer).await
            }
            End::Fenced => self.known_as(fingerprint, Answer::fenced()).await,
            End::Superseded => self.known_as(fingerprint, Answer::superseded()).await,
            End::SetAside => self.known_as(fingerprint, Answer::set_aside()).await,
            End::Discarded => self.known_as(fingerprint, Answer::discarded()).await,
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
    pub(super) async fn other_content(&self) -> Option<Answer> {
        self.source
            .refuses_other_content(self.envelope)
            .then_some(())?;
        self.saw(|| Happened::Entered("but with other content: refused"));
        let entry = Audit {
            at: self.shared.clock.now(),
            key: self.key(),
            correlation_id: self.envelope.correlation_id.as_ref().map(|id| id.as_str()),
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
        let lookout = self.source.lookout();
        let looks = self.source.is_deferred() || lookout.looks(self.envelope.attempt);
        if looks && let Some(found) = self.look_up().await {
            return self.told(found).await;
        }
        let places = match self.places_or_known(looks).await {
            Ok(places) => places,
            // With its places given back: a refusal is written in a turn of its own.
            Err(found) => return self.told(found).await,
        };
        let (places, turn) = match places {
            Ok(places) => places,
            Err(answer) => return Settled::failed(answer),
        };
        drop(place);
        self.saw(|| Happened::Queued(since.elapsed()));
        let job = Job {
            shared: &**self.shared,
            source: self.source,
            envelope: self.envelope,
            origin: Origin::Live,
            request: self.request,
            stored: Stored::of(self.request),
            fence: self.fence,
            lease: Lease::NONE,
            out_of_order: false,
            generation: AtomicI64::default(),
            deadline: self.deadline,
            places: Some(&places),
        };
        let settled = job.run_in(Some(turn), handler).await;
        if settled.end == End::Failed {
            // It comes again, and may have been committed.
            lookout.hit();
        }
        settled
    }

    /// Its places. Or what is known, where others hold it up and nobody has looked: that need not wait for them.
    async fn places_or_known<R>(
        &self,
        looked: bool,
    ) -> Result<Result<(Places<DB>, Turn<DB>), Answer>, Found<R>> {
        let (source, is_fenced) = (self.source, self.fence.is_some());
        let waits = Waits::new(self.shared, source, self.envelope, is_fenced, self.deadline);
        let mut places = pin!(waits.places());
        if let Ok(places) = timeout(AT_ONCE, &mut places).await {
            return Ok(places);
        }
        if looked {
            return Ok(places.await);
        }
        // Nobody's transaction waits for this look. Not back when it ends with it: who leaves would be handed what it drops.
        waits.away();
        if let Ok(places) = timeout(Duration::ZERO, &mut places).await {
            return Ok(places);
        }
        if let Some(found) = self.look_up().await {
            return Err(found);
        }
        waits.back();
        Ok(places.await)
    }

    fn saw(&self, happened: impl FnOnce() -> Happened) {
        self.shared.probes.saw(self.key(), happened);
    }

    pub(super) fn key(&self) -> Key<'_> {
        Key {
            source: self.source.name(),
            event_id: self.envelope.event_id.as_str(),
        }
    }

    pub(super) fn database_failed(&self, error: &sqlx::Error) -> Answer {
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

/// A delivery was answered, whose signature has been verified.
pub(super) fn count<DB: Backend>(
    shared: &Shared<DB>,
    source: &SourceState,
    envelope: Option<&Envelope>,
    outcome: Outcome,
    status: StatusCode,
) {
    let kind = envelope.and_then(Envelope::kind);
    let at = failed_at(shared, status);
    source.counted().answered(kind, outcome, at);
}
