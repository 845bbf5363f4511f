//! The producer's trace, by its headers, and what is told of it where nobody records traces.

use tower_inbox::TraceContext;
use tracing::Instrument as _;

use crate::capture::Capture;
use crate::world::{SPAN, TRACE, World, event, eventually, numbered, traceparent};

/// (traces): "W3C trace context taken over from the producer's headers" (issue 9).
#[tokio::test]
async fn a_delivery_continues_its_producers_trace() {
    let capture = Capture::start();
    let world = World::start(|source| source).await;
    let request = event("evt_1").header("traceparent", &traceparent());
    assert_eq!(world.send(&request).await.status(), 204);
    capture
        .span("inbox.delivery")
        .has("trace_id", TRACE)
        .has("parent_id", SPAN)
        .has_no("link.trace_id");
}

/// (traces): a span around the inbox is the parent, and the producer's is linked.
#[tokio::test]
async fn inside_of_another_span_the_producers_is_linked() {
    let capture = Capture::start();
    let world = World::start(|source| source).await;
    let request = event("evt_1").header("traceparent", &traceparent());
    let around = tracing::info_span!("http");
    assert_eq!(world.send(&request).instrument(around).await.status(), 204);
    let span = capture.span("inbox.delivery");
    span.has("link.trace_id", TRACE)
        .has("link.span_id", SPAN)
        .has_no("trace_id");
    assert!(!span.is_root());
}

/// (traces): an untrusted producer does not decide what is recorded.
#[tokio::test]
async fn a_source_may_be_only_linked_or_not_at_all() {
    for (context, linked) in [(TraceContext::Link, true), (TraceContext::Ignore, false)] {
        let capture = Capture::start();
        let world = World::start(|source| source.trace_context(context)).await;
        let request = event("evt_1").header("traceparent", &traceparent());
        assert_eq!(world.send(&request).await.status(), 204);
        let span = capture.span("inbox.delivery");
        span.has_no("trace_id").has_no("parent_id");
        assert_eq!(span.get("link.trace_id"), linked.then_some(TRACE));
        assert_eq!(span.get("link.span_id"), linked.then_some(SPAN));
    }
}

/// §2.2: nothing is taken from somebody whose signature is not right.
#[tokio::test]
async fn a_refused_delivery_brings_no_trace() {
    let capture = Capture::start();
    let world = World::start(|source| source).await;
    let request = event("evt_1").header("traceparent", &traceparent());
    assert_eq!(world.send(&request.clone().tampered()).await.status(), 401);
    assert_eq!(world.send(&request.unsigned()).await.status(), 401);
    for span in capture.spans("inbox.delivery") {
        span.has_no("trace_id")
            .has_no("link.trace_id")
            .has_no("messaging.message.id");
    }
}

/// (traces)
#[tokio::test]
async fn what_is_no_traceparent_is_left_alone() {
    let capture = Capture::start();
    let world = World::start(|source| source).await;
    let zero = "0".repeat(32);
    let bad = [
        format!("00-{zero}-{SPAN}-01"),
        format!("00-{}-{SPAN}-01", TRACE.to_uppercase()),
        format!("ff-{TRACE}-{SPAN}-01"),
        "1; DROP TABLE spans".to_owned(),
    ];
    for (n, bad) in bad.iter().enumerate() {
        let request = event(&format!("evt_{n}")).header("traceparent", bad);
        assert_eq!(world.send(&request).await.status(), 204);
    }
    for span in capture.spans("inbox.delivery") {
        span.has_no("trace_id").has_no("link.trace_id");
    }
}

/// (traces): "kept with parked events so that the drain's span links to the delivery" (issue 9). Nobody records traces here:
/// it is the producer's span that brought it. Nobody else may say what stored an event.
#[tokio::test]
async fn a_drained_event_is_linked_to_the_trace_that_brought_it() {
    let capture = Capture::start();
    let world = World::start(|source| source).await;
    let forged = format!("00-{}-{}-01", "a".repeat(32), "b".repeat(16));
    let parked = numbered("acct", 2)
        .header("traceparent", &traceparent())
        .header("inbox-stored-by", &forged);
    assert_eq!(world.send(&parked).await.status(), 202);
    // A redelivery changes nothing about what is stored.
    let other = format!("00-{}-{}-01", "c".repeat(32), "d".repeat(16));
    let again = numbered("acct", 2).header("traceparent", &other);
    assert_eq!(world.send(&again).await.status(), 202);
    assert_eq!(world.send(&numbered("acct", 1)).await.status(), 204);
    let drained = || {
        capture
            .spans("inbox.drain")
            .iter()
            .any(|span| span.is_closed)
    };
    eventually("2 is drained", drained).await;
    capture
        .span("inbox.drain")
        .has("link.trace_id", TRACE)
        .has("link.span_id", SPAN)
        .has_no("trace_id");
}
