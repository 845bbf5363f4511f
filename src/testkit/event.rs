//! What happened at a producer, before it is anybody's request.

use bytes::Bytes;
use serde_json::{Map, Value};

use super::request::SignedRequest;
use super::write;
use crate::preset::Preset;

/// An event, without anything that is one producer's own: [`event`](super::event) begins one, and
/// [`Event::request`] makes it a delivery of a producer.
#[derive(Clone, Debug, PartialEq)]
#[must_use]
pub struct Event {
    pub(super) id: String,
    pub(super) kind: Option<String>,
    pub(super) correlation_id: Option<String>,
    pub(super) sequence: Option<i64>,
    pub(super) content: Content,
}

/// What the body is made from.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Content {
    /// An object of the kit's, with these members.
    Members(Map<String, Value>),
    /// An object that the test has whole; what identifies the event is written into it.
    Object(Map<String, Value>),
    /// Bytes that nothing is written into.
    Raw(Bytes),
}

impl Event {
    pub(super) fn new(id: String) -> Self {
        Self {
            id,
            kind: None,
            correlation_id: None,
            sequence: None,
            content: Content::Members(Map::new()),
        }
    }

    /// The event type. Without: `test.event`.
    pub fn kind(mut self, kind: impl Into<String>) -> Self {
        self.kind = Some(kind.into());
        self
    }

    /// The member `data` of the body.
    #[track_caller]
    pub fn data(self, data: impl Into<Value>) -> Self {
        self.with("data", data)
    }

    /// A member of the body, such as a time or a version that the source reads.
    ///
    /// # Panics
    /// If the body is [raw](Event::raw_body).
    #[track_caller]
    pub fn with(mut self, name: &str, value: impl Into<Value>) -> Self {
        match &mut self.content {
            Content::Members(members) | Content::Object(members) => {
                members.insert(name.to_owned(), value.into());
            }
            Content::Raw(_) => panic!("nothing is written into the raw body of {}", self.id),
        }
        self
    }

    /// The whole body, an object: a payload that was captured, say. Id, type and place in the order are written into it
    /// where the producer has them.
    ///
    /// # Panics
    /// If it is no object.
    #[track_caller]
    pub fn body(mut self, body: impl Into<Value>) -> Self {
        match body.into() {
            Value::Object(members) => self.content = Content::Object(members),
            other => panic!("the body of {} is no JSON object: {other}", self.id),
        }
        self
    }

    /// The whole body, byte for byte. Nothing is written into it: the id and all else must be there already, unless
    /// headers have them.
    pub fn raw_body(mut self, body: impl Into<Bytes>) -> Self {
        self.content = Content::Raw(body.into());
        self
    }

    /// Its place in an order: a correlation id and a sequence.
    pub fn stream(mut self, correlation_id: impl Into<String>, sequence: i64) -> Self {
        self.correlation_id = Some(correlation_id.into());
        self.sequence = Some(sequence);
        self
    }

    /// A correlation id without a place in its order.
    pub fn correlation_id(mut self, id: impl Into<String>) -> Self {
        self.correlation_id = Some(id.into());
        self
    }

    /// The id that it was begun with.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// The delivery of this event by a producer, signed with this secret: `POST /webhooks/<name of the preset>`, unless
    /// it is said otherwise.
    ///
    /// # Panics
    /// If the producer has no place for something that the event has: an order for Stripe, say.
    #[track_caller]
    pub fn request(&self, preset: Preset, secret: impl Into<String>) -> SignedRequest {
        write::check(self, &preset);
        SignedRequest::new(self.clone(), preset, secret.into())
    }

    /// What the inbox takes for this event's id when this producer sends it. As a rule its own; for `brief`, whose ids are
    /// UUIDs, one that is made from it if it is none; for `zoom`, which sends none, a digest of the body.
    pub fn id_at(&self, preset: &Preset) -> String {
        write::event_id(self, preset)
    }
}
