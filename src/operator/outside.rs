//! Looking at a deployment from outside of the processes that deliver: their workers, the clocks, reconciliation.

use std::time::Duration;

use super::Operator;
use crate::clock::Timestamp;
use crate::error::OperatorError;
use crate::reconcile::List;
use crate::store::{Backend, ListRow};

/// A worker of some process that has applied something, by its last beat.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct WorkerBeat {
    /// Its name, another one at each start of a process.
    pub owner: String,
    /// When that was, by its own clock: every half second while it is at work on something, and not at other times.
    pub at: Timestamp,
}

/// Two clocks that must agree within five minutes, or nothing is forgotten (§7.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Clocks {
    /// This process's.
    pub process: Timestamp,
    /// The database's.
    pub database: Timestamp,
}

impl Clocks {
    /// How far they are apart.
    pub fn apart(&self) -> Duration {
        let ahead = self.process.since(self.database);
        ahead.max(self.database.since(self.process))
    }
}

/// How far a producer's list has been dealt with ([`reconcile`](crate::reconcile)).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ListState {
    /// The name of the source.
    pub source: String,
    /// Which list.
    pub list: List,
    /// The producer's time up to which everything on it was dealt with.
    pub through: Option<Timestamp>,
    /// A run has read a part of the list: it is at work, or was broken off, and the next one goes on there.
    pub unfinished: bool,
    /// The producer's time of the first event that could not be dealt with.
    pub held_back: Option<Timestamp>,
    /// When a run last came to its end.
    pub finished_at: Option<Timestamp>,
    /// A process is at work on it, and has it until then.
    pub running_until: Option<Timestamp>,
}

/// The database was another one than before, or an older copy of itself: commits that were acknowledged may be lost (§4.1a).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Incident {
    /// When a process noticed.
    pub found_at: Timestamp,
    /// What was committed after it may be lost; nothing if that is not known.
    pub since: Option<Timestamp>,
}

impl<DB: Backend> Operator<DB> {
    /// The workers of all processes. One that has ended in order is not among them; one that was killed is for a day.
    ///
    /// # Errors
    /// If the database could not be asked.
    pub async fn workers(&self) -> Result<Vec<WorkerBeat>, OperatorError> {
        self.look(async |shared, conn| {
            let workers = DB::workers(conn, &shared.sql).await?;
            let beats = workers.into_iter();
            Ok(beats.map(|(owner, at)| WorkerBeat { owner, at }).collect())
        })
        .await
    }

    /// When a process in which a source is mounted last said that it works with this database: every half minute while
    /// there is one. Nothing if there never was one.
    ///
    /// # Errors
    /// If the database could not be asked.
    pub async fn last_sign(&self) -> Result<Option<Timestamp>, OperatorError> {
        self.look(async |shared, conn| {
            let signs = DB::alive(conn, &shared.sql).await?;
            Ok(signs.iter().map(|sign| sign.at).max())
        })
        .await
    }

    /// What time it is, here and there.
    ///
    /// # Errors
    /// If the database could not be asked.
    pub async fn clocks(&self) -> Result<Clocks, OperatorError> {
        self.look(async |shared, conn| {
            let database = DB::now(conn, &shared.sql).await?;
            Ok(Clocks {
                process: shared.clock.now(),
                database: shared.clock.database(database),
            })
        })
        .await
    }

    /// How far the producers' lists have been dealt with, by source.
    ///
    /// # Errors
    /// If the database could not be asked.
    pub async fn reconciliations(&self) -> Result<Vec<ListState>, OperatorError> {
        self.look(async |shared, conn| {
            let now = shared.clock.now();
            let rows = DB::reconciliations(conn, &shared.sql).await?;
            rows.into_iter().map(|row| state(row, now)).collect()
        })
        .await
    }

    /// When the database was found to be another one than before, oldest first.
    ///
    /// # Errors
    /// If the database could not be asked.
    pub async fn incidents(&self) -> Result<Vec<Incident>, OperatorError> {
        let unknown = Timestamp::from_micros(0);
        self.look(async |shared, conn| {
            let found = DB::incidents(conn, &shared.sql, Timestamp::from_micros(-1)).await?;
            let incident = |(found_at, since)| Incident {
                found_at,
                since: Some(since).filter(|since| *since > unknown),
            };
            Ok(found.into_iter().map(incident).collect())
        })
        .await
    }

    /// How many events' rows a purge of a source would remove that keeps what was decided at `before` or later.
    ///
    /// # Errors
    /// If the database could not be asked.
    pub async fn count_stale(&self, source: &str, before: Timestamp) -> Result<u64, OperatorError> {
        self.look(async |shared, conn| DB::count_stale(conn, &shared.sql, source, before).await)
            .await
    }
}

fn state(row: ListRow, now: Timestamp) -> Result<ListState, sqlx::Error> {
    let lists = [List::Exhausted, List::Delivered];
    let list = lists.into_iter().find(|list| list.kind() == row.kind);
    Ok(ListState {
        source: row.source,
        list: list.ok_or_else(|| sqlx::Error::Decode("a list that is not known".into()))?,
        through: row.through,
        unfinished: row.next_page.is_some(),
        held_back: row.held_back,
        finished_at: row.finished_at,
        running_until: Some(row.lease_until).filter(|until| *until > now),
    })
}
