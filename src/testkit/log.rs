//! What a kit knows of its events: a probe of each, and the attempts of its producers.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::network::Way;
use super::reply::Reply;
use super::schedule::Verdict;
use super::story::{Attempt, Story};
use crate::clock::Clock;
use crate::probe::{Happened, Probe};

/// The events, in the order in which they were first sent.
#[derive(Default)]
pub(super) struct Log(Mutex<Vec<Known>>);

struct Known {
    name: String,
    probe: Probe,
    seed: Option<u64>,
    attempts: Vec<Attempt>,
    verdict: Option<Verdict>,
}

impl Log {
    fn lock(&self) -> MutexGuard<'_, Vec<Known>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Of an event that is not known yet: a new one, that takes its times from this clock.
    pub(super) fn probe(&self, name: &str, clock: &Arc<dyn Clock>) -> Probe {
        let mut known = self.lock();
        if let Some(known) = known.iter().find(|known| known.name == name) {
            return known.probe.clone();
        }
        let probe = Probe::by(Arc::clone(clock));
        known.push(Known {
            name: name.to_owned(),
            probe: probe.clone(),
            seed: None,
            attempts: Vec::new(),
            verdict: None,
        });
        probe
    }

    pub(super) fn probes(&self) -> Vec<Probe> {
        let known = self.lock();
        known.iter().map(|known| known.probe.clone()).collect()
    }

    pub(super) fn names(&self) -> Vec<String> {
        let known = self.lock();
        known.iter().map(|known| known.name.clone()).collect()
    }

    /// An attempt is made: its index.
    pub(super) fn attempt(&self, name: &str, seed: Option<u64>, attempt: Attempt) -> usize {
        let (index, probe) = {
            let mut known = self.lock();
            let Some(known) = known.iter_mut().find(|known| known.name == name) else {
                return 0;
            };
            known.attempts.push(attempt);
            known.seed = seed.or(known.seed);
            (known.attempts.len() - 1, known.probe.clone())
        };
        probe.record(Happened::Attempted(index));
        index
    }

    pub(super) fn answered(&self, name: &str, index: usize, reply: Option<Reply>, seen: bool) {
        if let Some(known) = self.lock().iter_mut().find(|known| known.name == name)
            && let Some(attempt) = known.attempts.get_mut(index)
        {
            attempt.reply = reply;
            attempt.seen = seen;
        }
    }

    pub(super) fn ended(&self, name: &str, verdict: Option<Verdict>) {
        if let Some(known) = self.lock().iter_mut().find(|known| known.name == name) {
            known.verdict = verdict;
        }
    }

    /// Without what the database says. Of an event that was never sent: an empty one.
    pub(super) fn story(&self, name: &str) -> Story {
        let known = self.lock();
        let known = known.iter().find(|known| known.name == name);
        let known_as = known.and_then(|known| known.probe.known_as());
        Story {
            name: name.to_owned(),
            known_as: known_as.map(|(source, id)| (source.to_string(), id.to_string())),
            seed: known.and_then(|known| known.seed),
            attempts: known.map_or_else(Vec::new, |known| known.attempts.clone()),
            verdict: known.and_then(|known| known.verdict),
            journal: known.map_or_else(Vec::new, |known| known.probe.journal()),
            letter: None,
        }
    }
}

impl Attempt {
    pub(super) fn new(number: u32, at: crate::clock::Timestamp, way: Way) -> Self {
        Self {
            number,
            at,
            way,
            reply: None,
            seen: false,
        }
    }
}
