//! Signing as the producers do it: the library's own signer, with secrets that can be exchanged.

use std::sync::{PoisonError, RwLock};

use http::header::{HeaderName, HeaderValue};
use tower_inbox::Secret;
use tower_inbox::clock::Timestamp;
use tower_inbox::verify;

use super::preset::Preset;

/// One or two secrets, of which each signs. They can be exchanged while traffic is running: a rotation.
pub(crate) struct Signer {
    preset: Preset,
    current: RwLock<verify::Signer>,
}

impl Signer {
    /// Or what is wrong with the secrets; the text has none of them.
    pub(crate) fn new(preset: Preset, secrets: &[String]) -> Result<Self, String> {
        let current = RwLock::new(signer(preset, secrets)?);
        Ok(Self { preset, current })
    }

    /// From now on these sign.
    pub(crate) fn replace(&self, secrets: &[String]) -> Result<(), String> {
        let next = signer(self.preset, secrets)?;
        *self.current.write().unwrap_or_else(PoisonError::into_inner) = next;
        Ok(())
    }

    /// The headers that the preset's signature consists of: signatures in the order of the secrets, and time and id
    /// where they are headers that it signs.
    pub(crate) fn headers(&self, t: u64, id: &str, body: &[u8]) -> Vec<(HeaderName, HeaderValue)> {
        let now = Timestamp::from_secs(i64::try_from(t).unwrap_or(i64::MAX));
        let current = self.current.read().unwrap_or_else(PoisonError::into_inner);
        let signed = current.sign(now, Some(id), body);
        signed.expect("the plan's ids are in the form of their preset")
    }
}

fn signer(preset: Preset, secrets: &[String]) -> Result<verify::Signer, String> {
    let row = preset.row();
    let secrets: Result<Vec<_>, _> = secrets
        .iter()
        .map(|text| Secret::decode(row.key, text.as_str()))
        .collect();
    let secrets = secrets.map_err(|error| error.to_string())?;
    verify::Signer::new(&row.scheme(), secrets)
        .map_err(|error| format!("preset {}: {error}", preset.name()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn signature(signer: &Signer, name: &str) -> String {
        let id = "6f8f1e0e-0a49-4d3c-9d3c-0b6d2c3f1a55";
        let headers = signer.headers(1_700_000_000, id, b"{}");
        let found = headers.iter().find(|(header, _)| header == name);
        found.unwrap().1.to_str().unwrap().to_owned()
    }

    #[test]
    fn one_and_two_secrets() {
        let (old, new) = ("old".to_owned(), "new".to_owned());
        let signer = Signer::new(Preset::Kudos, std::slice::from_ref(&old)).unwrap();
        let one = signature(&signer, "x-kudos-signature");
        // printf '1700000000.{}' | openssl dgst -sha256 -hmac old
        assert_eq!(
            one,
            "t=1700000000,v1=2b5e6fc3cac3432cb8a3476c75510114966afb97256d20b9198872431b7ceca6"
        );
        signer.replace(&[old.clone(), new.clone()]).unwrap();
        let two = signature(&signer, "x-kudos-signature");
        assert!(two.starts_with(&one));
        assert_eq!(two.matches(",v1=").count(), 2);
        // printf '{}' | openssl dgst -sha256 -hmac old
        let bare = Signer::new(Preset::GitHub, std::slice::from_ref(&old)).unwrap();
        assert_eq!(
            signature(&bare, "x-hub-signature-256"),
            "sha256=419f84c3dfb1dabfe377f5a34859584b8faa83144c2a3b2b72a8c4ded4e293a6"
        );
        // It has room for one.
        assert!(Signer::new(Preset::GitHub, &[old, new]).is_err());
        let malformed = Signer::new(Preset::Standard, &["hush!".to_owned()]);
        assert!(malformed.is_err_and(|why| !why.contains("hush")));
    }
}
