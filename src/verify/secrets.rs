//! The active secrets of a source, and their rotation at run time.

use std::fmt;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::{Duration, Instant};

use super::secret::{Secret, SecretError};

/// How many secrets can be active: the new one and the one it replaces (§6.1).
const MOST: usize = 2;

/// A shared handle to the one or two active secrets of a source (§6.1). Clones see each other's changes.
#[derive(Clone)]
pub struct Secrets {
    shared: Arc<RwLock<Arc<SecretSet>>>,
}

/// The secrets that were active at one moment, newest first.
///
/// A delivery takes it once and is then not disturbed by a rotation.
#[derive(Clone)]
pub struct SecretSet {
    entries: Vec<Entry>,
    /// How many secrets there have ever been: the number for the next one without a label.
    count: u64,
}

#[derive(Clone)]
struct Entry {
    secret: Secret,
    since: Instant,
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
}

impl Secrets {
    /// One or two secrets, newest first. Those without a label are named `secret-1`, `secret-2`.
    ///
    /// # Errors
    /// None, more than two, two with one label or with one key.
    pub fn new(newest_first: impl IntoIterator<Item = Secret>) -> Result<Self, SecretError> {
        let set = SecretSet {
            entries: Vec::new(),
            count: 0,
        }
        .replaced(newest_first)?;
        Ok(Self {
            shared: Arc::new(RwLock::new(Arc::new(set))),
        })
    }

    /// Adds `new` as the newest and demotes the other.
    ///
    /// # Errors
    /// Two are active already, or `new` has the label or the key of an active one.
    pub fn rotate(&self, new: Secret) -> Result<(), SecretError> {
        self.change(|set| {
            let mut wanted = vec![new];
            wanted.extend(set.entries.iter().map(|entry| entry.secret.clone()));
            set.replaced(wanted)
        })
    }

    /// Removes the secret with this label: what is signed by it alone is refused from now on.
    ///
    /// # Errors
    /// No active secret has the label, or it is the last one.
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

    /// Takes over a whole new set, newest first, as a provider or a file has it. Keys that stay keep label and age.
    ///
    /// # Errors
    /// As [`Secrets::new`]; the old set then stays.
    pub fn replace(
        &self,
        newest_first: impl IntoIterator<Item = Secret>,
    ) -> Result<(), SecretError> {
        self.change(|set| set.replaced(newest_first))
    }

    /// Labels and ages of the active secrets, newest first.
    pub fn active(&self) -> Vec<ActiveSecret> {
        let set = self.snapshot();
        let active = |(index, entry): (usize, &Entry)| ActiveSecret {
            label: entry.secret.shared_label(),
            age: entry.since.elapsed(),
            newest: index == 0,
        };
        set.entries.iter().enumerate().map(active).collect()
    }

    /// The secrets active now. Holds a lock only while a pointer is copied.
    pub fn snapshot(&self) -> Arc<SecretSet> {
        Arc::clone(&self.shared.read().unwrap_or_else(PoisonError::into_inner))
    }

    fn change(
        &self,
        with: impl FnOnce(&SecretSet) -> Result<SecretSet, SecretError>,
    ) -> Result<(), SecretError> {
        let mut shared = self.shared.write().unwrap_or_else(PoisonError::into_inner);
        *shared = Arc::new(with(&shared)?);
        Ok(())
    }
}

impl SecretSet {
    /// The secrets, newest first.
    pub fn iter(&self) -> impl Iterator<Item = &Secret> {
        self.entries.iter().map(|entry| &entry.secret)
    }

    /// The newest secret: the one to sign with.
    pub fn newest(&self) -> &Secret {
        // A set is never empty: `replaced` refuses to make one.
        &self.entries[0].secret
    }

    fn replaced(
        &self,
        newest_first: impl IntoIterator<Item = Secret>,
    ) -> Result<Self, SecretError> {
        let mut next = Self {
            entries: Vec::with_capacity(MOST),
            count: self.count,
        };
        // Only one too many is taken: an endless iterator ends here as well.
        for secret in newest_first.into_iter().take(MOST + 1) {
            if next.entries.len() == MOST {
                return Err(SecretError::TooMany);
            }
            let known = self
                .entries
                .iter()
                .find(|entry| entry.secret.same_key(&secret));
            next.entries.push(match known {
                Some(entry) if !secret.has_label() => entry.clone(),
                Some(entry) => Entry {
                    secret,
                    since: entry.since,
                },
                None => Entry {
                    secret,
                    since: Instant::now(),
                },
            });
        }
        for index in 0..next.entries.len() {
            while !next.entries[index].secret.has_label() {
                next.count += 1;
                let label = format!("secret-{}", next.count);
                if !next.iter().any(|secret| secret.label() == label) {
                    next.entries[index].secret = next.entries[index].secret.clone().labelled(label);
                }
            }
        }
        match next.entries.as_slice() {
            [] => Err(SecretError::None),
            [one, two] if one.secret.same_key(&two.secret) => Err(SecretError::DuplicateKey),
            [one, two] if one.secret.label() == two.secret.label() => {
                Err(SecretError::DuplicateLabel)
            }
            _ => Ok(next),
        }
    }
}

impl fmt::Debug for Secrets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Secrets").field(&self.snapshot()).finish()
    }
}

impl fmt::Debug for SecretSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list()
            .entries(self.iter().map(Secret::label))
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn secret(text: &str) -> Secret {
        Secret::text(text).unwrap()
    }

    fn labels(secrets: &Secrets) -> Vec<String> {
        secrets
            .active()
            .into_iter()
            .map(|secret| secret.label.to_string())
            .collect()
    }

    /// §6.1: add, demote, revoke; never a third, never none.
    #[test]
    fn a_rotation_from_start_to_end() {
        let secrets = Secrets::new([secret("a")]).unwrap();
        let shared = secrets.clone();
        let before = secrets.snapshot();
        secrets.rotate(secret("b").labelled("march")).unwrap();
        assert_eq!(labels(&shared), ["march", "secret-1"]);
        assert_eq!(before.iter().count(), 1, "a snapshot does not change");
        assert_eq!(shared.snapshot().newest().label(), "march");
        assert_eq!(secrets.rotate(secret("c")), Err(SecretError::TooMany));
        assert_eq!(secrets.revoke("nobody"), Err(SecretError::UnknownLabel));
        secrets.revoke("secret-1").unwrap();
        assert_eq!(secrets.revoke("march"), Err(SecretError::None));
        secrets.rotate(secret("c")).unwrap();
        assert_eq!(
            labels(&shared),
            ["secret-2", "march"],
            "a number is not given twice"
        );
    }

    #[test]
    fn sets_that_are_refused() {
        assert_eq!(Secrets::new([]).unwrap_err(), SecretError::None);
        assert_eq!(
            Secrets::new(["a", "b", "c"].map(secret)).unwrap_err(),
            SecretError::TooMany
        );
        assert_eq!(
            Secrets::new(["a", "a"].map(secret)).unwrap_err(),
            SecretError::DuplicateKey
        );
        let same = ["a", "b"].map(|text| secret(text).labelled("x"));
        assert_eq!(Secrets::new(same).unwrap_err(), SecretError::DuplicateLabel);
    }

    /// A broken replacement keeps the old secrets; a key that stays keeps its name.
    #[test]
    fn replacing_the_whole_set() {
        let secrets = Secrets::new([secret("a")]).unwrap();
        assert_eq!(secrets.replace([]), Err(SecretError::None));
        assert_eq!(labels(&secrets), ["secret-1"]);
        secrets.replace([secret("b"), secret("a")]).unwrap();
        assert_eq!(labels(&secrets), ["secret-2", "secret-1"]);
    }

    /// §6.5: neither the handle nor a snapshot prints a secret.
    #[test]
    fn debug_prints_labels_only() {
        let secrets = Secrets::new([secret("hunter2")]).unwrap();
        assert_eq!(format!("{secrets:?}"), r#"Secrets(["secret-1"])"#);
    }
}
