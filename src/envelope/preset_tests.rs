//! What the rows of the presets read from deliveries of their producers.

use super::tests::{read, read_by, refused};
use super::*;
use crate::preset::Preset;
use crate::verify::{Algorithm, Secret};

fn id_and_type(preset: &Preset, more: &[(&str, &str)], body: &str) -> (String, Option<String>) {
    let envelope = read(preset, more, body).unwrap();
    (
        envelope.event_id.to_string(),
        envelope.event_type.as_deref().map(str::to_owned),
    )
}

#[test]
fn ids_and_types() {
    let github = [("X-GitHub-Delivery", "d-1"), ("X-GitHub-Event", "push")];
    let shopify = [
        ("X-Shopify-Webhook-Id", "w-1"),
        ("X-Shopify-Topic", "orders/create"),
    ];
    type Headers<'h> = &'h [(&'h str, &'h str)];
    let rows: [(Preset, Headers<'_>, &str, &str, &str); 7] = [
        (
            Preset::STRIPE,
            &[],
            r#"{"id":"evt_1","type":"invoice.paid"}"#,
            "evt_1",
            "invoice.paid",
        ),
        (Preset::GITHUB, &github, "{}", "d-1", "push"),
        (
            Preset::SHOPIFY,
            &shopify,
            "not even JSON",
            "w-1",
            "orders/create",
        ),
        (
            Preset::SLACK,
            &[],
            r#"{"event_id":"Ev1","event":{"type":"message"}}"#,
            "Ev1",
            "message",
        ),
        (
            Preset::PADDLE,
            &[],
            r#"{"event_id":"evt_1","event_type":"customer.created"}"#,
            "evt_1",
            "customer.created",
        ),
        (
            Preset::SQUARE,
            &[],
            r#"{"event_id":"ac-1","type":"payment.updated"}"#,
            "ac-1",
            "payment.updated",
        ),
        (
            Preset::LINEAR,
            &[("Linear-Delivery", "d-1")],
            r#"{"type":"Comment","webhookTimestamp":1700000000000}"#,
            "d-1",
            "Comment",
        ),
    ];
    for (preset, more, body, id, kind) in rows {
        assert_eq!(
            id_and_type(&preset, more, body),
            (id.into(), Some(kind.into())),
            "{}",
            preset.name
        );
    }
}

/// `standard` takes its id from the signed header, its type from either name, and order from the body.
#[test]
fn standard_events() {
    let body = r#"{"type":"a.b","event_type":"c.d","correlation_id":"c","sequence":1}"#;
    let envelope = read(&Preset::STANDARD, &[], body).unwrap();
    assert_eq!(envelope.event_type.as_deref(), Some("a.b"));
    assert_eq!(
        envelope.order().map(|(_, sequence)| sequence.get()),
        Some(1)
    );
    let kind = read(&Preset::SVIX, &[], r#"{"event_type":"c.d"}"#)
        .unwrap()
        .event_type;
    assert_eq!(kind.as_deref(), Some("c.d"));
    assert!(
        read(&Preset::STANDARD, &[], "plain text")
            .unwrap()
            .event_type
            .is_none()
    );
    refused(&Preset::STANDARD, &[], r#"{"sequence":1}"#);
    refused(
        &Preset::STANDARD,
        &[],
        r#"{"correlation_id":"c","sequence":1,"sequence":2}"#,
    );
}

/// Uncovered ids that are not sent are no ids.
#[test]
fn missing_id_headers() {
    assert!(
        refused(&Preset::GITHUB, &[], "{}")
            .starts_with("event id (header x-github-delivery): is missing")
    );
    refused(&Preset::SHOPIFY, &[], "{}");
}

/// Zoom sends no id: the digest of its body is one.
#[test]
fn zoom_events() {
    let (one, kind) = id_and_type(
        &Preset::ZOOM,
        &[],
        r#"{"event":"meeting.started","event_ts":1}"#,
    );
    let (other, _) = id_and_type(
        &Preset::ZOOM,
        &[],
        r#"{"event":"meeting.started","event_ts":2}"#,
    );
    assert_eq!((one.len(), kind.as_deref()), (64, Some("meeting.started")));
    assert_ne!(one, other);
}

fn handshake(preset: &Preset, body: &str) -> Result<HandshakeReply, EnvelopeError> {
    match read_by(preset, &preset.mapping(), &[], body.as_bytes())? {
        Reading::Handshake(reply) => Ok(reply),
        other => panic!("{other:?}"),
    }
}

/// §2.3: the producers' handshakes are answered, and nothing but a token is sent back or signed.
#[test]
fn handshakes() {
    let reply = handshake(
        &Preset::SLACK,
        r#"{"type":"url_verification","challenge":"3eZbrw"}"#,
    )
    .unwrap();
    assert_eq!(
        (reply.content_type, &*reply.body),
        ("text/plain; charset=utf-8", &b"3eZbrw"[..])
    );

    let reply = handshake(
        &Preset::ZOOM,
        r#"{"event":"endpoint.url_validation","payload":{"plainToken":"qgg8"}}"#,
    );
    let mac = hex::encode(
        Secret::text("s")
            .unwrap()
            .mac(Algorithm::HmacSha256, &[b"qgg8"]),
    );
    let body = reply.unwrap().body;
    assert_eq!(
        body,
        format!(r#"{{"plainToken":"qgg8","encryptedToken":"{mac}"}}"#).as_bytes()
    );

    for body in [
        r#"{"event":"endpoint.url_validation"}"#,
        r#"{"event":"endpoint.url_validation","payload":{"plainToken":""}}"#,
        r#"{"event":"endpoint.url_validation","payload":{"plainToken":"v0:1700000000:{}"}}"#,
        r#"{"event":"endpoint.url_validation","payload":{"plainToken":"a\"b"}}"#,
        r#"{"event":"endpoint.url_validation","payload":{"plainToken":7}}"#,
    ] {
        assert_eq!(
            handshake(&Preset::ZOOM, body).unwrap_err().field(),
            Field::Handshake,
            "{body}"
        );
    }
    assert!(
        read(
            &Preset::SLACK,
            &[],
            r#"{"type":"event_callback","event_id":"Ev1"}"#
        )
        .is_ok()
    );
}

/// GitHub's `ping` is no event to hand on.
#[test]
fn pings() {
    let more = [("X-GitHub-Delivery", "d-1"), ("X-GitHub-Event", "ping")];
    let reading = read_by(&Preset::GITHUB, &Preset::GITHUB.mapping(), &more, b"{}").unwrap();
    assert!(matches!(reading, Reading::Control(_)));
}
