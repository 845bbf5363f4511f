//! Whoever is on call is not misled: by what lies elsewhere on a page, by numbers that say half of it, or by a link.

use axum::Router;
use http::StatusCode;
use tower_inbox::console::{Access, Console};
use tower_inbox::envelope::Place;
use tower_inbox::testkit;
use tower_inbox::{Inbox, OperatorErrorKind, Preset, Source};

use crate::kit::{SOURCE, TOKEN, Visitor, World, wait_until};

/// A stream at 200, with 119 events that were set aside below, and two that wait above.
async fn with_much_set_aside(world: &World) {
    world.stream("acct_1", [1]).await;
    let ada = world.inbox.operator("ada").expect("a name");
    let seen = ada.cursor(SOURCE, "acct_1").await.expect("asked");
    let seen = seen.expect("it has begun").seen();
    ada.fast_forward(SOURCE, "acct_1", 200, seen, "a test")
        .await
        .expect("moved");
    for sequence in 2..=120 {
        let event = testkit::event(format!("evt_late_{sequence}"));
        world.send(event.stream("acct_1", sequence)).await;
    }
    world.stream("acct_1", [205, 206]).await;
}

#[tokio::test]
async fn a_gap_is_seen_whatever_lies_below_the_cursor_and_whatever_page_is_looked_at() {
    let world = World::new().await;
    with_much_set_aside(&world).await;
    let mut ada = world.ada().await;
    let last = |number: &str| {
        format!(
            "name=\"last\" type=\"number\" inputmode=\"numeric\" min=\"0\" required value=\"{number}\""
        )
    };
    for path in [
        "/stream?source=crm&id=acct_1",
        "/stream?source=crm&id=acct_1&from=50",
        "/stream?source=crm&id=acct_1&from=206",
    ] {
        let page = ada.get(path).await;
        page.is(StatusCode::OK)
            .says("It waits for sequence <b>200</b>")
            .says("<b>2</b> stored behind it")
            .says_not("Nothing waits in it");
        // And what one would skip by default is the gap, and nothing that is stored.
        page.says(&last("204"));
    }
    let strip = ada.get("/stream?source=crm&id=acct_1").await;
    strip.says("200–204").says("205–206");
}

#[tokio::test]
async fn what_fails_all_the_time_is_not_all_clear_when_an_hour_begins() {
    let world = World::new().await;
    let mut ada = world.ada().await;
    wait_until("the worker runs", async || {
        let page = world.ada().await.get("/").await;
        page.body.contains("all clear")
    })
    .await;
    ada.get("/").await.says("healthy");
    world
        .db
        .execute(
            "INSERT INTO tower_inbox_stats (source, event_type, slot, total, failed) \
             VALUES ('crm', '', (unixepoch() / 3600 - 1) * 3600000000, 7, 7)",
        )
        .await;
    ada.get("/")
        .await
        .says("7 deliveries or attempts failed")
        .says("7 failed of late")
        .says("nothing waits")
        .says_not("all clear")
        .says_not("healthy");
}

#[tokio::test]
async fn without_a_worker_it_is_not_all_clear() {
    let world = World::new().await;
    let mut ada = world.ada().await;
    world.inbox.shutdown().await;
    ada.get("/")
        .await
        .says("worker not running")
        .says_not("all clear");
}

#[tokio::test]
async fn of_ten_thousand_sources_those_are_shown_with_which_something_is_the_matter() {
    let world = World::new().await;
    let slot = "unixepoch() / 3600 * 3600000000";
    for insert in [
        format!(
            "INSERT INTO tower_inbox_stats (source, event_type, slot, total) \
             WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 10000) \
             SELECT 't_' || i, '', {slot}, i FROM n"
        ),
        format!("UPDATE tower_inbox_stats SET failed = 1 WHERE source = 't_17' AND slot = {slot}"),
    ] {
        world.db.execute(&insert).await;
    }
    let mut ada = world.ada().await;
    let page = ada.get("/").await;
    page.is(StatusCode::OK)
        .says("50 of 10,001 sources")
        .says("aria-label=\"Source t_17\"")
        .says("aria-label=\"Source t_10000\"")
        .says_not("aria-label=\"Source t_9000\"");
    assert!(page.body.len() < 1_000_000, "{} bytes", page.body.len());
    let one = ada.get("/?source=t_9000").await;
    one.says("aria-label=\"Source t_9000\"")
        .says("1 of 10,001 sources")
        .says_not("aria-label=\"Source t_17\"");
}

#[tokio::test]
async fn a_stream_of_versions_waits_for_no_sequence() {
    let db = testkit::sqlite().await;
    let place = Place::json("account");
    let source = Source::new("news", Preset::KUDOS)
        .secrets(["a secret of the tests"])
        .newer_than(place, Place::JsonInteger("version".into()));
    let inbox = Inbox::builder(db.pool())
        .source(source)
        .build()
        .await
        .expect("an inbox");
    db.execute(
        "INSERT INTO tower_inbox_cursor (source, correlation_id, next_sequence, updated_at, version) \
         VALUES ('news', 'acct_1', 1, 0, 9)",
    )
    .await;
    let access = Access::token(TOKEN).expect("long enough");
    let console = Console::new(&inbox, access).actions(true).into_router();
    let mut ada = Visitor::of(Router::new().nest("/console", console), "/console");
    ada.sign_in("ada", TOKEN).await.is(StatusCode::SEE_OTHER);
    let page = ada.get("/stream?source=news&id=acct_1").await;
    page.is(StatusCode::OK)
        .says("this stream waits for no sequence")
        .says_not("comes next")
        .says_not("/stream/skip")
        .says("/stream/reset");
    let field = |name| page.field(name).expect("a field");
    let (next, generation, first) = (field("seen_next"), field("seen_generation"), field("first"));
    let reset = [
        ("source", "news"),
        ("id", "acct_1"),
        ("seen_next", &*next),
        ("seen_generation", &*generation),
        ("first", &*first),
        ("reason", "the producer begins again"),
    ];
    let done = ada.submit("/stream/reset", &reset).await;
    ada.follow(&done).await.says("a new generation has begun");
    let cleared = "SELECT count(*) FROM tower_inbox_cursor WHERE version IS NULL";
    assert_eq!(db.number(cleared).await, 1);
}

#[tokio::test]
async fn no_link_hides_what_is_dead() {
    let world = World::new().await;
    world.dead(["evt_bad_1".to_owned()]).await;
    let mut ada = world.ada().await;
    ada.get("/dead?seen_at=0").await.says("evt_bad_1");
    ada.get("/dead?after_source=zzz&after=zzz")
        .await
        .says("There are no more.");
    ada.get("/streams?source=crmm")
        .await
        .says("No stream of this source waits");
    let wrong = [
        ("verb", "discard"),
        ("seen", "1"),
        ("seen_at", "then"),
        ("reason", "a test"),
    ];
    ada.submit("/dead/bulk", &wrong)
        .await
        .is(StatusCode::BAD_REQUEST)
        .says("dry run");
}

#[tokio::test]
async fn a_dry_run_counts_what_would_be_done_and_not_what_would_be_left() {
    let world = World::new().await;
    world.dead(["evt_bad_1".to_owned()]).await;
    world.stream("acct_1", [1]).await;
    let seen = [("seen_next", "2"), ("seen_generation", "0")];
    let mut ada = world.ada().await;
    let skip = [
        &[("source", "crm"), ("id", "acct_1"), ("reason", "a test")][..],
        &[("first", "2"), ("last", "2")],
        &seen,
    ]
    .concat();
    ada.submit("/stream/skip", &skip)
        .await
        .is(StatusCode::SEE_OTHER);
    world.stream("acct_1", [2]).await;
    let dry = ada.submit("/dead/dry-run", &[("verb", "replay")]).await;
    dry.says("<b id=\"matched\">1</b>")
        .says("because of")
        .says_not("skipped");
    let dry = ada.submit("/dead/dry-run", &[("verb", "discard")]).await;
    dry.says("<b id=\"matched\">2</b>");
    let of_those = [("verb", "replay"), ("because", "skipped")];
    ada.submit("/dead/dry-run", &of_those)
        .await
        .is(StatusCode::BAD_REQUEST)
        .says("no turn to come");
    let both = [
        ("verb", "replay"),
        ("because", "skipped"),
        ("because", "rejected"),
    ];
    ada.submit("/dead/dry-run", &both)
        .await
        .says("<b id=\"matched\">1</b>");
}

#[tokio::test]
async fn nobody_releases_what_the_fence_holds_without_a_name_and_a_reason() {
    let world = World::new().await;
    let long = "x".repeat(2_001);
    for (actor, reason) in [
        ("", "a slip"),
        ("a\nb", "a slip"),
        ("ada", ""),
        ("ada", &long),
    ] {
        let refused = world
            .inbox
            .release_fenced(SOURCE, "evt_1", actor, reason)
            .await;
        let kind = refused.expect_err("refused").kind();
        assert_eq!(kind, OperatorErrorKind::Invalid, "{actor:?} {reason:?}");
    }
    let released = world
        .inbox
        .release_fenced(SOURCE, "evt_1", "ada", "a slip")
        .await;
    assert!(!released.expect("nothing is held"));
}
