//! What the event's row and its cursor say: event first, then cursor, everywhere in this order.

use std::sync::atomic::Ordering;

use super::aside::lock_or_open;
use super::open::Open;
use super::{Entered, Job, Stop, cursor};
use crate::broken::{self, Variant};
use crate::event::Origin;
use crate::store::{
    Backend, Cursor, First, Inserted, Key, Known, Lease, Place, Reason, State, Turn,
};

/// The looks at a row that somebody else keeps changing, within one transaction.
pub(super) const LOOKS: u32 = 3;

impl<DB: Backend> Job<'_, DB> {
    /// Event first, then cursor: everywhere in this order.
    pub(super) async fn enter(&self, open: &mut Open<'_, DB>) -> Result<Entered, Stop> {
        if self.only_stores() {
            return self.enter_deferred(open).await;
        }
        let mut inserted = open.take_inserted();
        let conn = open.conn();
        if self.origin == Origin::Drained {
            return match DB::lock_event(conn, &self.shared.sql, self.key()).await? {
                Some(known) if known.is_waiting() => self.enter_known(conn, &known).await,
                _ => Ok(Entered::Gone),
            };
        }
        for _ in 0..LOOKS {
            let inserted = match inserted.take() {
                Some(inserted) => inserted,
                None => DB::insert_first(conn, &self.shared.sql, &self.first()).await?,
            };
            if inserted == Inserted::InTurn {
                return Ok(Entered::Run { from: None });
            }
            if inserted == Inserted::Event {
                return self.enter_new(conn).await;
            }
            self.source.lookout().hit();
            if let Some(entered) = self.enter_taken(conn).await? {
                return Ok(entered);
            }
        }
        Err(Stop::Again)
    }

    /// The row of a new event is in.
    pub(super) async fn enter_new(&self, conn: &mut DB::Connection) -> Result<Entered, Stop> {
        if self.is_fenced(conn).await? {
            return Ok(Entered::Fence { from: None });
        }
        match self.place() {
            None => self.outrun(conn, None).await,
            Some(place) => self.take_turn(conn, &place).await,
        }
    }

    /// A new event, and its step of the cursor where nothing is to be done in between.
    pub(super) fn first(&self) -> First<'_> {
        let event = self.new_event();
        let place = self.place().filter(|_| self.fence.is_none());
        let start = self.source.start(event.at);
        let turn = place.map(|place| Turn {
            opens: place.sequence == start.next && place.generation == 0,
            place,
        });
        First {
            event,
            state: self.begins_as(),
            turn,
        }
    }

    /// What its transaction begins with, unless something is to be looked at before.
    pub(super) fn begins_with(&self) -> Option<First<'_>> {
        (self.origin == Origin::Live && !self.only_stores()).then(|| self.first())
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
        if holder.state != State::Dead && !broken::is(Variant::PlaceTakenTwice) {
            // The row was inserted by what this process knows of the stream's generation. The place may be one of an
            // earlier generation (§5.15).
            let at = self.shared.clock.now();
            if let Some(cursor) = cursor::lock::<DB>(conn, sql, place.stream, at).await? {
                self.check_generation(&place, &cursor)?;
            }
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

    /// Inserts the row of a new event once more, after a rollback to our savepoint: it gave the event's place back to the
    /// dead letter that had yielded it. False if somebody else has decided about the event or its place meanwhile.
    pub(super) async fn insert_again(
        &self,
        conn: &mut DB::Connection,
        state: State,
    ) -> Result<bool, Stop> {
        let sql = &self.shared.sql;
        for _ in 0..LOOKS {
            if DB::insert_event(conn, sql, &self.new_event(), state).await? {
                return Ok(true);
            }
            if DB::lock_event(conn, sql, self.key()).await?.is_some()
                || self.claim_place(conn).await?.is_some()
            {
                break;
            }
        }
        Ok(false)
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
            State::Applied if broken::is(Variant::AppliedRunsAgain) => None,
            State::Applied => Some(Entered::Duplicate {
                other_content: false,
            }),
            State::Fenced => Some(Entered::Fenced),
            State::Superseded => Some(Entered::Superseded),
            State::Discarded => Some(Entered::Discarded),
            _ if known.is_set_aside() => Some(Entered::SetAside),
            _ => known.has_yielded.then_some(Entered::PlaceTaken),
        }
    }

    /// The event has a row.
    async fn enter_known(&self, conn: &mut DB::Connection, known: &Known) -> Result<Entered, Stop> {
        self.generation.store(known.generation, Ordering::Relaxed);
        if let Some(entered) = self.decided(known) {
            return Ok(entered);
        }
        let sql = &self.shared.sql;
        // What counts is the place that it was stored with; none does where an operator wants it out of its order.
        let place = known.place(self.source.name());
        if let Some(place) = place.filter(|_| !self.out_of_order) {
            if let Some(entered) = self.take_turn_again(conn, &place, known).await? {
                return Ok(entered);
            }
        } else if known.reason == Some(Reason::Crash) {
            return Ok(Entered::SetAside);
        }
        let at = self.shared.clock.now();
        if !DB::swap_state(conn, sql, self.key(), known.state, State::Applied, at).await? {
            return Err(Stop::Again);
        }
        // A dead letter's fence went with the rollback of its handler's work.
        if self.origin == Origin::Drained {
            if let Some(fence) = &self.fence {
                DB::insert_fence(conn, sql, self.key(), fence).await?;
            }
        } else if known.state == State::Dead && self.is_fenced(conn).await? {
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

    /// A stored event's place against its cursor. Nothing: it is its turn, and the cursor has moved.
    async fn take_turn_again(
        &self,
        conn: &mut DB::Connection,
        place: &Place<'_>,
        known: &Known,
    ) -> Result<Option<Entered>, Stop> {
        let (sql, at) = (&self.shared.sql, self.shared.clock.now());
        let (stream, sequence) = (place.stream, place.sequence);
        // Most likely it is its turn: one statement then. A crash is for operators alone (§5.11).
        if known.reason != Some(Reason::Crash) && DB::advance_cursor(conn, sql, place, at).await? {
            return Ok(None);
        }
        // Where nothing of this stream was ever applied, its cursor went with the rollback of its first event.
        let start = self.source.start(at).after_a_turn_of(sequence);
        let Some(cursor) = lock_or_open::<DB>(conn, sql, stream, Some(start), at).await? else {
            return Err(Stop::Again);
        };
        // Of an earlier generation: it is never in turn again.
        let mut never = (place.generation != cursor.generation).then_some(Reason::Skipped);
        let maybe_in_range = sequence < cursor.next
            || sequence > cursor.next && cursor.next_range.is_some_and(|first| sequence >= first);
        if never.is_none() && maybe_in_range {
            let range = DB::range_at(conn, sql, place).await?;
            never = range.map(|range| range.kind.reason());
        }
        if let Some(reason) = never {
            // Version 1 of the crate knows neither, and may have left it waiting.
            return Ok(Some(if known.is_waiting() {
                Entered::Aside {
                    reason,
                    from: Some(known.state),
                }
            } else {
                Entered::SetAside
            }));
        }
        if sequence < cursor.next {
            return Ok(Some(Entered::SetAside));
        }
        let waiting_for = cursor.next;
        if sequence > cursor.next || known.reason == Some(Reason::Crash) {
            return Ok(Some(Entered::Parked { waiting_for }));
        }
        cursor::pass::<DB>(conn, sql, stream, cursor, at).await?;
        Ok(None)
    }

    /// Another generation than the row was inserted with: a fresh transaction begins with the right one.
    pub(super) fn check_generation(&self, place: &Place<'_>, cursor: &Cursor) -> Result<(), Stop> {
        if place.generation == cursor.generation {
            return Ok(());
        }
        let generations = &self.shared.generations;
        generations.learn(place.stream, cursor.generation);
        Err(Stop::Again)
    }

    /// Whether the same was signed under another id before (§6.7): after the id, before the cursor.
    pub(super) async fn is_fenced(&self, conn: &mut DB::Connection) -> Result<bool, Stop> {
        let Some(fence) = self
            .fence
            .as_ref()
            .filter(|_| !broken::is(Variant::NoFence))
        else {
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
        let sql = &self.shared.sql;
        let start = self.source.start(self.shared.clock.now());
        if place.sequence == start.next && place.generation == 0 {
            // Most likely the stream is new. Looked for first, the missing cursor would leave a lock on the gap that it
            // belongs into on MySQL (REPEATABLE READ), and the firsts of other new streams would deadlock on it.
            let at = self.shared.clock.now();
            DB::open_cursor(conn, sql, place.stream, start, at).await?;
        }
        for _ in 0..LOOKS {
            let at = self.shared.clock.now();
            if DB::advance_cursor(conn, sql, place, at).await? {
                return Ok(Entered::Run { from: None });
            }
            let Some(cursor) = cursor::lock::<DB>(conn, sql, place.stream, at).await? else {
                DB::open_cursor(conn, sql, place.stream, start, at).await?;
                continue;
            };
            self.check_generation(place, &cursor)?;
            let ignored = place.sequence > cursor.next && broken::is(Variant::GapIgnored);
            if place.sequence == cursor.next || ignored {
                // It is its turn, and a range is next.
                cursor::pass::<DB>(conn, sql, place.stream, cursor, at).await?;
                return Ok(Entered::Run { from: None });
            }
            let waiting_for = cursor.next;
            if place.sequence > cursor.next
                && cursor.next_range.is_none_or(|first| place.sequence < first)
            {
                return Ok(Entered::Park { waiting_for });
            }
            // Also what an operator has skipped while this delivery waited for the cursor (§9).
            if let Some(range) = DB::range_at(conn, sql, place).await? {
                return Ok(Entered::Aside {
                    reason: range.kind.reason(),
                    from: None,
                });
            }
            return Ok(if place.sequence > cursor.next {
                Entered::Park { waiting_for }
            } else {
                // Its own row was purged: it was applied (§4.3).
                Entered::Duplicate {
                    other_content: false,
                }
            });
        }
        Err(Stop::Again)
    }
}
