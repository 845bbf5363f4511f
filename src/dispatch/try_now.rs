//! An operator does not wait for a backoff (§5.15).

use super::Stop;
use super::own::{Ended, Own};
use super::verbs::{Change, Done, already, refused};
use crate::error::OperatorErrorKind as Kind;
use crate::shared::Shared;
use crate::store::{Audit, Backend, Key, State};

/// A parked event that is tried again later is tried as soon as its turn is there. Its attempts stay counted.
pub(crate) struct TryNow<'a> {
    pub(crate) key: Key<'a>,
    pub(crate) actor: &'a str,
    pub(crate) reason: &'a str,
}

impl<DB: Backend> Own<DB> for TryNow<'_> {
    type Done = Done;

    async fn once(
        &self,
        shared: &Shared<DB>,
        conn: &mut DB::Connection,
    ) -> Result<Ended<Done>, Stop> {
        let (sql, at) = (&shared.sql, shared.clock.now());
        // An attempt that is under way is waited for: what it comes to is decided by then.
        let Some(known) = DB::lock_event(conn, sql, self.key).await? else {
            return refused(Kind::NotFound);
        };
        match known.state {
            State::Parked => {}
            State::Applied => return already(None),
            State::Dead => return refused(Kind::Dead),
            State::Fenced => return refused(Kind::Fenced),
            State::Superseded | State::Discarded => return refused(Kind::Closed),
        }
        if !DB::hasten(conn, sql, self.key, at).await? {
            return already(None);
        }
        let audit = Audit {
            at,
            key: self.key,
            correlation_id: known.correlation_id.as_deref(),
            action: "try_now",
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
