//! Why an envelope could not be read: it names the field and the reason, for the producer.

use std::borrow::Cow;
use std::fmt;

/// A part of an envelope.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Field {
    /// The event id.
    EventId,
    /// The event type.
    EventType,
    /// The correlation id.
    CorrelationId,
    /// The sequence.
    Sequence,
    /// The version.
    Version,
    /// The producer's handshake.
    Handshake,
    /// The array of events in one request.
    Elements,
}

impl Field {
    /// Its name.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::EventId => "event id",
            Self::EventType => "event type",
            Self::CorrelationId => "correlation id",
            Self::Sequence => "sequence",
            Self::Version => "version",
            Self::Handshake => "handshake",
            Self::Elements => "elements",
        }
    }
}

/// A verified delivery has no usable envelope: 400 (§4.9).
///
/// [`Display`](fmt::Display) is for the producer, who signed what it is about: it names the field, where it was looked
/// for, and what is wrong with it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EnvelopeError {
    field: Field,
    place: String,
    reason: Cow<'static, str>,
}

impl EnvelopeError {
    pub(super) fn new(
        field: Field,
        place: impl ToString,
        reason: impl Into<Cow<'static, str>>,
    ) -> Self {
        Self {
            field,
            place: place.to_string(),
            reason: reason.into(),
        }
    }

    /// Which part of the envelope it is about.
    pub fn field(&self) -> Field {
        self.field
    }

    /// Where it was looked for: the name of a header or the path of a body's field.
    pub fn place(&self) -> &str {
        &self.place
    }
}

impl fmt::Display for EnvelopeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} ({}): {}",
            self.field.as_str(),
            self.place,
            self.reason
        )
    }
}

impl std::error::Error for EnvelopeError {}
