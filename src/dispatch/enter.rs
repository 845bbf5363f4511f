//! What the event's row and its cursor say: event first, then cursor, everywhere in this order.

use super::open::Open;
use super::{Entered, Job, Stop};
use crate::event::Origin;
use crate::store::{Backend, Key, Known, Lease, Place, State};

/// The looks at a row that somebody else keeps changing, within one transaction.
pub(super) const LOOKS: u32 = 3;

impl<DB: Backend> Job<'_, DB> {
    /// Event first, then cursor: everywhere in this order.
    pub(super) async fn enter(&self, open: &mut Open<'_, DB>) -> Result<Entered, Stop> {
        if self.only_stores() {
            return self.enter_deferred(open).await;
        }
        let conn = open.conn();
        if self.origin == Origin::Drained {
            return match DB::lock_event(conn, &self.shared.sql, self.key()).await? {
                Some(known) if known.is_waiting() => self.enter_known(conn, &known).await,
                _ => Ok(Entered::Gone),
            };
        }
        for _ in 0..LOOKS {
            if DB::insert_event(conn, &self.shared.sql, &self.new_event(), self.begins_as()).await?
            {
                if self.is_fenced(conn).await? {
                    return Ok(Entered::Fence { from: None });
                }
                return match self.place() {
                    None => self.outrun(conn, None).await,
                    Some(place) => self.take_turn(conn, &place).await,
                };
            }
            if let Some(entered) = self.enter_taken(conn).await? {
                return Ok(entered);
            }
        }
        Err(Stop::Again)
    }

    /// The insert found the id taken, or the place. Nothing: look again.
    async fn enter_taken(&self, conn: &mut DB::Connection) -> Result<Option<Entered>, Stop> {
        let sql = &self.shared.sql;
        if let Some(known) = DB::lock_event(conn, sql, self.key()).await? {
            return self.enter_known(conn, &known).await.map(Some);
        }
        self.claim_place(conn).await
    }

    /// What holds the event's place, since it is not its id that is taken. Nothing: look again.
    pub(super) async fn claim_place(
        &self,
        conn: &mut DB::Connection,
    ) -> Result<Option<Entered>, Stop> {
        let sql = &self.shared.sql;
        let Some(place) = self.place() else {
            return Ok(None);
        };
        let Some(holder) = DB::slot_holder(conn, sql, &place).await? else {
            return Ok(None);
        };
        if holder.state != State::Dead {
            return Ok(Some(Entered::PlaceTaken));
        }
        // A dead letter yields its place to the new id; both are kept, and linked (§4.3).
        let key = Key {
            source: self.source.name(),
            event_id: &holder.event_id,
        };
        DB::yield_slot(conn, sql, key, self.key().event_id).await?;
        Ok(None)
    }

    /// What needs neither cursor nor handler.
    pub(super) fn decided(&self, known: &Known) -> Option<Entered> {
        if self.origin == Origin::Live
            && !self.source.same_content(self.envelope, known)
            && self.source.refuses_other_content(self.envelope)
        {
            return Some(Entered::Duplicate {
                other_content: true,
            });
        }
        match known.state {
            State::Applied => Some(Entered::Duplicate {
                other_content: false,
            }),
            State::Fenced => Some(Entered::Fenced),
            State::Superseded => Some(Entered::Superseded),
            _ => known.has_yielded.then_some(Entered::PlaceTaken),
        }
    }

    /// The event has a row.
    async fn enter_known(&self, conn: &mut DB::Connection, known: &Known) -> Result<Entered, Stop> {
        if let Some(entered) = self.decided(known) {
            return Ok(entered);
        }
        let sql = &self.shared.sql;
        // What counts is the place that it was stored with.
        if let Some(place) = known.place(self.source.name()) {
            let Place { stream, sequence } = place;
            let next = match DB::lock_cursor(conn, sql, stream).await? {
                Some(next) => next,
                // Nothing of this stream was ever applied: its cursor went with the rollback of its first event.
                None => {
                    let mut start = self.source.start(self.shared.clock.now());
                    if start.settles_at.take().is_some() {
                        // It had its turn: it was the first one before the source adopted streams.
                        start.next = sequence;
                    }
                    let at = self.shared.clock.now();
                    DB::open_cursor(conn, sql, stream, start, at).await?;
                    start.next
                }
            };
            if sequence > next {
                return Ok(Entered::Parked { waiting_for: next });
            }
            if sequence < next {
                return Ok(Entered::SetAside);
            }
            if !self.advance(conn, &place).await? {
                return Err(Stop::Again);
            }
        }
        let at = self.shared.clock.now();
        if !DB::swap_state(conn, sql, self.key(), known.state, State::Applied, at).await? {
            return Err(Stop::Again);
        }
        // A dead letter's fence went with the rollback of its handler's work.
        if known.state == State::Dead && self.is_fenced(conn).await? {
            return Ok(Entered::Fence {
                from: Some(known.state),
            });
        }
        if !DB::delete_pending(conn, sql, self.key(), self.lease).await?
            && self.lease != Lease::NONE
        {
            // Taken over by another worker, which thought this one dead.
            return Ok(Entered::Gone);
        }
        self.outrun(conn, Some(known)).await
    }

    /// Whether the same was signed under another id before (§6.7): after the id, before the cursor.
    pub(super) async fn is_fenced(&self, conn: &mut DB::Connection) -> Result<bool, Stop> {
        let Some(fence) = &self.fence else {
            return Ok(false);
        };
        let sql = &self.shared.sql;
        for _ in 0..LOOKS {
            if DB::insert_fence(conn, sql, self.key(), fence).await? {
                return Ok(false);
            }
            let holder = DB::fence_holder(conn, sql, self.source.name(), fence).await?;
            if let Some(holder) = holder {
                return Ok(holder != self.key().event_id);
            }
        }
        Err(Stop::Again)
    }

    /// A new event's place against its cursor.
    async fn take_turn(
        &self,
        conn: &mut DB::Connection,
        place: &Place<'_>,
    ) -> Result<Entered, Stop> {
        let start = self.source.start(self.shared.clock.now());
        if place.sequence == start.next {
            // Most likely the stream is new. Looked for first, the missing cursor would leave a lock on the gap that it
            // belongs into on MySQL (REPEATABLE READ), and the firsts of other new streams would deadlock on it.
            let at = self.shared.clock.now();
            DB::open_cursor(conn, &self.shared.sql, place.stream, start, at).await?;
        }
        for _ in 0..LOOKS {
            if self.advance(conn, place).await? {
                return Ok(Entered::Run { from: None });
            }
            match DB::lock_cursor(conn, &self.shared.sql, place.stream).await? {
                Some(next) if place.sequence > next => {
                    return Ok(Entered::Park { waiting_for: next });
                }
                // Its own row was purged: it was applied (§4.3).
                Some(next) if place.sequence < next => {
                    return Ok(Entered::Duplicate {
                        other_content: false,
                    });
                }
                Some(_) => {}
                None => {
                    let at = self.shared.clock.now();
                    DB::open_cursor(conn, &self.shared.sql, place.stream, start, at).await?;
                }
            }
        }
        Err(Stop::Again)
    }

    async fn advance(&self, conn: &mut DB::Connection, place: &Place<'_>) -> Result<bool, Stop> {
        let at = self.shared.clock.now();
        Ok(DB::advance_cursor(conn, &self.shared.sql, place, at).await?)
    }
}
