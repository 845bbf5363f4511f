//! One signing secret: how its text becomes key bytes, its label, and its prepared MAC keys.

use std::convert::Infallible;
use std::fmt;
use std::sync::{Arc, OnceLock};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use hmac::{Hmac, KeyInit as _};
use sha1::Sha1;
use sha2::{Sha256, Sha512};
use zeroize::{Zeroize as _, Zeroizing};

use super::mac::{self, Algorithm, Sink, Tag};
use crate::clock::Timestamp;

/// How the text of a secret becomes the bytes of the key.
///
/// It belongs to the secret and not to the scheme: producers share a wire format and derive the key differently.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum KeyEncoding {
    /// The bytes of the text as they are.
    #[default]
    Text,
    /// Standard base64, after the prefix (`whsec_` in Standard Webhooks) if the text has it.
    Base64 {
        /// What to cut off before decoding.
        prefix: &'static str,
    },
    /// Hexadecimal of either case.
    Hex,
}

impl KeyEncoding {
    /// Standard Webhooks: `whsec_` and base64.
    pub const WHSEC: Self = Self::Base64 { prefix: "whsec_" };
}

/// Why a secret, or a set of them, was refused. Never contains the secret.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SecretError {
    /// Empty, or decoding to nothing.
    Empty,
    /// Not valid base64 (standard alphabet, padded, canonical).
    NotBase64,
    /// Not valid hexadecimal.
    NotHex,
    /// Two secrets are active; revoke one first.
    TooMany,
    /// No secret at all, or the last one was to be revoked.
    None,
    /// No active secret has this label.
    UnknownLabel,
    /// An active secret has this label already.
    DuplicateLabel,
    /// An active secret has the same key.
    DuplicateKey,
    /// A whole set was given, and it has no secret.
    NoneGiven,
    /// A whole set was given, and it has this many secrets.
    TooManyGiven(usize),
    /// A whole set was given, and its two secrets have the same key.
    SameKeyGiven,
    /// The secrets come from a file or a provider, which is the truth: change them there.
    KeptElsewhere,
    /// The file or the provider has not given any secret yet. Nothing can be decided without: answer 503, not 401.
    NotAvailable,
}

impl fmt::Display for SecretError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::TooManyGiven(count) => {
                return write!(f, "{count} secrets given: give one or two, newest first");
            }
            Self::Empty => "the secret is empty: anybody could sign with it",
            Self::NotBase64 => "the secret is not base64 (standard alphabet with padding)",
            Self::NotHex => "the secret is not hexadecimal",
            Self::TooMany => "at most two secrets can be active: revoke one first",
            Self::None => "at least one secret must stay active",
            Self::UnknownLabel => "no active secret has this label",
            Self::DuplicateLabel => "an active secret has this label already",
            Self::DuplicateKey => "this secret is active already",
            Self::NoneGiven => "give one or two secrets, newest first",
            Self::SameKeyGiven => "the two secrets are the same",
            Self::KeptElsewhere => {
                "the file or the provider that these secrets come from is the truth: change them there"
            }
            Self::NotAvailable => "the secrets are not available yet",
        })
    }
}

impl std::error::Error for SecretError {}

/// One signing secret. Cheap to clone; wiped from memory when the last clone is dropped; never printed.
#[derive(Clone)]
pub struct Secret {
    inner: Arc<Inner>,
}

#[derive(Clone)]
struct Inner {
    label: Option<Arc<str>>,
    key: Arc<Key>,
    not_before: Option<Timestamp>,
    not_after: Option<Timestamp>,
}

/// Key bytes, and the MAC state after the key for each algorithm in use: deriving it once saves two of the
/// compressions of each short message.
struct Key {
    bytes: Zeroizing<Vec<u8>>,
    sha256: OnceLock<Hmac<Sha256>>,
    sha512: OnceLock<Hmac<Sha512>>,
    sha1: OnceLock<Hmac<Sha1>>,
}

impl Secret {
    /// The bytes of `text` as they are: what most producers mean by a secret.
    ///
    /// # Errors
    /// [`SecretError::Empty`].
    pub fn text(text: impl Into<String>) -> Result<Self, SecretError> {
        Self::bytes(text.into().into_bytes())
    }

    /// Standard Webhooks: `whsec_` followed by base64; the prefix may be missing.
    ///
    /// # Errors
    /// [`SecretError::NotBase64`], [`SecretError::Empty`] (also for the prefix alone).
    pub fn whsec(text: impl Into<String>) -> Result<Self, SecretError> {
        Self::decode(KeyEncoding::WHSEC, text)
    }

    /// Hexadecimal of either case.
    ///
    /// # Errors
    /// [`SecretError::NotHex`], [`SecretError::Empty`].
    pub fn hex(text: impl Into<String>) -> Result<Self, SecretError> {
        Self::decode(KeyEncoding::Hex, text)
    }

    /// Decodes `text` in the given encoding. The text is wiped.
    ///
    /// # Errors
    /// As the encoding has it; [`SecretError::Empty`] when nothing is left after decoding.
    pub fn decode(encoding: KeyEncoding, text: impl Into<String>) -> Result<Self, SecretError> {
        let text = Zeroizing::new(text.into());
        match encoding {
            KeyEncoding::Text => Self::bytes(text.as_bytes().to_vec()),
            KeyEncoding::Base64 { prefix } => {
                let encoded = text.strip_prefix(prefix).unwrap_or(&text);
                Self::bytes(
                    STANDARD
                        .decode(encoded)
                        .map_err(|_| SecretError::NotBase64)?,
                )
            }
            KeyEncoding::Hex => {
                Self::bytes(hex::decode(text.as_bytes()).map_err(|_| SecretError::NotHex)?)
            }
        }
    }

    /// A key that is at hand as bytes.
    ///
    /// # Errors
    /// [`SecretError::Empty`].
    pub fn bytes(bytes: Vec<u8>) -> Result<Self, SecretError> {
        if bytes.is_empty() {
            return Err(SecretError::Empty);
        }
        let key = Key {
            bytes: Zeroizing::new(bytes),
            sha256: OnceLock::new(),
            sha512: OnceLock::new(),
            sha1: OnceLock::new(),
        };
        let inner = Inner {
            label: None,
            key: Arc::new(key),
            not_before: None,
            not_after: None,
        };
        Ok(Self {
            inner: Arc::new(inner),
        })
    }

    /// Names the secret for logs and metrics. Without a name, [`Secrets`](super::Secrets) gives it a number.
    #[must_use]
    pub fn labelled(mut self, label: impl Into<Arc<str>>) -> Self {
        Arc::make_mut(&mut self.inner).label = Some(label.into());
        self
    }

    /// Before this time a signature by it does not count. Default: it counts from the beginning.
    #[must_use]
    pub fn not_before(mut self, from: Timestamp) -> Self {
        Arc::make_mut(&mut self.inner).not_before = Some(from);
        self
    }

    /// After this time a signature by it does not count. Default: it counts until it is revoked.
    #[must_use]
    pub fn not_after(mut self, until: Timestamp) -> Self {
        Arc::make_mut(&mut self.inner).not_after = Some(until);
        self
    }

    /// The times between which it counts, both included.
    pub fn window(&self) -> (Option<Timestamp>, Option<Timestamp>) {
        (self.inner.not_before, self.inner.not_after)
    }

    /// Whether a signature by it counts at this time.
    pub fn counts_at(&self, now: Timestamp) -> bool {
        let (from, until) = self.window();
        from.is_none_or(|from| from <= now) && until.is_none_or(|until| now <= until)
    }

    /// The label; `unnamed` if it has none yet.
    pub fn label(&self) -> &str {
        self.inner.label.as_deref().unwrap_or("unnamed")
    }

    /// The MAC of the concatenated `parts`, for senders and for answers that prove the secret.
    pub fn mac(&self, algorithm: Algorithm, parts: &[&[u8]]) -> Vec<u8> {
        use hmac::Mac as _;
        macro_rules! mac {
            ($key:expr) => {{
                let mut mac = $key.clone();
                parts.iter().for_each(|part| mac.update(part));
                mac.finalize().as_bytes().to_vec()
            }};
        }
        match algorithm {
            Algorithm::HmacSha256 => mac!(self.sha256()),
            Algorithm::HmacSha512 => mac!(self.sha512()),
            Algorithm::HmacSha1Legacy => mac!(self.sha1()),
        }
    }

    /// Whether `mac` is the MAC of the concatenated `parts`, compared in constant time; a MAC of another length never is.
    pub fn verifies(&self, algorithm: Algorithm, parts: &[&[u8]], mac: &[u8]) -> bool {
        let Some(tag) = Tag::new(algorithm, mac) else {
            return false;
        };
        let feed = |sink: &mut Sink<'_>| {
            parts.iter().for_each(|part| sink(part));
            Ok::<_, Infallible>(())
        };
        mac::any_matches(self, algorithm, feed, &[tag]).unwrap_or_else(|never| match never {})
    }

    /// The raw key, for schemes that are no HMAC (a public key, a token). Do not log it.
    pub fn expose(&self) -> &[u8] {
        &self.inner.key.bytes
    }

    pub(super) fn sha256(&self) -> &Hmac<Sha256> {
        self.inner.key.sha256.get_or_init(|| {
            Hmac::new_from_slice(self.expose()).expect("HMAC takes keys of any length")
        })
    }

    pub(super) fn sha512(&self) -> &Hmac<Sha512> {
        self.inner.key.sha512.get_or_init(|| {
            Hmac::new_from_slice(self.expose()).expect("HMAC takes keys of any length")
        })
    }

    pub(super) fn sha1(&self) -> &Hmac<Sha1> {
        self.inner.key.sha1.get_or_init(|| {
            Hmac::new_from_slice(self.expose()).expect("HMAC takes keys of any length")
        })
    }

    /// The same key as this, whose prepared states are kept, with the window of `other`, and its label if it has one.
    pub(super) fn with_settings_of(&self, other: &Self) -> Self {
        let mut inner = (*other.inner).clone();
        inner.key = Arc::clone(&self.inner.key);
        inner.label = inner.label.or_else(|| self.inner.label.clone());
        Self {
            inner: Arc::new(inner),
        }
    }

    pub(super) fn has_label(&self) -> bool {
        self.inner.label.is_some()
    }

    pub(super) fn same_key(&self, other: &Self) -> bool {
        *self.inner.key.bytes == *other.inner.key.bytes
    }

    pub(super) fn shared_label(&self) -> Arc<str> {
        self.inner
            .label
            .clone()
            .unwrap_or_else(|| Arc::from("unnamed"))
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Secret")
            .field("label", &self.label())
            .finish_non_exhaustive()
    }
}

impl Drop for Key {
    fn drop(&mut self) {
        // `Zeroizing` does it too; said here so that nobody turns the field into a plain `Vec`.
        self.bytes.zeroize();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// §6.3: empty secrets are refused when they are built, however they are spelled.
    #[test]
    fn nothing_is_no_secret() {
        assert_eq!(Secret::text("").unwrap_err(), SecretError::Empty);
        assert_eq!(Secret::whsec("whsec_").unwrap_err(), SecretError::Empty);
        assert_eq!(Secret::whsec("").unwrap_err(), SecretError::Empty);
        assert_eq!(Secret::hex("").unwrap_err(), SecretError::Empty);
    }

    /// §6.3: what does not decode is refused, not used as text.
    #[test]
    fn undecodable_secrets_are_refused() {
        for text in ["whsec_!!!!", "whsec_QQ", "whsec_QR==", "not base64 "] {
            assert_eq!(
                Secret::whsec(text).unwrap_err(),
                SecretError::NotBase64,
                "{text}"
            );
        }
        assert_eq!(Secret::hex("abc").unwrap_err(), SecretError::NotHex);
        assert_eq!(Secret::hex("zz").unwrap_err(), SecretError::NotHex);
    }

    /// §6.5: `Debug` shows the label and nothing else.
    #[test]
    fn debug_prints_no_secret() {
        let secret = Secret::text("hunter2").unwrap().labelled("new");
        assert_eq!(format!("{secret:?}"), r#"Secret { label: "new", .. }"#);
    }

    /// §2.2. The comparison never covers less than the whole MAC.
    #[test]
    fn truncated_macs_do_not_verify() {
        let secret = Secret::text("s").unwrap();
        let mac = secret.mac(Algorithm::HmacSha256, &[b"a", b"b"]);
        assert!(secret.verifies(Algorithm::HmacSha256, &[b"ab"], &mac));
        for len in 0..mac.len() {
            assert!(!secret.verifies(Algorithm::HmacSha256, &[b"ab"], &mac[..len]));
        }
        assert!(!secret.verifies(
            Algorithm::HmacSha256,
            &[b"ab"],
            &[mac.clone(), vec![0]].concat()
        ));
    }
}
