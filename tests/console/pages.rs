//! What the pages show, and what they do not.

use http::StatusCode;
use tower_inbox::testkit;

use crate::kit::{World, query, wait_until};

#[tokio::test]
async fn the_overview_says_what_waits_and_what_is_dead() {
    let world = World::new().await;
    let mut ada = world.ada().await;
    wait_until("the worker runs", async || {
        let page = world.ada().await.get("/").await;
        page.body.contains("worker running")
    })
    .await;
    ada.get("/").await.is(StatusCode::OK).says("all clear");
    world.stream("acct_1", [1, 3, 4]).await;
    world
        .dead(["evt_bad_1".to_owned(), "evt_bad_2".to_owned()])
        .await;
    // What is stored is sampled in the background.
    wait_until("the statistics have it", async || {
        let page = world.ada().await.get("/").await;
        page.body.contains("1 stream waits") && page.body.contains("2 rejected")
    })
    .await;
    let page = ada.get("/").await;
    page.says("2 events are parked</a>, the oldest of them stored <time")
        .says("Secrets, by label")
        .says("None of them holds a stream up.")
        .says("<dt>Rejected</dt><dd>2</dd>");
    page.says("role=\"img\" aria-label=\"Deliveries by the hour");
    let stats = ada.get("/api/stats").await;
    let stats: serde_json::Value = serde_json::from_str(&stats.body).expect("JSON");
    assert_eq!(stats["sources"][0]["source"], "crm");
    assert_eq!(stats["sources"][0]["gaps"], 1);
}

/// Tenants may be thousands.
#[tokio::test]
async fn the_statistics_of_many_sources_come_in_pages() {
    let world = World::new().await;
    let many = "WITH RECURSIVE n(i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n WHERE i < 1199)
        INSERT INTO tower_inbox_stats (source, event_type, slot, total)
            SELECT printf('tenant_%04d', i), '', (unixepoch() / 3600) * 3600000000, 1 FROM n";
    world.db.execute(many).await;
    let mut ada = world.ada().await;
    let (mut names, mut path) = (Vec::new(), "/api/stats".to_owned());
    loop {
        let page = ada.get(&path).await;
        let page: serde_json::Value =
            serde_json::from_str(&page.is(StatusCode::OK).body).expect("JSON");
        let sources = page["sources"].as_array().expect("an array");
        assert!(sources.len() <= 500, "{}", sources.len());
        let name =
            |source: &serde_json::Value| source["source"].as_str().expect("a name").to_owned();
        names.extend(sources.iter().map(name));
        match page["next"].as_str() {
            Some(next) => path = format!("/api/stats?after={next}"),
            None => break,
        }
    }
    assert_eq!(names.len(), 1_201);
    assert!(names.is_sorted_by(|a, b| a < b));
    for (name, there) in [("tenant_0700", 1), ("tenant_07", 0)] {
        let one = ada.get(&format!("/api/stats?source={name}")).await;
        let one: serde_json::Value = serde_json::from_str(&one.body).expect("JSON");
        assert_eq!(one["sources"].as_array().expect("an array").len(), there);
        assert!(one["next"].is_null());
    }
}

#[tokio::test]
async fn a_stream_is_drawn_with_its_gap_and_what_waits_behind_it() {
    let world = World::new().await;
    world.stream("acct_1", [1, 2, 5, 6]).await;
    let mut ada = world.ada().await;
    let list = ada.get("/streams").await;
    list.says("acct_1").says("missing").says("2 parked");
    let page = ada.get("/stream?source=crm&id=acct_1").await;
    page.says("It waits for sequence")
        .says("3–4")
        .says("5–6")
        .says("evt_acct_1_5");
    page.says("lang=\"en\"")
        .says("<h1>Stream ")
        .says("<caption>");
    assert_eq!(page.body.matches("<h1").count(), 1);
    for path in [
        "/stream?source=crm&id=none",
        "/stream?source=nope&id=acct_1",
    ] {
        let page = ada.get(path).await;
        page.is(StatusCode::NOT_FOUND)
            .says("Nothing is known of it");
    }
    ada.get("/stream?source=crm")
        .await
        .is(StatusCode::BAD_REQUEST);
}

#[tokio::test]
async fn a_skip_is_done_by_the_cursor_that_was_seen_and_said_once() {
    let world = World::new().await;
    world.stream("acct_1", [1, 3]).await;
    let mut ada = world.ada().await;
    let page = ada.get("/stream?source=crm&id=acct_1").await;
    let seen = [
        ("seen_next", page.field("seen_next").expect("a cursor")),
        (
            "seen_generation",
            page.field("seen_generation").expect("a generation"),
        ),
    ];
    assert_eq!((&*seen[0].1, &*seen[1].1), ("2", "0"));
    let mut skip = vec![
        ("source", "crm"),
        ("id", "acct_1"),
        ("first", "2"),
        ("last", "2"),
        (seen[0].0, &*seen[0].1),
        (seen[1].0, &*seen[1].1),
    ];
    ada.submit("/stream/skip", &skip)
        .await
        .is(StatusCode::BAD_REQUEST)
        .says("no reason");
    skip.push(("reason", "lost <b>for good</b>"));
    let done = ada.submit("/stream/skip", &skip).await;
    done.is(StatusCode::SEE_OTHER);
    ada.follow(&done)
        .await
        .says("Skipped 2.")
        .says("role=\"status\"");
    ada.follow(&done).await.says_not("Skipped 2.");
    world.wait_for_applied(2).await;

    skip[2].1 = "8";
    skip[3].1 = "8";
    let refused = ada.submit("/stream/skip", &skip).await;
    refused.is(StatusCode::SEE_OTHER);
    ada.follow(&refused)
        .await
        .says("The cursor has moved meanwhile")
        .says("role=\"alert\"");
    let audit = ada.get("/audit").await;
    audit
        .says("lost &lt;b&gt;for good&lt;/b&gt;")
        .says("ada")
        .says_not("<b>for");
    for (query, there) in [
        ("source=crm&stream=acct_1", true),
        ("source=crm&stream=acct_2", false),
        ("actor=ada", true),
        ("source=crm&actor=bob", false),
        ("source=crm&stream=acct_1&actor=ada", true),
    ] {
        let page = ada.get(&format!("/audit?{query}")).await;
        page.is(StatusCode::OK);
        assert_eq!(page.body.contains("for good"), there, "{query}");
    }
    for (query, why) in [
        ("stream=acct_1", "of which one"),
        ("event=evt_acct_1_1", "of which one"),
        ("source=crm&stream=acct_1&event=evt_acct_1_1", "not both"),
    ] {
        ada.get(&format!("/audit?{query}"))
            .await
            .is(StatusCode::BAD_REQUEST)
            .says(why);
    }
    assert_eq!(
        world
            .db
            .number("SELECT count(*) FROM tower_inbox_audit")
            .await,
        1
    );
}

#[tokio::test]
async fn streams_are_fast_forwarded_and_reset() {
    let world = World::new().await;
    world.stream("acct_1", [1, 9]).await;
    let mut ada = world.ada().await;
    let stream = [("source", "crm"), ("id", "acct_1"), ("reason", "a test")];
    let seen = |next, generation| [("seen_next", next), ("seen_generation", generation)];
    let forward = [&stream[..], &seen("2", "0"), &[("to", "9")]].concat();
    let done = ada.submit("/stream/fast-forward", &forward).await;
    ada.follow(&done).await.says("Skipped everything below 9.");
    world.wait_for_applied(2).await;
    let reset = [&stream[..], &seen("10", "0"), &[("first", "1")]].concat();
    let done = ada.submit("/stream/reset", &reset).await;
    ada.follow(&done).await.says("a new generation has begun");
    ada.get("/stream?source=crm&id=acct_1")
        .await
        .says("comes next");
}

#[tokio::test]
async fn whatever_a_producer_calls_things_is_text() {
    let world = World::new().await;
    let script = "bad <script>alert(1)</script>";
    let emoji = "🦀".repeat(63) + "bad";
    let quotes = "bad\" onmouseover=\"alert(2)' & \u{202e}";
    for id in [script, &emoji, quotes] {
        assert!(id.len() <= 255);
        let event = testkit::event(id).kind(script);
        world.send(event).await;
    }
    world.send(testkit::event("evt_1").stream(script, 7)).await;
    let mut ada = world.ada().await;
    for id in [script, &emoji, quotes] {
        let path = format!("/event?{}", query(&[("source", "crm"), ("id", id)]));
        ada.get(&path).await.is(StatusCode::OK);
    }
    let stream = format!("/stream?{}", query(&[("source", "crm"), ("id", script)]));
    for path in ["/dead", "/streams", "/audit", "/", &stream] {
        let page = ada.get(path).await;
        page.is(StatusCode::OK)
            .says_not("<script>")
            .says_not("onmouseover=\"");
    }
    let page = ada.get("/dead").await;
    page.says("bad &lt;script&gt;alert(1)&lt;/script&gt;");
    page.says(&emoji).says("U+202E");
}

#[tokio::test]
async fn a_body_is_shown_on_demand_alone_and_that_is_audited() {
    let world = World::new().await;
    world.dead(["evt_bad_1".to_owned()]).await;
    let mut ada = world.ada().await;
    let page = ada.get("/event?source=crm&id=evt_bad_1").await;
    page.says("rejected").says("content-type").says_not("4242");
    let ask = [("source", "crm"), ("id", "evt_bad_1")];
    ada.submit("/event/body", &ask)
        .await
        .is(StatusCode::BAD_REQUEST)
        .says_not("4242");
    let ask = [&ask[..], &[("reason", "support case 9")]].concat();
    let body = ada.submit("/event/body", &ask).await;
    body.is(StatusCode::OK)
        .says("&quot;card&quot;:&quot;4242&quot;");
    ada.get("/event?source=crm&id=evt_bad_1")
        .await
        .says("support case 9")
        .says_not("4242");
}

#[tokio::test]
async fn a_body_is_shown_also_where_one_only_looks() {
    let world = World::with(|console| console).await;
    world.dead(["evt_bad_1".to_owned()]).await;
    let mut ada = world.ada().await;
    let token = ada
        .get("/event?source=crm&id=evt_bad_1")
        .await
        .field("form")
        .expect("a form");
    let ask = [
        ("source", "crm"),
        ("id", "evt_bad_1"),
        ("reason", "a look"),
        ("form", &token),
    ];
    ada.post("/event/body", &ask)
        .await
        .is(StatusCode::OK)
        .says("4242");
    assert_eq!(
        world
            .db
            .number("SELECT count(*) FROM tower_inbox_audit")
            .await,
        1
    );
}

#[tokio::test]
async fn a_dead_letter_is_replayed_and_discarded() {
    let world = World::new().await;
    world
        .dead(["evt_bad_1".to_owned(), "evt_bad_2".to_owned()])
        .await;
    world.mend();
    let mut ada = world.ada().await;
    let of = |id| [("source", "crm"), ("id", id), ("reason", "a test")];
    let done = ada.submit("/event/replay", &of("evt_bad_1")).await;
    ada.follow(&done)
        .await
        .says("Replayed: the worker applies it");
    world.wait_for_applied(1).await;
    let done = ada.submit("/event/discard", &of("evt_bad_2")).await;
    ada.follow(&done)
        .await
        .says("Discarded: it is never applied.");
    ada.get("/dead").await.says("There is none.");
    let refused = ada.submit("/event/discard", &of("evt_bad_1")).await;
    ada.follow(&refused)
        .await
        .says("role=\"alert\"")
        .says("applied already");
}

#[tokio::test]
async fn pages_go_on_where_the_last_one_ended() {
    let world = World::new().await;
    world
        .dead((0..130).map(|number| format!("evt_bad_{number:03}")))
        .await;
    let mut ada = world.ada().await;
    let (mut path, mut found) = (Some("/dead?because=rejected".to_owned()), 0);
    while let Some(link) = path {
        let page = ada.get(&link).await;
        found += page
            .is(StatusCode::OK)
            .body
            .matches("<th scope=\"row\"")
            .count();
        assert!(found <= 130, "a page twice");
        let next = page
            .links()
            .into_iter()
            .find(|link| link.contains("after="));
        path = next.map(|link| link["/console".len()..].to_owned());
    }
    assert_eq!(found, 130);
}

#[tokio::test]
async fn a_filter_that_means_nothing_is_refused_by_name() {
    let world = World::new().await;
    let mut ada = world.ada().await;
    ada.get("/dead?because=because")
        .await
        .is(StatusCode::BAD_REQUEST)
        .says("because");
    ada.get("/dead?since=yesterday")
        .await
        .is(StatusCode::BAD_REQUEST)
        .says("yesterday");
    ada.get("/dead?since=2026-11-30T13:05&until=2026-11-30T13:06")
        .await
        .is(StatusCode::OK);
}

/// A page costs what it shows, and not what there is: with a million rows in the heavy form (`TOWER_INBOX_TEST_ALL`).
#[tokio::test]
async fn pages_are_fast_whatever_the_number_of_rows() {
    let many: i64 = match std::env::var_os("TOWER_INBOX_TEST_ALL") {
        Some(_) => 1_000_000,
        None => 50_000,
    };
    let world = World::new().await;
    // Applied ones; one in fifty is parked, in streams of twenty; one in a thousand is a dead letter. All of them new, so
    // that nothing is given up or purged meanwhile.
    for insert in [
        "INSERT INTO tower_inbox_event (source, event_id, state, fingerprint, event_type, correlation_id, sequence, \
         received_at, decided_at) \
         SELECT 'crm', 'evt_' || i, CASE WHEN i % 50 = 0 THEN 2 WHEN i % 1000 = 1 THEN 3 ELSE 1 END, x'00', 'payment', \
         's_' || (i / 1000), i % 1000 + 2, unixepoch() * 1000000, unixepoch() * 1000000 FROM n",
        "INSERT INTO tower_inbox_pending (source, event_id, correlation_id, sequence, reason, method, uri, headers, body, bytes, \
         parked_at, not_before) \
         SELECT 'crm', 'evt_' || i, 's_' || (i / 1000), i % 1000 + 2, CASE i % 1000 WHEN 1 THEN 3 END, 'POST', '/', x'', x'', \
         0, unixepoch() * 1000000, 0 FROM n WHERE i % 50 = 0 OR i % 1000 = 1",
        "INSERT INTO tower_inbox_cursor (source, correlation_id, next_sequence, updated_at) \
         SELECT 'crm', 's_' || (i / 1000), 1, unixepoch() * 1000000 FROM n WHERE i % 1000 = 0",
    ] {
        let (into, from) = insert.split_once(" SELECT ").expect("a query");
        let numbers = format!(
            "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {many})"
        );
        world
            .db
            .execute(&format!("{numbers} {into} SELECT {from}"))
            .await;
    }
    let mut ada = world.ada().await;
    let (first, last) = ("s_1", format!("s_{}", many / 1_000 - 1));
    let pages = [
        "/".to_owned(),
        "/streams".to_owned(),
        format!("/streams?after_source=crm&after={last}"),
        format!("/stream?source=crm&id={first}"),
        "/event?source=crm&id=evt_50".to_owned(),
        "/dead".to_owned(),
        "/dead?after_source=crm&after=evt_9".to_owned(),
        "/audit".to_owned(),
        "/api/stats".to_owned(),
    ];
    for path in pages {
        let began = std::time::Instant::now();
        ada.get(&path).await.is(StatusCode::OK);
        let took = began.elapsed();
        eprintln!("{took:>12?} {path}");
        // Far more than it takes, and far less than reading everything does.
        assert!(took.as_secs() < 2, "{path} took {took:?}");
    }
}
