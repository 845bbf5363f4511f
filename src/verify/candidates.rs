//! From header values to candidate MACs.

use http::HeaderMap;
use smallvec::SmallVec;

use super::head::{ascii, single};
use super::mac::Tag;
use super::refusal::{Refusal, RefusalKind};
use super::scheme::{Hmac, Pick, SignatureAt, TimestampAt, is_numbered};
use crate::broken::{self, Variant};

/// How many candidates are looked at (§6.4): more than any rotation needs, and a bound on the work.
pub(super) const MOST: usize = 16;

/// The candidates of one delivery: two while a secret is rotated, rarely more.
pub(super) type Tags = SmallVec<[Tag; 2]>;
/// The values of the headers that they are in.
type Values<'h> = SmallVec<[&'h str; 2]>;

/// The values in which candidates are. Empty only for candidates in the body.
pub(super) fn values<'h>(at: &SignatureAt, headers: &'h HeaderMap) -> Result<Values<'h>, Refusal> {
    let values: Values<'_> = match at {
        SignatureAt::Json(_) => return Ok(Values::new()),
        SignatureAt::Header(name) => single(headers, name)?.into_iter().collect(),
        SignatureAt::RepeatableHeader(name) => headers
            .get_all(name)
            .iter()
            .take(MOST)
            .map(|value| ascii(name, value))
            .collect::<Result<_, _>>()?,
        SignatureAt::AnyHeader(names) => names
            .iter()
            .filter_map(|name| single(headers, name).transpose())
            .collect::<Result<_, _>>()?,
        SignatureAt::NumberedHeader(prefix) => headers
            .keys()
            .filter(|name| is_numbered(prefix, name))
            .take(MOST)
            .filter_map(|name| single(headers, name).transpose())
            .collect::<Result<_, _>>()?,
    };
    if values.iter().all(|value| value.is_empty()) {
        return Err(Refusal::new(
            RefusalKind::MissingSignature,
            format!("no signature in {}", describe(at)),
        ));
    }
    Ok(values)
}

/// Goes through the values once: puts the candidates that have the form and the exact length of a MAC, one at least,
/// into `tags`, and gives the timestamp if the scheme has it there. Broken candidates beside a good one do not spoil
/// it; a second timestamp does.
pub(super) fn scan<'h>(
    hmac: &Hmac,
    values: &[&'h str],
    tags: &mut Tags,
) -> Result<Option<&'h str>, Refusal> {
    let field = match &hmac.timestamp {
        Some((TimestampAt::Field(name), _)) => Some(&**name),
        _ => None,
    };
    let (mut timestamp, mut picked, mut repeated) = (None, 0, false);
    for item in values.iter().flat_map(|value| items(hmac, value)) {
        let candidate = match &hmac.pick {
            Pick::Bare => Some(item),
            Pick::Prefix(prefix) => item.strip_prefix(&**prefix),
            Pick::OptionalPrefix(prefix) => Some(item.strip_prefix(&**prefix).unwrap_or(item)),
            Pick::Field { separator, name } => {
                let value_of = |name: &str| item.strip_prefix(name)?.strip_prefix(*separator);
                if let Some(value) = field.and_then(value_of) {
                    repeated |= timestamp.replace(value).is_some();
                }
                value_of(name)
            }
        };
        let most = if broken::is(Variant::FirstSignature) {
            1
        } else {
            MOST
        };
        if let Some(candidate) = candidate.filter(|_| picked < most) {
            picked += 1;
            tags.push(Tag::empty(hmac.algorithm));
            let tag = tags.last_mut();
            if tag
                .and_then(|tag| hmac.encoding.decode(candidate, tag))
                .is_none()
            {
                tags.pop();
            }
        }
    }
    let refuse = |kind, detail: String| {
        Err(Refusal::new(
            kind,
            format!("{}: {detail}", describe(&hmac.at)),
        ))
    };
    if tags.is_empty() {
        let (len, encoding) = (hmac.algorithm.len(), hmac.encoding);
        let detail = format!(
            "{picked} signatures of the wanted kind, none of them {len} bytes as {encoding:?}"
        );
        return refuse(RefusalKind::MalformedSignature, detail);
    }
    match field {
        Some(name) if repeated => refuse(
            RefusalKind::MalformedTimestamp,
            format!("field {name} is there more than once"),
        ),
        Some(name) if timestamp.is_none() => refuse(
            RefusalKind::MissingTimestamp,
            format!("no timestamp field {name}"),
        ),
        _ => Ok(timestamp),
    }
}

fn items<'v>(hmac: &Hmac, value: &'v str) -> impl Iterator<Item = &'v str> + use<'v> {
    let (split, trim) = (hmac.split, hmac.trim);
    // Without a separator: a character that no header value contains.
    value.split(split.unwrap_or('\0')).map(move |item| {
        // Looked at first: there rarely is one.
        let blank = |byte: Option<&u8>| matches!(byte, Some(b' ' | b'\t'));
        if trim && (blank(item.as_bytes().first()) || blank(item.as_bytes().last())) {
            item.trim_matches([' ', '\t'])
        } else {
            item
        }
    })
}

fn describe(at: &SignatureAt) -> String {
    match at {
        SignatureAt::Header(name) | SignatureAt::RepeatableHeader(name) => format!("header {name}"),
        SignatureAt::AnyHeader(names) => {
            let names: Vec<_> = names.iter().map(http::HeaderName::as_str).collect();
            format!("headers {}", names.join(", "))
        }
        SignatureAt::NumberedHeader(prefix) => format!("headers {prefix}1, {prefix}2, …"),
        SignatureAt::Json(path) => format!("{path} of the body"),
    }
}
