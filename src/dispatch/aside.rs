//! Events whose place is never waited for: kept whole, handed over only if an operator replays them out of their order.

use super::open::Open;
use super::{Job, Settled, Stop, cursor, within};
use crate::answer::Answer;
use crate::queue::End;
use crate::store::{
    AT_ONCE, Attempt, Backend, Cursor, Range, RangeKind, Reason, Sql, Start, State, Stream,
};

impl<DB: Backend> Job<'_, DB> {
    /// Its row says applied so far if it is new, and otherwise what `from` says.
    pub(super) async fn set_aside<R>(
        &self,
        mut open: Open<'_, DB>,
        reason: Reason,
        from: Option<State>,
    ) -> Result<Settled<R>, Stop> {
        let (conn, sql, at) = (open.conn(), &self.shared.sql, self.shared.clock.now());
        let kept = within(self.deadline, async {
            let was = from.unwrap_or(self.begins_as());
            if was != State::Dead
                && !DB::swap_state(conn, sql, self.key(), was, State::Dead, at).await?
            {
                return Err(Stop::Again);
            }
            if from.is_some() {
                let attempt = Attempt {
                    reason: Some(reason),
                    not_before: AT_ONCE,
                    status: None,
                    error: None,
                    lease: self.lease,
                };
                // Not if an operator has it replayed out of its order, or another worker took it over.
                let recorded = DB::record_attempt(conn, sql, self.key(), &attempt).await?;
                return Ok(recorded.then_some(None));
            }
            let request = self.kept(conn).await?;
            DB::insert_pending(conn, sql, &self.pending(Some(reason), None, &request)).await?;
            Ok(Some(Some(request.bytes())))
        })
        .await?;
        let Some(stored) = kept else {
            open.roll_back(self.deadline).await?;
            return Ok(Settled::answer(End::SetAside, Answer::set_aside()));
        };
        open.commit(self.deadline).await?;
        if let Some(bytes) = stored {
            self.stored_one(bytes);
        }
        tracing::warn!(
            source = self.source.name(),
            event_id = self.key().event_id,
            reason = reason.as_str(),
            "set an event aside: its sequence is never waited for"
        );
        Ok(Settled::answer(End::SetAside, Answer::set_aside()))
    }

    /// The place of a terminal verdict is skipped in the same transaction, where the source says so (§5.10). Its dead
    /// letter is written already: event first, then cursor.
    pub(super) async fn skip_own_place(&self, conn: &mut DB::Connection) -> Result<(), Stop> {
        let Some(place) = self.place().filter(|_| self.source.skips_rejected()) else {
            return Ok(());
        };
        let (sql, at) = (&self.shared.sql, self.shared.clock.now());
        let first = Some(self.source.start(at));
        let Some(mut cursor) = lock_or_open::<DB>(conn, sql, place.stream, first, at).await? else {
            return Ok(());
        };
        if cursor.generation == place.generation && cursor.next == place.sequence {
            let range = Range {
                first: place.sequence,
                last: place.sequence,
                kind: RangeKind::Skipped,
            };
            cursor::add::<DB>(conn, sql, place.stream, &mut cursor, range, at).await?;
        }
        Ok(())
    }
}

/// The cursor, locked. Where nothing of the stream was applied or parked so far, it begins at `first`; nothing if that is
/// not known.
pub(super) async fn lock_or_open<DB: Backend>(
    conn: &mut DB::Connection,
    sql: &Sql,
    stream: Stream<'_>,
    first: Option<Start>,
    at: crate::clock::Timestamp,
) -> Result<Option<Cursor>, Stop> {
    if let Some(cursor) = cursor::lock::<DB>(conn, sql, stream, at).await? {
        return Ok(Some(cursor));
    }
    let Some(start) = first else { return Ok(None) };
    if !DB::open_cursor(conn, sql, stream, start, at).await? {
        return Err(Stop::Again);
    }
    Ok(Some(Cursor {
        next: start.next,
        generation: 0,
        next_range: None,
    }))
}
