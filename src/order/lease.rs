//! Leases: who is at work on which pending event (§5.7).
//!
//! What excludes is the lock that a transaction holds on the event's row. A lease spreads the work, and counts attempts
//! before they begin, so that an event whose handler ends the process is seen. It is a fencing token in the event's row,
//! which the transition to *applied* demands again: a worker that was thought dead and goes on finds its token gone.
//!
//! A lease ends with its attempt. If its worker is gone it is taken over when it expires, or sooner, when the worker's
//! beat was seen to stand still for some beats of one's own. Those are counted, not timed: neither clocks that differ nor
//! a database that held up everybody make a live worker look dead.

use std::collections::HashMap;
use std::sync::atomic::{AtomicI64, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use tokio::time::{Instant, sleep, timeout};

use super::in_time;
use crate::broken::{self, Variant};
use crate::clock::Timestamp;
use crate::shared::Shared;
use crate::store::{Backend, Pending};

/// While there are leases, here or elsewhere.
const BEAT_EVERY: Duration = Duration::from_millis(500);
/// Own beats during which another worker's stood still: it is gone then. Two seconds; should it only have been slow, its
/// attempt comes to nothing, and that is all.
const STILL: u32 = 4;
/// For the one writer's turn: where there is but one, a handler's transaction may have it, and there is no beat then.
const TURN_PATIENCE: Duration = Duration::from_millis(50);
/// Nobody has asked about a worker for so long: it is forgotten.
const FORGET_AFTER: Duration = Duration::from_secs(60);
/// Rows of workers that ended without a word are removed, some day.
const ROWS_KEPT: Duration = Duration::from_secs(24 * 3600);

/// The leases of this process's worker, and what it has seen of others.
pub(crate) struct Leases {
    /// Unique per start of a process.
    owner: String,
    held: AtomicUsize,
    beat: AtomicI64,
    others: Mutex<HashMap<String, Seen>>,
}

/// What was seen of another worker.
struct Seen {
    /// Nothing: it has no row, or none was looked for yet.
    beat: Option<i64>,
    still: u32,
    asked: Instant,
}

impl Default for Leases {
    fn default() -> Self {
        Self {
            owner: format!("{:08x}-{:032x}", std::process::id(), fastrand::u128(..)),
            held: AtomicUsize::new(0),
            beat: AtomicI64::new(0),
            others: Mutex::default(),
        }
    }
}

impl Leases {
    pub(crate) fn owner(&self) -> &str {
        &self.owner
    }

    /// Counts one of this worker's own until dropped.
    pub(super) fn hold(&self) -> Held<'_> {
        self.held.fetch_add(1, Ordering::Relaxed);
        Held(&self.held)
    }

    pub(crate) fn held(&self) -> usize {
        self.held.load(Ordering::Relaxed)
    }

    /// Whether somebody else is at work on it, as far as can be told. One's own that nobody works on was left behind when
    /// the database could not be told about its end.
    pub(super) fn is_taken(&self, pending: &Pending, now: Timestamp) -> bool {
        let Some(owner) = pending.lease_owner.as_deref() else {
            return false;
        };
        if broken::is(Variant::LeaseForEver) {
            return owner != self.owner;
        }
        if owner == self.owner || pending.lease_until <= now {
            return false;
        }
        let mut others = self.others();
        let seen = others.entry(owner.to_owned()).or_insert(Seen {
            beat: None,
            still: 0,
            asked: Instant::now(),
        });
        seen.asked = Instant::now();
        seen.still < STILL
    }

    fn others(&self) -> MutexGuard<'_, HashMap<String, Seen>> {
        self.others.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_quiet(&self) -> bool {
        self.held() == 0 && self.others().is_empty()
    }

    /// After a beat of our own: what the others' rows say now.
    fn compare(&self, rows: &[(String, i64)]) {
        let mut others = self.others();
        others.retain(|_, seen| seen.asked.elapsed() < FORGET_AFTER);
        for (owner, seen) in others.iter_mut() {
            let beat = rows.iter().find(|row| row.0 == *owner).map(|row| row.1);
            seen.still = if beat == seen.beat { seen.still + 1 } else { 0 };
            seen.beat = beat;
        }
    }
}

/// A lease of this process's worker.
pub(super) struct Held<'a>(&'a AtomicUsize);

impl Drop for Held<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Beats while there are leases.
pub(super) async fn run<DB: Backend>(shared: Weak<Shared<DB>>) {
    loop {
        sleep(BEAT_EVERY).await;
        let Some(shared) = shared.upgrade() else {
            return;
        };
        if shared.worker.stopped() && shared.worker.leases.held() == 0 {
            return;
        }
        if !shared.worker.leases.is_quiet() {
            beat(&shared).await;
        }
    }
}

async fn beat<DB: Backend>(shared: &Shared<DB>) {
    let leases = &shared.worker.leases;
    let beat = leases.beat.fetch_add(1, Ordering::Relaxed) + 1;
    let others = if DB::CHEAP_INCARNATION {
        let Ok(_turn) = timeout(TURN_PATIENCE, shared.turn()).await else {
            return;
        };
        let written = in_time(async {
            let mut conn = shared.acquire_statements().await?;
            let now = shared.clock.now();
            let others = DB::beat(&mut conn, &shared.sql, leases.owner(), beat, now).await;
            conn.done(others).await
        });
        written.await.ok()
    } else {
        shared.watch.beat(beat).await
    };
    // A beat that did not get through says nothing about others.
    if let Some(others) = others {
        leases.compare(&others);
    }
}

/// At the end: gives back what is left, and takes this worker's row away.
pub(crate) async fn retire<DB: Backend>(shared: &Shared<DB>) {
    let leases = &shared.worker.leases;
    if leases.held() == 0 && leases.beat.load(Ordering::Relaxed) == 0 {
        return;
    }
    let retired = in_time(async {
        let _turn = shared.turn().await;
        let mut conn = shared.acquire_statements().await?;
        let before = shared.clock.now().minus(ROWS_KEPT);
        let retired = async {
            DB::hand_back_all(&mut conn, &shared.sql, leases.owner()).await?;
            DB::retire(&mut conn, &shared.sql, leases.owner(), before).await
        };
        let retired = retired.await;
        conn.done(retired).await
    });
    if let Err(error) = retired.await {
        tracing::warn!(%error, "could not give leases back; they are taken over");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::{Lease, StoredRequest};

    fn leased(owner: Option<&str>, until: i64) -> Pending {
        Pending {
            event_id: "evt".into(),
            event_type: None,
            fingerprint: Vec::new(),
            version: None,
            correlation_id: None,
            sequence: None,
            reason: None,
            attempts: 1,
            not_before: Timestamp::from_micros(0),
            parked_at: Timestamp::from_micros(0),
            request: StoredRequest {
                method: "POST".into(),
                uri: "/".into(),
                headers: bytes::Bytes::new(),
                body: bytes::Bytes::new(),
            },
            lease: Lease::from_column(7),
            lease_owner: owner.map(Into::into),
            lease_until: Timestamp::from_secs(until),
            unfinished: 1,
        }
    }

    /// §5.7, by beats and not by clocks.
    #[tokio::test(start_paused = true)]
    async fn a_worker_is_gone_when_its_beat_stands_still_for_some_of_ones_own() {
        let leases = Leases::default();
        let (now, far) = (Timestamp::from_secs(0), 1_000_000);
        assert!(leases.is_taken(&leased(Some("b"), far), now));
        let mut beat = 0;
        for _ in 0..20 {
            beat += 1;
            leases.compare(&[("b".into(), beat)]);
            assert!(leases.is_taken(&leased(Some("b"), far), now));
        }
        for _ in 1..STILL {
            leases.compare(&[("b".into(), beat)]);
            assert!(leases.is_taken(&leased(Some("b"), far), now));
        }
        leases.compare(&[("b".into(), beat)]);
        assert!(!leases.is_taken(&leased(Some("b"), far), now));
        // It was only slow.
        leases.compare(&[("b".into(), beat + 1)]);
        assert!(leases.is_taken(&leased(Some("b"), far), now));
    }

    /// §5.7
    #[tokio::test(start_paused = true)]
    async fn a_worker_without_a_row_is_gone_too_and_an_expired_lease_is_nobodys() {
        let leases = Leases::default();
        let now = Timestamp::from_secs(100);
        assert!(leases.is_taken(&leased(Some("b"), 101), now));
        assert!(!leases.is_taken(&leased(Some("c"), 100), now), "expired");
        assert!(!leases.is_taken(&leased(None, 101), now), "nobody's");
        let own = leases.owner().to_owned();
        assert!(
            !leases.is_taken(&leased(Some(&own), 101), now),
            "left behind"
        );
        for _ in 0..STILL {
            leases.compare(&[]);
        }
        assert!(!leases.is_taken(&leased(Some("b"), 101), now));
        tokio::time::advance(FORGET_AFTER).await;
        leases.compare(&[]);
        assert!(leases.is_quiet(), "nobody asks any more");
    }
}
