//! An operator lets an event pass that the fence holds.

use super::Stop;
use super::own::{Ended, Own};
use crate::shared::Shared;
use crate::store::{Audit, Backend, Key, State};

pub(crate) struct Release<'a> {
    pub(crate) key: Key<'a>,
    pub(crate) actor: &'a str,
    pub(crate) reason: &'a str,
}

/// True if it did; false if the event is not held by the fence (any more). The audit table has it in the same
/// transaction.
impl<DB: Backend> Own<DB> for Release<'_> {
    type Done = bool;

    async fn once(
        &self,
        shared: &Shared<DB>,
        conn: &mut DB::Connection,
    ) -> Result<Ended<bool>, Stop> {
        let (sql, at) = (&shared.sql, shared.clock.now());
        let released = DB::swap_state(conn, sql, self.key, State::Fenced, State::Parked, at)
            .await?
            && DB::release_pending(conn, sql, self.key, false, at).await?;
        if !released {
            return Ok(Ended::RollBack(false));
        }
        let known = DB::lock_event(conn, sql, self.key).await?;
        let audit = Audit {
            at,
            key: self.key,
            correlation_id: known
                .as_ref()
                .and_then(|known| known.correlation_id.as_deref()),
            action: "release",
            actor: self.actor,
            detail: self.reason,
        };
        DB::audit(conn, sql, &audit).await?;
        Ok(Ended::Commit(true))
    }
}
