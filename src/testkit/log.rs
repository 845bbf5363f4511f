//! What a kit knows of its events: a probe of each, and the attempts of its producers.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::network::Way;
use super::reply::Reply;
use super::schedule::Ending;
use super::story::{Attempt, NotSent, Stored, Story};
use crate::clock::{Clock, Timestamp};
use crate::probe::{Happened, Probe};

/// The events, in the order in which they were first sent.
#[derive(Default)]
pub(super) struct Log(Mutex<Vec<Known>>);

struct Known {
    name: String,
    probe: Probe,
    seed: Option<u64>,
    attempts: Vec<Attempt>,
    left_out: bool,
    ending: Option<Ending>,
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
            left_out: false,
            ending: None,
        });
        probe
    }

    pub(super) fn probes(&self) -> Vec<Probe> {
        let known = self.lock();
        known.iter().map(|known| known.probe.clone()).collect()
    }

    /// Without those that a network has left out.
    pub(super) fn names(&self) -> Vec<String> {
        let known = self.lock();
        let sent = known
            .iter()
            .filter(|known| !known.left_out || !known.attempts.is_empty());
        sent.map(|known| known.name.clone()).collect()
    }

    /// An attempt is made: its index. It gets its number here.
    pub(super) fn attempt(&self, name: &str, seed: Option<u64>, mut attempt: Attempt) -> usize {
        let (index, probe) = {
            let mut known = self.lock();
            let Some(known) = known.iter_mut().find(|known| known.name == name) else {
                return 0;
            };
            let before = known.attempts.last().map_or(0, |last| last.number);
            attempt.number = if attempt.copy { before } else { before + 1 };
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

    pub(super) fn ended(&self, name: &str, ending: Option<Ending>) {
        if let Some(known) = self.lock().iter_mut().find(|known| known.name == name) {
            known.ending = ending;
        }
    }

    /// A network sends it never.
    pub(super) fn left_out(&self, name: &str, clock: &Arc<dyn Clock>) {
        self.probe(name, clock);
        if let Some(known) = self.lock().iter_mut().find(|known| known.name == name) {
            known.left_out = true;
        }
    }

    /// Without what the database says. Of an event that was never sent: an empty one.
    pub(super) fn story(&self, name: &str) -> Story {
        let known = self.lock();
        let sent = known.iter().filter(|known| !known.attempts.is_empty());
        let names = sent.map(|known| known.name.clone()).collect();
        let known = known.iter().find(|known| known.name == name);
        let was_sent = known.is_some_and(|known| !known.attempts.is_empty());
        let known_as = known.and_then(|known| known.probe.known_as());
        Story {
            name: name.to_owned(),
            known_as: known_as.map(|(source, id)| (source.to_string(), id.to_string())),
            seed: known.and_then(|known| known.seed),
            attempts: known.map_or_else(Vec::new, |known| known.attempts.clone()),
            ending: known.and_then(|known| known.ending),
            journal: known.map_or_else(Vec::new, |known| known.probe.journal()),
            probe: known.map(|known| known.probe.clone()),
            not_sent: match known {
                _ if was_sent => None,
                Some(known) if known.left_out => Some(NotSent::LeftOut),
                _ => Some(NotSent::Never(names)),
            },
            is_here: true,
            stored: Stored::Unknown,
        }
    }
}

impl Attempt {
    /// Its log gives it its number.
    pub(super) fn new(path: String, at: Timestamp, way: Way) -> Self {
        Self {
            number: 0,
            at,
            path,
            way,
            copy: false,
            replay: false,
            reply: None,
            seen: false,
        }
    }
}
