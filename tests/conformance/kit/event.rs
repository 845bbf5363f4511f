//! Events, and bodies that do not come at once.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::{Body, Frame};
use serde_json::{Value, json};
use tokio::sync::mpsc;

/// An event as the reference receiver's producers write it.
#[derive(Clone, Debug)]
pub(crate) struct Event(Value);

impl Event {
    /// Without a place in any order.
    pub(crate) fn new(id: &str) -> Self {
        Self(json!({"event_id": id, "event_type": "payment.succeeded", "data": {"amount": 1}}))
    }

    /// With its place in a stream.
    pub(crate) fn of(self, account: &str, sequence: u64) -> Self {
        self.with("correlation_id", account)
            .with("sequence", sequence)
    }

    /// With this member of the body.
    pub(crate) fn with(mut self, name: &str, value: impl Into<Value>) -> Self {
        self.0[name] = value.into();
        self
    }

    /// With this amount.
    pub(crate) fn amount(self, amount: i64) -> Self {
        self.with("data", json!({"amount": amount}))
    }

    pub(crate) fn id(&self) -> &str {
        self.0["event_id"]
            .as_str()
            .expect("events of tests have ids")
    }

    pub(crate) fn body(&self) -> Bytes {
        self.0.to_string().into()
    }
}

/// The event of this place, its id made of both.
pub(crate) fn numbered(account: &str, sequence: u64) -> Event {
    Event::new(&format!("evt_{account}_{sequence}")).of(account, sequence)
}

/// A body in the hand of a test: what is fed comes, and it ends when the sender is dropped.
pub(crate) struct Feed {
    frames: mpsc::UnboundedReceiver<Bytes>,
    polls: Arc<AtomicUsize>,
    ended: Arc<AtomicUsize>,
}

impl Feed {
    /// The body, and what feeds it.
    pub(crate) fn new() -> (mpsc::UnboundedSender<Bytes>, Self) {
        let (sender, frames) = mpsc::unbounded_channel();
        (
            sender,
            Self {
                frames,
                polls: Arc::default(),
                ended: Arc::default(),
            },
        )
    }

    /// A body that comes at once, and counts in `ended` when it has been read to its end.
    pub(crate) fn whole(body: Bytes, ended: &Arc<AtomicUsize>) -> Self {
        let (sender, mut feed) = Self::new();
        sender.send(body).expect("the receiver is here");
        feed.ended = Arc::clone(ended);
        feed
    }

    /// How often somebody asked for a part of it.
    pub(crate) fn polls(&self) -> Arc<AtomicUsize> {
        Arc::clone(&self.polls)
    }
}

impl Body for Feed {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        self.polls.fetch_add(1, Ordering::Relaxed);
        self.frames.poll_recv(context).map(|bytes| {
            if bytes.is_none() {
                self.ended.fetch_add(1, Ordering::Relaxed);
            }
            bytes.map(|bytes| Ok(Frame::data(bytes)))
        })
    }
}
