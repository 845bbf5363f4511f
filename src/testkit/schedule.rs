//! When a producer tries again and when it stops: the three producers' own rules, as data.
//!
//! Everything here is in the schedule's own time and without a clock; whoever sleeps divides by the time
//! scale. The recovery window of `sequenced` is therefore measured by the pauses that the schedule made, not
//! by the wall clock: a run that is a thousand times faster is not out of it because an answer took 2 ms.
//!
//! The crate's examples include this very file, since they run without the feature: it uses nothing of the crate.

use std::time::Duration;

use fastrand::Rng;

/// A producer's retry rules.
#[derive(Clone, Debug)]
pub struct Schedule {
    /// Whose rules they are: the preset's name.
    pub name: &'static str,
    /// Pause before each retry; the last one is used again where a window ends the retries.
    pauses: &'static [Duration],
    /// Share by which a pause is stretched or shortened.
    jitter: f64,
    /// What ends the retries.
    limit: Limit,
    /// A `Retry-After` is obeyed up to this.
    longest_wait: Duration,
    /// 202 asks to come again later, unless it says that the event has been taken.
    later_on_202: bool,
    /// 410 pauses the whole subscription.
    pauses_on_gone: bool,
    retryable: fn(u16) -> bool,
}

#[derive(Clone, Debug)]
enum Limit {
    /// This many attempts, the first one included.
    Attempts(u32),
    /// No attempt later than this after the first one.
    Window(Duration),
}

const fn secs(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// 30 s doubling to 480 s, 6 attempts, ± 20 %. Codes that its lists do not name are terminal.
static BRIEF: Schedule = Schedule {
    name: "brief",
    pauses: &[secs(30), secs(60), secs(120), secs(240), secs(480)],
    jitter: 0.20,
    limit: Limit::Attempts(6),
    // `Retry-After` overrides the schedule, without a bound of its own: the replay window bounds it, since
    // the receiver forgets the key after it.
    longest_wait: secs(72 * 3_600),
    later_on_202: false,
    pauses_on_gone: false,
    retryable: |status| matches!(status, 408 | 425 | 429 | 500 | 502 | 503 | 504),
};

/// 1 s, 4 s, 16 s, 64 s, then at most 5 minutes; until 200, for the 5 minutes of its recovery window.
static SEQUENCED: Schedule = Schedule {
    name: "sequenced",
    pauses: &[secs(1), secs(4), secs(16), secs(64), secs(256), secs(300)],
    jitter: 0.0,
    limit: Limit::Window(secs(300)),
    longest_wait: secs(300),
    later_on_202: true,
    pauses_on_gone: false,
    retryable: |status| matches!(status, 408 | 425 | 429 | 500..=599),
};

/// 30 s, 2 min, 10 min, 30 min, 1 h, 6 attempts, ± 25 %.
static KUDOS: Schedule = Schedule {
    name: "kudos",
    pauses: &[secs(30), secs(120), secs(600), secs(1_800), secs(3_600)],
    jitter: 0.25,
    limit: Limit::Attempts(6),
    longest_wait: secs(3_600),
    later_on_202: false,
    pauses_on_gone: true,
    retryable: |status| matches!(status, 408 | 429 | 500..=599),
};

/// What came back, as the producer sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// Timeout, connection error, or an answer that got lost.
    Nothing,
    /// An answer.
    Status {
        /// Its status code.
        status: u16,
        /// Of `Retry-After`; a date is not understood and counts for none.
        retry_after: Option<Duration>,
        /// Of `Inbox-Outcome`.
        outcome: Option<String>,
    },
}

/// What the producer does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// Again after this pause, in the schedule's time.
    Again(Duration),
    /// Not again: this is how it ended.
    Done(Ending),
}

/// How an event ended for its producer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// The producer counts it as delivered.
    Delivered,
    /// Told never to try again.
    Refused,
    /// As `Refused`, and nothing more is sent to this receiver.
    Paused,
    /// Tried as often, or for as long, as the schedule allows.
    Exhausted,
}

/// The retries of one event so far.
#[derive(Clone, Debug, Default)]
pub struct Retries {
    /// Attempts whose answer has been judged.
    attempts: u32,
    /// Steps of the backoff that are used up.
    steps: usize,
    /// The pauses together.
    paused: Duration,
}

/// For producers whose own schedule is not known: 30 s doubling up to an hour.
static DOUBLING: &[Duration] = &[
    secs(30),
    secs(60),
    secs(120),
    secs(240),
    secs(480),
    secs(960),
    secs(1_920),
    secs(3_600),
];

impl Schedule {
    /// The schedule of `kudos`, `sequenced` or `brief`, which say theirs themselves.
    pub fn named(name: &str) -> Option<&'static Self> {
        let all = [&BRIEF, &SEQUENCED, &KUDOS];
        all.into_iter().find(|schedule| schedule.name == name)
    }

    /// For any other producer: 30 s doubling to 1 h, ± 20 %, for as long as this from the first attempt to the last; one
    /// attempt where that is zero. 408, 425, 429 and 5xx are tried again, and a `Retry-After` on 429 is obeyed up to 1 h.
    pub fn doubling(name: &'static str, span: Duration) -> Self {
        Self {
            name,
            pauses: DOUBLING,
            jitter: 0.20,
            limit: if span.is_zero() {
                Limit::Attempts(1)
            } else {
                Limit::Window(span)
            },
            longest_wait: secs(3_600),
            later_on_202: false,
            pauses_on_gone: false,
            retryable: |status| matches!(status, 408 | 425 | 429 | 500..=599),
        }
    }

    /// Judges one answer, and says what the producer does next.
    pub fn next(&self, retries: &mut Retries, answer: &Answer, rng: &mut Rng) -> Next {
        retries.attempts += 1;
        let mut wait = None;
        if let Answer::Status {
            status,
            retry_after,
            outcome,
        } = answer
        {
            match *status {
                202 if self.later_on_202 && asks_again(*retry_after, outcome.as_deref()) => {
                    wait = *retry_after;
                }
                200..=299 => return Next::Done(Ending::Delivered),
                410 if self.pauses_on_gone => return Next::Done(Ending::Paused),
                status if !(self.retryable)(status) => return Next::Done(Ending::Refused),
                429 => wait = *retry_after,
                _ => {}
            }
        }
        let step = self.step(retries, rng);
        let pause = match wait {
            Some(wait) => wait.min(self.longest_wait),
            None => step,
        };
        match self.limit {
            Limit::Attempts(most) if retries.attempts >= most => Next::Done(Ending::Exhausted),
            Limit::Attempts(_) => Next::Again(pause),
            Limit::Window(window) => {
                // The last attempt is at the window's end, so that none of it is given away.
                let left = window.saturating_sub(retries.paused);
                if left.is_zero() {
                    return Next::Done(Ending::Exhausted);
                }
                // `Retry-After: 0` over and over must not stand still in it.
                let pause = pause.max(secs(1)).min(left);
                retries.paused += pause;
                Next::Again(pause)
            }
        }
    }

    /// The next step of the backoff, with its jitter; used up even if a `Retry-After` takes its place.
    fn step(&self, retries: &mut Retries, rng: &mut Rng) -> Duration {
        let last = self.pauses.len() - 1;
        let pause = self.pauses[retries.steps.min(last)];
        retries.steps += 1;
        pause.mul_f64(1.0 + self.jitter * (2.0 * rng.f64() - 1.0))
    }
}

/// Whether a 202 asks to come again, and is not the answer of a receiver that has taken the event for good.
fn asks_again(retry_after: Option<Duration>, outcome: Option<&str>) -> bool {
    match outcome {
        // Waits for a lower sequence; or, without a time to come again, set aside for an operator.
        Some("parked") => retry_after.is_some(),
        // `applied`: the handler's own 202. `accepted`: stored, a worker applies it. `duplicate`: known.
        Some(_) => false,
        // A receiver that says no more than 202.
        None => true,
    }
}

/// A pause in real time, `scale` times as fast as in the schedule's own.
pub fn scaled(pause: Duration, scale: f64) -> Duration {
    // A tiny scale makes more seconds than a `Duration` holds; that is for ever either way.
    Duration::try_from_secs_f64(pause.as_secs_f64() / scale).unwrap_or(Duration::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(status: u16) -> Answer {
        Answer::Status {
            status,
            retry_after: None,
            outcome: None,
        }
    }

    fn with(status: u16, retry_after: u64, outcome: &str) -> Answer {
        Answer::Status {
            status,
            retry_after: Some(secs(retry_after)),
            outcome: (!outcome.is_empty()).then(|| outcome.to_owned()),
        }
    }

    /// The pauses until the end, and the end.
    fn follow(name: &str, answer: &Answer, rng: &mut Rng) -> (Vec<f64>, Ending) {
        let schedule = Schedule::named(name).unwrap();
        let mut retries = Retries::default();
        let mut pauses = Vec::new();
        loop {
            match schedule.next(&mut retries, answer, rng) {
                Next::Again(pause) => pauses.push(pause.as_secs_f64()),
                Next::Done(ending) => return (pauses, ending),
            }
        }
    }

    #[test]
    fn pauses_lie_within_the_jitter_and_use_all_of_it() {
        let cases = [
            ("kudos", 0.25, [30.0, 120.0, 600.0, 1_800.0, 3_600.0]),
            ("brief", 0.20, [30.0, 60.0, 120.0, 240.0, 480.0]),
        ];
        for (name, jitter, steps) in cases {
            let mut rng = Rng::with_seed(1);
            let (mut low, mut high) = (f64::MAX, 0.0_f64);
            for _ in 0..500 {
                let (pauses, ending) = follow(name, &Answer::Nothing, &mut rng);
                assert_eq!(ending, Ending::Exhausted);
                assert_eq!(pauses.len(), 5, "six attempts");
                for (pause, step) in pauses.iter().zip(steps) {
                    low = low.min(pause / step);
                    high = high.max(pause / step);
                }
            }
            assert!(low >= 1.0 - jitter && low < 1.0 - 0.95 * jitter, "{low}");
            assert!(high <= 1.0 + jitter && high > 1.0 + 0.95 * jitter, "{high}");
        }
    }

    #[test]
    fn sequenced_ends_with_its_window() {
        let mut rng = Rng::with_seed(1);
        let (pauses, ending) = follow("sequenced", &status(503), &mut rng);
        assert_eq!(pauses, [1.0, 4.0, 16.0, 64.0, 215.0]);
        assert_eq!(ending, Ending::Exhausted);
        // Parked: again whenever the receiver says, for as long as the window is open.
        let (pauses, ending) = follow("sequenced", &with(202, 7, "parked"), &mut rng);
        assert_eq!(pauses.iter().sum::<f64>(), 300.0);
        assert_eq!(pauses[0], 7.0);
        assert_eq!(ending, Ending::Exhausted);
        let (pauses, ending) = follow("sequenced", &with(202, 0, "parked"), &mut rng);
        assert_eq!(pauses, [1.0; 300]);
        assert_eq!(ending, Ending::Exhausted);
    }

    #[test]
    fn a_schedule_of_no_producer_doubles_for_as_long_as_it_is_told() {
        let pauses = |span| {
            let (schedule, mut rng) = (Schedule::doubling("x", secs(span)), Rng::with_seed(1));
            let (mut retries, mut pauses) = (Retries::default(), Vec::new());
            while let Next::Again(pause) = schedule.next(&mut retries, &status(503), &mut rng) {
                pauses.push(pause);
            }
            pauses
        };
        assert_eq!(pauses(0), [], "one attempt");
        let hours = pauses(4 * 3_600);
        assert_eq!(hours.iter().sum::<Duration>(), secs(4 * 3_600));
        assert!(hours[0] >= secs(24) && hours[0] <= secs(36), "{hours:?}");
        assert!(
            hours[5] >= secs(768) && hours[5] <= secs(1_152),
            "{hours:?}"
        );
    }

    #[test]
    fn retry_after_counts_on_429_and_is_capped_at_the_longest_slot() {
        let first = |name, answer: Answer| follow(name, &answer, &mut Rng::with_seed(1)).0[0];
        assert_eq!(first("kudos", with(429, 7, "failed")), 7.0);
        assert_eq!(first("kudos", with(429, 86_400, "")), 3_600.0);
        assert_eq!(first("sequenced", with(429, 86_400, "")), 300.0);
        assert_eq!(first("brief", with(429, 7, "")), 7.0);
        assert_eq!(first("brief", with(429, 3_600, "")), 3_600.0);
        assert_eq!(first("brief", with(429, u64::MAX, "")), 259_200.0);
        // Only there: a 503 keeps to the schedule.
        assert!(first("kudos", with(503, 7, "")) > 20.0);
        // It takes the place of a step, and its attempt counts.
        let (pauses, _) = follow("kudos", &with(429, 7, ""), &mut Rng::with_seed(1));
        assert_eq!(pauses, [7.0; 5]);
        let kudos = Schedule::named("kudos").unwrap();
        let (mut retries, mut rng) = (Retries::default(), Rng::with_seed(1));
        kudos.next(&mut retries, &with(429, 7, ""), &mut rng);
        let next = kudos.next(&mut retries, &status(503), &mut rng);
        assert!(matches!(next, Next::Again(pause) if pause >= secs(90) && pause <= secs(150)));
    }

    #[test]
    fn success_and_later() {
        let end = |name, answer| follow(name, &answer, &mut Rng::with_seed(1)).1;
        for name in ["kudos", "brief", "sequenced"] {
            assert_eq!(end(name, status(200)), Ending::Delivered);
            assert_eq!(end(name, status(204)), Ending::Delivered);
        }
        assert_eq!(end("kudos", with(202, 1, "parked")), Ending::Delivered);
        assert_eq!(end("brief", with(202, 1, "parked")), Ending::Delivered);
        assert_eq!(end("sequenced", with(202, 1, "")), Ending::Exhausted);
        assert_eq!(end("sequenced", status(202)), Ending::Exhausted);
        let taken = |outcome: &str| Answer::Status {
            status: 202,
            retry_after: None,
            outcome: Some(outcome.to_owned()),
        };
        for outcome in ["applied", "accepted", "parked"] {
            assert_eq!(end("sequenced", taken(outcome)), Ending::Delivered);
        }
    }

    #[test]
    fn codes() {
        let retried = |name| {
            let schedule = Schedule::named(name).unwrap();
            let codes = (300..600).filter(|code| {
                let mut rng = Rng::with_seed(1);
                let next = schedule.next(&mut Retries::default(), &status(*code), &mut rng);
                matches!(next, Next::Again(_))
            });
            codes.collect::<Vec<u16>>()
        };
        assert_eq!(retried("brief"), [408, 425, 429, 500, 502, 503, 504]);
        let kudos: Vec<u16> = [408, 429].into_iter().chain(500..600).collect();
        assert_eq!(retried("kudos"), kudos);
        let sequenced: Vec<u16> = [408, 425, 429].into_iter().chain(500..600).collect();
        assert_eq!(retried("sequenced"), sequenced);
        let gone = |name| follow(name, &status(410), &mut Rng::with_seed(1)).1;
        assert_eq!(gone("kudos"), Ending::Paused);
        assert_eq!(gone("brief"), Ending::Refused);
    }

    #[test]
    fn scaling_never_overflows() {
        assert_eq!(scaled(secs(30), 1_000.0), Duration::from_millis(30));
        assert_eq!(scaled(secs(30), 1.0), secs(30));
        assert_eq!(scaled(secs(3_600), 1e-300), Duration::MAX);
    }
}
