//! §2.3, §4.9: what a delivery must say about its event.

use bytes::Bytes;

use crate::db::TestDb;
use crate::door::nothing_happened;
use crate::kit::{Event, Reply, World};

suite![
    unusable_identifiers_get_400_that_names_the_field_and_leave_nothing,
    usable_identifiers_at_the_edge_pass,
];

/// §2.3, §4.9
async fn unusable_identifiers_get_400_that_names_the_field_and_leave_nothing<D: TestDb>(db: D) {
    let world = World::<D>::start(&db).await;
    let long = format!(r#"{{"event_id":"{}","data":{{}}}}"#, "x".repeat(256));
    let bodies: &[(&[u8], &str)] = &[
        (b"", ""),
        (b"{no json", ""),
        (b"[]", ""),
        (b"\xff\xfe", ""),
        (b"null", ""),
        (br#"{"data":{}}"#, "event id"),
        (br#"{"event_id":"","data":{}}"#, "event id"),
        (br#"{"event_id":7,"data":{}}"#, "event id"),
        (br#"{"event_id":null,"data":{}}"#, "event id"),
        (br#"{"event_id":"a\u0000b","data":{}}"#, "event id"),
        (br#"{"event_id":"a\nb","data":{}}"#, "event id"),
        (br#"{"event_id":"a\ud800b","data":{}}"#, ""),
        (br#"{"event_id":"a","event_id":"b","data":{}}"#, ""),
        (br#"{"event_id":"a","sequence":1,"data":{}}"#, "correlation"),
        (
            br#"{"event_id":"a","correlation_id":"","sequence":1,"data":{}}"#,
            "correlation id",
        ),
        (
            br#"{"event_id":"a","correlation_id":7,"sequence":1,"data":{}}"#,
            "correlation id",
        ),
        (
            br#"{"event_id":"a","correlation_id":"c","correlation_id":"d","sequence":1}"#,
            "",
        ),
        (
            br#"{"event_id":"a","correlation_id":"c","sequence":0,"data":{}}"#,
            "sequence",
        ),
        (
            br#"{"event_id":"a","correlation_id":"c","sequence":-1,"data":{}}"#,
            "sequence",
        ),
        (
            br#"{"event_id":"a","correlation_id":"c","sequence":1.0,"data":{}}"#,
            "sequence",
        ),
        (
            br#"{"event_id":"a","correlation_id":"c","sequence":1e0,"data":{}}"#,
            "sequence",
        ),
        (
            br#"{"event_id":"a","correlation_id":"c","sequence":"1","data":{}}"#,
            "sequence",
        ),
        (
            br#"{"event_id":"a","correlation_id":"c","sequence":01,"data":{}}"#,
            "",
        ),
        (
            br#"{"event_id":"a","correlation_id":"c","sequence":9223372036854775807}"#,
            "sequence",
        ),
        (
            br#"{"event_id":"a","correlation_id":"c","sequence":99999999999999999999}"#,
            "sequence",
        ),
        (
            br#"{"event_id":"a","correlation_id":"c","sequence":1,"sequence":2}"#,
            "",
        ),
        (long.as_bytes(), "event id"),
    ];
    for (body, field) in bodies {
        let reply = world.post(world.signed(Bytes::copy_from_slice(body))).await;
        let what = String::from_utf8_lossy(body);
        assert_eq!(
            (reply.status, reply.outcome()),
            (400, "rejected"),
            "{what}: {reply:?}"
        );
        let problem = reply.json();
        let detail = problem["detail"].as_str().unwrap();
        assert!(detail.contains(field), "{what}: {detail}");
    }
    nothing_happened(&world).await;
    assert_eq!(world.number("SELECT COUNT(*) FROM {p}cursor").await, 0);
}

/// §4.9
async fn usable_identifiers_at_the_edge_pass<D: TestDb>(db: D) {
    let world = World::<D>::start(&db).await;
    world.send(&Event::new(&"x".repeat(255))).await.is_applied();
    world.send(&Event::new("é\u{1f980} ")).await.is_applied();
    // A correlation id without a sequence is context and orders nothing.
    world
        .send(&Event::new("evt_1").with("correlation_id", "acct"))
        .await
        .is_applied();
    let last = 9_223_372_036_854_775_806_u64;
    let reply: Reply = world.send(&Event::new("evt_2").of("acct", last)).await;
    reply.is_parked(1);
}
