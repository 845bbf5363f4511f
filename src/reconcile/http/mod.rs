//! Producers' lists over HTTP.
//!
//! Nothing that such a server says is believed: no redirect is followed, no proxy variable is obeyed, nothing is
//! decompressed, and time, size and number of everything are bounded. Pages are named by a word that goes back as a query
//! parameter, never by a URL.

mod client;
mod kudos;
mod own;

use std::borrow::Cow;

use bytes::Bytes;
use http::Uri;
use http::uri::PathAndQuery;

pub use self::kudos::KudosReplays;
pub use self::own::HttpReplays;

use self::client::Client;
use super::source::{ReplayError, ReplayErrorKind, Unreadable};
use crate::clock::Timestamp;
use crate::envelope::Elements;
use crate::error::{BuildError, BuildErrorKind};
use crate::verify::json::{self, Members};
use crate::verify::time::{self, Unit};

/// Events that are asked for at once, and that are looked at in one page.
const PAGE: &str = "100";
const MOST_ITEMS: usize = 10_000;

/// Settings that both have.
macro_rules! settings {
    () => {
        /// The time that one request may take, from the connecting to the last byte of the answer. Default: 10 s.
        #[must_use]
        pub fn timeout(mut self, timeout: Duration) -> Self {
            self.client.timeout = timeout;
            self
        }

        /// The largest answer, in bytes; a larger one is an error. Default: 16 MiB.
        #[must_use]
        pub fn body_limit(mut self, bytes: usize) -> Self {
            self.client.body_limit = bytes;
            self
        }

        /// How often a request is tried while the producer is busy, away or too slow, and the pause before the second
        /// time; it doubles, ± a quarter, up to 30 s. A `Retry-After` takes its place; one that is longer than 30 s ends
        /// the run, and is honoured by the schedule. Default: 4 times, 1 s.
        #[must_use]
        pub fn attempts(mut self, attempts: u32, pause: Duration) -> Self {
            self.client.attempts = attempts.max(1);
            self.client.pause = pause;
            self
        }
    };
}
use settings;

/// A path of the mounted routes.
fn path(text: &str) -> Result<Uri, BuildError> {
    let parsed = text.parse::<PathAndQuery>();
    match parsed {
        Ok(path) if text.starts_with('/') => Ok(path.into()),
        _ => Err(BuildError::new(
            BuildErrorKind::Name,
            format!("{text:?} is no path of a route, such as \"/webhooks/crm\""),
        )),
    }
}

fn unreadable(why: impl Into<String>) -> ReplayError {
    ReplayError::new(ReplayErrorKind::Unreadable, why)
}

/// An answer's array, each item by itself; where the list goes on, and how long it is.
struct Listing {
    items: Vec<Bytes>,
    next: Option<String>,
    total: Option<u64>,
}

fn list(body: &Bytes, array: &'static str, next: &'static str) -> Result<Listing, ReplayError> {
    let elements = Elements {
        at: Some(array.into()),
        most: MOST_ITEMS,
    };
    let items = elements
        .split(body)
        .map_err(|error| unreadable(format!("the answer is no list: {error}")))?;
    let object = Object::read(body, &[next, "total"]).map_err(unreadable)?;
    let next = object.text(next).map_err(unreadable)?;
    let total = object.raw("total").and_then(|raw| raw.parse().ok());
    Ok(Listing {
        items,
        next: next.map(Cow::into_owned),
        total,
    })
}

/// Some members of a JSON object.
struct Object<'b>(Members<'b, 'static>);

impl<'b> Object<'b> {
    fn read(body: &'b [u8], names: &[&'static str]) -> Result<Self, String> {
        let members = Members::read(body, names.iter().copied());
        members.map(Self).map_err(|error| error.to_string())
    }

    /// Its text as it stands; `null` is as good as not there.
    fn raw(&self, name: &'static str) -> Option<&'b str> {
        let raw = self.0.last(name)?.get();
        (raw != "null").then_some(raw)
    }

    fn text(&self, name: &'static str) -> Result<Option<Cow<'b, str>>, String> {
        let value = self.0.last(name).filter(|value| value.get() != "null");
        value
            .map(|value| json::text(value).ok_or_else(|| format!("{name} is no text")))
            .transpose()
    }

    fn required(&self, name: &'static str) -> Result<Cow<'b, str>, String> {
        self.text(name)?.ok_or_else(|| format!("{name} is missing"))
    }

    fn time(&self, name: &'static str) -> Result<Option<Timestamp>, String> {
        let Some(text) = self.text(name)? else {
            return Ok(None);
        };
        match time::rfc3339(&text) {
            Some((at, _)) => Ok(Some(at)),
            None => Err(format!("{name} is no RFC 3339 time")),
        }
    }
}

/// An item that cannot be read, by what of it can.
fn bad(index: usize, item: &[u8], time: &'static str, why: String) -> Unreadable {
    let object = Object::read(item, &["event_id", time]).ok();
    let id = object
        .as_ref()
        .and_then(|object| object.text("event_id").ok()?);
    // For people: what a hostile list calls it may be long.
    let id = id.map(|id| id.chars().take(255).collect());
    Unreadable {
        what: id.unwrap_or_else(|| format!("item {} of a page", index + 1)),
        at: object.and_then(|object| object.time(time).ok()?),
        why,
    }
}

fn rfc3339(at: Timestamp) -> String {
    time::format(Unit::Rfc3339, at)
}
