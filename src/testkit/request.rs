//! One delivery, as its producer sends it.

use bytes::Bytes;
use http::{HeaderName, HeaderValue, Request};

use super::event::Event;
use super::write::{self, Attempt, Draft};
use crate::clock::Timestamp;
use crate::preset::Preset;
use crate::verify::{Secret, Signer};

/// A signed request, until it is sent: made by [`Event::request`]. It becomes a `Request` of any body that is made from
/// bytes, axum's among them, by `into()`.
#[derive(Clone, Debug)]
#[must_use]
pub struct SignedRequest {
    event: Event,
    preset: Preset,
    secrets: Secrets,
    path: Option<String>,
    at: Option<Timestamp>,
    url: Option<String>,
    attempt: u32,
    damage: Damage,
    headers: Vec<(HeaderName, HeaderValue)>,
}

#[derive(Clone)]
struct Secrets(Vec<String>);

impl std::fmt::Debug for Secrets {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} secrets", self.0.len())
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Damage {
    None,
    Unsigned,
    Tampered,
}

impl SignedRequest {
    pub(super) fn new(event: Event, preset: Preset, secret: String) -> Self {
        Self {
            event,
            preset,
            secrets: Secrets(vec![secret]),
            path: None,
            at: None,
            url: None,
            attempt: 1,
            damage: Damage::None,
            headers: Vec::new(),
        }
    }

    /// Where it is sent: a path, with a query if there is one. Without:
    /// [the kit's](super::Kit::to), or `/webhooks/<name of the preset>`.
    pub fn to(mut self, path: impl Into<String>) -> Self {
        self.path = Some(path.into());
        self
    }

    /// When it is signed: one that is stale, or of a clock that is ahead. Without: now.
    pub fn at(mut self, time: Timestamp) -> Self {
        self.at = Some(time);
        self
    }

    /// Signed by each of these, in this order, as during a rotation.
    pub fn signed_by<S: Into<String>>(mut self, secrets: impl IntoIterator<Item = S>) -> Self {
        self.secrets = Secrets(secrets.into_iter().map(Into::into).collect());
        self
    }

    /// Without a signature.
    pub fn unsigned(mut self) -> Self {
        self.damage = Damage::Unsigned;
        self
    }

    /// With one byte more than was signed: a blank at the end of the body, which no JSON parser would notice.
    pub fn tampered(mut self) -> Self {
        self.damage = Damage::Tampered;
        self
    }

    /// For a producer that signs the URL (`square`): the one that [`Source::url`](crate::Source::url) has too.
    pub fn url(mut self, url: impl Into<String>) -> Self {
        self.url = Some(url.into());
        self
    }

    /// Which attempt it is, from 1; later ones say so in their headers, where the producer does.
    pub fn attempt(mut self, number: u32) -> Self {
        self.attempt = number;
        self
    }

    /// With this header, instead of what the producer would have there.
    ///
    /// # Panics
    /// If it is no name, or no value, of a header.
    pub fn header(mut self, name: &str, value: &str) -> Self {
        match (name.parse(), value.parse()) {
            (Ok(name), Ok(value)) => self.headers.push((name, value)),
            _ => panic!("not a header: {name}: {value}"),
        }
        self
    }

    /// The event that it delivers.
    pub fn event(&self) -> &Event {
        &self.event
    }

    /// The request.
    ///
    /// # Panics
    /// If it cannot be signed, with the reason: a secret that is not in the producer's form, more secrets than it has
    /// places for, an id that cannot be signed, or no URL where one is signed.
    #[track_caller]
    pub fn build<B: From<Bytes>>(&self) -> Request<B> {
        let at = self.at.unwrap_or_else(Timestamp::now);
        let attempt = Attempt {
            number: self.attempt,
            first_sent_at: at,
            at,
        };
        self.build_as(attempt).map(B::from)
    }

    /// To this path, unless it has one of its own.
    pub(super) fn or_to(mut self, path: Option<String>) -> Self {
        self.path = self.path.or(path);
        self
    }

    pub(super) fn path(&self) -> String {
        match &self.path {
            Some(path) => path.clone(),
            None => format!("/webhooks/{}", self.preset.name),
        }
    }

    pub(super) fn number(&self) -> u32 {
        self.attempt
    }

    pub(super) fn signed_at(&self) -> Option<Timestamp> {
        self.at
    }

    #[track_caller]
    pub(super) fn build_as(&self, attempt: Attempt) -> Request<Bytes> {
        let Draft {
            event_id,
            mut headers,
            mut body,
        } = write::draft(&self.event, &self.preset, attempt);
        let signed = self.sign(&event_id, &body, attempt.at);
        for (name, _) in &signed {
            headers.remove(name);
        }
        headers.extend(signed);
        match self.damage {
            Damage::None => {}
            Damage::Unsigned => {
                for name in self.preset.scheme().signature_headers(&headers) {
                    headers.remove(name);
                }
            }
            Damage::Tampered => body = [body.as_ref(), b" "].concat().into(),
        }
        for (name, value) in &self.headers {
            headers.insert(name.clone(), value.clone());
        }
        let path = self.path();
        let Ok(mut request) = Request::post(path.as_str()).body(body) else {
            panic!("{path:?} is no path")
        };
        *request.headers_mut() = headers;
        request
    }

    #[track_caller]
    fn sign(&self, id: &str, body: &[u8], at: Timestamp) -> Vec<(HeaderName, HeaderValue)> {
        let (event, name) = (&self.event.id, self.preset.name);
        let scheme = self.preset.scheme();
        let secrets = self.secrets.0.iter().map(|text| {
            Secret::decode(self.preset.key, text.as_str()).unwrap_or_else(|error| {
                panic!(
                    "{event} cannot be signed, since a secret is not in the form of {name}: {error}"
                )
            })
        });
        let url = match &self.url {
            None if scheme.needs_url() => panic!(
                "{event} cannot be signed without the URL that {name} was given: `.url(\"https://…\")`, as `Source::url` \
                 has it"
            ),
            url => url.clone().unwrap_or_default(),
        };
        let signed = Signer::new(&scheme, secrets)
            .and_then(|signer| signer.with_url(url).sign(at, Some(id), body));
        signed.unwrap_or_else(|error| panic!("{event} cannot be signed for {name}: {error}"))
    }
}

impl<B: From<Bytes>> From<SignedRequest> for Request<B> {
    #[track_caller]
    fn from(request: SignedRequest) -> Self {
        request.build()
    }
}
