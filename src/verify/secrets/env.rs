//! Secrets from environment variables.

use std::env::VarError;
use std::fmt;

use zeroize::Zeroizing;

use super::Secrets;
use crate::verify::secret::{KeyEncoding, Secret, SecretError};

/// Why the environment holds no usable secrets. Its text names the variable and never what is in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EnvError {
    message: String,
}

impl EnvError {
    fn new(message: String) -> Self {
        Self { message }
    }
}

impl fmt::Display for EnvError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for EnvError {}

pub(super) fn load(
    encoding: KeyEncoding,
    names: impl Iterator<Item = String>,
) -> Result<Secrets, EnvError> {
    let mut secrets = Vec::new();
    let mut tried = Vec::new();
    for name in names {
        let wrong = |why: &dyn fmt::Display| {
            EnvError::new(format!("the environment variable {name} {why}"))
        };
        match std::env::var(&name).map(Zeroizing::new) {
            Ok(text) => match Secret::decode(encoding, text.as_str()) {
                Ok(secret) => secrets.push(secret),
                Err(error) => return Err(wrong(&format_args!("cannot be used: {error}"))),
            },
            // The place of the old secret, which is not there outside a rotation.
            Err(VarError::NotPresent) if !tried.is_empty() => {}
            Err(VarError::NotPresent) => return Err(wrong(&"is not set")),
            Err(VarError::NotUnicode(_)) => return Err(wrong(&"is not UTF-8")),
        }
        tried.push(name);
    }
    Secrets::new(secrets).map_err(|error: SecretError| {
        EnvError::new(format!(
            "the environment variables {}: {error}",
            tried.join(", ")
        ))
    })
}
