//! The secrets that are active at one moment.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Instant;

use super::ActiveSecret;
use crate::clock::Timestamp;
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

    pub(super) fn note(&self, label: &str, at: Timestamp) {
        let Some(entry) = self
            .entries
            .iter()
            .find(|entry| entry.secret.label() == label)
        else {
            // Revoked while its delivery was under way.
            return;
        };
        let at = at.as_micros();
        if at.saturating_sub(entry.last_verified.load(Ordering::Relaxed)) >= NOTED_EVERY {
            entry.last_verified.fetch_max(at, Ordering::Relaxed);
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
                },
                None => Entry {
                    secret,
                    since: Instant::now(),
                    last_verified: Arc::new(AtomicI64::new(NEVER)),
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

impl fmt::Debug for SecretSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list()
            .entries(self.iter().map(Secret::label))
            .finish()
    }
}
