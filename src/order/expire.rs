//! Gaps that nobody fills any more (§5.4).

use std::sync::Arc;
use std::time::Duration;

use super::in_time;
use super::slice::{BATCH, Slice, breathe, readable};
use super::worker::{self, Work};
use crate::dispatch::{Bury, Heal, own};
use crate::probe::Happened;
use crate::shared::Shared;
use crate::source::SourceState;
use crate::store::{AT_ONCE, Attempt, Backend, Expired, Key, Lease, Reason, Stream};

/// Parked events whose gap was not filled within the recovery window become dead letters (§5.4). They come back by
/// themselves when it is filled after all, since *due* counts them too.
///
/// Those behind `after`. Something if its time was over before its end: where it goes on the next time. From the beginning, one
/// that takes all the time that there is, and cannot be done, would hide those behind it.
pub(super) async fn run<DB: Backend>(
    shared: &Arc<Shared<DB>>,
    source: &SourceState,
    mut after: String,
    slice: Slice,
) -> Result<Option<String>, sqlx::Error> {
    heal(shared, source, slice).await?;
    let now = shared.clock.now();
    loop {
        let before = now.minus(source.recovery_window());
        let page = in_time(async {
            let mut conn = shared.acquire_statements().await?;
            let page =
                DB::expired(&mut conn, &shared.sql, source.name(), before, &after, BATCH).await;
            conn.done(page).await
        })
        .await?;
        let (page, more) = readable(page, |event| &event.event_id);
        for event in page {
            give_up(shared, source, &event).await;
            // One event that cannot be buried now stops no other.
            after = event.event_id;
            if slice.is_over(shared) {
                return Ok(Some(after));
            }
        }
        if !more {
            return Ok(None);
        }
        // Each was a transaction of its own, and let others in.
        breathe(Duration::ZERO).await;
    }
}

async fn give_up<DB: Backend>(shared: &Arc<Shared<DB>>, source: &SourceState, event: &Expired) {
    let key = Key {
        source: source.name(),
        event_id: &event.event_id,
    };
    let bury = Bury {
        shared,
        key,
        // Only while the gap is there: the cursor is looked at again, under its lock.
        stream: Some((
            Stream {
                source: source.name(),
                correlation_id: &event.correlation_id,
            },
            event.sequence,
        )),
        attempt: Attempt {
            reason: Some(Reason::Gap),
            not_before: AT_ONCE,
            status: None,
            error: Some("a lower sequence was not applied within the recovery window"),
            lease: Lease::NONE,
        },
    };
    if bury.run().await != Ok(true) {
        return;
    }
    let what = "its gap was not filled in time: it becomes a dead letter";
    shared.probes.saw(key, || Happened::Noted(what.into()));
    metrics::counter!("inbox_expired_total", "source" => source.name_shared()).increment(1);
    tracing::warn!(
        source = source.name(),
        event_id = event.event_id,
        sequence = event.sequence,
        "gave up waiting for a gap: an event becomes a dead letter"
    );
}

/// Cursors that version 1 of the crate has put inside of a skipped range: nothing comes there, and what waits behind it
/// is not found.
async fn heal<DB: Backend>(
    shared: &Arc<Shared<DB>>,
    source: &SourceState,
    slice: Slice,
) -> Result<(), sqlx::Error> {
    let mut strayed = in_time(async {
        let mut conn = shared.acquire_statements().await?;
        let strayed = DB::strayed(&mut conn, &shared.sql, source.name(), BATCH).await;
        conn.done(strayed).await
    })
    .await?;
    if !strayed.is_empty() {
        // One that takes all the time that there is, and cannot be healed now, is not the first each time.
        let first = fastrand::usize(..strayed.len());
        strayed.rotate_left(first);
    }
    for correlation_id in strayed {
        let stream = Stream {
            source: source.name(),
            correlation_id: &correlation_id,
        };
        if own(shared, &Heal(stream)).await.is_ok() {
            let (source, correlation_id) = (source.name_arc(), Arc::from(correlation_id));
            worker::wake(
                shared,
                Work::Stream {
                    source,
                    correlation_id,
                },
            );
        }
        if slice.is_over(shared) {
            break;
        }
    }
    Ok(())
}
