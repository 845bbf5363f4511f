//! Where a producer writes the parts of an envelope, as data.

use std::borrow::Cow;
use std::fmt;

use http::HeaderName;
use smallvec::SmallVec;

use crate::verify::{IdForm, JsonPath, Scheme};

/// Names of members: no more than these are read of a body as a rule.
pub(super) type Names<'n> = SmallVec<[&'n str; 8]>;

/// Where a text of an envelope is.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Place {
    /// At this path of the JSON body, as a string (a sequence or a version: as a number).
    Json(JsonPath),
    /// The digits of the integer at this path of the JSON body.
    JsonInteger(JsonPath),
    /// In this header, which must be single.
    Header(HeaderName),
    /// The first of these that is there.
    FirstOf(Vec<Place>),
    /// All of these, each with its length before it (`3:abc2:de`), so that no two lists are one text.
    Composed(Vec<Place>),
    /// The hexadecimal SHA-256 of the raw body, for producers that send no identifier and sign the whole body.
    BodyDigest,
}

impl Place {
    /// The path `event.type` is the member `type` of the object `event`.
    pub fn json(path: &'static str) -> Self {
        Self::Json(path.into())
    }

    /// A header, by its name in lower case.
    ///
    /// # Panics
    /// When it is no header name in lower case.
    pub fn header(name: &'static str) -> Self {
        Self::Header(HeaderName::from_static(name))
    }

    /// Whether the scheme's signature covers everything that can be read here. Computed (§6.7).
    pub fn is_covered_by(&self, scheme: &Scheme) -> bool {
        match self {
            Self::Json(path) | Self::JsonInteger(path) => scheme.covers_json(path),
            Self::Header(name) => scheme.covers_header(name),
            Self::FirstOf(places) | Self::Composed(places) => {
                places.iter().all(|place| place.is_covered_by(scheme))
            }
            Self::BodyDigest => scheme.covers_body(),
        }
    }

    /// The members of the body that are read, by their first names.
    pub(super) fn members<'p>(&'p self, into: &mut Names<'p>) {
        match self {
            Self::Json(path) | Self::JsonInteger(path) => into.push(path.first()),
            Self::FirstOf(places) | Self::Composed(places) => {
                places.iter().for_each(|place| place.members(into))
            }
            Self::Header(_) | Self::BodyDigest => {}
        }
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let list = |f: &mut fmt::Formatter<'_>, places: &[Self], joint: &str| {
            places.iter().enumerate().try_for_each(|(index, place)| {
                f.write_str(if index == 0 { "" } else { joint })?;
                place.fmt(f)
            })
        };
        match self {
            Self::Json(path) | Self::JsonInteger(path) => write!(f, "body {path}"),
            Self::Header(name) => write!(f, "header {name}"),
            Self::FirstOf(places) => list(f, places, " or "),
            Self::Composed(places) => list(f, places, " and "),
            Self::BodyDigest => f.write_str("the body's digest"),
        }
    }
}

/// Where one part of an envelope comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lookup {
    pub(super) place: Place,
    pub(super) form: IdForm,
    pub(super) agrees: Option<HeaderName>,
}

impl Lookup {
    /// In another form than byte for byte.
    #[must_use]
    pub fn in_form(mut self, form: IdForm) -> Self {
        self.form = form;
        self
    }

    /// This header, if it is sent, must say the same.
    ///
    /// # Panics
    /// When it is no header name in lower case.
    #[must_use]
    pub fn agreeing_with(mut self, header: &'static str) -> Self {
        self.agrees = Some(HeaderName::from_static(header));
        self
    }
}

impl From<Place> for Lookup {
    fn from(place: Place) -> Self {
        Self {
            place,
            form: IdForm::Verbatim,
            agrees: None,
        }
    }
}

/// What of two deliveries of one event is compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Compared {
    /// The raw body.
    RawBody,
    /// The event type and the value of the body's `data`, parsed and with its members sorted, so that JSON that was
    /// written anew is equal.
    TypeAndData,
}

/// What happens to a known event id with other content (§4.12).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ContentPolicy {
    /// Refused with 422.
    Reject(Compared),
    /// A duplicate like any other, counted and logged: honest bodies of this producer may differ.
    Note(Compared),
}

impl ContentPolicy {
    /// What is compared.
    pub const fn compared(self) -> Compared {
        match self {
            Self::Reject(compared) | Self::Note(compared) => compared,
        }
    }

    /// Whether other content is refused.
    pub const fn rejects(self) -> bool {
        matches!(self, Self::Reject(_))
    }
}

/// How a producer tries out an endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Handshake {
    /// Slack: `type` is `url_verification`; `challenge` goes back as plain text.
    SlackChallenge,
    /// Zoom: `event` is `endpoint.url_validation`; `payload.plainToken` goes back together with its HMAC.
    ZoomValidation,
}

/// Where a producer writes the parts of an envelope.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mapping {
    pub(super) event_id: Lookup,
    pub(super) event_type: Option<Lookup>,
    pub(super) correlation_id: Option<Lookup>,
    pub(super) sequence: Option<Lookup>,
    pub(super) version: Option<Lookup>,
    pub(super) first_sequence: i64,
    pub(super) order_required: bool,
    pub(super) attempt: Option<HeaderName>,
    pub(super) first_sent_at: Option<HeaderName>,
    pub(super) replay_of: Option<HeaderName>,
    pub(super) content: ContentPolicy,
    pub(super) control: Vec<Cow<'static, str>>,
    pub(super) replay: Option<(Cow<'static, str>, Cow<'static, str>)>,
    pub(super) handshake: Option<Handshake>,
}

impl Mapping {
    /// A mapping of the event id and nothing else. Other content of a known event is noted, by the raw body.
    pub fn new(event_id: impl Into<Lookup>) -> Self {
        Self {
            event_id: event_id.into(),
            event_type: None,
            correlation_id: None,
            sequence: None,
            version: None,
            first_sequence: 1,
            order_required: false,
            attempt: None,
            first_sent_at: None,
            replay_of: None,
            content: ContentPolicy::Note(Compared::RawBody),
            control: Vec::new(),
            replay: None,
            handshake: None,
        }
    }

    /// Where the event type is. Default: events have none.
    #[must_use]
    pub fn with_event_type(mut self, source: impl Into<Lookup>) -> Self {
        self.event_type = Some(source.into());
        self
    }

    /// Where the correlation id is. Default: events have none.
    #[must_use]
    pub fn with_correlation_id(mut self, source: impl Into<Lookup>) -> Self {
        self.correlation_id = Some(source.into());
        self
    }

    /// Where the sequence is. Default: events have none, and no order.
    #[must_use]
    pub fn with_sequence(mut self, source: impl Into<Lookup>) -> Self {
        self.sequence = Some(source.into());
        self
    }

    /// Where the version is, for newer-than order: an integer, or an RFC 3339 time. Events without it, or without a
    /// correlation id, are then refused. Default: events have none.
    #[must_use]
    pub fn with_version(mut self, source: impl Into<Lookup>) -> Self {
        self.version = Some(source.into());
        self
    }

    /// The lowest sequence that a stream can have; lower ones are refused. Default: 1. For streams that are adopted
    /// where they stand, 0.
    #[must_use]
    pub fn with_first_sequence(mut self, first: i64) -> Self {
        self.first_sequence = first.max(0);
        self
    }

    /// Refuses events without correlation id and sequence. Default: those are unordered.
    #[must_use]
    pub fn with_order_required(mut self) -> Self {
        self.order_required = true;
        self
    }

    /// The header with the number of the attempt.
    ///
    /// # Panics
    /// When it is no header name in lower case.
    #[must_use]
    pub fn with_attempt(mut self, header: &'static str) -> Self {
        self.attempt = Some(HeaderName::from_static(header));
        self
    }

    /// The header with the time of the first attempt, in RFC 3339.
    ///
    /// # Panics
    /// When it is no header name in lower case.
    #[must_use]
    pub fn with_first_sent_at(mut self, header: &'static str) -> Self {
        self.first_sent_at = Some(HeaderName::from_static(header));
        self
    }

    /// The header that names the event which this one repeats. It is not signed: no key, and no reason to refuse.
    ///
    /// # Panics
    /// When it is no header name in lower case.
    #[must_use]
    pub fn with_replay_of(mut self, header: &'static str) -> Self {
        self.replay_of = Some(HeaderName::from_static(header));
        self
    }

    /// What happens to a known event with other content. Default: noted, by the raw body.
    #[must_use]
    pub fn with_content_policy(mut self, policy: ContentPolicy) -> Self {
        self.content = policy;
        self
    }

    /// The event types by which the producer tells about its deliveries. Default: none.
    #[must_use]
    pub fn with_control_types(mut self, types: impl IntoIterator<Item = &'static str>) -> Self {
        self.control = types.into_iter().map(Cow::Borrowed).collect();
        self
    }

    /// The event types by which the producer says that it begins to send old events again, and that it has done so: control
    /// types too. They say in `data` what is sent (`since`, `until`, `event_type`), and how many events it was
    /// (`events_emitted`). Default: none.
    #[must_use]
    pub fn with_replay_types(mut self, started: &'static str, completed: &'static str) -> Self {
        self.control.extend([started.into(), completed.into()]);
        self.replay = Some((started.into(), completed.into()));
        self
    }

    /// The types of [`Mapping::with_replay_types`].
    pub(crate) fn replay_types(&self) -> Option<(&str, &str)> {
        let (started, completed) = self.replay.as_ref()?;
        Some((started, completed))
    }

    /// Whether this event type is one by which the producer tells about its deliveries.
    pub(crate) fn is_control(&self, event_type: Option<&str>) -> bool {
        event_type.is_some_and(|kind| self.control.iter().any(|one| one == kind))
    }

    /// How the producer tries out an endpoint. Default: not at all.
    #[must_use]
    pub fn with_handshake(mut self, handshake: Handshake) -> Self {
        self.handshake = Some(handshake);
        self
    }

    /// The event id is in a header, so that a request can carry one event only.
    pub(crate) fn id_is_in_header(&self) -> bool {
        matches!(self.event_id.place, Place::Header(_))
    }

    /// The header that has the event id.
    pub(crate) fn id_header(&self) -> Option<&HeaderName> {
        match &self.event_id.place {
            Place::Header(name) => Some(name),
            _ => None,
        }
    }

    pub(crate) fn without_sequence(mut self) -> Self {
        self.sequence = None;
        self
    }

    /// Whether events are ordered by their versions.
    pub fn has_version(&self) -> bool {
        self.version.is_some()
    }

    pub(crate) fn has_correlation_id(&self) -> bool {
        self.correlation_id.is_some()
    }

    /// Whether events have a place in an order.
    pub fn has_sequence(&self) -> bool {
        self.sequence.is_some()
    }

    /// What happens to a known event with other content.
    pub fn content_policy(&self) -> ContentPolicy {
        self.content
    }

    /// The lowest sequence that a stream can have.
    pub fn first_sequence(&self) -> i64 {
        self.first_sequence
    }

    /// Whether the event id is covered by the scheme's signature. Computed; where it is not, the id alone must not be
    /// the key (§6.7).
    pub fn id_is_covered_by(&self, scheme: &Scheme) -> bool {
        self.event_id.place.is_covered_by(scheme)
    }
}
