//! An operator lets an event pass that the fence holds.

use std::time::Duration;

use tokio::time::Instant;

use super::open::Open;
use super::{Stop, within};
use crate::error::OperatorError;
use crate::shared::Shared;
use crate::store::{Audit, Backend, Key, State};

/// For a few statements of our own.
const BUDGET: Duration = Duration::from_secs(10);

pub(crate) struct Release<'a, DB: Backend> {
    pub(crate) shared: &'a Shared<DB>,
    pub(crate) key: Key<'a>,
    pub(crate) actor: &'a str,
    pub(crate) reason: &'a str,
}

impl<DB: Backend> Release<'_, DB> {
    /// True if it did; false if the event is not held by the fence (any more). The audit table has it in the same
    /// transaction.
    pub(crate) async fn run(&self) -> Result<bool, OperatorError> {
        let deadline = Instant::now() + BUDGET;
        self.once(deadline).await.map_err(|stop| match stop {
            Stop::Database(error) => OperatorError::database(error),
            Stop::Answer(answer) => OperatorError::busy(answer.reason()),
            Stop::Budget | Stop::Again => OperatorError::busy("the database is busy"),
        })
    }

    async fn once(&self, deadline: Instant) -> Result<bool, Stop> {
        let mut open = Open::begin(self.shared, deadline).await?;
        let (conn, sql, at) = (open.conn(), &self.shared.sql, self.shared.clock.now());
        let released = within(deadline, async {
            let audit = Audit {
                at,
                key: self.key,
                action: "release",
                actor: self.actor,
                detail: self.reason,
            };
            let released = DB::swap_state(conn, sql, self.key, State::Fenced, State::Parked, at)
                .await?
                && DB::release_pending(conn, sql, self.key).await?;
            if released {
                DB::audit(conn, sql, &audit).await?;
            }
            Ok(released)
        })
        .await?;
        if released {
            open.commit(deadline).await?;
        } else {
            open.roll_back(deadline).await?;
        }
        Ok(released)
    }
}
