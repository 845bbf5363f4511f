//! The same as an exporter of OpenTelemetry gets it.

use std::sync::{Arc, Mutex};

use opentelemetry::trace::{
    SpanId, SpanKind, Status, TraceContextExt as _, TraceId, TracerProvider as _,
};
use opentelemetry_sdk::error::OTelSdkResult;
use opentelemetry_sdk::trace::{Sampler, SdkTracerProvider, SpanData, SpanExporter};
use tower_inbox::{Delivery, Source, TraceContext, testkit};
use tracing::Instrument as _;
use tracing::subscriber::DefaultGuard;
use tracing_opentelemetry::OpenTelemetrySpanExt as _;
use tracing_subscriber::layer::SubscriberExt as _;

use crate::world::{SPAN, TRACE, World, event, eventually, numbered, signed, traceparent};

/// What was exported.
#[derive(Clone, Debug, Default)]
struct Exported(Arc<Mutex<Vec<SpanData>>>);

impl SpanExporter for Exported {
    async fn export(&self, batch: Vec<SpanData>) -> OTelSdkResult {
        self.0
            .lock()
            .expect("nobody panicked with it")
            .extend(batch);
        Ok(())
    }
}

impl Exported {
    /// From now on, by this sampler.
    fn start(sampler: Sampler) -> (Self, DefaultGuard) {
        let exported = Self::default();
        let provider = SdkTracerProvider::builder()
            .with_simple_exporter(exported.clone())
            .with_sampler(sampler)
            .build();
        let layer = tracing_opentelemetry::layer().with_tracer(provider.tracer("test"));
        let subscriber = tracing_subscriber::registry().with(layer);
        (exported, tracing::subscriber::set_default(subscriber))
    }

    /// Those that carry this event; none while they go on.
    fn of(&self, id: &str) -> Vec<SpanData> {
        let spans = self.0.lock().expect("nobody panicked with it");
        let of = |span: &&SpanData| attribute(span, "messaging.message.id").as_deref() == Some(id);
        spans.iter().filter(of).cloned().collect()
    }

    /// So many of them, once they have ended: whoever still executes a statement of theirs holds them for a moment.
    async fn ended<const N: usize>(&self, id: &str) -> [SpanData; N] {
        eventually("its spans have ended", || self.of(id).len() >= N).await;
        let spans = self.of(id);
        spans
            .try_into()
            .unwrap_or_else(|spans| panic!("more than {N}: {spans:#?}"))
    }

    fn all(&self) -> Vec<SpanData> {
        self.0.lock().expect("nobody panicked with it").clone()
    }
}

fn attribute(span: &SpanData, name: &str) -> Option<String> {
    let found = span
        .attributes
        .iter()
        .find(|pair| pair.key.as_str() == name)?;
    Some(found.value.as_str().into_owned())
}

fn trace() -> TraceId {
    TraceId::from_hex(TRACE).expect("one")
}

/// The spans that it is linked to.
fn links(span: &SpanData) -> Vec<(TraceId, SpanId)> {
    let links = span.links.iter().map(|link| &link.span_context);
    links.map(|to| (to.trace_id(), to.span_id())).collect()
}

fn its_own(span: &SpanData) -> (TraceId, SpanId) {
    (span.span_context.trace_id(), span.span_context.span_id())
}

/// (traces): "W3C trace context taken over from the producer's headers and kept with parked events so that the drain's span links
/// to the delivery" (issue 9).
#[tokio::test]
async fn a_delivery_is_in_its_producers_trace_and_its_attempt_is_linked_to_it() {
    let (exported, _guard) = Exported::start(Sampler::AlwaysOn);
    let world = World::start(|source| source).await;
    let parked = numbered("acct", 2)
        .header("traceparent", &traceparent())
        .header("tracestate", "vendor=1,other=2");
    assert_eq!(world.send(&parked).await.status(), 202);
    assert_eq!(world.send(&numbered("acct", 1)).await.status(), 204);
    let [delivery, attempt] = &exported.ended("evt_acct_2").await;
    assert_eq!(delivery.name, "process crm");
    assert_eq!(delivery.span_kind, SpanKind::Consumer);
    assert_eq!(delivery.span_context.trace_id(), trace());
    assert_eq!(
        delivery.parent_span_id,
        SpanId::from_hex(SPAN).expect("one")
    );
    assert!(delivery.parent_span_is_remote && delivery.links.is_empty());
    assert_eq!(
        delivery.span_context.trace_state().header(),
        "vendor=1,other=2"
    );
    assert_ne!(
        attempt.span_context.trace_id(),
        trace(),
        "a trace of its own"
    );
    assert_eq!(links(attempt), [its_own(delivery)]);
    assert_eq!(
        attribute(attempt, "inbox.outcome").as_deref(),
        Some("applied")
    );
    // The producer of the other one named no trace.
    let [first] = exported.ended("evt_acct_1").await;
    assert_eq!(first.parent_span_id, SpanId::INVALID);
}

/// (traces): what a handler sees is what came, live and drained.
#[tokio::test]
async fn what_is_kept_for_the_link_is_no_header_of_a_handlers() {
    type Seen = Arc<Mutex<Vec<Vec<(String, String)>>>>;
    async fn handler(
        axum::extract::State(seen): axum::extract::State<Seen>,
        _tx: tower_inbox::Tx<sqlx::Sqlite>,
        headers: http::HeaderMap,
    ) -> http::StatusCode {
        let headers = headers.iter().map(|(name, value)| {
            (
                name.to_string(),
                String::from_utf8_lossy(value.as_bytes()).into_owned(),
            )
        });
        seen.lock()
            .expect("nobody panicked with it")
            .push(headers.collect());
        http::StatusCode::NO_CONTENT
    }
    let (exported, _guard) = Exported::start(Sampler::AlwaysOn);
    let seen = Seen::default();
    let router = axum::Router::new()
        .route("/hook", axum::routing::post(handler))
        .with_state(Arc::clone(&seen));
    let world = World::with(|source| source, router).await;
    for sequence in [2, 1] {
        let request = numbered("acct", sequence)
            .header("traceparent", &traceparent())
            .header("inbox-stored-by", &traceparent());
        assert!(world.send(&request).await.status().is_success());
    }
    let [_, _] = exported.ended("evt_acct_2").await;
    let seen = seen.lock().expect("nobody panicked with it").clone();
    let [live, drained] = &seen[..] else {
        panic!("{seen:#?}");
    };
    let names = |headers: &[(String, String)]| -> Vec<String> {
        headers.iter().map(|(name, _)| name.clone()).collect()
    };
    assert_eq!(names(live), names(drained));
    for headers in [live, drained] {
        assert!(headers.contains(&("traceparent".to_owned(), traceparent())));
        assert!(!names(headers).contains(&"inbox-stored-by".to_owned()));
    }
}

/// (traces): a producer is verified before its flag decides anything, and where it is only linked it decides nothing.
#[tokio::test]
async fn only_a_verified_producer_that_is_followed_decides_what_is_sampled() {
    let sampler = || Sampler::ParentBased(Box::new(Sampler::AlwaysOff));
    let sampled =
        |request: &testkit::SignedRequest| request.clone().header("traceparent", &traceparent());
    {
        let (exported, _guard) = Exported::start(sampler());
        let world = World::start(|source| source).await;
        assert_eq!(world.send(&event("evt_1")).await.status(), 204);
        assert_eq!(
            world
                .send(&sampled(&event("evt_2")).unsigned())
                .await
                .status(),
            401
        );
        assert_eq!(
            world
                .send(&sampled(&event("evt_2")).tampered())
                .await
                .status(),
            401
        );
        assert!(exported.all().is_empty(), "{:#?}", exported.all());
        assert_eq!(world.send(&sampled(&event("evt_3"))).await.status(), 204);
        let [_] = exported.ended("evt_3").await;
        assert_eq!(exported.all().len(), 1, "{:#?}", exported.all());
    }
    for context in [TraceContext::Link, TraceContext::Ignore] {
        let (exported, _guard) = Exported::start(sampler());
        let world = World::start(|source: Source| source.trace_context(context)).await;
        assert_eq!(world.send(&sampled(&event("evt_1"))).await.status(), 204);
        assert!(
            exported.all().is_empty(),
            "{context:?}: {:#?}",
            exported.all()
        );
    }
}

/// (traces): the ambient span is the parent.
#[tokio::test]
async fn inside_of_another_span_it_is_a_child_and_linked_to_the_producer() {
    let (exported, _guard) = Exported::start(Sampler::AlwaysOn);
    let world = World::start(|source| source).await;
    let request = event("evt_1").header("traceparent", &traceparent());
    let around = tracing::info_span!("http");
    let http = around.context().span().span_context().clone();
    assert_eq!(world.send(&request).instrument(around).await.status(), 204);
    let [delivery] = &exported.ended("evt_1").await;
    assert_eq!(delivery.parent_span_id, http.span_id());
    assert_eq!(delivery.span_context.trace_id(), http.trace_id());
    assert_eq!(
        links(delivery),
        [(trace(), SpanId::from_hex(SPAN).expect("one"))]
    );
}

/// (traces): a failure is one to a backend of traces too.
#[tokio::test]
async fn a_failure_has_the_status_of_an_error() {
    let (exported, _guard) = Exported::start(Sampler::AlwaysOn);
    let status = |delivery: &Delivery| match delivery.event_id() {
        "evt_503" => 503,
        "evt_422" => 422,
        _ => 204,
    };
    let world = World::answering(|source| source, status).await;
    for (id, status) in [("evt_503", 503), ("evt_422", 422)] {
        assert_eq!(
            world.send(&signed(&testkit::event(id))).await.status(),
            status
        );
        let [span] = exported.ended(id).await;
        assert_eq!(
            matches!(span.status, Status::Error { .. }),
            status == 503,
            "{id}"
        );
    }
}

/// (traces): a `tracestate` that nobody could carry on is dropped, and the trace goes on.
#[tokio::test]
async fn a_bad_tracestate_costs_nothing_but_itself() {
    let (exported, _guard) = Exported::start(Sampler::AlwaysOn);
    let world = World::start(|source| source).await;
    let long = format!("a={}", "x".repeat(600));
    for (n, state) in ["a", &long].into_iter().enumerate() {
        let id = format!("evt_{n}");
        let request = event(&id)
            .header("traceparent", &traceparent())
            .header("tracestate", state);
        assert_eq!(world.send(&request).await.status(), 204);
        let [span] = exported.ended(&id).await;
        assert_eq!(span.span_context.trace_id(), trace());
        assert_eq!(span.span_context.trace_state().header(), "", "{state}");
    }
}
