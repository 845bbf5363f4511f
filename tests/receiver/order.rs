//! Order (§5): parking, draining, and what holds a stream up.

use serde_json::json;

use crate::support::database::{Kind, on_each_database};
use crate::support::event::Event;
use crate::support::receiver::Setup;
use crate::support::wait_until;

const KUDOS: [(&str, &str); 1] = [("source", "kudos")];

/// §3, §5.1: what comes early is parked with the number it waits for, and applied by itself in its turn.
fn events_that_come_early_are_parked_and_applied_in_order(kind: Kind) {
    let receiver = Setup::on(kind).start();
    for sequence in [5, 3, 2, 4] {
        let response = receiver.deliver(&Event::of("acct-1", sequence));
        response.is(202, "parked").says_when_to_retry();
        assert_eq!(response.header("content-type"), Some("application/json"));
        assert_eq!(
            response.json(),
            json!({"status": "parked", "waiting_for": 1})
        );
    }
    receiver.deliver(&Event::of("acct-1", 3)).is(202, "parked");
    assert_eq!(receiver.ledger("acct-1"), (0, vec![]));
    wait_until("the parked ones are counted", || {
        receiver.metric("inbox_parked", &KUDOS) == 4.0
    });
    receiver.deliver(&Event::of("acct-1", 1)).is(200, "applied");
    wait_until("the stream is applied", || receiver.has_stream("acct-1", 5));
    for sequence in 1..=5 {
        receiver
            .deliver(&Event::of("acct-1", sequence))
            .is(200, "duplicate");
    }
    wait_until("nothing is parked", || {
        receiver.metric("inbox_parked", &KUDOS) == 0.0
    });
    receiver.deliver(&Event::of("acct-1", 7)).is(202, "parked");
    assert_eq!(
        receiver.deliver(&Event::of("acct-1", 8)).json()["waiting_for"],
        6
    );
}

/// §5.1: no stream waits for another one.
fn a_gap_or_a_failure_in_one_stream_holds_up_no_other(kind: Kind) {
    let receiver = Setup::on(kind).start();
    receiver.deliver(&Event::of("acct-1", 2)).is(202, "parked");
    receiver
        .deliver(&Event::of("acct-2", 1).fault("status:503"))
        .is(503, "failed");
    receiver.deliver(&Event::of("acct-2", 2)).is(202, "parked");
    for sequence in 1..=5 {
        receiver
            .deliver(&Event::of("acct-3", sequence))
            .is(200, "applied");
    }
    receiver
        .deliver(&Event::new("evt_unordered", "acct-4", 1))
        .is(200, "applied");
}

/// A correlation id without a sequence is context, not order (§4.9).
fn a_correlation_id_alone_orders_nothing(kind: Kind) {
    let receiver = Setup::on(kind).start();
    for n in [2, 1] {
        let event = Event::new(&format!("evt_{n}"), "acct-1", 1).with("correlation_id", "acct-1");
        receiver.deliver(&event).is(200, "applied");
    }
}

/// §5.5: a parked event whose handler fails or panics is tried again after the backoff, and its successors wait.
fn a_drained_event_that_fails_is_tried_again(kind: Kind) {
    let receiver = Setup::on(kind).set("BACKOFF", "50ms,100ms").start();
    receiver
        .deliver(&Event::of("acct-1", 2).fault("status:503").fault_times(3))
        .is(202, "parked");
    receiver
        .deliver(&Event::of("acct-1", 3).fault("panic").fault_times(2))
        .is(202, "parked");
    receiver.deliver(&Event::of("acct-1", 4)).is(202, "parked");
    receiver.deliver(&Event::of("acct-1", 1)).is(200, "applied");
    wait_until("the stream is applied", || receiver.has_stream("acct-1", 4));
}

/// §5.6: a redelivery of a parked event that has become due applies it there and then.
fn a_redelivery_of_a_due_event_applies_it_there_and_then(kind: Kind) {
    // The worker's own next attempt is far away.
    let receiver = Setup::on(kind).set("BACKOFF", "300s").start();
    let second = Event::of("acct-1", 2).fault("status:503").fault_times(1);
    receiver.deliver(&second).is(202, "parked");
    receiver.deliver(&Event::of("acct-1", 1)).is(200, "applied");
    wait_until("the worker has tried", || {
        receiver.log().contains("was not applied")
    });
    // While the failure is still being written down, it is told to come again.
    wait_until("it is applied there and then", || {
        receiver.deliver(&second).outcome() == "applied"
    });
    assert!(receiver.has_stream("acct-1", 2));
}

/// §5.10: a terminal verdict on sequence n holds its successors, and a redelivery that succeeds frees them.
fn a_rejected_event_holds_its_successors_until_it_is_applied(kind: Kind) {
    let receiver = Setup::on(kind).start();
    let first = Event::of("acct-1", 1).fault("status:422").fault_times(2);
    receiver.deliver(&first).is(422, "rejected");
    let second = receiver.deliver(&Event::of("acct-1", 2));
    assert_eq!(second.is(202, "parked").json()["waiting_for"], 1);
    receiver.deliver(&first).is(422, "rejected");
    receiver.deliver(&first).is(200, "applied");
    wait_until("the successor is applied", || {
        receiver.has_stream("acct-1", 2)
    });
}

/// §5.5: a parked event with a terminal verdict is a dead letter at once; a redelivery is a new attempt (§5.11).
fn a_drained_event_that_is_rejected_becomes_a_dead_letter(kind: Kind) {
    let receiver = Setup::on(kind).start();
    let second = Event::of("acct-1", 2).fault("status:400").fault_times(1);
    receiver.deliver(&second).is(202, "parked");
    receiver.deliver(&Event::of("acct-1", 3)).is(202, "parked");
    receiver.deliver(&Event::of("acct-1", 1)).is(200, "applied");
    let dead = [("source", "kudos"), ("reason", "rejected")];
    wait_until("there is a dead letter", || {
        receiver.metric("inbox_dead_letters", &dead) == 1.0
    });
    assert!(receiver.has_stream("acct-1", 1));
    receiver.deliver(&second).is(200, "applied");
    wait_until("the stream is applied", || receiver.has_stream("acct-1", 3));
}

/// §5.5: after ten attempts a parked event is a dead letter `handler`; §5.11: a redelivery is a new attempt.
fn a_drained_event_that_fails_ten_times_becomes_a_dead_letter(kind: Kind) {
    let receiver = Setup::on(kind).set("BACKOFF", "5ms").start();
    let second = Event::of("acct-1", 2).fault("status:500").fault_times(11);
    receiver.deliver(&second).is(202, "parked");
    receiver.deliver(&Event::of("acct-1", 3)).is(202, "parked");
    receiver.deliver(&Event::of("acct-1", 1)).is(200, "applied");
    let dead = [("source", "kudos"), ("reason", "handler")];
    wait_until("there is a dead letter", || {
        receiver.metric("inbox_dead_letters", &dead) == 1.0
    });
    receiver.deliver(&second).is(500, "failed");
    receiver.deliver(&second).is(200, "applied");
    wait_until("the stream is applied", || receiver.has_stream("acct-1", 3));
    wait_until("no dead letter is left", || {
        receiver.metric("inbox_dead_letters", &dead) == 0.0
    });
}

/// §5.4: a gap that nobody fills in time makes dead letters; filled after all they come back by themselves.
fn a_gap_beyond_the_recovery_window_makes_dead_letters_that_come_back(kind: Kind) {
    let receiver = Setup::on(kind).set("RECOVERY_WINDOW", "300ms").start();
    for sequence in [3, 2] {
        receiver
            .deliver(&Event::of("acct-1", sequence))
            .is(202, "parked");
    }
    let dead = [("source", "kudos"), ("reason", "gap")];
    wait_until("they are dead letters", || {
        receiver.metric("inbox_dead_letters", &dead) == 2.0
    });
    assert_eq!(receiver.metric("inbox_parked", &KUDOS), 0.0);
    // §3: a redelivery is told the same as before.
    let response = receiver.deliver(&Event::of("acct-1", 3));
    assert_eq!(response.is(202, "parked").json()["waiting_for"], 1);
    receiver.deliver(&Event::of("acct-1", 1)).is(200, "applied");
    wait_until("they have come back", || receiver.has_stream("acct-1", 3));
    wait_until("no dead letter is left", || {
        receiver.metric("inbox_dead_letters", &dead) == 0.0
    });
}

/// §5.2: `FIRST_SEQUENCE=0`.
fn streams_can_begin_with_zero(kind: Kind) {
    let receiver = Setup::on(kind).set("FIRST_SEQUENCE", "0").start();
    let zero = Event::new("evt_0", "acct-1", 7).ordered("acct-1", 0);
    let response = receiver.deliver(&Event::of("acct-1", 1));
    assert_eq!(response.is(202, "parked").json()["waiting_for"], 0);
    receiver.deliver(&zero).is(200, "applied");
    wait_until("the parked one is applied", || {
        receiver.ledger("acct-1").0 == 8
    });
}

/// §7.2: a sequenced event that comes again after its row was purged is still a duplicate.
fn after_the_purge_an_old_sequence_is_still_a_duplicate(kind: Kind) {
    let setup = Setup::on(kind)
        .set("RETENTION", "200ms")
        .set("ALLOW_SHORT_RETENTION", "1");
    let receiver = setup.start();
    for sequence in 1..=2 {
        receiver
            .deliver(&Event::of("acct-1", sequence))
            .is(200, "applied");
    }
    wait_until("the rows are purged", || {
        receiver.database().rows("event") == 0
    });
    // A fresh process: it remembers nothing by itself.
    let receiver = receiver.crash();
    receiver
        .deliver(&Event::of("acct-1", 1))
        .is(200, "duplicate");
    receiver.deliver(&Event::of("acct-1", 3)).is(200, "applied");
    assert!(receiver.has_stream("acct-1", 3));
}

/// §5.1. Many senders at once, everything shuffled and doubled: each stream is whole and in order.
fn shuffled_and_doubled_streams_are_applied_whole_and_in_order(kind: Kind) {
    const STREAMS: usize = 6;
    const LAST: i64 = 20;
    let receiver = Setup::on(kind).start();
    let seed = fastrand::u64(..);
    let mut rng = fastrand::Rng::with_seed(seed);
    let mut events: Vec<_> = (0..STREAMS)
        .flat_map(|stream| {
            (1..=LAST).map(move |sequence| Event::of(&format!("acct-{stream}"), sequence))
        })
        .flat_map(|event| [event.clone(), event])
        .collect();
    rng.shuffle(&mut events);
    let senders: Vec<_> = events
        .chunks(events.len().div_ceil(8))
        .map(|part| {
            let (address, part) = (receiver.address, part.to_vec());
            std::thread::spawn(move || {
                for event in part {
                    let response =
                        crate::support::http::exchange(address, &event.kudos()).expect("an answer");
                    assert!([200, 202].contains(&response.status), "{response:?}");
                }
            })
        })
        .collect();
    for sender in senders {
        sender.join().unwrap_or_else(|_| panic!("seed {seed}"));
    }
    for stream in 0..STREAMS {
        let stream = format!("acct-{stream}");
        wait_until(&format!("{stream} is whole (seed {seed})"), || {
            receiver.has_stream(&stream, LAST)
        });
    }
}

on_each_database!(
    events_that_come_early_are_parked_and_applied_in_order,
    a_gap_or_a_failure_in_one_stream_holds_up_no_other,
    a_correlation_id_alone_orders_nothing,
    a_drained_event_that_fails_is_tried_again,
    a_redelivery_of_a_due_event_applies_it_there_and_then,
    a_rejected_event_holds_its_successors_until_it_is_applied,
    a_drained_event_that_is_rejected_becomes_a_dead_letter,
    a_drained_event_that_fails_ten_times_becomes_a_dead_letter,
    a_gap_beyond_the_recovery_window_makes_dead_letters_that_come_back,
    streams_can_begin_with_zero,
    after_the_purge_an_old_sequence_is_still_a_duplicate,
    shuffled_and_doubled_streams_are_applied_whole_and_in_order,
);

/// §5.13, §3: stored and answered at once, applied by the worker in order; a duplicate after that.
#[test]
fn a_deferred_preset_accepts_at_once_and_applies_in_order() {
    let receiver = Setup::new().set("DEFERRED", "brief, kudos").start();
    for sequence in [3, 1, 2] {
        let event = Event::of("acct-1", sequence);
        let accepted = receiver.deliver(&event);
        accepted.is(202, "accepted");
        assert_eq!(accepted.text(), r#"{"status":"accepted"}"#);
    }
    wait_until("they are applied", || receiver.has_stream("acct-1", 3));
    receiver
        .deliver(&Event::of("acct-1", 2))
        .is(200, "duplicate");
    // A handler that takes longer than a producer waits holds nobody up.
    let slow = Event::of("acct-1", 4).fault("sleep:1500").fault_times(1);
    receiver.deliver(&slow).is(202, "accepted");
    receiver.deliver(&slow).is(202, "accepted");
    wait_until("it is applied", || receiver.has_stream("acct-1", 4));
}
