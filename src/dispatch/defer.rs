//! Deferred mode: a delivery is stored, and a worker applies it (§5.13).

use super::enter::LOOKS;
use super::open::Open;
use super::{Entered, Job, Settled, Stop};
use crate::answer::Answer;
use crate::event::Origin;
use crate::queue::End;
use crate::store::{Backend, Cursor, Known, Place, Reason, State, Stream};

impl<DB: Backend> Job<'_, DB> {
    /// Whether this is a delivery whose handler is not to run now.
    pub(super) fn only_stores(&self) -> bool {
        self.origin == Origin::Live && self.source.is_deferred()
    }

    /// What a new row says before anything is decided.
    pub(super) fn begins_as(&self) -> State {
        if self.only_stores() {
            State::Parked
        } else {
            State::Applied
        }
    }

    /// As [`Job::enter`], and nothing in it waits for a handler that runs: neither the event's row nor the cursor is
    /// locked. A plain SELECT does no harm here, since no handler sees this transaction.
    pub(super) async fn enter_deferred(&self, open: &mut Open<'_, DB>) -> Result<Entered, Stop> {
        let conn = open.conn();
        let sql = &self.shared.sql;
        for _ in 0..LOOKS {
            if DB::insert_event(conn, sql, &self.new_event(), self.begins_as()).await? {
                if self.is_fenced(conn).await? {
                    return Ok(Entered::Fence { from: None });
                }
                return self.line_up(conn).await;
            }
            let found = match DB::known(conn, sql, self.key(), false).await? {
                Some(known) => Some(self.enter_stored(conn, &known).await?),
                None => self.claim_place(conn).await?,
            };
            if let Some(entered) = found {
                return Ok(entered);
            }
        }
        Err(Stop::Again)
    }

    /// A new event's place against its cursor, as far as it can be told without waiting for it.
    async fn line_up(&self, conn: &mut DB::Connection) -> Result<Entered, Stop> {
        let Some(place) = self.place() else {
            return Ok(Entered::Store);
        };
        let Some(cursor) = self.open_stream(conn, place.stream).await? else {
            return Ok(Entered::Store);
        };
        self.check_generation(&place, &cursor)?;
        let in_turn = place.sequence >= cursor.next
            && cursor.next_range.is_none_or(|first| place.sequence < first);
        if in_turn {
            return Ok(Entered::Store);
        }
        if let Some(range) = DB::range_at(conn, &self.shared.sql, &place).await? {
            return Ok(Entered::Aside {
                reason: range.kind.reason(),
                from: None,
            });
        }
        // Equal, where version 1 of the crate has moved the cursor on and left `next_range` behind.
        Ok(if place.sequence >= cursor.next {
            Entered::Store
        } else {
            // Its own row was purged: it was applied (§4.3).
            Entered::Duplicate {
                other_content: false,
            }
        })
    }

    /// A worker finds what is due by its cursor, which may not be there yet. What it says, if it is.
    async fn open_stream(
        &self,
        conn: &mut DB::Connection,
        stream: Stream<'_>,
    ) -> Result<Option<Cursor>, Stop> {
        let sql = &self.shared.sql;
        let cursor = DB::cursor(conn, sql, stream).await?;
        if cursor.is_none() {
            let at = self.shared.clock.now();
            DB::open_cursor(conn, sql, stream, self.source.start(at), at).await?;
        }
        Ok(cursor)
    }

    /// The event has a row.
    async fn enter_stored(
        &self,
        conn: &mut DB::Connection,
        known: &Known,
    ) -> Result<Entered, Stop> {
        if let Some(entered) = self.decided(known) {
            return Ok(entered);
        }
        let again = match known.reason {
            Some(Reason::Handler | Reason::Rejected) => true,
            Some(Reason::Gap) => !self.source.revives_gaps(),
            _ => false,
        };
        if !again {
            return Ok(Entered::Stored);
        }
        if let Some(place) = known.place(self.source.name())
            && self.is_passed(conn, &place).await?
        {
            return Ok(Entered::SetAside);
        }
        // Somebody sent it again on purpose: a new attempt (§5.11).
        let (sql, at) = (&self.shared.sql, self.shared.clock.now());
        if !DB::swap_state(conn, sql, self.key(), known.state, State::Parked, at).await? {
            return Err(Stop::Again);
        }
        if self.is_fenced(conn).await? {
            return Ok(Entered::Fence {
                from: Some(known.state),
            });
        }
        if let Some(place) = known.place(self.source.name()) {
            self.open_stream(conn, place.stream).await?;
        }
        DB::keep_body(conn, sql, self.key(), &self.stored).await?;
        DB::requeue(conn, sql, self.key(), at).await?;
        Ok(Entered::Requeue)
    }

    /// Whether no worker would ever find it in turn, as far as it can be told without waiting for the cursor.
    async fn is_passed(&self, conn: &mut DB::Connection, place: &Place<'_>) -> Result<bool, Stop> {
        let sql = &self.shared.sql;
        let Some(cursor) = DB::cursor(conn, sql, place.stream).await? else {
            return Ok(false);
        };
        Ok(place.generation != cursor.generation
            || place.sequence < cursor.next
            || DB::range_at(conn, sql, place).await?.is_some())
    }
}

pub(super) fn stored<R>() -> Settled<R> {
    Settled::answer(End::Stored, Answer::stored())
}
