//! The envelope: what identifies an event and orders it, read from a verified delivery.
//!
//! A [`Mapping`] says, as data, where a producer writes that; [`Mapping::read`] demands a [`Verified`], so that nothing
//! is read from a delivery whose signature was not checked.
//!
//! [`Verified`]: crate::verify::Verified

mod canonical;
mod elements;
mod error;
mod handshake;
mod mapping;
#[cfg(feature = "testkit")]
mod places;
mod read;
mod text;

use std::sync::Arc;

use bytes::Bytes;
use sha2::{Digest as _, Sha256};

pub(crate) use self::elements::Elements;
pub use self::error::{EnvelopeError, Field};
pub use self::mapping::{Compared, ContentPolicy, Handshake, Lookup, Mapping, Place};
#[cfg(feature = "testkit")]
pub(crate) use self::places::Written;
pub use self::text::{CorrelationId, EventId, EventType, InvalidText, MAX_BYTES, Sequence};

use crate::clock::Timestamp;

/// What identifies an event, orders it, and tells about its delivery.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Envelope {
    /// Identifies the event within its source.
    pub event_id: EventId,
    /// What kind of event it is.
    pub event_type: Option<EventType>,
    /// What it is about. Without a sequence it is context and orders nothing.
    pub correlation_id: Option<CorrelationId>,
    /// Its position among the events of its correlation id; only together with that.
    pub sequence: Option<Sequence>,
    /// Its version among the events of its correlation id, for sources that apply what is newer (§5.12): an integer, or
    /// an instant in µs since the epoch.
    pub version: Option<i64>,
    /// Which attempt the producer says this is. Not signed: for people, not for decisions.
    pub attempt: Option<u32>,
    /// When the producer says that it first sent the event. Not signed: for people, not for decisions.
    pub first_sent_at: Option<Timestamp>,
    /// Another event that the producer says this one repeats. Not signed, and never a key.
    pub replay_of: Option<EventId>,
    /// Of the content, as the source's policy compares it (§4.12): the same for the same content.
    pub fingerprint: [u8; 16],
}

impl Envelope {
    /// An envelope of an identifier and nothing else.
    pub fn new(event_id: EventId, fingerprint: [u8; 16]) -> Self {
        Self {
            event_id,
            event_type: None,
            correlation_id: None,
            sequence: None,
            version: None,
            attempt: None,
            first_sent_at: None,
            replay_of: None,
            fingerprint,
        }
    }

    /// The event type as it is shared.
    pub(crate) fn kind(&self) -> Option<&Arc<str>> {
        self.event_type.as_ref().map(|kind| kind.as_arc())
    }

    /// The content and the place together: what two deliveries of one event have in common, in memory.
    pub(crate) fn print(&self) -> Fingerprint {
        let Some((correlation_id, sequence)) = self.order() else {
            return self.fingerprint;
        };
        // The other two parts have a fixed length, so that no two triples are one text.
        let digest = Sha256::new()
            .chain_update(self.fingerprint)
            .chain_update(sequence.get().to_be_bytes())
            .chain_update(correlation_id.as_bytes())
            .finalize();
        let mut print = Fingerprint::default();
        print.copy_from_slice(&digest[..16]);
        print
    }

    /// Whether it is ordered among the events of its correlation id, by sequence or by version.
    pub(crate) fn is_ordered(&self) -> bool {
        self.correlation_id.is_some() && (self.sequence.is_some() || self.version.is_some())
    }

    /// Correlation id and sequence, if the event has its place in an order.
    pub fn order(&self) -> Option<(&CorrelationId, Sequence)> {
        self.correlation_id.as_ref().zip(self.sequence)
    }
}

/// What a verified delivery turned out to be.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Reading {
    /// An event.
    Event(Envelope),
    /// An event by which the producer tells about its deliveries, such as the start of a replay. It is answered with an
    /// empty 200 unless the source hands such events on.
    Control(Envelope),
    /// The producer tries out the endpoint. Answered with this, and with 200.
    Handshake(HandshakeReply),
}

/// The answer to a handshake.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct HandshakeReply {
    /// For `Content-Type`.
    pub content_type: &'static str,
    /// The body.
    pub body: Bytes,
}

/// 16 bytes of a SHA-256 over what the content policy compares: enough, since whoever could look for a collision holds
/// the source's secret.
pub type Fingerprint = [u8; 16];

#[cfg(test)]
mod preset_tests;
#[cfg(test)]
mod tests;
