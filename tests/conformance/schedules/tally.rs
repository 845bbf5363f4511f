//! What the schedules of a test came to, so that they are seen not to be shallow.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use super::reference::{Answer, Reference, State};

/// How often each thing was seen.
#[derive(Default)]
pub(super) struct Tally(Mutex<BTreeMap<(&'static str, String), u32>>);

impl Tally {
    fn count(&self, kind: &'static str, what: String) {
        *lock(&self.0).entry((kind, what)).or_default() += 1;
    }

    pub(super) fn command(&self, kind: &'static str) {
        self.count("command", kind.to_owned());
    }

    pub(super) fn answer(&self, answer: &Answer) {
        let text = match answer {
            Answer::Parked(_) => "Parked".to_owned(),
            other => format!("{other:?}"),
        };
        self.count("answer", text);
    }

    /// Something that has no answer.
    pub(super) fn seen(&self, what: &'static str) {
        self.count("seen", what.to_owned());
    }

    /// What is stored after a command.
    pub(super) fn states(&self, reference: &Reference) {
        for row in reference.rows.values() {
            if let State::Dead(reason) = row.state {
                self.count("dead", format!("{reason:?}"));
            }
            if row.yielded {
                self.count("seen", "yielded place".to_owned());
            }
        }
        if reference.moves().is_empty() && reference.has_forgotten() {
            self.count("seen", "forgotten".to_owned());
        }
    }

    /// Those of a list that were never seen.
    pub(super) fn missing(&self, kind: &'static str, of: &[&'static str]) -> Vec<&'static str> {
        let seen = lock(&self.0);
        let is_missing = |what: &&&str| !seen.contains_key(&(kind, (**what).to_owned()));
        of.iter().filter(is_missing).copied().collect()
    }

    pub(super) fn show(&self, of: &str) {
        let mut by_kind: BTreeMap<&str, Vec<String>> = BTreeMap::new();
        for ((kind, what), times) in &*lock(&self.0) {
            let line = by_kind.entry(kind).or_default();
            line.push(format!("{what} {times}"));
        }
        for (kind, line) in by_kind {
            eprintln!("{of}: {kind}: {}", line.join(", "));
        }
    }
}

/// So that a panic of one test does not poison what others count.
fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
