//! Handlers that go wrong (§4.4): each fault of `data.fault`, its answer, and what a retry then gets.

use crate::support::database::{Kind, on_each_database};
use crate::support::event::Event;
use crate::support::receiver::{Receiver, Setup};
use crate::support::wait_until;

fn faulty(fault: &str) -> Event {
    Event::new("evt_1", "acct-1", 5).fault(fault)
}

/// Nothing was applied, the retry is, and then it is known; other events find a sound pool.
#[track_caller]
fn the_retry_applies(receiver: &Receiver, event: &Event) {
    receiver.deliver(event).is(200, "applied");
    is_applied_once(receiver, event);
}

#[track_caller]
fn is_applied_once(receiver: &Receiver, event: &Event) {
    receiver.deliver(event).is(200, "duplicate");
    assert_eq!(receiver.ledger("acct-1"), (5, vec!["evt_1".to_owned()]));
    for n in 0..8 {
        receiver
            .deliver(&Event::new(&format!("evt_after_{n}"), "acct-2", 1))
            .is(200, "applied");
    }
    assert_eq!(
        receiver.ledger("acct-2").0,
        8,
        "nothing was written into a transaction that nobody ends"
    );
}

/// §3: 408, 425, 429 and 5xx are failures: rolled back, to be tried again; after a 425 Kudos would not, but after a 503.
fn a_status_that_may_be_retried_rolls_back_and_passes_through(kind: Kind) {
    let receiver = Setup::on(kind).start();
    for status in [408, 425, 429, 500, 502, 503, 504, 599] {
        let id = format!("evt_{status}");
        let event = Event::new(&id, "acct-1", 1)
            .fault(&format!("status:{status}"))
            .fault_times(2);
        let answered = if status == 425 { 503 } else { status };
        receiver.deliver(&event).is(answered, "failed");
        receiver.deliver(&event).is(answered, "failed");
        receiver.deliver(&event).is(200, "applied");
        receiver.deliver(&event).is(200, "duplicate");
    }
    assert_eq!(receiver.ledger("acct-1").0, 8);
    assert_eq!(receiver.metric("inbox_dead_letters", &[]), 0.0);
}

/// §3, §4.13: any other 4xx or a 3xx is a verdict on the payload: rolled back, kept as a dead letter. A 410 goes out
/// as a 422. §5.11: sent again it is tried again.
fn a_terminal_status_rolls_back_and_is_kept_as_a_dead_letter(kind: Kind) {
    let receiver = Setup::on(kind).start();
    let cases = [
        (400, 400),
        (403, 403),
        (404, 404),
        (405, 405),
        (409, 409),
        (410, 422),
        (422, 422),
        (301, 301),
    ];
    for (status, answered) in cases {
        let id = format!("evt_{status}");
        let event = Event::new(&id, "acct-1", 1)
            .fault(&format!("status:{status}"))
            .fault_times(2);
        receiver.deliver(&event).is(answered, "rejected");
        assert_eq!(receiver.database().rows("pending"), 1);
        receiver.deliver(&event).is(answered, "rejected");
        assert_eq!(receiver.database().rows("pending"), 1);
        receiver.deliver(&event).is(200, "applied");
        assert_eq!(receiver.database().rows("pending"), 0);
        receiver.deliver(&event).is(200, "duplicate");
    }
    assert_eq!(receiver.ledger("acct-1").0, 8);
}

/// §2.9: any 2xx commits.
fn any_2xx_commits(kind: Kind) {
    let receiver = Setup::on(kind).start();
    for status in [200, 201, 202, 204] {
        let event =
            Event::new(&format!("evt_{status}"), "acct-1", 1).fault(&format!("status:{status}"));
        receiver.deliver(&event).is(status, "applied");
        receiver.deliver(&event).is(200, "duplicate");
    }
    assert_eq!(receiver.ledger("acct-1").0, 4);
}

/// §3, §4.4: a panic is a 500, and rolled back.
fn a_panic_is_a_500_and_the_retry_applies(kind: Kind) {
    let receiver = Setup::on(kind).start();
    let event = faulty("panic").fault_times(2);
    receiver.deliver(&event).is(500, "failed").is_problem();
    receiver.deliver(&event).is(500, "failed").is_problem();
    the_retry_applies(&receiver, &event);
}

/// A slow handler within its budget is only slow.
fn a_slow_handler_within_the_budget_is_applied(kind: Kind) {
    let receiver = Setup::on(kind).start();
    receiver.deliver(&faulty("sleep:300")).is(200, "applied");
    is_applied_once(&receiver, &faulty("sleep:300"));
    let slow = Event::new("evt_2", "acct-3", 1).fault("sql_sleep:300");
    receiver.deliver(&slow).is(200, "applied");
}

/// §4.4: a statement that failed, of which the handler takes no notice, has spoilt the transaction on PostgreSQL: 500,
/// and a clean retry applies. Elsewhere the transaction is still good, and the handler's 2xx counts.
fn a_swallowed_statement_error_is_never_acknowledged_unless_it_is_committed(kind: Kind) {
    let receiver = Setup::on(kind).start();
    let event = faulty("sql_error").fault_times(2);
    if kind == Kind::Postgres {
        receiver.deliver(&event).is(500, "failed").is_problem();
        receiver.deliver(&event).is(500, "failed").is_problem();
        assert_eq!(receiver.ledger("acct-1").0, 0);
        the_retry_applies(&receiver, &event);
    } else {
        receiver.deliver(&event).is(200, "applied");
        is_applied_once(&receiver, &event);
    }
}

/// §4.4: a raw COMMIT: 500, never acknowledged; the work is there once, and the retry is a duplicate.
fn a_handler_that_commits_by_itself_gets_a_500_and_its_retry_is_a_duplicate(kind: Kind) {
    let receiver = Setup::on(kind).start();
    receiver
        .deliver(&faulty("sql_commit"))
        .is(500, "failed")
        .is_problem();
    is_applied_once(&receiver, &faulty("sql_commit"));
}

/// §4.4: a raw ROLLBACK: 500, and the retry applies.
fn a_handler_that_rolls_back_by_itself_gets_a_500_and_its_retry_applies(kind: Kind) {
    let receiver = Setup::on(kind).start();
    let event = faulty("sql_rollback").fault_times(2);
    receiver.deliver(&event).is(500, "failed").is_problem();
    receiver.deliver(&event).is(500, "failed").is_problem();
    the_retry_applies(&receiver, &event);
}

/// §4.4: a handler that keeps its transaction: 500; its connection never comes back to the pool.
fn a_handler_that_keeps_its_transaction_gets_a_500_and_its_retry_applies(kind: Kind) {
    let receiver = Setup::on(kind).set("POOL_SIZE", "2").start();
    let event = faulty("keep_tx").fault_times(2);
    receiver.deliver(&event).is(500, "failed").is_problem();
    receiver.deliver(&event).is(500, "failed").is_problem();
    the_retry_applies(&receiver, &event);
}

/// §5.1. In a stream, the faults of one event hold up its successors and nothing else.
fn an_ordered_event_that_fails_is_applied_in_its_turn(kind: Kind) {
    let receiver = Setup::on(kind).set("BACKOFF", "20ms").start();
    for (n, fault) in (1..).zip([
        "status:503",
        "panic",
        "sql_rollback",
        "keep_tx",
        "sql_commit",
    ]) {
        let stream = format!("acct-{n}");
        receiver.deliver(&Event::of(&stream, 3)).is(202, "parked");
        let first = Event::of(&stream, 1).fault(fault).fault_times(1);
        let status = if fault == "status:503" { 503 } else { 500 };
        receiver.deliver(&first).is(status, "failed");
        assert!(fault == "sql_commit" || !receiver.has_stream(&stream, 1));
        // The second one is drained, and goes wrong in its turn as well.
        receiver.deliver(&Event::of(&stream, 2).fault(fault).fault_times(1));
        assert_eq!(receiver.deliver(&first).status, 200);
        wait_until("the stream is applied", || receiver.has_stream(&stream, 3));
    }
}

/// Without `DEMO_FAULTS=1` the field is nothing but data.
fn faults_are_inert_by_default(kind: Kind) {
    for setup in [
        Setup::on(kind).without("DEMO_FAULTS"),
        Setup::on(kind).set("DEMO_FAULTS", "0"),
    ] {
        let receiver = setup.start();
        for (n, fault) in ["status:503", "panic", "sql_commit", "earthquake"]
            .into_iter()
            .enumerate()
        {
            receiver
                .deliver(&Event::new(&format!("evt_{n}"), "acct-1", 1).fault(fault))
                .is(200, "applied");
        }
        assert_eq!(receiver.ledger("acct-1").0, 4);
    }
}

on_each_database!(
    a_status_that_may_be_retried_rolls_back_and_passes_through,
    a_terminal_status_rolls_back_and_is_kept_as_a_dead_letter,
    any_2xx_commits,
    a_panic_is_a_500_and_the_retry_applies,
    a_slow_handler_within_the_budget_is_applied,
    a_swallowed_statement_error_is_never_acknowledged_unless_it_is_committed,
    a_handler_that_commits_by_itself_gets_a_500_and_its_retry_is_a_duplicate,
    a_handler_that_rolls_back_by_itself_gets_a_500_and_its_retry_applies,
    a_handler_that_keeps_its_transaction_gets_a_500_and_its_retry_applies,
    an_ordered_event_that_fails_is_applied_in_its_turn,
    faults_are_inert_by_default,
);
