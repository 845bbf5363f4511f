//! Looking over the shoulder: the statements that reach a database, and everything that is logged.
//!
//! Tests may share a process, and the SQLite driver executes on threads of its own: so there is one subscriber for
//! all, and what is watched for is told apart by a text that only one test uses.

use std::fmt;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::subscriber::Interest;
use tracing::{Event, Metadata, Subscriber};
use tracing_subscriber::layer::{Context, Layer, SubscriberExt};
use tracing_subscriber::registry::LookupSpan;

/// Lines that were logged while this lived.
pub(crate) struct Watch {
    lines: Mutex<Vec<String>>,
    /// Only statements, and only those that contain this. Nothing: every line of every target.
    statements_with: Option<String>,
}

impl Watch {
    /// Watches the statements that contain a text, such as the prefix of a test's tables.
    pub(crate) fn statements(with: &str) -> Arc<Self> {
        Self::start(Some(with.to_owned()))
    }

    /// Watches everything that is logged, in full detail.
    pub(crate) fn everything() -> Arc<Self> {
        Self::start(None)
    }

    fn start(statements_with: Option<String>) -> Arc<Self> {
        let watch = Arc::new(Self {
            lines: Mutex::default(),
            statements_with,
        });
        let watches = watches();
        watches
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(Arc::clone(&watch));
        watch
    }

    /// What has come since the last time.
    pub(crate) fn take(&self) -> Vec<String> {
        std::mem::take(&mut *self.lines.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn wants(&self, metadata: &Metadata<'_>) -> bool {
        self.statements_with.is_none() || metadata.target() == "sqlx::query"
    }

    fn see(&self, line: &str) {
        if self
            .statements_with
            .as_ref()
            .is_none_or(|with| line.contains(with))
        {
            self.lines
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .push(line.to_owned());
        }
    }
}

type Watches = Mutex<Vec<Arc<Watch>>>;

fn watches() -> &'static Watches {
    static WATCHES: OnceLock<Watches> = OnceLock::new();
    WATCHES.get_or_init(|| {
        let subscriber = tracing_subscriber::registry().with(Shoulder);
        tracing::subscriber::set_global_default(subscriber).expect("nobody else sets one");
        Mutex::default()
    })
}

struct Shoulder;

impl Shoulder {
    fn wanted(&self, metadata: &Metadata<'_>) -> bool {
        let watches = watches().lock().unwrap_or_else(PoisonError::into_inner);
        watches.iter().any(|watch| watch.wants(metadata))
    }

    fn show(&self, metadata: &Metadata<'_>, record: impl FnOnce(&mut Line)) {
        let mut line = Line(format!("{} {}:", metadata.level(), metadata.target()));
        record(&mut line);
        let watches = watches().lock().unwrap_or_else(PoisonError::into_inner);
        watches
            .iter()
            .filter(|watch| watch.wants(metadata))
            .for_each(|watch| watch.see(&line.0));
    }
}

impl<S: Subscriber + for<'a> LookupSpan<'a>> Layer<S> for Shoulder {
    // What is wanted changes with each test.
    fn register_callsite(&self, _: &'static Metadata<'static>) -> Interest {
        Interest::sometimes()
    }

    fn enabled(&self, metadata: &Metadata<'_>, _: Context<'_, S>) -> bool {
        self.wanted(metadata)
    }

    fn on_new_span(&self, attributes: &Attributes<'_>, _: &Id, _: Context<'_, S>) {
        self.show(attributes.metadata(), |line| attributes.record(line));
    }

    fn on_record(&self, span: &Id, values: &Record<'_>, context: Context<'_, S>) {
        if let Some(span) = context.span(span) {
            self.show(span.metadata(), |line| values.record(line));
        }
    }

    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        self.show(event.metadata(), |line| event.record(line));
    }
}

struct Line(String);

impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.0.push_str(&format!(" {field}={value:?}"));
    }
}
