//! Which message signatures count, and what they cover.

use http::{HeaderValue, Method, Uri};

use super::super::{Secret, Secrets};
use super::*;

const NOW: Timestamp = Timestamp::from_secs(1_700_000_000);
const URL: &str = "https://Example.com:443/hook?a=b";
const BODY: &[u8] = b"{}";

fn verify(scheme: &Scheme, headers: &HeaderMap, body: &[u8]) -> Result<(), RefusalKind> {
    let secrets = Secrets::new([Secret::text("s").unwrap()])
        .unwrap()
        .snapshot()
        .unwrap();
    let uri = Uri::from_static("/");
    let request = RequestView::new(&Method::POST, &uri, headers, body).with_url(Some(URL));
    let verified = scheme.verify(&request, &secrets, NOW, &Tolerance::default());
    verified.map(drop).map_err(|refusal| refusal.kind())
}

/// Signs these lines, whose components are named in `params`.
fn headers(params: &str, lines: &str) -> HeaderMap {
    let base = format!("{lines}\"@signature-params\": {params}");
    let mac = STANDARD.encode(
        Secret::text("s")
            .unwrap()
            .mac(Algorithm::HmacSha256, &[base.as_bytes()]),
    );
    let mut headers = HeaderMap::new();
    headers.insert(DIGEST, digest().parse().unwrap());
    headers.insert("x-id", HeaderValue::from_static("7"));
    headers.insert(INPUT, format!("sig1={params}").parse().unwrap());
    headers.insert(SIGNATURE, format!("sig1=:{mac}:").parse().unwrap());
    headers
}

fn digest() -> String {
    format!("sha-256=:{}:", STANDARD.encode(Sha256::digest(BODY)))
}

fn lines() -> String {
    format!(
        "\"@method\": POST\n\"@authority\": example.com\n\"content-digest\": {}\n",
        digest()
    )
}

const PARAMS: &str = r#"("@method" "@authority" "content-digest");created=1700000000;keyid="k""#;

#[test]
fn a_covered_body_passes() {
    let scheme = Rfc9421::new().scheme("rfc9421");
    assert_eq!(verify(&scheme, &headers(PARAMS, &lines()), BODY), Ok(()));
    assert_eq!(
        verify(&scheme, &headers(PARAMS, &lines()), b"{ }"),
        Err(RefusalKind::NoMatch)
    );
    assert_eq!(
        verify(
            &scheme,
            &headers(PARAMS, &lines().replace("POST", "PUT")),
            BODY
        ),
        Err(RefusalKind::NoMatch)
    );
    let mut other = headers(PARAMS, &lines());
    other.insert(
        DIGEST,
        format!("{}, sha-512=:AA==:", digest()).parse().unwrap(),
    );
    assert_eq!(verify(&scheme, &other, BODY), Err(RefusalKind::NoMatch));
}

/// What a signature must have to count at all; checked before the body is read.
#[test]
fn signatures_that_do_not_count() {
    let scheme = Rfc9421::new().scheme("rfc9421");
    for (params, kind) in [
        (
            r#"("@method");created=1700000000"#,
            RefusalKind::MalformedSignature,
        ),
        (
            r#"("content-digest" "content-digest");created=1700000000"#,
            RefusalKind::MalformedSignature,
        ),
        (
            r#"("content-digest";sf);created=1700000000"#,
            RefusalKind::MalformedSignature,
        ),
        (
            r#"("content-digest");created=1700000000;alg="rsa""#,
            RefusalKind::MalformedSignature,
        ),
        (
            r#"("content-digest");keyid="k""#,
            RefusalKind::MissingTimestamp,
        ),
        (
            r#"("content-digest");created=1699999699"#,
            RefusalKind::TooOld,
        ),
        (
            r#"("content-digest");created=1700000301"#,
            RefusalKind::TooFarAhead,
        ),
        (
            r#"("content-digest");created=1700000000;expires=1699999999"#,
            RefusalKind::TooOld,
        ),
        (r#"("content-digest""#, RefusalKind::MalformedSignature),
        ("", RefusalKind::MalformedSignature),
    ] {
        let headers = headers(params, &lines());
        let refusal = scheme
            .check_head(&headers, NOW, &Tolerance::default())
            .unwrap_err();
        assert_eq!(refusal.kind(), kind, "{params}: {refusal}");
    }
}

/// §6.7: a header that is required to be covered is covered, computed.
#[test]
fn required_headers_are_covered() {
    let id = HeaderName::from_static("x-id");
    let scheme = Rfc9421::new().requiring(id.clone()).scheme("rfc9421");
    assert!(scheme.covers_header(&id) && scheme.covers_body());
    let without = headers(PARAMS, &lines());
    assert_eq!(
        verify(&scheme, &without, BODY),
        Err(RefusalKind::MalformedSignature)
    );
    let params = r#"("content-digest" "x-id");created=1700000000"#;
    let with = headers(
        params,
        &format!("\"content-digest\": {}\n\"x-id\": 7\n", digest()),
    );
    assert_eq!(verify(&scheme, &with, BODY), Ok(()));
    let mut changed = with.clone();
    changed.insert("x-id", HeaderValue::from_static("8"));
    assert_eq!(verify(&scheme, &changed, BODY), Err(RefusalKind::NoMatch));
}

/// No header panics, and none passes; seeded, so that a failure comes again.
#[test]
fn random_headers() {
    let scheme = Rfc9421::new().scheme("rfc9421");
    let parts = [
        "sig1",
        "=",
        "(",
        ")",
        "\"",
        "content-digest",
        "@method",
        ";",
        "created",
        "1700000000",
        ":",
        ",",
        " ",
        "\\",
        "alg",
        "AAAA",
        "é",
        "expires",
    ];
    let mut random = fastrand::Rng::with_seed(21);
    for _ in 0..20_000 {
        let text: String = (0..random.usize(0..20))
            .map(|_| parts[random.usize(0..parts.len())])
            .collect();
        let value = HeaderValue::from_bytes(text.as_bytes()).unwrap();
        let mut headers = headers(PARAMS, &lines());
        let names = [INPUT, SIGNATURE, DIGEST];
        headers.insert(&names[random.usize(0..3)], value);
        assert!(verify(&scheme, &headers, BODY).is_err(), "{text}");
    }
}
