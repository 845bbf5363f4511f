//! What came back, counted: the one line of JSON at the end.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::Serialize;

use super::client::{Lost, Reply};
use super::ledger::Differences;
use super::schedule::Ending;

/// What is known of an event; of several copies the best counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Default)]
pub(crate) enum Fate {
    /// Never answered for good: the subscription was paused before.
    #[default]
    Unsent,
    Refused,
    Exhausted,
    /// Delivered, and not applied yet: parked or accepted.
    Waiting,
    Applied,
}

impl Fate {
    pub(crate) fn of(verdict: Ending, outcome: Option<&str>) -> Self {
        match (verdict, outcome) {
            (Ending::Delivered, Some("parked" | "accepted")) => Self::Waiting,
            (Ending::Delivered, _) => Self::Applied,
            (Ending::Refused | Ending::Paused, _) => Self::Refused,
            (Ending::Exhausted, _) => Self::Exhausted,
        }
    }
}

/// Counts while the traffic runs.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    /// By index of the event.
    pub(crate) fates: Vec<Fate>,
    /// When its last copy was at its end, in seconds since the Unix epoch.
    ended_at: Vec<u64>,
    answers: BTreeMap<u16, BTreeMap<String, u64>>,
    unanswered: Unanswered,
    deliveries: u64,
    retries: u64,
    dropped: u64,
    micros: Vec<u32>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Unanswered {
    pub(crate) timeout: u64,
    pub(crate) connection: u64,
}

/// The end of a run. Its fields are the keys of the JSON line.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Report {
    pub(crate) preset: &'static str,
    pub(crate) schedule: &'static str,
    pub(crate) seed: u64,
    pub(crate) events: usize,
    /// Events answered with success for at least one copy.
    pub(crate) delivered: usize,
    /// Events refused by a terminal code.
    pub(crate) refused: usize,
    /// Events given up after the last attempt.
    pub(crate) exhausted: usize,
    /// Events left over because the receiver asked for a pause (410).
    pub(crate) unsent: usize,
    /// Requests.
    pub(crate) deliveries: u64,
    pub(crate) retries: u64,
    /// Answers that came and were treated as lost (`--drop`); `answers` has them too.
    pub(crate) dropped: u64,
    /// By status, then by `Inbox-Outcome` (`none`: no such header).
    pub(crate) answers: BTreeMap<u16, BTreeMap<String, u64>>,
    pub(crate) unanswered: Unanswered,
    /// Of all answers; null without any.
    pub(crate) p50_ms: Option<f64>,
    pub(crate) p95_ms: Option<f64>,
    pub(crate) p99_ms: Option<f64>,
    pub(crate) seconds: f64,
    /// Whether the ledger equals what was sent; null unless asked for.
    pub(crate) check: Option<bool>,
    /// In what it differs; null unless asked for.
    pub(crate) differences: Option<Differences>,
    #[serde(skip)]
    pub(crate) fates: Vec<Fate>,
    #[serde(skip)]
    pub(crate) ended_at: Vec<u64>,
}

impl Tally {
    pub(crate) fn new(events: usize) -> Self {
        Self {
            fates: vec![Fate::Unsent; events],
            ended_at: vec![0; events],
            ..Self::default()
        }
    }

    /// One request is over.
    pub(crate) fn answered(
        &mut self,
        retry: bool,
        answer: &Result<Reply, Lost>,
        dropped: bool,
        took: Duration,
    ) {
        self.deliveries += 1;
        self.retries += u64::from(retry);
        self.dropped += u64::from(dropped);
        match answer {
            Ok(reply) => {
                let outcome = reply.outcome.as_deref().unwrap_or("none");
                let by_outcome = self.answers.entry(reply.status).or_default();
                *by_outcome.entry(outcome.to_owned()).or_default() += 1;
                self.micros
                    .push(u32::try_from(took.as_micros()).unwrap_or(u32::MAX));
            }
            Err(Lost::Timeout) => self.unanswered.timeout += 1,
            Err(Lost::Connection) => self.unanswered.connection += 1,
        }
    }

    /// One copy of an event is at its end.
    pub(crate) fn ended(&mut self, event: usize, fate: Fate, now: u64) {
        self.ended_at[event] = now;
        self.fates[event] = self.fates[event].max(fate);
    }

    pub(crate) fn report(
        mut self,
        preset: &'static str,
        schedule: &'static str,
        seed: u64,
        took: Duration,
    ) -> Report {
        self.micros.sort_unstable();
        let percentile = |share| percentile(&self.micros, share).map(|us| f64::from(us) / 1_000.0);
        let count = |fate| self.fates.iter().filter(|found| **found == fate).count();
        Report {
            preset,
            schedule,
            seed,
            events: self.fates.len(),
            delivered: count(Fate::Applied) + count(Fate::Waiting),
            refused: count(Fate::Refused),
            exhausted: count(Fate::Exhausted),
            unsent: count(Fate::Unsent),
            deliveries: self.deliveries,
            retries: self.retries,
            dropped: self.dropped,
            p50_ms: percentile(50),
            p95_ms: percentile(95),
            p99_ms: percentile(99),
            answers: self.answers,
            unanswered: self.unanswered,
            seconds: (took.as_secs_f64() * 1_000.0).round() / 1_000.0,
            check: None,
            differences: None,
            fates: self.fates,
            ended_at: self.ended_at,
        }
    }
}

impl Report {
    /// The line, without its end.
    pub(crate) fn line(&self) -> String {
        serde_json::to_string(self).expect("plain data")
    }

    /// Takes the result of a check in.
    pub(crate) fn checked(&mut self, differences: Differences) {
        self.check = Some(differences.none());
        self.differences = Some(differences);
    }

    /// How long a check should wait while nothing gets better.
    pub(crate) fn patience(&self) -> Duration {
        let any = |fate| self.fates.contains(&fate);
        Duration::from_secs(match () {
            // Longer than a receiver's lease of 30 s, and than its longest pause but the last, 64 s + 25 %.
            () if any(Fate::Waiting) => 90,
            // The last request may have arrived and still be running.
            () if any(Fate::Exhausted) => 10,
            // All is known: only the connection can be at fault.
            () => 1,
        })
    }
}

/// By nearest rank: the smallest value that at least `percent` of 100 do not exceed. `sorted` ascends.
pub(crate) fn percentile(sorted: &[u32], percent: usize) -> Option<u32> {
    let rank = (sorted.len() * percent).div_ceil(100).max(1);
    sorted.get(rank - 1).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_by_nearest_rank() {
        let hundred: Vec<u32> = (1..=100).collect();
        assert_eq!(percentile(&hundred, 50), Some(50));
        assert_eq!(percentile(&hundred, 95), Some(95));
        assert_eq!(percentile(&hundred, 99), Some(99));
        let five = [15, 20, 35, 40, 50];
        assert_eq!(percentile(&five, 50), Some(35));
        assert_eq!(percentile(&five, 95), Some(50));
        assert_eq!(percentile(&five, 1), Some(15));
        assert_eq!(percentile(&[9], 99), Some(9));
        assert_eq!(percentile(&[], 50), None);
    }

    #[test]
    fn the_best_copy_counts_and_answers_are_by_status_and_outcome() {
        let mut tally = Tally::new(3);
        let reply = |status, outcome: Option<&str>| {
            Ok(Reply {
                status,
                retry_after: None,
                outcome: outcome.map(str::to_owned),
            })
        };
        let took = Duration::from_millis(2);
        tally.answered(false, &reply(200, Some("applied")), true, took);
        tally.answered(true, &reply(200, Some("duplicate")), false, took);
        tally.answered(false, &reply(502, None), false, took);
        tally.answered(false, &Err(Lost::Timeout), false, took);
        tally.ended(0, Fate::Applied, 0);
        tally.ended(0, Fate::Exhausted, 0);
        tally.ended(1, Fate::Exhausted, 0);
        let report = tally.report("kudos", "brief", 7, took);
        assert_eq!(
            (report.delivered, report.exhausted, report.unsent),
            (1, 1, 1)
        );
        assert_eq!(report.patience(), Duration::from_secs(10));
        let line: serde_json::Value = serde_json::from_str(&report.line()).unwrap();
        assert_eq!(
            line["answers"],
            serde_json::json!({"200": {"applied": 1, "duplicate": 1}, "502": {"none": 1}})
        );
        assert_eq!(line["deliveries"], 4);
        assert_eq!(line["dropped"], 1);
        assert_eq!(line["unanswered"]["timeout"], 1);
        assert_eq!(line["p50_ms"], 2.0);
    }
}
