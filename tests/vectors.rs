//! Every signature vector gives its expectation.
//!
//! `tests/vectors/signatures.json`, or another file of the same form named by `SIGNATURE_VECTORS`. Schemes that are no
//! presets are descriptors here, or code where data cannot say it: that the crate's public API is enough for them is
//! part of the test.

#[path = "vectors/custom.rs"]
mod custom;
#[path = "vectors/schemes.rs"]
mod schemes;

use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Uri};
use serde_json::Value;
use tower_inbox::clock::Timestamp;
use tower_inbox::verify::{RequestView, Secret, Secrets, Tolerance};

use crate::schemes::Known;

/// The expectation of a vector as this crate judges it: where the two differ, with the reason.
fn judged(vector: &Value) -> (bool, Option<&'static str>) {
    let valid = match text(vector, "expect") {
        "valid" => true,
        "invalid" => false,
        other => panic!("{}: unknown expectation {other}", text(vector, "id")),
    };
    let reason = match text(vector, "scheme") {
        // The README's recipes say so as well.
        "hubspot-v1" | "hubspot-v2" => {
            "a plain hash of secret and request can be extended without the secret"
        }
        "rfc9421-hmac" if !covers_digest(vector) => {
            "the body's digest is not among the covered components"
        }
        _ => return (valid, None),
    };
    (false, valid.then_some(reason))
}

fn covers_digest(vector: &Value) -> bool {
    let input = vector["headers"].as_object().into_iter().flatten();
    input
        .filter(|(name, _)| name.eq_ignore_ascii_case("signature-input"))
        .any(|(_, value)| {
            value
                .as_str()
                .is_some_and(|text| text.contains("\"content-digest\""))
        })
}

/// §2.2
#[test]
fn vectors_give_their_expectation() {
    let path = std::env::var("SIGNATURE_VECTORS").unwrap_or_else(|_| {
        concat!(env!("CARGO_MANIFEST_DIR"), "/tests/vectors/signatures.json").to_owned()
    });
    let vectors = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path}: {error}"));
    check(&vectors);
}

/// §2.2. The producers of the seeds have no public vectors: these were computed with another HMAC implementation.
#[test]
fn own_vectors_give_their_expectation() {
    check(include_str!("vectors/own.json"));
}

fn check(vectors: &str) {
    let vectors: Vec<Value> = serde_json::from_str(vectors).expect("a list of vectors");
    assert!(!vectors.is_empty(), "no vectors");
    let mut wrong = Vec::new();
    for vector in &vectors {
        let (expected, judged) = judged(vector);
        let outcome = run(vector);
        let id = text(vector, "id");
        if let Some(reason) = judged {
            // Shown with `--nocapture`: a judgement must not be silent.
            eprint(format_args!(
                "{id}: expected to be valid, judged to be refused: {reason}"
            ));
        }
        if outcome.is_ok() != expected {
            let why = text(vector, "why");
            wrong.push(format!(
                "{id} ({why}): should pass: {expected}; {outcome:?}"
            ));
        }
    }
    assert!(
        wrong.is_empty(),
        "{} of {}:\n{}",
        wrong.len(),
        vectors.len(),
        wrong.join("\n")
    );
}

/// §2.2. A flipped bit of the body is refused, except where the scheme does not cover the whole body.
#[test]
fn valid_vectors_with_a_flipped_bit_in_the_body_are_refused() {
    for vector in valid() {
        // Fields of the body are signed, or (twilio) the decoded values of a form, or nothing (gitlab-token).
        let uncovered = ["adyen-payments", "mailgun", "twilio", "gitlab-token"];
        let body = body(&vector);
        let step = body.len() / 64 * 8 + 1;
        for bit in (0..body.len() * 8)
            .step_by(step)
            .filter(|_| !uncovered.contains(&text(&vector, "scheme")))
        {
            let mut flipped = body.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            let mut vector = vector.clone();
            vector["body_b64"] = STANDARD.encode(&flipped).into();
            assert!(run(&vector).is_err(), "{}: bit {bit}", text(&vector, "id"));
        }
    }
}

/// §2.2. A flipped bit of the signature, of the signed time or of a signed identifier is refused, except the bit that
/// is the case of a hexadecimal digit, also in a UUID. Vectors with several signatures are left out: one of them may be
/// another's.
#[test]
fn valid_vectors_with_a_flipped_bit_in_a_header_are_refused() {
    let is_long = |token: &&str| token.len() >= 28;
    for vector in valid().filter(|vector| vector["body_repeat"].is_null()) {
        let scheme = schemes::known(text(&vector, "scheme"))
            .and_then(|known| known.scheme)
            .expect("a known scheme");
        let headers: Vec<_> = header_list(&vector)
            .into_iter()
            .map(|(n, v)| (n.to_owned(), v.to_owned()))
            .collect();
        let carried: Vec<_> = headers
            .iter()
            .filter(|(name, _)| scheme.is_signature_header(&name.parse().expect("a name")))
            .collect();
        let [(_, value)] = carried.as_slice() else {
            continue;
        };
        let items = || value.split([',', ' ', ';']).filter(|item| !item.is_empty());
        if items().count() > 2 || items().filter(is_long).count() != 1 {
            continue;
        }
        for (index, (name, value)) in headers.iter().enumerate() {
            let header = name.parse().expect("a name");
            if !scheme.is_signature_header(&header) && !scheme.covers_header(&header) {
                continue;
            }
            for bit in 0..value.len() * 8 {
                let mut flipped = value.clone().into_bytes();
                flipped[bit / 8] ^= 1 << (bit % 8);
                let Ok(flipped) = String::from_utf8(flipped) else {
                    continue;
                };
                let hex = value
                    .split(['=', ',', ' ', ';'])
                    .filter(is_long)
                    .all(is_hex);
                if hex
                    && value.as_bytes()[bit / 8].is_ascii_hexdigit()
                    && flipped.eq_ignore_ascii_case(value)
                {
                    continue;
                }
                let mut headers = headers.clone();
                headers[index].1 = flipped;
                let mut vector = vector.clone();
                vector["headers_list"] = headers
                    .into_iter()
                    .map(|(n, v)| Value::from(vec![n, v]))
                    .collect();
                assert!(
                    run(&vector).is_err(),
                    "{}: bit {bit} of {name}",
                    text(&vector, "id")
                );
            }
        }
    }
}

/// Hexadecimal, or a UUID, bare or quoted.
fn is_hex(token: &str) -> bool {
    token
        .bytes()
        .all(|byte| byte.is_ascii_hexdigit() || b"-\"".contains(&byte))
}

fn valid() -> impl Iterator<Item = Value> {
    let vectors: Vec<Value> = [
        include_str!("vectors/signatures.json"),
        include_str!("vectors/own.json"),
    ]
    .into_iter()
    .flat_map(|text| serde_json::from_str::<Vec<Value>>(text).expect("a list of vectors"))
    .collect();
    vectors.into_iter().filter(|vector| run(vector).is_ok())
}

/// One vector, as a user of the crate would verify it.
fn run(vector: &Value) -> Result<String, String> {
    let known = schemes::known(text(vector, "scheme"));
    let Known { scheme, key } = known.unwrap_or_else(|| {
        panic!(
            "{}: unknown scheme {}",
            text(vector, "id"),
            text(vector, "scheme")
        )
    });
    let Some(scheme) = scheme else {
        return Err("not offered".into());
    };
    let texts: Vec<&str> = match vector["secrets"].as_array() {
        Some(secrets) => secrets
            .iter()
            .map(|secret| secret.as_str().expect("a text"))
            .collect(),
        None => vec![text(vector, "secret")],
    };
    let secrets: Result<Vec<_>, _> = texts
        .into_iter()
        .map(|text| Secret::decode(key, text))
        .collect();
    let secrets = secrets
        .and_then(Secrets::new)
        .map_err(|error| error.to_string())?;

    let mut headers = HeaderMap::new();
    for (name, value) in header_list(vector) {
        let name = HeaderName::from_bytes(name.as_bytes()).map_err(|error| error.to_string())?;
        headers.append(
            name,
            HeaderValue::from_bytes(value.as_bytes()).map_err(|error| error.to_string())?,
        );
    }
    let now = Timestamp::from_micros((vector["now"].as_f64().unwrap_or(0.0) * 1e6) as i64);
    let tolerance = vector["tolerance_s"]
        .as_u64()
        .map_or(Tolerance::insecure_unlimited(), |seconds| {
            Tolerance::new(Duration::from_secs(seconds), Duration::from_secs(seconds))
        });
    let method = vector["method"]
        .as_str()
        .unwrap_or("POST")
        .parse::<Method>()
        .expect("a method");
    let uri = Uri::from_static("/");
    let body = body(vector);
    let request = RequestView::new(&method, &uri, &headers, &body).with_url(vector["url"].as_str());
    let verified = scheme.verify(
        &request,
        &secrets.snapshot().expect("secrets"),
        now,
        &tolerance,
    );
    verified
        .map(|verified| verified.label().to_owned())
        .map_err(|refusal| refusal.to_string())
}

fn header_list(vector: &Value) -> Vec<(&str, &str)> {
    fn as_text(value: &Value) -> &str {
        value.as_str().expect("a text")
    }
    match vector["headers_list"].as_array() {
        Some(list) => list
            .iter()
            .map(|pair| (as_text(&pair[0]), as_text(&pair[1])))
            .collect(),
        None => vector["headers"]
            .as_object()
            .into_iter()
            .flatten()
            .map(|(name, value)| (name.as_str(), as_text(value)))
            .collect(),
    }
}

fn body(vector: &Value) -> Vec<u8> {
    if let Some(encoded) = vector["body_b64"].as_str() {
        return STANDARD.decode(encoded).expect("base64");
    }
    if let Some(char) = vector["body_repeat"]["char"].as_str() {
        return char
            .repeat(vector["body_repeat"]["count"].as_u64().expect("a count") as usize)
            .into_bytes();
    }
    text(vector, "body").as_bytes().to_vec()
}

fn text<'v>(vector: &'v Value, field: &str) -> &'v str {
    vector[field]
        .as_str()
        .unwrap_or_else(|| panic!("{field} is missing in {vector}"))
}

#[allow(clippy::print_stderr)]
fn eprint(line: std::fmt::Arguments<'_>) {
    eprintln!("{line}");
}
