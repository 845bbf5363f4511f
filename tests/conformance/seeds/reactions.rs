//! What each seed's producer does after each answer that there is (§3): `docs/clauses.md`.

use std::time::Duration;

use fastrand::Rng;
use tower_inbox::Preset;
use tower_inbox::preset::Reaction::{self, Delivered, Retries, Stops};

use crate::shared::schedule::{Answer, Ending, Next, Retries as SoFar, Schedule};

/// An answer of the inbox, and what must follow at each producer.
struct Row {
    status: u16,
    outcome: &'static str,
    /// With a `Retry-After`.
    later: bool,
    brief: Reaction,
    sequenced: Reaction,
    kudos: Reaction,
}

const fn row(status: u16, outcome: &'static str, all: Reaction) -> Row {
    Row {
        status,
        outcome,
        later: matches!(status, 429 | 503),
        brief: all,
        sequenced: all,
        kudos: all,
    }
}

/// The table of §3, top to bottom; a handler's own codes are in each producer's own test.
const ANSWERS: [Row; 20] = [
    row(200, "applied", Delivered),
    row(204, "applied", Delivered),
    // already_processed, superseded, discarded, fenced
    row(200, "duplicate", Delivered),
    // A handshake, a control event.
    row(200, "accepted", Delivered),
    // "may stop or retry": it is stored, so that either is right.
    Row {
        later: true,
        sequenced: Retries,
        ..row(202, "parked", Delivered)
    },
    // Set aside: without a time to come again.
    row(202, "parked", Delivered),
    row(202, "accepted", Delivered),
    row(400, "rejected", Stops),
    row(401, "rejected", Stops),
    row(405, "rejected", Stops),
    row(408, "failed", Retries),
    row(410, "rejected", Stops),
    row(413, "rejected", Stops),
    row(422, "rejected", Stops),
    row(429, "failed", Retries),
    row(500, "failed", Retries),
    row(503, "failed", Retries),
    // The handler's own verdicts.
    row(302, "rejected", Stops),
    row(403, "rejected", Stops),
    row(404, "rejected", Stops),
];

/// What the seed's page does not say of a status, and what its schedule was taken to mean.
const NOT_SAID: [(&str, &[u16]); 2] = [
    // Its lists are of single codes.
    ("brief", &[405, 413]),
    // "marks delivered on 200; on timeout/5xx, retries", and 202 is "retry later".
    (
        "sequenced",
        &[204, 302, 400, 401, 403, 404, 405, 408, 410, 413, 422, 429],
    ),
];

/// What the examples' producer does after its first attempt got this.
pub(super) fn of_schedule(
    name: &str,
    status: u16,
    retry_after: Option<Duration>,
    outcome: &str,
) -> Reaction {
    let schedule = Schedule::named(name).expect("a seed's producer");
    let answer = Answer::Status {
        status,
        retry_after,
        outcome: (!outcome.is_empty()).then(|| outcome.to_owned()),
    };
    match schedule.next(&mut SoFar::default(), &answer, &mut Rng::with_seed(1)) {
        Next::Again(_) => Retries,
        Next::Done(Ending::Delivered) => Delivered,
        Next::Done(Ending::Refused | Ending::Paused) => Stops,
        Next::Done(Ending::Exhausted) => panic!("{name} gives up after one attempt"),
    }
}

/// §3, its last column.
#[test]
fn each_answer_of_the_inbox_gets_the_reaction_that_it_is_meant_for() {
    for Row {
        status,
        outcome,
        later,
        brief,
        sequenced,
        kudos,
    } in ANSWERS
    {
        let retry_after = later.then_some(Duration::from_secs(1));
        for (name, expected) in [("brief", brief), ("sequenced", sequenced), ("kudos", kudos)] {
            let reaction = of_schedule(name, status, retry_after, outcome);
            assert_eq!(reaction, expected, "{name}: {status} {outcome}");
            let page = Preset::named(name).expect("a preset").answers;
            let silent = NOT_SAID
                .iter()
                .any(|(silent, codes)| *silent == name && codes.contains(&status));
            // Of a 202 their page goes by the status alone: whatever was set aside comes once more.
            let by_status = if name == "sequenced" && status == 202 {
                Retries
            } else {
                expected
            };
            let said = (!silent).then_some(by_status);
            assert_eq!(page.reaction(status), said, "{name}: {status} {outcome}");
        }
    }
}

/// §3: "Never 409: two of the three producers of the seeds treat it as terminal. Never a 3xx of the middleware's own."
#[test]
fn a_conflict_and_a_redirect_would_end_an_event() {
    for name in ["brief", "kudos"] {
        let page = Preset::named(name).expect("a preset").answers;
        for status in [302, 409] {
            assert_eq!(page.reaction(status), Some(Stops), "{name}: {status}");
        }
    }
    assert!(ANSWERS.iter().all(|row| row.status != 409));
}
