//! Every parser that meets what a stranger sends: nothing panics, and nothing allocates more than a small multiple of
//! what it was given.
//!
//! In a binary of its own, because it counts allocations. `PROPTEST_CASES` makes it try more than the default of 256.

use allocation_counter::{AllocationInfo, measure};
use http::{HeaderMap, HeaderName, HeaderValue, Method, Uri};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;
use tower_inbox::clock::Timestamp;
use tower_inbox::envelope::{CorrelationId, EventId, EventType, Reading, Sequence};
use tower_inbox::preset::Preset;
use tower_inbox::verify::{
    Algorithm, Encoding, IdForm, Part, Pick, RequestView, Rfc9421, Scheme, Secret, SecretSet,
    Secrets, SignatureAt, Signer, TimestampAt, Tolerance, Unit, Verified,
};

const NOW: Timestamp = Timestamp::from_secs(1_700_000_000);
const UUID: &str = "0f8fad5b-d9cb-469f-a165-70867728950e";

/// Beside the input: error texts, and the first steps of what grows by doubling.
const BASE: u64 = 4_096;
/// Of a header: the signature base of RFC 9421 copies what it covers, and grows by doubling.
const HEADER_FACTOR: u64 = 16;
/// Of a verified body: at once, while it is written anew with its members sorted (§4.12). The worst is a list of
/// empty members of five bytes each.
const BODY_FACTOR: u64 = 48;

fn header(name: &'static str) -> HeaderName {
    HeaderName::from_static(name)
}

/// Every preset, and a descriptor for each place and unit that no preset has.
fn schemes() -> Vec<Scheme> {
    let hmac = |at| Scheme::hmac("test", Algorithm::HmacSha256, at);
    let stamped = |unit| {
        hmac(SignatureAt::Header(header("x-signature")))
            .timestamp(TimestampAt::Header(header("webhook-timestamp")), unit)
            .signs([Part::Timestamp, Part::Body])
    };
    let more = [
        hmac(SignatureAt::RepeatableHeader(header("x-signature")))
            .pick(Pick::OptionalPrefix("v1=".into())),
        hmac(SignatureAt::AnyHeader(vec![
            header("x-signature"),
            header("webhook-signature"),
        ])),
        hmac(SignatureAt::NumberedHeader("x-signature-".into())).encoding(Encoding::Base64),
        hmac(SignatureAt::Json("signature.signature".into()))
            .timestamp(
                TimestampAt::Json("signature.timestamp".into()),
                Unit::Seconds,
            )
            .signs([
                Part::Json("signature.timestamp".into()),
                Part::Json("signature.token".into()),
            ]),
        Scheme::hmac(
            "test",
            Algorithm::HmacSha512,
            SignatureAt::Header(header("x-signature")),
        )
        .split(','),
        stamped(Unit::Millis),
        stamped(Unit::Rfc3339),
    ];
    let presets = Preset::ALL.iter().map(Preset::scheme);
    let more = more
        .into_iter()
        .map(|scheme| scheme.build().expect("a scheme"));
    #[allow(unused_mut, reason = "a feature adds one")]
    let mut all: Vec<_> = presets
        .chain(more)
        .chain([Rfc9421::new().scheme("rfc9421")])
        .collect();
    #[cfg(feature = "ed25519")]
    all.push(tower_inbox::verify::StandardEd25519::scheme());
    all
}

/// All headers that any of these reads.
const NAMES: &[&str] = &[
    "x-kudos-signature",
    "x-kudos-event-id",
    "x-kudos-original-event-id",
    "x-kudos-first-sent-at",
    "x-signature",
    "x-signature-1",
    "x-signature-22",
    "idempotency-key",
    "x-event-id",
    "x-correlation-id",
    "x-sequence",
    "webhook-id",
    "webhook-timestamp",
    "webhook-signature",
    "svix-id",
    "svix-timestamp",
    "svix-signature",
    "stripe-signature",
    "x-hub-signature-256",
    "x-github-delivery",
    "x-github-event",
    "x-shopify-hmac-sha256",
    "x-shopify-webhook-id",
    "x-slack-signature",
    "x-slack-request-timestamp",
    "x-zm-signature",
    "x-zm-request-timestamp",
    "paddle-signature",
    "linear-signature",
    "linear-delivery",
    "x-square-hmacsha256-signature",
    "signature",
    "signature-input",
    "content-digest",
];

/// A value out of the words that these headers are made of, in any order.
fn value() -> impl Strategy<Value = Vec<u8>> {
    let words = select(vec![
        "t=",
        "v1=",
        "v0=",
        "v1,",
        "h1=",
        "ts=",
        "sha256=",
        "1700000000",
        "1700000000000",
        "-1",
        "99999999999999999999",
        "2023-11-14T22:13:20Z",
        "2023-11-14T22:13:20.123456789+01:00",
        "2023-02-31T",
        ",",
        ";",
        " ",
        "\t",
        ":",
        "=",
        "\"",
        "(",
        ")",
        "\\",
        "sig1=",
        "sig1=(\"content-digest\" \"@method\");created=1700000000",
        "sig1=:",
        ":AAAA:",
        "sha-256=:",
        "alg=\"hmac-sha256\"",
        UUID,
        "evt_1",
        ".",
        "0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f",
        "qqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqo=",
        "00",
        "9223372036854775806",
    ]);
    let words = vec(words, 0..12).prop_map(|words| words.concat().into_bytes());
    let long = (
        select(vec![",", "v1=,", "a=1,", "\"a\" ", "0", "v1,", ";x=1"]),
        0..4_000_usize,
    )
        .prop_map(|(word, times)| word.repeat(times).into_bytes());
    let bytes = vec(prop_oneof![32..=126_u8, 128..=255_u8, Just(b'\t')], 0..200);
    prop_oneof![6 => words, 1 => long, 2 => bytes]
}

fn headers() -> impl Strategy<Value = HeaderMap> {
    vec((select(NAMES), value()), 0..8).prop_map(|pairs| {
        let mut headers = HeaderMap::new();
        for (name, value) in pairs {
            headers.append(
                header(name),
                HeaderValue::from_bytes(&value).expect("a value"),
            );
        }
        headers
    })
}

/// JSON with the members that mappings read, and what can be wrong with it.
fn json() -> impl Strategy<Value = Vec<u8>> {
    let leaf = select(vec![
        "null",
        "true",
        "0",
        "1",
        "-1",
        "1e400",
        "9223372036854775806",
        "123456789012345678901234567890",
        "1.50",
        r#""""#,
        r#""evt_1""#,
        r#""\ud800""#,
        r#""\u0000""#,
        r#""1700000000""#,
        r#""é\n\ud83d\ude00""#,
        r#""event_callback""#,
        r#""url_verification""#,
        r#""endpoint.url_validation""#,
        "nul",
        "\"",
        "{",
        "[1,",
        "\u{feff}",
    ])
    .prop_map(str::to_owned);
    let names = select(vec![
        "event_id",
        "event_type",
        "correlation_id",
        "sequence",
        "data",
        "id",
        "type",
        "event",
        "payload",
        "plainToken",
        "challenge",
        "webhookTimestamp",
        "signature",
        "timestamp",
        "token",
        "i\\u0064",
        "",
        "\\ud800",
    ]);
    let tree = leaf.prop_recursive(4, 64, 8, move |inner| {
        let object = vec((names.clone(), inner.clone()), 0..8).prop_map(|members| {
            let members: Vec<_> = members
                .into_iter()
                .map(|(name, value)| format!("\"{name}\": {value}"))
                .collect();
            format!("{{{}}}", members.join(","))
        });
        let array = vec(inner, 0..8).prop_map(|items| format!("[{}]", items.join(" , ")));
        prop_oneof![3 => object, 1 => array]
    });
    let long = (
        select(vec!["[", "{\"data\":", "\"\":0,", "[],", "\\u00e9"]),
        0..4_000_usize,
    )
        .prop_map(|(word, times)| format!("{{\"data\":{{{}", word.repeat(times)).into_bytes());
    let cut = (tree.clone(), 0.0..1.0_f64).prop_map(|(text, at)| {
        let at = (text.len() as f64 * at) as usize;
        text.as_bytes()[..at].to_vec()
    });
    prop_oneof![6 => tree.prop_map(String::into_bytes), 2 => cut, 1 => long, 1 => vec(any::<u8>(), 0..200)]
}

fn secrets() -> std::sync::Arc<SecretSet> {
    let secret = |text: &str| Secret::text(text).expect("a secret");
    Secrets::new([secret("new"), secret("old")])
        .expect("a set")
        .snapshot()
        .expect("secrets")
}

fn size(headers: &HeaderMap) -> u64 {
    headers
        .iter()
        .map(|(name, value)| (name.as_str().len() + value.len()) as u64)
        .sum()
}

/// At its peak, and in all, so that nothing is allocated again and again either.
fn check_allocations(
    what: &str,
    info: &AllocationInfo,
    input: u64,
    factor: u64,
) -> Result<(), TestCaseError> {
    let limit = BASE + factor * input;
    prop_assert!(
        info.bytes_max <= limit,
        "{what}: {} bytes at once for {input}",
        info.bytes_max
    );
    prop_assert!(
        info.bytes_total <= 4 * limit,
        "{what}: {} bytes in all for {input}",
        info.bytes_total
    );
    Ok(())
}

fn verified() -> Verified {
    let scheme = Preset::STRIPE.scheme();
    let signer = Signer::new(&scheme, [Secret::text("new").expect("a secret")]).expect("a signer");
    let headers = signer
        .sign(NOW, None, b"")
        .expect("signed")
        .into_iter()
        .collect();
    let uri = Uri::from_static("/");
    let request = RequestView::new(&Method::POST, &uri, &headers, b"");
    scheme
        .verify(&request, &secrets(), NOW, &Tolerance::default())
        .expect("verified")
}

/// Generated inputs of each test: a hundred times as many in the long form. `PROPTEST_CASES` beats both.
fn generated() -> ProptestConfig {
    let mut config = ProptestConfig::default();
    let chosen = std::env::var_os("PROPTEST_CASES").is_some();
    if !chosen && std::env::var_os("TOWER_INBOX_TEST_ALL").is_some() {
        config.cases *= 100;
    }
    config
}

proptest! {
    #![proptest_config(generated())]

    /// The first step reads nothing but headers, and so does most of the second one.
    #[test]
    fn headers_of_every_scheme(headers in headers(), body in json(), unlimited: bool) {
        let (secrets, uri) = (secrets(), Uri::from_static("/"));
        let tolerance = if unlimited { Tolerance::insecure_unlimited() } else { Tolerance::default() };
        for scheme in schemes() {
            // Prepared keys are allocated once for each secret, and not by a delivery.
            let head = std::cell::RefCell::new(None);
            let info = measure(|| *head.borrow_mut() = scheme.check_head(&headers, NOW, &tolerance).ok());
            check_allocations(scheme.name(), &info, size(&headers), HEADER_FACTOR)?;
            let Some(head) = head.into_inner() else { continue };
            let request = RequestView::new(&Method::POST, &uri, &headers, &body).with_url(Some("https://example.com/hook?a=b"));
            let info = measure(|| drop(head.verify(&request, &secrets)));
            check_allocations(scheme.name(), &info, size(&headers) + body.len() as u64, HEADER_FACTOR)?;
            let _ = head.signed_digest(&request);
        }
    }

    /// JSON envelopes and header sequences, by every preset's mapping.
    #[test]
    fn envelopes(headers in headers(), body in json()) {
        let verified = verified();
        for preset in Preset::ALL {
            let mapping = preset.mapping();
            let input = size(&headers) + body.len() as u64;
            let reading = std::cell::RefCell::new(None);
            let info = measure(|| *reading.borrow_mut() = mapping.read(&verified, &headers, &body).ok());
            check_allocations(preset.name, &info, input, BODY_FACTOR)?;
            if let Some(Reading::Event(envelope)) = reading.into_inner() {
                prop_assert!((1..=255).contains(&envelope.event_id.len()));
                prop_assert!(envelope.sequence.is_none() || envelope.correlation_id.is_some());
                let again = mapping.read(&verified, &headers, &body);
                prop_assert_eq!(again.ok(), Some(Reading::Event(envelope)));
            }
        }
    }

    #[test]
    fn uuids(text in prop_oneof!["\\PC{0,80}", "[\"]?[0-9a-fA-F-]{30,40}[\"]?"]) {
        for form in [IdForm::Uuid, IdForm::Verbatim] {
            if let Some(normal) = form.normalise(&text) {
                prop_assert_eq!(form.normalise(&normal), Some(normal.clone()), "one spelling");
                prop_assert!(normal.len() <= text.len());
            }
        }
    }

    /// Accepted exactly if it is the one spelling of a number in the range.
    #[test]
    fn sequences(text in prop_oneof!["\\PC{0,30}", "[+-]?[0-9]{0,25}", any::<i64>().prop_map(|n| n.to_string())]) {
        let expected = text.parse::<i64>().ok().filter(|n| (0..i64::MAX).contains(n) && n.to_string() == text);
        prop_assert_eq!(Sequence::parse(&text).map(Sequence::get), expected);
    }

    #[test]
    fn identifiers(text in prop_oneof!["\\PC{0,300}", any::<String>()]) {
        let fits = (1..=255).contains(&text.len()) && !text.chars().any(char::is_control);
        prop_assert_eq!(EventId::new(&text).is_ok(), fits);
        prop_assert_eq!(EventType::new(&text).is_ok(), fits);
        prop_assert_eq!(CorrelationId::new(&text).is_ok(), fits);
    }

    /// The texts that secrets are given as.
    #[test]
    fn secret_texts(text in prop_oneof!["\\PC{0,100}", "(whsec_)?[A-Za-z0-9+/=]{0,60}"]) {
        let _ = (Secret::whsec(text.clone()), Secret::hex(text.clone()));
        prop_assert_eq!(Secret::text(text.clone()).is_ok(), !text.is_empty());
    }

    /// What a signer signs verifies, whatever is in the body, and one bit of it less or more does not.
    #[test]
    fn signed_deliveries(body in prop_oneof![json(), vec(any::<u8>(), 1..300)], bit: usize, old: bool) {
        let secrets = secrets();
        let uri = Uri::from_static("/");
        let url = "https://example.com/hook";
        for preset in Preset::ALL {
            let scheme = preset.scheme();
            // Linear's time is in the body.
            if preset.name == "linear" { continue }
            let secret = Secret::text(if old { "old" } else { "new" }).expect("a secret");
            let signer = Signer::new(&scheme, [secret]).expect("a signer").with_url(url);
            let headers: HeaderMap = signer.sign(NOW, Some(UUID), &body).expect("signed").into_iter().collect();
            let verify = |body: &[u8]| {
                let request = RequestView::new(&Method::POST, &uri, &headers, body).with_url(Some(url));
                scheme.verify(&request, &secrets, NOW, &Tolerance::default()).map(|verified| verified.label().to_owned())
            };
            prop_assert_eq!(verify(&body).expect("valid"), if old { "secret-2" } else { "secret-1" });
            if !body.is_empty() {
                let mut flipped = body.clone();
                flipped[bit / 8 % body.len()] ^= 1 << (bit % 8);
                prop_assert!(verify(&flipped).is_err(), "{}", preset.name);
            }
        }
    }
}

/// A header as large as a server lets through, of what is the most work for its size: at most 16 candidates are looked
/// at, and no time grows with the square.
#[test]
fn large_headers() {
    let now = std::time::Instant::now();
    let mac = "0f".repeat(32);
    for word in [
        format!("v1={mac},"),
        "v1=,".into(),
        ",".into(),
        "t=1,".into(),
        "v1,AAAA ".into(),
    ] {
        let value = format!("t=1700000000,{}", word.repeat(400_000 / word.len()));
        for scheme in schemes() {
            for name in [
                "x-signature",
                "x-kudos-signature",
                "stripe-signature",
                "webhook-signature",
                "signature",
                "signature-input",
            ] {
                let mut headers = HeaderMap::new();
                for other in [
                    "webhook-id",
                    "webhook-timestamp",
                    "signature-input",
                    "signature",
                ] {
                    headers.insert(header(other), HeaderValue::from_static("1700000000"));
                }
                headers.insert(header(name), value.parse().expect("a value"));
                let info =
                    measure(|| drop(scheme.check_head(&headers, NOW, &Tolerance::default())));
                assert!(
                    info.bytes_max < 64 * 1024,
                    "{}: {name}: {} bytes",
                    scheme.name(),
                    info.bytes_max
                );
            }
        }
    }
    // Generous: the machine has other things to do.
    assert!(now.elapsed().as_secs() < 60, "{:?}", now.elapsed());
}
