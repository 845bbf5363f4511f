//! Secrets on a command line that signs or verifies.

use std::path::PathBuf;
use std::sync::Arc;

use tower_inbox::preset::Preset;
use tower_inbox::verify::{KeyEncoding, Rfc9421, Scheme, Secret, SecretSet, Secrets};

use crate::failure::Failure;

#[derive(clap::Args, Debug)]
#[command(next_help_heading = "Secrets, newest first, one way of the three")]
pub(crate) struct SecretArgs {
    /// In this environment variable; may be given twice
    #[arg(long, value_name = "NAME")]
    secret_env: Vec<String>,
    /// In this file, one on a line, or a JSON array in a file named *.json
    #[arg(long, value_name = "PATH")]
    secret_file: Option<PathBuf>,
    /// Here, where other users of the machine can see it; may be given twice
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
    secret: Vec<Hidden>,
    /// How a secret's text becomes a key: text, whsec, base64 or hex (default: the preset's)
    #[arg(long, value_name = "ENCODING")]
    key: Option<String>,
}

/// A text whose `Debug` shows nothing.
#[derive(Clone)]
struct Hidden(String);

impl std::fmt::Debug for Hidden {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("…")
    }
}

impl From<&str> for Hidden {
    fn from(text: &str) -> Self {
        Self(text.to_owned())
    }
}

fn usage(error: impl std::fmt::Display) -> Failure {
    Failure::usage(error.to_string())
}

impl SecretArgs {
    /// How their texts become keys.
    pub(crate) fn encoding(&self, of_preset: KeyEncoding) -> Result<KeyEncoding, Failure> {
        Ok(match self.key.as_deref() {
            None => of_preset,
            Some("text") => KeyEncoding::Text,
            Some("whsec") => KeyEncoding::WHSEC,
            Some("base64") => KeyEncoding::Base64 { prefix: "" },
            Some("hex") => KeyEncoding::Hex,
            Some(other) => return Err(Failure::usage(format!("no key encoding {other:?}"))),
        })
    }

    pub(crate) fn load(&self, key: KeyEncoding) -> Result<Arc<SecretSet>, Failure> {
        let ways = [
            !self.secret_env.is_empty(),
            self.secret_file.is_some(),
            !self.secret.is_empty(),
        ];
        match ways.iter().filter(|given| **given).count() {
            0 => {
                return Err(Failure::usage(
                    "no secret: give --secret-env or --secret-file",
                ));
            }
            1 => {}
            _ => return Err(Failure::usage("secrets by more than one way")),
        }
        let secrets = if let Some(file) = &self.secret_file {
            let secrets = Secrets::from_file(key, file);
            if let Some(problem) = secrets.problem() {
                return Err(Failure::usage(format!("--secret-file: {problem}")));
            }
            secrets
        } else if !self.secret_env.is_empty() {
            Secrets::from_env(key, self.secret_env.iter().cloned()).map_err(usage)?
        } else {
            let decode = |text: &Hidden| Secret::decode(key, text.0.as_str());
            let decoded = self
                .secret
                .iter()
                .map(decode)
                .collect::<Result<Vec<_>, _>>();
            Secrets::new(decoded.map_err(usage)?).map_err(usage)?
        };
        secrets.snapshot().map_err(usage)
    }
}

/// The scheme of a preset, or of one of those that are no producer's.
pub(crate) fn scheme(name: &str) -> Result<(Scheme, KeyEncoding), Failure> {
    if let Some(preset) = Preset::named(name) {
        return Ok((preset.scheme(), preset.key));
    }
    match name {
        "rfc9421" => Ok((
            Rfc9421::new().scheme("rfc9421"),
            KeyEncoding::Base64 { prefix: "" },
        )),
        #[cfg(feature = "ed25519")]
        "standard-v1a" => {
            use tower_inbox::verify::StandardEd25519;
            Ok((StandardEd25519::scheme(), StandardEd25519::KEY))
        }
        _ => Err(Failure::usage(format!(
            "no preset {name:?}; there are {}",
            names()
        ))),
    }
}

pub(crate) fn names() -> String {
    let mut names: Vec<_> = Preset::ALL.iter().map(|preset| preset.name).collect();
    names.push("rfc9421");
    if cfg!(feature = "ed25519") {
        names.push("standard-v1a");
    }
    names.join(", ")
}
