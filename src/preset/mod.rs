//! Presets: one row for each producer that is known by name.
//!
//! A new one is a row of `table.rs`, and data only.
//!
//! | preset | signature header | event id | id is signed | order |
//! |---|---|---|---|---|
//! | [`kudos`](Preset::KUDOS) | `X-Kudos-Signature` | `event_id` of the body | yes | `correlation_id`, `sequence` of the body |
//! | [`sequenced`](Preset::SEQUENCED) | `X-Signature` | `event_id` of the body | yes | `correlation_id`, `sequence` of the body |
//! | [`brief`](Preset::BRIEF) | `X-Signature` | header `Idempotency-Key` | yes | — |
//! | [`standard`](Preset::STANDARD) | `webhook-signature` | header `webhook-id` | yes | `correlation_id`, `sequence` of the body, if there |
//! | [`svix`](Preset::SVIX) | `svix-signature` | header `svix-id` | yes | `correlation_id`, `sequence` of the body, if there |
//! | [`stripe`](Preset::STRIPE) | `Stripe-Signature` | `id` of the body | yes | — |
//! | [`github`](Preset::GITHUB) | `X-Hub-Signature-256` | header `X-GitHub-Delivery` | **no** | — |
//! | [`shopify`](Preset::SHOPIFY) | `X-Shopify-Hmac-Sha256` | header `X-Shopify-Webhook-Id` | **no** | — |
//! | [`slack`](Preset::SLACK) | `X-Slack-Signature` | `event_id` of the body | yes | — |
//! | [`zoom`](Preset::ZOOM) | `x-zm-signature` | SHA-256 of the body | yes | — |
//! | [`paddle`](Preset::PADDLE) | `Paddle-Signature` | `event_id` of the body | yes | — |
//! | [`linear`](Preset::LINEAR) | `Linear-Signature` | header `Linear-Delivery` | **no** | — |
//! | [`square`](Preset::SQUARE) | `x-square-hmacsha256-signature` | `event_id` of the body | yes | — |
//!
//! Each preset's own page has the rest: the format of the header, the signed message, and how a secret becomes a key.
//! Headers are named in the spelling of their producers; case does not matter. Where the id is not signed, a source
//! needs a fence (§6.7).

mod answers;
mod table;

use std::time::Duration;

pub use self::answers::{Answers, Codes, Reaction};

use crate::envelope::Mapping;
use crate::verify::{KeyEncoding, Scheme, SchemeBuilder};

/// What is known about a producer: how it signs, identifies and orders its events, and how it retries.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Preset {
    /// Its name, as in `/webhooks/<name>`.
    pub name: &'static str,
    /// Where the facts of this row are from.
    pub documented_at: &'static str,
    /// How the text of its secrets becomes a key.
    pub key: KeyEncoding,
    /// How long it waits for an answer.
    pub patience: Duration,
    /// From the first attempt of a delivery to its last one.
    pub retry_span: Duration,
    /// For how long after the event it can be sent again on demand, where the producer says so.
    pub replay_window: Duration,
    /// What it does after each status code of an answer.
    pub answers: Answers,
    /// Whether it expects the first answer again when it sends an event again.
    pub stores_answers: bool,
    /// Event types whose content may honestly repeat, so that a fence on it must let them pass (§6.7).
    pub fence_exempt: &'static [&'static str],
    scheme: fn() -> SchemeBuilder,
    mapping: fn() -> Mapping,
}

impl Preset {
    /// The preset of this name.
    pub fn named(name: &str) -> Option<&'static Self> {
        Self::ALL.iter().find(|preset| preset.name == name)
    }

    /// How it signs.
    ///
    /// # Panics
    /// Never: a test builds the scheme of every row.
    pub fn scheme(&self) -> Scheme {
        (self.scheme)()
            .build()
            .expect("the schemes of presets are tested")
    }

    /// How it identifies and orders events.
    pub fn mapping(&self) -> Mapping {
        (self.mapping)()
    }

    /// Whether its event ids are covered by the signature. Computed; where they are not, a fence is needed (§6.7).
    pub fn id_is_covered(&self) -> bool {
        self.mapping().id_is_covered_by(&self.scheme())
    }

    /// For how long an event id must be kept at least: the longest time in which it can honestly come again.
    pub fn retention_floor(&self) -> Duration {
        self.replay_window + self.retry_span
    }

    /// How long a parked event waits for a gap by default: the producer's whole retry span and a quarter, within which
    /// an honest producer has sent the missing event; 5 minutes for `sequenced`, which says so itself (§5.4).
    pub fn recovery_window(&self) -> Duration {
        if self.name == Self::SEQUENCED.name {
            return Duration::from_secs(300);
        }
        self.retry_span + self.retry_span / 4
    }
}

#[cfg(test)]
mod tests;
