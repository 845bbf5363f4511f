//! What a producer sees of verified deliveries, as §3 has it.

use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::json;

use crate::support::database::{Kind, on_each_database};
use crate::support::event::{Event, SECRET, header, kudos, mac, now, post, signature};
use crate::support::http;
use crate::support::receiver::Setup;
use crate::support::wait_until;

/// §3: the handler's 2xx the first time, then what the inbox itself answers; §4.1: applied once.
#[test]
fn a_new_event_is_applied_and_every_redelivery_is_a_duplicate() {
    let receiver = Setup::new().start();
    let event = Event::new("evt_1", "acct-7", 250).ordered("acct-7", 1);
    let first = receiver.deliver(&event);
    first.is(200, "applied");
    assert_eq!(first.json()["status"], "applied", "the handler's own body");
    for _ in 0..3 {
        let again = receiver.deliver(&event);
        again.is(200, "duplicate");
        assert_eq!(again.header("content-type"), Some("application/json"));
        assert_eq!(again.json(), json!({"status": "already_processed"}));
    }
    let unordered = Event::new("evt_2", "acct-7", -50).with("event_type", "payment.refunded");
    receiver.deliver(&unordered).is(200, "applied");
    let ledger = receiver.get("/ledger/acct-7").json();
    let expected = json!({"account": "acct-7", "balance": 200, "entries": [
        {"event_id": "evt_1", "event_type": "payment.succeeded", "sequence": 1, "amount": 250},
        {"event_id": "evt_2", "event_type": "payment.refunded", "sequence": null, "amount": -50},
    ]});
    assert_eq!(ledger, expected);
    let nobody = receiver.get("/ledger/nobody").json();
    assert_eq!(
        nobody,
        json!({"account": "nobody", "balance": 0, "entries": []})
    );
}

/// §2.4. A redelivery is known by the database too, not only by the process that applied it.
#[test]
fn a_redelivery_to_another_process_is_a_duplicate() {
    let receiver = Setup::new().start();
    let events = [Event::of("acct-1", 1), Event::new("evt_1", "acct-1", 5)];
    for event in &events {
        receiver.deliver(event).is(200, "applied");
    }
    let receiver = receiver.crash();
    for event in &events {
        receiver.deliver(event).is(200, "duplicate");
    }
    assert_eq!(receiver.ledger("acct-1").0, 6);
}

/// §4.12: Kudos promises that type and data never change; what else the body says may.
#[test]
fn a_known_id_with_other_content_is_unprocessable() {
    let receiver = Setup::new().start();
    let event = Event::new("evt_1", "acct-1", 5);
    receiver.deliver(&event).is(200, "applied");
    let amount = Event::new("evt_1", "acct-1", 6);
    let kind = event.clone().with("event_type", "payment.refunded");
    let parked = Event::of("acct-2", 2);
    receiver.deliver(&parked).is(202, "parked");
    let mut other_parked = parked.clone();
    other_parked.0["data"]["amount"] = 99.into();
    for other in [amount, kind, other_parked] {
        receiver.deliver(&other).is(422, "rejected").is_problem();
    }
    let spread = serde_json::to_vec_pretty(&event.0).expect("JSON");
    receiver.send(&kudos(SECRET, &spread)).is(200, "duplicate");
    receiver
        .deliver(&event.with("delivered_at", "now"))
        .is(200, "duplicate");
    assert_eq!(receiver.ledger("acct-1"), (5, vec!["evt_1".to_owned()]));
    // The first body stays.
    receiver.deliver(&Event::of("acct-2", 1)).is(200, "applied");
    wait_until("the parked one is applied", || {
        receiver.has_stream("acct-2", 2)
    });
}

/// §4.12: the place in a stream is content too: an id cannot be at two places.
#[test]
fn a_known_id_at_another_place_is_unprocessable() {
    let receiver = Setup::new().start();
    let (applied, parked) = (Event::of("acct-1", 1), Event::of("acct-1", 3));
    receiver.deliver(&applied).is(200, "applied");
    receiver.deliver(&parked).is(202, "parked");
    for event in [applied, parked] {
        for (correlation, sequence) in [("acct-1", 2), ("acct-2", 1)] {
            let moved = event.clone().ordered(correlation, sequence);
            receiver.deliver(&moved).is(422, "rejected").is_problem();
        }
        let mut unordered = event.clone();
        unordered
            .0
            .as_object_mut()
            .expect("an object")
            .retain(|key, _| !["correlation_id", "sequence"].contains(&&**key));
        receiver
            .deliver(&unordered)
            .is(422, "rejected")
            .is_problem();
    }
    receiver.deliver(&Event::of("acct-1", 2)).is(200, "applied");
    wait_until("the parked one is applied", || {
        receiver.has_stream("acct-1", 3)
    });
}

/// §4.3: a place in a stream belongs to one id, applied or parked.
#[test]
fn a_sequence_that_another_id_holds_is_unprocessable() {
    let receiver = Setup::new().start();
    receiver.deliver(&Event::of("acct-1", 1)).is(200, "applied");
    receiver.deliver(&Event::of("acct-1", 3)).is(202, "parked");
    for sequence in [1, 3] {
        let other =
            Event::new(&format!("evt_other_{sequence}"), "acct-1", 9).ordered("acct-1", sequence);
        receiver.deliver(&other).is(422, "rejected").is_problem();
    }
    receiver.deliver(&Event::of("acct-1", 2)).is(200, "applied");
    wait_until("the parked one is applied", || {
        receiver.has_stream("acct-1", 3)
    });
}

/// §4.13. The handler's own 422: what is no ledger entry, and what does not fit the balance.
#[test]
fn data_that_the_handler_cannot_use_is_unprocessable_and_a_dead_letter() {
    let receiver = Setup::new().start();
    receiver
        .deliver(&Event::new("evt_max", "acct-1", i64::MAX))
        .is(200, "applied");
    let with = |id: &str, data| Event::new(id, "acct-1", 1).with("data", data);
    let bad = [
        Event::new("evt_over", "acct-1", 1),
        with("evt_none", json!(null)),
        with("evt_text", json!("5")),
        with("evt_empty", json!({})),
        with("evt_no_amount", json!({"account": "acct-1"})),
        with("evt_no_account", json!({"amount": 1})),
        with("evt_anonymous", json!({"account": "", "amount": 1})),
        with("evt_half", json!({"account": "acct-1", "amount": 1.5})),
        with("evt_huge", json!({"account": "acct-1", "amount": 1e30})),
        with(
            "evt_fault",
            json!({"account": "acct-1", "amount": 1, "fault": "earthquake"}),
        ),
    ];
    for event in &bad {
        receiver.deliver(event).is(422, "rejected");
    }
    assert_eq!(
        receiver.ledger("acct-1"),
        (i64::MAX, vec!["evt_max".to_owned()])
    );
    let dead = [("source", "kudos"), ("reason", "rejected")];
    wait_until("the dead letters are counted", || {
        receiver.metric("inbox_dead_letters", &dead) == bad.len() as f64
    });
    // §5.11: sent again it is a new attempt, with the same end as long as nothing has changed.
    receiver.deliver(&bad[0]).is(422, "rejected");
    receiver
        .deliver(&Event::new("evt_less", "acct-1", -10))
        .is(200, "applied");
    receiver.deliver(&bad[0]).is(200, "applied");
    receiver.deliver(&bad[0]).is(200, "duplicate");
    assert_eq!(receiver.ledger("acct-1").0, i64::MAX - 9);
}

/// §3: over a limit is 429 with a time to come again; load is never a 5xx.
#[test]
fn over_the_limit_in_flight_a_delivery_is_told_to_come_again() {
    let receiver = Setup::new()
        .set("MAX_IN_FLIGHT", "1")
        .set("DELIVERY_BUDGET", "2s")
        .start();
    let slow = Event::new("evt_slow", "acct-1", 1).fault("sleep:1700");
    let answer = receiver.deliver_meanwhile(&slow);
    receiver.wait_until_at_its_fault(&slow);
    let other = Event::new("evt_other", "acct-1", 2);
    receiver
        .deliver(&other)
        .is(429, "failed")
        .is_problem()
        .says_when_to_retry();
    answer
        .join()
        .expect("no panic")
        .expect("an answer")
        .is(200, "applied");
    receiver.deliver(&other).is(200, "applied");
}

/// §5.8: what is parked is bounded.
#[test]
fn over_the_park_limit_a_delivery_is_told_to_come_again() {
    let receiver = Setup::new().set("PARK_LIMIT", "2").start();
    for sequence in [4, 3] {
        receiver
            .deliver(&Event::of("acct-1", sequence))
            .is(202, "parked");
    }
    receiver
        .deliver(&Event::of("acct-1", 2))
        .is(429, "failed")
        .is_problem()
        .says_when_to_retry();
    // What can be applied is not affected.
    receiver.deliver(&Event::of("acct-1", 1)).is(200, "applied");
    receiver.deliver(&Event::of("acct-1", 2)).is(200, "applied");
    wait_until("the parked ones are applied", || {
        receiver.has_stream("acct-1", 4)
    });
}

/// §4.6, §3: a budget that is spent is a 503 in time, and nothing of the work stays.
#[test]
fn when_the_budget_is_spent_the_answer_is_a_503_in_time() {
    let receiver = Setup::new().set("DELIVERY_BUDGET", "600ms").start();
    for (n, fault) in [(1, "sleep:20000"), (2, "sql_sleep:20000")] {
        let event = Event::new(&format!("evt_{n}"), "acct-1", n)
            .fault(fault)
            .fault_times(1);
        let began = Instant::now();
        receiver
            .deliver(&event)
            .is(503, "failed")
            .is_problem()
            .says_when_to_retry();
        let took = began.elapsed();
        assert!(
            (Duration::from_millis(500)..Duration::from_secs(4)).contains(&took),
            "{fault}: {took:?}"
        );
        // The lock is gone with the transaction, and the retry is served.
        wait_until("the retry is applied", || {
            receiver.deliver(&event).status == 200
        });
        receiver.deliver(&event).is(200, "duplicate");
    }
    assert_eq!(
        receiver.ledger("acct-1"),
        (3, vec!["evt_1".to_owned(), "evt_2".to_owned()])
    );
}

/// §4.8: copies of a new event that come at once hold one connection between them, and one of them is applied.
#[test]
fn copies_at_the_same_time_are_applied_once() {
    let receiver = Setup::new().set("POOL_SIZE", "3").start();
    let event = Event::new("evt_1", "acct-1", 5).fault("sleep:300");
    let copies: Vec<_> = (0..24)
        .map(|_| receiver.deliver_meanwhile(&event))
        .collect();
    let others: Vec<_> = (0..8)
        .map(|n| receiver.deliver_meanwhile(&Event::new(&format!("evt_other_{n}"), "acct-2", 1)))
        .collect();
    let outcomes = copies
        .into_iter()
        .map(|copy| copy.join().expect("no panic").expect("an answer"));
    let outcomes: Vec<_> = outcomes
        .map(|response| (response.status, response.outcome().to_owned()))
        .collect();
    let applied = outcomes
        .iter()
        .filter(|(_, outcome)| outcome == "applied")
        .count();
    assert_eq!(applied, 1, "{outcomes:?}");
    assert!(
        outcomes.iter().all(|(status, _)| *status == 200),
        "{outcomes:?}"
    );
    for other in others {
        other
            .join()
            .expect("no panic")
            .expect("an answer")
            .is(200, "applied");
    }
    assert_eq!(receiver.ledger("acct-1"), (5, vec!["evt_1".to_owned()]));
    assert_eq!(receiver.ledger("acct-2").0, 8);
}

/// §4.8: copies that wait behind one that fails get a 503 and the handler does not run for them.
#[test]
fn copies_that_wait_behind_a_failure_are_told_to_come_again() {
    let receiver = Setup::new().set("DELIVERY_BUDGET", "1s").start();
    // The first run takes longer than its budget.
    let event = Event::new("evt_1", "acct-1", 5)
        .fault("sleep:5000")
        .fault_times(1);
    let first = receiver.deliver_meanwhile(&event);
    receiver.wait_until_at_its_fault(&event);
    let copies: Vec<_> = (0..6).map(|_| receiver.deliver_meanwhile(&event)).collect();
    first
        .join()
        .expect("no panic")
        .expect("an answer")
        .is(503, "failed");
    for copy in copies {
        let copy = copy.join().expect("no panic").expect("an answer");
        copy.is(503, "failed").is_problem().says_when_to_retry();
    }
    wait_until("the retry is applied", || {
        receiver.deliver(&event).status == 200
    });
    assert_eq!(receiver.ledger("acct-1").1.len(), 1);
}

/// §4.5: a client that disconnects while the handler runs changes nothing.
#[test]
fn a_client_that_disconnects_loses_nothing() {
    let receiver = Setup::new().set("POOL_SIZE", "2").start();
    for n in 1..=5 {
        let event = Event::new(&format!("evt_{n}"), "acct-1", 1).fault("sleep:100");
        let stream = http::open(receiver.address, &event.kudos()).expect("it connects");
        receiver.wait_until_at_its_fault(&event);
        drop(stream);
        wait_until("it is applied all the same", || {
            receiver.ledger("acct-1").1.len() == n
        });
        receiver.deliver(&event).is(200, "duplicate");
    }
    assert_eq!(receiver.ledger("acct-1").0, 5);
}

/// §6.7: `X-Kudos-Original-Event-Id` is not signed: it is never a key, and a differing one is no fault.
#[test]
fn an_unsigned_original_id_is_no_key() {
    let receiver = Setup::new().start();
    for (n, id) in ["evt_1", "evt_2"].into_iter().enumerate() {
        let body = Event::new(id, "acct-1", 1).body();
        let headers = [
            header("x-kudos-signature", signature(&[SECRET], now(), &body)),
            header("x-kudos-original-event-id", "evt_1"),
            header("x-kudos-delivery-attempt", (n + 1).to_string()),
        ];
        receiver
            .send(&post("kudos", &headers, &body))
            .is(200, "applied");
    }
    assert_eq!(receiver.ledger("acct-1").0, 2);
}

/// §6.7: GitHub and Shopify sign no id. What was captured and is sent again under a new id is fenced; another content, and
/// a type whose content may repeat, is not. Their own payloads have account and amount at the top, ours have `data`.
fn a_captured_body_under_a_new_id_is_fenced(kind: Kind) {
    let receiver = Setup::on(kind)
        .set("GITHUB_SECRETS", SECRET)
        .set("SHOPIFY_SECRETS", SECRET)
        .start();
    let github = |id: &str, event: &str, body: &[u8]| {
        let signature = hex::encode(mac(SECRET.as_bytes(), &[body]));
        let headers = [
            header("x-hub-signature-256", format!("sha256={signature}")),
            header("x-github-delivery", id),
            header("x-github-event", event),
        ];
        receiver.send(&post("github", &headers, body))
    };
    let shopify = |id: &str, body: &[u8]| {
        let signature = STANDARD.encode(mac(SECRET.as_bytes(), &[body]));
        let headers = [
            header("x-shopify-hmac-sha256", signature),
            header("x-shopify-webhook-id", id),
            header("x-shopify-topic", "orders/paid"),
        ];
        receiver.send(&post("shopify", &headers, body))
    };
    let own = br#"{"action":"paid","account":"acct-1","amount":5}"#;
    let ours = Event::new("any", "acct-1", 7).body();
    for body in [own.as_slice(), &ours] {
        let id = |n| format!("{n}-{}", body.len());
        github(&id(1), "sponsorship", body).is(200, "applied");
        github(&id(1), "sponsorship", body).is(200, "duplicate");
        let captured = github(&id(2), "sponsorship", body);
        captured.is(200, "duplicate");
        assert_eq!(captured.json(), json!({"status": "fenced"}));
        shopify(&id(1), body).is(200, "applied");
        let captured = shopify(&id(2), body);
        captured.is(200, "duplicate");
        assert_eq!(captured.json(), json!({"status": "fenced"}));
    }
    assert_eq!(receiver.ledger("acct-1").0, 24);
    github("7", "repository_dispatch", own).is(200, "applied");
    github("8", "repository_dispatch", own).is(200, "applied");
    github("9", "ping", b"{}").is(200, "accepted");
    github("10", "push", b"{}").is(422, "rejected");
    assert_eq!(receiver.ledger("acct-1").0, 34);
}

/// §4.13. A sum that no 64-bit integer holds is the event's fault: 422, and the balance stays.
fn a_balance_that_would_overflow_is_unprocessable(kind: Kind) {
    let receiver = Setup::on(kind).start();
    let most = Event::new("evt_1", "acct-1", i64::MAX);
    receiver.deliver(&most).is(200, "applied");
    receiver
        .deliver(&Event::new("evt_2", "acct-1", 1))
        .is(422, "rejected");
    receiver
        .deliver(&Event::new("evt_3", "acct-1", -1))
        .is(200, "applied");
    assert_eq!(receiver.ledger("acct-1").0, i64::MAX - 1);
    // Accounts are told apart byte by byte.
    for (n, account) in ["ACCT-1", "acct-1 ", "\u{e1}cct-1"].into_iter().enumerate() {
        let event = Event::new(&format!("evt_other_{n}"), account, 1);
        receiver.deliver(&event).is(200, "applied");
    }
    assert_eq!(receiver.ledger("acct-1").0, i64::MAX - 1);
    assert_eq!(receiver.ledger("ACCT-1").0, 1);
}

on_each_database!(
    a_captured_body_under_a_new_id_is_fenced,
    a_balance_that_would_overflow_is_unprocessable,
);
