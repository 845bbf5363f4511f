//! One event of a producer's list, through the same path as a delivery: the signature step aside, compared by its id
//! alone (§7.5).

use std::sync::Arc;
use std::sync::atomic::AtomicI64;

use bytes::Bytes;
use http::Request;
use http::header::CONTENT_LENGTH;
use tokio::time::{Instant, timeout_at};
use tracing::{Instrument as _, Span};

use super::source::Item;
use crate::dispatch::{Job, Reply, lowest_missing};
use crate::envelope::{Envelope, Sequence};
use crate::event::Origin;
use crate::order::drain::Draining;
use crate::order::worker::{self, Target, Work};
use crate::queue::{End, Joined};
use crate::request::{self, Stored};
use crate::shared::Shared;
use crate::source::SourceState;
use crate::store::{Backend, Fence, Key, Known, Lease, State};
use crate::trace;

/// What became of it.
pub(super) enum Put {
    /// Applied now.
    Applied,
    /// Decided before.
    Known,
    /// Stored, and applied later by itself: why not now.
    Parked(String),
    /// An operator's business.
    Dead(String),
    /// Later, perhaps.
    Failed(String),
}

/// An item whose envelope has been read.
pub(super) struct Read {
    pub(super) envelope: Envelope,
    request: Request<Bytes>,
    fence: Option<Fence>,
}

impl Read {
    /// An event about deliveries, which the source does not hand on.
    pub(super) fn is_control(&self, source: &SourceState) -> bool {
        let kind = self.envelope.event_type.as_deref();
        !source.hands_on_control() && source.mapping().is_control(kind)
    }
}

/// Reads an item as the source's mapping has it. What its list calls it must be what it says itself.
pub(super) fn read<DB: Backend>(
    shared: &Shared<DB>,
    source: &SourceState,
    item: &Item,
) -> Result<Option<Read>, String> {
    let Some(request) = &item.request else {
        return Ok(None);
    };
    if request.body().len() > source.body_limit() {
        return Err("its body is larger than this source allows".into());
    }
    let (mut parts, body) = request.clone().into_parts();
    if let Some(name) = source.mapping().id_header()
        && !parts.headers.contains_key(name)
    {
        let value = item.event_id.parse();
        let value = value.map_err(|_| "its event id does not fit a header".to_owned())?;
        parts.headers.insert(name.clone(), value);
    }
    let envelope = source.mapping().read_aside(&parts.headers, &body);
    let envelope = envelope.map_err(|error| error.to_string())?;
    let listed = source.mapping().event_id(&item.event_id);
    if listed.as_ref() != Some(&envelope.event_id) {
        return Err(format!(
            "it says that it is event {:?}",
            envelope.event_id.as_str()
        ));
    }
    let signatures = source.scheme().signature_headers(&parts.headers);
    request::strip(&mut parts.headers, &signatures, source.keep_headers());
    parts.headers.remove(CONTENT_LENGTH);
    let kind = envelope.event_type.as_deref();
    let fence = source.fence_of_body(kind, &body, shared.clock.now());
    Ok(Some(Read {
        request: Request::from_parts(parts, body),
        fence,
        envelope,
    }))
}

/// What is known of an event already, if that settles it.
pub(super) async fn look<DB: Backend>(
    shared: &Shared<DB>,
    source: &SourceState,
    event_id: &str,
    deadline: Instant,
) -> Result<Option<Put>, String> {
    let looked = timeout_at(deadline, async {
        let conn = shared.statements(deadline).await;
        let mut conn = conn.map_err(|answer| answer.reason().to_owned())?;
        let key = Key {
            source: source.name(),
            event_id,
        };
        let known = DB::known(&mut conn, &shared.sql, key, false).await;
        conn.done(known).await.map_err(|error| error.to_string())
    });
    let known = looked
        .await
        .unwrap_or_else(|_| Err("the database takes too long".into()))?;
    Ok(known.and_then(|known| standing(&known)))
}

/// Nothing: it is to be tried.
fn standing(known: &Known) -> Option<Put> {
    match (known.state, known.sequence, known.next_sequence) {
        (State::Applied | State::Superseded | State::Discarded, _, _) => Some(Put::Known),
        (_, Some(sequence), Some(next)) if known.is_waiting() => {
            (sequence > next).then(|| parked(lowest_missing(next)))
        }
        _ if known.is_waiting() => None,
        (State::Fenced, _, _) => Some(Put::Dead("the fence holds it".into())),
        _ => {
            let reason = known.reason.map_or("its place was taken", |r| r.as_str());
            Some(Put::Dead(format!("a dead letter: {reason}")))
        }
    }
}

fn parked(waiting_for: u64) -> Put {
    Put::Parked(format!("parked: waits for sequence {waiting_for}"))
}

/// Puts an event through, within the source's budget.
pub(super) async fn put<DB: Backend>(
    shared: &Arc<Shared<DB>>,
    source: &Arc<SourceState>,
    target: &Arc<dyn Target>,
    mut read: Read,
) -> Put {
    // In a task of its own, as a delivery: whoever waits for it may be dropped, in the middle of BEGIN too.
    let (owned, source, target) = (Arc::clone(shared), Arc::clone(source), Arc::clone(target));
    let span = trace::attempt(
        source.name(),
        source.trace_context(),
        &read.envelope,
        &read.request,
        Origin::Reconciled,
        None,
    );
    let put = async move {
        let Some(_tracked) = owned.tracker.enter() else {
            return Put::Failed("shutting down".into());
        };
        let deadline = Instant::now() + source.budget();
        trace::mark(read.request.extensions_mut());
        attempt(&owned, &source, &*target, &read, deadline).await
    };
    let done = shared.runtime.spawn(put.instrument(span));
    done.await
        .unwrap_or_else(|error| Put::Failed(error.to_string()))
}

async fn attempt<DB: Backend>(
    shared: &Arc<Shared<DB>>,
    source: &Arc<SourceState>,
    target: &dyn Target,
    read: &Read,
    deadline: Instant,
) -> Put {
    let (name, envelope) = (source.name_arc(), &read.envelope);
    let event_id = envelope.event_id.as_arc();
    let mut leader = loop {
        match shared.flights.join(&name, event_id, envelope.print()) {
            Joined::Leader(leader) => break leader,
            // A delivery of it is at work just now: what it leaves behind is looked at.
            Joined::Follower(mut flight) => {
                let landed = timeout_at(deadline, flight.wait_for(Option::is_some));
                if landed.await.is_err() {
                    return Put::Failed("another delivery of it takes long".into());
                }
            }
        }
    };
    // Whoever waits behind it has learnt nothing before it is run.
    leader.waits();
    // The memory of this process is not asked (§2.4).
    match look(shared, source, envelope.event_id.as_str(), deadline).await {
        Ok(None) => {}
        Ok(Some(put)) => return put,
        Err(why) => return Put::Failed(why),
    }
    let _lane = match &envelope.correlation_id {
        Some(id) if envelope.is_ordered() => {
            let sequence = envelope.sequence.map(Sequence::get);
            let lane = shared.lanes.enter(&name, id.as_arc(), sequence);
            match timeout_at(deadline, lane).await {
                Ok(lane) => Some(lane),
                Err(_) => return Put::Failed("its stream is busy".into()),
            }
        }
        _ => None,
    };
    let Ok(_permits) = shared.permits(source, deadline).await else {
        return Put::Failed("too many deliveries are in flight".into());
    };
    let job = Job {
        shared: &**shared,
        source,
        envelope,
        origin: Origin::Reconciled,
        request: &read.request,
        stored: Stored::of(&read.request),
        fence: read.fence,
        lease: Lease::NONE,
        out_of_order: false,
        generation: AtomicI64::default(),
        deadline,
        places: None,
    };
    let epoch = shared.recent.epoch();
    leader.begins();
    let settled = job.run(&mut Draining(target)).await;
    settled.count_aside(shared, source, envelope);
    if settled.is_own_commit() {
        shared.remember(epoch, source, envelope, settled.kept.as_ref());
    }
    match settled.end {
        End::Applied => worker::wake_stream(shared, source, envelope),
        End::Stored | End::PutOff { .. } => {
            worker::wake(shared, Work::on(Arc::clone(&name), envelope));
        }
        _ => {}
    }
    leader.land(settled.landed());
    trace::ended(&Span::current(), settled.reply.outcome());
    match (settled.end, settled.reply) {
        (End::Applied, Reply::Handler(..)) => Put::Applied,
        (End::Applied | End::Superseded | End::Discarded, _) => Put::Known,
        (End::Parked { waiting_for }, _) => parked(waiting_for),
        (End::Stored, _) => Put::Parked("stored: a worker applies it".into()),
        (End::PutOff { .. }, _) => Put::Parked("the handler wants it later".into()),
        (End::Fenced, _) => Put::Dead("the fence holds it".into()),
        (End::SetAside, _) => Put::Dead("set aside: its sequence is never waited for".into()),
        (End::Rejected(_), Reply::Handler(_, response)) => {
            Put::Dead(format!("the handler answered {}", response.status()))
        }
        (End::Failed, Reply::Handler(_, response)) => {
            Put::Failed(format!("the handler answered {}", response.status()))
        }
        (End::Rejected(_), Reply::Inbox(answer)) => Put::Dead(answer.reason().to_owned()),
        (End::Failed, Reply::Inbox(answer)) => Put::Failed(answer.reason().to_owned()),
    }
}
