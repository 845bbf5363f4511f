//! Signing, for senders, tests and reverse channels.

use std::fmt;

use http::{HeaderMap, HeaderName, HeaderValue, Method, Uri};

use super::RequestView;
use super::head::{Found, ShortText};
use super::scheme::{Hmac, Kind, Pick, Scheme, SignatureAt, TimestampAt};
use super::secret::Secret;
use super::time;
use crate::clock::Timestamp;

/// Signs deliveries for an HMAC scheme, with one secret, or with two during a rotation.
#[derive(Clone, Debug)]
pub struct Signer {
    scheme: Scheme,
    secrets: Vec<Secret>,
    method: Method,
    url: Option<String>,
}

/// Why nothing could be signed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SignError {
    /// The scheme is none that headers alone can sign: custom code, or a signature inside the body.
    Unsupported,
    /// No secret, or more than the scheme has places for signatures.
    Secrets,
    /// The scheme signs an identifier; none was given, or it is not in the scheme's form.
    Id,
    /// The scheme signs a URL, and none was given; or a part of the body that is not there.
    Message,
}

impl fmt::Display for SignError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Unsupported => "this scheme cannot be signed for by headers alone",
            Self::Secrets => "no secret, or more secrets than the scheme has places for signatures",
            Self::Id => "the scheme signs an identifier, and none in its form was given",
            Self::Message => {
                "the signed message needs a URL or a part of the body that is not there"
            }
        })
    }
}

impl std::error::Error for SignError {}

impl Signer {
    /// A signer for `POST` requests. With two secrets it emits both signatures, in their order.
    ///
    /// # Errors
    /// [`SignError::Unsupported`], or [`SignError::Secrets`] for none, or for more than the scheme can carry.
    pub fn new(
        scheme: &Scheme,
        secrets: impl IntoIterator<Item = Secret>,
    ) -> Result<Self, SignError> {
        let secrets: Vec<_> = secrets.into_iter().collect();
        let Kind::Hmac(hmac) = &scheme.kind else {
            return Err(SignError::Unsupported);
        };
        let places = match &hmac.at {
            SignatureAt::Json(_) => return Err(SignError::Unsupported),
            SignatureAt::Header(_) if hmac.split.is_none() => 1,
            SignatureAt::AnyHeader(names) => names.len(),
            SignatureAt::NumberedHeader(_)
            | SignatureAt::RepeatableHeader(_)
            | SignatureAt::Header(_) => 16,
        };
        if secrets.is_empty() || secrets.len() > places {
            return Err(SignError::Secrets);
        }
        Ok(Self {
            scheme: scheme.clone(),
            secrets,
            method: Method::POST,
            url: None,
        })
    }

    /// The URL, for schemes that sign it.
    #[must_use]
    pub fn with_url(mut self, url: impl Into<String>) -> Self {
        self.url = Some(url.into());
        self
    }

    /// Another method than `POST`, for schemes that sign it.
    #[must_use]
    pub fn with_method(mut self, method: Method) -> Self {
        self.method = method;
        self
    }

    /// The headers to send with this body: identifier and timestamp where headers have them, and the signatures.
    /// A scheme that signs no identifier ignores `id`.
    ///
    /// # Errors
    /// [`SignError::Id`], [`SignError::Message`].
    pub fn sign(
        &self,
        now: Timestamp,
        id: Option<&str>,
        body: &[u8],
    ) -> Result<Vec<(HeaderName, HeaderValue)>, SignError> {
        let Kind::Hmac(hmac) = &self.scheme.kind else {
            return Err(SignError::Unsupported);
        };
        let mut headers = Vec::new();
        let mut found = Found::default();
        let mut timestamp = None;
        if let Some(at) = &hmac.id {
            let given = id.ok_or(SignError::Id)?;
            let normal = at.form.normalise(given).ok_or(SignError::Id)?;
            hmac.check_delimiter(&normal).map_err(|()| SignError::Id)?;
            found.id = Some(normal);
            headers.push((
                at.header.clone(),
                HeaderValue::from_str(given).map_err(|_| SignError::Id)?,
            ));
        }
        if let Some((at, unit)) = &hmac.timestamp {
            let text = time::format(*unit, now);
            if let TimestampAt::Header(name) = at {
                headers.push((name.clone(), value(&text)));
            }
            found.timestamp = Some(ShortText::from_slice(text.as_bytes()));
            timestamp = Some(text);
        }
        let request = RequestView {
            method: &self.method,
            uri: &Uri::from_static("/"),
            headers: &HeaderMap::new(),
            body,
            url: self.url.as_deref(),
        };
        let mut message = Vec::with_capacity(body.len() + 128);
        hmac.message(&found, &request, &mut |part| {
            message.extend_from_slice(part)
        })
        .map_err(|_| SignError::Message)?;
        let items: Vec<_> = self
            .secrets
            .iter()
            .map(|secret| item(hmac, &secret.mac(hmac.algorithm, &[&message])))
            .collect();
        place(hmac, timestamp.as_deref(), items, &mut headers)?;
        Ok(headers)
    }
}

fn item(hmac: &Hmac, mac: &[u8]) -> String {
    let encoded = hmac.encoding.encode(mac);
    match &hmac.pick {
        Pick::Bare => encoded,
        Pick::Prefix(prefix) | Pick::OptionalPrefix(prefix) => format!("{prefix}{encoded}"),
        Pick::Field { separator, name } => format!("{name}{separator}{encoded}"),
    }
}

fn place(
    hmac: &Hmac,
    timestamp: Option<&str>,
    mut items: Vec<String>,
    headers: &mut Vec<(HeaderName, HeaderValue)>,
) -> Result<(), SignError> {
    match &hmac.at {
        SignatureAt::Header(name) => {
            if let (Some((TimestampAt::Field(field), _)), Pick::Field { separator, .. }) =
                (&hmac.timestamp, &hmac.pick)
            {
                items.insert(
                    0,
                    format!("{field}{separator}{}", timestamp.unwrap_or_default()),
                );
            }
            let joint = hmac.split.map(String::from).unwrap_or_default();
            headers.push((name.clone(), value(&items.join(&joint))));
        }
        SignatureAt::RepeatableHeader(name) => {
            headers.extend(items.iter().map(|item| (name.clone(), value(item))));
        }
        SignatureAt::AnyHeader(names) => {
            headers.extend(
                names
                    .iter()
                    .cloned()
                    .zip(items.iter().map(|item| value(item))),
            );
        }
        SignatureAt::NumberedHeader(prefix) => {
            for (number, item) in (1..).zip(&items) {
                let name = HeaderName::try_from(format!("{prefix}{number}"))
                    .map_err(|_| SignError::Unsupported)?;
                headers.push((name, value(item)));
            }
        }
        SignatureAt::Json(_) => return Err(SignError::Unsupported),
    }
    Ok(())
}

/// Encoded MACs, digits and a scheme's own punctuation are always fit for a header.
fn value(text: &str) -> HeaderValue {
    HeaderValue::from_str(text).unwrap_or_else(|_| HeaderValue::from_static(""))
}
