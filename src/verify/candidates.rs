//! From header values to candidate MACs.

use http::HeaderMap;

use super::head::{ascii, single};
use super::mac::Tag;
use super::refusal::{Refusal, RefusalKind};
use super::scheme::{Hmac, Pick, SignatureAt, TimestampAt, is_numbered};

/// How many candidates are looked at (§6.4): more than any rotation needs, and a bound on the work.
pub(super) const MOST: usize = 16;

/// The values in which candidates are. Empty only for candidates in the body.
pub(super) fn values<'h>(
    at: &SignatureAt,
    headers: &'h HeaderMap,
) -> Result<Vec<&'h str>, Refusal> {
    let values: Vec<&str> = match at {
        SignatureAt::Json(_) => return Ok(Vec::new()),
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

/// What the values contain.
pub(super) struct Scan<'h> {
    /// The candidates that have the form and the exact length of a MAC, one at least.
    pub(super) tags: Vec<Tag>,
    /// The field with the timestamp, if the scheme has it there.
    pub(super) timestamp: Option<&'h str>,
}

/// Goes through the values once. Broken candidates beside a good one do not spoil it; a second timestamp does.
pub(super) fn scan<'h>(hmac: &Hmac, values: &[&'h str]) -> Result<Scan<'h>, Refusal> {
    let field = match &hmac.timestamp {
        Some((TimestampAt::Field(name), _)) => Some(&**name),
        _ => None,
    };
    let (mut tags, mut timestamp, mut picked, mut repeated) = (Vec::new(), None, 0, false);
    for item in values.iter().flat_map(|value| items(hmac, value)) {
        let candidate = match &hmac.pick {
            Pick::Bare => Some(item),
            Pick::Prefix(prefix) => item.strip_prefix(&**prefix),
            Pick::OptionalPrefix(prefix) => Some(item.strip_prefix(&**prefix).unwrap_or(item)),
            Pick::Field { separator, name } => {
                item.split_once(*separator).and_then(|(key, value)| {
                    if field == Some(key) {
                        repeated |= timestamp.replace(value).is_some();
                    }
                    (key == name).then_some(value)
                })
            }
        };
        if let Some(candidate) = candidate.filter(|_| picked < MOST) {
            picked += 1;
            tags.extend(hmac.encoding.decode(hmac.algorithm, candidate));
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
        _ => Ok(Scan { tags, timestamp }),
    }
}

fn items<'v>(hmac: &Hmac, value: &'v str) -> impl Iterator<Item = &'v str> + use<'v> {
    let (split, trim) = (hmac.split, hmac.trim);
    // Without a separator: a character that no header value contains.
    value.split(split.unwrap_or('\0')).map(move |item| {
        if trim {
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
