//! The rules of §4.9 and of the presets' rows, on verified deliveries.

use http::{HeaderMap, HeaderName, HeaderValue, Method, Uri};

use super::*;
use crate::preset::Preset;
use crate::verify::{IdForm, RequestView, Secret, Secrets, Signer, Tolerance};

const NOW: Timestamp = Timestamp::from_secs(1_700_000_000);
const UUID: &str = "0f8fad5b-d9cb-469f-a165-70867728950e";

pub(super) fn read_by(
    preset: &Preset,
    mapping: &Mapping,
    more: &[(&str, &str)],
    body: &[u8],
) -> Result<Reading, EnvelopeError> {
    let scheme = preset.scheme();
    let secret = Secret::text("s").unwrap();
    let signer = Signer::new(&scheme, [secret.clone()])
        .unwrap()
        .with_url("https://example.com/");
    let mut headers: HeaderMap = signer
        .sign(NOW, Some(UUID), body)
        .unwrap()
        .into_iter()
        .collect();
    for (name, value) in more {
        let name = HeaderName::from_bytes(name.to_ascii_lowercase().as_bytes()).unwrap();
        headers.append(name, HeaderValue::from_bytes(value.as_bytes()).unwrap());
    }
    let uri = Uri::from_static("/");
    let request = RequestView::new(&Method::POST, &uri, &headers, body)
        .with_url(Some("https://example.com/"));
    let secrets = Secrets::new([secret]).unwrap().snapshot().unwrap();
    let verified = scheme
        .verify(&request, &secrets, NOW, &Tolerance::default())
        .unwrap();
    mapping.read(&verified, &headers, body)
}

pub(super) fn read(preset: &Preset, more: &[(&str, &str)], body: &str) -> Result<Envelope, String> {
    match read_by(preset, &preset.mapping(), more, body.as_bytes()) {
        Ok(Reading::Event(envelope)) => Ok(envelope),
        Ok(other) => panic!("{other:?}"),
        Err(error) => Err(error.to_string()),
    }
}

pub(super) fn refused(preset: &Preset, more: &[(&str, &str)], body: &str) -> String {
    read(preset, more, body).expect_err(body)
}

#[test]
fn kudos_events() {
    let body = r#"{"event_id":"evt_1","event_type":"a.b","correlation_id":"acct-7","sequence":3,"data":{}}"#;
    let more = [
        ("X-Kudos-Event-Id", "evt_1"),
        ("X-Kudos-Original-Event-Id", "evt_0"),
        ("X-Kudos-Delivery-Attempt", "3"),
        ("X-Kudos-First-Sent-At", "2026-05-30T08:42:11Z"),
    ];
    let envelope = read(&Preset::KUDOS, &more, body).unwrap();
    assert_eq!(&*envelope.event_id, "evt_1");
    assert_eq!(envelope.event_type.as_deref(), Some("a.b"));
    let (correlation, sequence) = envelope.order().unwrap();
    assert_eq!((&**correlation, sequence.get()), ("acct-7", 3));
    assert_eq!(envelope.replay_of.as_deref(), Some("evt_0"));
    assert_eq!(envelope.attempt, Some(3));
    assert_eq!(
        envelope.first_sent_at,
        Some(Timestamp::from_secs(1_780_130_531))
    );
}

/// Unsigned context is never a reason to refuse; the same original id is no replay.
#[test]
fn odd_context_is_ignored() {
    let more = [
        ("X-Kudos-Original-Event-Id", "evt_1"),
        ("X-Kudos-Delivery-Attempt", "many"),
        ("X-Kudos-First-Sent-At", "yesterday"),
    ];
    let envelope = read(&Preset::KUDOS, &more, r#"{"event_id":"evt_1"}"#).unwrap();
    assert_eq!(
        (envelope.replay_of, envelope.attempt, envelope.first_sent_at),
        (None, None, None)
    );
}

/// §4.9: no usable event id: 400, naming it.
#[test]
fn unusable_event_ids() {
    for body in [
        "",
        "null",
        "[]",
        "{",
        "{}",
        "not json",
        r#"{"event_id":null}"#,
        r#"{"event_id":""}"#,
        r#"{"event_id":7}"#,
        r#"{"event_id":["evt_1"]}"#,
        r#"{"event_id":"a\u0000"}"#,
        r#"{"event_id":"a\nb"}"#,
        r#"{"event_id":"\ud800"}"#,
        r#"{"event_id":"a","event_id":"b"}"#,
        r#"{"event_id":"a","event_id":"a"}"#,
        r#"{"event_id":"a"} x"#,
        r#"{"Event_Id":"a"}"#,
    ] {
        let text = refused(&Preset::KUDOS, &[], body);
        assert!(
            text.starts_with("event id (body event_id): "),
            "{body}: {text}"
        );
    }
    let long = |n| format!(r#"{{"event_id":"{}"}}"#, "x".repeat(n));
    assert!(read(&Preset::KUDOS, &[], &long(255)).is_ok());
    refused(&Preset::KUDOS, &[], &long(256));
}

/// §4.9: case and blanks make another event.
#[test]
fn event_ids_are_compared_byte_for_byte() {
    let id = |text: &str| {
        read(&Preset::KUDOS, &[], &format!(r#"{{"event_id":"{text}"}}"#))
            .unwrap()
            .event_id
    };
    assert!(id("evt_A") != id("evt_a") && id("evt_A") != id("evt_A "));
    assert_eq!(id("evt_A"), id("\\u0065vt_A"));
}

/// A header, if it is sent, must agree, and must be sent once.
#[test]
fn agreeing_headers() {
    let body = r#"{"event_id":"evt_1","correlation_id":"c","sequence":10}"#;
    for (more, field) in [
        (&[("X-Event-Id", "evt_2")][..], "event id"),
        (
            &[("X-Event-Id", "evt_1"), ("X-Event-Id", "evt_1")],
            "event id",
        ),
        (&[("X-Event-Id", "")], "event id"),
        (&[("X-Event-Id", "é")], "event id"),
        (&[("X-Correlation-Id", "C")], "correlation id"),
        (&[("X-Sequence", "11")], "sequence"),
        (&[("X-Sequence", "010")], "sequence"),
        (&[("X-Sequence", "+10")], "sequence"),
        (&[("X-Sequence", "1e1")], "sequence"),
    ] {
        let text = refused(&Preset::SEQUENCED, more, body);
        assert!(text.starts_with(field), "{more:?}: {text}");
    }
    let more = [
        ("X-Event-Id", "evt_1"),
        ("X-Correlation-Id", "c"),
        ("X-Sequence", "10"),
    ];
    assert!(read(&Preset::SEQUENCED, &more, body).is_ok());
    refused(
        &Preset::SEQUENCED,
        &[("X-Sequence", "1")],
        r#"{"event_id":"a","correlation_id":"c"}"#,
    );
    refused(
        &Preset::SEQUENCED,
        &[("X-Correlation-Id", "c")],
        r#"{"event_id":"a"}"#,
    );
    refused(&Preset::KUDOS, &[("X-Kudos-Event-Id", "evt_2")], body);
}

/// §4.9: sequences are plain JSON integers from the first one to 2^63 − 2.
#[test]
fn sequences() {
    let body = |sequence: &str| {
        format!(r#"{{"event_id":"a","correlation_id":"c","sequence":{sequence}}}"#)
    };
    for good in ["1", "9223372036854775806"] {
        assert!(read(&Preset::KUDOS, &[], &body(good)).is_ok(), "{good}");
    }
    for wrong in [
        "0",
        "-1",
        "-0",
        "1.0",
        "1e2",
        "1E0",
        "9223372036854775807",
        "18446744073709551616",
        "\"1\"",
        "true",
        "[1]",
        "{}",
        "\"\"",
    ] {
        let text = refused(&Preset::KUDOS, &[], &body(wrong));
        assert!(
            text.starts_with("sequence (body sequence): "),
            "{wrong}: {text}"
        );
    }
    for no_json in ["01", "+1", ".1", "1."] {
        refused(&Preset::KUDOS, &[], &body(no_json));
    }
    let zero = Preset::KUDOS.mapping().with_first_sequence(0);
    assert!(read_by(&Preset::KUDOS, &zero, &[], body("0").as_bytes()).is_ok());
}

/// §4.9: a sequence needs a correlation id; a correlation id alone is context; an identifying key twice is refused.
#[test]
fn order() {
    let unordered = read(
        &Preset::KUDOS,
        &[],
        r#"{"event_id":"a","correlation_id":"c"}"#,
    )
    .unwrap();
    assert_eq!(
        (
            unordered.correlation_id.as_deref(),
            unordered.sequence,
            unordered.order()
        ),
        (Some("c"), None, None)
    );
    let nulls = r#"{"event_id":"a","event_type":null,"correlation_id":null,"sequence":null}"#;
    assert!(read(&Preset::KUDOS, &[], nulls).unwrap().order().is_none());
    assert!(
        refused(&Preset::KUDOS, &[], r#"{"event_id":"a","sequence":1}"#)
            .starts_with("correlation id")
    );
    for body in [
        r#"{"event_id":"a","correlation_id":"c","sequence":1,"sequence":2}"#,
        r#"{"event_id":"a","correlation_id":"c","correlation_id":"d","sequence":1}"#,
        r#"{"event_id":"a","correlation_id":"c","sequence":null,"sequence":2}"#,
        r#"{"event_id":"a","correlation_id":7,"sequence":1}"#,
        r#"{"event_id":"a","correlation_id":"","sequence":1}"#,
    ] {
        refused(&Preset::KUDOS, &[], body);
    }
    let both = Preset::KUDOS.mapping().with_order_required();
    for body in [
        r#"{"event_id":"a"}"#,
        r#"{"event_id":"a","correlation_id":"c"}"#,
    ] {
        assert!(
            read_by(&Preset::KUDOS, &both, &[], body.as_bytes()).is_err(),
            "{body}"
        );
    }
}

/// Honest events with odd data pass: lone surrogates, NULs, huge numbers, depth.
#[test]
fn odd_data_is_the_handlers_business() {
    let deep = format!("{}{}", "[".repeat(50_000), "]".repeat(50_000));
    for data in [
        r#""\ud800\u0000""#,
        "1e999999",
        "123456789012345678901234567890",
        r#"{"\udc00":1}"#,
        &deep,
    ] {
        let body = format!(r#"{{"data":{data},"event_id":"a","other":{data}}}"#);
        assert!(read(&Preset::KUDOS, &[], &body).is_ok());
    }
}

/// §4.12: `kudos` compares type and data, `brief` the raw body.
#[test]
fn fingerprints() {
    let kudos = |body: &str| read(&Preset::KUDOS, &[], body).unwrap().fingerprint;
    let first = kudos(r#"{"event_id":"a","event_type":"t","data":{"x":1,"y":[2]}}"#);
    assert_eq!(
        first,
        kudos(r#"{ "data": {"y":[2.0],"x":1}, "event_type":"t", "attempt":2, "event_id":"a" }"#)
    );
    assert_ne!(
        first,
        kudos(r#"{"event_id":"a","event_type":"u","data":{"x":1,"y":[2]}}"#)
    );
    assert_ne!(
        first,
        kudos(r#"{"event_id":"a","event_type":"t","data":{"x":1,"y":[3]}}"#)
    );
    let brief = |body: &str| read(&Preset::BRIEF, &[], body).unwrap().fingerprint;
    assert_eq!(brief(r#"{"x":1}"#), brief(r#"{"x":1}"#));
    assert_ne!(brief(r#"{"x":1}"#), brief(r#"{"x": 1}"#));
}

/// `brief`: the key is all that is needed; the body may be anything.
#[test]
fn brief_events() {
    for body in ["", "plain", "[]", "{}", r#"{"event_type":"t"}"#] {
        let envelope = read(&Preset::BRIEF, &[], body).unwrap();
        assert_eq!(&*envelope.event_id, UUID);
        assert_eq!(envelope.event_type.is_some(), body.contains("event_type"));
    }
    let mapping = Preset::BRIEF.mapping();
    assert!(mapping.content_policy().rejects());
}

/// `kudos`: the events that bracket a replay are told apart.
#[test]
fn control_events() {
    let body = br#"{"event_id":"a","event_type":"subscription.replay_started","data":{}}"#;
    let reading = read_by(&Preset::KUDOS, &Preset::KUDOS.mapping(), &[], body).unwrap();
    assert!(matches!(reading, Reading::Control(envelope) if &*envelope.event_id == "a"));
}

/// Parts are joined with their lengths, and a missing part is no empty one.
#[test]
fn composed_identifiers() {
    let mapping = Mapping::new(Place::json("event_id"))
        .with_correlation_id(Place::Composed(vec![Place::json("a"), Place::json("b.c")]));
    let correlation =
        |body: &str| match read_by(&Preset::KUDOS, &mapping, &[], body.as_bytes()).unwrap() {
            Reading::Event(envelope) => envelope.correlation_id,
            other => panic!("{other:?}"),
        };
    let one = correlation(r#"{"event_id":"e","a":"x","b":{"c":"yz"}}"#);
    assert_eq!(one.as_deref(), Some("1:x2:yz"));
    assert_ne!(
        one,
        correlation(r#"{"event_id":"e","a":"xy","b":{"c":"z"}}"#)
    );
    assert_eq!(correlation(r#"{"event_id":"e","a":"x","b":{}}"#), None);
}

/// §5.12: versions are integers or times.
#[test]
fn versions() {
    let mapping = Mapping::new(Place::json("event_id"))
        .with_correlation_id(Place::json("c"))
        .with_version(Place::json("v"));
    let version = |v: &str| {
        let body = format!(r#"{{"event_id":"e","c":"x","v":{v}}}"#);
        match read_by(&Preset::KUDOS, &mapping, &[], body.as_bytes()) {
            Ok(Reading::Event(envelope)) => Ok(envelope.version),
            Ok(other) => panic!("{other:?}"),
            Err(error) => Err(error.field()),
        }
    };
    assert_eq!(version("7"), Ok(Some(7)));
    assert_eq!(
        version(r#""2023-11-14T22:13:20.5Z""#),
        Ok(Some(1_700_000_000_500_000))
    );
    for wrong in ["1.5", "\"later\"", "99999999999999999999", "{}", "null"] {
        assert_eq!(version(wrong), Err(Field::Version), "{wrong}");
    }
    // A version is one of some entity.
    let error = read_by(&Preset::KUDOS, &mapping, &[], br#"{"event_id":"e","v":7}"#);
    assert_eq!(error.expect_err("no entity").field(), Field::CorrelationId);
}

/// No body panics; seeded, so that a failure comes again.
#[test]
fn random_bodies() {
    let mut random = fastrand::Rng::with_seed(9);
    let parts = [
        "{",
        "}",
        "[",
        "]",
        ":",
        ",",
        "\"",
        "event_id",
        "sequence",
        "correlation_id",
        "data",
        "\\u",
        "\\ud800",
        "1",
        "-",
        "e9",
        ".",
        "null",
        " ",
        "é",
        "\\",
        "\u{0}",
    ];
    for _ in 0..5_000 {
        let body: String = (0..random.usize(0..25))
            .map(|_| parts[random.usize(0..parts.len())])
            .collect();
        let _ = read_by(
            &Preset::KUDOS,
            &Preset::KUDOS.mapping(),
            &[],
            body.as_bytes(),
        );
    }
}

#[test]
fn forms_other_than_verbatim_are_checked() {
    let mapping = Mapping::new(Lookup::from(Place::json("id")).in_form(IdForm::Uuid));
    let read = |id: &str| {
        read_by(
            &Preset::KUDOS,
            &mapping,
            &[],
            format!(r#"{{"id":"{id}"}}"#).as_bytes(),
        )
    };
    assert!(read(&UUID.to_uppercase()).is_ok());
    assert!(read("evt_1").is_err());
}
