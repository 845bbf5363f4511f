//! What the benches measure: deliveries of 1 KiB, verified by this crate and by `hmac` and `sha2` alone.

use std::hint::black_box;
use std::sync::Arc;

use hmac::{Hmac, KeyInit as _, Mac as _};
use http::{HeaderMap, Method, Uri};
use sha2::Sha256;
use tower_inbox::clock::Timestamp;
use tower_inbox::envelope::{Mapping, Reading};
use tower_inbox::preset::Preset;
use tower_inbox::verify::{
    RequestView, Scheme, Secret, SecretSet, Secrets, Signer, Tolerance, Verified,
};

const NOW: Timestamp = Timestamp::from_secs(1_700_000_000);
const NEW: &str = "the newest secret, as a producer shows it";
const OLD: &str = "the secret before it, as a producer showed it";

/// One delivery of the `kudos` preset, and who verifies it.
pub(crate) struct Case {
    scheme: Scheme,
    mapping: Mapping,
    secrets: Arc<SecretSet>,
    tolerance: Tolerance,
    headers: HeaderMap,
    uri: Uri,
    body: Vec<u8>,
}

impl Case {
    /// One active secret and one signature by it.
    pub(crate) fn one_by_one() -> Self {
        Self::new(&[NEW], &[NEW])
    }

    /// Two active secrets and two signatures, the one that counts found last: neither is by the newest secret.
    pub(crate) fn two_by_two() -> Self {
        Self::new(&[NEW, OLD], &["somebody else's secret", OLD])
    }

    fn new(active: &[&str], signers: &[&str]) -> Self {
        let secrets = |texts: &[&str]| {
            let secret = |text: &&str| Secret::text(*text).expect("a secret");
            texts.iter().map(secret).collect::<Vec<_>>()
        };
        let scheme = Preset::KUDOS.scheme();
        let start = r#"{"event_id":"evt_01J9Z3K4M5N6P7Q8R9S0T1U2V3","event_type":"payment.succeeded","correlation_id":"acct-7","sequence":41,"data":{"account":"acct-7","amount":250,"note":""#;
        let body = format!("{start}{}\"}}}}", "x".repeat(1024 - start.len() - 3)).into_bytes();
        assert_eq!(body.len(), 1024);
        let signer = Signer::new(&scheme, secrets(signers)).expect("a signer");
        let headers = signer.sign(NOW, None, &body).expect("signed");
        let mut all: HeaderMap = headers.into_iter().collect();
        // As many as a delivery has beside them.
        for (name, value) in [
            ("host", "hooks.example.com"),
            ("user-agent", "Kudos-Webhooks/1.0"),
            ("content-type", "application/json"),
            ("content-length", "1024"),
            ("accept", "*/*"),
            ("x-kudos-delivery-attempt", "1"),
        ] {
            all.insert(name, value.parse().expect("a value"));
        }
        Self {
            scheme,
            mapping: Preset::KUDOS.mapping(),
            secrets: Secrets::new(secrets(active))
                .expect("a set")
                .snapshot()
                .expect("secrets"),
            tolerance: Tolerance::default(),
            headers: all,
            uri: Uri::from_static("/webhooks/kudos"),
            body,
        }
    }

    /// All that the door does: both steps, with the headers parsed anew.
    pub(crate) fn verify(&self) -> Verified {
        let method = Method::POST;
        let request = RequestView::new(
            &method,
            &self.uri,
            black_box(&self.headers),
            black_box(&self.body),
        );
        self.scheme
            .verify(&request, &self.secrets, NOW, &self.tolerance)
            .expect("a valid delivery")
    }

    pub(crate) fn read(&self, verified: &Verified) -> Reading {
        self.mapping
            .read(verified, black_box(&self.headers), black_box(&self.body))
            .expect("an event")
    }
}

/// The MAC and its comparison, with everything else done beforehand.
pub(crate) struct Bare {
    key: Hmac<Sha256>,
    timestamp: String,
    body: Vec<u8>,
    mac: Vec<u8>,
}

impl Bare {
    pub(crate) fn new() -> Self {
        let Case { body, .. } = Case::one_by_one();
        let timestamp = NOW.as_secs().to_string();
        let key = Hmac::new_from_slice(NEW.as_bytes()).expect("any length");
        let mac = Self::over(&key, &timestamp, &body)
            .finalize()
            .into_bytes()
            .to_vec();
        Self {
            key,
            timestamp,
            body,
            mac,
        }
    }

    fn over(key: &Hmac<Sha256>, timestamp: &str, body: &[u8]) -> Hmac<Sha256> {
        let mut mac = key.clone();
        mac.update(timestamp.as_bytes());
        mac.update(b".");
        mac.update(body);
        mac
    }

    /// With the key prepared beforehand.
    pub(crate) fn prepared(&self) {
        let mac = Self::over(black_box(&self.key), &self.timestamp, black_box(&self.body));
        mac.verify_slice(black_box(&self.mac)).expect("the MAC");
    }

    /// With the key derived for each message, as the short form of the crate's own example has it.
    pub(crate) fn fresh(&self) {
        let key = Hmac::new_from_slice(black_box(NEW.as_bytes())).expect("any length");
        let mac = Self::over(&key, &self.timestamp, black_box(&self.body));
        mac.verify_slice(black_box(&self.mac)).expect("the MAC");
    }
}
