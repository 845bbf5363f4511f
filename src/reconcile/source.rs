//! What a producer must offer to be reconciled with.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::Request;

use crate::clock::Timestamp;

/// A list that a producer keeps of its events.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum List {
    /// Given up after the last attempt, or refused: what no redelivery will bring any more.
    Exhausted,
    /// Delivered, as far as the producer knows: what a database may have lost after it had acknowledged it (§4.1a).
    Delivered,
}

impl List {
    /// `exhausted` or `delivered`.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Exhausted => "exhausted",
            Self::Delivered => "delivered",
        }
    }

    /// What the column holds.
    pub(crate) const fn kind(self) -> i64 {
        match self {
            Self::Exhausted => 1,
            Self::Delivered => 2,
        }
    }
}

/// What is asked for.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Query<'a> {
    /// Which list.
    pub list: List,
    /// Events that came onto the list at this time of the producer's or later. Without: all that it has.
    pub since: Option<Timestamp>,
    /// Events of this type only.
    pub event_type: Option<&'a str>,
    /// [`Page::next`] of the page before.
    pub page: Option<&'a str>,
}

impl<'a> Query<'a> {
    /// The whole list, from its first page.
    pub const fn new(list: List) -> Self {
        Self {
            list,
            since: None,
            event_type: None,
            page: None,
        }
    }

    /// What came onto it since then.
    #[must_use]
    pub const fn since(mut self, since: Option<Timestamp>) -> Self {
        self.since = since;
        self
    }

    /// Of this type.
    #[must_use]
    pub const fn event_type(mut self, event_type: Option<&'a str>) -> Self {
        self.event_type = event_type;
        self
    }

    /// From this page on.
    #[must_use]
    pub const fn page(mut self, page: Option<&'a str>) -> Self {
        self.page = page;
        self
    }
}

/// A part of a list.
#[derive(Clone, Debug, Default)]
pub struct Page {
    /// The events, in any order.
    pub items: Vec<Item>,
    /// What could not be read, so that one bad item hides no other.
    pub unreadable: Vec<Unreadable>,
    /// Where the list goes on, in the producer's own words: at most 1,024 bytes. Nothing: this was the last page.
    pub next: Option<String>,
    /// How many events the whole list has, if the producer says so. Only compared, never relied on.
    pub announced: Option<u64>,
}

/// An event on a list.
#[derive(Clone, Debug)]
pub struct Item {
    /// Its id: what it is compared by (§7.5).
    pub event_id: String,
    /// When it came onto the list, by the producer's clock.
    pub at: Timestamp,
    /// The request that a delivery of it would be, signature aside; its URI is a path that the mounted routes know.
    /// Nothing if the producer does not hand the content out: it is then asked to send the event again.
    pub request: Option<Request<Bytes>>,
    /// The producer's own name for the delivery, for [`ReplaySource::send_again`].
    pub reference: String,
}

/// An item that could not be read.
#[derive(Clone, Debug)]
pub struct Unreadable {
    /// Its event id, or whatever it can be found by.
    pub what: String,
    /// What is wrong with it.
    pub why: String,
    /// When it came onto the list, if that could be read.
    pub at: Option<Timestamp>,
}

/// What the methods of a [`ReplaySource`] return.
pub type ReplayFuture<'a, T> = Pin<Box<dyn Future<Output = Result<T, ReplayError>> + Send + 'a>>;

/// A producer's lists of events.
///
/// `HttpReplays` and `KudosReplays` (feature `reconcile`) are two over HTTP; another one is this trait over whatever the
/// producer offers. What it returns is not believed further than its event ids: pages that never end, counts that are
/// wrong and times in the future are bounded and reported by whoever asks, and a call that hangs is given up after five
/// minutes.
pub trait ReplaySource: Send + Sync + 'static {
    /// One page of a list.
    fn page<'a>(&'a self, query: Query<'a>) -> ReplayFuture<'a, Page>;

    /// Whether [`ReplaySource::by_sequence`] is worth asking. Default: no.
    fn knows_sequences(&self) -> bool {
        false
    }

    /// The event with this place in a stream, whether it was delivered or not, so that a gap is filled before its
    /// recovery window ends. Default: nobody knows it.
    fn by_sequence<'a>(
        &'a self,
        correlation_id: &'a str,
        sequence: i64,
    ) -> ReplayFuture<'a, Option<Item>> {
        let _ = (correlation_id, sequence);
        Box::pin(async { Ok(None) })
    }

    /// Asks the producer to deliver an event again, under the event id that it had. Default: it cannot be asked.
    fn send_again<'a>(&'a self, item: &'a Item) -> ReplayFuture<'a, ()> {
        let _ = item;
        Box::pin(async {
            let why = "the list has no content, and the producer cannot be asked to send it again";
            Err(ReplayError::new(ReplayErrorKind::Unsupported, why))
        })
    }
}

impl<S: ReplaySource + ?Sized> ReplaySource for Arc<S> {
    fn page<'a>(&'a self, query: Query<'a>) -> ReplayFuture<'a, Page> {
        (**self).page(query)
    }

    fn knows_sequences(&self) -> bool {
        (**self).knows_sequences()
    }

    fn by_sequence<'a>(
        &'a self,
        correlation_id: &'a str,
        sequence: i64,
    ) -> ReplayFuture<'a, Option<Item>> {
        (**self).by_sequence(correlation_id, sequence)
    }

    fn send_again<'a>(&'a self, item: &'a Item) -> ReplayFuture<'a, ()> {
        (**self).send_again(item)
    }
}

/// The kinds of [`ReplayError`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ReplayErrorKind {
    /// The key is not accepted.
    Unauthorized,
    /// The producer does not know this page (any more): the list is begun anew.
    PageGone,
    /// Any other answer that the same question will get again, redirects included: they are never followed.
    Refused,
    /// Too busy, away or too slow: later.
    Unavailable,
    /// Larger than it may be.
    TooBig,
    /// Not what it should be.
    Unreadable,
    /// This source cannot do that.
    Unsupported,
}

/// Why a producer's list could not be had. Never contains the key.
#[derive(Clone, Debug)]
pub struct ReplayError {
    kind: ReplayErrorKind,
    message: String,
    retry_after: Option<Duration>,
}

impl ReplayError {
    /// An error of this kind.
    pub fn new(kind: ReplayErrorKind, message: impl Into<String>) -> Self {
        Self {
            kind,
            message: message.into(),
            retry_after: None,
        }
    }

    /// With the time that the producer wants to be left alone.
    #[must_use]
    pub fn retry_after(mut self, after: Duration) -> Self {
        self.retry_after = Some(after);
        self
    }

    /// Which kind it is.
    pub fn kind(&self) -> ReplayErrorKind {
        self.kind
    }

    /// For how long the producer wants to be left alone.
    pub fn wait(&self) -> Option<Duration> {
        self.retry_after
    }
}

impl fmt::Display for ReplayError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for ReplayError {}
