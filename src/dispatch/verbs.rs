//! What operators decide (§5.15): each one transaction that is safe to repeat, and audited in it.
//!
//! Lock order as everywhere: event rows first, then the cursor.

use super::aside::lock_or_open;
use super::own::{Ended, Own};
use super::{Stop, cursor};
use crate::broken::{self, Variant};
use crate::clock::Timestamp;
use crate::error::{OperatorError, OperatorErrorKind as Kind};
use crate::operator::Seen;
use crate::shared::Shared;
use crate::store::{
    AT_ONCE, Attempt, Audit, Backend, Cursor, Key, Known, Lease, Place, Range, RangeKind, Reason,
    Sql, Start, State, Stream,
};

/// Events of one page.
const PAGE: i64 = 500;

/// What an operator's action came to.
pub(crate) struct Change {
    /// False: it was so already.
    pub(crate) changed: bool,
    /// The stream whose head may be due now.
    pub(crate) stream: Option<String>,
    /// Where the stream stands, after an action on it.
    pub(crate) cursor: Option<Seen>,
}

pub(super) type Done = Result<Change, OperatorError>;

pub(super) fn refused<T>(kind: Kind) -> Result<Ended<Result<T, OperatorError>>, Stop> {
    Ok(Ended::RollBack(Err(OperatorError::refused(kind))))
}

pub(super) fn already(cursor: Option<Seen>) -> Result<Ended<Done>, Stop> {
    Ok(Ended::RollBack(Ok(Change {
        changed: false,
        stream: None,
        cursor,
    })))
}

/// A dead letter goes back into its turn, or is applied out of its order.
pub(crate) struct Replay<'a> {
    pub(crate) key: Key<'a>,
    pub(crate) out_of_order: bool,
    /// Where its stream begins, if its source is known.
    pub(crate) begins: Option<Start>,
    pub(crate) actor: &'a str,
    pub(crate) reason: &'a str,
}

impl<DB: Backend> Own<DB> for Replay<'_> {
    type Done = Done;

    async fn once(
        &self,
        shared: &Shared<DB>,
        conn: &mut DB::Connection,
    ) -> Result<Ended<Done>, Stop> {
        let (sql, at) = (&shared.sql, shared.clock.now());
        let Some(known) = DB::lock_event(conn, sql, self.key).await? else {
            return refused(Kind::NotFound);
        };
        match known.state {
            State::Applied => return already(None),
            State::Fenced => return refused(Kind::Fenced),
            State::Superseded | State::Discarded => return refused(Kind::Closed),
            State::Parked | State::Dead => {}
        }
        if known.has_yielded {
            return refused(Kind::Yielded);
        }
        let turn = turn::<DB>(conn, sql, self.key.source, &known, self.begins, at).await?;
        let Some(turn) = turn else {
            return refused(Kind::NotFound);
        };
        match turn {
            Turn::ToCome if self.out_of_order => return refused(Kind::InTurn),
            // Parked and never in turn: it is being replayed out of its order.
            Turn::ToCome | Turn::None | Turn::Never if known.state == State::Parked => {
                return already(None);
            }
            Turn::Never if !self.out_of_order => return refused(Kind::SetAside),
            _ if known.is_set_aside() && !self.out_of_order => return refused(Kind::SetAside),
            _ => {}
        }
        let out_of_order = self.out_of_order && turn == Turn::Never;
        if !DB::swap_state(conn, sql, self.key, State::Dead, State::Parked, at).await? {
            return Err(Stop::Again);
        }
        if !DB::release_pending(conn, sql, self.key, out_of_order, at).await? {
            return refused(Kind::BodyNotKept);
        }
        let audit = Audit {
            at,
            key: self.key,
            correlation_id: known.correlation_id.as_deref(),
            action: if self.out_of_order {
                "replay_out_of_order"
            } else {
                "replay"
            },
            actor: self.actor,
            detail: self.reason,
        };
        DB::audit(conn, sql, &audit).await?;
        Ok(Ended::Commit(Ok(Change {
            changed: true,
            stream: known.correlation_id.filter(|_| turn == Turn::ToCome),
            cursor: None,
        })))
    }
}

/// Whether a stored event's turn may come.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Turn {
    /// It has no place in a stream.
    None,
    ToCome,
    /// Its place is passed, skipped, or of an earlier generation.
    Never,
}

/// Locks the cursor of a stored event's stream, which is the second lock. A worker finds what is due by it, and that of a
/// stream of which nothing was ever applied went with the rollback of its first event: it is opened then. Nothing if it is
/// not known here where the stream begins: no worker would find the event.
async fn turn<DB: Backend>(
    conn: &mut DB::Connection,
    sql: &Sql,
    source: &str,
    known: &Known,
    begins: Option<Start>,
    at: Timestamp,
) -> Result<Option<Turn>, Stop> {
    let (Some(correlation_id), Some(sequence)) = (&known.correlation_id, known.sequence) else {
        return Ok(Some(Turn::None));
    };
    let stream = Stream {
        source,
        correlation_id,
    };
    let begins = begins.map(|start| start.after_a_turn_of(sequence));
    let Some(cursor) = lock_or_open::<DB>(conn, sql, stream, begins, at).await? else {
        return Ok(None);
    };
    let place = Place {
        stream,
        generation: known.generation,
        sequence,
    };
    let never = place.generation != cursor.generation
        || sequence < cursor.next
        || DB::range_at(conn, sql, &place).await?.is_some();
    Ok(Some(if never { Turn::Never } else { Turn::ToCome }))
}

/// An event is never applied. With a place that is not passed yet, that place is skipped.
pub(crate) struct Discard<'a> {
    pub(crate) key: Key<'a>,
    /// Where its stream begins, if its source is known.
    pub(crate) begins: Option<Start>,
    pub(crate) actor: &'a str,
    pub(crate) reason: &'a str,
}

impl<DB: Backend> Own<DB> for Discard<'_> {
    type Done = Done;

    async fn once(
        &self,
        shared: &Shared<DB>,
        conn: &mut DB::Connection,
    ) -> Result<Ended<Done>, Stop> {
        let (sql, at) = (&shared.sql, shared.clock.now());
        let Some(known) = DB::lock_event(conn, sql, self.key).await? else {
            return refused(Kind::NotFound);
        };
        match known.state {
            State::Applied => return refused(Kind::Applied),
            State::Superseded => return refused(Kind::Closed),
            State::Discarded => return already(None),
            State::Parked | State::Dead | State::Fenced => {}
        }
        if !DB::discard_event(conn, sql, self.key, at).await? {
            return Err(Stop::Again);
        }
        DB::delete_pending(conn, sql, self.key, Lease::NONE).await?;
        if let (Some(correlation_id), Some(sequence), false) =
            (&known.correlation_id, known.sequence, known.has_yielded)
        {
            let stream = Stream {
                source: self.key.source,
                correlation_id,
            };
            // Without a cursor it has had its turn, as in `turn`.
            let begins = self.begins.map(|start| start.after_a_turn_of(sequence));
            let cursor = lock_or_open::<DB>(conn, sql, stream, begins, at).await?;
            let Some(mut cursor) = cursor else {
                return refused(Kind::NotFound);
            };
            let skips = !broken::is(Variant::DiscardWithoutSkip);
            if cursor.generation == known.generation && sequence >= cursor.next && skips {
                let range = Range {
                    first: sequence,
                    last: sequence,
                    kind: RangeKind::Skipped,
                };
                cursor::add::<DB>(conn, sql, stream, &mut cursor, range, at).await?;
            }
        }
        let audit = Audit {
            at,
            key: self.key,
            correlation_id: known.correlation_id.as_deref(),
            action: "discard",
            actor: self.actor,
            detail: self.reason,
        };
        DB::audit(conn, sql, &audit).await?;
        Ok(Ended::Commit(Ok(Change {
            changed: true,
            stream: known.correlation_id.filter(|_| known.sequence.is_some()),
            cursor: None,
        })))
    }
}

/// Sequences from the cursor on that are never waited for.
pub(crate) struct Never<'a> {
    pub(crate) stream: Stream<'a>,
    pub(crate) range: Range,
    pub(crate) seen: Seen,
    /// Where the stream begins, if its source is known.
    pub(crate) begins: Option<Start>,
    pub(crate) actor: &'a str,
    pub(crate) reason: &'a str,
}

impl<DB: Backend> Own<DB> for Never<'_> {
    type Done = Done;

    async fn once(
        &self,
        shared: &Shared<DB>,
        conn: &mut DB::Connection,
    ) -> Result<Ended<Done>, Stop> {
        let (sql, at, stream, range) = (&shared.sql, shared.clock.now(), self.stream, self.range);
        DB::set_aside(conn, sql, stream, self.seen.generation, range, at).await?;
        let cursor = lock_or_open::<DB>(conn, sql, stream, self.begins, at).await?;
        let Some(mut cursor) = cursor else {
            return refused(Kind::NotFound);
        };
        let now = Seen::from(cursor);
        if now.generation != self.seen.generation {
            return refused(Kind::CursorMoved { now });
        }
        if cursor.next < 0 {
            return refused(Kind::NotBegun);
        }
        let done = match range.kind {
            RangeKind::FastForward => cursor.next > range.last,
            _ => is_covered::<DB>(conn, sql, stream, cursor, range).await?,
        };
        if done {
            return already(Some(now));
        }
        if now != self.seen && !broken::is(Variant::SkipUnseen) {
            return refused(Kind::CursorMoved { now });
        }
        if range.first < cursor.next {
            return refused(Kind::Applied);
        }
        if cursor::add::<DB>(conn, sql, stream, &mut cursor, range, at).await? {
            // Again, now that nobody can park any more: what was parked since.
            DB::set_aside(conn, sql, stream, cursor.generation, range, at).await?;
        }
        let (action, what) = match range.kind {
            RangeKind::FastForward => ("fast_forward", "fast-forwarded"),
            _ => ("skip", "skipped"),
        };
        let detail = format!(
            "{what} {} to {} of {:?}, cursor {} to {}: {}",
            range.first, range.last, stream.correlation_id, now.next, cursor.next, self.reason
        );
        audit_stream::<DB>(conn, sql, stream, at, action, self.actor, &detail).await?;
        Ok(Ended::Commit(Ok(moved(stream, cursor))))
    }
}

/// Whether every sequence of a range lies in ranges that are there.
async fn is_covered<DB: Backend>(
    conn: &mut DB::Connection,
    sql: &Sql,
    stream: Stream<'_>,
    cursor: Cursor,
    range: Range,
) -> Result<bool, Stop> {
    let mut place = Place {
        stream,
        generation: cursor.generation,
        sequence: range.first,
    };
    while place.sequence <= range.last {
        match DB::range_at(conn, sql, &place).await? {
            Some(there) => place.sequence = there.last + 1,
            None => return Ok(false),
        }
    }
    Ok(true)
}

/// A stream begins again, at a sequence of the operator's choice.
pub(crate) struct Reset<'a> {
    pub(crate) stream: Stream<'a>,
    pub(crate) first: i64,
    pub(crate) seen: Seen,
    /// The lowest sequence that its source takes, if it is known.
    pub(crate) begins: Option<Start>,
    pub(crate) actor: &'a str,
    pub(crate) reason: &'a str,
}

impl<DB: Backend> Own<DB> for Reset<'_> {
    type Done = Done;

    async fn once(
        &self,
        shared: &Shared<DB>,
        conn: &mut DB::Connection,
    ) -> Result<Ended<Done>, Stop> {
        let (sql, at, stream) = (&shared.sql, shared.clock.now(), self.stream);
        let everything = Range {
            first: 0,
            last: i64::MAX,
            kind: RangeKind::Skipped,
        };
        DB::set_aside(conn, sql, stream, self.seen.generation, everything, at).await?;
        set_versions_aside::<DB>(conn, sql, stream, at).await?;
        let Some(cursor) = cursor::lock::<DB>(conn, sql, stream, at).await? else {
            return refused(Kind::NotFound);
        };
        let now = Seen::from(cursor);
        if now != self.seen && !broken::is(Variant::SkipUnseen) {
            return refused(Kind::CursorMoved { now });
        }
        // Again, now that nobody can park any more.
        DB::set_aside(conn, sql, stream, cursor.generation, everything, at).await?;
        let renewed = Cursor {
            next: self.first,
            generation: cursor.generation + 1,
            next_range: None,
        };
        let lowest = self.begins.map_or(0, |start| start.next.max(0));
        if lowest < self.first {
            // What is lower comes late, and is no duplicate of anything in this generation.
            let before = Range {
                first: lowest,
                last: self.first - 1,
                kind: RangeKind::BeforeStart,
            };
            DB::insert_range(conn, sql, stream, renewed.generation, before, at).await?;
        }
        DB::move_cursor(conn, sql, stream, renewed, at).await?;
        DB::renew_cursor(conn, sql, stream).await?;
        let detail = format!(
            "generation {} of {:?} from {} on, after cursor {}: {}",
            renewed.generation, stream.correlation_id, self.first, now.next, self.reason
        );
        audit_stream::<DB>(conn, sql, stream, at, "reset", self.actor, &detail).await?;
        Ok(Ended::Commit(Ok(moved(stream, renewed))))
    }
}

/// Of newer-than order: a version of before would be greater than those that begin anew.
async fn set_versions_aside<DB: Backend>(
    conn: &mut DB::Connection,
    sql: &Sql,
    stream: Stream<'_>,
    at: Timestamp,
) -> Result<(), Stop> {
    let attempt = Attempt {
        reason: Some(Reason::Skipped),
        not_before: AT_ONCE,
        status: None,
        error: None,
        lease: Lease::NONE,
    };
    let mut after = String::new();
    loop {
        let page = DB::unplaced(conn, sql, stream, &after, PAGE).await?;
        let full = page.len() as i64 == PAGE;
        for event_id in page {
            let key = Key {
                source: stream.source,
                event_id: &event_id,
            };
            let known = DB::lock_event(conn, sql, key).await?;
            if let Some(state @ (State::Parked | State::Dead)) = known.map(|known| known.state)
                && !(DB::swap_state(conn, sql, key, state, State::Dead, at).await?
                    && DB::record_attempt(conn, sql, key, &attempt).await?)
            {
                return Err(Stop::Again);
            }
            after = event_id;
        }
        if !full {
            return Ok(());
        }
    }
}

fn moved(stream: Stream<'_>, cursor: Cursor) -> Change {
    Change {
        changed: true,
        stream: Some(stream.correlation_id.to_owned()),
        cursor: Some(Seen::from(cursor)),
    }
}

async fn audit_stream<DB: Backend>(
    conn: &mut DB::Connection,
    sql: &Sql,
    stream: Stream<'_>,
    at: Timestamp,
    action: &'static str,
    actor: &str,
    detail: &str,
) -> Result<(), Stop> {
    let audit = Audit {
        at,
        key: Key {
            source: stream.source,
            event_id: "",
        },
        correlation_id: Some(stream.correlation_id),
        action,
        actor,
        detail,
    };
    Ok(DB::audit(conn, sql, &audit).await?)
}

/// A cursor that version 1 of the crate has put inside of a range goes on from there.
pub(crate) struct Heal<'a>(pub(crate) Stream<'a>);

impl<DB: Backend> Own<DB> for Heal<'_> {
    type Done = ();

    async fn once(
        &self,
        shared: &Shared<DB>,
        conn: &mut DB::Connection,
    ) -> Result<Ended<()>, Stop> {
        cursor::lock::<DB>(conn, &shared.sql, self.0, shared.clock.now()).await?;
        Ok(Ended::Commit(()))
    }
}
