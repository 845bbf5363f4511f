//! Signs of life in the database itself: they tell how long nobody was there, and when a copy was taken that somebody put
//! back (§4.1a).
//!
//! A row for each incarnation says when a process last worked with it. One that is new, or whose row says an earlier time
//! than this process wrote, is an *incident*: what was committed after the latest time that is left may be lost, and is
//! asked for again from the producers' lists of delivered events. What cannot be seen: a copy put back into the same
//! server while no process is running.

use std::time::Duration;

use tokio::time::Instant;

use crate::clock::Timestamp;
use crate::order::in_time;
use crate::shared::Shared;
use crate::store::{Alive, Backend};

/// Between two signs: little against the hour by which reconciliation overlaps.
const EVERY: Duration = Duration::from_secs(30);
/// After a sign that did not get through, or that somebody else gave first.
const AGAIN: Duration = Duration::from_secs(5);

/// What this process knows.
pub(crate) struct Seen {
    written: Option<Alive>,
    generation: u64,
    next: Instant,
}

impl Default for Seen {
    fn default() -> Self {
        Self {
            written: None,
            generation: 0,
            // A start has other things to do.
            next: Instant::now() + AGAIN,
        }
    }
}

/// Gives a sign of life if it is time, and looks for incidents. `now`: whether it is time or not.
pub(crate) async fn look<DB: Backend>(shared: &Shared<DB>, now: bool) -> Result<(), sqlx::Error> {
    let mut seen = shared.keeping.alive.lock().await;
    let generation = shared.generation();
    if !now && Instant::now() < seen.next && generation == seen.generation {
        return Ok(());
    }
    seen.next = Instant::now() + AGAIN;
    let incarnation = DB::describe(&shared.incarnation());
    let written = in_time(async {
        let _turn = shared.turn().await;
        let mut conn = shared.acquire_statements().await?;
        let written = sign::<DB>(shared, &mut conn, incarnation, seen.written.as_ref()).await;
        conn.done(written).await
    })
    .await?;
    if let Some(alive) = written {
        seen.written = Some(alive);
        seen.generation = generation;
        seen.next = Instant::now() + EVERY;
    }
    Ok(())
}

/// Nothing if another process was quicker.
async fn sign<DB: Backend>(
    shared: &Shared<DB>,
    conn: &mut DB::Connection,
    incarnation: String,
    written: Option<&Alive>,
) -> Result<Option<Alive>, sqlx::Error> {
    let sql = &shared.sql;
    let rows = DB::alive(conn, sql).await?;
    let latest = rows.iter().map(|row| row.at).max();
    let own = rows
        .iter()
        .find(|row| row.incarnation == incarnation)
        .map(|row| row.at);
    let now = shared.clock.now();
    let since = match (own, written) {
        // An older copy of itself.
        (Some(at), Some(written)) if written.incarnation == incarnation && at < written.at => {
            Some(at)
        }
        (Some(_), _) => None,
        // Another one. Nothing is left that would say when the copy was taken, or it is a new database.
        (None, Some(_)) => Some(latest.unwrap_or(Timestamp::from_micros(0))),
        (None, None) => latest,
    };
    if let Some(since) = since {
        incident::<DB>(shared, conn, now, since, &incarnation).await?;
    }
    if written.is_none()
        && let Some(latest) = latest
    {
        was_away(shared, now.since(latest));
    }
    // Never backwards: by that a copy is told from the original, whatever the clocks of several processes say.
    let alive = Alive {
        at: own.map_or(now, |at| at.max(now)),
        incarnation,
    };
    let kept = DB::stay_alive(conn, sql, own, &alive).await?;
    Ok(kept.then_some(alive))
}

async fn incident<DB: Backend>(
    shared: &Shared<DB>,
    conn: &mut DB::Connection,
    now: Timestamp,
    since: Timestamp,
    incarnation: &str,
) -> Result<(), sqlx::Error> {
    tracing::error!(
        ?since,
        incarnation,
        "the database is another one than before, or an older copy: reconciliation asks the producers for what they have \
         delivered since"
    );
    let mut found_at = now;
    // Written before the sign of life: one too many costs a look at a list, one too few is never made up for.
    while !DB::add_incident(conn, &shared.sql, found_at, since, incarnation).await? {
        found_at = found_at.plus(Duration::from_micros(1));
    }
    Ok(())
}

/// Nobody was there for so long: what producers gave up meanwhile is on their lists for a limited time.
fn was_away<DB: Backend>(shared: &Shared<DB>, away: Duration) {
    for source in shared.sources.values() {
        let window = source.replay_window();
        if window.is_zero() {
            continue;
        }
        if away >= window {
            tracing::error!(
                source = source.name(),
                ?away,
                ?window,
                "no process was there for longer than the producer keeps what it gave up: events may be lost for good"
            );
        } else if nears(away, window) {
            tracing::warn!(
                source = source.name(),
                ?away,
                ?window,
                "no process was there for almost as long as the producer keeps what it gave up: reconcile now"
            );
        }
    }
}

/// Three quarters of it.
pub(super) fn nears(time: Duration, window: Duration) -> bool {
    !window.is_zero() && time >= window - window / 4
}
