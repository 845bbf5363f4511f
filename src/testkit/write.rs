//! Writes an event where a preset's mapping reads it.

use bytes::Bytes;
use http::header::{CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};
use serde_json::{Map, Value};
use sha2::{Digest as _, Sha256};

use super::event::{Content, Event};
use crate::clock::Timestamp;
use crate::envelope::{Mapping, Place, Written};
use crate::preset::Preset;
use crate::verify::{IdForm, JsonPath, Unit, time};

/// The event type of an event that was given none: every producer sends one.
const KIND: &str = "test.event";
/// Tells bodies apart where nothing else would, so that the fence does not take two events for one.
const MARK: &str = "testkit_event";

/// Which attempt of an event a delivery is.
#[derive(Clone, Copy, Debug)]
pub(super) struct Attempt {
    /// From 1.
    pub(super) number: u32,
    pub(super) first_sent_at: Timestamp,
    /// By the producer's own clock.
    pub(super) at: Timestamp,
}

/// A request that is not signed yet.
#[derive(Debug)]
pub(super) struct Draft {
    pub(super) event_id: String,
    pub(super) headers: HeaderMap,
    pub(super) body: Bytes,
}

/// Whether the producer has a place for all that the event has.
///
/// # Panics
/// If it has not.
#[track_caller]
pub(super) fn check(event: &Event, preset: &Preset) {
    let (mapping, name) = (preset.mapping(), preset.name);
    let places = mapping.places();
    for (what, is_there, place) in [
        ("event type", event.kind.is_some(), places.event_type),
        (
            "correlation id",
            event.correlation_id.is_some(),
            places.correlation_id,
        ),
        ("sequence", event.sequence.is_some(), places.sequence),
    ] {
        assert!(
            !is_there || place.is_some(),
            "{name} has no place for the {what} of {}: its events have none",
            event.id
        );
    }
}

pub(super) fn event_id(event: &Event, preset: &Preset) -> String {
    let attempt = Attempt {
        number: 1,
        first_sent_at: Timestamp::default(),
        at: Timestamp::default(),
    };
    draft(event, preset, attempt).event_id
}

pub(super) fn draft(event: &Event, preset: &Preset, attempt: Attempt) -> Draft {
    let (mapping, scheme) = (preset.mapping(), preset.scheme());
    let places = mapping.places();
    let id = match places.id_form {
        IdForm::Verbatim => event.id.clone(),
        IdForm::Uuid => uuid(&event.id),
    };
    let mut draft = Writing::new(event);
    if matches!(event.content, Content::Members(_)) && !is_told_apart(&mapping, preset) {
        draft.member(&JsonPath::from(MARK), event.id.clone().into());
    }
    draft.part(places.event_id, &id.clone().into());
    if let Some(place) = places.event_type {
        draft.part(place, &event.kind.as_deref().unwrap_or(KIND).into());
    }
    if let (Some(place), Some(id)) = (places.correlation_id, &event.correlation_id) {
        draft.part(place, &id.as_str().into());
    }
    if let (Some(place), Some(sequence)) = (places.sequence, event.sequence) {
        draft.part(place, &sequence.into());
    }
    if attempt.number > 1 {
        let first = time::format(Unit::Rfc3339, attempt.first_sent_at);
        let number = attempt.number.to_string();
        for (name, text) in [
            (places.attempt, &number),
            (places.first_sent_at, &first),
            (places.replay_of, &id),
        ] {
            if let Some(name) = name {
                draft.header(name, text);
            }
        }
    }
    if let Some((path, unit)) = scheme.time_in_body() {
        let text = time::format(unit, attempt.at);
        let number = text.parse::<i64>().map(Value::from);
        draft.member(path, number.unwrap_or_else(|_| text.into()));
    }
    draft.finish(id, &mapping)
}

/// Whether no two events have the same body, or the signature covers their ids all the same.
fn is_told_apart(mapping: &Mapping, preset: &Preset) -> bool {
    mapping.places().event_id.place != &Place::BodyDigest && preset.id_is_covered()
}

struct Writing {
    headers: HeaderMap,
    /// Nothing if the body is raw.
    members: Option<Map<String, Value>>,
    raw: Bytes,
}

impl Writing {
    fn new(event: &Event) -> Self {
        let mut headers = HeaderMap::new();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        let (members, raw) = match &event.content {
            Content::Members(members) | Content::Object(members) => {
                (Some(members.clone()), Bytes::new())
            }
            Content::Raw(bytes) => (None, bytes.clone()),
        };
        Self {
            headers,
            members,
            raw,
        }
    }

    fn part(&mut self, written: Written<'_>, value: &Value) {
        if let Some(name) = written.agrees {
            self.header(name, &text(value));
        }
        self.place(written.place, value);
    }

    fn place(&mut self, place: &Place, value: &Value) {
        match place {
            Place::Json(path) => self.member(path, value.clone()),
            Place::JsonInteger(path) => match text(value).parse::<i64>() {
                Ok(number) => self.member(path, number.into()),
                Err(_) => panic!("body {path} holds an integer, and {value} is none"),
            },
            Place::Header(name) => self.header(name, &text(value)),
            Place::FirstOf(places) => {
                let first = places.first().expect("a list of places has one");
                self.place(first, value);
            }
            // The digest is what it is.
            Place::BodyDigest => {}
            Place::Composed(_) => {
                panic!("the test kit cannot write a text that is composed: {place}")
            }
        }
    }

    fn header(&mut self, name: &HeaderName, text: &str) {
        match HeaderValue::from_bytes(text.as_bytes()) {
            Ok(value) => drop(self.headers.insert(name.clone(), value)),
            Err(_) => panic!("{text:?} cannot be the value of a header: {name}"),
        }
    }

    fn member(&mut self, path: &JsonPath, value: Value) {
        let Some(members) = &mut self.members else {
            return;
        };
        let names: Vec<_> = path.names().collect();
        let (last, outer) = names.split_last().expect("a path has a name");
        let mut object = members;
        for name in outer {
            let inner = object
                .entry(*name)
                .or_insert_with(|| Value::Object(Map::new()));
            object = match inner {
                Value::Object(inner) => inner,
                _ => panic!("body {path} cannot be written: {name} is no object"),
            };
        }
        object.insert((*last).to_owned(), value);
    }

    fn finish(self, id: String, mapping: &Mapping) -> Draft {
        let body: Bytes = match self.members {
            Some(members) => Value::Object(members).to_string().into(),
            None => self.raw,
        };
        let event_id = match mapping.places().event_id.place {
            Place::BodyDigest => hex::encode(Sha256::digest(&body)),
            _ => id,
        };
        Draft {
            event_id,
            headers: self.headers,
            body,
        }
    }
}

/// As a header has it.
fn text(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

/// The text if it is a UUID, else one (version 4, as producers draw them) that is made from it.
fn uuid(text: &str) -> String {
    if let Some(uuid) = IdForm::Uuid.normalise(text) {
        return uuid;
    }
    let digest = Sha256::digest(text.as_bytes());
    let mut bytes: [u8; 16] = digest[..16].try_into().expect("a digest has 32 bytes");
    bytes[6] = bytes[6] & 0x0f | 0x40;
    bytes[8] = bytes[8] & 0x3f | 0x80;
    let hex = hex::encode(bytes);
    let parts = [0..8, 8..12, 12..16, 16..20, 20..32].map(|part| &hex[part]);
    parts.join("-")
}
