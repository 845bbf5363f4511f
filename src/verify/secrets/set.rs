//! The secrets that are active at one moment.

use std::fmt;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use metrics::{Key, Label, Level, Metadata, with_recorder};

use super::ActiveSecret;
use crate::clock::Timestamp;
use crate::verify::Verified;
use crate::verify::secret::{Secret, SecretError};

/// How many secrets can be active: the new one and the one it replaces (§6.1).
pub(super) const MOST: usize = 2;
/// How many given ones are counted, to say how many there are.
const COUNTED: usize = 1_000;
/// How fine the time of the last verification is kept, in µs. A second is enough for people, and busy deliveries then
/// do not pass one line of memory from core to core.
const NOTED_EVERY: i64 = 1_000_000;
const NEVER: i64 = i64::MIN;

/// The secrets that were active at one moment, newest first.
///
/// A delivery takes it once and is then not disturbed by a rotation.
#[derive(Clone, Default)]
pub struct SecretSet {
    entries: Vec<Entry>,
    /// How many secrets there have ever been: the number for the next one without a label.
    count: u64,
}

#[derive(Clone)]
struct Entry {
    secret: Secret,
    since: Instant,
    /// When a delivery was last verified by it, in µs.
    last_verified: Arc<AtomicI64>,
    /// The counter's key for the source that came first, which is the only one as a rule.
    counted: OnceLock<(Box<str>, Key)>,
}

impl SecretSet {
    /// The secrets, newest first.
    pub fn iter(&self) -> impl Iterator<Item = &Secret> {
        self.entries.iter().map(|entry| &entry.secret)
    }

    /// The newest secret, in force or not.
    ///
    /// # Panics
    /// Never: what [`Secrets::snapshot`](super::Secrets::snapshot) gives has one at least.
    pub fn newest(&self) -> &Secret {
        &self.entries[0].secret
    }

    /// Without those that do not count at this time; possibly none.
    pub(in crate::verify) fn counting_at(&self, now: Timestamp) -> Self {
        let counts = |entry: &&Entry| entry.secret.counts_at(now);
        Self {
            entries: self.entries.iter().filter(counts).cloned().collect(),
            count: self.count,
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    pub(super) fn active(&self) -> Vec<ActiveSecret> {
        let active = |(index, entry): (usize, &Entry)| {
            let noted = entry.last_verified.load(Ordering::Relaxed);
            let (not_before, not_after) = entry.secret.window();
            ActiveSecret {
                label: entry.secret.shared_label(),
                age: entry.since.elapsed(),
                newest: index == 0,
                not_before,
                not_after,
                last_verified: (noted != NEVER).then(|| Timestamp::from_micros(noted)),
            }
        };
        self.entries.iter().enumerate().map(active).collect()
    }

    /// Takes note that a delivery of this source was verified.
    pub(crate) fn note(&self, source: &str, verified: &Verified, at: Timestamp) {
        let secret = &verified.secret;
        let noted = |entry: &&Entry| entry.secret.label() == secret.label();
        let Some(entry) = self.entries.iter().find(noted) else {
            // Revoked while its delivery was under way.
            return count(&key(source, secret));
        };
        let at = at.as_micros();
        if at.saturating_sub(entry.last_verified.load(Ordering::Relaxed)) >= NOTED_EVERY {
            entry.last_verified.fetch_max(at, Ordering::Relaxed);
        }
        let made = || (source.into(), key(source, secret));
        match entry.counted.get_or_init(made) {
            (of, key) if **of == *source => count(key),
            _ => count(&key(source, secret)),
        }
    }

    /// The same keys under the same labels, with the same windows, in the same order.
    pub(super) fn same_as(&self, other: &Self) -> bool {
        let same = |(one, two): (&Secret, &Secret)| {
            one.same_key(two) && one.label() == two.label() && one.window() == two.window()
        };
        self.entries.len() == other.entries.len() && self.iter().zip(other.iter()).all(same)
    }

    /// The set that follows this one, if a whole one was given: what is wrong is said about that.
    pub(super) fn given(
        &self,
        newest_first: impl IntoIterator<Item = Secret>,
    ) -> Result<Self, SecretError> {
        // An endless iterator ends here as well.
        let mut given = newest_first.into_iter().take(COUNTED);
        let secrets: Vec<_> = given.by_ref().take(MOST).collect();
        let more = given.count();
        if more > 0 {
            return Err(SecretError::TooManyGiven(secrets.len() + more));
        }
        self.replaced(secrets).map_err(|error| match error {
            SecretError::None => SecretError::NoneGiven,
            SecretError::DuplicateKey => SecretError::SameKeyGiven,
            other => other,
        })
    }

    /// The set that follows this one. Keys that stay keep their age and, unless they come with another, their label.
    pub(super) fn replaced(
        &self,
        newest_first: impl IntoIterator<Item = Secret>,
    ) -> Result<Self, SecretError> {
        let mut next = Self {
            entries: Vec::with_capacity(MOST),
            count: self.count,
        };
        for secret in newest_first {
            if next.entries.len() == MOST {
                return Err(SecretError::TooMany);
            }
            let known = self
                .entries
                .iter()
                .find(|entry| entry.secret.same_key(&secret));
            next.entries.push(match known {
                Some(known) => Entry {
                    secret: known.secret.with_settings_of(&secret),
                    since: known.since,
                    last_verified: Arc::clone(&known.last_verified),
                    counted: OnceLock::new(),
                },
                None => Entry {
                    secret,
                    since: Instant::now(),
                    last_verified: Arc::new(AtomicI64::new(NEVER)),
                    counted: OnceLock::new(),
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

fn key(source: &str, secret: &Secret) -> Key {
    let labels = vec![
        Label::new("source", source.to_owned()),
        Label::new("secret", secret.shared_label()),
    ];
    Key::from_parts("inbox_verified_total", labels)
}

/// As the macros of `metrics` do: the recorder may be installed later, or be one thread's own.
fn count(key: &Key) {
    static METADATA: Metadata<'static> =
        Metadata::new(module_path!(), Level::INFO, Some(module_path!()));
    with_recorder(|recorder| recorder.register_counter(key, &METADATA).increment(1));
}

impl fmt::Debug for SecretSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list()
            .entries(self.iter().map(Secret::label))
            .finish()
    }
}
