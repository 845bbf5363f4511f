//! What the handlers of a test do, counted; and a gate that holds them.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::watch;

use super::wait::eventually;

/// The runs of handlers, and how many of them there were at the same time.
#[derive(Default)]
pub(crate) struct Probe(Mutex<Counts>);

#[derive(Default)]
struct Counts {
    runs: HashMap<String, usize>,
    running: usize,
    peak: usize,
}

impl Probe {
    /// Counts a run until dropped, and says which one of its event it is, from 1.
    pub(crate) fn enter(self: &Arc<Self>, event_id: &str) -> (Running, usize) {
        let mut counts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        counts.running += 1;
        counts.peak = counts.peak.max(counts.running);
        let run = counts.runs.entry(event_id.to_owned()).or_default();
        *run += 1;
        (Running(Arc::clone(self)), *run)
    }

    /// How often the handler has begun to run for this event.
    pub(crate) fn runs(&self, event_id: &str) -> usize {
        let counts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        counts.runs.get(event_id).copied().unwrap_or(0)
    }

    /// How many handlers have run at the same time at most.
    pub(crate) fn peak(&self) -> usize {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).peak
    }

    /// How many run now.
    pub(crate) fn running(&self) -> usize {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .running
    }
}

/// A handler at work.
pub(crate) struct Running(Arc<Probe>);

impl Drop for Running {
    fn drop(&mut self) {
        self.0
            .0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .running -= 1;
    }
}

/// Holds whoever comes to it until it is opened.
#[derive(Clone)]
pub(crate) struct Gate(Arc<watch::Sender<(usize, bool)>>);

impl Gate {
    pub(crate) fn shut() -> Self {
        Self(Arc::new(watch::Sender::new((0, false))))
    }

    /// Waits here until it is open.
    pub(crate) async fn pass(&self) {
        self.0.send_modify(|(waiting, _)| *waiting += 1);
        let _ = self.0.subscribe().wait_for(|(_, open)| *open).await;
    }

    pub(crate) fn open(&self) {
        self.0.send_modify(|(_, open)| *open = true);
    }

    /// Waits until that many have come to it.
    pub(crate) async fn reached_by(&self, many: usize) {
        eventually("the gate is reached", async || self.0.borrow().0 >= many).await;
    }
}
