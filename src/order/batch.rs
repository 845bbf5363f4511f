//! Batches: what is due of one stream in a row, claimed by one statement and applied in one transaction.
//!
//! A batch says nothing about its events but that they were applied. Its claim counts no attempt, and its lease is of a kind
//! of its own, so that whoever finds one left behind, by a crash say, runs these events one by one. So does whoever has
//! rolled a batch back: which of its events it was is found out there, and judged as ever.

use std::sync::Arc;
use std::sync::atomic::AtomicI64;
use std::time::Duration;

use tokio::time::Instant;

use super::drain::{Draining, SOON, Step, later};
use super::lease::Held;
use super::take_up::{Readable, readable};
use super::worker::Target;
use crate::broken::{self, Variant};
use crate::dispatch::lowest_missing;
use crate::dispatch::{Batch, Batched, Job};
use crate::envelope::Envelope;
use crate::event::{Origin, Outcome};
use crate::fail::at;
use crate::queue::{End, Joined, Leader};
use crate::request::Stored;
use crate::shared::Shared;
use crate::source::SourceState;
use crate::store::{Backend, Due, Lease, Pending, Sql, Stream, Stretch};

/// Requests that are read for one batch, in bytes, the first one aside: more than many small events, and little beside
/// what a worker has in memory when all of its streams are at it.
const BYTES: i64 = 4 * 1024 * 1024;

/// How a stream's turn goes on.
pub(super) struct Pace {
    /// Events that were tried so far.
    pub(super) ran: usize,
    most: usize,
    /// Twice what the last batch came to: others are not claimed for nothing where handlers take their time.
    size: usize,
    /// So many are to be run one by one, since they were rolled back together.
    singly: usize,
    /// Of the first of these: who waits for it goes on waiting.
    leader: Option<Leader>,
}

impl Pace {
    pub(super) fn new(source: &SourceState) -> Self {
        Self {
            ran: 0,
            most: source.batch(),
            size: source.batch(),
            singly: 0,
            leader: None,
        }
    }

    /// How many may be taken up together.
    pub(super) fn size(&mut self) -> usize {
        if self.singly > 0 {
            self.singly -= 1;
            return 1;
        }
        self.size
    }

    /// The flight of an event that is about to be tried. None if no delivery of the source waits for its handler.
    pub(super) fn join<DB: Backend>(
        &mut self,
        shared: &Shared<DB>,
        source: &SourceState,
        envelope: &Envelope,
    ) -> Option<Joined> {
        let (name, id) = (source.name(), envelope.event_id.as_str());
        let leader = self.leader.take().filter(|leader| leader.leads(name, id));
        match leader.filter(|_| !source.is_deferred()) {
            Some(leader) => Some(Joined::Leader(leader)),
            None => join(shared, source, envelope),
        }
    }

    fn applied(&mut self, events: usize) {
        self.ran += events.saturating_sub(1);
        self.size = (events * 2).clamp(2, self.most);
    }

    fn undone(&mut self, events: usize) {
        self.singly = events;
    }
}

/// What is due first, and all that is due with it.
pub(super) async fn due<DB: Backend>(
    conn: &mut DB::Connection,
    sql: &Sql,
    stream: Stream<'_>,
    size: usize,
) -> Result<(Option<Pending>, Option<Due>), sqlx::Error> {
    let size = i64::try_from(size).unwrap_or(i64::MAX);
    let mut due = DB::due_batch(conn, sql, stream, size, BYTES).await?;
    if due.events.is_empty() {
        return Ok((None, None));
    }
    let head = due.events.remove(0);
    Ok((Some(head), Some(due)))
}

/// Events that this worker has claimed together.
pub(super) struct Claimed<'a> {
    members: Vec<(Pending, Readable)>,
    generation: i64,
    lease: Lease,
    _held: Vec<Held<'a>>,
}

/// What came of the try to claim several.
pub(super) enum Tried<'a> {
    Claimed(Box<Claimed<'a>>),
    /// Somebody else is at work on one of them.
    Taken,
    /// There is but one.
    Alone(Box<(Pending, Option<Readable>)>),
}

/// Claims the first one, which may be taken up, with those behind it that may be, too.
pub(super) async fn claim<'a, DB: Backend>(
    shared: &'a Shared<DB>,
    conn: &mut DB::Connection,
    source: &SourceState,
    (head, event): (Pending, Option<Readable>),
    due: Due,
) -> Result<Tried<'a>, sqlx::Error> {
    let Some(event) = event else {
        return Ok(Tried::Alone(Box::new((head, None))));
    };
    let mut members = vec![(head, event)];
    add_members(shared, source, &mut members, due.events, due.next_range);
    if members.len() < 2 {
        let (head, event) = members.remove(0);
        return Ok(Tried::Alone(Box::new((head, Some(event)))));
    }
    let leases = &shared.worker.leases;
    let mut claimed = Claimed {
        _held: members.iter().map(|_| leases.hold()).collect(),
        members,
        generation: due.generation,
        lease: Lease::of_batch(),
    };
    let all = claimed.stretch(source.name());
    let now = shared.clock.now();
    let times = (now, now.plus(shared.lease));
    let free = DB::claim_batch(conn, &shared.sql, &all, leases.owner(), times).await?;
    if free != claimed.members.len() as u64 {
        DB::hand_back_batch(conn, &shared.sql, &all).await?;
        return Ok(Tried::Taken);
    }
    for (_, (.., leader)) in &mut claimed.members {
        leader.iter_mut().for_each(Leader::begins);
    }
    Ok(Tried::Claimed(Box::new(claimed)))
}

/// Adds those that may run in one transaction with the ones before them.
fn add_members<DB: Backend>(
    shared: &Shared<DB>,
    source: &SourceState,
    members: &mut Vec<(Pending, Readable)>,
    due: Vec<Pending>,
    next_range: Option<i64>,
) {
    let now = shared.clock.now();
    // Of what was tried before, and of what a batch was begun with, only a run of its own says more. Its place is the last
    // one before a range that the cursor jumps over: that takes more than one statement.
    let may = |pending: &Pending| {
        pending.reason.is_none()
            && (pending.lease == Lease::NONE || broken::is(Variant::BatchedAgain))
            && (pending.attempts, pending.unfinished) == (0, 0)
            && pending.not_before <= now
            && pending
                .sequence
                .is_some_and(|place| next_range != Some(place + 1))
    };
    if !may(&members[0].0) {
        return;
    }
    for pending in due {
        let Some((envelope, request)) = may(&pending).then(|| readable(&pending)).flatten() else {
            return;
        };
        let leader = match join(shared, source, &envelope) {
            None => None,
            Some(Joined::Leader(mut leader)) => {
                leader.waits();
                Some(leader)
            }
            // A redelivery is at work on it. Whoever waits for that holds no flight.
            Some(Joined::Follower(_)) => return,
        };
        members.push((pending, (envelope, request, leader)));
    }
}

/// Nothing for a deferred source: no delivery of it runs the handler, nor waits for it.
fn join<DB: Backend>(
    shared: &Shared<DB>,
    source: &SourceState,
    envelope: &Envelope,
) -> Option<Joined> {
    let (name, id) = (source.name_arc(), envelope.event_id.as_arc());
    (!source.is_deferred()).then(|| shared.flights.join(&name, id, envelope.print()))
}

impl Claimed<'_> {
    /// Its places: of a batch they are all there.
    fn stretch<'s>(&'s self, source: &'s str) -> Stretch<'s> {
        let place =
            |member: Option<&(Pending, Readable)>| member.and_then(|(head, _)| head.sequence);
        let head = self.members.first().map(|(head, _)| head);
        Stretch {
            stream: Stream {
                source,
                correlation_id: head
                    .and_then(|head| head.correlation_id.as_deref())
                    .unwrap_or_default(),
            },
            generation: self.generation,
            first: place(self.members.first()).unwrap_or_default(),
            last: place(self.members.last()).unwrap_or_default(),
            lease: self.lease,
        }
    }
}

/// Applies them, as far as there is time; or none of them, and they are tried one by one.
pub(super) async fn run<DB: Backend>(
    shared: &Arc<Shared<DB>>,
    source: &Arc<SourceState>,
    target: &dyn Target,
    mut claimed: Claimed<'_>,
    deadline: Instant,
    pace: &mut Pace,
) -> Step {
    if shared.fail.reached(at::CLAIMED).await.is_err() {
        return later(SOON);
    }
    let mut leaders: Vec<_> = claimed
        .members
        .iter_mut()
        .map(|(_, (_, _, leader))| leader.take())
        .collect();
    let jobs: Vec<_> = claimed
        .members
        .iter()
        .map(|(head, (envelope, request, _))| Job {
            shared: &**shared,
            source,
            envelope,
            origin: Origin::Drained,
            request,
            stored: Stored::Already(&head.request),
            // A source that has sequences has no fence.
            fence: None,
            lease: claimed.lease,
            out_of_order: false,
            generation: AtomicI64::new(claimed.generation),
            deadline,
            places: None,
        })
        .collect();
    let stretch = claimed.stretch(source.name());
    let epoch = shared.recent.epoch();
    let batch = Batch {
        jobs: &jobs,
        stretch,
    };
    let ended = batch.run(&mut Draining(target)).await;
    if shared.fail.reached(at::DRAINED).await.is_err() {
        return later(SOON);
    }
    let (applied, waiting_for) = match &ended {
        Batched::Applied(kept) => (kept.len(), true),
        Batched::Undone { clean } => (0, *clean),
        Batched::Away | Batched::Unknown => (0, false),
    };
    if let Batched::Applied(kept) = &ended {
        for (job, kept) in jobs.iter().zip(kept) {
            shared.remember(epoch, source, job.envelope, kept.as_ref());
            source.tried(job.envelope, Outcome::Applied, None);
        }
        shared.worker.progress().applied(shared.clock.now());
        metrics::counter!(
            "inbox_drained_total",
            "source" => source.name_shared(), "outcome" => Outcome::Applied.as_str()
        )
        .increment(applied as u64);
    } else if !matches!(ended, Batched::Unknown) {
        // What may be committed is not claimed together again: their leases stay, and whoever finds one runs them one by one.
        hand_back(shared, source, &stretch).await;
    }
    // The next one is tried at once, and who waits for it waits for that.
    let first = stretch.first + i64::try_from(applied).unwrap_or_default();
    let mut rest = leaders.split_off(applied).into_iter().flatten();
    for leader in leaders.into_iter().flatten() {
        leader.land(End::Applied);
    }
    if matches!(ended, Batched::Away | Batched::Unknown) {
        return later(SOON);
    }
    pace.leader = rest.next();
    for leader in rest.filter(|_| waiting_for) {
        leader.land(End::Parked {
            waiting_for: lowest_missing(first),
        });
    }
    match ended {
        Batched::Applied(_) => pace.applied(applied),
        _ => pace.undone(jobs.len()),
    }
    Step::Applied
}

/// So that nothing of it is left. What could not be told is found when its turn comes.
async fn hand_back<DB: Backend>(shared: &Shared<DB>, source: &SourceState, stretch: &Stretch<'_>) {
    let deadline = Instant::now() + source.worker_budget().min(PATIENCE);
    let back = tokio::time::timeout_at(deadline, async {
        let _turn = shared.turn().await;
        let mut conn = shared.statements(deadline).await.map_err(drop)?;
        let back = DB::hand_back_batch(&mut conn, &shared.sql, stretch).await;
        conn.done(back).await.map_err(drop)
    });
    if !matches!(back.await, Ok(Ok(_))) {
        tracing::debug!(
            source = source.name(),
            correlation_id = stretch.stream.correlation_id,
            "the leases of a batch were not given back: its events are taken up one by one"
        );
    }
}

/// For the end of a transaction that was lost, whose locks are in the way.
const PATIENCE: Duration = Duration::from_secs(5);
