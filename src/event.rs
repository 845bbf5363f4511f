//! What a handler is told about the event in front of it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};

use crate::envelope::Envelope;

/// The delivery that a handler is running for: which event it carries, and how it came.
///
/// It is an axum extractor, and stands in the extensions of a plain request. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Delivery {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    source: Arc<str>,
    envelope: Envelope,
    origin: Origin,
    verdict: AtomicU8,
    routed: AtomicBool,
}

/// How an event reaches the handler.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Origin {
    /// With the producer waiting for the answer.
    Live,
    /// From the table of parked events: nobody waits for the answer.
    Drained,
    /// From a producer's list of what it gave up, or has delivered ([`reconcile`](crate::reconcile)): nobody waits for the
    /// answer.
    Reconciled,
}

impl Delivery {
    pub(crate) fn new(source: Arc<str>, envelope: Envelope, origin: Origin) -> Self {
        Self {
            shared: Arc::new(Shared {
                source,
                envelope,
                origin,
                verdict: AtomicU8::new(UNSTATED),
                routed: AtomicBool::new(false),
            }),
        }
    }

    /// The name of the source.
    pub fn source(&self) -> &str {
        &self.shared.source
    }

    /// The event's identifiers.
    pub fn envelope(&self) -> &Envelope {
        &self.shared.envelope
    }

    /// The event id, the producer's own.
    pub fn event_id(&self) -> &str {
        self.shared.envelope.event_id.as_str()
    }

    /// The event type, if the producer names one.
    pub fn event_type(&self) -> Option<&str> {
        self.shared
            .envelope
            .event_type
            .as_ref()
            .map(|kind| kind.as_str())
    }

    /// The correlation id: the entity that the event is about.
    pub fn correlation_id(&self) -> Option<&str> {
        self.shared
            .envelope
            .correlation_id
            .as_ref()
            .map(|id| id.as_str())
    }

    /// The event's place among those of its correlation id.
    pub fn sequence(&self) -> Option<i64> {
        self.shared.envelope.sequence.map(|sequence| sequence.get())
    }

    /// The event's version among those of its correlation id, where its source applies what is newer.
    pub fn version(&self) -> Option<i64> {
        self.shared.envelope.version
    }

    /// Whether the producer waits for the answer.
    pub fn origin(&self) -> Origin {
        self.shared.origin
    }

    /// States how the delivery is to end (§2.9). It beats the status of the answer, which an outer layer may have
    /// rewritten: [`Verdict::Commit`] means that a 2xx goes out (200 if the answer was something else), and
    /// [`Verdict::RollBack`] that never a 2xx does (500 if it was one). The last one stated counts.
    pub fn decide(&self, verdict: Verdict) {
        self.shared.verdict.store(verdict as u8, Ordering::Release);
    }

    pub(crate) fn decided(&self) -> Option<Verdict> {
        match self.shared.verdict.load(Ordering::Acquire) {
            COMMIT => Some(Verdict::Commit),
            ROLL_BACK => Some(Verdict::RollBack),
            _ => None,
        }
    }

    /// A route of a mounted router was reached.
    #[cfg(feature = "axum")]
    pub(crate) fn mark_routed(&self) {
        self.shared.routed.store(true, Ordering::Release);
    }

    pub(crate) fn was_routed(&self) -> bool {
        self.shared.routed.load(Ordering::Acquire)
    }
}

const UNSTATED: u8 = 0;
const COMMIT: u8 = 1;
const ROLL_BACK: u8 = 2;

/// A handler's stated outcome.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Verdict {
    /// The event is applied.
    Commit = COMMIT,
    /// Nothing of it is.
    RollBack = ROLL_BACK,
}

/// What the producer is told happened: the `Inbox-Outcome` header of every answer (§3).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Outcome {
    /// The handler's transaction has committed.
    Applied,
    /// It was applied before; nothing was done.
    Duplicate,
    /// Stored until the lower sequences have come.
    Parked,
    /// Taken note of without the handler: a handshake, a control event, or what a deferred source stores for the worker.
    Accepted,
    /// A verdict on this payload; sending it again as it is changes nothing.
    Rejected,
    /// It may go better another time.
    Failed,
}

impl Outcome {
    /// The value of the header.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Applied => "applied",
            Self::Duplicate => "duplicate",
            Self::Parked => "parked",
            Self::Accepted => "accepted",
            Self::Rejected => "rejected",
            Self::Failed => "failed",
        }
    }
}
