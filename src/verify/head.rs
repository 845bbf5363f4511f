//! The two steps: the head of a request before its body is read, then the signature over both.

use std::borrow::Cow;
use std::collections::BTreeSet;

use http::{HeaderMap, HeaderName};
use sha2::{Digest as _, Sha256};
use smallvec::SmallVec;

use super::candidates::{self, Tags};
use super::json::{self, JsonPath, Members};
use super::mac::{self, Sink};
use super::refusal::{Refusal, RefusalKind};
use super::scheme::{Hmac, Kind, Part, Scheme, SignatureAt, TimestampAt};
use super::secret::Secret;
use super::secrets::SecretSet;
use super::time::{SignedTime, Tolerance};
use super::{RequestView, Verified};
use crate::broken::{self, Variant};
use crate::clock::Timestamp;

/// A request whose head has passed: the headers' shape, and the signed time where a header has it.
///
/// Nothing is proven yet; [`Head::verify`] does that, with the body.
#[derive(Clone)]
#[must_use = "nothing is proven before `verify`"]
pub struct Head {
    scheme: Scheme,
    now: Timestamp,
    tolerance: Tolerance,
    found: Found,
}

/// What the headers of an HMAC scheme say.
#[derive(Clone, Default)]
pub(super) struct Found {
    pub(super) tags: Tags,
    /// As received.
    pub(super) timestamp: Option<ShortText>,
    pub(super) signed_at: Option<Timestamp>,
    pub(super) id: Option<String>,
}

/// Long enough for every honest timestamp; a longer one is allocated.
pub(super) type ShortText = SmallVec<[u8; 40]>;

impl Scheme {
    /// The first step, before the body is read: that the signature headers are there once, are ASCII and have at
    /// least one candidate of the right form and length (16 at most are looked at), and that the signed time is within the tolerance.
    ///
    /// # Errors
    /// The delivery is refused: answer 401, and log the [`Refusal`].
    pub fn check_head(
        &self,
        headers: &HeaderMap,
        now: Timestamp,
        tolerance: &Tolerance,
    ) -> Result<Head, Refusal> {
        let found = match &self.kind {
            Kind::Hmac(hmac) => hmac.check_head(headers, now, tolerance)?,
            Kind::Custom(custom) => {
                custom.check_head(headers, now, tolerance)?;
                Found::default()
            }
        };
        Ok(Head {
            scheme: self.clone(),
            now,
            tolerance: *tolerance,
            found,
        })
    }

    /// Both steps in one call, for who has the body already.
    ///
    /// # Errors
    /// The delivery is refused: answer 401, and log the [`Refusal`].
    pub fn verify(
        &self,
        request: &RequestView<'_>,
        secrets: &SecretSet,
        now: Timestamp,
        tolerance: &Tolerance,
    ) -> Result<Verified, Refusal> {
        // Data needs no `Head` in between, which would have to outlive the reading of a body.
        if let Kind::Hmac(hmac) = &self.kind {
            let found = hmac.check_head(request.headers, now, tolerance)?;
            return hmac.verify(&found, request, secrets, now, tolerance);
        }
        self.check_head(request.headers, now, tolerance)?
            .verify(request, secrets)
    }
}

impl Head {
    /// The signed time, if a header has it. Not proven yet.
    pub fn claimed_at(&self) -> Option<Timestamp> {
        self.found.signed_at
    }

    /// The second step: whether any candidate is by any active secret (§6.2), over the exact raw body.
    /// A signed time inside the body is checked after that.
    ///
    /// # Errors
    /// The delivery is refused: answer 401, and log the [`Refusal`].
    pub fn verify(
        &self,
        request: &RequestView<'_>,
        secrets: &SecretSet,
    ) -> Result<Verified, Refusal> {
        match &self.scheme.kind {
            Kind::Hmac(hmac) => {
                hmac.verify(&self.found, request, secrets, self.now, &self.tolerance)
            }
            Kind::Custom(custom) => {
                let verify = |secrets| {
                    custom
                        .verify(request, secrets, self.now, &self.tolerance)
                        .map(super::Accepted::into_verified)
                };
                let verified = verify(secrets)?;
                if verified.secret.counts_at(self.now) {
                    return Ok(verified);
                }
                // Perhaps another signature is by another secret.
                let counting = secrets.counting_at(self.now);
                let again = counting.iter().next().and_then(|_| verify(&counting).ok());
                again.ok_or_else(|| outside_window(&verified.secret, self.now))
            }
        }
    }

    /// How many candidates the headers have that are of the right form and length; at most 16 are looked at. For HMAC
    /// schemes with signatures in headers; 0 for others.
    pub fn candidates(&self) -> usize {
        self.found.tags.len()
    }

    /// What must have been signed, for people who look for the difference; `None` for schemes in code.
    ///
    /// # Errors
    /// The message cannot be put together: a part of it is not there.
    pub fn signed_message(&self, request: &RequestView<'_>) -> Result<Option<Vec<u8>>, Refusal> {
        let Kind::Hmac(hmac) = &self.scheme.kind else {
            return Ok(None);
        };
        let mut message = Vec::new();
        let copy = &mut |part: &[u8]| message.extend_from_slice(part);
        hmac.message(&self.found, request, copy)?;
        Ok(Some(message))
    }

    /// SHA-256 of the signed message: equal for a captured delivery that is sent again, different for an equal body
    /// that was signed at another time (§6.7).
    ///
    /// # Errors
    /// The message cannot be put together; after a successful [`Head::verify`] of the same request it can.
    pub fn signed_digest(&self, request: &RequestView<'_>) -> Result<[u8; 32], Refusal> {
        match &self.scheme.kind {
            Kind::Hmac(hmac) => {
                let mut digest = Sha256::new();
                hmac.message(&self.found, request, &mut |part| digest.update(part))?;
                Ok(digest.finalize().into())
            }
            Kind::Custom(custom) => Ok(custom.signed_digest(request)),
        }
    }
}

impl std::fmt::Debug for Head {
    /// Without the candidates: one of them may be right.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Head")
            .field("scheme", &self.scheme.name())
            .field("candidates", &self.found.tags.len())
            .field("claimed_at", &self.found.signed_at)
            .finish_non_exhaustive()
    }
}

impl Hmac {
    fn check_head(
        &self,
        headers: &HeaderMap,
        now: Timestamp,
        tolerance: &Tolerance,
    ) -> Result<Found, Refusal> {
        let values = candidates::values(&self.at, headers)?;
        let mut found = Found::default();
        let mut field = None;
        if !matches!(self.at, SignatureAt::Json(_)) {
            field = candidates::scan(self, &values, &mut found.tags)?;
        }
        let received = match &self.timestamp {
            None | Some((TimestampAt::Json(_), _)) => None,
            Some((TimestampAt::Field(_), unit)) => field.map(|text| (text, *unit)),
            Some((TimestampAt::Header(name), unit)) => {
                let missing = || {
                    Refusal::new(
                        RefusalKind::MissingTimestamp,
                        format!("header {name} is missing"),
                    )
                };
                Some((single(headers, name)?.ok_or_else(missing)?, *unit))
            }
        };
        if let Some((text, unit)) = received {
            let time = SignedTime::parse(unit, text)?;
            time.check(now, tolerance)?;
            found.timestamp = Some(ShortText::from_slice(text.as_bytes()));
            found.signed_at = Some(time.at);
        }
        if let Some(at) = &self.id {
            let bad = |why: &str| {
                Refusal::new(
                    RefusalKind::BadIdentifier,
                    format!("header {} {why}", at.header),
                )
            };
            let text = single(headers, &at.header)?.ok_or_else(|| bad("is missing"))?;
            let id = at
                .form
                .normalise(text)
                .ok_or_else(|| bad("is not an identifier in this scheme's form"))?;
            self.check_delimiter(&id).map_err(|()| {
                bad("contains what separates it from the rest of the signed message")
            })?;
            found.id = Some(id);
        }
        Ok(found)
    }

    /// An identifier with the delimiter in it could be read as a shorter one and more of what follows.
    pub(super) fn check_delimiter(&self, id: &str) -> Result<(), ()> {
        let ambiguous = self.template.windows(2).any(|pair| match pair {
            [Part::Id, Part::Literal(delimiter)] => id.contains(&**delimiter),
            _ => false,
        });
        if ambiguous { Err(()) } else { Ok(()) }
    }

    fn verify(
        &self,
        found: &Found,
        request: &RequestView<'_>,
        secrets: &SecretSet,
        now: Timestamp,
        tolerance: &Tolerance,
    ) -> Result<Verified, Refusal> {
        let from_body = match &self.at {
            SignatureAt::Json(path) => {
                let missing = || {
                    Refusal::new(
                        RefusalKind::MissingSignature,
                        format!("the body has no text at {path}"),
                    )
                };
                let value = body_text(request.body, path)?.ok_or_else(missing)?;
                let mut tags = Tags::new();
                candidates::scan(self, &[&value], &mut tags)?;
                Some(tags)
            }
            _ => None,
        };
        let tags = from_body.as_ref().unwrap_or(&found.tags);
        let (mut by, mut outside) = (None, None);
        let most = if broken::is(Variant::FirstSecret) {
            1
        } else {
            usize::MAX
        };
        for secret in secrets.iter().take(most) {
            let feed = |sink: &mut Sink<'_>| self.message(found, request, sink);
            if mac::any_matches(secret, self.algorithm, feed, tags)? {
                if secret.counts_at(now) {
                    by = Some(secret);
                    break;
                }
                outside = Some(secret);
            }
        }
        let secret = by.ok_or_else(|| match outside {
            Some(secret) => outside_window(secret, now),
            None => no_match(tags.len(), secrets),
        })?;
        let mut signed_at = found.signed_at;
        if let Some((TimestampAt::Json(path), unit)) = &self.timestamp {
            let missing = || {
                Refusal::new(
                    RefusalKind::MissingTimestamp,
                    format!("the body has no time at {path}"),
                )
            };
            let time =
                SignedTime::parse(*unit, &body_text(request.body, path)?.ok_or_else(missing)?)?;
            time.check(now, tolerance)?;
            signed_at = Some(time.at);
        }
        Ok(Verified {
            secret: secret.clone(),
            signed_at,
            id: found.id.clone(),
        })
    }

    /// Gives the signed message in its parts; nothing is copied.
    pub(super) fn message(
        &self,
        found: &Found,
        request: &RequestView<'_>,
        sink: &mut Sink<'_>,
    ) -> Result<(), Refusal> {
        for part in &self.template {
            match part {
                Part::Literal(text) => sink(text.as_bytes()),
                Part::Id => sink(found.id.as_deref().unwrap_or_default().as_bytes()),
                Part::Timestamp => sink(found.timestamp.as_deref().unwrap_or_default()),
                Part::Body => sink(request.body),
                Part::Url => match request.url {
                    Some(url) if !url.is_empty() => sink(url.as_bytes()),
                    _ => {
                        let detail = "the scheme signs the URL as the producer has it, and the source has none configured";
                        return Err(Refusal::new(RefusalKind::NoUrl, detail));
                    }
                },
                Part::Method => sink(request.method.as_str().as_bytes()),
                Part::Header(name) => {
                    let missing = || {
                        Refusal::new(
                            RefusalKind::BadIdentifier,
                            format!("signed header {name} is missing"),
                        )
                    };
                    let value = single(request.headers, name)?.ok_or_else(missing)?;
                    sink(value.as_bytes());
                }
                Part::Json(path) => {
                    let missing = || {
                        Refusal::new(
                            RefusalKind::UnreadableBody,
                            format!("the body has no signed text at {path}"),
                        )
                    };
                    let text = body_text(request.body, path)?.ok_or_else(missing)?;
                    sink(text.as_bytes());
                }
                Part::SortedForm => {
                    let fields: BTreeSet<_> = form_urlencoded::parse(request.body).collect();
                    for (name, value) in fields {
                        sink(name.as_bytes());
                        sink(value.as_bytes());
                    }
                }
            }
        }
        Ok(())
    }
}

fn outside_window(secret: &Secret, now: Timestamp) -> Refusal {
    let detail = match secret.window() {
        (Some(from), _) if now < from => format!("does not count before {from:?}"),
        (_, Some(until)) => format!("does not count after {until:?}"),
        _ => "does not count".to_owned(),
    };
    let label = secret.label();
    let detail = format!("a signature is by the secret {label}, and that {detail}");
    Refusal::new(RefusalKind::OutsideWindow, detail)
}

fn no_match(candidates: usize, secrets: &SecretSet) -> Refusal {
    let labels: Vec<_> = secrets.iter().map(Secret::label).collect();
    let detail = format!(
        "none of {candidates} signature(s) is by an active secret ({}): another secret, or a body that was changed on its way",
        labels.join(", ")
    );
    Refusal::new(RefusalKind::NoMatch, detail)
}

/// A header that must be single.
pub(super) fn single<'h>(
    headers: &'h HeaderMap,
    name: &HeaderName,
) -> Result<Option<&'h str>, Refusal> {
    let mut values = headers.get_all(name).iter();
    let Some(value) = values.next() else {
        return Ok(None);
    };
    if values.next().is_some() {
        return Err(Refusal::new(
            RefusalKind::RepeatedHeader,
            format!("header {name} is there more than once"),
        ));
    }
    ascii(name, value).map(Some)
}

pub(super) fn ascii<'h>(
    name: &HeaderName,
    value: &'h http::HeaderValue,
) -> Result<&'h str, Refusal> {
    let bytes = value.as_bytes();
    // Control characters, which a header's value cannot have, aside: what `to_str` does, at a fraction of its time.
    let text = std::str::from_utf8(bytes).ok().filter(|_| bytes.is_ascii());
    text.ok_or_else(|| Refusal::new(RefusalKind::NotAscii, format!("header {name} is not ASCII")))
}

/// The text of a string, or the digits of a number.
fn body_text<'b>(body: &'b [u8], path: &JsonPath) -> Result<Option<Cow<'b, str>>, Refusal> {
    let unreadable = |error: json::JsonError| {
        let detail = match error {
            json::JsonError::NotAnObject(why) => why,
            json::JsonError::Repeated => format!("{path} is in the body more than once"),
        };
        Refusal::new(RefusalKind::UnreadableBody, detail)
    };
    let members = Members::read(body, [path.first()]).map_err(unreadable)?;
    let Some(value) = members.at(path).map_err(unreadable)? else {
        return Ok(None);
    };
    let is_number = value
        .get()
        .starts_with(|first: char| first == '-' || first.is_ascii_digit());
    Ok(if is_number {
        Some(Cow::Borrowed(value.get()))
    } else {
        json::text(value)
    })
}
