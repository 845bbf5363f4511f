//! §8: statistics of the last 24 hours, by source and event type, over processes and restarts.

use std::time::{Duration, Instant};

use axum::body::Body;
use bytes::Bytes;
use serde_json::Value;
use tower_inbox::clock::Clock;
use tower_inbox::stats::{Counts, SourceStats};
use tower_inbox::verify::{Secret, Tolerance};
use tower_inbox::{BuildErrorKind, Inbox, Source};

use crate::db::TestDb;
use crate::kit::{Call, Event, Replays, SOURCE, TestClock, World, eventually, http, now, numbered};

suite![
    a_known_traffic_is_counted_by_type_and_outcome,
    two_processes_add_up_and_a_restart_forgets_nothing,
    counts_leave_after_a_day,
    types_beyond_the_bound_are_counted_together,
    what_the_worker_tries_counts_and_is_no_delivery,
    what_a_deferred_source_accepts_is_parked_until_it_is_applied,
    a_reconciled_event_counts_and_is_no_delivery,
    how_long_handlers_take_is_told_within_the_error_of_a_bucket,
    what_is_stored_is_told_as_it_is,
    what_is_due_and_not_drained_is_told_with_its_age,
    secrets_are_told_with_their_last_use,
    a_tenant_that_is_gone_leaves_its_counts,
    rows_are_counted_in_the_background,
    statistics_are_json,
];

const HOUR: Duration = Duration::from_secs(3_600);

async fn of<D: TestDb>(inbox: &Inbox<D::DB>, source: &str) -> SourceStats {
    let stats = inbox.stats().await.expect("they can be read");
    let found = stats.sources.into_iter().find(|one| one.source == source);
    found.expect("it is a source of the inbox")
}

async fn stats<D: TestDb>(world: &World<D>) -> SourceStats {
    of::<D>(&world.inbox, SOURCE).await
}

/// Total, delivered, duplicates, parked, discarded, failed.
fn numbers(counts: &Counts) -> [u64; 6] {
    [
        counts.total,
        counts.delivered,
        counts.duplicates,
        counts.parked,
        counts.discarded,
        counts.failed,
    ]
}

/// By type, the name first; "" is none.
fn by_type(stats: &SourceStats) -> Vec<(String, [u64; 6])> {
    let mut types: Vec<_> = stats
        .types
        .iter()
        .map(|of| {
            let kind = of.event_type.clone().unwrap_or_default();
            (kind, numbers(&of.counts))
        })
        .collect();
    types.sort();
    types
}

/// §8, to the last delivery; and what was not verified is counted apart.
async fn a_known_traffic_is_counted_by_type_and_outcome<D: TestDb>(db: D) {
    let world = World::<D>::over(&db)
        .answers(|call: &Call<D>| match call.delivery.event_id() {
            "evt_bad" => 422,
            "evt_down" if call.run == 1 => 503,
            _ => 0,
        })
        .start()
        .await;
    let (started, moved) = (now(), |id: &str| Event::new(id).with("event_type", "moved"));
    assert_eq!(stats(&world).await.counts, Counts::default());
    for id in ["evt_1", "evt_2", "evt_1", "evt_1"] {
        world.send(&Event::new(id)).await;
    }
    world.send(&moved("evt_bad")).await.is(422, "rejected");
    world.send(&moved("evt_down")).await.is(503, "failed");
    world.send(&moved("evt_down")).await.is_applied();
    // Other content under a known id.
    world.send(&moved("evt_1")).await.is(422, "rejected");
    world.send(&numbered("acct", 2)).await.is_parked(1);
    world.send(&numbered("acct", 1)).await.is_applied();
    // Verified, and no event.
    let nothing = world.signed(Bytes::from_static(b"{}"));
    world.post(nothing).await.is(400, "rejected");
    for _ in 0..3 {
        let body = Event::new("evt_forged").body();
        let forged = http(&["wrong"], now(), body.clone()).map(|()| Body::from(body));
        world.post(forged).await.is(401, "rejected");
    }
    eventually("the parked one is applied", async || {
        stats(&world).await.counts.delivered == 5
    })
    .await;
    let stats = stats(&world).await;
    assert_eq!(numbers(&stats.counts), [11, 5, 2, 1, 3, 1]);
    let wanted = [
        (String::new(), [1, 0, 0, 0, 1, 0]),
        ("moved".to_owned(), [4, 1, 0, 0, 2, 1]),
        ("payment.succeeded".to_owned(), [6, 4, 2, 1, 0, 0]),
    ];
    assert_eq!(by_type(&stats), wanted);
    assert_eq!(stats.refused, 3);
    assert_eq!(stats.counts.success_rate, Some(7.0 / 11.0));
    let last = stats.counts.last_5xx.expect("there was one");
    assert!(last >= started && last <= now(), "{last}");
    let failed = |kind: &str| {
        let of = |of: &&tower_inbox::stats::TypeStats| of.event_type.as_deref() == Some(kind);
        stats
            .types
            .iter()
            .find(of)
            .expect("it was seen")
            .counts
            .last_5xx
    };
    assert_eq!(
        (failed("moved"), failed("payment.succeeded")),
        (Some(last), None)
    );
    assert_eq!(stats.slots.len(), 24);
    let hours =
        |from: fn(&tower_inbox::stats::Slot) -> u64| stats.slots.iter().map(from).sum::<u64>();
    assert_eq!(
        (hours(|slot| slot.total), hours(|slot| slot.failed)),
        (11, 1)
    );
    assert_eq!(
        (stats.dead_letters["rejected"], stats.dead_letters["gap"]),
        (1, 0)
    );
    assert_eq!(stats.dead_letters.len(), 6);
}

/// §8: "across restarts"; and the rows are the same ones.
async fn two_processes_add_up_and_a_restart_forgets_nothing<D: TestDb>(db: D) {
    let (one, two) = (World::<D>::start(&db).await, World::<D>::start(&db).await);
    for round in 0..3 {
        for (n, world) in [&one, &two].into_iter().enumerate() {
            let event = Event::new(&format!("evt_{round}_{n}"));
            world.send(&event).await.is_applied();
            world.send(&event).await.is_duplicate();
        }
        // Both add to the same rows at the same time.
        let (a, b) = tokio::join!(one.inbox.stats(), two.inbox.stats());
        a.and(b).expect("both are read");
    }
    one.send(&Event::new("evt_last")).await.is_applied();
    two.send(&Event::new("evt_last")).await.is_duplicate();
    // What was not written yet is written at the shutdown.
    one.stop().await;
    two.stop().await;
    let world = World::<D>::start(&db).await;
    let seen = stats(&world).await;
    assert_eq!(numbers(&seen.counts), [14, 7, 7, 0, 0, 0]);
    assert_eq!(by_type(&seen).len(), 1);
    let hours = world.number("SELECT COUNT(*) FROM {p}stats").await;
    assert!(hours <= 2, "a row for each hour and type: {hours}");
    // Reading adds nothing.
    assert_eq!(stats(&world).await.counts, seen.counts);
}

/// §8: "24 rolling hours".
async fn counts_leave_after_a_day<D: TestDb>(db: D) {
    let clock = TestClock::new().of_the_database_too();
    let own = clock.clone();
    let world = World::<D>::over(&db)
        .inbox(move |inbox| inbox.clock(own))
        .source(|source| source.tolerance(Tolerance::new(HOUR * 48, HOUR * 48)))
        .start()
        .await;
    world.send(&Event::new("evt_1")).await.is_applied();
    assert_eq!(stats(&world).await.counts.total, 1);
    clock.advance(HOUR);
    for id in ["evt_2", "evt_3"] {
        world.send(&Event::new(id)).await.is_applied();
    }
    let totals =
        |stats: &SourceStats| -> Vec<u64> { stats.slots.iter().map(|slot| slot.total).collect() };
    let seen = stats(&world).await;
    assert_eq!(totals(&seen)[21..], [0, 1, 2]);
    let present = seen.slots[23].at;
    assert!(present <= clock.now() && clock.now().since(present) < HOUR);
    assert!(seen.slots.is_sorted_by(|a, b| b.at.since(a.at) == HOUR));
    clock.advance(HOUR * 22);
    let seen = stats(&world).await;
    assert_eq!(
        (totals(&seen)[..3].to_vec(), seen.counts.total),
        (vec![1, 2, 0], 3)
    );
    clock.advance(HOUR);
    let seen = stats(&world).await;
    assert_eq!((totals(&seen)[0], seen.counts.total), (2, 2));
    clock.advance(HOUR);
    let seen = stats(&world).await;
    assert_eq!((seen.counts, seen.types.len()), (Counts::default(), 0));
    eventually("the rows are gone", async || {
        world.number("SELECT COUNT(*) FROM {p}stats").await == 0
    })
    .await;
}

/// §8: a producer cannot make rows without end.
async fn types_beyond_the_bound_are_counted_together<D: TestDb>(db: D) {
    let world = World::<D>::over(&db)
        .source(|source| source.max_event_types(2))
        .start()
        .await;
    for (id, kind) in [
        ("a", "one"),
        ("b", "two"),
        ("c", "three"),
        ("d", "four"),
        ("e", "one"),
    ] {
        let event = Event::new(id).with("event_type", kind);
        world.send(&event).await.is_applied();
    }
    let types = by_type(&stats(&world).await);
    let totals: Vec<_> = types
        .iter()
        .map(|(kind, all)| (kind.as_str(), all[0]))
        .collect();
    assert_eq!(totals, [("one", 2), ("other", 2), ("two", 1)]);
    let rows = "SELECT COUNT(DISTINCT event_type) FROM {p}stats";
    assert_eq!(world.number(rows).await, 3);
    for types in [0, 1_001] {
        let source = Source::kudos("many")
            .secrets(["whk_any"])
            .max_event_types(types);
        let refused = Inbox::builder(world.pool.clone())
            .source(source)
            .build()
            .await;
        let kind = refused.expect_err("it is out of bounds").kind();
        assert_eq!(kind, BuildErrorKind::UnsafeSetting);
    }
}

/// §8, §5.5: each try of a handler that fails, and its end.
async fn what_the_worker_tries_counts_and_is_no_delivery<D: TestDb>(db: D) {
    let world = World::<D>::over(&db)
        .source(|source| source.backoff([Duration::from_millis(10)]).max_attempts(3))
        .answers(|call: &Call<D>| match call.delivery.sequence() {
            Some(2) => 500,
            _ => 0,
        })
        .start()
        .await;
    world.send(&numbered("acct", 2)).await.is_parked(1);
    world.send(&numbered("acct", 1)).await.is_applied();
    eventually("it is given up", async || {
        let stats = stats(&world).await;
        stats.dead_letters["handler"] == 1 && stats.counts.failed == 3
    })
    .await;
    let stats = stats(&world).await;
    assert_eq!(numbers(&stats.counts), [2, 1, 0, 1, 0, 3]);
    assert_eq!(stats.counts.success_rate, Some(0.25));
    assert!(stats.counts.last_5xx.is_some());
}

/// §5.13, §8
async fn what_a_deferred_source_accepts_is_parked_until_it_is_applied<D: TestDb>(db: D) {
    let world = World::<D>::over(&db).source(Source::deferred).start().await;
    world.send(&Event::new("evt_1")).await.is(202, "accepted");
    eventually("it is applied", async || {
        stats(&world).await.counts.delivered == 1
    })
    .await;
    assert_eq!(numbers(&stats(&world).await.counts), [1, 1, 0, 1, 0, 0]);
}

/// §7.5, §8
async fn a_reconciled_event_counts_and_is_no_delivery<D: TestDb>(db: D) {
    let world = World::<D>::start(&db).await;
    assert_eq!(stats(&world).await.reconciled_at, None);
    let (replays, before) = (Replays::new(), now());
    for id in ["evt_1", "evt_2"] {
        replays.exhausted(&Event::new(id), before);
    }
    world.send(&Event::new("evt_1")).await.is_applied();
    let report = world
        .inbox
        .reconcile(SOURCE, &replays)
        .await
        .expect("it runs");
    assert_eq!((report.applied, report.already_applied), (1, 1));
    let stats = stats(&world).await;
    assert_eq!(numbers(&stats.counts), [1, 2, 0, 0, 0, 0]);
    let at = stats
        .reconciled_at
        .expect("it came to the end of the lists");
    assert!(at >= before && at <= now(), "{at}");
}

/// §8: p95 and p99. A handler takes at least as long as it sleeps, and at most as long as its delivery.
async fn how_long_handlers_take_is_told_within_the_error_of_a_bucket<D: TestDb>(db: D) {
    const SLOW: Duration = Duration::from_millis(120);
    const ERROR: f64 = 1.19;
    let world = World::<D>::over(&db)
        .handler(|mut call: Call<D>| async move {
            if call.delivery.event_id().starts_with("slow") {
                tokio::time::sleep(SLOW).await;
            }
            call.append().await;
            http::StatusCode::NO_CONTENT
        })
        .start()
        .await;
    let mut longest = Duration::ZERO;
    for n in 0..40 {
        // Three of forty: the 38th of them in their order is slow.
        let speed = if n % 16 == 3 { "slow" } else { "fast" };
        let began = Instant::now();
        world
            .send(&Event::new(&format!("{speed}_{n}")))
            .await
            .is_applied();
        longest = longest.max(began.elapsed());
    }
    let counts = stats(&world).await.counts;
    let (least, most) = (SLOW.as_secs_f64() / ERROR, longest.as_secs_f64() * ERROR);
    for told in [counts.p95, counts.p99].map(|told| told.expect("handlers ran")) {
        assert!((least..=most).contains(&told), "{told}, {least} to {most}");
    }
}

/// §8: parked, oldest parked, gaps, dead letters by reason.
async fn what_is_stored_is_told_as_it_is<D: TestDb>(db: D) {
    let world = World::<D>::over(&db)
        .answers(|call: &Call<D>| match call.delivery.event_id() {
            "evt_dead_1" => 422,
            _ => 0,
        })
        .start()
        .await;
    let before = now();
    let seen = stats(&world).await;
    assert_eq!((seen.parked, seen.oldest_parked, seen.gaps), (0, None, 0));
    for (account, sequence) in [("a", 2), ("a", 3), ("b", 5)] {
        world.send(&numbered(account, sequence)).await;
    }
    world.send(&numbered("a", 1)).await.is_applied();
    eventually("a is drained", async || stats(&world).await.parked == 1).await;
    world.send(&numbered("a", 9)).await.is_parked(4);
    // What waits for an operator waits for no sequence.
    world.send(&numbered("dead", 1)).await.is(422, "rejected");
    world.send(&numbered("dead", 2)).await;
    // A look that took long is not repeated at once.
    eventually("the gaps are seen", async || {
        let seen = stats(&world).await;
        (seen.parked, seen.gaps) == (3, 2)
    })
    .await;
    let seen = stats(&world).await;
    assert_eq!(seen.dead_letters["rejected"], 1);
    assert_eq!((seen.leases, seen.drain_lag), (0, None));
    let oldest = seen.oldest_parked.expect("some are parked");
    assert!(oldest >= before && oldest <= now(), "{oldest}");
    let ada = world.inbox.operator("ada").expect("a name");
    let cursor = ada.cursor(SOURCE, "a").await.expect("it is read");
    let cursor = cursor.expect("it has begun").seen();
    ada.skip_range(SOURCE, "a", 4..=8, cursor, "never sent")
        .await
        .expect("skipped");
    eventually("the gap is no more", async || stats(&world).await.gaps == 1).await;
    let office = ada.stats().await.expect("they are read");
    assert_eq!(office.sources[0].gaps, 1);
}

/// §8: drain lag. Whoever has mounted nothing sees it too, as the command line does.
async fn what_is_due_and_not_drained_is_told_with_its_age<D: TestDb>(db: D) {
    let world = World::<D>::start(&db).await;
    world.send(&numbered("acct", 1)).await.is_applied();
    world.send(&numbered("acct", 3)).await.is_parked(2);
    world.stop().await;
    let pool = db
        .pool(sqlx::pool::PoolOptions::new().max_connections(2))
        .await;
    let builder = Inbox::builder(pool.clone()).table_prefix(db.prefix());
    let office = builder.tenants_only().build().await.expect("it is built");
    assert_eq!(of::<D>(&office, SOURCE).await.drain_lag, None);
    let mut conn = pool.acquire().await.expect("a connection");
    let (since, prefix) = (now().minus(HOUR), db.prefix());
    for table in ["cursor", "pending"] {
        let set = match table {
            "cursor" => format!("next_sequence = 3, updated_at = {}", since.as_micros()),
            _ => format!("parked_at = {}", since.minus(HOUR).as_micros()),
        };
        let sql = format!("UPDATE {prefix}{table} SET {set}");
        D::execute(&mut conn, &sql).await.expect("it is put there");
    }
    drop(conn);
    eventually("it is seen to be due", async || {
        of::<D>(&office, SOURCE).await.drain_lag.is_some()
    })
    .await;
    let seen = of::<D>(&office, SOURCE).await;
    let lag = seen.drain_lag.expect("it is due");
    let exact = now().since(since).as_secs_f64();
    assert!(
        lag >= HOUR.as_secs_f64() && lag <= exact,
        "{lag}, not {exact}"
    );
    assert_eq!((seen.gaps, seen.parked, seen.counts.total), (0, 1, 2));
    office.shutdown().await;
    // And the next process drains it.
    let world = World::<D>::start(&db).await;
    eventually("it is drained", async || {
        stats(&world).await.drain_lag.is_none()
    })
    .await;
    world.stop().await;
    pool.close().await;
}

/// §8, §6.1: also after a restart, when no delivery has come yet.
async fn secrets_are_told_with_their_last_use<D: TestDb>(db: D) {
    let world = World::<D>::start(&db).await;
    let secrets = world.inbox.secrets(SOURCE).expect("it is there").clone();
    assert!(stats(&world).await.secrets.is_empty());
    let before = now().minus(Duration::from_secs(1));
    world.send(&Event::new("evt_1")).await.is_applied();
    let new = Secret::text("whk_the_next_one")
        .expect("a secret")
        .labelled("next");
    secrets.rotate(new).expect("there is room");
    let labels = async |world: &World<D>| -> Vec<String> {
        let used = stats(world).await.secrets;
        assert!(
            used.iter()
                .all(|one| one.last_verified >= before && one.last_verified <= now())
        );
        used.into_iter().map(|one| one.label).collect()
    };
    assert_eq!(labels(&world).await, ["secret-1"]);
    let body = Event::new("evt_2").body();
    let signed = http(&["whk_the_next_one"], now(), body.clone()).map(|()| Body::from(body));
    world.post(signed).await.is_applied();
    assert_eq!(labels(&world).await, ["next", "secret-1"]);
    world.stop().await;
    let world = World::<D>::start(&db).await;
    assert_eq!(labels(&world).await, ["next", "secret-1"]);
}

/// §8: a tenant may be dropped before its counts are written.
async fn a_tenant_that_is_gone_leaves_its_counts<D: TestDb>(db: D) {
    let world = World::<D>::start(&db).await;
    let source = Source::kudos("tenant").secrets([world.secret()]);
    let tenant = world.inbox.tenant(source).expect("it is checked");
    let only = One(tenant);
    let service = tower::ServiceExt::<http::Request<Body>>::oneshot(
        tower_layer::Layer::layer(
            &world.inbox.layer_tenants::<Body>(only),
            tower::service_fn(|_: http::Request<Body>| async {
                Ok::<_, std::convert::Infallible>(http::Response::new(Body::empty()))
            }),
        ),
        world.request(&Event::new("evt_1")),
    );
    let answer = service.await.unwrap_or_else(|never| match never {});
    assert_eq!(answer.status(), 200);
    drop(world.inbox.layer_tenants::<Body>(Nobody));
    assert_eq!(of::<D>(&world.inbox, "tenant").await.counts.delivered, 1);
}

/// The only tenant there is, held by nobody else.
struct One(tower_inbox::Tenant);

impl tower_inbox::Tenants for One {
    fn by_request<'a>(&'a self, _: &'a http::request::Parts) -> tower_inbox::TenantFuture<'a> {
        Box::pin(async { Ok(Some(self.0.clone())) })
    }

    fn by_name<'a>(&'a self, _: &'a str) -> tower_inbox::TenantFuture<'a> {
        Box::pin(async { Ok(None) })
    }
}

struct Nobody;

impl tower_inbox::Tenants for Nobody {
    fn by_request<'a>(&'a self, _: &'a http::request::Parts) -> tower_inbox::TenantFuture<'a> {
        Box::pin(async { Ok(None) })
    }

    fn by_name<'a>(&'a self, _: &'a str) -> tower_inbox::TenantFuture<'a> {
        Box::pin(async { Ok(None) })
    }
}

/// §8: rows in the inbox, which nobody counts when he is asked.
async fn rows_are_counted_in_the_background<D: TestDb>(db: D) {
    let world = World::<D>::start(&db).await;
    let seen = stats(&world).await;
    assert_eq!((seen.rows, seen.rows_at), (None, None));
    for n in 1..=3 {
        world.send(&numbered("acct", n)).await.is_applied();
    }
    world.send(&numbered("acct", 9)).await.is_parked(4);
    eventually("they are counted", async || {
        stats(&world).await.rows.is_some()
    })
    .await;
    let seen = stats(&world).await;
    assert_eq!(seen.rows, Some(4));
    assert!(now().since(seen.rows_at.expect("a time")) < Duration::from_secs(30));
    // And a count that is fresh is taken as it is.
    world.send(&numbered("acct", 4)).await.is_applied();
    assert_eq!(stats(&world).await.rows, Some(4));
}

/// §8: "an API and JSON for them" (issue 9).
async fn statistics_are_json<D: TestDb>(db: D) {
    let world = World::<D>::start(&db).await;
    world.send(&Event::new("evt_1")).await.is_applied();
    let stats = world.inbox.stats().await.expect("they are read");
    let json = serde_json::to_value(&stats).expect("it is JSON");
    let source = &json["sources"][0];
    assert_eq!(source["source"], SOURCE);
    assert_eq!(source["counts"]["total"], 1);
    assert_eq!(source["counts"]["success_rate"], 1.0);
    assert_eq!(source["counts"]["last_5xx"], Value::Null);
    assert_eq!(source["types"][0]["event_type"], "payment.succeeded");
    assert_eq!(source["slots"].as_array().expect("hours").len(), 24);
    assert_eq!(source["dead_letters"]["gap"], 0);
    assert_eq!(json["at"], stats.at.to_string());
    // Names and numbers, and nothing of the secret but its label.
    assert!(!json.to_string().contains(&world.secret()));
    assert_eq!(source["secrets"][0]["label"], "secret-1");
}
