//! One delivery's part in a transaction that several share.

use std::sync::atomic::Ordering;

use http::{Response, StatusCode};

use super::group_commit::{Baton, End, Fate, Members, told};
use super::open::Open;
use super::places::Places;
use super::settle::Said;
use super::{Entered, Job, Run, Settled, Stop, within};
use crate::answer::Answer;
use crate::event::Outcome;
use crate::fail::{at, point};
use crate::probe::Happened;
use crate::queue;
use crate::store::{Backend, Fault, Inserted};

/// What became of entering a transaction in which others have written.
enum Next {
    Run,
    /// Not what a group is for: it runs alone, and what it wrote is taken back.
    Alone,
}

impl<DB: Backend> Job<'_, DB> {
    /// As [`Job::once`], in a transaction that others have begun. Whatever is not a clean success leaves it: by a rollback to
    /// our savepoint, if the transaction is what it was, and otherwise all members are undone.
    pub(super) async fn join<R>(
        &self,
        baton: Baton<DB>,
        handler: &mut dyn Run<R>,
    ) -> Result<Settled<R>, Stop> {
        let mut open = baton.take(self.shared);
        open.arm(self.deadline);
        self.learn_generation();
        self.shared.fail.reached(at::BEGUN).await?;
        match within(self.deadline, self.enter_next(&mut open)).await {
            Ok(Next::Run) => {}
            Ok(Next::Alone) => {
                self.leave(open).await;
                return Err(self.start_over());
            }
            Err(stop) => return self.spoiled(open, stop).await,
        }
        self.saw(|| Entered::Run { from: None }.seen());
        self.shared.fail.reached(at::ENTERED).await?;
        let said = self.lend_timed(&mut open, handler).await;
        self.shared.fail.reached(at::HANDLED).await?;
        match said {
            Said::Commit(response) => self.settle(open, None, response).await,
            Said::Failed(settled) => {
                self.leave(open).await;
                Ok(settled)
            }
            // Kept with their request, which a transaction of its own does.
            Said::Terminal(_) | Said::NotYet(_) => {
                self.shared.group_commit.failed();
                self.leave(open).await;
                Err(self.start_over())
            }
            Said::Lost(settled) => {
                self.shared.group_commit.failed();
                Ok(settled)
            }
        }
    }

    /// Its row, and its turn, behind what the member before it has left as it was.
    async fn enter_next(&self, open: &mut Open<'_, DB>) -> Result<Next, Stop> {
        let first = self.first();
        let was_asked = first.turn.is_some();
        let entered = match open.insert_behind(self.deadline, &first).await? {
            Inserted::Nothing => return Ok(Next::Alone),
            Inserted::InTurn => return Ok(Next::Run),
            // Not in its turn, most likely. To find out may take waiting for those who have the stream's cursor.
            Inserted::Event if !DB::SINGLE_WRITER && was_asked => return Ok(Next::Alone),
            Inserted::Event => self.enter_new(open.conn()).await,
        };
        match entered {
            Ok(Entered::Run { .. }) => Ok(Next::Run),
            Ok(_) | Err(Stop::Again) => Ok(Next::Alone),
            Err(stop) => Err(stop),
        }
    }

    /// What has succeeded here is committed with what comes behind it, if anything waits.
    pub(super) async fn share<R>(
        &self,
        mut open: Open<'_, DB>,
        mut response: Response<R>,
    ) -> Result<Settled<R>, Stop> {
        // A transaction of the handler's own that it has dropped is gone once the driver's thread has come to it.
        if self.source.answer_limit().is_some() || DB::depth(open.conn()) != 1 {
            let renewed = within(self.deadline, open.checkpoint()).await;
            match (renewed, DB::depth(open.conn())) {
                (Ok(()), 1) => {}
                (Err(stop), _) => return self.spoiled(open, stop).await,
                _ => return self.spoiled(open, Stop::Again).await,
            }
        }
        let kept = match self.keep_answer(&mut open, &mut response).await {
            Ok(kept) => kept,
            Err(stop) => return self.spoiled(open, stop).await,
        };
        let way = self.places.and_then(|places| places.way());
        let end = open.add_member(self.source, way);
        if let Some(open) = self.hand_to_next(open) {
            self.go_on(open).await;
        }
        let End { fate, entering } = told(end).await;
        match fate {
            Fate::Committed => self.saw(|| Happened::Committed),
            Fate::Undone => {
                self.saw(|| Happened::Noted("its group was undone: it is tried alone".into()));
                if let Some(places) = self.places {
                    places.start_over(entering);
                }
                return Err(Stop::Again);
            }
            Fate::Unknown => {
                self.saw(|| Happened::InDoubt);
                let unknown = Answer::unavailable("the commit's outcome is not known");
                return Err(Stop::Answer(unknown));
            }
        }
        self.shared.fail.reached(at::COMMITTED).await?;
        if !response.status().is_success() {
            *response.status_mut() = StatusCode::OK;
        }
        Ok(Settled {
            kept,
            ..Settled::handler(queue::End::Applied, Outcome::Applied, response)
        })
    }

    /// Whether the very next one of its stream waits, and would go on in the transaction of this one, which has just
    /// succeeded.
    pub(super) fn has_next(&self) -> bool {
        self.places.is_some_and(Places::has_next)
    }

    /// With the stream's turn, if the very next one of the stream waits for that.
    fn hand_to_next<'o>(&self, open: Open<'o, DB>) -> Option<Open<'o, DB>> {
        match self.places {
            Some(places) => places.hand_on(open),
            None => Some(open),
        }
    }

    /// Hands the transaction on, or commits it for those who are in it.
    async fn go_on(&self, open: Open<'_, DB>) {
        if let Some(open) = self.shared.group_commit.hand_on(open) {
            let fate = self.commit_group(open).await;
            if fate == Fate::Undone {
                self.shared.group_commit.failed();
            }
        }
    }

    async fn commit_group(&self, mut open: Open<'_, DB>) -> Fate {
        let Some(mut members) = open.take_members() else {
            return Fate::Undone;
        };
        if self.shared.fail.reached(at::RELEASED).await.is_err() {
            return Fate::Undone;
        }
        let fate = commit(open, &mut members).await;
        if fate == Fate::Committed {
            self.shared.group_commit.succeeded();
        }
        members.tell(fate);
        fate
    }

    /// Leaves the group, which goes on without it.
    async fn leave(&self, mut open: Open<'_, DB>) {
        let undone = within(self.deadline, async {
            point!(self.shared, "store.rollback_to");
            Ok(DB::rollback_to(open.conn()).await?)
        });
        match undone.await {
            Ok(()) if DB::depth(open.conn()) == 1 => self.go_on(open).await,
            _ => self.undo_group(open).await,
        }
    }

    /// Rolls all of it back: it is not what it was.
    async fn undo_group(&self, mut open: Open<'_, DB>) {
        self.shared.group_commit.failed();
        let members = open.take_members();
        // A rollback whose own failure changes nothing: the connection is closed then.
        let _ = open.take_back(self.deadline).await;
        drop(members);
    }

    /// All of it is undone. Nobody has told this one an end: it is run alone, unless its time is spent.
    async fn spoiled<R>(&self, open: Open<'_, DB>, stop: Stop) -> Result<Settled<R>, Stop> {
        self.undo_group(open).await;
        // What failed in a group says little about this one.
        Err(match stop {
            Stop::Budget => Stop::Budget,
            _ => self.start_over(),
        })
    }

    /// From its place in its stream on. Others of its group may have theirs before it.
    fn start_over(&self) -> Stop {
        if let Some(places) = self.places {
            places.start_over(None);
        }
        Stop::Again
    }

    pub(super) fn learn_generation(&self) {
        if let Some(place) = self.place() {
            let generation = self.shared.generations.get(place.stream);
            self.generation.store(generation, Ordering::Relaxed);
        }
    }
}

async fn commit<DB: Backend>(mut open: Open<'_, DB>, members: &mut Members<DB>) -> Fate {
    members.is_committing();
    match open.send_commit().await {
        Ok(()) => {
            open.clean().await;
            Fate::Committed
        }
        // What a handler did to the transaction, or a constraint that was deferred: whose it was is found out one by one.
        Err(Stop::Database(error)) if DB::fault(&error) != Fault::Gone => Fate::Undone,
        Err(_) => Fate::Unknown,
    }
}
