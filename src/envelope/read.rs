//! Reading an envelope as its mapping says.

use std::borrow::Cow;

use http::{HeaderMap, HeaderName};
use serde_json::value::RawValue;
use sha2::{Digest as _, Sha256};

use super::canonical;
use super::error::{EnvelopeError, Field};
use super::mapping::{Compared, Handshake, Lookup, Mapping, Names, Place};
use super::text::{CorrelationId, EventId, EventType, InvalidText, Sequence};
use super::{Envelope, Reading};
use crate::verify::json::{self, JsonError, Members};
use crate::verify::{Verified, time};

impl Mapping {
    /// Reads the envelope of a verified delivery, or the handshake that it is.
    ///
    /// # Errors
    /// No usable event id, or something about the order that cannot be right (§4.9): answer 400 with the error's text.
    pub fn read(
        &self,
        verified: &Verified,
        headers: &HeaderMap,
        body: &[u8],
    ) -> Result<Reading, EnvelopeError> {
        let request = self.request(headers, body);
        if let Some(reply) = self
            .handshake
            .map(|how| request.handshake(how, verified))
            .transpose()?
            .flatten()
        {
            return Ok(Reading::Handshake(reply));
        }
        let envelope = self.envelope(&request)?;
        if self.is_control(envelope.event_type.as_deref()) {
            return Ok(Reading::Control(envelope));
        }
        self.check_version(&request, &envelope)?;
        Ok(Reading::Event(envelope))
    }

    /// The envelope of what came by another way than a signed delivery, such as a list that was asked for.
    pub(crate) fn read_aside(
        &self,
        headers: &HeaderMap,
        body: &[u8],
    ) -> Result<Envelope, EnvelopeError> {
        let request = self.request(headers, body);
        let envelope = self.envelope(&request)?;
        if !self.is_control(envelope.event_type.as_deref()) {
            self.check_version(&request, &envelope)?;
        }
        Ok(envelope)
    }

    /// An event id as somebody else writes it, in the form that it is kept in.
    pub(crate) fn event_id(&self, text: &str) -> Option<EventId> {
        let text = normal(Field::EventId, &self.event_id, Cow::Borrowed(text)).ok()?;
        EventId::new(&*text).ok()
    }

    fn request<'r, 'n>(&'n self, headers: &'r HeaderMap, body: &'r [u8]) -> Request<'r, 'n> {
        Request {
            headers,
            body,
            members: Members::read(body, self.members()),
        }
    }

    fn envelope(&self, request: &Request<'_, '_>) -> Result<Envelope, EnvelopeError> {
        let body = request.body;
        let id = request.source(Field::EventId, &self.event_id)?;
        let id = id.ok_or_else(|| request.missing(Field::EventId, &self.event_id.place))?;
        let mut envelope = Envelope::new(
            identifier(Field::EventId, &self.event_id, &id, EventId::new)?,
            [0; 16],
        );
        if let Some(source) = &self.event_type {
            let text = request.source(Field::EventType, source)?;
            envelope.event_type = text
                .map(|text| identifier(Field::EventType, source, &text, EventType::new))
                .transpose()?;
        }
        if let Some(source) = &self.correlation_id {
            let text = request.source(Field::CorrelationId, source)?;
            envelope.correlation_id = text
                .map(|text| identifier(Field::CorrelationId, source, &text, CorrelationId::new))
                .transpose()?;
        }
        envelope.sequence = self
            .sequence
            .as_ref()
            .map(|source| request.sequence(source))
            .transpose()?
            .flatten();
        self.check_order(&envelope)?;
        envelope.version = self
            .version
            .as_ref()
            .map(|source| request.version(source))
            .transpose()?
            .flatten();
        envelope.attempt = request
            .lenient(self.attempt.as_ref())
            .and_then(|text| text.parse().ok());
        envelope.first_sent_at = request
            .lenient(self.first_sent_at.as_ref())
            .and_then(time::rfc3339)
            .map(|(at, _)| at);
        envelope.replay_of = request
            .lenient(self.replay_of.as_ref())
            .and_then(|text| EventId::new(text).ok())
            .filter(|other| *other != envelope.event_id);
        envelope.fingerprint = match self.content.compared() {
            Compared::RawBody => canonical::of_bytes(body),
            Compared::TypeAndData => match &request.members {
                Ok(members) => canonical::of_type_and_data(
                    envelope.event_type.as_deref(),
                    members.last(DATA).map(RawValue::get),
                ),
                Err(_) => canonical::of_bytes(body),
            },
        };
        Ok(envelope)
    }

    fn check_version(
        &self,
        request: &Request<'_, '_>,
        envelope: &Envelope,
    ) -> Result<(), EnvelopeError> {
        let Some(source) = &self.version else {
            return Ok(());
        };
        if envelope.version.is_none() {
            return Err(request.missing(Field::Version, &source.place));
        }
        if envelope.correlation_id.is_none() {
            let reason = "is missing, and a version is one of some entity";
            let place = described(&self.correlation_id);
            return Err(EnvelopeError::new(Field::CorrelationId, place, reason));
        }
        Ok(())
    }

    fn check_order(&self, envelope: &Envelope) -> Result<(), EnvelopeError> {
        match (&envelope.correlation_id, envelope.sequence) {
            (None, Some(_)) => {
                let reason =
                    "is missing, and the event has a sequence: an order is one of some entity";
                Err(EnvelopeError::new(
                    Field::CorrelationId,
                    described(&self.correlation_id),
                    reason,
                ))
            }
            (_, Some(sequence)) if sequence.get() < self.first_sequence => {
                let reason = format!("is {sequence}; the first one is {}", self.first_sequence);
                Err(EnvelopeError::new(
                    Field::Sequence,
                    described(&self.sequence),
                    reason,
                ))
            }
            // A version is an order too, and demanded where it is mapped.
            (_, None) if self.version.is_some() => Ok(()),
            (None, None) if self.order_required => {
                let reason = "is missing; this source takes ordered events only";
                Err(EnvelopeError::new(
                    Field::CorrelationId,
                    described(&self.correlation_id),
                    reason,
                ))
            }
            (Some(_), None) if self.order_required => {
                let reason = "is missing; this source takes ordered events only";
                Err(EnvelopeError::new(
                    Field::Sequence,
                    described(&self.sequence),
                    reason,
                ))
            }
            _ => Ok(()),
        }
    }

    /// The first names of all that is read from the body, so that one pass finds them.
    fn members(&self) -> Names<'_> {
        let mut names = Names::new();
        let optional = [
            &self.event_type,
            &self.correlation_id,
            &self.sequence,
            &self.version,
        ];
        for source in std::iter::once(&self.event_id).chain(optional.into_iter().flatten()) {
            source.place.members(&mut names);
        }
        if self.content.compared() == Compared::TypeAndData {
            names.push(DATA);
        }
        match self.handshake {
            Some(Handshake::SlackChallenge) => names.extend(["type", "challenge"]),
            Some(Handshake::ZoomValidation) => names.extend(["event", "payload"]),
            None => {}
        }
        names
    }
}

/// Where a part is looked for, for people.
fn described(source: &Option<Lookup>) -> String {
    match source {
        None => "not mapped".to_owned(),
        Some(source) => source.place.to_string(),
    }
}

/// The member that carries the payload where type and payload are compared.
const DATA: &str = "data";

pub(super) struct Request<'r, 'n> {
    headers: &'r HeaderMap,
    body: &'r [u8],
    members: Result<Members<'r, 'n>, JsonError>,
}

impl<'r> Request<'r, '_> {
    /// The text of one part; `None` if it is not there.
    fn source(&self, field: Field, source: &Lookup) -> Result<Option<Cow<'r, str>>, EnvelopeError> {
        let text = self
            .text(field, &source.place)?
            .map(|text| normal(field, source, text))
            .transpose()?;
        if let Some(header) = &source.agrees {
            let sent = self
                .header(field, header)?
                .map(|sent| normal(field, source, Cow::Borrowed(sent)))
                .transpose()?;
            if sent.is_some() && sent != text {
                return Err(disagrees(field, source, header));
            }
        }
        Ok(text)
    }

    pub(super) fn text(
        &self,
        field: Field,
        place: &Place,
    ) -> Result<Option<Cow<'r, str>>, EnvelopeError> {
        match place {
            Place::Header(name) => Ok(self.header(field, name)?.map(Cow::Borrowed)),
            Place::Json(_) => {
                let Some(value) = self.value(field, place)? else {
                    return Ok(None);
                };
                let reason = "is no JSON string of valid text";
                json::text(value)
                    .map(Some)
                    .ok_or_else(|| EnvelopeError::new(field, place, reason))
            }
            Place::JsonInteger(_) => {
                let Some(value) = self.value(field, place)? else {
                    return Ok(None);
                };
                let digits = is_integer(value.get()).then(|| Cow::Borrowed(value.get()));
                digits
                    .map(Some)
                    .ok_or_else(|| EnvelopeError::new(field, place, "is no JSON integer"))
            }
            Place::FirstOf(places) => {
                for place in places {
                    if let Some(text) = self.text(field, place)? {
                        return Ok(Some(text));
                    }
                }
                Ok(None)
            }
            Place::Composed(places) => {
                let mut all = String::new();
                for place in places {
                    // A missing part must not become an empty one: all such events would share a key.
                    let Some(text) = self.text(field, place)? else {
                        return Ok(None);
                    };
                    all.push_str(&format!("{}:{text}", text.len()));
                }
                Ok(Some(Cow::Owned(all)))
            }
            Place::BodyDigest => Ok(Some(Cow::Owned(hex::encode(Sha256::digest(self.body))))),
        }
    }

    /// The JSON value at a path. `null` is as good as not there, and so is a body that is no JSON object.
    pub(super) fn value(
        &self,
        field: Field,
        place: &Place,
    ) -> Result<Option<&'r RawValue>, EnvelopeError> {
        let (Place::Json(path) | Place::JsonInteger(path), Ok(members)) = (place, &self.members)
        else {
            return Ok(None);
        };
        let value = members
            .at(path)
            .map_err(|error| EnvelopeError::new(field, place, error.to_string()))?;
        Ok(value.filter(|value| value.get() != "null"))
    }

    fn header(&self, field: Field, name: &HeaderName) -> Result<Option<&'r str>, EnvelopeError> {
        let mut values = self.headers.get_all(name).iter();
        let Some(value) = values.next() else {
            return Ok(None);
        };
        let error = |reason| EnvelopeError::new(field, format!("header {name}"), reason);
        if values.next().is_some() {
            return Err(error("is sent more than once"));
        }
        value.to_str().map(Some).map_err(|_| error("is not ASCII"))
    }

    /// A header that is only told on: what is wrong with it does not matter.
    fn lenient(&self, name: Option<&HeaderName>) -> Option<&'r str> {
        self.headers.get(name?)?.to_str().ok()
    }

    fn missing(&self, field: Field, place: &Place) -> EnvelopeError {
        let mut names = Names::new();
        place.members(&mut names);
        match &self.members {
            Err(error) if !names.is_empty() => EnvelopeError::new(field, place, error.to_string()),
            _ => EnvelopeError::new(field, place, "is missing"),
        }
    }

    fn sequence(&self, source: &Lookup) -> Result<Option<Sequence>, EnvelopeError> {
        let (field, place) = (Field::Sequence, &source.place);
        let parse = |place: &dyn ToString, digits: &str| {
            let reason = "is no integer from 0 to 9223372036854775806 in plain decimal digits";
            Sequence::parse(digits)
                .ok_or_else(|| EnvelopeError::new(field, place.to_string(), reason))
        };
        let sequence = match place {
            // Not by its text: a string of digits is no JSON integer.
            Place::Json(_) | Place::JsonInteger(_) => self
                .value(field, place)?
                .map(|value| parse(place, value.get()))
                .transpose()?,
            _ => self
                .text(field, place)?
                .map(|digits| parse(place, &digits))
                .transpose()?,
        };
        if let Some(header) = &source.agrees {
            let name = format!("header {header}");
            let sent = self
                .header(field, header)?
                .map(|digits| parse(&name, digits))
                .transpose()?;
            if sent.is_some() && sent != sequence {
                return Err(disagrees(field, source, header));
            }
        }
        Ok(sequence)
    }

    fn version(&self, source: &Lookup) -> Result<Option<i64>, EnvelopeError> {
        let number = self
            .value(Field::Version, &source.place)?
            .filter(|value| is_integer(value.get()));
        let text = match number {
            Some(number) => Some(Cow::Borrowed(number.get())),
            None => self.source(Field::Version, source)?,
        };
        let Some(text) = text else { return Ok(None) };
        let integer = is_integer(&text).then(|| text.parse().ok()).flatten();
        let version = integer.or_else(|| time::rfc3339(&text).map(|(at, _)| at.as_micros()));
        let reason = "is neither a 64-bit integer nor an RFC 3339 time";
        version
            .map(Some)
            .ok_or_else(|| EnvelopeError::new(Field::Version, &source.place, reason))
    }
}

fn normal<'r>(
    field: Field,
    source: &Lookup,
    text: Cow<'r, str>,
) -> Result<Cow<'r, str>, EnvelopeError> {
    use crate::verify::IdForm;
    match source.form {
        IdForm::Verbatim => Ok(text),
        form => form.normalise(&text).map(Cow::Owned).ok_or_else(|| {
            EnvelopeError::new(field, &source.place, format!("is not in the form {form:?}"))
        }),
    }
}

fn identifier<'t, T>(
    field: Field,
    source: &Lookup,
    text: &'t str,
    new: impl Fn(&'t str) -> Result<T, InvalidText>,
) -> Result<T, EnvelopeError> {
    new(text).map_err(|invalid| EnvelopeError::new(field, &source.place, invalid.to_string()))
}

fn disagrees(field: Field, source: &Lookup, header: &HeaderName) -> EnvelopeError {
    EnvelopeError::new(
        field,
        &source.place,
        format!("does not agree with header {header}"),
    )
}

fn is_integer(text: &str) -> bool {
    let digits = text.strip_prefix('-').unwrap_or(text);
    !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit())
}
