//! What operators decide about what is kept: stored requests and answers that must go, and sources that are gone.

use bytes::Bytes;

use super::own::{Ended, Own};
use super::{Stop, cursor};
use crate::clock::Timestamp;
use crate::operator::Erased;
use crate::shared::Shared;
use crate::store::{Audit, Backend, ErasureFilter, Key, State};

/// Removes what was sent and what was answered; the keys stay, so that duplicates are known.
pub(crate) struct Erase<'a> {
    pub(crate) source: &'a str,
    pub(crate) which: ErasureFilter<'a>,
    pub(crate) actor: &'a str,
    pub(crate) reason: &'a str,
}

impl<DB: Backend> Own<DB> for Erase<'_> {
    type Done = Erased;

    async fn once(
        &self,
        shared: &Shared<DB>,
        conn: &mut DB::Connection,
    ) -> Result<Ended<Erased>, Stop> {
        let (sql, at) = (&shared.sql, shared.clock.now());
        let letters = DB::erase_pending(conn, sql, self.source, &self.which).await?;
        let answers = DB::erase_answers(conn, sql, self.source, &self.which).await?;
        let waiting = DB::count_waiting(conn, sql, self.source, &self.which).await?;
        let erased = Erased {
            letters,
            answers,
            waiting,
        };
        if letters == 0 && answers == 0 {
            return Ok(Ended::RollBack(erased));
        }
        let detail = format!("{letters} requests, {answers} answers: {}", self.reason);
        let mut letter = None;
        if let Some(event_id) = self.which.event_id {
            let source = self.source;
            letter = DB::story(conn, sql, Key { source, event_id }).await?;
        }
        let of_event = letter
            .as_ref()
            .and_then(|(letter, _)| letter.correlation_id.as_deref());
        let entry = Audit {
            correlation_id: self.which.correlation_id.or(of_event),
            ..audit(
                self.source,
                self.which.event_id,
                at,
                "erase",
                self.actor,
                &detail,
            )
        };
        DB::audit(conn, sql, &entry).await?;
        Ok(Ended::Commit(erased))
    }
}

/// Removes a dead letter whose own retention is over: nothing is known of its event afterwards.
pub(crate) struct Forget<'a> {
    pub(crate) key: Key<'a>,
    /// Only if it became one before that.
    pub(crate) before: Timestamp,
    /// Whether those of a gap come back by themselves.
    pub(crate) revives: bool,
}

impl<DB: Backend> Own<DB> for Forget<'_> {
    type Done = bool;

    async fn once(
        &self,
        shared: &Shared<DB>,
        conn: &mut DB::Connection,
    ) -> Result<Ended<bool>, Stop> {
        let (sql, at) = (&shared.sql, shared.clock.now());
        let known = match DB::lock_event(conn, sql, self.key).await? {
            Some(known) if known.state == State::Dead => known,
            _ => return Ok(Ended::RollBack(false)),
        };
        // The gap has been filled after all: it comes back by itself, and the worker is on its way.
        if self.revives
            && known.is_waiting()
            && let Some(place) = known.place(self.key.source)
            && let Some(cursor) = cursor::lock::<DB>(conn, sql, place.stream, at).await?
            && (cursor.generation, cursor.next) == (place.generation, place.sequence)
        {
            return Ok(Ended::RollBack(false));
        }
        if DB::forget_letter(conn, sql, self.key, self.before).await? {
            Ok(Ended::Commit(true))
        } else {
            Ok(Ended::RollBack(false))
        }
    }
}

/// A source's owner deregisters it, or arms it again.
pub(crate) struct SetGone<'a> {
    pub(crate) source: &'a str,
    pub(crate) gone: bool,
    pub(crate) actor: &'a str,
    pub(crate) reason: &'a str,
}

impl<DB: Backend> Own<DB> for SetGone<'_> {
    type Done = ();

    async fn once(
        &self,
        shared: &Shared<DB>,
        conn: &mut DB::Connection,
    ) -> Result<Ended<()>, Stop> {
        let (sql, at) = (&shared.sql, shared.clock.now());
        DB::set_gone(conn, sql, self.source, self.gone, at).await?;
        let action = if self.gone { "deregister" } else { "rearm" };
        let entry = audit(self.source, None, at, action, self.actor, self.reason);
        DB::audit(conn, sql, &entry).await?;
        Ok(Ended::Commit(()))
    }
}

/// Somebody reads what a producer sent.
pub(crate) struct ShowBody<'a> {
    pub(crate) key: Key<'a>,
    pub(crate) actor: &'a str,
    pub(crate) reason: &'a str,
}

impl<DB: Backend> Own<DB> for ShowBody<'_> {
    type Done = Option<Bytes>;

    async fn once(
        &self,
        shared: &Shared<DB>,
        conn: &mut DB::Connection,
    ) -> Result<Ended<Option<Bytes>>, Stop> {
        let (sql, at) = (&shared.sql, shared.clock.now());
        let Some((letter, Some(stored))) = DB::story(conn, sql, self.key).await? else {
            return Ok(Ended::RollBack(None));
        };
        // What is over the bound on parking, or erased, has none.
        if letter.body_bytes.is_none_or(|bytes| bytes <= 0) {
            return Ok(Ended::RollBack(None));
        }
        let Key { source, event_id } = self.key;
        let entry = Audit {
            correlation_id: letter.correlation_id.as_deref(),
            ..audit(
                source,
                Some(event_id),
                at,
                "show_body",
                self.actor,
                self.reason,
            )
        };
        DB::audit(conn, sql, &entry).await?;
        Ok(Ended::Commit(Some(stored.body)))
    }
}

fn audit<'a>(
    source: &'a str,
    event_id: Option<&'a str>,
    at: Timestamp,
    action: &'static str,
    actor: &'a str,
    detail: &'a str,
) -> Audit<'a> {
    let key = Key {
        source,
        event_id: event_id.unwrap_or(""),
    };
    Audit {
        at,
        key,
        correlation_id: None,
        action,
        actor,
        detail,
    }
}
