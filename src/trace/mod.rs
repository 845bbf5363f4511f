//! Spans: one for each delivery, and one for each attempt at an event with nobody waiting for it.
//!
//! All of them have the target `tower_inbox::span`, so that a filter can take them out and leave the lines of the log. A span
//! holds identifiers and never a body, a header or a secret. Without a subscriber that wants one it costs a load.

#[cfg(feature = "opentelemetry")]
mod otel;
mod parent;

use http::header::HeaderMap;
use http::{Extensions, Response};
use tracing::field::{Empty, display};
use tracing::{Span, info_span};

use self::parent::TraceParent;
pub(crate) use self::parent::{STORED_BY, StoredBy};
use crate::envelope::Envelope;
use crate::event::{Origin, Outcome};

/// How the spans of a source's deliveries are tied to the trace that its producer names in the headers `traceparent` and
/// `tracestate` (W3C Trace Context): [`Source::trace_context`](crate::Source::trace_context).
///
/// Nothing is taken from a delivery before its signature is verified. No scheme signs these headers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum TraceContext {
    /// The delivery's span continues the producer's trace, unless it has a parent in this process (a layer outside of the
    /// inbox that makes spans): then it is linked. With a sampler that follows the parent, the producer's flag decides whether
    /// the span is recorded.
    #[default]
    Follow,
    /// The delivery's span is linked to the producer's, and in a trace of its own, for which this process alone decides.
    Link,
    /// The headers are not looked at.
    Ignore,
}

/// What a delivery is told apart by in a backend of traces: no broker's name fits.
const SYSTEM: &str = "webhook";

/// A macro, since the fields of a span are part of where it is made.
macro_rules! span {
    ($name:literal, $($parent:tt)*) => {
        info_span!(
            target: "tower_inbox::span",
            $($parent)*
            $name,
            otel.kind = "consumer",
            otel.name = Empty,
            otel.status_code = Empty,
            error.type = Empty,
            messaging.system = SYSTEM,
            messaging.operation.name = "process",
            messaging.operation.type = "process",
            messaging.destination.name = Empty,
            messaging.message.id = Empty,
            messaging.message.conversation_id = Empty,
            messaging.message.body.size = Empty,
            messaging.batch.message_count = Empty,
            http.response.status_code = Empty,
            inbox.origin = Empty,
            inbox.event_type = Empty,
            inbox.sequence = Empty,
            inbox.version = Empty,
            inbox.attempt = Empty,
            inbox.outcome = Empty,
            trace_id = Empty,
            parent_id = Empty,
            link.trace_id = Empty,
            link.span_id = Empty,
        )
    };
}

/// The span of one request. It is entered only once its signature is verified or it is refused: nothing of a caller who is
/// not known reaches a sampler.
pub(crate) fn delivery() -> Span {
    let span = span!("inbox.delivery",);
    span.record("inbox.origin", origin_name(Origin::Live));
    span
}

/// Whose delivery it is.
pub(crate) fn found(span: &Span, source: &str) {
    if span.is_disabled() {
        return;
    }
    span.record("messaging.destination.name", source);
    span.record("otel.name", display(format_args!("process {source}")));
}

/// Its signature is verified, and its events are read.
pub(crate) fn admitted<'a>(
    span: &Span,
    context: TraceContext,
    headers: &HeaderMap,
    mut events: impl ExactSizeIterator<Item = (&'a Envelope, usize)>,
) {
    if span.is_disabled() {
        return;
    }
    match (events.len(), events.next()) {
        (1, Some((envelope, bytes))) => {
            identified(span, envelope);
            span.record("messaging.message.body.size", bytes);
        }
        (several, _) => {
            span.record("messaging.batch.message_count", several);
        }
    }
    let Some(producer) = producer(context, headers) else {
        return;
    };
    // Not entered yet: what is current is somebody else's.
    if context == TraceContext::Follow && Span::current().is_none() {
        span.record("trace_id", display(producer.trace_id()));
        span.record("parent_id", display(producer.span_id()));
        #[cfg(feature = "opentelemetry")]
        otel::follow(span, producer, headers);
    } else {
        linked(span, producer);
    }
}

/// The span of an attempt at an event with nobody waiting for it, linked to the delivery that brought it. `attempt`: the how
/// manieth of a worker's it is.
pub(crate) fn attempt(
    source: &str,
    context: TraceContext,
    envelope: &Envelope,
    request: &http::Request<bytes::Bytes>,
    origin: Origin,
    attempt: Option<i64>,
) -> Span {
    // Whatever woke the worker is no part of its story.
    let span = match origin {
        Origin::Reconciled => span!("inbox.reconcile", parent: None,),
        _ => span!("inbox.drain", parent: None,),
    };
    if span.is_disabled() {
        return span;
    }
    found(&span, source);
    span.record("inbox.origin", origin_name(origin));
    identified(&span, envelope);
    span.record("messaging.message.body.size", request.body().len());
    if let Some(attempt) = attempt {
        span.record("inbox.attempt", attempt);
    }
    let stored_by = request.extensions().get::<StoredBy>();
    let by = stored_by.map(|by| by.0);
    if let Some(by) = by.or_else(|| producer(context, request.headers())) {
        linked(&span, by);
    }
    span
}

fn origin_name(origin: Origin) -> &'static str {
    match origin {
        Origin::Live => "live",
        Origin::Drained => "drained",
        Origin::Reconciled => "reconciled",
    }
}

fn identified(span: &Span, envelope: &Envelope) {
    span.record("messaging.message.id", envelope.event_id.as_str());
    if let Some(id) = &envelope.correlation_id {
        span.record("messaging.message.conversation_id", id.as_str());
    }
    if let Some(kind) = &envelope.event_type {
        span.record("inbox.event_type", kind.as_str());
    }
    if let Some(sequence) = envelope.sequence {
        span.record("inbox.sequence", sequence.get());
    }
    if let Some(version) = envelope.version {
        span.record("inbox.version", version);
    }
}

fn producer(context: TraceContext, headers: &HeaderMap) -> Option<TraceParent> {
    (context != TraceContext::Ignore).then(|| TraceParent::of(headers))?
}

fn linked(span: &Span, to: TraceParent) {
    span.record("link.trace_id", display(to.trace_id()));
    span.record("link.span_id", display(to.span_id()));
    #[cfg(feature = "opentelemetry")]
    otel::link(span, to);
}

/// What is stored with the request of the current span's delivery, if that is recorded somewhere: an attempt at its event is
/// linked to it.
pub(crate) fn mark(extensions: &mut Extensions) {
    #[cfg(feature = "opentelemetry")]
    if let Some(own) = otel::own(&Span::current()) {
        extensions.insert(StoredBy(own));
    }
    #[cfg(not(feature = "opentelemetry"))]
    let _ = extensions;
}

/// How it ended.
pub(crate) fn ended(span: &Span, outcome: Outcome) {
    if span.is_disabled() {
        return;
    }
    span.record("inbox.outcome", outcome.as_str());
    if outcome == Outcome::Failed {
        span.record("otel.status_code", "ERROR");
    }
}

/// A batch is rolled back: its events are tried one by one, each in a span of its own.
pub(crate) fn undone(span: &Span) {
    span.record("inbox.outcome", "undone");
}

/// What its producer is told.
pub(crate) fn answered<R>(span: &Span, response: &Response<R>) {
    if span.is_disabled() {
        return;
    }
    let status = response.status();
    span.record("http.response.status_code", status.as_u16());
    if let Some(outcome) = response.extensions().get::<Outcome>() {
        ended(span, *outcome);
        if *outcome == Outcome::Failed {
            span.record("error.type", status.as_str());
        }
    }
}
