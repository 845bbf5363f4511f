//! What a reconciliation came to.

use std::time::Duration;

use super::source::{List, ReplayError};

/// Events and complaints that a report names; the counts have them all.
const NAMED: usize = 100;

/// What a reconciliation came to. Counts are of events on the producer's lists.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Report {
    /// The source.
    pub source: String,
    /// The lists that were gone through, and for gaps what was asked for by sequence.
    pub lists: Vec<List>,
    /// Pages that were read.
    pub pages: u64,
    /// Events that were found on the lists, or by their sequence.
    pub found: u64,
    /// Of these: applied, or decided otherwise, before. Nothing was done.
    pub already_applied: u64,
    /// Applied now.
    pub applied: u64,
    /// Stored, and waiting for a lower sequence.
    pub parked: u64,
    /// Dead letters, old and new, and what the fence holds: an operator decides about them. They are not tried again here, so
    /// that a second run changes nothing.
    pub dead: u64,
    /// The list had no content: the producer was asked to send them again.
    pub sent_again: u64,
    /// Could not be read, or not be applied now; the next run meets them again.
    pub failed: u64,
    /// The first 100 of those that are not applied now, and why.
    pub missing: Vec<Missing>,
    /// Gaps in streams that the producer could not fill.
    pub gaps: Vec<Gap>,
    /// What was odd about the lists without ending the run, such as counts that were wrong; the first 100.
    pub complaints: Vec<String>,
    /// What ended the run before the end of the lists. The next one goes on where this one was.
    pub problem: Option<Problem>,
}

/// An event on a list that is not applied.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Missing {
    /// Its event id.
    pub event_id: String,
    /// Why, for people.
    pub why: String,
}

/// A place in a stream that stays empty.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Gap {
    /// The stream.
    pub correlation_id: String,
    /// The lowest missing sequence.
    pub sequence: i64,
}

/// What ended a run early.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Problem {
    /// The producer's answer, or that there was none.
    Producer(ReplayError),
    /// More pages or events than one run takes.
    Bounded(String),
    /// The list goes round in a circle.
    Endless(String),
    /// Another process has taken over.
    TakenOver,
    /// The inbox is shutting down.
    Stopped,
}

impl std::fmt::Display for Problem {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Producer(error) => error.fmt(f),
            Self::Bounded(what) | Self::Endless(what) => f.write_str(what),
            Self::TakenOver => f.write_str("another process has taken over"),
            Self::Stopped => f.write_str("the inbox is shutting down"),
        }
    }
}

impl Report {
    pub(super) fn new(source: &str) -> Self {
        Self {
            source: source.to_owned(),
            ..Self::default()
        }
    }

    /// Whether the lists were gone through to their ends.
    pub fn is_complete(&self) -> bool {
        self.problem.is_none()
    }

    /// Events on the lists that are not applied (yet).
    pub fn still_missing(&self) -> u64 {
        self.parked + self.dead + self.sent_again + self.failed
    }

    /// For how long the producer wants to be left alone, if it said so.
    pub(super) fn wait(&self) -> Option<Duration> {
        match &self.problem {
            Some(Problem::Producer(error)) => error.wait(),
            _ => None,
        }
    }

    pub(super) fn miss(&mut self, event_id: &str, why: impl Into<String>) {
        if self.missing.len() < NAMED {
            self.missing.push(Missing {
                event_id: event_id.to_owned(),
                why: why.into(),
            });
        }
    }

    pub(super) fn gap(&mut self, correlation_id: &str, sequence: i64) {
        if self.gaps.len() < NAMED {
            self.gaps.push(Gap {
                correlation_id: correlation_id.to_owned(),
                sequence,
            });
        }
    }

    pub(super) fn complain(&mut self, what: impl Into<String>) {
        if self.complaints.len() < NAMED {
            self.complaints.push(what.into());
        }
    }

    /// One line for the log, and the metrics.
    pub(super) fn tell(&self) {
        for (outcome, count) in [
            ("already_applied", self.already_applied),
            ("applied", self.applied),
            ("parked", self.parked),
            ("dead", self.dead),
            ("sent_again", self.sent_again),
            ("failed", self.failed),
        ] {
            metrics::counter!(
                "inbox_reconciled_total", "source" => self.source.clone(), "outcome" => outcome
            )
            .increment(count);
        }
        let result = if self.is_complete() {
            "complete"
        } else {
            "broken_off"
        };
        metrics::counter!(
            "inbox_reconciliations_total", "source" => self.source.clone(), "result" => result
        )
        .increment(1);
        for complaint in &self.complaints {
            tracing::warn!(source = self.source, complaint, "a producer's list is odd");
        }
        let problem = self.problem.as_ref().map(ToString::to_string);
        if self.still_missing() == 0 && problem.is_none() && self.gaps.is_empty() {
            tracing::info!(
                source = self.source,
                found = self.found,
                already_applied = self.already_applied,
                applied = self.applied,
                "reconciled"
            );
        } else {
            tracing::warn!(
                source = self.source,
                found = self.found,
                already_applied = self.already_applied,
                applied = self.applied,
                parked = self.parked,
                dead = self.dead,
                sent_again = self.sent_again,
                failed = self.failed,
                gaps = self.gaps.len(),
                problem,
                "reconciled, and something is missing still"
            );
        }
    }
}
