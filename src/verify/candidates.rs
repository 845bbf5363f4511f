//! From header values to candidate MACs.

use http::HeaderMap;

use super::head::{ascii, single};
use super::mac::Tag;
use super::refusal::{Refusal, RefusalKind};
use super::scheme::{Hmac, Pick, SignatureAt, is_numbered};

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

/// The candidates that have the form and the exact length of a MAC; broken ones beside a good one do not spoil it.
pub(super) fn tags(hmac: &Hmac, values: &[&str]) -> Result<Vec<Tag>, Refusal> {
    let mut picked = 0;
    let mut tags = Vec::new();
    for candidate in values
        .iter()
        .flat_map(|value| items(hmac, value))
        .filter_map(|item| pick(&hmac.pick, item))
        .take(MOST)
    {
        picked += 1;
        tags.extend(hmac.encoding.decode(hmac.algorithm, candidate));
    }
    if tags.is_empty() {
        let detail = format!(
            "no usable signature in {}: {picked} of the wanted kind, none of them {} bytes as {:?}",
            describe(&hmac.at),
            hmac.algorithm.len(),
            hmac.encoding
        );
        return Err(Refusal::new(RefusalKind::MalformedSignature, detail));
    }
    Ok(tags)
}

/// The value of the field with this name, which must be there once.
pub(super) fn field<'h>(hmac: &Hmac, values: &[&'h str], name: &str) -> Result<&'h str, Refusal> {
    let Pick::Field { separator, .. } = hmac.pick else {
        return Err(Refusal::new(
            RefusalKind::MissingTimestamp,
            "the scheme has no named fields",
        ));
    };
    let mut found = values
        .iter()
        .flat_map(|value| items(hmac, value))
        .filter_map(|item| {
            let (key, value) = item.split_once(separator)?;
            (key == name).then_some(value)
        });
    match (found.next(), found.next()) {
        (Some(value), None) => Ok(value),
        (None, _) => {
            let detail = format!("no timestamp field {name} in {}", describe(&hmac.at));
            Err(Refusal::new(RefusalKind::MissingTimestamp, detail))
        }
        (Some(_), Some(_)) => {
            let detail = format!(
                "timestamp field {name} is more than once in {}",
                describe(&hmac.at)
            );
            Err(Refusal::new(RefusalKind::MalformedTimestamp, detail))
        }
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

fn pick<'v>(pick: &Pick, item: &'v str) -> Option<&'v str> {
    match pick {
        Pick::Bare => Some(item),
        Pick::Prefix(prefix) => item.strip_prefix(&**prefix),
        Pick::OptionalPrefix(prefix) => Some(item.strip_prefix(&**prefix).unwrap_or(item)),
        Pick::Field { separator, name } => {
            let (key, value) = item.split_once(*separator)?;
            (key == name).then_some(value)
        }
    }
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
