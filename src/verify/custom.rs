//! Schemes that data cannot describe.

use std::fmt;

use http::{HeaderMap, HeaderName};
use sha2::{Digest as _, Sha256};

use super::refusal::Refusal;
use super::secret::Secret;
use super::secrets::SecretSet;
use super::time::Tolerance;
use super::{RequestView, Verified};
use crate::clock::Timestamp;

/// A signature scheme in code, for what an HMAC over a template cannot say: public keys, certificates, canonical forms.
///
/// It decides alone what passes, so it carries the duties of this module: exact lengths, comparison in constant time
/// ([`Secret::verifies`]), every candidate (16 at most) by every active secret, both limits of time, and refusals
/// without secrets or computed MACs.
pub trait CustomScheme: fmt::Debug + Send + Sync + 'static {
    /// The headers that carry signatures.
    fn signature_headers(&self) -> &[HeaderName];

    /// Whether the whole body is signed. Default: yes.
    fn covers_body(&self) -> bool {
        true
    }

    /// Whether an identifier beside the body is signed. Default: no.
    fn covers_id(&self) -> bool {
        false
    }

    /// Whether the value of this header is always signed. Default: no.
    fn covers_header(&self, name: &HeaderName) -> bool {
        let _ = name;
        false
    }

    /// Whether a time is signed and checked. Default: no.
    fn has_timestamp(&self) -> bool {
        false
    }

    /// Whether the producer's URL is signed. Default: no.
    fn needs_url(&self) -> bool {
        false
    }

    /// What can be checked before the body is read: the headers' shape and the signed time.
    ///
    /// # Errors
    /// The delivery is refused.
    fn check_head(
        &self,
        headers: &HeaderMap,
        now: Timestamp,
        tolerance: &Tolerance,
    ) -> Result<(), Refusal>;

    /// Checks the whole request.
    ///
    /// # Errors
    /// The delivery is refused.
    fn verify(
        &self,
        request: &RequestView<'_>,
        secrets: &SecretSet,
        now: Timestamp,
        tolerance: &Tolerance,
    ) -> Result<Accepted, Refusal>;

    /// SHA-256 of what is signed, by which a delivery that is sent again is known. Default: of the body.
    fn signed_digest(&self, request: &RequestView<'_>) -> [u8; 32] {
        Sha256::digest(request.body).into()
    }
}

/// What a [`CustomScheme`] found out about a request that it lets pass.
#[derive(Clone, Debug)]
pub struct Accepted {
    secret: Secret,
    signed_at: Option<Timestamp>,
    id: Option<String>,
}

impl Accepted {
    /// Verified by this secret.
    pub fn by(secret: &Secret) -> Self {
        Self {
            secret: secret.clone(),
            signed_at: None,
            id: None,
        }
    }

    /// The signed time, already checked.
    #[must_use]
    pub fn signed_at(mut self, at: Timestamp) -> Self {
        self.signed_at = Some(at);
        self
    }

    /// The signed identifier.
    #[must_use]
    pub fn id(mut self, id: impl Into<String>) -> Self {
        self.id = Some(id.into());
        self
    }

    pub(super) fn into_verified(self) -> Verified {
        Verified {
            secret: self.secret,
            signed_at: self.signed_at,
            id: self.id,
        }
    }
}
