//! §5.2: `FIRST_SEQUENCE=adopt`, for streams that are under way already.

use serde_json::json;

use crate::support::database::{Kind, on_each_database};
use crate::support::event::Event;
use crate::support::receiver::Setup;
use crate::support::wait_until;

fn adopting(kind: Kind, settle: &str) -> Setup {
    Setup::on(kind)
        .set("FIRST_SEQUENCE", "adopt")
        .set("ADOPT_SETTLE", settle)
}

fn ids(sequences: impl IntoIterator<Item = i64>) -> Vec<String> {
    sequences
        .into_iter()
        .map(|n| Event::of("acct-1", n).id().to_owned())
        .collect()
}

/// §5.2: "arrivals park for a settle time, then the stream starts at the lowest one"
fn a_stream_begins_at_the_lowest_that_has_come_when_it_has_settled(kind: Kind) {
    let receiver = adopting(kind, "3s").start();
    for sequence in [42, 40, 43] {
        let response = receiver.deliver(&Event::of("acct-1", sequence));
        response.is(202, "parked").says_when_to_retry();
        assert_eq!(
            response.json(),
            json!({"status": "parked", "waiting_for": 0})
        );
    }
    assert_eq!(receiver.ledger("acct-1").1, ids([]));
    wait_until("it begins", || receiver.ledger("acct-1").1 == ids([40]));
    let waits = receiver.deliver(&Event::of("acct-1", 42));
    assert_eq!(waits.is(202, "parked").json()["waiting_for"], 41);
    receiver
        .deliver(&Event::of("acct-1", 41))
        .is(200, "applied");
    wait_until("the rest follows", || {
        receiver.ledger("acct-1").1 == ids(40..=43)
    });
}

/// §5.2, §5.9: a crash while a stream settles.
fn a_stream_that_settled_while_nobody_was_there_begins_without_any_request(kind: Kind) {
    let receiver = adopting(kind, "2s").start();
    for sequence in [8, 7] {
        receiver
            .deliver(&Event::of("acct-1", sequence))
            .is(202, "parked");
    }
    let receiver = receiver.crash();
    wait_until("it begins", || receiver.ledger("acct-1").1 == ids([7, 8]));
}

on_each_database!(
    a_stream_begins_at_the_lowest_that_has_come_when_it_has_settled,
    a_stream_that_settled_while_nobody_was_there_begins_without_any_request,
);
