//! Kudos' delivery log.

use std::time::Duration;

use bytes::Bytes;
use http::header::CONTENT_TYPE;
use http::{HeaderValue, Method, Request, Uri};

use super::{Client, Listing, Object, PAGE, bad, list, path, rfc3339, settings, unreadable};
use crate::error::BuildError;
use crate::reconcile::source::{Item, List, Page, Query, ReplayError, ReplayFuture, ReplaySource};

/// Kudos' delivery log: `GET /webhook_subscriptions/{id}/deliveries`, and `POST …/deliveries/{id}/replay`, which "mints a
/// new delivery from the old payload", with the event id that it had.
///
/// The page names these two and says that the log "shows every attempt with its response code and error"; the rest is
/// **assumed** here, and goes no further than this type:
/// - `?status=failed` or `?status=delivered`, `since` (RFC 3339), `event_type`, `limit` and `cursor` narrow the log down; where
///   the producer does not know a parameter, deliveries of another status are left out here
/// - the answer is `{"deliveries": […], "next_cursor": "…" or null, "total": n}`, the last two may be missing
/// - a delivery has `id`, `event_id`, `status`, and `updated_at` or `created_at` (RFC 3339)
/// - its `payload` is the body, as a JSON object or as a text; where there is none, the producer is asked to send the
///   delivery again, which then comes as any other
/// - the key goes as `Authorization: Bearer …`
///
/// ```no_run
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use tower_inbox::reconcile::KudosReplays;
///
/// let url = "https://kudos.example/webhook_subscriptions/sub_1/deliveries";
/// let replays = KudosReplays::new(url, &std::env::var("KUDOS_KEY")?, "/webhooks/crm")?;
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct KudosReplays {
    client: Client,
    path: Uri,
}

impl KudosReplays {
    /// The log at this URL, with this key; its events go to the mounted route with this path.
    ///
    /// # Errors
    /// If the URL or the path is none, or the URL is plain http to another machine, which would show the key; if the key is
    /// empty; or if the system has no certificates.
    pub fn new(url: &str, key: &str, route: &str) -> Result<Self, BuildError> {
        Self::build(url, key, route, false)
    }

    /// As [`KudosReplays::new`], and shows the key and the events to whoever listens on the network.
    ///
    /// # Errors
    /// As there.
    pub fn insecure_plain_http(url: &str, key: &str, route: &str) -> Result<Self, BuildError> {
        Self::build(url, key, route, true)
    }

    fn build(url: &str, key: &str, route: &str, plain: bool) -> Result<Self, BuildError> {
        Ok(Self {
            client: Client::new(url, key, plain)?,
            path: path(route)?,
        })
    }

    settings!();

    fn read(&self, body: &Bytes, status: &str) -> Result<Page, ReplayError> {
        let Listing { items, next, total } = list(body, "deliveries", "next_cursor")?;
        let mut page = Page {
            next,
            ..Page::default()
        };
        let listed = items.len();
        for (index, item) in items.iter().enumerate() {
            match self.item(item, status) {
                Ok(Some(item)) => page.items.push(item),
                Ok(None) => {}
                Err(why) => page.unreadable.push(bad(index, item, "updated_at", why)),
            }
        }
        // A count of something else is none.
        page.announced = total.filter(|_| page.items.len() + page.unreadable.len() == listed);
        Ok(page)
    }

    /// Nothing: it has another status.
    fn item(&self, item: &[u8], status: &str) -> Result<Option<Item>, String> {
        let names = [
            "id",
            "event_id",
            "status",
            "updated_at",
            "created_at",
            "payload",
        ];
        let object = Object::read(item, &names)?;
        if object.required("status")? != status {
            return Ok(None);
        }
        let at = match object.time("updated_at")? {
            Some(at) => at,
            None => object.time("created_at")?.ok_or("created_at is missing")?,
        };
        let body = match object.raw("payload") {
            None => None,
            Some(raw) if raw.starts_with('{') => Some(Bytes::copy_from_slice(raw.as_bytes())),
            Some(_) => Some(Bytes::from(object.required("payload")?.into_owned())),
        };
        let request = body.map(|body| {
            let mut request = Request::new(body);
            *request.method_mut() = Method::POST;
            *request.uri_mut() = self.path.clone();
            let json = HeaderValue::from_static("application/json");
            request.headers_mut().insert(CONTENT_TYPE, json);
            request
        });
        Ok(Some(Item {
            event_id: object.required("event_id")?.into_owned(),
            at,
            request,
            reference: object.required("id")?.into_owned(),
        }))
    }
}

impl ReplaySource for KudosReplays {
    fn page<'a>(&'a self, query: Query<'a>) -> ReplayFuture<'a, Page> {
        Box::pin(async move {
            let status = match query.list {
                List::Exhausted => "failed",
                List::Delivered => "delivered",
            };
            let since = query.since.map(rfc3339);
            let mut pairs = vec![("status", status), ("limit", PAGE)];
            pairs.extend(since.as_deref().map(|since| ("since", since)));
            pairs.extend(query.event_type.map(|kind| ("event_type", kind)));
            pairs.extend(query.page.map(|page| ("cursor", page)));
            let url = self.client.url("", &pairs)?;
            self.read(&self.client.ask(Method::GET, url).await?, status)
        })
    }

    fn send_again<'a>(&'a self, item: &'a Item) -> ReplayFuture<'a, ()> {
        Box::pin(async move {
            // It becomes a part of a path.
            let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-');
            let id = item.reference.as_str();
            if id.is_empty() || id.len() > 255 || !id.bytes().all(plain) {
                return Err(unreadable("the delivery's id cannot be one"));
            }
            let url = self.client.url(&format!("/{id}/replay"), &[])?;
            self.client.ask(Method::POST, url).await.map(drop)
        })
    }
}
