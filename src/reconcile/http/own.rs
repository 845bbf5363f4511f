//! The list that `examples/sender` serves: a small shape for producers that have none yet.

use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use http::{HeaderName, HeaderValue, Method, Request, Uri};
use serde_json::value::RawValue;

use super::{Client, Listing, Object, PAGE, bad, list, path, rfc3339, settings, unreadable};
use crate::error::BuildError;
use crate::reconcile::source::{Item, Page, Query, ReplayError, ReplayFuture, ReplaySource};

/// A producer's lists in the shape that this crate's `examples/sender` serves: the coordination brief's "replay endpoint
/// listing exhausted events by event ID and timestamp".
///
/// `GET <url>?list=exhausted&since=2026-05-30T08:42:11Z&event_type=payment.succeeded&limit=100&page=…` with
/// `Authorization: Bearer <key>`; `list` is `exhausted` or `delivered`, the others may be missing. The answer:
///
/// ```json
/// {"events": [{"event_id": "evt_1", "timestamp": "2026-05-30T08:42:11Z", "path": "/webhooks/crm",
///              "headers": {"content-type": "application/json"}, "body": "{\"event_id\": …}"}],
///  "next": "the next page, or null", "total": 1}
/// ```
///
/// `timestamp` is when the event came onto the list, and what `since` is compared with. `body` is the raw body as text, or
/// `body_base64` is it in base64. `path`, `headers`, `next` and `total` may be missing; an event without a body cannot be
/// reconciled. 410 says that `page` is not known any more.
///
/// ```no_run
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use tower_inbox::reconcile::HttpReplays;
///
/// let replays = HttpReplays::new("https://producer.example/replays", &std::env::var("PRODUCER_KEY")?)?
///     .path("/webhooks/crm")?;
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct HttpReplays {
    client: Client,
    path: Option<Uri>,
    sequences: bool,
}

impl HttpReplays {
    /// The list at this URL, with this key.
    ///
    /// # Errors
    /// If the URL is none, or is plain http to another machine, which would show the key; if the key is empty; or if the
    /// system has no certificates.
    pub fn new(url: &str, key: &str) -> Result<Self, BuildError> {
        Self::build(url, key, false)
    }

    /// As [`HttpReplays::new`], and shows the key and the events to whoever listens on the network.
    ///
    /// # Errors
    /// As there.
    pub fn insecure_plain_http(url: &str, key: &str) -> Result<Self, BuildError> {
        Self::build(url, key, true)
    }

    fn build(url: &str, key: &str, plain: bool) -> Result<Self, BuildError> {
        Ok(Self {
            client: Client::new(url, key, plain)?,
            path: None,
            sequences: false,
        })
    }

    /// The path of the mounted route that the events go to. Default: what the list says.
    ///
    /// # Errors
    /// If it is no path.
    pub fn path(mut self, text: &str) -> Result<Self, BuildError> {
        self.path = Some(path(text)?);
        Ok(self)
    }

    /// Says that the producer answers `?correlation_id=…&sequence=…` with the one event of that place, delivered or not, or
    /// with no event: gaps are then asked for.
    #[must_use]
    pub fn with_sequences(mut self) -> Self {
        self.sequences = true;
        self
    }

    settings!();

    fn read(&self, body: &Bytes) -> Result<Page, ReplayError> {
        let Listing { items, next, total } = list(body, "events", "next")?;
        let mut page = Page {
            next,
            announced: total,
            ..Page::default()
        };
        for (index, item) in items.iter().enumerate() {
            match self.item(item) {
                Ok(item) => page.items.push(item),
                Err(why) => page.unreadable.push(bad(index, item, "timestamp", why)),
            }
        }
        Ok(page)
    }

    fn item(&self, item: &[u8]) -> Result<Item, String> {
        let names = [
            "event_id",
            "timestamp",
            "path",
            "headers",
            "body",
            "body_base64",
        ];
        let object = Object::read(item, &names)?;
        let at = object.time("timestamp")?.ok_or("timestamp is missing")?;
        let body = match (object.text("body")?, object.text("body_base64")?) {
            (Some(body), None) => Bytes::from(body.into_owned()),
            (None, Some(encoded)) => {
                let decoded = STANDARD.decode(encoded.as_bytes());
                decoded.map_err(|_| "body_base64 is no base64")?.into()
            }
            _ => return Err("one of body and body_base64 is needed".into()),
        };
        let mut request = Request::new(body);
        *request.method_mut() = Method::POST;
        *request.uri_mut() = match (&self.path, object.text("path")?) {
            (Some(path), _) => path.clone(),
            (None, Some(text)) => path(&text).map_err(|error| error.to_string())?,
            (None, None) => return Err("path is missing, and none is set".into()),
        };
        if let Some(raw) = object.raw("headers") {
            let headers: std::collections::BTreeMap<String, Box<RawValue>> =
                serde_json::from_str(raw).map_err(|_| "headers is no object")?;
            for (name, value) in &headers {
                let value = crate::verify::json::text(value).ok_or("a header is no text")?;
                let name = name
                    .parse::<HeaderName>()
                    .map_err(|_| "a header has no name")?;
                let value = value.parse::<HeaderValue>();
                request
                    .headers_mut()
                    .append(name, value.map_err(|_| "a header is no text")?);
            }
        }
        let event_id = object.required("event_id")?.into_owned();
        Ok(Item {
            reference: event_id.clone(),
            event_id,
            at,
            request: Some(request),
        })
    }
}

impl ReplaySource for HttpReplays {
    fn page<'a>(&'a self, query: Query<'a>) -> ReplayFuture<'a, Page> {
        Box::pin(async move {
            let since = query.since.map(rfc3339);
            let mut pairs = vec![("list", query.list.as_str()), ("limit", PAGE)];
            pairs.extend(since.as_deref().map(|since| ("since", since)));
            pairs.extend(query.event_type.map(|kind| ("event_type", kind)));
            pairs.extend(query.page.map(|page| ("page", page)));
            let url = self.client.url("", &pairs)?;
            self.read(&self.client.ask(Method::GET, url).await?)
        })
    }

    fn knows_sequences(&self) -> bool {
        self.sequences
    }

    fn by_sequence<'a>(
        &'a self,
        correlation_id: &'a str,
        sequence: i64,
    ) -> ReplayFuture<'a, Option<Item>> {
        Box::pin(async move {
            let sequence = sequence.to_string();
            let pairs = [("correlation_id", correlation_id), ("sequence", &*sequence)];
            let url = self.client.url("", &pairs)?;
            let mut page = self.read(&self.client.ask(Method::GET, url).await?)?;
            match page.unreadable.pop() {
                Some(bad) => Err(unreadable(bad.why)),
                None => Ok(page.items.pop()),
            }
        })
    }
}
