//! A request that carries several events.

use std::sync::Arc;
use std::sync::atomic::AtomicI64;

use tokio::time::{Instant, timeout_at};

use super::deliver::Arrival;
use crate::answer::Answer;
use crate::dispatch::{Group, Job, Reply, Run, Settled};
use crate::envelope::Envelope;
use crate::event::Origin;
use crate::fail::at;
use crate::order::worker::{self, Work};
use crate::queue::{End, Joined, Landed, Leader};
use crate::request::Stored;
use crate::shared::Shared;
use crate::source::SourceState;
use crate::store::{Backend, Lease};

/// Steps 4 to 10 for all of them: one transaction, one answer.
pub(super) async fn answer<DB: Backend, R>(
    shared: &Arc<Shared<DB>>,
    source: &Arc<SourceState>,
    arrivals: &[Arrival],
    handler: &mut dyn Run<R>,
    deadline: Instant,
) -> Reply<R> {
    let name = source.name_arc();
    shared.generation();
    let known = |arrival: &Arrival| {
        let envelope = &arrival.envelope;
        let seen = shared.recent.find(&name, &envelope.event_id);
        seen.is_some_and(|seen| seen.fingerprint == envelope.print())
    };
    if arrivals.iter().all(known) {
        return Reply::Inbox(Answer::duplicate());
    }
    let Some(place) = shared.waiting.enter() else {
        return Reply::Inbox(Answer::busy("deliveries that wait"));
    };
    let Some(leaders) = lead(shared, source, arrivals, deadline).await else {
        return Reply::Inbox(Answer::unavailable(
            "another delivery of these events takes long",
        ));
    };
    let epoch = shared.recent.epoch();
    let mut ran = Vec::new();
    let settled = match shared.permits(source, deadline).await {
        Ok(_permits) => {
            drop(place);
            run(shared, source, arrivals, handler, deadline, &mut ran).await
        }
        Err(()) => Settled::failed(Answer::busy("deliveries in flight")),
    };
    if shared.fail.reached(at::SETTLED).await.is_err() {
        return Reply::Inbox(Answer::unavailable("the answer was lost"));
    }
    // The end of the request says the same of each of them, unless the fence may have held one, or one was superseded.
    let end = match settled.end {
        End::Applied if !source.is_fenced() && source.applies_newer().is_none() => End::Applied,
        // Who waited for one of them comes again, and finds out.
        _ => End::Failed,
    };
    let landed = match settled.landed() {
        Landed::Busy => Landed::Busy,
        _ => end.into(),
    };
    if settled.end == End::Stored {
        for Arrival { envelope, .. } in arrivals {
            worker::wake(shared, Work::on(source.name_arc(), envelope));
        }
    }
    for leader in leaders {
        leader.land(landed);
    }
    // Of the others, somebody else has seen the commit (§2.4).
    if end == End::Applied && settled.is_own_commit() {
        for envelope in ran {
            shared.remember(epoch, source, envelope, None);
        }
    }
    settled.reply
}

/// Goes ahead with every event of the request. In the order of their ids, so that two requests that share some cannot
/// wait for each other.
async fn lead<DB: Backend>(
    shared: &Arc<Shared<DB>>,
    source: &Arc<SourceState>,
    arrivals: &[Arrival],
    deadline: Instant,
) -> Option<Vec<Leader>> {
    let mut envelopes: Vec<_> = arrivals.iter().map(|arrival| &arrival.envelope).collect();
    envelopes.sort_by(|a, b| a.event_id.cmp(&b.event_id));
    envelopes.dedup_by(|a, b| a.event_id == b.event_id);
    let name = source.name_arc();
    let mut leaders = Vec::with_capacity(envelopes.len());
    for envelope in envelopes {
        loop {
            match shared
                .flights
                .join(&name, envelope.event_id.as_arc(), envelope.print())
            {
                Joined::Leader(mut leader) => {
                    // Nothing is tried before all of them are there.
                    leader.waits();
                    leaders.push(leader);
                    break;
                }
                Joined::Follower(mut flight) => {
                    let landed = timeout_at(deadline, flight.wait_for(Option::is_some));
                    landed.await.ok()?.ok()?;
                }
            }
        }
    }
    leaders.iter_mut().for_each(Leader::begins);
    Some(leaders)
}

/// `ran`: those whose handler has run in the last transaction.
async fn run<'a, DB: Backend, R>(
    shared: &'a Arc<Shared<DB>>,
    source: &'a Arc<SourceState>,
    arrivals: &'a [Arrival],
    handler: &mut dyn Run<R>,
    deadline: Instant,
    ran: &mut Vec<&'a Envelope>,
) -> Settled<R> {
    let jobs: Vec<_> = arrivals
        .iter()
        .map(|arrival| Job {
            shared: &**shared,
            source,
            envelope: &arrival.envelope,
            origin: Origin::Live,
            request: &arrival.request,
            stored: Stored::of(&arrival.request),
            fence: arrival.fence,
            lease: Lease::NONE,
            out_of_order: false,
            generation: AtomicI64::default(),
            deadline,
            places: None,
        })
        .collect();
    Group(&jobs).run(handler, ran).await
}
