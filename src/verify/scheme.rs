//! Signature schemes as data: what is signed, with which MAC, and where the signature is.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

use http::HeaderName;

use super::custom::CustomScheme;
use super::id::IdForm;
use super::json::JsonPath;
use super::mac::{Algorithm, Encoding};
use super::time::Unit;

/// Where the candidates for the signature are.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SignatureAt {
    /// In this header, which must be single.
    Header(HeaderName),
    /// In this header, which may be repeated: each value is looked at.
    RepeatableHeader(HeaderName),
    /// In any of these headers, each of which must be single.
    AnyHeader(Vec<HeaderName>),
    /// In the headers whose names are this (in lower case) and a number of one to three digits.
    NumberedHeader(Cow<'static, str>),
    /// In this string of the JSON body.
    Json(JsonPath),
}

/// Which part of an item is the encoded MAC.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Pick {
    /// All of it.
    Bare,
    /// What follows this prefix; items without it are not looked at.
    Prefix(Cow<'static, str>),
    /// What follows this prefix if it is there, else all of it.
    OptionalPrefix(Cow<'static, str>),
    /// The value of the items with this name: `v1` in `t=1,v1=ab`. Other names are not looked at.
    Field {
        /// Between name and value.
        separator: char,
        /// The name.
        name: Cow<'static, str>,
    },
}

/// Where the signed time is.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum TimestampAt {
    /// In this header, which must be single.
    Header(HeaderName),
    /// In the signature's header, under this name, once.
    Field(Cow<'static, str>),
    /// In the JSON body, as a number or a string; checked after the signature.
    Json(JsonPath),
}

/// Where an identifier that is signed beside the body is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IdAt {
    /// The header, which must be single.
    pub header: HeaderName,
    /// Its form, and so what is signed.
    pub form: IdForm,
}

/// One part of the signed message.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Part {
    /// Fixed text.
    Literal(Cow<'static, str>),
    /// The identifier, in its form.
    Id,
    /// The timestamp as received.
    Timestamp,
    /// The raw body.
    Body,
    /// The URL that is configured at the producer; never one rebuilt from the request.
    Url,
    /// The request's method.
    Method,
    /// The value of a header, which must be single.
    Header(HeaderName),
    /// The text of a string, or the digits of a number, of the JSON body.
    Json(JsonPath),
    /// The form in the body (`application/x-www-form-urlencoded`): names and values run together, decoded, in the order of
    /// the names; the values of one name sorted, each once. Twilio's. Nothing delimits them, so that text can be moved
    /// from a value into the name behind it: read the fields with that in mind.
    SortedForm,
}

impl From<&'static str> for Part {
    fn from(literal: &'static str) -> Self {
        Self::Literal(literal.into())
    }
}

/// A signature scheme. Cheap to clone.
#[derive(Clone)]
pub struct Scheme {
    pub(super) name: Cow<'static, str>,
    pub(super) kind: Kind,
}

#[derive(Clone)]
pub(super) enum Kind {
    Hmac(Arc<Hmac>),
    Custom(Arc<dyn CustomScheme>),
}

/// The data of an HMAC scheme.
#[derive(Clone, Debug)]
pub(super) struct Hmac {
    pub(super) algorithm: Algorithm,
    pub(super) encoding: Encoding,
    pub(super) at: SignatureAt,
    pub(super) split: Option<char>,
    pub(super) trim: bool,
    pub(super) pick: Pick,
    pub(super) timestamp: Option<(TimestampAt, Unit)>,
    pub(super) id: Option<IdAt>,
    pub(super) template: Vec<Part>,
}

/// Describes an HMAC scheme; made by [`Scheme::hmac`].
#[derive(Clone, Debug)]
#[must_use = "a description becomes a scheme by `build`"]
pub struct SchemeBuilder {
    name: Cow<'static, str>,
    hmac: Hmac,
}

/// Why a description is no usable scheme.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SchemeError {
    /// Nothing that the sender chooses is signed.
    NothingSigned,
    /// The message has a timestamp, and no place is given for it.
    NoTimestampPlace,
    /// A timestamp is read that is not signed: anybody could set it anew.
    UnsignedTimestamp,
    /// The message has an identifier, and no place is given for it.
    NoIdPlace,
    /// The identifier runs into the next part: two messages could be one text. A literal must follow it.
    UndelimitedId,
    /// A field is named, and items have no names.
    FieldWithoutPairs,
}

impl fmt::Display for SchemeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NothingSigned => "nothing is signed",
            Self::NoTimestampPlace => "the timestamp is signed, and its place is not given",
            Self::UnsignedTimestamp => "the timestamp is read, and it is not signed",
            Self::NoIdPlace => "the identifier is signed, and its place is not given",
            Self::UndelimitedId => "a literal must follow the identifier in the signed message",
            Self::FieldWithoutPairs => {
                "the timestamp is a field of the signature's header, and that has no named fields"
            }
        })
    }
}

impl std::error::Error for SchemeError {}

impl Scheme {
    /// Begins the description of an HMAC scheme. The defaults are one bare MAC in the header, as hex, over the raw body.
    pub fn hmac(
        name: impl Into<Cow<'static, str>>,
        algorithm: Algorithm,
        at: SignatureAt,
    ) -> SchemeBuilder {
        let hmac = Hmac {
            algorithm,
            encoding: Encoding::Hex,
            at,
            split: None,
            trim: false,
            pick: Pick::Bare,
            timestamp: None,
            id: None,
            template: vec![Part::Body],
        };
        SchemeBuilder {
            name: name.into(),
            hmac,
        }
    }

    /// A scheme that data cannot describe.
    pub fn custom(name: impl Into<Cow<'static, str>>, scheme: impl CustomScheme) -> Self {
        Self {
            name: name.into(),
            kind: Kind::Custom(Arc::new(scheme)),
        }
    }

    /// The scheme's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Whether an identifier beside the body is signed. Computed from the signed message (§6.7).
    pub fn covers_id(&self) -> bool {
        match &self.kind {
            Kind::Hmac(hmac) => hmac.template.contains(&Part::Id),
            Kind::Custom(custom) => custom.covers_id(),
        }
    }

    /// Whether the whole body is signed.
    pub fn covers_body(&self) -> bool {
        match &self.kind {
            Kind::Hmac(hmac) => hmac.template.contains(&Part::Body),
            Kind::Custom(custom) => custom.covers_body(),
        }
    }

    /// Whether the value of this header is signed.
    pub fn covers_header(&self, name: &HeaderName) -> bool {
        match &self.kind {
            Kind::Hmac(hmac) => hmac.template.iter().any(|part| match part {
                Part::Header(header) => header == name,
                Part::Id => hmac.id.as_ref().is_some_and(|id| id.header == *name),
                Part::Timestamp => {
                    matches!(&hmac.timestamp, Some((TimestampAt::Header(header), _)) if header == name)
                }
                _ => false,
            }),
            Kind::Custom(custom) => custom.covers_header(name),
        }
    }

    /// Whether a member of the JSON body is signed: with the whole body, or by itself.
    pub fn covers_json(&self, path: &JsonPath) -> bool {
        self.covers_body()
            || matches!(&self.kind, Kind::Hmac(hmac) if hmac.template.contains(&Part::Json(path.clone())))
    }

    /// Whether a time is signed, so that an old delivery is told from a new one.
    pub fn has_timestamp(&self) -> bool {
        match &self.kind {
            Kind::Hmac(hmac) => hmac.timestamp.is_some(),
            Kind::Custom(custom) => custom.has_timestamp(),
        }
    }

    /// Where the signed time is, if it is a member of the body, and in which unit.
    #[cfg(feature = "testkit")]
    pub(crate) fn time_in_body(&self) -> Option<(&JsonPath, Unit)> {
        match &self.kind {
            Kind::Hmac(hmac) => match &hmac.timestamp {
                Some((TimestampAt::Json(path), unit)) => Some((path, *unit)),
                _ => None,
            },
            Kind::Custom(_) => None,
        }
    }

    /// Whether the producer's URL is signed, so that the source must have it configured.
    pub fn needs_url(&self) -> bool {
        match &self.kind {
            Kind::Hmac(hmac) => hmac.template.contains(&Part::Url),
            Kind::Custom(custom) => custom.needs_url(),
        }
    }

    /// Whether this header carries a signature: not for the handler's eyes, nor to be stored.
    pub fn is_signature_header(&self, name: &HeaderName) -> bool {
        match &self.kind {
            Kind::Hmac(hmac) => match &hmac.at {
                SignatureAt::Header(header) | SignatureAt::RepeatableHeader(header) => {
                    header == name
                }
                SignatureAt::AnyHeader(headers) => headers.contains(name),
                SignatureAt::NumberedHeader(prefix) => is_numbered(prefix, name),
                SignatureAt::Json(_) => false,
            },
            Kind::Custom(custom) => custom.signature_headers().contains(name),
        }
    }

    /// The headers of these that carry signatures.
    pub fn signature_headers(&self, headers: &http::HeaderMap) -> Vec<HeaderName> {
        headers
            .keys()
            .filter(|name| self.is_signature_header(name))
            .cloned()
            .collect()
    }
}

pub(super) fn is_numbered(prefix: &str, name: &HeaderName) -> bool {
    name.as_str().strip_prefix(prefix).is_some_and(|number| {
        matches!(number.len(), 1..=3) && number.bytes().all(|byte| byte.is_ascii_digit())
    })
}

impl fmt::Debug for Scheme {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut debug = f.debug_struct("Scheme");
        debug.field("name", &self.name);
        match &self.kind {
            Kind::Hmac(hmac) => debug.field("hmac", hmac),
            Kind::Custom(custom) => debug.field("custom", custom),
        };
        debug.finish()
    }
}

impl SchemeBuilder {
    /// How the MAC is written. Default: hex.
    pub fn encoding(mut self, encoding: Encoding) -> Self {
        self.hmac.encoding = encoding;
        self
    }

    /// Splits the value into items at this character. Default: the value is one item.
    pub fn split(mut self, separator: char) -> Self {
        self.hmac.split = Some(separator);
        self
    }

    /// Tolerates blanks around items. Default: they are part of the item.
    pub fn trim(mut self) -> Self {
        self.hmac.trim = true;
        self
    }

    /// Which part of an item is the MAC. Default: all of it.
    pub fn pick(mut self, pick: Pick) -> Self {
        self.hmac.pick = pick;
        self
    }

    /// The MAC is the value of the items with this name.
    pub fn field(self, separator: char, name: impl Into<Cow<'static, str>>) -> Self {
        self.pick(Pick::Field {
            separator,
            name: name.into(),
        })
    }

    /// Where the signed time is, and in which unit. Default: no time is signed.
    pub fn timestamp(mut self, at: TimestampAt, unit: Unit) -> Self {
        self.hmac.timestamp = Some((at, unit));
        self
    }

    /// Where the identifier is that is signed beside the body. Default: none is.
    pub fn id(mut self, header: HeaderName, form: IdForm) -> Self {
        self.hmac.id = Some(IdAt { header, form });
        self
    }

    /// What is signed, in order. Default: the raw body.
    pub fn signs(mut self, template: impl IntoIterator<Item = Part>) -> Self {
        self.hmac.template = template.into_iter().collect();
        self
    }

    /// The scheme.
    ///
    /// # Errors
    /// When the description contradicts itself or would not protect what it reads: see [`SchemeError`].
    pub fn build(self) -> Result<Scheme, SchemeError> {
        let Self { name, hmac } = self;
        let has = |part: &Part| hmac.template.contains(part);
        if !hmac
            .template
            .iter()
            .any(|part| !matches!(part, Part::Literal(_) | Part::Url | Part::Method))
        {
            return Err(SchemeError::NothingSigned);
        }
        match &hmac.timestamp {
            None if has(&Part::Timestamp) => return Err(SchemeError::NoTimestampPlace),
            Some((TimestampAt::Json(path), _))
                if !has(&Part::Body) && !has(&Part::Json(path.clone())) =>
            {
                return Err(SchemeError::UnsignedTimestamp);
            }
            Some((TimestampAt::Header(_) | TimestampAt::Field(_), _)) if !has(&Part::Timestamp) => {
                return Err(SchemeError::UnsignedTimestamp);
            }
            Some((TimestampAt::Field(_), _))
                if !matches!(hmac.pick, Pick::Field { .. })
                    || matches!(hmac.at, SignatureAt::Json(_)) =>
            {
                return Err(SchemeError::FieldWithoutPairs);
            }
            _ => {}
        }
        if has(&Part::Id) && hmac.id.is_none() {
            return Err(SchemeError::NoIdPlace);
        }
        let runs_on = |pair: &[Part]| pair[0] == Part::Id && !matches!(pair[1], Part::Literal(_));
        if hmac.template.windows(2).any(runs_on) {
            return Err(SchemeError::UndelimitedId);
        }
        Ok(Scheme {
            name,
            kind: Kind::Hmac(Arc::new(hmac)),
        })
    }
}
