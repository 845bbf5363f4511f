//! The same for OpenTelemetry, as `tracing-opentelemetry` has it: parents and links that a backend of traces follows.

use http::HeaderMap;
use opentelemetry::Context;
use opentelemetry::trace::{
    SpanContext, SpanId, TraceContextExt as _, TraceFlags, TraceId, TraceState,
};
use tracing::Span;
use tracing_opentelemetry::OpenTelemetrySpanExt as _;

use super::parent::TraceParent;

/// The header beside `traceparent`: what vendors of tracing tell each other.
const TRACESTATE: &str = "tracestate";
/// More than this nobody has to carry on, by its specification.
const LONGEST_STATE: usize = 512;

fn context(parent: TraceParent, state: TraceState) -> SpanContext {
    SpanContext::new(
        TraceId::from(parent.trace),
        SpanId::from(parent.span),
        TraceFlags::new(parent.flags),
        true,
        state,
    )
}

/// Makes it a part of the producer's trace.
pub(super) fn follow(span: &Span, producer: TraceParent, headers: &HeaderMap) {
    let producer = context(producer, state(headers));
    // An error says that nobody records the span.
    let _ = span.set_parent(Context::new().with_remote_span_context(producer));
}

pub(super) fn link(span: &Span, to: TraceParent) {
    span.add_link(context(to, TraceState::default()));
}

/// Its own, if it is recorded.
pub(super) fn own(span: &Span) -> Option<TraceParent> {
    if span.is_disabled() {
        return None;
    }
    let context = span.context();
    let own = context.span().span_context().clone();
    own.is_valid().then(|| TraceParent {
        trace: u128::from_be_bytes(own.trace_id().to_bytes()),
        span: u64::from_be_bytes(own.span_id().to_bytes()),
        flags: own.trace_flags().to_u8() & 1,
    })
}

/// Several headers are one list. Nothing where it is malformed or too long: the trace goes on without it.
fn state(headers: &HeaderMap) -> TraceState {
    let values: Option<Vec<_>> = headers
        .get_all(TRACESTATE)
        .iter()
        .map(|value| value.to_str().ok())
        .collect();
    let joined = values.unwrap_or_default().join(",");
    if joined.len() > LONGEST_STATE {
        return TraceState::default();
    }
    joined.parse().unwrap_or_default()
}
