//! §3 to §7, against a reference: random schedules of deliveries, faults, crashes, restarts, operators' decisions and time,
//! each step of which must answer, store and apply what a few hundred lines without any database say.
//!
//! A failure shows the smallest schedule that fails, with what was answered at each step, and the seed of the run.

mod check;
mod command;
mod crash;
mod explore;
mod process;
mod reference;
mod run;
mod tally;

use std::cell::RefCell;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use proptest::test_runner::{Config, RngAlgorithm, TestCaseError, TestRng, TestRunner};
use sqlx::pool::PoolOptions;
use tokio::runtime::Handle;

use self::command::schedule;
use self::reference::Lie;
use self::run::{Terms, run};
use self::tally::Tally;
use crate::db::TestDb;
use crate::kit::seeded;

suite![random_schedules_come_to_what_the_reference_says];

/// A slow machine runs fewer of them: the limit of the whole test comes after it.
const LONGEST: Duration = Duration::from_secs(50);
const CUT_SHORT: &str = "cut short";

/// Schedules of a test by default, where a server makes each statement slower, and where all is in this process.
fn cases<D: TestDb>() -> u32 {
    let default = if D::SINGLE_WRITER { 120 } else { 40 };
    default * times()
}

/// The long form has ten times as much of everything.
fn times() -> u32 {
    match std::env::var_os("TOWER_INBOX_TEST_ALL") {
        Some(_) => 10,
        None => 1,
    }
}

/// What a run of schedules came to: nothing, or what went wrong with the smallest one.
fn check<D: TestDb>(
    db: &D,
    random: &mut fastrand::Rng,
    tally: &Tally,
    lie: Option<Lie>,
    cases: u32,
) -> Result<(), String> {
    let mut seed = [0; 32];
    random.fill(&mut seed);
    let config = Config {
        cases,
        failure_persistence: None,
        max_shrink_iters: if lie.is_none() { 500 } else { 0 },
        // In ms: the limit of the whole test comes after it.
        max_shrink_time: 40_000,
        ..Config::default()
    };
    let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &seed);
    let mut runner = TestRunner::new_with_rng(config, rng);
    let handle = Handle::current();
    tokio::task::block_in_place(|| {
        let eyes = handle.block_on(db.pool(PoolOptions::new().max_connections(2)));
        // Most of what fails does so at once; where it is waited for, the smaller ones get less time.
        let patience = RefCell::new(Duration::from_secs(if lie.is_none() { 10 } else { 3 }));
        let began = Instant::now();
        let ended = runner.run(&schedule(), |schedule| {
            if lie.is_none() && began.elapsed() > LONGEST * times() {
                tally.seen(CUT_SHORT);
                return Ok(());
            }
            static NAMES: AtomicU32 = AtomicU32::new(0);
            let name = format!("s{}", NAMES.fetch_add(1, Ordering::Relaxed));
            let terms = Terms {
                db,
                eyes: &eyes,
                tally,
                lie,
                patience: *patience.borrow(),
            };
            handle
                .block_on(run(&terms, &name, &schedule))
                .map_err(|error| {
                    let first = patience.replace(Duration::from_secs(1));
                    if lie.is_none() && first > Duration::from_secs(1) {
                        eprintln!("fails, and is being made smaller: {error}");
                    }
                    TestCaseError::fail(error)
                })
        });
        handle.block_on(eyes.close());
        ended.map_err(|error| error.to_string())
    })
}

/// §3, §4.1, §4.3, §4.12, §4.13, §5.1, §5.4 to §5.6, §5.9 to §5.11, §5.15, §6.1, §7.1, §7.2
async fn random_schedules_come_to_what_the_reference_says<D: TestDb>(db: D) {
    let mut random = seeded("random schedules");
    let tally = Tally::default();
    let chosen = std::env::var("PROPTEST_CASES").ok();
    let cases = match &chosen {
        Some(cases) => cases.parse().expect("PROPTEST_CASES is a number"),
        None => cases::<D>(),
    };
    let checked = check(&db, &mut random, &tally, None, cases);
    tally.show(D::NAME);
    if let Err(error) = checked {
        panic!("{error}");
    }
    // A few dozen do not come to all that is rare; what they come to does not depend on the database.
    let whole = tally.missing("seen", &[CUT_SHORT]).len() == 1;
    if chosen.is_some() || !D::SINGLE_WRITER || !whole {
        return;
    }
    let missing = [
        tally.missing("answer", ANSWERS),
        tally.missing("dead", DEAD),
        tally.missing("seen", SEEN),
    ];
    assert!(
        missing.iter().all(Vec::is_empty),
        "the schedules are shallow, they never came to: {missing:?}"
    );
}

const ANSWERS: &[&str] = &[
    "Applied",
    "Duplicate",
    "Discarded",
    "Parked",
    "SetAside",
    "OtherContent",
    "PlaceTaken",
    "Rejected",
    "Failed",
    "Away",
    "Refused",
    "Done",
    "Already",
    r#"Error("Applied")"#,
    r#"Error("SetAside")"#,
    r#"Error("None")"#,
];
const DEAD: &[&str] = &["Gap", "Handler", "Rejected", "Crash", "Skipped"];
const SEEN: &[&str] = &[
    "fault",
    "crash on the way",
    "crash of the worker",
    "replayed out of order",
    "yielded place",
    "forgotten",
];

const LIES: [Lie; 10] = [
    Lie::DuplicatesAreAppliedAgain,
    Lie::ASkipFreesNobody,
    Lie::APurgeForgetsCursors,
    Lie::ARejectionMovesTheCursor,
    Lie::AGapIsWaitedForForEver,
    Lie::ARevokedSecretStillSigns,
    Lie::ADeadLetterKeepsItsPlace,
    Lie::AFailedRunLeavesItsLine,
    Lie::AReplayComesAtOnce,
    Lie::ACrashTakesAnAcknowledgedEvent,
];

/// §4.1: that the schedules would notice. Each of these is refuted by the first few dozens of them, as a rule. The database does not
/// matter, since it is the reference that lies.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reference_that_lies_is_refuted() {
    crate::db::run(|db: crate::db::sqlite::SqliteFile| async move {
        let mut random = seeded("lies");
        for lie in LIES {
            let refuted = check(&db, &mut random, &Tally::default(), Some(lie), 500);
            assert!(refuted.is_err(), "nothing has refuted {lie:?}");
        }
    })
    .await;
}
