//! The rules of §6 on whole requests, with the signer as the other side.

use http::{HeaderMap, HeaderName, HeaderValue, Method, Uri};

use super::*;
use crate::preset::Preset;

const NOW: Timestamp = Timestamp::from_secs(1_700_000_000);
const BODY: &[u8] = br#"{"event_id":"evt_1"}"#;
const UUID: &str = "0f8fad5b-d9cb-469f-a165-70867728950e";

fn secret(text: &str) -> Secret {
    Secret::text(text).unwrap()
}

fn signed(preset: &Preset, secrets: &[&str], body: &[u8]) -> HeaderMap {
    let secrets = secrets.iter().map(|text| secret(text));
    Signer::new(&preset.scheme(), secrets)
        .unwrap()
        .sign(NOW, Some(UUID), body)
        .unwrap()
        .into_iter()
        .collect()
}

fn check(
    preset: &Preset,
    headers: &HeaderMap,
    body: &[u8],
    secrets: &[&str],
) -> Result<Verified, Refusal> {
    let secrets = Secrets::new(secrets.iter().map(|text| secret(text))).unwrap();
    let uri = Uri::from_static("/");
    let request = RequestView::new(&Method::POST, &uri, headers, body);
    preset.scheme().verify(
        &request,
        &secrets.snapshot().unwrap(),
        NOW,
        &Tolerance::default(),
    )
}

/// `kudos` with this text as its whole signature header; `{mac}` stands for the right MAC by `s`.
fn kudos(header: &str) -> Result<(), RefusalKind> {
    let mac = hex::encode(secret("s").mac(Algorithm::HmacSha256, &[b"1700000000.", BODY]));
    let mut headers = HeaderMap::new();
    let value = header.replace("{mac}", &mac);
    headers.insert(
        "x-kudos-signature",
        HeaderValue::from_bytes(value.as_bytes()).unwrap(),
    );
    check(&Preset::KUDOS, &headers, BODY, &["s"])
        .map(drop)
        .map_err(|refusal| refusal.kind())
}

/// §6.2: any signature by any active secret.
#[test]
fn any_signature_by_any_secret() {
    let both = signed(&Preset::KUDOS, &["old", "new"], BODY);
    for secrets in [&["old"][..], &["new"], &["new", "old"], &["other", "new"]] {
        assert!(
            check(&Preset::KUDOS, &both, BODY, secrets).is_ok(),
            "{secrets:?}"
        );
    }
    let old = signed(&Preset::KUDOS, &["old"], BODY);
    assert_eq!(
        check(&Preset::KUDOS, &old, BODY, &["new", "old"])
            .unwrap()
            .label(),
        "secret-2"
    );
    let refusal = check(&Preset::KUDOS, &old, BODY, &["new", "other"]).unwrap_err();
    assert_eq!(refusal.kind(), RefusalKind::NoMatch);
}

/// The `kudos` header as RECEIVER.md has it: blanks after a comma, unknown versions and broken parts do no harm.
#[test]
fn kudos_headers_that_pass() {
    for header in [
        "t=1700000000,v1={mac}",
        "t=1700000000, v1={mac}",
        "v1={mac},t=1700000000",
        "t=1700000000,v0=00,v1={mac},v2=zz",
        "t=1700000000,v1=,v1=zz,v1={mac}",
        "t=1700000000,,junk,=,v1={mac},",
        "t=1700000000,v1=00000000000000000000000000000000000000000000000000000000000000ff,v1={mac}",
    ] {
        assert_eq!(kudos(header), Ok(()), "{header}");
    }
}

/// §6.3, §6.4: everything else is refused, each for its reason.
#[test]
fn kudos_headers_that_are_refused() {
    use RefusalKind::*;
    let many = format!("t=1700000000{},v1={{mac}}", ",v1=00".repeat(16));
    for (header, kind) in [
        ("", MissingSignature),
        (" ", MalformedSignature),
        ("v1={mac}", MissingTimestamp),
        ("t=1700000000", MalformedSignature),
        ("t=1700000000,v1=", MalformedSignature),
        ("t=1700000000,v2={mac}", MalformedSignature),
        ("t=1700000000,V1={mac}", MalformedSignature),
        ("t=1700000000,v1={mac}00", MalformedSignature),
        ("t=1700000000;v1={mac}", MalformedSignature),
        ("t=1700000000,t=1700000000,v1={mac}", MalformedTimestamp),
        ("t=1700000000,v1={mac},t=", MalformedTimestamp),
        ("t=,v1={mac}", MalformedTimestamp),
        ("t=01700000000.0,v1={mac}", MalformedTimestamp),
        ("t=1700000001,v1={mac}", NoMatch),
        ("t=01700000000,v1={mac}", NoMatch),
        ("t=1699999699,v1={mac}", TooOld),
        ("t=1700000301,v1={mac}", TooFarAhead),
        ("t=1700000000000,v1={mac}", TooFarAhead),
        ("t=1700000000,v1={mac}é", NotAscii),
        (&many, MalformedSignature),
    ] {
        assert_eq!(kudos(header), Err(kind), "{header}");
    }
}

/// §6.4: a header that must be single, sent twice with the same value, is refused too.
#[test]
fn repeated_headers() {
    let mut headers = signed(&Preset::KUDOS, &["s"], BODY);
    let value = headers["x-kudos-signature"].clone();
    headers.append("x-kudos-signature", value);
    let refusal = check(&Preset::KUDOS, &headers, BODY, &["s"]).unwrap_err();
    assert_eq!(refusal.kind(), RefusalKind::RepeatedHeader);
}

/// §6.6: the log's text has neither a secret nor a MAC, received or computed.
#[test]
fn refusals_give_nothing_away() {
    let headers = signed(&Preset::KUDOS, &["hunter2"], BODY);
    let received = headers["x-kudos-signature"]
        .to_str()
        .unwrap()
        .rsplit_once('=')
        .unwrap()
        .1;
    let computed =
        hex::encode(secret("swordfish").mac(Algorithm::HmacSha256, &[b"1700000000.", BODY]));
    let refusal = check(&Preset::KUDOS, &headers, BODY, &["swordfish"]).unwrap_err();
    let head = Preset::KUDOS
        .scheme()
        .check_head(&headers, NOW, &Tolerance::default())
        .unwrap();
    for text in [format!("{refusal} {refusal:?}"), format!("{head:?}")] {
        for hidden in [received, &computed, "hunter2", "swordfish"] {
            assert!(!text.contains(hidden), "{text}");
        }
    }
}

/// What any preset signs: a flipped bit anywhere in body, time, identifier or signature is refused.
#[test]
fn single_bits() {
    for preset in Preset::ALL {
        let scheme = preset.scheme();
        let body = br#"{"webhookTimestamp":1700000000000}"#;
        let scheme::Kind::Hmac(hmac) = &scheme.kind else {
            continue;
        };
        let hex = hmac.encoding == Encoding::Hex;
        let url = scheme.needs_url().then_some("https://example.com/hook");
        let key = secret("s");
        let mut signer = Signer::new(&scheme, [key.clone()]).unwrap();
        if let Some(url) = url {
            signer = signer.with_url(url);
        }
        let headers: HeaderMap = signer
            .sign(NOW, Some(UUID), body)
            .unwrap()
            .into_iter()
            .collect();
        let secrets = Secrets::new([key]).unwrap().snapshot().unwrap();
        let verify = |headers: &HeaderMap, body: &[u8]| {
            let uri = Uri::from_static("/");
            let request = RequestView::new(&Method::POST, &uri, headers, body).with_url(url);
            scheme
                .verify(&request, &secrets, NOW, &Tolerance::insecure_unlimited())
                .is_ok()
        };
        assert!(verify(&headers, body), "{}", preset.name);
        for bit in 0..body.len() * 8 {
            let mut flipped = body.to_vec();
            flipped[bit / 8] ^= 1 << (bit % 8);
            assert!(
                !verify(&headers, &flipped),
                "{}: bit {bit} of the body",
                preset.name
            );
        }
        for (name, value) in &headers {
            for bit in 0..value.len() * 8 {
                let mut flipped = value.as_bytes().to_vec();
                flipped[bit / 8] ^= 1 << (bit % 8);
                // Bit 5 is the case of a letter, and hex and UUIDs are read in either.
                let either = (hex && scheme.is_signature_header(name)) || name == "idempotency-key";
                let same = either && flipped.eq_ignore_ascii_case(value.as_bytes());
                let Ok(value) = HeaderValue::from_bytes(&flipped) else {
                    continue;
                };
                let mut headers = headers.clone();
                headers.insert(name, value);
                assert!(
                    same || !verify(&headers, body),
                    "{}: bit {bit} of {name}",
                    preset.name
                );
            }
        }
    }
}

/// `brief`: the key is signed, in its one spelling.
#[test]
fn brief_signs_the_key() {
    let headers = signed(&Preset::BRIEF, &["s"], BODY);
    let with = |key: &str| {
        let mut headers = headers.clone();
        headers.insert("idempotency-key", HeaderValue::from_str(key).unwrap());
        check(&Preset::BRIEF, &headers, BODY, &["s"]).map_err(|refusal| refusal.kind())
    };
    assert_eq!(with(UUID).unwrap().signed_id(), Some(UUID));
    assert_eq!(with(&UUID.to_uppercase()).unwrap().signed_id(), Some(UUID));
    assert_eq!(
        with(&format!("\"{UUID}\"")).unwrap().signed_id(),
        Some(UUID)
    );
    assert_eq!(
        with(&UUID.replace('e', "f")).unwrap_err(),
        RefusalKind::NoMatch
    );
    assert_eq!(with("evt_1").unwrap_err(), RefusalKind::BadIdentifier);
    let mut without = headers.clone();
    without.remove("idempotency-key");
    assert_eq!(
        check(&Preset::BRIEF, &without, BODY, &["s"])
            .unwrap_err()
            .kind(),
        RefusalKind::BadIdentifier
    );
}

/// An identifier with the delimiter in it could be read two ways.
#[test]
fn delimiters_in_identifiers() {
    let scheme = Preset::STANDARD.scheme();
    let signer = Signer::new(&scheme, [secret("s")]).unwrap();
    assert_eq!(
        signer.sign(NOW, Some("msg.1"), BODY).unwrap_err(),
        SignError::Id
    );
    assert_eq!(signer.sign(NOW, None, BODY).unwrap_err(), SignError::Id);
    let mut headers: HeaderMap = signer
        .sign(NOW, Some("msg_1"), BODY)
        .unwrap()
        .into_iter()
        .collect();
    headers.insert("webhook-id", HeaderValue::from_static("msg_1.1700000000"));
    let refusal = scheme
        .check_head(&headers, NOW, &Tolerance::default())
        .unwrap_err();
    assert_eq!(refusal.kind(), RefusalKind::BadIdentifier);
}

/// §6.7: what is covered is computed from the signed message.
#[test]
fn coverage() {
    let kudos = Preset::KUDOS.scheme();
    assert!(kudos.covers_body() && !kudos.covers_id() && kudos.has_timestamp());
    assert!(!kudos.covers_header(&HeaderName::from_static("x-kudos-event-id")));
    let standard = Preset::STANDARD.scheme();
    assert!(standard.covers_id() && standard.covers_header(&HeaderName::from_static("webhook-id")));
    assert!(standard.covers_header(&HeaderName::from_static("webhook-timestamp")));
    assert!(!standard.covers_header(&HeaderName::from_static("webhook-signature")));
}

/// §6.7: a captured delivery has its own digest, and an equal body signed in another second has another.
#[test]
fn digests_of_the_signed_message() {
    let scheme = Preset::KUDOS.scheme();
    let signer = Signer::new(&scheme, [secret("s")]).unwrap();
    let digest = |at: Timestamp, body: &[u8]| {
        let headers: HeaderMap = signer.sign(at, None, body).unwrap().into_iter().collect();
        let uri = Uri::from_static("/");
        let head = scheme
            .check_head(&headers, NOW, &Tolerance::default())
            .unwrap();
        head.signed_digest(&RequestView::new(&Method::POST, &uri, &headers, body))
            .unwrap()
    };
    let later = Timestamp::from_secs(1_700_000_001);
    assert_eq!(digest(NOW, BODY), digest(NOW, BODY));
    assert_ne!(digest(NOW, BODY), digest(later, BODY));
    assert_ne!(digest(NOW, BODY), digest(NOW, b"{}"));
}

/// Descriptions that would not protect what they read are refused when they are built.
#[test]
fn descriptions() {
    let header = || SignatureAt::Header(HeaderName::from_static("x-signature"));
    let hmac = || Scheme::hmac("test", Algorithm::HmacSha256, header());
    let field = || TimestampAt::Field("t".into());
    let at = || TimestampAt::Header(HeaderName::from_static("x-time"));
    let id = HeaderName::from_static("x-id");
    for (builder, error) in [
        (hmac().signs([]), SchemeError::NothingSigned),
        (
            hmac().signs(["x".into(), Part::Url]),
            SchemeError::NothingSigned,
        ),
        (
            hmac().signs([Part::Timestamp, Part::Body]),
            SchemeError::NoTimestampPlace,
        ),
        (
            hmac().timestamp(at(), Unit::Seconds),
            SchemeError::UnsignedTimestamp,
        ),
        (
            hmac()
                .timestamp(field(), Unit::Seconds)
                .signs([Part::Timestamp, Part::Body]),
            SchemeError::FieldWithoutPairs,
        ),
        (
            hmac()
                .timestamp(TimestampAt::Json("t".into()), Unit::Seconds)
                .signs([Part::Json("x".into())]),
            SchemeError::UnsignedTimestamp,
        ),
        (
            hmac().signs([Part::Id, ".".into(), Part::Body]),
            SchemeError::NoIdPlace,
        ),
        (
            hmac()
                .id(id, IdForm::Verbatim)
                .signs([Part::Id, Part::Body]),
            SchemeError::UndelimitedId,
        ),
    ] {
        assert_eq!(builder.build().unwrap_err(), error);
    }
    assert!(
        Signer::new(&hmac().build().unwrap(), ["a", "b"].map(secret)).is_err(),
        "one place, two signatures"
    );
}

/// No header panics, and none passes; seeded, so that a failure comes again.
#[test]
fn random_headers() {
    let mut random = fastrand::Rng::with_seed(4);
    let alphabet: Vec<char> = "t=v1,0123456789abcdefABCDEF+/ ;.:\t\"é-_whsec"
        .chars()
        .collect();
    for _ in 0..3_000 {
        let text: String = (0..random.usize(0..90))
            .map(|_| alphabet[random.usize(0..alphabet.len())])
            .collect();
        let Ok(value) = HeaderValue::from_bytes(text.as_bytes()) else {
            continue;
        };
        for preset in Preset::ALL {
            let mut headers = signed_or_empty(preset);
            let names: Vec<_> = headers.keys().cloned().collect();
            headers.insert(&names[random.usize(0..names.len())], value.clone());
            let body = text.as_bytes();
            assert!(
                check(preset, &headers, body, &["s"]).is_err(),
                "{}: {text}",
                preset.name
            );
        }
    }
}

fn signed_or_empty(preset: &Preset) -> HeaderMap {
    let signer = Signer::new(&preset.scheme(), [secret("s")])
        .unwrap()
        .with_url("https://example.com/");
    signer
        .sign(NOW, Some(UUID), BODY)
        .unwrap()
        .into_iter()
        .collect()
}

/// A signature by a secret outside its window does not count, and the refusal says why; the boundaries belong to it.
#[test]
fn windows_of_secrets() {
    let scheme = Preset::KUDOS.scheme();
    let at = |seconds: i64| Timestamp::from_secs(NOW.as_secs() + seconds);
    let old = || Secret::text("old").unwrap().labelled("old");
    let new = || Secret::text("new").unwrap().labelled("new");
    let secrets = Secrets::new([new().not_before(at(-10)), old().not_after(at(10))]).unwrap();
    let verify = |signers: &[Secret], now: Timestamp| {
        let signer = Signer::new(&scheme, signers.iter().cloned()).unwrap();
        let headers = signer.sign(now, None, b"{}").unwrap().into_iter().collect();
        let uri = Uri::from_static("/");
        let request = RequestView::new(&Method::POST, &uri, &headers, b"{}");
        let secrets = secrets.snapshot().unwrap();
        scheme
            .verify(&request, &secrets, now, &Tolerance::default())
            .map(|verified| verified.label().to_owned())
    };
    assert_eq!(verify(&[new()], at(-10)).unwrap(), "new");
    assert_eq!(verify(&[old()], at(10)).unwrap(), "old");
    assert_eq!(verify(&[new(), old()], at(-11)).unwrap(), "old");
    assert_eq!(verify(&[old(), new()], at(11)).unwrap(), "new");
    for (signer, now, why) in [(new(), at(-11), "before"), (old(), at(11), "after")] {
        let refusal = verify(&[signer], now).unwrap_err();
        assert_eq!(refusal.kind(), RefusalKind::OutsideWindow);
        assert!(refusal.to_string().contains(why), "{refusal}");
    }
}

/// Twilio's form, against the signature in its own documentation's test suite: URL, then the fields sorted by name.
#[test]
fn a_form_is_signed_in_the_order_of_its_names() {
    let scheme = Scheme::hmac(
        "twilio-form",
        Algorithm::HmacSha1Legacy,
        SignatureAt::Header(HeaderName::from_static("x-twilio-signature")),
    )
    .encoding(Encoding::Base64)
    .signs([Part::Url, Part::SortedForm])
    .build()
    .unwrap();
    let secrets = Secrets::new([Secret::text("12345").unwrap()])
        .unwrap()
        .snapshot()
        .unwrap();
    let uri = Uri::from_static("/");
    let mut headers = HeaderMap::new();
    headers.insert(
        "x-twilio-signature",
        HeaderValue::from_static("RSOYDt4T1cUTdK1PDd93/VVr8B8="),
    );
    let verifies = |body: &str| {
        let request = RequestView::new(&Method::POST, &uri, &headers, body.as_bytes())
            .with_url(Some("https://mycompany.com/myapp.php?foo=1&bar=2"));
        scheme
            .verify(
                &request,
                &secrets,
                Timestamp::from_secs(0),
                &Tolerance::default(),
            )
            .is_ok()
    };
    let fields = "Digits=1234&CallSid=CA1234567890ABCDE&To=%2B18005551212&Caller=%2B14158675309&From=%2B14158675309";
    assert!(verifies(fields));
    // A value that comes twice counts once.
    assert!(verifies(&format!("{fields}&Digits=1234")));
    assert!(!verifies(&fields.replace("1234&", "1235&")));
    assert!(!verifies(&format!("{fields}&More=1")));
}
