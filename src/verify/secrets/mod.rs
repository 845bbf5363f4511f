//! The active secrets of a source: where they come from, and their rotation at run time.

mod env;
mod file;
mod provider;
mod set;
#[cfg(test)]
mod tests;
mod upkeep;

use std::fmt;
use std::path::PathBuf;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

pub use self::env::EnvError;
pub use self::provider::{ProvideFuture, Refresh, SecretsProvider};
pub use self::set::SecretSet;

use self::file::File;
use self::provider::Provider;
use self::upkeep::{Origin as _, Truth, Upkeep};
use super::Verified;
use super::secret::{KeyEncoding, Secret, SecretError};
use crate::clock::Timestamp;

/// A shared handle to the one or two active secrets of a source (§6.1). Clones see each other's changes.
///
/// | made by | the truth is | rotated by |
/// |---|---|---|
/// | [`Secrets::new`] | this handle | [`Secrets::rotate`] and [`Secrets::revoke`] |
/// | [`Secrets::from_env`] | this handle, after the start | the same, in this process only |
/// | [`Secrets::from_file`] | the file | replacing the file |
/// | [`Secrets::from_provider`] | the provider | the provider |
///
/// A file and a provider are looked after by a task in the background. It starts by itself as soon as a handle is used
/// inside a tokio runtime (with time enabled), and ends with the last handle. Until they have given a set, there is
/// nothing to verify with: [`Secrets::snapshot`] says so, and deliveries get 503, since a producer would not retry after
/// a 401 (§2.2).
#[derive(Clone)]
pub struct Secrets {
    shared: Arc<Shared>,
}

struct Shared {
    /// Empty while there is none to be had.
    set: RwLock<Arc<SecretSet>>,
    truth: Truth,
    upkeep: Upkeep,
}

/// What may be shown about an active secret.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ActiveSecret {
    /// Its label.
    pub label: Arc<str>,
    /// For how long this process has had it active.
    pub age: Duration,
    /// Whether it is the one to sign with, and not the one being rotated out.
    pub newest: bool,
    /// From when on it counts.
    pub not_before: Option<Timestamp>,
    /// Until when it counts.
    pub not_after: Option<Timestamp>,
    /// When a delivery was last verified by it in this process, to the second: an old one that has gone quiet can be
    /// revoked.
    pub last_verified: Option<Timestamp>,
}

impl Secrets {
    /// One or two secrets, newest first. Those without a label are named `secret-1`, `secret-2`.
    ///
    /// # Errors
    /// None, more than two, two with one label or with one key.
    pub fn new(newest_first: impl IntoIterator<Item = Secret>) -> Result<Self, SecretError> {
        let set = SecretSet::default().given(newest_first)?;
        Ok(Self::of(set, Truth::Here))
    }

    /// From environment variables, the newest secret's first: one secret in each. The first must be set, the second
    /// need not be. The variables are read once, here; what is rotated afterwards is rotated in this process only.
    ///
    /// ```
    /// use tower_inbox::verify::{KeyEncoding, Secrets};
    ///
    /// let missing = Secrets::from_env(KeyEncoding::Text, ["CRM_SECRET", "CRM_SECRET_OLD"]).unwrap_err();
    /// assert_eq!(missing.to_string(), "the environment variable CRM_SECRET is not set");
    /// ```
    ///
    /// # Errors
    /// The first one is not set, one is empty or does not decode, or the set is refused as by [`Secrets::new`].
    pub fn from_env<N: Into<String>>(
        encoding: KeyEncoding,
        names: impl IntoIterator<Item = N>,
    ) -> Result<Self, EnvError> {
        env::load(encoding, names.into_iter().map(Into::into))
    }

    /// From a file, which is looked at four times a second: a replaced one is in force within a second.
    ///
    /// A file named `*.json` holds an array of one or two strings or objects, newest first; in an object only `secret`
    /// must be there, and the times are RFC 3339:
    ///
    /// ```json
    /// [{"secret": "new", "label": "march", "not_before": "2026-03-01T00:00:00Z"},
    ///  {"secret": "old", "label": "february", "not_after": "2026-03-08T00:00:00Z"}]
    /// ```
    ///
    /// Any other file holds a secret on each of one or two lines, newest first. Empty lines do not count; a line that
    /// begins or ends with a blank is refused, since that is rarely meant.
    ///
    /// Replace the file atomically (write another one, rename it over this one). One that is broken, empty or gone keeps
    /// the secrets that were there, and says so in the log, once for each change. One that cannot be read **at the
    /// start** is no error here: it may be written a moment later by somebody else. Deliveries get 503 until it can be
    /// read, and the log says why; call [`Secrets::snapshot`] to refuse to start instead.
    pub fn from_file(encoding: KeyEncoding, path: impl Into<PathBuf>) -> Self {
        let file = Arc::new(File::new(encoding, path.into()));
        let secrets = Self::of(SecretSet::default(), Truth::File(Arc::clone(&file)));
        // At once, so that what is there already is in force before the first delivery.
        if let Some(read) = file.poll() {
            secrets.shared.take_over(&*file, read);
        }
        secrets.keep_up();
        secrets
    }

    /// From your own code, such as a client of a vault: called at the start, then as `refresh` says, and again with a
    /// backoff after a failure. What it gave last stays in force while it fails. Deliveries get 503 while it has never
    /// answered.
    ///
    /// ```no_run
    /// use tower_inbox::verify::{Refresh, Secret, Secrets};
    /// # async fn from_vault(name: &str) -> Result<String, std::io::Error> { unimplemented!() }
    ///
    /// let secrets = Secrets::from_provider(
    ///     || async { Ok(vec![Secret::text(from_vault("crm-webhook").await?)?]) },
    ///     Refresh::default(),
    /// );
    /// ```
    pub fn from_provider(provider: impl SecretsProvider, refresh: Refresh) -> Self {
        let provider = Arc::new(Provider::new(provider, refresh));
        let secrets = Self::of(SecretSet::default(), Truth::Provider(provider));
        secrets.keep_up();
        secrets
    }

    fn of(set: SecretSet, truth: Truth) -> Self {
        Self {
            shared: Arc::new(Shared {
                set: RwLock::new(Arc::new(set)),
                truth,
                upkeep: Upkeep::default(),
            }),
        }
    }

    /// Adds `new` as the newest and demotes the other: deliveries that are signed by either are accepted from now on.
    ///
    /// This is the first step of a rotation without a refused delivery; [`Secrets::revoke`] is the last one:
    ///
    /// ```
    /// # use http::{HeaderMap, Method, Uri};
    /// # use tower_inbox::clock::Timestamp;
    /// # use tower_inbox::preset::Preset;
    /// # use tower_inbox::verify::{RequestView, Signer, Tolerance};
    /// use tower_inbox::verify::{Secret, Secrets};
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let secrets = Secrets::new([Secret::text("old")?.labelled("february")])?;
    /// # let handle = secrets.clone();
    /// # let accepts = |text: &str| {
    /// #     let (scheme, now) = (Preset::KUDOS.scheme(), Timestamp::from_secs(1_700_000_000));
    /// #     let signer = Signer::new(&scheme, [Secret::text(text).unwrap()]).unwrap();
    /// #     let headers: HeaderMap = signer.sign(now, None, b"{}").unwrap().into_iter().collect();
    /// #     let uri = Uri::from_static("/");
    /// #     let request = RequestView::new(&Method::POST, &uri, &headers, b"{}");
    /// #     let active = handle.snapshot().unwrap();
    /// #     scheme.verify(&request, &active, now, &Tolerance::default()).is_ok()
    /// # };
    /// # assert!(accepts("old") && !accepts("new"));
    ///
    /// // 1. Rotate: here first, then at the producer. Nothing that it still signs with the old one is refused.
    /// secrets.rotate(Secret::text("new")?.labelled("march"))?;
    ///
    /// // 2. Dual: both are accepted, for as long as the old one can still come. Retries carry the signature of their
    /// // first attempt with some producers, so that this is the producer's whole retry span.
    /// assert!(accepts("old") && accepts("new"));
    /// let labels: Vec<_> = secrets.active().into_iter().map(|secret| secret.label).collect();
    /// assert_eq!(labels, ["march".into(), "february".into()]);
    ///
    /// // 3. Revoke, when `last_verified` of the old one in `active()` has stopped moving.
    /// secrets.revoke("february")?;
    /// assert!(accepts("new") && !accepts("old"));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// **It changes this process only**: this handle and its clones. Every process that receives must be told, each by
    /// itself, before the producer signs with the new secret, and a restart begins with what the process was started
    /// with. Where there are several, [`Secrets::from_file`] and [`Secrets::from_provider`] rotate all of them from one
    /// place.
    ///
    /// # Errors
    /// Two are active already, `new` has the label or the key of an active one, or the truth is elsewhere.
    pub fn rotate(&self, new: Secret) -> Result<(), SecretError> {
        self.change(|set| {
            let mut wanted = vec![new];
            wanted.extend(set.iter().cloned());
            set.replaced(wanted)
        })
    }

    /// Removes the secret with this label: what is signed by it alone is refused from now on, in this process only.
    /// Others go on accepting it until they are told, each by itself. The whole rotation is shown at
    /// [`Secrets::rotate`].
    ///
    /// A secret without a label of its own has a number (`secret-1`), which depends on the order of what this process
    /// has seen: name secrets with [`Secret::labelled`] where several processes are to revoke the same one.
    ///
    /// # Errors
    /// No active secret has the label, it is the last one, or the truth is elsewhere.
    pub fn revoke(&self, label: &str) -> Result<(), SecretError> {
        self.change(|set| {
            if !set.iter().any(|secret| secret.label() == label) {
                return Err(SecretError::UnknownLabel);
            }
            set.replaced(
                set.iter()
                    .filter(|secret| secret.label() != label)
                    .cloned()
                    .collect::<Vec<_>>(),
            )
        })
    }

    /// Takes over a whole new set, newest first. Keys that stay keep label and age.
    ///
    /// # Errors
    /// As [`Secrets::new`], or the truth is elsewhere; the old set then stays.
    pub fn replace(
        &self,
        newest_first: impl IntoIterator<Item = Secret>,
    ) -> Result<(), SecretError> {
        self.change(|set| set.given(newest_first))
    }

    /// Labels, ages and last use of the active secrets, newest first. Empty while there are none to be had.
    pub fn active(&self) -> Vec<ActiveSecret> {
        self.keep_up();
        self.shared.current().active()
    }

    /// The secrets active now, one at least. Holds a lock only while a pointer is copied.
    ///
    /// # Errors
    /// [`SecretError::NotAvailable`] while a file or a provider has given none yet: answer 503.
    pub fn snapshot(&self) -> Result<Arc<SecretSet>, SecretError> {
        self.keep_up();
        let set = self.shared.current();
        if set.is_empty() {
            return Err(SecretError::NotAvailable);
        }
        Ok(set)
    }

    /// What is wrong with the file or the provider just now, as the log has it: for a health check, and for who would
    /// rather not start. `None` while all is well.
    pub fn problem(&self) -> Option<String> {
        let problem = match &self.shared.truth {
            Truth::Here => return None,
            Truth::File(file) => file.problem(),
            Truth::Provider(provider) => provider.problem(),
        };
        problem
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// Takes note that a delivery was verified, for [`Secrets::active`] and the counter
    /// `inbox_verified_total{source, secret}`. The inbox and [`VerifyLayer`](super::VerifyLayer) do this by themselves.
    pub fn note_verified(&self, source: &str, verified: &Verified, at: Timestamp) {
        self.shared.current().note(source, verified, at);
    }

    fn change(
        &self,
        with: impl FnOnce(&SecretSet) -> Result<SecretSet, SecretError>,
    ) -> Result<(), SecretError> {
        match self.shared.truth {
            Truth::Here => self.shared.change(with),
            Truth::File(_) | Truth::Provider(_) => Err(SecretError::KeptElsewhere),
        }
    }
}

impl Shared {
    fn current(&self) -> Arc<SecretSet> {
        Arc::clone(&self.set.read().unwrap_or_else(PoisonError::into_inner))
    }

    fn change(
        &self,
        with: impl FnOnce(&SecretSet) -> Result<SecretSet, SecretError>,
    ) -> Result<(), SecretError> {
        let mut set = self.set.write().unwrap_or_else(PoisonError::into_inner);
        *set = Arc::new(with(&set)?);
        Ok(())
    }
}

impl fmt::Debug for Secrets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Secrets")
            .field(&self.shared.current())
            .finish()
    }
}
