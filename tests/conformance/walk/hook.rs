//! What happens at a fail point of a walk.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tower_inbox::FailPoints;

use crate::kit::{BoxFuture, Gate};

/// What is done there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// The connection is lost.
    Gone,
    /// A deadlock, a busy database.
    Transient,
    /// The database refuses it.
    Refused,
    /// It is held up for a moment, and the same event comes meanwhile.
    Held,
    /// The process ends.
    Crash,
}

/// At which point, and when: the `nth` time that it is passed, from 1.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Act {
    pub(crate) point: &'static str,
    pub(crate) nth: usize,
    pub(crate) kind: Kind,
}

/// What else has to happen, so that a scene comes by all of its points.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Besides {
    Nothing,
    /// The nth time at this point, the database is gone.
    Gone(&'static str, usize),
    /// Whoever comes to the one point waits there until the other one was passed.
    Wait(&'static str, &'static str),
}

/// Makes an error of the database's own.
pub(crate) type Faults = Box<dyn Fn(Kind) -> BoxFuture<sqlx::Error> + Send + Sync>;

/// What is passed while an inbox is built, before anything can happen: acts begin behind that.
const WHILE_BUILT: &[(&str, usize)] = &[
    ("store.acquire", 1),
    ("store.done", 1),
    ("store.gone_sources", 1),
    ("store.ping", 1),
];
/// For what is waited for at a point: no test comes near.
const LIMIT: Duration = Duration::from_secs(20);

/// The fail points of one inbox, counted, with at most one act.
pub(crate) struct Hook {
    counts: Mutex<BTreeMap<&'static str, usize>>,
    act: Option<Act>,
    besides: Besides,
    faults: Faults,
    hit: AtomicBool,
    pub(crate) gate: Gate,
}

impl Hook {
    pub(crate) fn new(act: Option<Act>, besides: Besides, faults: Faults) -> Arc<Self> {
        Arc::new(Self {
            counts: Mutex::default(),
            act,
            besides,
            faults,
            hit: AtomicBool::new(false),
            gate: Gate::shut(),
        })
    }

    pub(crate) fn points(self: &Arc<Self>) -> FailPoints {
        let hook = Arc::clone(self);
        FailPoints::new(move |name| {
            let hook = Arc::clone(&hook);
            async move { hook.reached(name).await }
        })
    }

    /// Whether the act was done.
    pub(crate) fn was_hit(&self) -> bool {
        self.hit.load(Ordering::Acquire)
    }

    /// How often each point was passed since the inbox was built.
    pub(crate) fn passed(&self) -> BTreeMap<&'static str, usize> {
        let mut counts = self.counts().clone();
        for (name, times) in WHILE_BUILT {
            counts
                .entry(name)
                .and_modify(|n| *n = n.saturating_sub(*times));
        }
        counts.retain(|_, times| *times > 0);
        counts
    }

    fn counts(&self) -> std::sync::MutexGuard<'_, BTreeMap<&'static str, usize>> {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn reached(&self, name: &'static str) -> Result<(), sqlx::Error> {
        let times = {
            let mut counts = self.counts();
            let times = counts.entry(name).or_default();
            *times += 1;
            *times
        };
        if let Some(act) = self.act
            && act.point == name
            && act.nth + while_built(name) == times
        {
            self.hit.store(true, Ordering::Release);
            match act.kind {
                Kind::Crash => std::process::abort(),
                Kind::Held => self.gate.pass().await,
                kind => return Err((self.faults)(kind).await),
            }
        }
        match self.besides {
            Besides::Gone(point, nth) if point == name && nth == times => {
                Err(sqlx::Error::WorkerCrashed)
            }
            Besides::Wait(point, until) if point == name => {
                let start = Instant::now();
                while !self.counts().contains_key(until) && start.elapsed() < LIMIT {
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
                Ok(())
            }
            _ => Ok(()),
        }
    }
}

fn while_built(name: &str) -> usize {
    let found = WHILE_BUILT.iter().find(|(built, _)| *built == name);
    found.map_or(0, |(_, times)| *times)
}
