//! Signing as the producers do it: one place, to be exchanged for the library's own signer.

use std::sync::{PoisonError, RwLock};

use hmac::{Hmac, KeyInit as _, Mac as _};
use sha2::Sha256;

/// One or two secrets, of which each signs. They can be exchanged while traffic is running: a rotation.
pub(crate) struct Signer {
    secrets: RwLock<Vec<String>>,
}

impl Signer {
    pub(crate) fn new(secrets: Vec<String>) -> Self {
        Self {
            secrets: RwLock::new(secrets),
        }
    }

    /// From now on these sign.
    pub(crate) fn replace(&self, secrets: Vec<String>) {
        *self.secrets.write().unwrap_or_else(PoisonError::into_inner) = secrets;
    }

    /// `t=<seconds>,v1=<hex>[,v1=<hex>]` over `<t>.<part>[.<part>]`, in the order of the secrets.
    pub(crate) fn header(&self, t: u64, parts: &[&[u8]]) -> String {
        let mut header = format!("t={t}");
        let secrets = self.secrets.read().unwrap_or_else(PoisonError::into_inner);
        for secret in secrets.iter() {
            let mut mac = Hmac::<Sha256>::new_from_slice(secret.as_bytes())
                .expect("HMAC takes a key of any length");
            mac.update(t.to_string().as_bytes());
            for part in parts {
                mac.update(b".");
                mac.update(part);
            }
            header.push_str(",v1=");
            header.push_str(&hex::encode(mac.finalize().into_bytes()));
        }
        header
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_and_two_secrets() {
        let signer = Signer::new(vec!["old".to_owned()]);
        let one = signer.header(1_700_000_000, &[b"{}"]);
        // printf '1700000000.{}' | openssl dgst -sha256 -hmac old
        assert_eq!(
            one,
            "t=1700000000,v1=2b5e6fc3cac3432cb8a3476c75510114966afb97256d20b9198872431b7ceca6"
        );
        signer.replace(vec!["old".to_owned(), "new".to_owned()]);
        let two = signer.header(1_700_000_000, &[b"{}"]);
        assert!(two.starts_with(&one));
        assert_eq!(two.matches(",v1=").count(), 2);
        // printf '1700000000.key.{}' | openssl dgst -sha256 -hmac old
        let keyed = Signer::new(vec!["old".to_owned()]).header(1_700_000_000, &[b"key", b"{}"]);
        assert_eq!(
            keyed,
            "t=1700000000,v1=96acae3c82778e78d2b1ea4883ffaf8899215ee9edc9494c9b10d4d3d52fa44f"
        );
    }
}
