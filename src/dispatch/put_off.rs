//! A handler says "not yet": nothing of its work, and the event is kept until then.

use super::open::Open;
use super::{Job, Settled, Stop, within};
use crate::answer::Answer;
use crate::park::Park;
use crate::queue::End;
use crate::store::{Backend, PutOff, State};

/// What became of it.
enum Kept {
    Waiting,
    /// It has been put off for as long as its source allows.
    TooLong,
    /// The row is not as it was when the handler began: somebody else has decided.
    Decided,
}

impl<DB: Backend> Job<'_, DB> {
    pub(super) async fn put_off<R>(
        &self,
        mut open: Open<'_, DB>,
        from: Option<State>,
        park: Park,
    ) -> Result<Settled<R>, Stop> {
        if let Some(lost) = self.undo(&mut open).await? {
            return Ok(lost);
        }
        let mut reserved = None;
        if from.is_none() {
            match within(self.deadline, self.room(open.conn(), self.stored.bytes())).await? {
                Ok(room) => reserved = Some(room),
                Err(full) => {
                    open.roll_back(self.deadline).await?;
                    return Ok(Settled::failed(Answer::busy(full.of_what())));
                }
            }
        }
        let now = self.shared.clock.now();
        let longest = self.source.longest_park();
        let put_off = PutOff {
            until: park.not_before(now).min(now.plus(longest)),
            longest,
            now,
        };
        match within(
            self.deadline,
            self.keep_waiting(open.conn(), from, &put_off),
        )
        .await?
        {
            Kept::Waiting => {}
            Kept::TooLong => {
                open.roll_back(self.deadline).await?;
                let answer = Answer::unavailable("the event was put off for too long");
                return Ok(Settled {
                    blames_handler: true,
                    ..Settled::failed(answer)
                });
            }
            Kept::Decided => {
                open.roll_back(self.deadline).await?;
                return Ok(Settled::failed(Answer::unavailable(
                    "another delivery of this event is at work",
                )));
            }
        }
        open.commit(self.deadline).await?;
        if let Some(reserved) = reserved {
            self.stored_reserved(reserved);
        }
        let waiting_for = self.place().map(|place| place.sequence.unsigned_abs());
        let until = put_off.until;
        let answer = Answer::put_off(waiting_for, until.since(now));
        Ok(Settled::answer(End::PutOff { waiting_for, until }, answer))
    }

    /// The rollback to our savepoint has taken back all that was done for the event in this transaction.
    async fn keep_waiting(
        &self,
        conn: &mut DB::Connection,
        from: Option<State>,
        put_off: &PutOff,
    ) -> Result<Kept, Stop> {
        let (sql, at) = (&self.shared.sql, put_off.now);
        let Some(from) = from else {
            if !self.insert_again(conn, State::Parked).await? {
                return Ok(Kept::Decided);
            }
            // It passed the fence just now; what it left there is kept this time, since it comes back without asking.
            if self.is_fenced(conn).await? {
                return Err(Stop::Again);
            }
            if let Some(place) = self.place() {
                // A worker finds what is due by its cursor.
                DB::open_cursor(conn, sql, place.stream, self.source.start(at), at).await?;
            }
            let mut pending = self.pending(None, None, &self.stored);
            pending.not_before = put_off.until;
            DB::insert_pending(conn, sql, &pending).await?;
            return Ok(Kept::Waiting);
        };
        // The lock on it may have gone with the rollback.
        let known = match DB::lock_event(conn, sql, self.key()).await? {
            Some(known) if known.state == from && !known.has_yielded => known,
            _ => return Ok(Kept::Decided),
        };
        if from != State::Parked {
            if !DB::swap_state(conn, sql, self.key(), from, State::Parked, at).await? {
                return Ok(Kept::Decided);
            }
            if self.is_fenced(conn).await? {
                return Err(Stop::Again);
            }
            if let Some(place) = known.place(self.source.name()) {
                DB::open_cursor(conn, sql, place.stream, self.source.start(at), at).await?;
            }
            DB::keep_body(conn, sql, self.key(), &self.stored).await?;
        }
        Ok(
            if DB::put_off(conn, sql, self.key(), put_off, self.lease).await? {
                Kept::Waiting
            } else {
                Kept::TooLong
            },
        )
    }
}
