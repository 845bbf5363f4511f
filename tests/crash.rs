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

use support::database::{Kind, on_each_database};
use support::event::{Event, SECRET};
use support::receiver::{Receiver, Setup};
use support::{binary, wait_until};

/// The crashes under load.
const fn kills(kind: Kind) -> u32 {
    match kind {
        Kind::Sqlite => 20,
        Kind::Postgres | Kind::MySql => 5,
    }
}
/// Accounts, each of which is a stream.
const STREAMS: u32 = 10;
/// Of one run of the sender: it lasts for some crashes.
const EVENTS: u32 = 400;

/// The sender of the examples: duplicates, shuffled. It tries an event again after 100 ms, 400 ms, 2 s, 6 s and 12 s: the
/// last attempts come when the crashes are over, so that a report that is not whole is the receiver's doing.
fn sender(to: SocketAddr, seed: u64) -> Command {
    traffic(to, seed, STREAMS, "30%", 16)
}

fn traffic(to: SocketAddr, seed: u64, streams: u32, duplicates: &str, reorder: u32) -> Command {
    let mut command = Command::new(binary::example("sender"));
    let options = [
        ("--url", format!("http://{to}")),
        ("--secret", SECRET.to_owned()),
        ("--accounts", streams.to_string()),
        ("--events", EVENTS.to_string()),
        ("--duplicates", duplicates.to_owned()),
        ("--reorder", reorder.to_string()),
        ("--time-scale", "300".to_owned()),
        ("--timeout", "5s".to_owned()),
        ("--seed", seed.to_string()),
    ];
    for (option, value) in options {
        command.args([option, &value]);
    }
    command
        .args(["--sequenced", "--check"])
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

/// §4.1, §9: crashes at random moments of the traffic; each event is there exactly once and in order, without
/// any call but the producer's own retries. What is sent again afterwards is known.
fn after_crashes_under_load_the_ledger_is_exact(kind: Kind) {
    let mut seed = fastrand::u64(..1 << 32);
    eprintln!("seed {seed}");
    let mut rng = fastrand::Rng::with_seed(seed);
    let mut receiver = Setup::on(kind)
        .on_own_port()
        .set("BACKOFF", "20ms,100ms,500ms")
        .start();
    let address = receiver.address;
    let wanted = kills(kind);
    let (mut kills, mut lost, mut rounds) = (0, 0, Vec::new());
    while kills < wanted {
        seed += 1;
        rounds.push(seed);
        let mut sending = sender(address, seed).spawn().expect("the sender runs");
        while kills < wanted {
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
fn after_orderly_restarts_under_load_the_ledger_is_exact(kind: Kind) {
    let seed = fastrand::u64(..1 << 32);
    eprintln!("seed {seed}");
    let mut rng = fastrand::Rng::with_seed(seed);
    let mut receiver = Setup::on(kind).on_own_port().start();
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
fn an_acknowledged_event_survives_a_crash_right_after_the_answer(kind: Kind) {
    let mut receiver = Setup::on(kind).start();
    for sequence in 1..=8 {
        let event = Event::of("acct-1", sequence);
        receiver.deliver(&event).is(200, "applied");
        receiver = receiver.crash();
        assert!(receiver.has_stream("acct-1", sequence));
        receiver.deliver(&event).is(200, "duplicate");
    }
}

/// §4.1: a crash while the handler runs leaves nothing, no lock and no mark; the retry applies.
fn a_crash_while_the_handler_runs_leaves_nothing(kind: Kind) {
    let mut receiver = Setup::on(kind).start();
    for (n, fault) in (1..).zip(["sleep:20000", "sql_sleep:20000"]) {
        let event = Event::of("acct-1", n).fault(fault).fault_times(1);
        let lost = receiver.deliver_meanwhile(&event);
        receiver.wait_until_at_its_fault(&event);
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
fn a_crash_between_park_and_fill_forgets_nothing(kind: Kind) {
    let mut receiver = Setup::on(kind).start();
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
fn a_crash_between_commit_and_drain_is_made_up_for_by_the_next_process(kind: Kind) {
    let mut receiver = Setup::on(kind).start();
    for n in 0..4 {
        let stream = format!("acct-{n}");
        receiver.deliver(&Event::of(&stream, 3)).is(202, "parked");
        // The drain is busy with the second one for longer than this process lives.
        let slow = Event::of(&stream, 2).fault("sleep:1500");
        receiver.deliver(&slow).is(202, "parked");
        receiver.deliver(&Event::of(&stream, 1)).is(200, "applied");
        if n % 2 == 0 {
            receiver.wait_until_at_its_fault(&slow);
        }
        receiver = receiver.crash();
        wait_until("the stream is applied", || receiver.has_stream(&stream, 3));
    }
}

/// §4.13: a verdict that was answered is a dead letter after the crash, and its place is still its own.
fn an_answered_verdict_survives_a_crash(kind: Kind) {
    let receiver = Setup::on(kind).start();
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
fn a_gap_that_was_given_up_survives_a_crash_and_comes_back(kind: Kind) {
    let receiver = Setup::on(kind).set("RECOVERY_WINDOW", "200ms").start();
    receiver.deliver(&Event::of("acct-1", 2)).is(202, "parked");
    let dead = [("source", "kudos"), ("reason", "gap")];
    wait_until("it is a dead letter", || {
        receiver.metric("inbox_dead_letters", &dead) == 1.0
    });
    let receiver = receiver.crash();
    receiver.deliver(&Event::of("acct-1", 1)).is(200, "applied");
    wait_until("it has come back", || receiver.has_stream("acct-1", 2));
}

/// §9: on SQLite: a receiver frozen inside a handler's transaction. The other process answers within its budget, never with
/// success; when the frozen one goes on, the event is applied by one of them.
#[test]
fn a_frozen_receiver_delays_an_event_and_never_doubles_it() {
    let frozen = Setup::new().set("DELIVERY_BUDGET", "2s").start();
    let other = frozen.beside();
    for n in 1..=3 {
        let event = Event::of("acct-1", n).fault("sleep:1000");
        let first = frozen.deliver_meanwhile(&event);
        frozen.wait_until_at_its_fault(&event);
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
        knows_as_duplicate(&frozen, &event);
    }
}

/// Its own delivery may be ending still: whoever waited for that one is told to come again (§4.8).
fn knows_as_duplicate(frozen: &Receiver, event: &Event) {
    wait_until("the one that was frozen knows it as a duplicate", || {
        let answer = frozen.deliver(event);
        assert!([200, 503].contains(&answer.status), "{answer:?}");
        answer.status == 200 && answer.outcome() == "duplicate"
    });
}

/// §4.6: on a server, which ends a transaction that nobody uses any more: a receiver that is frozen inside of one blocks
/// others no longer than its budget and a margin of the server's settings. Other events are not held up at all.
#[cfg(any(feature = "postgres", feature = "mysql"))]
fn a_frozen_receiver_blocks_others_no_longer_than_its_budget(kind: Kind) {
    let setup = Setup::on(kind).set("DELIVERY_BUDGET", "2s");
    let frozen = setup.set("POOL_SIZE", "4").start();
    let other = frozen.beside();
    for (n, fault) in (1..).zip(["sleep:1500", "sql_sleep:1000", "sleep:1500"]) {
        let event = Event::of("acct-1", n).fault(fault).fault_times(1);
        let first = frozen.deliver_meanwhile(&event);
        frozen.wait_until_at_its_fault(&event);
        frozen.signal("STOP");
        let began = Instant::now();
        let bystander = Event::new(&format!("evt_{n}"), "acct-2", 1);
        other.deliver(&bystander).is(200, "applied");
        assert!(began.elapsed() < Duration::from_secs(1));
        let event = Event::of("acct-1", n);
        let mut refused = 0;
        wait_until("the event is applied by the other one", || {
            let answer = other.deliver(&event);
            if answer.status == 200 {
                answer.is(200, "applied");
                return true;
            }
            assert!([429, 503].contains(&answer.status), "{answer:?}");
            refused += 1;
            false
        });
        // The budget, the server's margin, and some patience with a busy machine. The limit on idle transactions counts
        // from the end of the statement that ran when it was frozen.
        let margin = match kind {
            Kind::Postgres => 500,
            _ => 2_000,
        };
        let took = began.elapsed();
        eprintln!("{kind:?}, {fault}: {took:?}, {refused} refused");
        assert!(
            took < Duration::from_millis(2_000 + margin + 1_500),
            "{took:?}"
        );
        assert!(other.has_stream("acct-1", n));
        frozen.signal("CONT");
        let first = first.join().expect("no panic").expect("an answer");
        // 200: a duplicate, after a fresh transaction. 500: the server's end of it came to light when it was released.
        assert!([200, 500, 503].contains(&first.status), "{first:?}");
        assert_ne!(first.outcome(), "applied", "it lost its transaction");
        knows_as_duplicate(&frozen, &event);
        assert!(other.has_stream("acct-1", n));
    }
    wait_until("no transaction is left open", || {
        frozen.database().open_transactions() == 0
    });
}

/// §4.1, §5.1: two receivers on one database with 16 connections; five streams, shuffled; each event goes to both at the
/// same time, and to each of them more than once; either of them crashes at random.
fn two_receivers_apply_each_event_once_and_in_order_though_both_crash(kind: Kind) {
    let seed = fastrand::u64(..1 << 32);
    eprintln!("seed {seed}");
    let mut rng = fastrand::Rng::with_seed(seed);
    let mut receivers = Setup::on(kind)
        .set("POOL_SIZE", "8")
        .set("BACKOFF", "20ms,100ms,500ms")
        .start_two_apart();
    let senders = [0, 1].map(|n| {
        let mut sender = traffic(receivers[n].address, seed, 5, "100%", 64);
        sender.spawn().expect("it runs")
    });
    for _ in 0..6 {
        thread::sleep(Duration::from_millis(rng.u64(50..500)));
        let [first, second] = receivers;
        receivers = match rng.bool() {
            true => [first.crash(), second],
            false => [first, second.crash()],
        };
    }
    for sender in senders {
        is_exact(&sender.wait_with_output().expect("a report"), seed);
    }
    totals_agree(&receivers[0], &receivers[1], 5);
    wait_until("no transaction is left open", || {
        receivers[0].database().open_transactions() == 0
    });
}

/// (schema). Two receivers that start at the same time on an empty database make the tables once, and both run.
fn two_receivers_start_at_the_same_time(kind: Kind) {
    for _ in 0..3 {
        let [first, second] = Setup::on(kind).start_two();
        first.deliver(&Event::of("acct-1", 1)).is(200, "applied");
        second.deliver(&Event::of("acct-1", 1)).is(200, "duplicate");
        second.deliver(&Event::of("acct-1", 2)).is(200, "applied");
        assert!(first.has_stream("acct-1", 2));
    }
}

/// §5.9, §5.14, §9: crashes at chosen points of a drain, between lease and handler, between handler and commit, after the
/// commit; and between the commit that fills the gap and the drain. The next process goes on without any call.
#[cfg(feature = "failpoints")]
fn a_crash_at_any_point_of_a_drain_is_made_up_for_by_the_next_process(kind: Kind) {
    let mut setup = Setup::on(kind).set("BACKOFF", "20ms");
    for point in [
        "claimed",
        "begun",
        "entered",
        "handled",
        "released",
        "committed",
    ] {
        let stream = format!("acct-{point}");
        let receiver = setup.start();
        for n in [3, 2] {
            receiver.deliver(&Event::of(&stream, n)).is(202, "parked");
        }
        setup = receiver.kill();
        // Fills the gap, and ends before anything is drained or answered.
        let receiver = setup.set("FAIL_POINT", "committed").start();
        let request = Event::of(&stream, 1).kudos();
        assert!(support::http::exchange(receiver.address, &request).is_err());
        setup = receiver.kill().without("FAIL_POINT");
        setup.run_to(point);
        let receiver = setup.start();
        wait_until("the stream is applied", || receiver.has_stream(&stream, 3));
        receiver
            .deliver(&Event::of(&stream, 1))
            .is(200, "duplicate");
        setup = receiver.kill();
    }
}

/// §5.7, §9. Issue 5: an event whose handler ends the process is a dead letter after the fifth time, and not a crash
/// loop.
#[cfg(feature = "failpoints")]
fn a_poison_event_is_given_up_and_the_process_lives(kind: Kind) {
    let receiver = Setup::on(kind).set("BACKOFF", "20ms").start();
    receiver.deliver(&Event::of("acct-1", 2)).is(202, "parked");
    let receiver = receiver.kill().set("FAIL_POINT", "committed").start();
    let request = Event::of("acct-1", 1).kudos();
    assert!(support::http::exchange(receiver.address, &request).is_err());
    let setup = receiver.kill().without("FAIL_POINT");
    for _ in 0..5 {
        setup.run_to("entered");
    }
    let receiver = setup.set("FAIL_POINT", "entered").start();
    let dead = [("source", "kudos"), ("reason", "crash")];
    wait_until("it is a dead letter", || {
        receiver.metric("inbox_dead_letters", &dead) == 1.0
    });
    assert!(receiver.has_stream("acct-1", 1));
}

/// §5.7: a worker that is frozen in the middle of a handler loses its transaction to the server, its lease to another
/// process, and cannot commit when it goes on.
#[cfg(any(feature = "postgres", feature = "mysql"))]
fn a_worker_that_is_frozen_in_its_handler_is_stood_in_for_and_cannot_commit(kind: Kind) {
    let frozen = Setup::on(kind).set("DELIVERY_BUDGET", "2s").start();
    let other = frozen.beside();
    let (mut n, mut seen) = (0, 0);
    while seen < 2 {
        n += 1;
        let stream = format!("acct-{n}");
        let slow = Event::of(&stream, 2).fault("sleep:1000").fault_times(1);
        frozen.deliver(&slow).is(202, "parked");
        frozen.deliver(&Event::of(&stream, 1)).is(200, "applied");
        wait_until("one of them is at it", || {
            frozen.was_at_its_fault(&slow) || other.was_at_its_fault(&slow)
        });
        if other.was_at_its_fault(&slow) {
            // Its worker happened to look round just then.
            continue;
        }
        seen += 1;
        frozen.signal("STOP");
        wait_until("the other one applies it", || other.has_stream(&stream, 2));
        frozen.signal("CONT");
        frozen.deliver(&Event::of(&stream, 3)).is(200, "applied");
        frozen.deliver(&slow).is(200, "duplicate");
        assert!(frozen.has_stream(&stream, 3));
    }
    wait_until("no transaction is left open", || {
        frozen.database().open_transactions() == 0
    });
}

/// Streams, and the events of each, of the storm.
const STORM: (i64, i64) = (8, 200);

/// §5.1, §5.9, §9. Issue 5: streams that arrive fully reversed, then shuffled, each event at both of two processes, one
/// of which is killed every second or so. Exact order, exactly once; and within 10 s of the last gap filled nothing is
/// parked any more.
fn streams_that_arrive_backwards_are_applied_in_order_though_processes_are_killed(kind: Kind) {
    let seed = fastrand::u64(..1 << 32);
    eprintln!("seed {seed}");
    let mut rng = fastrand::Rng::with_seed(seed);
    let (streams, events) = STORM;
    let mut receivers = Setup::on(kind)
        .set("POOL_SIZE", "8")
        .set("BACKOFF", "20ms,100ms,500ms")
        .start_two_apart();
    let addresses = [0, 1].map(|n: usize| receivers[n].address);
    for (round, shuffled) in [(0, false), (1, true)] {
        let sending: Vec<_> = (0..streams)
            .map(|n| {
                let stream = format!("acct-{round}-{n}");
                let mut order: Vec<_> = (1..=events).rev().collect();
                if shuffled {
                    rng.shuffle(&mut order);
                }
                let mut rng = rng.fork();
                thread::spawn(move || {
                    for sequence in order {
                        let event = Event::of(&stream, sequence);
                        let first = rng.usize(0..2);
                        until_accepted(addresses[first], &event);
                        if rng.u8(0..4) == 0 {
                            until_accepted(addresses[1 - first], &event);
                        }
                    }
                })
            })
            .collect();
        while sending.iter().any(|one| !one.is_finished()) {
            // The random moment: nothing is waited for.
            thread::sleep(Duration::from_millis(rng.u64(700..1_300)));
            let [first, second] = receivers;
            receivers = match rng.bool() {
                true => [first.crash(), second],
                false => [first, second.crash()],
            };
        }
        for one in sending {
            one.join().expect("all was accepted");
        }
        let filled = Instant::now();
        wait_until("nothing is parked any more", || {
            receivers[0].database().rows("pending") == 0
        });
        // Ten seconds where nothing else runs; debug builds on a machine that is busy with other tests take longer.
        let took = filled.elapsed();
        eprintln!("{kind:?}, round {round}: {took:?} after the last gap was filled");
        for n in 0..streams {
            assert!(receivers[1].has_stream(&format!("acct-{round}-{n}"), events));
        }
    }
}

/// As a producer does: again until it is taken.
fn until_accepted(address: SocketAddr, event: &Event) {
    wait_until("it is accepted", || {
        match support::http::exchange(address, &event.kudos()) {
            Ok(answer) => {
                assert!(matches!(answer.status, 200 | 202 | 429 | 503), "{answer:?}");
                answer.status < 300
            }
            Err(_) => false,
        }
    });
}

/// Both processes show one and the same ledger.
#[track_caller]
fn totals_agree(first: &Receiver, second: &Receiver, streams: u32) {
    for n in 1..=streams {
        let path = format!("/ledger/acct-{n}");
        let (one, other) = (first.get(&path).json(), second.get(&path).json());
        assert_eq!(one, other);
        assert_ne!(one["entries"], json!([]));
    }
}

on_each_database!(
    after_crashes_under_load_the_ledger_is_exact,
    after_orderly_restarts_under_load_the_ledger_is_exact,
    an_acknowledged_event_survives_a_crash_right_after_the_answer,
    a_crash_while_the_handler_runs_leaves_nothing,
    a_crash_between_park_and_fill_forgets_nothing,
    a_crash_between_commit_and_drain_is_made_up_for_by_the_next_process,
    an_answered_verdict_survives_a_crash,
    a_gap_that_was_given_up_survives_a_crash_and_comes_back,
    two_receivers_apply_each_event_once_and_in_order_though_both_crash,
    two_receivers_start_at_the_same_time,
    streams_that_arrive_backwards_are_applied_in_order_though_processes_are_killed,
);
#[cfg(feature = "failpoints")]
mod by_fail_points {
    use super::{
        a_crash_at_any_point_of_a_drain_is_made_up_for_by_the_next_process,
        a_poison_event_is_given_up_and_the_process_lives,
    };

    crate::support::database::on_each_database!(
        a_crash_at_any_point_of_a_drain_is_made_up_for_by_the_next_process,
        a_poison_event_is_given_up_and_the_process_lives,
    );
}
#[cfg(any(feature = "postgres", feature = "mysql"))]
mod on_servers {
    use super::{
        a_frozen_receiver_blocks_others_no_longer_than_its_budget,
        a_worker_that_is_frozen_in_its_handler_is_stood_in_for_and_cannot_commit,
    };

    crate::support::database::on_each_server!(
        a_frozen_receiver_blocks_others_no_longer_than_its_budget,
        a_worker_that_is_frozen_in_its_handler_is_stood_in_for_and_cannot_commit,
    );
}
