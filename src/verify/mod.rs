//! Signatures: the door of an inbox, usable by itself.
//!
//! Verification is a pure function of scheme, secrets, request and time: no runtime, no database, no I/O. Only two things
//! here need a tokio runtime, and still no database: [`VerifyLayer`], which verifies in front of any tower service, and
//! [`Secrets`] that come from a file or a provider.
//!
//! A [`Scheme`] says what a producer signs and where it writes that; [`Secrets`] holds the one or two active keys and
//! rotates them at run time; [`Scheme::check_head`] refuses what need not be read, and [`Head::verify`] proves the rest.
//!
//! ```
//! use http::{HeaderMap, Method, Uri};
//! use tower_inbox::clock::Timestamp;
//! use tower_inbox::preset::Preset;
//! use tower_inbox::verify::{RequestView, Secret, Secrets, Signer, Tolerance};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let scheme = Preset::KUDOS.scheme();
//! let secrets = Secrets::new([Secret::text("new")?, Secret::text("old")?])?;
//! let now = Timestamp::from_secs(1_700_000_000);
//! let body = br#"{"event_id":"evt_1","event_type":"invoice.paid","data":{"amount":5}}"#;
//!
//! // What the producer sends, still with the old secret.
//! let headers: HeaderMap = Signer::new(&scheme, [Secret::text("old")?])?.sign(now, None, body)?.into_iter().collect();
//!
//! let uri = Uri::from_static("/");
//! let request = RequestView::new(&Method::POST, &uri, &headers, body);
//! let verified = scheme.verify(&request, &*secrets.snapshot()?, now, &Tolerance::default())?;
//! assert_eq!(verified.label(), "secret-2");
//! # assert!(Preset::KUDOS.mapping().read(&verified, &headers, body).is_ok());
//! # Ok(())
//! # }
//! ```

mod candidates;
mod custom;
#[cfg(feature = "ed25519")]
mod ed25519;
mod head;
mod id;
pub(crate) mod json;
mod layer;
mod mac;
mod refusal;
mod rfc9421;
mod scheme;
mod secret;
mod secrets;
mod sfv;
mod sign;
pub(crate) mod time;

use http::{HeaderMap, Method, Uri};

pub use self::custom::{Accepted, CustomScheme};
#[cfg(feature = "ed25519")]
pub use self::ed25519::StandardEd25519;
pub use self::head::Head;
pub use self::id::IdForm;
pub use self::json::JsonPath;
pub use self::layer::{VerifyFuture, VerifyLayer, VerifyService};
pub use self::mac::{Algorithm, Encoding};
pub use self::refusal::{Refusal, RefusalKind};
pub use self::rfc9421::Rfc9421;
pub use self::scheme::{
    IdAt, Part, Pick, Scheme, SchemeBuilder, SchemeError, SignatureAt, TimestampAt,
};
pub use self::secret::{KeyEncoding, Secret, SecretError};
pub use self::secrets::{
    ActiveSecret, EnvError, ProvideFuture, Refresh, SecretSet, Secrets, SecretsProvider,
};
pub use self::sign::{SignError, Signer};
pub use self::time::{Tolerance, Unit};

use crate::clock::Timestamp;

/// A request as it is verified.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct RequestView<'r> {
    /// The method.
    pub method: &'r Method,
    /// The request target as received. No scheme takes a URL from it.
    pub uri: &'r Uri,
    /// The headers as received.
    pub headers: &'r HeaderMap,
    /// The exact raw body.
    pub body: &'r [u8],
    /// The URL that is configured at the producer, for schemes that sign it. Configured here too, never guessed from
    /// `Host` or `X-Forwarded-*`, which anybody can set.
    pub url: Option<&'r str>,
}

impl<'r> RequestView<'r> {
    /// A request, without a configured URL.
    pub fn new(method: &'r Method, uri: &'r Uri, headers: &'r HeaderMap, body: &'r [u8]) -> Self {
        Self {
            method,
            uri,
            headers,
            body,
            url: None,
        }
    }

    /// With the URL that is configured at the producer.
    #[must_use]
    pub fn with_url(mut self, url: Option<&'r str>) -> Self {
        self.url = url;
        self
    }
}

/// The proof that a delivery was signed by an active secret. Only [`Head::verify`] makes one.
#[derive(Clone, Debug)]
pub struct Verified {
    secret: Secret,
    signed_at: Option<Timestamp>,
    id: Option<String>,
}

impl Verified {
    /// The label of the secret that verified: shows when an old one has gone quiet.
    pub fn label(&self) -> &str {
        self.secret.label()
    }

    /// The signed time, where the scheme has one.
    pub fn signed_at(&self) -> Option<Timestamp> {
        self.signed_at
    }

    /// The identifier that was signed beside the body, where the scheme has one.
    pub fn signed_id(&self) -> Option<&str> {
        self.id.as_deref()
    }

    /// For handshakes in which the producer asks for a proof of the secret.
    pub(crate) fn secret(&self) -> &Secret {
        &self.secret
    }
}

#[cfg(test)]
mod tests;
