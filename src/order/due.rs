//! What is due now, looked for by the test kit, which waits until it is done.

use std::sync::Arc;
use std::time::Duration;

use super::slice::Slice;
pub(crate) use super::upkeep::every_source;
use super::worker::{self, Work};
use super::{expire, in_time};
use crate::clock::Timestamp;
use crate::shared::Shared;
use crate::store::{Backend, Key, Reason, Stream};

/// Of one kind: more than that is more than a test waits for.
const PAGE: i64 = 256;

/// Does what time alone makes due, such as giving up gaps, without waiting for the sweep.
pub(crate) async fn sweep<DB: Backend>(shared: &Arc<Shared<DB>>) -> Result<(), sqlx::Error> {
    for source in every_source(shared) {
        expire::run(shared, &source, String::new(), Slice::WHOLE).await?;
    }
    Ok(())
}

/// What a worker has to do now, in words. With `wake` the worker is told of it, whatever it was waiting for: by the clock
/// of a test a backoff may be over at once.
pub(crate) async fn due<DB: Backend>(
    shared: &Arc<Shared<DB>>,
    wake: bool,
) -> Result<Vec<String>, sqlx::Error> {
    let mut due = Vec::new();
    for (work, what) in look(shared).await? {
        let source = work.source();
        let mounted = shared.worker.target(source).is_some();
        let note = if mounted {
            ""
        } else {
            ", and its source is not mounted"
        };
        due.push(format!("{what} of {source}{note}"));
        if wake {
            worker::wake(shared, work);
        }
    }
    Ok(due)
}

/// The first instant after `now` at which time alone gives the worker something to do.
pub(crate) async fn next<DB: Backend>(
    shared: &Arc<Shared<DB>>,
    now: Timestamp,
) -> Result<Option<Timestamp>, sqlx::Error> {
    let sources = every_source(shared);
    in_time(async {
        let mut conn = shared.acquire_statements().await?;
        let looked = async {
            let sql = &shared.sql;
            // Of no source: what waits does so for sources too that nobody knows here.
            let mut next = DB::next_due(&mut conn, sql, now, "", Duration::ZERO).await?;
            for source in &sources {
                let (name, window) = (source.name(), source.recovery_window());
                let of_source = DB::next_due(&mut conn, sql, now, name, window).await?;
                next = next.into_iter().chain(of_source).min();
            }
            Ok(next)
        };
        let looked = looked.await;
        conn.done(looked).await
    })
    .await
}

async fn look<DB: Backend>(shared: &Arc<Shared<DB>>) -> Result<Vec<(Work, String)>, sqlx::Error> {
    in_time(async {
        let (sql, now) = (&shared.sql, shared.clock.now());
        let first = Stream {
            source: "",
            correlation_id: "",
        };
        let mut conn = shared.acquire_statements().await?;
        let looked = async {
            let mut found = Vec::new();
            for (source, id) in DB::settled_streams(&mut conn, sql, first, now, PAGE).await? {
                let what = format!("the start of stream {id}");
                let (source, correlation_id) = (source.into(), id.into());
                found.push((
                    Work::Settling {
                        source,
                        correlation_id,
                    },
                    what,
                ));
            }
            for (source, id) in DB::due_streams(&mut conn, sql, first, now, PAGE).await? {
                let stream = Stream {
                    source: &source,
                    correlation_id: &id,
                };
                let Some(head) = DB::due_head(&mut conn, sql, stream).await? else {
                    continue;
                };
                let revives = shared.source(&source).is_none_or(|at| at.revives_gaps());
                if head.reason == Some(Reason::Gap) && !revives {
                    continue;
                }
                let what = format!("event {} of stream {id}", head.event_id);
                let (source, correlation_id) = (source.into(), id.into());
                found.push((
                    Work::Stream {
                        source,
                        correlation_id,
                    },
                    what,
                ));
            }
            let first = Key {
                source: "",
                event_id: "",
            };
            for (source, id) in DB::due_events(&mut conn, sql, first, now, PAGE).await? {
                let what = format!("event {id}");
                let (source, event_id) = (source.into(), id.into());
                found.push((Work::Event { source, event_id }, what));
            }
            Ok(found)
        };
        let looked = looked.await;
        conn.done(looked).await
    })
    .await
}
