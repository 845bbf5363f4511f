//! Streams in which something waits, and what is stored of one.

use std::collections::HashMap;
use std::io;

use super::letters::status;
use super::stream::{Seen, StreamInfo, info};
use super::{MOST, Operator, Rows};
use crate::clock::Timestamp;
use crate::error::OperatorError;
use crate::order::in_time;
use crate::store::{Backend, Lease, Place, Reason, Stream, StreamEventRow, StreamRow};

/// More than anybody looks at.
const URGENT: i64 = 100;

/// Where a page of streams ended: what the next one comes after.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct StreamKey {
    /// The name of a source.
    pub source: String,
    /// A correlation id of it.
    pub correlation_id: String,
}

impl StreamKey {
    /// From a key that was written down.
    pub fn new(source: impl Into<String>, correlation_id: impl Into<String>) -> Self {
        Self {
            source: source.into(),
            correlation_id: correlation_id.into(),
        }
    }
}

/// A stream in which something waits, or that a dead letter holds up.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct WaitingStream {
    /// The name of its source.
    pub source: String,
    /// Its correlation id.
    pub correlation_id: String,
    /// How often it was reset before these events came.
    pub generation: i64,
    /// The next sequence that may be applied: what it waits for. Nothing if it has no cursor yet, and its source is not known
    /// here.
    pub next: Option<i64>,
    /// The lowest sequence that is stored.
    pub first: i64,
    /// The highest sequence that is stored.
    pub last: i64,
    /// Events that are parked.
    pub parked: u64,
    /// Dead letters at the cursor or behind it: of a gap, the handler, rejected, crash.
    pub dead: u64,
    /// When the oldest of them was parked.
    pub oldest: Timestamp,
    /// What is stored at [`WaitingStream::next`], and holds up what is behind it. Nothing: that sequence is missing.
    pub head: Option<Head>,
}

/// What a stream waits for, if that is stored: an event that is tried again, or a dead letter.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Head {
    /// Why it is dead; nothing if it is due.
    pub reason: Option<Reason>,
    /// How often its handler has run in vain since it was stored or replayed.
    pub attempts: i64,
    /// The status that the handler last answered.
    pub last_status: Option<u16>,
    /// The worker's next attempt comes no earlier.
    pub not_before: Timestamp,
}

impl WaitingStream {
    /// What an action on the stream is decided by, if it has a cursor.
    #[must_use]
    pub fn seen(&self) -> Option<Seen> {
        let generation = self.generation;
        self.next.map(|next| Seen { generation, next })
    }
}

impl From<StreamRow> for WaitingStream {
    fn from(row: StreamRow) -> Self {
        Self {
            source: row.source,
            correlation_id: row.correlation_id,
            generation: row.generation,
            next: row.next,
            first: row.lowest,
            last: row.highest,
            parked: row.parked.unsigned_abs(),
            dead: row.dead.unsigned_abs(),
            oldest: row.oldest,
            head: row.head.map(|head| Head {
                reason: head.reason,
                attempts: head.attempts,
                last_status: status(head.last_status),
                not_before: head.not_before,
            }),
        }
    }
}

/// Some streams, by source and correlation id.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct StreamPage {
    /// In the order of source and correlation id.
    pub streams: Vec<WaitingStream>,
    /// Where the next page goes on; nothing if this is the last one.
    pub next: Option<StreamKey>,
}

/// The streams that need somebody most, of all that wait.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct UrgentStreams {
    /// When this was looked up.
    pub at: Timestamp,
    /// Up to 100: first those that a dead letter holds up, then those whose next event has failed and is tried again, then those
    /// that wait for a sequence that has not come, and last what goes on by itself; of each, those first whose oldest event has
    /// been stored longest.
    pub streams: Vec<WaitingStream>,
    /// In how many streams something waits, in all.
    pub all: u64,
    /// How many of those a dead letter holds up.
    pub held_up: u64,
    /// In how many the next event has failed, and is tried again.
    pub failing: u64,
}

/// A stored event in its stream.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct StreamEvent {
    /// The producer's own id of it.
    pub event_id: String,
    /// Its place in the stream.
    pub sequence: i64,
    /// Why it is dead; nothing if it is parked.
    pub reason: Option<Reason>,
    /// When it was stored.
    pub parked_at: Timestamp,
    /// The worker's next attempt comes no earlier.
    pub not_before: Timestamp,
    /// How often its handler has run in vain since it was stored or replayed.
    pub attempts: i64,
    /// The status that the handler last answered.
    pub last_status: Option<u16>,
    /// What went wrong last, in words.
    pub last_error: Option<String>,
    /// A worker has claimed it, or had when it ended.
    pub leased: bool,
}

#[cfg(test)]
impl StreamEvent {
    /// As one that has just been stored.
    pub(crate) fn stored(sequence: i64, reason: Option<Reason>) -> Self {
        Self {
            event_id: format!("evt_{sequence}"),
            sequence,
            reason,
            parked_at: Timestamp::default(),
            not_before: Timestamp::default(),
            attempts: 0,
            last_status: None,
            last_error: None,
            leased: false,
        }
    }
}

impl From<StreamEventRow> for StreamEvent {
    fn from(row: StreamEventRow) -> Self {
        Self {
            event_id: row.event_id,
            sequence: row.sequence,
            reason: row.reason,
            parked_at: row.parked_at,
            not_before: row.not_before,
            attempts: row.attempts - row.lease.counts(),
            last_status: status(row.last_status),
            last_error: row.last_error,
            leased: row.lease != Lease::NONE,
        }
    }
}

/// A stream, and what is stored of it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct StreamView {
    /// Where it stands.
    pub info: StreamInfo,
    /// Stored events of its present generation, lowest first.
    pub events: Vec<StreamEvent>,
    /// There are more behind them.
    pub more: bool,
}

impl<DB: Backend> Operator<DB> {
    /// Streams in which something waits or that a dead letter holds up, up to `limit` (at most 1,000) after `after`: of one
    /// source, or of all. What was set aside on purpose holds nothing up.
    ///
    /// ```no_run
    /// # async fn example(ada: tower_inbox::Operator<sqlx::Sqlite>) -> Result<(), tower_inbox::OperatorError> {
    /// for stream in ada.streams(Some("crm"), None, 50).await?.streams {
    ///     println!("{} waits for {:?}, {} behind it", stream.correlation_id, stream.next, stream.parked);
    /// }
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// If the database could not be asked.
    pub async fn streams(
        &self,
        source: Option<&str>,
        after: Option<&StreamKey>,
        limit: usize,
    ) -> Result<StreamPage, OperatorError> {
        let limit = limit.clamp(1, MOST);
        let after = after.map_or(("", ""), |key| (&key.source, &key.correlation_id));
        let after = Stream {
            source: after.0,
            correlation_id: after.1,
        };
        let found = self
            .look(async |shared, conn| {
                DB::waiting_streams(conn, &shared.sql, source, after, limit.rows()).await
            })
            .await?;
        let last = found.last().filter(|_| found.len() == limit);
        let next = last.map(|row| StreamKey::new(&*row.source, &*row.correlation_id));
        let streams = self.as_waiting(found).await;
        Ok(StreamPage { streams, next })
    }

    /// The streams that need somebody most, and how many wait, of all sources. All that is stored is read for it, of which
    /// there is a bound for each source; where that takes long, it is not done again for fifty times as long, and
    /// [`UrgentStreams::at`] says of when it is.
    ///
    /// # Errors
    /// If the database could not be asked.
    pub async fn urgent_streams(&self) -> Result<UrgentStreams, OperatorError> {
        let look = async {
            let at = self.shared.clock.now();
            // That there is no connection says nothing of how long the look takes.
            let conn = in_time(self.shared.acquire_statements()).await;
            let mut conn = conn.map_err(|error| match error {
                sqlx::Error::PoolTimedOut => sqlx::Error::Io(io::ErrorKind::TimedOut.into()),
                error => error,
            })?;
            let found = in_time(async {
                let found = DB::urgent_streams(&mut conn, &self.shared.sql, URGENT).await;
                conn.done(found).await
            });
            let found = found.await?;
            Ok(UrgentStreams {
                at,
                streams: found.streams.into_iter().map(WaitingStream::from).collect(),
                all: found.all.unsigned_abs(),
                held_up: found.held_up.unsigned_abs(),
                failing: found.failing.unsigned_abs(),
            })
        };
        let found = self.shared.stats.urgent.or_last(look).await;
        let mut found = found
            .map(|found| UrgentStreams::clone(&found))
            .map_err(OperatorError::database)?;
        // Not within the look, for whose end everybody else waits: to look tenants up is the app's own, and may take long.
        self.begin(&mut found.streams).await;
        Ok(found)
    }

    async fn as_waiting(&self, found: Vec<StreamRow>) -> Vec<WaitingStream> {
        let mut streams: Vec<_> = found.into_iter().map(WaitingStream::from).collect();
        self.begin(&mut streams).await;
        streams
    }

    /// Says of those without a cursor where they begin.
    async fn begin(&self, streams: &mut [WaitingStream]) {
        let mut begins = HashMap::new();
        for stream in streams {
            // Nothing of it was applied or parked: it is where its source begins.
            if stream.next.is_none() && stream.generation == 0 {
                // Once for each source: it may be looked up for it.
                if !begins.contains_key(&stream.source) {
                    let next = self.begins(&stream.source).await.map(|start| start.next);
                    begins.insert(stream.source.clone(), next);
                }
                stream.next = begins.get(&stream.source).copied().flatten();
            }
            // Without a cursor it is the lowest one's.
            if stream.next.is_some_and(|next| next < stream.first) {
                stream.head = None;
            }
        }
    }

    /// Where a stream stands, and up to `limit` (at most 1,000) of the events that are stored of its present generation,
    /// from a sequence on, or from the lowest. Nothing if nothing is known of it, or if all that is known of it is dead letters
    /// and its source is not known here, so that nobody can say where it begins.
    ///
    /// # Errors
    /// If the database could not be asked.
    pub async fn stream(
        &self,
        source: &str,
        correlation_id: &str,
        from: Option<i64>,
        limit: usize,
    ) -> Result<Option<StreamView>, OperatorError> {
        let limit = limit.clamp(1, MOST);
        let stream = Stream {
            source,
            correlation_id,
        };
        let begins = self.begins(source).await;
        self.look(async |shared, conn| {
            let known = info(shared, conn, stream).await?;
            let has_begun = known.is_some();
            let begins = begins.map(|start| StreamInfo {
                next: start.next,
                generation: 0,
                ranges: Vec::new(),
            });
            let Some(info) = known.or(begins) else {
                return Ok(None);
            };
            let place = Place {
                stream,
                generation: info.generation,
                sequence: from.unwrap_or(i64::MIN),
            };
            // One more, to know whether there are more.
            let found = DB::stream_events(conn, &shared.sql, &place, (limit + 1).rows()).await?;
            if !has_begun && found.is_empty() {
                return Ok(None);
            }
            let more = found.len() > limit;
            let events = found.into_iter().take(limit).map(StreamEvent::from);
            Ok(Some(StreamView {
                info,
                events: events.collect(),
                more,
            }))
        })
        .await
    }
}
