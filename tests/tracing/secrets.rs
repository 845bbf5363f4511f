//! Nothing that is logged or recorded holds a body, a secret or a credential, and no id forges a line.

use std::io;
use std::sync::{Arc, Mutex};

use http::HeaderValue;
use tower_inbox::{Delivery, Source, testkit};
use tracing::subscriber::DefaultGuard;
use tracing_subscriber::fmt::MakeWriter;

use crate::world::{SECRET, World, eventually, signed};

/// Stands in every body.
const IN_THE_BODY: &str = "what_the_customer_said";
/// Stands in the headers of whoever calls.
const CREDENTIAL: &str = "bearer_of_the_caller";

/// All that a formatting subscriber writes, in full detail.
#[derive(Clone, Default)]
struct Written(Arc<Mutex<Vec<u8>>>);

impl Written {
    fn start() -> (Self, DefaultGuard) {
        let written = Self::default();
        let subscriber = tracing_subscriber::fmt()
            .with_max_level(tracing::Level::TRACE)
            .with_span_events(tracing_subscriber::fmt::format::FmtSpan::FULL)
            .with_ansi(false)
            .with_writer(written.clone())
            .finish();
        (written, tracing::subscriber::set_default(subscriber))
    }

    fn text(&self) -> String {
        let bytes = self.0.lock().expect("nobody panicked with it");
        String::from_utf8(bytes.clone()).expect("text")
    }
}

impl io::Write for Written {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0
            .lock()
            .expect("nobody panicked with it")
            .extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl<'a> MakeWriter<'a> for Written {
    type Writer = Self;

    fn make_writer(&'a self) -> Self {
        self.clone()
    }
}

/// What the handler answers: the event's type says it.
fn status(delivery: &Delivery) -> u16 {
    let kind = delivery.event_type().unwrap_or_default();
    kind.strip_prefix("status_")
        .map_or(204, |status| status.parse().expect("a number"))
}

/// §6.5, and (traces): "never a body or a secret" (issue 9), at every level, whatever the outcome.
#[tokio::test]
async fn no_body_and_no_secret_is_logged_whatever_the_outcome() {
    let (written, _guard) = Written::start();
    let change = |source: Source| source.park_limit(3).body_limit(4_000);
    let world = World::answering(change, status).await;
    let event = |id: &str, kind: &str| {
        testkit::event(id)
            .kind(kind)
            .data(serde_json::json!({"note": IN_THE_BODY}))
    };
    let send = async |request: &testkit::SignedRequest| {
        let mut request = request.build::<axum::body::Body>();
        let headers = request.headers_mut();
        headers.insert("authorization", HeaderValue::from_static(CREDENTIAL));
        headers.insert("cookie", HeaderValue::from_static(CREDENTIAL));
        world.post(request).await.status().as_u16()
    };
    let good = signed(&event("evt_1", "t"));
    let in_stream = |n: i64, kind: &str| signed(&event(&format!("evt_s{n}"), kind).stream("s", n));
    let large = signed(&event("evt_large", "t").with("padding", "x".repeat(5_000)));
    let no_id = signed(&testkit::event("evt_raw").raw_body(format!(r#"{{"x":"{IN_THE_BODY}"}}"#)));
    let no_json = signed(&testkit::event("evt_raw").raw_body(format!("<{IN_THE_BODY}>")));
    let changed =
        signed(&event("evt_1", "t").with("data", serde_json::json!({"other": IN_THE_BODY})));
    let taken = signed(&event("evt_taken", "t").stream("s", 1));
    let outcomes = [
        (&good, 204),
        (&good, 200),
        (&changed, 422),
        (&good.clone().tampered(), 401),
        (&good.clone().unsigned(), 401),
        (&large, 413),
        (&no_id, 400),
        (&no_json, 400),
        (&signed(&event("evt_422", "status_422")), 422),
        (&signed(&event("evt_503", "status_503")), 503),
        (&in_stream(3, "t"), 202),
        (&in_stream(2, "status_500"), 202),
        (&in_stream(1, "t"), 204),
        (&taken, 422),
    ];
    for (request, expected) in outcomes {
        assert_eq!(send(request).await, expected, "{request:?}");
    }
    let retried = "a parked event was not applied: it is tried again";
    eventually("the worker has tried 2", || {
        written.text().contains(retried)
    })
    .await;
    world.inbox.shutdown().await;
    let text = written.text();
    for needle in [IN_THE_BODY, SECRET, CREDENTIAL, "v1="] {
        let line = text.lines().find(|line| line.contains(needle));
        assert_eq!(line, None, "{needle}");
    }
    // It has seen all of it.
    for needle in [
        "evt_1",
        "evt_taken",
        "refused a delivery",
        "inbox.drain",
        "evt_s2",
    ] {
        assert!(text.contains(needle), "{needle}");
    }
}

/// (traces): one line stays one line, with nothing in it that a terminal obeys, whatever a producer puts into an id.
#[tokio::test]
async fn no_id_forges_a_line_or_moves_a_terminal() {
    let (written, _guard) = Written::start();
    let world = World::answering(|source| source, status).await;
    // By the body alone: a header holds less than an id may.
    let send = async |event: &testkit::Event| {
        let mut request = signed(event).build::<axum::body::Body>();
        request.headers_mut().remove("x-kudos-event-id");
        world.post(request).await.status().as_u16()
    };
    // Control characters are no part of an id (§4.9).
    for id in [
        "evt_\n2026 ERROR forged",
        "evt_\u{1b}[2J",
        "evt_\u{9b}2J",
        "evt_\r",
    ] {
        let body = serde_json::json!({"event_id": id, "event_type": "t", "data": {}});
        let raw = testkit::event("evt_raw").raw_body(body.to_string());
        assert_eq!(send(&raw).await, 400, "{id:?}");
    }
    // These are, and are shown as what they are: line and paragraph ends, the other direction, none at all.
    let odd = "evt_\u{2028}\u{2029}\u{202e}\u{2066}\u{200b}\u{feff}\"=}:";
    assert_eq!(send(&testkit::event(odd).kind("status_422")).await, 422);
    let numbered = |n: i64| testkit::event(format!("{odd}{n}")).stream(odd, n);
    assert_eq!(send(&numbered(2)).await, 202);
    assert_eq!(send(&numbered(1)).await, 204);
    eventually("2 is drained", || {
        let is_closed = |line: &str| line.contains("inbox.drain{") && line.contains(": close ");
        written.text().lines().any(is_closed)
    })
    .await;
    world.inbox.shutdown().await;
    let text = written.text();
    assert!(
        text.contains(r"evt_\u{2028}\u{2029}\u{202e}\u{2066}\u{200b}\u{feff}"),
        "{text}"
    );
    let bad = |c: char| {
        c.is_control() && c != '\n'
            || matches!(c, '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
    };
    let line = text
        .lines()
        .find(|line| line.contains(bad) || line.contains("ERROR forged"));
    assert_eq!(line, None);
}
