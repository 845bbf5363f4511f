//! What never gets as far as the database: method, source, signature, body, envelope.

use std::io::Write as _;
use std::net::Shutdown;
use std::time::{Duration, Instant};

use crate::support::event::{Event, SECRET, header, kudos, mac, now, post, signature, standard};
use crate::support::http;
use crate::support::receiver::{Receiver, Setup};

/// A request with this signature header.
fn signed_as(signature: &str, body: &[u8]) -> Vec<u8> {
    post("kudos", &[header("x-kudos-signature", signature)], body)
}

/// The event was not applied before, whatever was refused under its id.
#[track_caller]
fn nothing_is_known_of(receiver: &Receiver, event: &Event) {
    receiver.deliver(event).is(200, "applied");
}

/// §3: 405, whether the source is mounted or not.
#[test]
fn a_method_other_than_post_is_not_allowed() {
    let receiver = Setup::new().start();
    for method in ["GET", "PUT", "DELETE", "PATCH", "OPTIONS"] {
        for preset in ["kudos", "github"] {
            let response = receiver.send(&http::request(
                method,
                &format!("/webhooks/{preset}"),
                &[],
                b"",
            ));
            response.is(405, "rejected").is_problem();
            assert_eq!(response.header("allow"), Some("POST"));
        }
    }
}

/// §2.1, §3: a source that is not mounted gets the same 401 as a wrong signature.
#[test]
fn an_unknown_source_is_unauthorized() {
    let receiver = Setup::new().start();
    let event = Event::new("evt_1", "acct-1", 5);
    let unknown = ["github", "brief", "nobody", "kudos2"];
    for preset in unknown {
        let signature = header(
            "x-kudos-signature",
            signature(&[SECRET], now(), &event.body()),
        );
        let response = receiver.send(&post(preset, &[signature], &event.body()));
        response.is(401, "rejected").is_problem();
        assert!(response.json().get("detail").is_none());
    }
    nothing_is_known_of(&receiver, &event);
}

/// §6.2, §6.3, §6.4, §6.6: every signature that is not good is a 401 that says nothing, and the log says why.
#[test]
fn a_bad_signature_is_unauthorized_and_the_log_says_why() {
    let receiver = Setup::new().start();
    let event = Event::new("evt_1", "acct-1", 5);
    let body = event.body();
    let (now, good) = (now(), signature(&[SECRET], now(), &body));
    let hex = good.split_once(",v1=").expect("a signature").1;
    let mut bad: Vec<Vec<u8>> = [
        String::new(),
        "v1=".to_owned(),
        format!("t={now}"),
        format!("t={now},v1="),
        format!("t={now},v1=00"),
        format!("t={now},v1={}", "0".repeat(64)),
        format!("t={now},v2={hex}"),
        format!("v1={hex}"),
        format!("t=,v1={hex}"),
        format!("t=soon,v1={hex}"),
        format!("t={now},t={now},v1={hex}"),
        format!("t={now},v1={}", &hex[..62]),
        format!("t={now},v1={hex}00"),
        signature(&["another-secret"], now, &body),
        signature(&[""], now, &body),
        signature(&[SECRET], now - 302, &body),
        signature(&[SECRET], now + 310, &body),
        signature(&[SECRET], now * 1_000, &body),
        signature(&[SECRET], 0, &body),
        signature(&[SECRET], now, b"{}"),
    ]
    .iter()
    .map(|signature| signed_as(signature, &body))
    .collect();
    bad.push(post("kudos", &[], &body));
    bad.push(post("kudos", &[header("x-signature", good.clone())], &body));
    let twice = [
        header("x-kudos-signature", good.clone()),
        header("x-kudos-signature", good.clone()),
    ];
    bad.push(post("kudos", &twice, &body));
    let mut bodies = Vec::new();
    for request in &bad {
        let response = receiver.send(request);
        assert_eq!(response.status, 401, "{}", String::from_utf8_lossy(request));
        response.is(401, "rejected").is_problem();
        bodies.push(response.text().to_owned());
    }
    bodies.dedup();
    assert_eq!(
        bodies.len(),
        1,
        "no refusal says more than another: {bodies:?}"
    );
    let log = receiver.log();
    assert_eq!(
        log.matches("refused a delivery").count(),
        bad.len(),
        "{log}"
    );
    assert!(
        log.contains("WARN") && log.contains("no signature"),
        "{log}"
    );
    assert_eq!(receiver.ledger("acct-1"), (0, vec![]));
    nothing_is_known_of(&receiver, &event);
}

/// §6.2: any signature by any active secret; unknown versions and broken parts beside a good one do not spoil it.
#[test]
fn any_good_signature_will_do() {
    let receiver = Setup::new()
        .set("KUDOS_SECRETS", "new-secret, old-secret")
        .start();
    let body = |n: i64| Event::new(&format!("evt_{n}"), "acct-1", n).body();
    let now = now();
    let header = |secrets: &[&str], n| signature(secrets, now, &body(n));
    let good = [
        header(&["new-secret"], 1),
        header(&["old-secret"], 2),
        header(&["other", "old-secret"], 3),
        header(&["new-secret", "other"], 4),
        header(&["new-secret"], 5).replace(",v1=", ",v0=00,v1=zz,v9=,nonsense, v1="),
        signature(&["new-secret"], now - 290, &body(6)),
    ];
    for (n, signature) in (1..).zip(good) {
        receiver
            .send(&signed_as(&signature, &body(n)))
            .is(200, "applied");
    }
    let other = kudos("other-secret", &body(7));
    receiver.send(&other).is(401, "rejected");
    assert_eq!(receiver.ledger("acct-1").0, 21);
}

/// §2.1: a body that is announced as too big is refused before it is sent, one that is not is counted as it comes.
#[test]
fn a_big_body_is_refused() {
    let receiver = Setup::new().set("BODY_LIMIT", "1KiB").start();
    let event = Event::new("evt_1", "acct-1", 5).with("padding", "x".repeat(2_000));
    let body = event.body();
    let signature = header("x-kudos-signature", signature(&[SECRET], now(), &body));

    let announced = [
        signature.clone(),
        header("content-length", body.len().to_string()),
    ];
    let head = http::head("POST", "/webhooks/kudos", &announced) + "\r\n";
    // Only the head is sent: the answer comes all the same.
    let response = http::exchange(receiver.address, head.as_bytes()).expect("an answer");
    response.is(413, "rejected").is_problem();

    let chunked = [signature, header("transfer-encoding", "chunked")];
    let mut bytes = (http::head("POST", "/webhooks/kudos", &chunked) + "\r\n").into_bytes();
    bytes.extend_from_slice(format!("{:x}\r\n", body.len()).as_bytes());
    bytes.extend_from_slice(&body);
    bytes.extend_from_slice(b"\r\n");
    // Its last chunk never comes.
    let response = http::exchange(receiver.address, &bytes).expect("an answer");
    response.is(413, "rejected").is_problem();
    nothing_is_known_of(&receiver, &Event::new("evt_1", "acct-1", 5));
}

/// §2.1: a body up to the limit passes, whatever limit a framework has of its own.
#[test]
fn a_body_up_to_the_limit_is_taken() {
    let receiver = Setup::new().set("BODY_LIMIT", "4MiB").start();
    let padded = |event: Event| event.with("padding", "x".repeat(3 << 20));
    receiver
        .deliver(&padded(Event::of("acct-1", 2)))
        .is(202, "parked");
    receiver
        .deliver(&padded(Event::of("acct-1", 1)))
        .is(200, "applied");
    crate::support::wait_until("the parked one is applied", || {
        receiver.has_stream("acct-1", 2)
    });
}

/// §2.1, §3: the body must have come within 5 s.
#[test]
fn a_slow_body_times_out() {
    let receiver = Setup::new().start();
    let event = Event::new("evt_1", "acct-1", 5);
    let request = event.kudos();
    let began = Instant::now();
    let mut stream =
        http::open(receiver.address, &request[..request.len() - 1]).expect("it connects");
    let response = http::answer(&mut stream).expect("an answer");
    response.is(408, "failed").is_problem();
    let took = began.elapsed();
    assert!(
        (Duration::from_millis(4_500)..Duration::from_secs(10)).contains(&took),
        "{took:?}"
    );
    nothing_is_known_of(&receiver, &event);
}

/// §2.1: a body that ends before its announced length is no event.
#[test]
fn a_body_that_is_cut_off_is_no_event() {
    let receiver = Setup::new().start();
    let event = Event::new("evt_1", "acct-1", 5);
    let request = event.kudos();
    let mut stream =
        http::open(receiver.address, &request[..request.len() - 1]).expect("it connects");
    stream.flush().expect("sent");
    stream.shutdown(Shutdown::Write).expect("half closed");
    // Whether there is still an answer is up to the server.
    if let Ok(response) = http::answer(&mut stream) {
        assert_eq!(response.status, 400, "{response:?}");
    }
    nothing_is_known_of(&receiver, &event);
}

/// §3, §4.9: what cannot be an envelope is a 400 that names the field, and leaves nothing.
#[test]
fn an_unusable_envelope_is_a_bad_request_that_names_the_field() {
    let receiver = Setup::new().start();
    let event = Event::of("acct-1", 1);
    let text = String::from_utf8(event.body()).expect("UTF-8");
    let with = |field: &str, value: serde_json::Value| event.clone().with(field, value).body();
    let without = |field: &str| {
        let mut event = event.clone();
        event.0.as_object_mut().expect("an object").remove(field);
        event.body()
    };
    let sequence = |literal: &str| {
        text.replace("\"sequence\":1", &format!("\"sequence\":{literal}"))
            .into_bytes()
    };
    let twice = |field: &str, value: &str| {
        text.replacen('{', &format!("{{\"{field}\":{value},"), 1)
            .into_bytes()
    };
    let mut bad = vec![
        ("", b"".to_vec()),
        ("", b"not json".to_vec()),
        ("", b"[]".to_vec()),
        ("", b"{\"event_id\":\"evt_acct-1_1\"".to_vec()),
        ("", b"\x1f\x8b\x08\x00".to_vec()),
        ("event_id", without("event_id")),
        ("event_id", with("event_id", "".into())),
        ("event_id", with("event_id", 7.into())),
        ("event_id", with("event_id", serde_json::Value::Null)),
        ("event_id", with("event_id", "x".repeat(256).into())),
        ("event_id", with("event_id", "a\u{0}b".into())),
        ("event_id", with("event_id", "a\nb".into())),
        (
            "event_id",
            text.replace("evt_acct-1_1", "\\ud800").into_bytes(),
        ),
        ("event_id", twice("event_id", "\"evt_2\"")),
        ("sequence", twice("sequence", "2")),
        ("correlation_id", twice("correlation_id", "\"acct-2\"")),
        ("correlation_id", without("correlation_id")),
        ("correlation_id", with("correlation_id", "".into())),
    ];
    let literals = [
        "0",
        "-1",
        "1.0",
        "1.5",
        "1e0",
        "\"1\"",
        "true",
        "{}",
        "9223372036854775807",
        "99999999999999999999",
    ];
    bad.extend(literals.map(|literal| ("sequence", sequence(literal))));
    for (field, body) in &bad {
        let response = receiver.send(&kudos(SECRET, body));
        assert_eq!(response.status, 400, "{}", String::from_utf8_lossy(body));
        response.is(400, "rejected").is_problem();
        let detail = response.json()["detail"]
            .as_str()
            .unwrap_or_default()
            .to_owned();
        assert!(
            detail.contains(field),
            "{detail:?} for {}",
            String::from_utf8_lossy(body)
        );
    }
    let other = [
        header("x-kudos-event-id", "evt_2"),
        header(
            "x-kudos-signature",
            signature(&[SECRET], now(), &event.body()),
        ),
    ];
    receiver
        .send(&post("kudos", &other, &event.body()))
        .is(400, "rejected")
        .is_problem();
    nothing_is_known_of(&receiver, &event);
    assert_eq!(receiver.database().rows("event"), 1);
}

/// §4.9: ids are compared byte for byte, and used whole.
#[test]
fn ids_that_differ_in_one_byte_are_different_events() {
    let receiver = Setup::new().start();
    let long = "é".repeat(127) + "x";
    let ids = [
        "evt_A",
        "evt_a",
        "evt_A ",
        "evt_Ａ",
        " evt_A",
        "evt_é",
        "evt_e\u{301}",
        &long,
    ];
    for id in ids {
        receiver
            .deliver(&Event::new(id, "acct-1", 1))
            .is(200, "applied");
    }
    for id in ids {
        receiver
            .deliver(&Event::new(id, "acct-1", 1))
            .is(200, "duplicate");
    }
    assert_eq!(
        receiver.ledger("acct-1"),
        (8, ids.map(str::to_owned).to_vec())
    );
}

/// The other presets of this version, as their producers sign.
#[test]
fn the_presets_sequenced_and_standard_are_mounted_by_their_secrets() {
    let whsec = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
    let receiver = Setup::new()
        .without("KUDOS_SECRETS")
        .set("SEQUENCED_SECRETS", "seq-secret")
        .set("STANDARD_SECRETS", whsec)
        .start();
    let event = Event::of("acct-1", 1);
    let body = event.body();
    let sequenced = |extra: &[(&str, &str)]| {
        let mut headers = vec![header(
            "x-signature",
            signature(&["seq-secret"], now(), &body),
        )];
        headers.extend(extra.iter().map(|(name, value)| header(name, *value)));
        receiver.send(&post("sequenced", &headers, &body))
    };
    sequenced(&[("x-event-id", "evt_2")]).is(400, "rejected");
    sequenced(&[("x-correlation-id", "acct-2")]).is(400, "rejected");
    sequenced(&[("x-sequence", "2")]).is(400, "rejected");
    let agreeing = [
        ("x-event-id", event.id()),
        ("x-correlation-id", "acct-1"),
        ("x-sequence", "1"),
    ];
    sequenced(&agreeing).is(200, "applied");
    sequenced(&[]).is(200, "duplicate");

    let body = br#"{"type":"payment.succeeded","data":{"account":"acct-2","amount":7}}"#;
    receiver
        .send(&standard(whsec, "msg_1", body))
        .is(200, "applied");
    receiver
        .send(&standard(whsec, "msg_1", body))
        .is(200, "duplicate");
    let other = "whsec_AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA";
    receiver
        .send(&standard(other, "msg_2", body))
        .is(401, "rejected");
    assert_eq!(receiver.ledger("acct-2"), (7, vec!["msg_1".to_owned()]));
    // Without its secret there is no kudos.
    receiver.deliver(&event).is(401, "rejected");
}

/// Producers with a body of their own: the receiver finds the data where they put it, and no order is asked for.
#[test]
fn the_presets_stripe_and_slack_are_mounted_by_their_secrets() {
    let receiver = Setup::new()
        .set("STRIPE_SECRETS", "whsec_stripe")
        .set("SLACK_SECRETS", "slack-secret")
        .start();
    let stripe = |body: &[u8]| {
        let header = header(
            "stripe-signature",
            signature(&["whsec_stripe"], now(), body),
        );
        receiver.send(&post("stripe", &[header], body))
    };
    let body = br#"{"id":"evt_1","type":"charge.succeeded","data":{"object":{"account":"acct-1","amount":7}}}"#;
    stripe(body).is(200, "applied");
    stripe(body).is(200, "duplicate");
    // An honest Stripe body differs between deliveries.
    let again = br#"{"id":"evt_1","type":"charge.succeeded","pending_webhooks":0,"data":{"object":{"account":"acct-1","amount":7}}}"#;
    stripe(again).is(200, "duplicate");
    stripe(br#"{"id":"evt_2","type":"charge.succeeded","data":{"account":"acct-1","amount":1}}"#)
        .is(200, "applied");

    let slack = |body: &[u8]| {
        let at = now().to_string();
        let message = [b"v0", at.as_bytes(), body].join(&b':');
        let mac = hex::encode(mac(b"slack-secret", &[&message]));
        let headers = [
            header("x-slack-request-timestamp", at),
            header("x-slack-signature", format!("v0={mac}")),
        ];
        receiver.send(&post("slack", &headers, body))
    };
    let body = br#"{"type":"event_callback","event_id":"Ev1","event":{"type":"paid"},"data":{"account":"acct-2","amount":9}}"#;
    slack(body).is(200, "applied");
    slack(body).is(200, "duplicate");
    let challenge = slack(br#"{"type":"url_verification","challenge":"c-1"}"#);
    assert!(challenge.is(200, "accepted").text().contains("c-1"));

    assert_eq!(receiver.ledger("acct-1").0, 8);
    let ledger = receiver.get("/ledger/acct-2").json();
    let entry =
        serde_json::json!({"event_id": "Ev1", "event_type": "paid", "sequence": null, "amount": 9});
    assert_eq!(ledger["entries"], serde_json::json!([entry]));
}

/// §2.3, §3: Kudos' control events are answered by the inbox, and the handler never sees them.
#[test]
fn control_events_are_accepted_and_not_handed_on() {
    let receiver = Setup::new().start();
    let event = Event::new("evt_1", "acct-1", 5).with("event_type", "subscription.replay_started");
    let response = receiver.deliver(&event);
    assert!(response.is(200, "accepted").body.is_empty());
    assert_eq!(receiver.ledger("acct-1"), (0, vec![]));
}
