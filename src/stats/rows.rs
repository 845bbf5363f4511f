//! How many rows of events there are. Nobody needs that at once, and a count of many millions is dear: it goes page by page
//! along the key, in one process at a time, and rests for two hundred times as long as each page took. So it takes half a hundredth of a
//! connection at most, and holds up nobody.

use std::collections::HashMap;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio::time::{Instant, sleep};

use crate::clock::Timestamp;
use crate::order::{every_source, in_time};
use crate::shared::Shared;
use crate::store::{Backend, Key};

/// Before the first round: a start has other things to do.
const FIRST: Duration = Duration::from_secs(5);
/// Between two looks whether it is time.
const EVERY: Duration = Duration::from_secs(10);
/// A count that is younger is good enough.
const FRESH: Duration = Duration::from_secs(60);
/// Rows of one page.
const PAGE: i64 = 10_000;
/// The rest after each page, as often as what it took: at fifty the count alone was felt in deliveries a second.
const RESTS: u32 = 200;
/// For how long one process is left alone with it; renewed while it counts.
const LEASE: Duration = Duration::from_secs(60);
const RENEW: Duration = Duration::from_secs(20);

/// Until the inbox is shut down or its last handle is gone.
pub(crate) async fn run<DB: Backend>(shared: Weak<Shared<DB>>) {
    let mut pause = FIRST;
    loop {
        // Processes that started together do not ask together.
        sleep(pause.mul_f64(1.0 + fastrand::f64() / 4.0)).await;
        pause = EVERY;
        match round(&shared).await {
            Ok(true) => {}
            Ok(false) => return,
            Err(error) => tracing::debug!(%error, "could not count rows of events"),
        }
    }
}

/// Every source whose count is not fresh any more. False if the inbox has ended.
async fn round<DB: Backend>(weak: &Weak<Shared<DB>>) -> Result<bool, sqlx::Error> {
    let Some(shared) = weak.upgrade() else {
        return Ok(false);
    };
    if shared.worker.stopped() || shared.stats.off.load(Ordering::Relaxed) {
        return Ok(false);
    }
    let known = in_time(async {
        let mut conn = shared.acquire_statements().await?;
        let known = DB::row_counts(&mut conn, &shared.sql).await;
        conn.done(known).await
    });
    let known: HashMap<_, _> = known
        .await?
        .into_iter()
        .map(|count| (count.source, (count.rows, count.at)))
        .collect();
    let now = shared.clock.now();
    let mut stale = Vec::new();
    for source in every_source(&shared) {
        let known = known.get(source.name());
        if let Some((rows, _)) = known {
            show(&source.name_arc(), *rows);
        }
        if known.is_none_or(|(_, at)| now.since(*at) >= FRESH) {
            stale.push(source.name_arc());
        }
    }
    drop(shared);
    if stale.is_empty() {
        return Ok(true);
    }
    let Some(mut counting) = Counting::begin(weak).await? else {
        return Ok(true);
    };
    for source in stale {
        if !counting.count(&source).await? {
            break;
        }
    }
    counting.end().await?;
    Ok(true)
}

fn show(source: &Arc<str>, rows: i64) {
    let source = metrics::SharedString::from_shared(Arc::clone(source));
    #[allow(
        clippy::cast_precision_loss,
        reason = "a gauge is a float; counts are far below 2^52"
    )]
    metrics::gauge!("inbox_rows", "source" => source).set(rows as f64);
}

/// This process counts, and no other one.
struct Counting<'a, DB: Backend> {
    weak: &'a Weak<Shared<DB>>,
    renewed: Instant,
}

impl<'a, DB: Backend> Counting<'a, DB> {
    /// Nothing while another process is at it.
    async fn begin(weak: &'a Weak<Shared<DB>>) -> Result<Option<Self>, sqlx::Error> {
        let counting = Self {
            weak,
            renewed: Instant::now(),
        };
        Ok(counting.take(LEASE).await?.then_some(counting))
    }

    async fn end(self) -> Result<(), sqlx::Error> {
        self.take(Duration::ZERO).await.map(drop)
    }

    async fn take(&self, lease: Duration) -> Result<bool, sqlx::Error> {
        let Some(shared) = self.weak.upgrade() else {
            return Ok(false);
        };
        let owner = shared.worker.leases.owner();
        let now = shared.clock.now();
        // Not that of a row that nobody has: 0.
        let until = if lease.is_zero() {
            Timestamp::from_micros(0)
        } else {
            now.plus(lease)
        };
        write(&shared, async |conn| {
            DB::take_row_count(conn, &shared.sql, owner, now, until).await
        })
        .await
    }

    /// False if it is to be given up.
    async fn count(&mut self, source: &Arc<str>) -> Result<bool, sqlx::Error> {
        let (mut rows, mut after) = (0, String::new());
        loop {
            if self.renewed.elapsed() >= RENEW {
                self.renewed = Instant::now();
                if !self.take(LEASE).await? {
                    return Ok(false);
                }
            }
            let Some(shared) = self.weak.upgrade() else {
                return Ok(false);
            };
            if shared.worker.stopped() {
                return Ok(false);
            }
            let began = Instant::now();
            let page = in_time(async {
                let mut conn = shared.acquire_statements().await?;
                let key = Key {
                    source,
                    event_id: &after,
                };
                let page = DB::count_rows(&mut conn, &shared.sql, key, PAGE).await;
                conn.done(page).await
            });
            let (more, last) = page.await?;
            rows += more;
            match last.filter(|_| more >= PAGE) {
                Some(last) => after = last,
                None => {
                    let now = shared.clock.now();
                    write(&shared, async |conn| {
                        DB::save_row_count(conn, &shared.sql, source, rows, now).await
                    })
                    .await?;
                    show(source, rows);
                    after.clear();
                }
            }
            let ended = after.is_empty();
            drop(shared);
            let rest = began.elapsed() * RESTS;
            // Nobody else begins anew meanwhile: two who rest longer than their lease would never come to an end.
            if rest >= RENEW {
                self.renewed = Instant::now();
                if !self.take(LEASE + rest).await? {
                    return Ok(false);
                }
            }
            sleep(rest).await;
            if ended {
                return Ok(true);
            }
        }
    }
}

/// In the one writer's turn, where the database has but one.
async fn write<DB: Backend, T>(
    shared: &Shared<DB>,
    work: impl AsyncFnOnce(&mut DB::Connection) -> Result<T, sqlx::Error>,
) -> Result<T, sqlx::Error> {
    in_time(async {
        let _turn = shared.turn().await;
        let mut conn = shared.acquire_statements().await?;
        let done = work(&mut conn).await;
        conn.done(done).await
    })
    .await
}
