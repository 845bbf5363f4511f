//! HTTP Message Signatures (RFC 9421) with `hmac-sha256`, over a body whose digest is covered (RFC 9530).

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http::{HeaderMap, HeaderName};
use sha2::{Digest as _, Sha256, Sha512};

use super::candidates::MOST;
use super::custom::{Accepted, CustomScheme};
use super::head::single;
use super::mac::Algorithm;
use super::refusal::{Refusal, RefusalKind};
use super::scheme::Scheme;
use super::secrets::SecretSet;
use super::time::{SignedTime, Tolerance, Unit};
use super::{RequestView, sfv};
use crate::clock::Timestamp;

const INPUT: HeaderName = HeaderName::from_static("signature-input");
const SIGNATURE: HeaderName = HeaderName::from_static("signature");
const DIGEST: HeaderName = HeaderName::from_static("content-digest");

/// RFC 9421 signatures with `hmac-sha256`.
///
/// The standard lets the signer choose what it covers, even nothing of the body. Here a signature counts only if it
/// covers `content-digest`, if that is right, and if it says when it was created.
///
/// `@authority` and what else names the URL come from the URL that is configured, never from `Host`. Components with
/// parameters (`;sf`, `;key`, `;req`) are not supported: signatures that have them do not count.
#[derive(Clone, Debug)]
pub struct Rfc9421 {
    headers: [HeaderName; 2],
    required: Vec<HeaderName>,
}

impl Default for Rfc9421 {
    fn default() -> Self {
        Self::new()
    }
}

impl Rfc9421 {
    /// Signatures must cover `content-digest`.
    pub fn new() -> Self {
        Self {
            headers: [SIGNATURE, INPUT],
            required: vec![DIGEST],
        }
    }

    /// Signatures must cover this header too, such as the one with the event's id.
    #[must_use]
    pub fn requiring(mut self, header: HeaderName) -> Self {
        self.required.push(header);
        self
    }

    /// The scheme.
    pub fn scheme(self, name: &'static str) -> Scheme {
        Scheme::custom(name, self)
    }

    /// The signatures that may count, or why the last one does not.
    fn candidates<'h>(
        &self,
        headers: &'h HeaderMap,
        now: Timestamp,
        tolerance: &Tolerance,
    ) -> Result<Vec<Candidate<'h>>, Refusal> {
        let missing = |name: &HeaderName| {
            Refusal::new(RefusalKind::MissingSignature, format!("no header {name}"))
        };
        let inputs = single(headers, &INPUT)?.ok_or_else(|| missing(&INPUT))?;
        let signatures = single(headers, &SIGNATURE)?.ok_or_else(|| missing(&SIGNATURE))?;
        let malformed = |name: HeaderName| {
            Refusal::new(
                RefusalKind::MalformedSignature,
                format!("header {name} is malformed"),
            )
        };
        let inputs = sfv::dictionary(inputs).ok_or_else(|| malformed(INPUT))?;
        let signatures = sfv::dictionary(signatures).ok_or_else(|| malformed(SIGNATURE))?;
        let mut refusal = Refusal::new(RefusalKind::MissingSignature, "no signature");
        let mut candidates = Vec::new();
        for (label, input) in inputs.into_iter().take(MOST) {
            let signature = signatures
                .iter()
                .find(|(other, _)| *other == label)
                .map(|(_, value)| *value);
            match self.candidate(input, signature.unwrap_or_default(), now, tolerance) {
                Ok(candidate) => candidates.push(candidate),
                Err(why) => refusal = why,
            }
        }
        if candidates.is_empty() {
            Err(refusal)
        } else {
            Ok(candidates)
        }
    }

    fn candidate<'h>(
        &self,
        input: &'h str,
        signature: &str,
        now: Timestamp,
        tolerance: &Tolerance,
    ) -> Result<Candidate<'h>, Refusal> {
        let malformed = |why: &'static str| Refusal::new(RefusalKind::MalformedSignature, why);
        let mac = sfv::bytes(signature).and_then(|text| STANDARD.decode(text).ok());
        let mac = mac.filter(|mac| mac.len() == Algorithm::HmacSha256.len());
        let mac = mac.ok_or_else(|| malformed("a signature is not 32 bytes in base64"))?;
        let list =
            sfv::inner_list(input).ok_or_else(|| malformed("a signature's input is malformed"))?;
        if self
            .required
            .iter()
            .any(|required| !list.items.contains(&required.as_str()))
        {
            let names: Vec<_> = self.required.iter().map(HeaderName::as_str).collect();
            let why = format!("a signature does not cover all of {}", names.join(", "));
            return Err(Refusal::new(RefusalKind::MalformedSignature, why));
        }
        if list
            .parameter("alg")
            .is_some_and(|algorithm| algorithm != "\"hmac-sha256\"")
        {
            return Err(malformed(
                "a signature is by another algorithm than hmac-sha256",
            ));
        }
        let created = list.parameter("created").ok_or_else(|| {
            Refusal::new(
                RefusalKind::MissingTimestamp,
                "a signature does not say when it was created",
            )
        })?;
        let created = SignedTime::parse(Unit::Seconds, created)?;
        created.check(now, tolerance)?;
        if let Some(expires) = list.parameter("expires") {
            let expires = SignedTime::parse(Unit::Seconds, expires)?.at;
            // The signer's own limit, beside ours.
            if now > expires {
                return Err(Refusal::new(
                    RefusalKind::TooOld,
                    format!("a signature expired at {expires:?}"),
                ));
            }
        }
        Ok(Candidate {
            list,
            mac,
            created: created.at,
        })
    }
}

struct Candidate<'h> {
    list: sfv::InnerList<'h>,
    mac: Vec<u8>,
    created: Timestamp,
}

impl CustomScheme for Rfc9421 {
    fn signature_headers(&self) -> &[HeaderName] {
        &self.headers
    }

    fn covers_header(&self, name: &HeaderName) -> bool {
        self.required.contains(name)
    }

    fn has_timestamp(&self) -> bool {
        true
    }

    fn check_head(
        &self,
        headers: &HeaderMap,
        now: Timestamp,
        tolerance: &Tolerance,
    ) -> Result<(), Refusal> {
        self.candidates(headers, now, tolerance).map(drop)
    }

    fn verify(
        &self,
        request: &RequestView<'_>,
        secrets: &SecretSet,
        now: Timestamp,
        tolerance: &Tolerance,
    ) -> Result<Accepted, Refusal> {
        let candidates = self.candidates(request.headers, now, tolerance)?;
        check_digest(request)?;
        let mut refusal = Refusal::new(RefusalKind::NoMatch, "no signature is by an active secret");
        for candidate in &candidates {
            match base(&candidate.list, request) {
                Ok(base) => {
                    let verifies = |secret: &&super::Secret| {
                        secret.verifies(Algorithm::HmacSha256, &[base.as_bytes()], &candidate.mac)
                    };
                    if let Some(secret) = secrets.iter().find(verifies) {
                        return Ok(Accepted::by(secret).signed_at(candidate.created));
                    }
                }
                Err(why) => refusal = why,
            }
        }
        Err(refusal)
    }

    fn signed_digest(&self, request: &RequestView<'_>) -> [u8; 32] {
        // A signature is deterministic: the same input, and with it the time it was created, is the same delivery.
        let input = request
            .headers
            .get(&INPUT)
            .map(http::HeaderValue::as_bytes)
            .unwrap_or_default();
        let digest = Sha256::new()
            .chain_update((input.len() as u64).to_be_bytes())
            .chain_update(input);
        digest.chain_update(request.body).finalize().into()
    }
}

/// The body must have each digest that is named and known, and one at least.
fn check_digest(request: &RequestView<'_>) -> Result<(), Refusal> {
    let wrong = |why: &'static str| Refusal::new(RefusalKind::NoMatch, why);
    let header =
        single(request.headers, &DIGEST)?.ok_or_else(|| wrong("no header content-digest"))?;
    let digests =
        sfv::dictionary(header).ok_or_else(|| wrong("header content-digest is malformed"))?;
    let mut known = 0;
    for (name, value) in digests {
        let computed = match name {
            "sha-256" => Sha256::digest(request.body).to_vec(),
            "sha-512" => Sha512::digest(request.body).to_vec(),
            _ => continue,
        };
        known += 1;
        if sfv::bytes(value).and_then(|text| STANDARD.decode(text).ok()) != Some(computed) {
            return Err(wrong(
                "the body does not have the digest that content-digest names",
            ));
        }
    }
    if known == 0 {
        Err(wrong("content-digest has neither sha-256 nor sha-512"))
    } else {
        Ok(())
    }
}

/// The signature base: one line for each component, and the parameters as received.
fn base(list: &sfv::InnerList<'_>, request: &RequestView<'_>) -> Result<String, Refusal> {
    let mut base = String::new();
    for name in &list.items {
        let value = component(name, request)?;
        base.push_str(&format!("\"{name}\": {value}\n"));
    }
    base.push_str(&format!("\"@signature-params\": {}", list.raw));
    Ok(base)
}

fn component(name: &str, request: &RequestView<'_>) -> Result<String, Refusal> {
    if name == "@method" {
        return Ok(request.method.as_str().to_owned());
    }
    if name.starts_with('@') {
        let no_url = || {
            Refusal::new(
                RefusalKind::NoUrl,
                format!("{name} is signed, and the source has no URL configured"),
            )
        };
        let url = request
            .url
            .filter(|url| !url.is_empty())
            .ok_or_else(no_url)?;
        let parsed: http::Uri = url.parse().map_err(|_| no_url())?;
        let scheme = parsed.scheme_str().unwrap_or("https").to_ascii_lowercase();
        let authority = parsed
            .authority()
            .map(|authority| authority.as_str().to_ascii_lowercase())
            .unwrap_or_default();
        let default_port = if scheme == "http" { ":80" } else { ":443" };
        let path = if parsed.path().is_empty() {
            "/"
        } else {
            parsed.path()
        };
        return match name {
            "@target-uri" => Ok(url.to_owned()),
            "@authority" => Ok(authority
                .strip_suffix(default_port)
                .unwrap_or(&authority)
                .to_owned()),
            "@scheme" => Ok(scheme),
            "@path" => Ok(path.to_owned()),
            "@query" => Ok(format!("?{}", parsed.query().unwrap_or_default())),
            "@request-target" => Ok(parsed
                .path_and_query()
                .map_or(path, |target| target.as_str())
                .to_owned()),
            _ => Err(Refusal::new(
                RefusalKind::MalformedSignature,
                "a signature covers a component that is not supported",
            )),
        };
    }
    let missing = || {
        Refusal::new(
            RefusalKind::NoMatch,
            "a signature covers a header that was not sent",
        )
    };
    let header = HeaderName::from_bytes(name.as_bytes()).map_err(|_| missing())?;
    let mut values = Vec::new();
    for value in request.headers.get_all(&header) {
        values.push(super::head::ascii(&header, value)?.trim_matches([' ', '\t']));
    }
    if values.is_empty() {
        Err(missing())
    } else {
        Ok(values.join(", "))
    }
}

#[cfg(test)]
mod tests;
