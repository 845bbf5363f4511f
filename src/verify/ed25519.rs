//! Standard Webhooks with a public key: `v1a`.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use ed25519_dalek::{Signature, VerifyingKey};
use http::{HeaderMap, HeaderName};
use sha2::{Digest as _, Sha256};

use super::candidates::MOST;
use super::custom::{Accepted, CustomScheme};
use super::head::single;
use super::refusal::{Refusal, RefusalKind};
use super::scheme::Scheme;
use super::secrets::SecretSet;
use super::time::{SignedTime, Tolerance, Unit};
use super::{KeyEncoding, RequestView, Secret};
use crate::clock::Timestamp;

const ID: HeaderName = HeaderName::from_static("webhook-id");
const TIMESTAMP: HeaderName = HeaderName::from_static("webhook-timestamp");
const SIGNATURE: HeaderName = HeaderName::from_static("webhook-signature");

/// Standard Webhooks `v1a`: ed25519 over `<id>.<timestamp>.<body>`, with the producer's public key (`whpk_…`) in the
/// place of the secret. Symmetric signatures beside it do not count.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct StandardEd25519 {
    headers: Headers,
}

#[derive(Clone, Debug)]
struct Headers([HeaderName; 1]);

impl Default for Headers {
    fn default() -> Self {
        Self([SIGNATURE])
    }
}

struct Parts<'h> {
    id: &'h str,
    timestamp: &'h str,
    signed_at: Timestamp,
    signatures: Vec<Signature>,
}

impl StandardEd25519 {
    /// How the text of its keys becomes bytes: `whpk_` and base64.
    pub const KEY: KeyEncoding = KeyEncoding::Base64 { prefix: "whpk_" };

    /// The scheme.
    pub fn scheme() -> Scheme {
        Scheme::custom("standard-v1a", Self::default())
    }

    /// Whether a secret is a usable public key: to be asked when it is configured.
    pub fn is_key(secret: &Secret) -> bool {
        key(secret).is_some()
    }
}

fn key(secret: &Secret) -> Option<VerifyingKey> {
    // A weak key has messages that many signatures fit.
    let key = VerifyingKey::from_bytes(secret.expose().try_into().ok()?).ok()?;
    (!key.is_weak()).then_some(key)
}

fn parts<'h>(
    headers: &'h HeaderMap,
    now: Timestamp,
    tolerance: &Tolerance,
) -> Result<Parts<'h>, Refusal> {
    let header = |name: &HeaderName, kind| {
        single(headers, name)?
            .filter(|value| !value.is_empty())
            .ok_or_else(|| Refusal::new(kind, format!("no header {name}")))
    };
    let items = header(&SIGNATURE, RefusalKind::MissingSignature)?.split(' ');
    let decode = |text: &str| Signature::from_slice(&STANDARD.decode(text).ok()?).ok();
    let candidates = items
        .filter_map(|item| item.strip_prefix("v1a,"))
        .take(MOST);
    let signatures: Vec<_> = candidates.filter_map(decode).collect();
    if signatures.is_empty() {
        return Err(Refusal::new(
            RefusalKind::MalformedSignature,
            "no usable v1a signature in webhook-signature",
        ));
    }
    let timestamp = header(&TIMESTAMP, RefusalKind::MissingTimestamp)?;
    let time = SignedTime::parse(Unit::Seconds, timestamp)?;
    time.check(now, tolerance)?;
    let id = header(&ID, RefusalKind::BadIdentifier)?;
    if id.contains('.') {
        return Err(Refusal::new(
            RefusalKind::BadIdentifier,
            "webhook-id contains a dot",
        ));
    }
    Ok(Parts {
        id,
        timestamp,
        signed_at: time.at,
        signatures,
    })
}

impl CustomScheme for StandardEd25519 {
    fn signature_headers(&self) -> &[HeaderName] {
        &self.headers.0
    }

    fn covers_id(&self) -> bool {
        true
    }

    fn covers_header(&self, name: &HeaderName) -> bool {
        [ID, TIMESTAMP].contains(name)
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
        parts(headers, now, tolerance).map(drop)
    }

    fn verify(
        &self,
        request: &RequestView<'_>,
        secrets: &SecretSet,
        now: Timestamp,
        tolerance: &Tolerance,
    ) -> Result<Accepted, Refusal> {
        let parts = parts(request.headers, now, tolerance)?;
        let message = [
            parts.id.as_bytes(),
            b".",
            parts.timestamp.as_bytes(),
            b".",
            request.body,
        ]
        .concat();
        let by = |secret: &&Secret| {
            key(secret).is_some_and(|key| {
                parts
                    .signatures
                    .iter()
                    .any(|signature| key.verify_strict(&message, signature).is_ok())
            })
        };
        let detail = "no v1a signature is by an active key";
        let secret = secrets
            .iter()
            .find(by)
            .ok_or_else(|| Refusal::new(RefusalKind::NoMatch, detail))?;
        Ok(Accepted::by(secret).signed_at(parts.signed_at).id(parts.id))
    }

    fn signed_digest(&self, request: &RequestView<'_>) -> [u8; 32] {
        let mut digest = Sha256::new();
        for name in [ID, TIMESTAMP] {
            digest.update(
                request
                    .headers
                    .get(name)
                    .map(http::HeaderValue::as_bytes)
                    .unwrap_or_default(),
            );
            digest.update(b".");
        }
        digest.chain_update(request.body).finalize().into()
    }
}

#[cfg(test)]
mod tests {
    use ed25519_dalek::{Signer as _, SigningKey};
    use http::{Method, Uri};

    use super::super::Secrets;
    use super::*;

    const NOW: Timestamp = Timestamp::from_secs(1_700_000_000);

    fn headers(key: &SigningKey, version: &str) -> HeaderMap {
        let signature = STANDARD.encode(key.sign(b"msg_1.1700000000.{}").to_bytes());
        let mut headers = HeaderMap::new();
        headers.insert(ID, "msg_1".parse().unwrap());
        headers.insert(TIMESTAMP, "1700000000".parse().unwrap());
        headers.insert(
            SIGNATURE,
            format!("v1,AAAA {version},{signature}").parse().unwrap(),
        );
        headers
    }

    fn verify(headers: &HeaderMap, body: &[u8], key: &SigningKey) -> Result<(), RefusalKind> {
        let text = format!("whpk_{}", STANDARD.encode(key.verifying_key().to_bytes()));
        let secret = Secret::decode(StandardEd25519::KEY, text).unwrap();
        assert!(StandardEd25519::is_key(&secret));
        let secrets = Secrets::new([secret]).unwrap().snapshot().unwrap();
        let uri = Uri::from_static("/");
        let request = RequestView::new(&Method::POST, &uri, headers, body);
        let verified =
            StandardEd25519::scheme().verify(&request, &secrets, NOW, &Tolerance::default());
        verified
            .map(|verified| assert_eq!(verified.signed_id(), Some("msg_1")))
            .map_err(|refusal| refusal.kind())
    }

    #[test]
    fn public_keys() {
        let key = SigningKey::from_bytes(&[7; 32]);
        let signed = headers(&key, "v1a");
        assert_eq!(verify(&signed, b"{}", &key), Ok(()));
        assert_eq!(verify(&signed, b"{ }", &key), Err(RefusalKind::NoMatch));
        assert_eq!(
            verify(&signed, b"{}", &SigningKey::from_bytes(&[8; 32])),
            Err(RefusalKind::NoMatch)
        );
        assert_eq!(
            verify(&headers(&key, "v1"), b"{}", &key),
            Err(RefusalKind::MalformedSignature)
        );
        for (name, value) in [(ID, "msg_2"), (TIMESTAMP, "1700000001")] {
            let mut changed = signed.clone();
            changed.insert(name, value.parse().unwrap());
            assert_eq!(verify(&changed, b"{}", &key), Err(RefusalKind::NoMatch));
        }
    }

    #[test]
    fn keys_that_are_none() {
        for bytes in [vec![1; 31], vec![0; 32], b"whsec_not_a_public_key".to_vec()] {
            assert!(!StandardEd25519::is_key(&Secret::bytes(bytes).unwrap()));
        }
    }
}
