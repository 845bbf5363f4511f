//! Replay bursts (§7.4): what a producer sends again on demand, between two control events that say so.
//!
//! A delivery costs one count in memory. Every process adds its counts to the burst's row with its upkeep, from where they
//! stood when it last looked; so a process that learns late of a burst counts some seconds of live traffic too much, and
//! nothing too little.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::{Instant, timeout_at};

use crate::answer::Answer;
use crate::clock::Timestamp;
use crate::envelope::Envelope;
use crate::error::OperatorError;
use crate::event::Outcome;
use crate::inbox::Inbox;
use crate::order::in_time;
use crate::shared::Shared;
use crate::source::SourceState;
use crate::store::{Arrived, Backend, BurstEnd, BurstRow, BurstStart, Key};
use crate::verify::json::{self, JsonPath, Members};
use crate::verify::time;

/// An end may overtake the last events, and every process needs time to add its counts: they are taken, and told, so long
/// after it.
const SETTLE: Duration = Duration::from_secs(15);
/// An end that has not come by then does not come: longer than Kudos tries to deliver it, and leaves a burst some hours.
const ABANDONED: Duration = Duration::from_secs(12 * 3_600);
/// Types that are counted by themselves; what is beyond is counted for every type.
const TYPES: usize = 64;
/// The latest bursts that are listed.
const LISTED: i64 = 100;

/// A replay burst. See [`Inbox::bursts`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Burst {
    /// The event id of its start; of its end, if the start never came.
    pub id: String,
    /// The only event type that it sends again, if the producer said so.
    pub event_type: Option<String>,
    /// The times of the events that it sends again, as the producer said.
    pub since: Option<Timestamp>,
    /// The end of these times.
    pub until: Option<Timestamp>,
    /// When its start arrived.
    pub started_at: Option<Timestamp>,
    /// When its end arrived, or was given up.
    pub ended_at: Option<Timestamp>,
    /// How it stands.
    pub state: BurstState,
    /// How many events it had, by the producer's count at its end.
    pub announced: Option<u64>,
    /// Deliveries of events (of its type) between start and end that were applied, newly.
    pub applied: u64,
    /// That were duplicates.
    pub duplicates: u64,
    /// That were parked.
    pub parked: u64,
    /// That were rejected, or failed and come again.
    pub others: u64,
}

/// How a burst stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum BurstState {
    /// Its end has not come.
    Running,
    /// Its end has come.
    Completed,
    /// Its end did not come within twelve hours.
    Abandoned,
}

impl Burst {
    /// Deliveries between start and end. Live traffic of the same source is among them, and so is another burst at the same
    /// time: there may be fewer of this burst, and not more.
    pub fn arrived(&self) -> u64 {
        self.applied + self.duplicates + self.parked + self.others
    }

    /// How many of the announced events did not arrive, at least. Nothing while it is running, or where start and end came in
    /// the wrong order or not both, so that nothing was counted.
    pub fn missing(&self) -> Option<u64> {
        let counted = self.started_at? <= self.ended_at?;
        let announced = self.announced?;
        counted.then(|| announced.saturating_sub(self.arrived()))
    }

    fn read(row: &BurstRow) -> Self {
        let count = |n: i64| u64::try_from(n).unwrap_or(0);
        Self {
            id: row.burst_id.clone(),
            event_type: row.event_type.clone(),
            since: row.since,
            until: row.until,
            started_at: row.started_at,
            ended_at: row.ended_at,
            state: match (row.ended_at, &row.completed_by) {
                (None, _) => BurstState::Running,
                (Some(_), Some(_)) => BurstState::Completed,
                (Some(_), None) => BurstState::Abandoned,
            },
            announced: row.announced.map(count),
            applied: count(row.arrived.applied),
            duplicates: count(row.arrived.duplicates),
            parked: count(row.arrived.parked),
            others: count(row.arrived.others),
        }
    }
}

impl<DB: Backend> Inbox<DB> {
    /// The replay bursts of a source, the latest 100, newest first, with what this process has counted until now; what other
    /// processes count is added every few seconds. Only of sources whose preset knows them (`kudos`).
    ///
    /// # Errors
    /// If the database could not be asked.
    pub async fn bursts(&self, source: &str) -> Result<Vec<Burst>, OperatorError> {
        let shared = &self.shared;
        tend(shared).await.map_err(OperatorError::database)?;
        let rows = in_time(async {
            let mut conn = shared.acquire_statements().await?;
            let rows = DB::bursts(&mut conn, &shared.sql, Some((source, LISTED))).await;
            conn.done(rows).await
        });
        let rows = rows.await.map_err(OperatorError::database)?;
        Ok(rows.iter().map(Burst::read).collect())
    }
}

/// What a source's deliveries came to in this process, since it began: by event type.
#[derive(Default)]
pub(crate) struct Tally(Mutex<Counts>);

#[derive(Clone, Default)]
struct Counts {
    by_type: HashMap<Arc<str>, Arrived>,
    /// Without a type, and of types beyond so many.
    rest: Arrived,
}

impl Tally {
    pub(crate) fn count(&self, envelope: &Envelope, outcome: Outcome) {
        let mut counts = self.lock();
        let arrived = match &envelope.event_type {
            None => &mut counts.rest,
            Some(kind) => {
                let kind = kind.as_arc();
                if !counts.by_type.contains_key(kind) && counts.by_type.len() >= TYPES {
                    &mut counts.rest
                } else {
                    counts.by_type.entry(Arc::clone(kind)).or_default()
                }
            }
        };
        *match outcome {
            Outcome::Applied => &mut arrived.applied,
            Outcome::Duplicate => &mut arrived.duplicates,
            Outcome::Parked => &mut arrived.parked,
            _ => &mut arrived.others,
        } += 1;
    }

    fn lock(&self) -> MutexGuard<'_, Counts> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Counts {
    /// Of one type, or of all.
    fn of(&self, event_type: Option<&str>) -> Arrived {
        match event_type {
            Some(kind) => match self.by_type.get(kind) {
                Some(arrived) => *arrived,
                None if self.by_type.len() >= TYPES => self.rest,
                None => Arrived::default(),
            },
            None => {
                let mut all = self.rest;
                for arrived in self.by_type.values() {
                    all.applied += arrived.applied;
                    all.duplicates += arrived.duplicates;
                    all.parked += arrived.parked;
                    all.others += arrived.others;
                }
                all
            }
        }
    }
}

impl Arrived {
    fn since(self, earlier: Self) -> Self {
        Self {
            applied: self.applied - earlier.applied,
            duplicates: self.duplicates - earlier.duplicates,
            parked: self.parked - earlier.parked,
            others: self.others - earlier.others,
        }
    }
}

/// What this process knows of bursts.
#[derive(Default)]
pub(crate) struct Bursts(tokio::sync::Mutex<Seen>);

#[derive(Default)]
struct Seen {
    /// Up to where this process's counts are in the row of (source, burst).
    added: HashMap<(String, String), Arrived>,
    /// At the last look: where counting begins for a burst that began since.
    last: HashMap<String, Counts>,
}

/// A control event about a burst.
pub(crate) enum Control {
    Started {
        event_id: String,
        /// Sent before, as the producer says: its end may have overtaken it.
        again: bool,
        event_type: Option<String>,
        since: Option<Timestamp>,
        until: Option<Timestamp>,
    },
    Completed {
        event_id: String,
        announced: Option<i64>,
    },
}

impl Control {
    /// Nothing if it is about something else.
    pub(crate) fn of(source: &SourceState, envelope: &Envelope, body: &[u8]) -> Option<Self> {
        let (started, completed) = source.mapping().replay_types()?;
        let kind = envelope.event_type.as_deref()?;
        let members = Members::read(body, ["data"]).ok();
        let value = |path: &'static str| members.as_ref()?.at(&JsonPath::from(path)).ok()?;
        // What of it cannot be read is not known; the event counts all the same.
        let text = |path| json::text(value(path)?);
        let time = |path| Some(time::rfc3339(&text(path)?)?.0);
        let event_id = envelope.event_id.as_str().to_owned();
        if kind == started {
            return Some(Self::Started {
                event_id,
                again: envelope.attempt.is_some_and(|attempt| attempt > 1),
                event_type: text("data.event_type")
                    .filter(|kind| kind.len() <= crate::envelope::MAX_BYTES)
                    .map(|kind| kind.into_owned()),
                since: time("data.since"),
                until: time("data.until"),
            });
        }
        let announced = || {
            let announced = value("data.events_emitted")?.get().parse::<i64>().ok()?;
            (announced >= 0).then_some(announced)
        };
        (kind == completed).then(|| Self::Completed {
            event_id,
            announced: announced(),
        })
    }
}

/// Takes durable note of control events. Each counts once, however often it is delivered.
pub(crate) async fn note<DB: Backend>(
    shared: &Shared<DB>,
    source: &SourceState,
    controls: &[Control],
    deadline: Instant,
) -> Result<(), Answer> {
    for control in controls {
        let noted = timeout_at(deadline, one(shared, source, control, deadline));
        match noted.await {
            Ok(Ok(())) => {}
            Ok(Err(answer)) => return Err(answer),
            Err(_) => return Err(Answer::unavailable("the delivery's time is spent")),
        }
    }
    Ok(())
}

async fn one<DB: Backend>(
    shared: &Shared<DB>,
    source: &SourceState,
    control: &Control,
    deadline: Instant,
) -> Result<(), Answer> {
    let mut seen = shared.bursts.0.lock().await;
    let _turn = shared.turn().await;
    let mut conn = shared.statements(deadline).await?;
    let noted = write::<DB>(shared, source, control, &mut conn).await;
    let noted = conn.done(noted).await;
    let started = noted.map_err(|error| {
        tracing::warn!(source = source.name(), %error, "could not take note of a replay burst");
        Answer::unavailable("the database is not available")
    })?;
    if let (Some(id), Control::Started { event_type, .. }) = (started, control) {
        let counts = source.arrivals().lock().of(event_type.as_deref());
        seen.added.insert((source.name().to_owned(), id), counts);
    }
    Ok(())
}

/// The burst that begins here, if one does.
async fn write<DB: Backend>(
    shared: &Shared<DB>,
    source: &SourceState,
    control: &Control,
    conn: &mut DB::Connection,
) -> Result<Option<String>, sqlx::Error> {
    let (sql, at, name) = (&shared.sql, shared.clock.now(), source.name());
    match control {
        Control::Started {
            event_id,
            again,
            event_type,
            since,
            until,
        } => {
            let key = Key {
                source: name,
                event_id,
            };
            let start = BurstStart {
                key,
                event_type: event_type.as_deref(),
                since: *since,
                until: *until,
                at,
            };
            if *again {
                let span = at.minus(source.retry_span());
                let orphan = DB::orphan_burst(conn, sql, name, span).await?;
                if let Some(orphan) = orphan
                    && DB::adopt_burst(conn, sql, &orphan, &start).await?
                {
                    return Ok(None);
                }
            }
            let new = DB::start_burst(conn, sql, &start).await?;
            if new {
                tracing::info!(
                    source = name,
                    event_id,
                    event_type,
                    ?since,
                    ?until,
                    "a replay burst begins"
                );
            }
            Ok(new.then(|| event_id.clone()))
        }
        Control::Completed {
            event_id,
            announced,
        } => {
            let key = Key {
                source: name,
                event_id,
            };
            let end = BurstEnd {
                key,
                announced: *announced,
                at,
            };
            // The one that has run longest, as long as others do not end it first.
            while !DB::burst_ended_by(conn, sql, key).await? {
                match DB::running_burst(conn, sql, name).await? {
                    Some(running) => {
                        if DB::end_burst(conn, sql, &running, &end, true).await? {
                            break;
                        }
                    }
                    None => {
                        DB::end_unknown_burst(conn, sql, &end).await?;
                        break;
                    }
                }
            }
            Ok(None)
        }
    }
}

/// Adds what this process has counted, ends what is given up, and tells about what has ended.
pub(crate) async fn tend<DB: Backend>(shared: &Shared<DB>) -> Result<(), sqlx::Error> {
    let sources: Vec<_> = shared
        .sources
        .values()
        .cloned()
        .chain(shared.tenants.alive())
        .filter(|source| source.mapping().replay_types().is_some())
        .collect();
    if sources.is_empty() {
        return Ok(());
    }
    let mut seen = shared.bursts.0.lock().await;
    let counts: HashMap<_, _> = sources
        .iter()
        .map(|source| (source.name().to_owned(), source.arrivals().lock().clone()))
        .collect();
    let rows = in_time(async {
        let mut conn = shared.acquire_statements().await?;
        let rows = DB::bursts(&mut conn, &shared.sql, None).await;
        conn.done(rows).await
    })
    .await?;
    let mut added = HashMap::new();
    for row in &rows {
        let Some(counts) = counts.get(&row.source) else {
            continue;
        };
        let now = counts.of(row.event_type.as_deref());
        let id = (row.source.clone(), row.burst_id.clone());
        let before = seen.added.get(&id).copied().unwrap_or_else(|| {
            let last = seen.last.get(&row.source);
            last.map_or(Arrived::default(), |last| {
                last.of(row.event_type.as_deref())
            })
        });
        let counted = match (row.started_at, row.ended_at) {
            (Some(start), Some(end)) => start <= end,
            (start, _) => start.is_some(),
        };
        let more = if counted {
            now.since(before)
        } else {
            Arrived::default()
        };
        settle(shared, row, more).await?;
        added.insert(id, now);
    }
    seen.added = added;
    seen.last = counts;
    Ok(())
}

async fn settle<DB: Backend>(
    shared: &Shared<DB>,
    row: &BurstRow,
    more: Arrived,
) -> Result<(), sqlx::Error> {
    let now = shared.clock.now();
    let given_up =
        row.ended_at.is_none() && row.started_at.is_some_and(|at| now.since(at) >= ABANDONED);
    let settled = row.ended_at.is_some_and(|at| now.since(at) >= SETTLE);
    if more == Arrived::default() && !given_up && !settled {
        return Ok(());
    }
    let key = Key {
        source: &row.source,
        event_id: &row.burst_id,
    };
    let told = in_time(async {
        let _turn = shared.turn().await;
        let mut conn = shared.acquire_statements().await?;
        let told = async {
            let sql = &shared.sql;
            if more != Arrived::default() {
                DB::count_burst(&mut conn, sql, key, more).await?;
            }
            if given_up {
                let end = BurstEnd {
                    key,
                    announced: None,
                    at: now,
                };
                DB::end_burst(&mut conn, sql, &row.burst_id, &end, false).await?;
            }
            Ok(settled && DB::report_burst(&mut conn, sql, key).await?)
        };
        let told = told.await;
        conn.done(told).await
    });
    if told.await? {
        let mut burst = Burst::read(row);
        let count = |n: i64| u64::try_from(n).unwrap_or(0);
        burst.applied += count(more.applied);
        burst.duplicates += count(more.duplicates);
        burst.parked += count(more.parked);
        burst.others += count(more.others);
        tell(&row.source, &burst);
    }
    Ok(())
}

fn tell(source: &str, burst: &Burst) {
    let (arrived, missing) = (burst.arrived(), burst.missing());
    let end = match (burst.state, missing) {
        (BurstState::Abandoned, _) => "abandoned",
        (_, None) => "uncounted",
        (_, Some(0)) => "complete",
        (_, Some(_)) => "short",
    };
    metrics::counter!("inbox_bursts_total", "source" => source.to_owned(), "end" => end)
        .increment(1);
    metrics::counter!("inbox_bursts_missing_total", "source" => source.to_owned())
        .increment(missing.unwrap_or(0));
    let Burst {
        id,
        announced,
        applied,
        duplicates,
        parked,
        others,
        ..
    } = burst;
    if matches!(end, "complete" | "uncounted") {
        tracing::info!(
            source,
            burst = id,
            end,
            announced,
            arrived,
            applied,
            duplicates,
            parked,
            others,
            "a replay burst has ended"
        );
    } else {
        tracing::warn!(
            source,
            burst = id,
            end,
            announced,
            arrived,
            missing,
            applied,
            duplicates,
            parked,
            others,
            "fewer events of a replay burst arrived than were announced, or its end never came"
        );
    }
}
