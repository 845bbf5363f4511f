//! kill -9 of the receiver at every point, and a restart on the same database: the ledger is exact (§4.1, §5.9, §9).
#![allow(
    clippy::print_stderr,
    reason = "a seed must be told, so that a failure can be repeated"
)]

#[path = "support/mod.rs"]
mod support;

use std::net::SocketAddr;
use std::process::{Command, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use support::event::{Event, SECRET};
use support::receiver::{Receiver, Setup};
use support::{binary, wait_until};

/// The crashes under load.
const KILLS: u32 = 20;
/// Of one run of the sender: it lasts for some crashes.
const EVENTS: u32 = 400;

/// The sender of the examples: duplicates, shuffled. It tries an event again after 100 ms, 400 ms, 2 s, 6 s and 12 s: the
/// last attempts come when the crashes are over, so that a report that is not whole is the receiver's doing.
fn sender(to: SocketAddr, seed: u64) -> Command {
    let mut command = Command::new(binary::example("sender"));
    command
        .args([
            "--url",
            &format!("http://{to}"),
            "--secret",
            SECRET,
            "--sequenced",
            "--accounts",
            "10",
        ])
        .args([
            "--events",
            &EVENTS.to_string(),
            "--duplicates",
            "30%",
            "--reorder",
            "16",
        ])
        .args([
            "--time-scale",
            "300",
            "--timeout",
            "5s",
            "--seed",
            &seed.to_string(),
            "--check",
        ])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command
}

/// The sender's report: all of it was delivered, and the ledger says exactly what was sent.
#[track_caller]
fn is_exact(output: &Output, seed: u64) -> Value {
    let (out, err) = (
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr),
    );
    assert!(output.status.success(), "seed {seed}: {out}{err}");
    let report: Value = serde_json::from_str(out.lines().last().expect("a report")).expect("JSON");
    assert_eq!(report["check"], true, "seed {seed}: {report}");
    assert_eq!(report["delivered"], EVENTS, "seed {seed}: {report}");
    report
}

/// §4.1, §9: twenty crashes at random moments of the traffic; each event is there exactly once and in order, without
/// any call but the producer's own retries. What is sent again afterwards is known.
#[test]
fn after_twenty_crashes_under_load_the_ledger_is_exact() {
    let mut seed = fastrand::u64(..1 << 32);
    eprintln!("seed {seed}");
    let mut rng = fastrand::Rng::with_seed(seed);
    let mut receiver = Setup::new()
        .on_own_port()
        .set("BACKOFF", "20ms,100ms,500ms")
        .start();
    let address = receiver.address;
    let (mut kills, mut lost, mut rounds) = (0, 0, Vec::new());
    while kills < KILLS {
        seed += 1;
        rounds.push(seed);
        let mut sending = sender(address, seed).spawn().expect("the sender runs");
        while kills < KILLS {
            // The random moment: nothing is waited for.
            thread::sleep(Duration::from_millis(rng.u64(20..600)));
            if sending.try_wait().expect("it can be asked").is_some() {
                break;
            }
            receiver = receiver.crash();
            kills += 1;
        }
        let report = is_exact(&sending.wait_with_output().expect("a report"), seed);
        lost += report["unanswered"]["connection"]
            .as_u64()
            .expect("a count");
    }
    assert!(lost > 0, "the crashes met no traffic");
    for seed in rounds {
        let again = sender(address, seed).output().expect("a report");
        let report = is_exact(&again, seed);
        let outcomes = report["answers"].as_object().expect("answers").values();
        let others = outcomes.flat_map(|by| by.as_object().expect("outcomes").keys());
        let others: Vec<_> = others.filter(|outcome| *outcome != "duplicate").collect();
        assert!(others.is_empty(), "seed {seed}: {report}");
    }
}

/// §5.9: orderly restarts under load: each process ends with status 0, and nothing is lost or done twice.
#[test]
fn after_orderly_restarts_under_load_the_ledger_is_exact() {
    let seed = fastrand::u64(..1 << 32);
    eprintln!("seed {seed}");
    let mut rng = fastrand::Rng::with_seed(seed);
    let mut receiver = Setup::new().on_own_port().start();
    let mut sending = sender(receiver.address, seed)
        .spawn()
        .expect("the sender runs");
    let mut restarts = 0;
    while sending.try_wait().expect("it can be asked").is_none() && restarts < 8 {
        // The random moment: nothing is waited for.
        thread::sleep(Duration::from_millis(rng.u64(20..400)));
        receiver.signal("TERM");
        assert_eq!(receiver.wait().code(), Some(0), "{}", receiver.log());
        receiver = receiver.crash();
        restarts += 1;
    }
    is_exact(&sending.wait_with_output().expect("a report"), seed);
    assert!(restarts > 1);
}

/// §4.1: what was answered with 200 is there after a crash that comes at once; the redelivery is known.
#[test]
fn an_acknowledged_event_survives_a_crash_right_after_the_answer() {
    let mut receiver = Setup::new().start();
    for sequence in 1..=8 {
        let event = Event::of("acct-1", sequence);
        receiver.deliver(&event).is(200, "applied");
        receiver = receiver.crash();
        assert!(receiver.has_stream("acct-1", sequence));
        receiver.deliver(&event).is(200, "duplicate");
    }
}

/// §4.1: a crash while the handler runs leaves nothing, no lock and no mark; the retry applies.
#[test]
fn a_crash_while_the_handler_runs_leaves_nothing() {
    let mut receiver = Setup::new().start();
    for (n, fault) in (1..).zip(["sleep:20000", "sql_sleep:20000"]) {
        let event = Event::of("acct-1", n).fault(fault).fault_times(1);
        let lost = receiver.deliver_meanwhile(&event);
        receiver.wait_until_writing();
        receiver = receiver.crash();
        assert!(
            lost.join().expect("no panic").is_err(),
            "there was no answer"
        );
        assert!(receiver.has_stream("acct-1", n - 1));
        // It counts the runs anew.
        receiver.deliver(&Event::of("acct-1", n)).is(200, "applied");
    }
    assert!(receiver.has_stream("acct-1", 2));
}

/// §5.9: parked events survive, and the fill after the crash frees them.
#[test]
fn a_crash_between_park_and_fill_forgets_nothing() {
    let mut receiver = Setup::new().start();
    for sequence in [4, 2, 3] {
        receiver
            .deliver(&Event::of("acct-1", sequence))
            .is(202, "parked");
        receiver = receiver.crash();
    }
    receiver.deliver(&Event::of("acct-1", 3)).is(202, "parked");
    receiver.deliver(&Event::of("acct-1", 1)).is(200, "applied");
    wait_until("the parked ones are applied", || {
        receiver.has_stream("acct-1", 4)
    });
}

/// §5.9, §5.14: a crash between the commit and the drain: the next process goes on by itself, without any call.
#[test]
fn a_crash_between_commit_and_drain_is_made_up_for_by_the_next_process() {
    let mut receiver = Setup::new().start();
    for n in 0..4 {
        let stream = format!("acct-{n}");
        receiver.deliver(&Event::of(&stream, 3)).is(202, "parked");
        // The drain is busy with the second one for longer than this process lives.
        receiver
            .deliver(&Event::of(&stream, 2).fault("sleep:1500"))
            .is(202, "parked");
        receiver.deliver(&Event::of(&stream, 1)).is(200, "applied");
        if n % 2 == 0 {
            receiver.wait_until_writing();
        }
        receiver = receiver.crash();
        wait_until("the stream is applied", || receiver.has_stream(&stream, 3));
    }
}

/// §4.13: a verdict that was answered is a dead letter after the crash, and its place is still its own.
#[test]
fn an_answered_verdict_survives_a_crash() {
    let receiver = Setup::new().start();
    let first = Event::of("acct-1", 1).fault("status:422").fault_times(1);
    receiver.deliver(&first).is(422, "rejected");
    let receiver = receiver.crash();
    let dead = [("source", "kudos"), ("reason", "rejected")];
    wait_until("the dead letter is counted", || {
        receiver.metric("inbox_dead_letters", &dead) == 1.0
    });
    receiver.deliver(&Event::of("acct-1", 2)).is(202, "parked");
    // Its faults are counted anew.
    receiver.deliver(&first).is(422, "rejected");
    receiver.deliver(&first).is(200, "applied");
    wait_until("the successor is applied", || {
        receiver.has_stream("acct-1", 2)
    });
}

/// §5.4, §5.9: a dead letter of a gap survives, and comes back when the gap fills.
#[test]
fn a_gap_that_was_given_up_survives_a_crash_and_comes_back() {
    let receiver = Setup::new().set("RECOVERY_WINDOW", "200ms").start();
    receiver.deliver(&Event::of("acct-1", 2)).is(202, "parked");
    let dead = [("source", "kudos"), ("reason", "gap")];
    wait_until("it is a dead letter", || {
        receiver.metric("inbox_dead_letters", &dead) == 1.0
    });
    let receiver = receiver.crash();
    receiver.deliver(&Event::of("acct-1", 1)).is(200, "applied");
    wait_until("it has come back", || receiver.has_stream("acct-1", 2));
}

/// §9: a receiver frozen inside a handler's transaction. The other process answers within its budget, never with
/// success; when the frozen one goes on, the event is applied by one of them.
#[test]
fn a_frozen_receiver_delays_an_event_and_never_doubles_it() {
    let frozen = Setup::new().set("DELIVERY_BUDGET", "2s").start();
    let other = frozen.beside();
    for n in 1..=3 {
        let event = Event::of("acct-1", n).fault("sleep:1000");
        let first = frozen.deliver_meanwhile(&event);
        frozen.wait_until_writing();
        frozen.signal("STOP");
        let began = Instant::now();
        // The write lock is not to be had: by whom it is held a process cannot see.
        let refused = other.deliver(&event);
        assert!([429, 503].contains(&refused.status), "{refused:?}");
        refused
            .is(refused.status, "failed")
            .is_problem()
            .says_when_to_retry();
        assert!(
            began.elapsed() < Duration::from_secs(8),
            "{:?}",
            began.elapsed()
        );
        assert!(other.has_stream("acct-1", n - 1));
        frozen.signal("CONT");
        let first = first.join().expect("no panic").expect("an answer");
        assert!([200, 503].contains(&first.status), "{first:?}");
        wait_until("the retry is served", || {
            other.deliver(&event).status == 200
        });
        assert!(other.has_stream("acct-1", n));
        frozen.deliver(&event).is(200, "duplicate");
    }
}

/// §4.1: two receivers on one database, the same traffic to both at the same time, and one of them crashes.
#[test]
fn two_receivers_apply_each_event_once_though_one_of_them_crashes() {
    let seed = fastrand::u64(..1 << 32);
    eprintln!("seed {seed}");
    let mut first = Setup::new()
        .on_own_port()
        .set("BACKOFF", "20ms,100ms,500ms")
        .start();
    let second = first.beside();
    let senders =
        [first.address, second.address].map(|to| sender(to, seed).spawn().expect("it runs"));
    for _ in 0..3 {
        thread::sleep(Duration::from_millis(fastrand::u64(50..500)));
        first = first.crash();
    }
    for sender in senders {
        is_exact(&sender.wait_with_output().expect("a report"), seed);
    }
    totals_agree(&first, &second);
}

/// Both processes show one and the same ledger.
#[track_caller]
fn totals_agree(first: &Receiver, second: &Receiver) {
    for n in 1..=10 {
        let path = format!("/ledger/acct-{n}");
        let (one, other) = (first.get(&path).json(), second.get(&path).json());
        assert_eq!(one, other);
        assert_ne!(one["entries"], json!([]));
    }
}
