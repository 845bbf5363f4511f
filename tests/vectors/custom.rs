//! Schemes in code, on the public API alone: what a user would write for a producer of this kind.

use std::collections::BTreeMap;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http::{HeaderMap, HeaderName};
use serde_json::Value;
use sha2::{Digest as _, Sha256};
use tower_inbox::clock::Timestamp;
use tower_inbox::verify::{
    Accepted, Algorithm, CustomScheme, Refusal, RefusalKind, RequestView, SecretSet, Tolerance,
};

/// HMAC-SHA1 over the URL and the form's fields, sorted; for JSON over the URL, which has the body's digest in it.
#[derive(Debug)]
pub(crate) struct Twilio {
    headers: [HeaderName; 1],
}

impl Twilio {
    pub(crate) fn new() -> Self {
        Self {
            headers: [HeaderName::from_static("x-twilio-signature")],
        }
    }

    fn signature<'h>(&self, headers: &'h HeaderMap) -> Result<&'h str, Refusal> {
        single(headers, &self.headers[0])
    }
}

impl CustomScheme for Twilio {
    fn signature_headers(&self) -> &[HeaderName] {
        &self.headers
    }

    fn needs_url(&self) -> bool {
        true
    }

    fn check_head(&self, headers: &HeaderMap, _: Timestamp, _: &Tolerance) -> Result<(), Refusal> {
        self.signature(headers).map(drop)
    }

    fn verify(
        &self,
        request: &RequestView<'_>,
        secrets: &SecretSet,
        _: Timestamp,
        _: &Tolerance,
    ) -> Result<Accepted, Refusal> {
        let mac = decode(self.signature(request.headers)?)?;
        let no_url = || Refusal::new(RefusalKind::NoUrl, "no URL is configured");
        let url = request
            .url
            .filter(|url| !url.is_empty())
            .ok_or_else(no_url)?;
        let query = url.split_once('?').map_or("", |(_, query)| query);
        let digest = form(query)
            .into_iter()
            .find(|(name, _)| name == "bodySHA256")
            .map(|(_, value)| value);
        let fields = match digest {
            Some(digest)
                if digest.eq_ignore_ascii_case(&hex::encode(Sha256::digest(request.body))) =>
            {
                String::new()
            }
            Some(_) => {
                return Err(Refusal::new(
                    RefusalKind::NoMatch,
                    "the body is not the one the URL has the digest of",
                ));
            }
            None => {
                let body = std::str::from_utf8(request.body).map_err(|_| {
                    Refusal::new(RefusalKind::UnreadableBody, "the form is not UTF-8")
                })?;
                let mut sorted: BTreeMap<String, Vec<String>> = BTreeMap::new();
                form(body)
                    .into_iter()
                    .for_each(|(name, value)| sorted.entry(name).or_default().push(value));
                let mut fields = String::new();
                for (name, mut values) in sorted {
                    values.sort();
                    values.dedup();
                    values
                        .iter()
                        .for_each(|value| fields.extend([name.as_str(), value]));
                }
                fields
            }
        };
        let urls = [with_port(url), without_port(url)];
        let secret = secrets.iter().find(|secret| {
            let verifies = |url: &String| {
                secret.verifies(
                    Algorithm::HmacSha1Legacy,
                    &[url.as_bytes(), fields.as_bytes()],
                    &mac,
                )
            };
            urls.iter().fold(false, |found, url| found | verifies(url))
        });
        secret.map(Accepted::by).ok_or_else(no_match)
    }
}

/// Scheme, credentials and host, port, and the rest of a URL.
fn parts(url: &str) -> (&str, &str, Option<&str>, &str) {
    let (scheme, rest) = url.split_once("://").unwrap_or(("https", url));
    let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
    let (authority, rest) = rest.split_at(end);
    match authority.rsplit_once(':') {
        Some((host, port))
            if !port.is_empty() && port.bytes().all(|byte| byte.is_ascii_digit()) =>
        {
            (scheme, host, Some(port), rest)
        }
        _ => (scheme, authority, None, rest),
    }
}

fn with_port(url: &str) -> String {
    let (scheme, host, port, rest) = parts(url);
    let port = port.unwrap_or(if scheme == "http" { "80" } else { "443" });
    format!("{scheme}://{host}:{port}{rest}")
}

fn without_port(url: &str) -> String {
    let (scheme, host, _, rest) = parts(url);
    format!("{scheme}://{host}{rest}")
}

fn form(encoded: &str) -> Vec<(String, String)> {
    let pairs = encoded.split('&').filter(|pair| !pair.is_empty());
    pairs
        .map(|pair| pair.split_once('=').unwrap_or((pair, "")))
        .map(|(n, v)| (unescape(n), unescape(v)))
        .collect()
}

fn unescape(text: &str) -> String {
    let bytes = text.as_bytes();
    let mut plain = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while at < bytes.len() {
        let escaped = (bytes[at] == b'%')
            .then(|| bytes.get(at + 1..at + 3))
            .flatten()
            .and_then(|two| hex::decode(two).ok());
        match (bytes[at], escaped) {
            (_, Some(byte)) => {
                plain.extend(byte);
                at += 2;
            }
            (b'+', None) => plain.push(b' '),
            (byte, None) => plain.push(byte),
        }
        at += 1;
    }
    String::from_utf8_lossy(&plain).into_owned()
}

/// Every item of the body has its own signature over eight of its fields.
#[derive(Debug)]
pub(crate) struct AdyenPayments;

impl CustomScheme for AdyenPayments {
    fn signature_headers(&self) -> &[HeaderName] {
        &[]
    }

    fn covers_body(&self) -> bool {
        false
    }

    fn check_head(&self, _: &HeaderMap, _: Timestamp, _: &Tolerance) -> Result<(), Refusal> {
        Ok(())
    }

    fn verify(
        &self,
        request: &RequestView<'_>,
        secrets: &SecretSet,
        _: Timestamp,
        _: &Tolerance,
    ) -> Result<Accepted, Refusal> {
        let unreadable = || {
            Refusal::new(
                RefusalKind::UnreadableBody,
                "the body has no notification items",
            )
        };
        let body: Value = serde_json::from_slice(request.body).map_err(|_| unreadable())?;
        let items = body["notificationItems"]
            .as_array()
            .filter(|items| !items.is_empty())
            .ok_or_else(unreadable)?;
        let by = |secret: &&tower_inbox::verify::Secret| {
            items.iter().all(|item| item_is_by(item, secret))
        };
        secrets
            .iter()
            .find(by)
            .map(Accepted::by)
            .ok_or_else(no_match)
    }
}

fn item_is_by(item: &Value, secret: &tower_inbox::verify::Secret) -> bool {
    let item = &item["NotificationRequestItem"];
    let Some(mac) = item["additionalData"]["hmacSignature"]
        .as_str()
        .and_then(|text| STANDARD.decode(text).ok())
    else {
        return false;
    };
    let fields = [
        &item["pspReference"],
        &item["originalReference"],
        &item["merchantAccountCode"],
        &item["merchantReference"],
        &item["amount"]["value"],
        &item["amount"]["currency"],
        &item["eventCode"],
        &item["success"],
    ];
    let text = |field: &&Value| match field {
        Value::Null => String::new(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    };
    let message = fields.iter().map(text).collect::<Vec<_>>().join(":");
    secret.verifies(Algorithm::HmacSha256, &[message.as_bytes()], &mac)
}

/// The header is the secret itself. Nothing is signed; the two are compared through their MACs, and so in constant time.
#[derive(Debug)]
pub(crate) struct GitlabToken {
    headers: [HeaderName; 1],
}

impl GitlabToken {
    pub(crate) fn new() -> Self {
        Self {
            headers: [HeaderName::from_static("x-gitlab-token")],
        }
    }
}

impl CustomScheme for GitlabToken {
    fn signature_headers(&self) -> &[HeaderName] {
        &self.headers
    }

    fn covers_body(&self) -> bool {
        false
    }

    fn check_head(&self, headers: &HeaderMap, _: Timestamp, _: &Tolerance) -> Result<(), Refusal> {
        single(headers, &self.headers[0]).map(drop)
    }

    fn verify(
        &self,
        request: &RequestView<'_>,
        secrets: &SecretSet,
        _: Timestamp,
        _: &Tolerance,
    ) -> Result<Accepted, Refusal> {
        let token = single(request.headers, &self.headers[0])?;
        let equals = |secret: &&tower_inbox::verify::Secret| {
            let mac = secret.mac(Algorithm::HmacSha256, &[token.as_bytes()]);
            secret.verifies(Algorithm::HmacSha256, &[secret.expose()], &mac)
        };
        secrets
            .iter()
            .find(equals)
            .map(Accepted::by)
            .ok_or_else(no_match)
    }
}

fn single<'h>(headers: &'h HeaderMap, name: &HeaderName) -> Result<&'h str, Refusal> {
    let mut values = headers.get_all(name).iter();
    match (
        values
            .next()
            .and_then(|value| value.to_str().ok())
            .filter(|value| !value.is_empty()),
        values.next(),
    ) {
        (Some(value), None) => Ok(value),
        (None, _) => Err(Refusal::new(
            RefusalKind::MissingSignature,
            format!("no {name}"),
        )),
        (_, Some(_)) => Err(Refusal::new(
            RefusalKind::RepeatedHeader,
            format!("{name} more than once"),
        )),
    }
}

fn decode(text: &str) -> Result<Vec<u8>, Refusal> {
    STANDARD.decode(text).map_err(|_| {
        Refusal::new(
            RefusalKind::MalformedSignature,
            "the signature is not base64",
        )
    })
}

fn no_match() -> Refusal {
    Refusal::new(RefusalKind::NoMatch, "by no active secret")
}
