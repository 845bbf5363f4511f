//! A subscriber that remembers.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::subscriber::DefaultGuard;
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::layer::{Context, Layer, SubscriberExt as _};
use tracing_subscriber::registry::LookupSpan;

type Fields = BTreeMap<String, String>;

/// A span, with what was recorded in it so far.
#[derive(Clone, Debug)]
pub(crate) struct Span {
    id: u64,
    pub(crate) name: &'static str,
    pub(crate) target: &'static str,
    pub(crate) level: Level,
    parent: Option<u64>,
    fields: Fields,
    pub(crate) is_closed: bool,
}

/// A line of the log.
#[derive(Clone, Debug)]
pub(crate) struct Line {
    pub(crate) level: Level,
    pub(crate) target: &'static str,
    fields: Fields,
    /// The innermost span that it was logged in.
    within: Option<u64>,
}

#[derive(Default)]
struct Seen {
    spans: Vec<Span>,
    lines: Vec<Line>,
}

/// What this thread's subscriber has seen.
pub(crate) struct Capture {
    seen: Arc<Mutex<Seen>>,
    _guard: DefaultGuard,
}

impl Span {
    pub(crate) fn get(&self, field: &str) -> Option<&str> {
        self.fields.get(field).map(String::as_str)
    }

    /// Demands exactly this of a field.
    #[track_caller]
    pub(crate) fn has(&self, field: &str, value: &str) -> &Self {
        assert_eq!(self.get(field), Some(value), "{field}: {self:#?}");
        self
    }

    #[track_caller]
    pub(crate) fn has_no(&self, field: &str) -> &Self {
        assert_eq!(self.get(field), None, "{self:#?}");
        self
    }

    pub(crate) fn is_root(&self) -> bool {
        self.parent.is_none()
    }
}

impl Line {
    pub(crate) fn message(&self) -> &str {
        self.fields.get("message").map_or("", String::as_str)
    }

    pub(crate) fn get(&self, field: &str) -> Option<&str> {
        self.fields.get(field).map(String::as_str)
    }

    pub(crate) fn is_ours(&self) -> bool {
        self.target.starts_with("tower_inbox")
    }
}

impl Capture {
    /// From now on, until it is dropped.
    pub(crate) fn start() -> Self {
        let seen = Arc::<Mutex<Seen>>::default();
        let layer = Remembers(Arc::clone(&seen));
        let subscriber = tracing_subscriber::registry().with(layer);
        Self {
            seen,
            _guard: tracing::subscriber::set_default(subscriber),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Seen> {
        lock(&self.seen)
    }

    /// Those of this name, in their order.
    pub(crate) fn spans(&self, name: &str) -> Vec<Span> {
        let seen = self.lock();
        let named = seen.spans.iter().filter(|span| span.name == name);
        named.cloned().collect()
    }

    /// The only one of this name.
    #[track_caller]
    pub(crate) fn span(&self, name: &str) -> Span {
        let mut spans = self.spans(name);
        assert_eq!(spans.len(), 1, "{name}: {spans:#?}");
        spans.remove(0)
    }

    pub(crate) fn lines(&self) -> Vec<Line> {
        self.lock().lines.clone()
    }

    /// The only line with this message.
    #[track_caller]
    pub(crate) fn line(&self, message: &str) -> Line {
        let lines = self.lines();
        let mut lines = lines.into_iter().filter(|line| line.message() == message);
        let line = lines
            .next()
            .unwrap_or_else(|| panic!("nobody said {message:?}"));
        assert!(lines.next().is_none(), "{message:?} was said twice");
        line
    }

    /// The innermost span of ours that a line was logged in.
    pub(crate) fn around(&self, line: &Line) -> Option<Span> {
        let seen = self.lock();
        let mut at = line.within;
        while let Some(id) = at {
            let span = seen.spans.iter().find(|span| span.id == id)?;
            if span.target == "tower_inbox::span" {
                return Some(span.clone());
            }
            at = span.parent;
        }
        None
    }
}

fn lock(seen: &Mutex<Seen>) -> MutexGuard<'_, Seen> {
    seen.lock().unwrap_or_else(PoisonError::into_inner)
}

struct Remembers(Arc<Mutex<Seen>>);

impl<S: Subscriber + for<'a> LookupSpan<'a>> Layer<S> for Remembers {
    fn on_new_span(&self, attributes: &Attributes<'_>, id: &Id, context: Context<'_, S>) {
        let mut fields = Collected::default();
        attributes.record(&mut fields);
        let metadata = attributes.metadata();
        let parent = context
            .span(id)
            .and_then(|span| span.parent().map(|up| up.id()));
        lock(&self.0).spans.push(Span {
            id: id.into_u64(),
            name: metadata.name(),
            target: metadata.target(),
            level: *metadata.level(),
            parent: parent.map(|id| id.into_u64()),
            fields: fields.0,
            is_closed: false,
        });
    }

    fn on_record(&self, id: &Id, values: &Record<'_>, _: Context<'_, S>) {
        let mut fields = Collected::default();
        values.record(&mut fields);
        with_open(&self.0, id, |span| span.fields.extend(fields.0));
    }

    fn on_close(&self, id: Id, _: Context<'_, S>) {
        with_open(&self.0, &id, |span| span.is_closed = true);
    }

    fn on_event(&self, event: &Event<'_>, context: Context<'_, S>) {
        let mut fields = Collected::default();
        event.record(&mut fields);
        let within = context.event_span(event).map(|span| span.id().into_u64());
        lock(&self.0).lines.push(Line {
            level: *event.metadata().level(),
            target: event.metadata().target(),
            fields: fields.0,
            within,
        });
    }
}

/// The ids of closed spans are used again.
fn with_open(seen: &Mutex<Seen>, id: &Id, change: impl FnOnce(&mut Span)) {
    let mut seen = lock(seen);
    let open = |span: &&mut Span| span.id == id.into_u64() && !span.is_closed;
    if let Some(span) = seen.spans.iter_mut().rev().find(open) {
        change(span);
    }
}

#[derive(Default)]
struct Collected(Fields);

impl Visit for Collected {
    fn record_str(&mut self, field: &Field, value: &str) {
        self.0.insert(field.name().to_owned(), value.to_owned());
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.0.insert(field.name().to_owned(), format!("{value:?}"));
    }
}
