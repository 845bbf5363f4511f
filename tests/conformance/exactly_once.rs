//! §4.1: the effect of an event is there if and only if its row says applied, however often it comes.

use std::collections::HashSet;

use sqlx::pool::PoolOptions;
use tower_inbox::{Inbox, Source};

use crate::db::TestDb;
use crate::kit::{Event, SOURCE, World, numbered, seeded};

suite![
    an_event_is_applied_once_and_its_redeliveries_are_duplicates,
    what_is_acknowledged_is_committed_before_the_answer,
    a_hundred_copies_at_the_same_time_are_applied_once,
    copies_to_two_receivers_on_one_database_are_applied_once,
    random_traffic_with_duplicates_and_failures_ends_with_the_exact_ledger,
    ids_are_told_apart_byte_for_byte,
    whatever_a_stream_is_called_its_events_are_applied_in_order,
    ids_of_two_sources_are_two_events,
    an_event_is_applied_although_its_handler_never_took_the_transaction,
];

/// §2.9, §3, §4.1
async fn an_event_is_applied_once_and_its_redeliveries_are_duplicates<D: TestDb>(db: D) {
    let world = World::<D>::start(&db).await;
    let event = Event::new("evt_1").amount(250);
    world.send(&event).await.is_applied();
    for _ in 0..3 {
        world.send(&event).await.is_duplicate();
    }
    let ledger = world.ledger().await;
    assert_eq!(ledger.len(), 1);
    assert_eq!(
        (ledger[0].event_id.as_str(), ledger[0].amount),
        ("evt_1", 250)
    );
    assert_eq!((world.in_state(1).await, world.probe.runs("evt_1")), (1, 1));
}

/// §4.1: "any 2xx is sent only after the commit that makes it true", a parked 202 too.
async fn what_is_acknowledged_is_committed_before_the_answer<D: TestDb>(db: D) {
    let world = World::<D>::start(&db).await;
    for n in 0..30 {
        let id = format!("evt_{n}");
        world.send(&Event::new(&id)).await.is_applied();
        // Another connection sees it now, without waiting.
        assert_eq!(world.applied().await.last(), Some(&id));
        world.send(&numbered("acct", n + 2)).await.is_parked(1);
        assert_eq!(
            world.number("SELECT COUNT(*) FROM {p}pending").await,
            i64::try_from(n).unwrap() + 1
        );
    }
}

/// §4.1, §4.8
async fn a_hundred_copies_at_the_same_time_are_applied_once<D: TestDb>(db: D) {
    let world = World::<D>::start(&db).await;
    let event = Event::new("evt_1");
    let copies: Vec<_> = (0..100).map(|_| world.spawn(&event)).collect();
    let mut applied = 0;
    for copy in copies {
        let reply = copy.await.unwrap();
        if reply.outcome() == "applied" {
            applied += 1;
        } else {
            reply.is_duplicate();
        }
    }
    assert_eq!((applied, world.probe.runs("evt_1")), (1, 1));
    assert_eq!(world.applied().await, ["evt_1"]);
    world.pool_is_whole().await;
}

/// §4.1: any number of receivers. Two inboxes share nothing but the database, as two processes do.
async fn copies_to_two_receivers_on_one_database_are_applied_once<D: TestDb>(db: D) {
    let (one, two) = (World::<D>::start(&db).await, World::<D>::start(&db).await);
    let events: Vec<_> = (1..=10)
        .flat_map(|n| ["a", "b"].map(|account| numbered(account, n)))
        .collect();
    let copies: Vec<_> = events
        .iter()
        .flat_map(|event| [&one, &two].map(|world| world.spawn(event)))
        .collect();
    let mut applied = 0;
    for copy in copies {
        let reply = copy.await.unwrap();
        match reply.outcome() {
            "applied" => applied += 1,
            // A database that is too contended may say so; everything else is an answer to the event.
            "duplicate" | "parked" | "failed" => {}
            _ => panic!("{reply:?}"),
        }
    }
    assert!(applied > 0);
    crate::kit::eventually("both streams are complete", async || {
        for event in &events {
            one.send(event).await;
        }
        one.applied().await.len() >= 20
    })
    .await;
    for account in ["a", "b"] {
        assert_eq!(one.sequences(account).await, (1..=10).collect::<Vec<_>>());
    }
    assert_eq!(one.applied().await.len(), 20);
    one.pool_is_whole().await;
    two.pool_is_whole().await;
}

/// §4.1: a producer that retries until it gets a 2xx, against a handler that fails at random after its work.
async fn random_traffic_with_duplicates_and_failures_ends_with_the_exact_ledger<D: TestDb>(db: D) {
    let mut random = seeded("random traffic");
    let world = World::<D>::over(&db)
        .answers(
            |call| match (call.run, call.delivery.event_id().as_bytes()[4] % 4) {
                (1 | 2, 0) => 503,
                (1, 1) => 500,
                (1, 2) => panic!("the handler panics"),
                _ => 0,
            },
        )
        .start()
        .await;
    let mut waves = vec![Vec::new(); 4];
    for n in 0..60 {
        // The byte that decides about the failures is random.
        let event = Event::new(&format!("evt_{}_{n}", random.alphanumeric()));
        for _ in 0..random.usize(1..4) {
            waves[random.usize(..4)].push(event.clone());
        }
    }
    let all: HashSet<String> = waves
        .iter()
        .flatten()
        .map(|event| event.id().to_owned())
        .collect();
    let mut acknowledged = HashSet::new();
    for _ in 0..10 {
        for wave in &mut waves {
            random.shuffle(wave);
            let sent: Vec<_> = wave
                .iter()
                .map(|event| (event.id().to_owned(), world.spawn(event)))
                .collect();
            for (id, reply) in sent {
                if reply.await.unwrap().status < 300 {
                    acknowledged.insert(id);
                }
            }
        }
    }
    assert_eq!(acknowledged, all);
    let mut applied = world.applied().await;
    applied.sort();
    let mut all: Vec<_> = all.into_iter().collect();
    all.sort();
    assert_eq!(applied, all);
    world.pool_is_whole().await;
}

/// §4.1, §5.1: once the inbox's connections are warm, values are part of a text.
async fn whatever_a_stream_is_called_its_events_are_applied_in_order<D: TestDb>(db: D) {
    let world = World::<D>::start(&db).await;
    let names = ["acct", "o'clock", "back\\", "\\'); --", "?$1{p}", "🦀", " "];
    for sequence in 1..=3 {
        for name in names {
            let event = numbered(name, sequence).with("event_type", name);
            world.send(&event).await.is_applied();
        }
    }
    let at = world.number("SELECT COUNT(*) FROM {p}cursor WHERE next_sequence = 4");
    assert_eq!(at.await, names.len() as i64);
    let types = "SELECT COUNT(DISTINCT event_type) FROM {p}event WHERE event_type = correlation_id";
    assert_eq!(world.number(types).await, names.len() as i64);
}

/// §4.9
async fn ids_are_told_apart_byte_for_byte<D: TestDb>(db: D) {
    let world = World::<D>::over(&db)
        .inbox(|inbox| inbox.remembered(0))
        .start()
        .await;
    let long = "x".repeat(254);
    let ids = [
        "evt_A",
        "evt_a",
        "evt_A ",
        " evt_A",
        "evt_Å",
        "evt_A\u{30a}",
        "evt_ß",
        "evt_ss",
        "0",
        "00",
        "0.0",
        "it's",
        "it''s",
        "evt\\",
        "\\'); SELECT 1; --",
        "?, $1, {p}, %s, $prepare$",
        "x'00'",
        "🦀",
        &format!("{long}y"),
        &format!("{long}z"),
    ];
    for id in ids {
        world.send(&Event::new(id)).await.is_applied();
    }
    for id in ids {
        world.send(&Event::new(id)).await.is_duplicate();
    }
    assert_eq!(world.applied().await, ids);
    // The same for what names a stream.
    for (n, account) in ids.into_iter().enumerate() {
        for sequence in [1, 2] {
            let event = Event::new(&format!("{n}_{sequence}")).of(account, sequence);
            world.send(&event).await.is_applied();
        }
        assert_eq!(world.sequences(account).await, [1, 2], "{account}");
    }
}

/// §1: an event is identified by (source, event id).
async fn ids_of_two_sources_are_two_events<D: TestDb>(db: D) {
    let world = World::<D>::start(&db).await;
    world.send(&Event::new("evt_1")).await.is_applied();
    let pool = db.pool(PoolOptions::new().max_connections(2)).await;
    let other = Inbox::builder(pool)
        .source(Source::kudos("other").secrets([world.secret()]))
        .source(Source::kudos(SOURCE).secrets([world.secret()]))
        .table_prefix(db.prefix())
        .build()
        .await
        .unwrap();
    let router = axum::Router::new().route("/hooks/{tenant}", axum::routing::post(async || "done"));
    let event = Event::new("evt_1");
    let world = world.through(other.mount("other", router.clone()));
    world.send(&event).await.is(200, "applied");
    world.send(&event).await.is_duplicate();
    let world = world.through(other.mount(SOURCE, router));
    world.send(&event).await.is_duplicate();
}

/// §2.6: the row is the inbox's own affair.
async fn an_event_is_applied_although_its_handler_never_took_the_transaction<D: TestDb>(db: D) {
    let world = World::<D>::start(&db).await;
    let router =
        axum::Router::new().route("/hooks/{tenant}", axum::routing::post(async || "thanks"));
    let world = world.through(world.inbox.mount(SOURCE, router));
    let reply = world.send(&Event::new("evt_1")).await;
    reply.is(200, "applied");
    assert_eq!(reply.body, "thanks");
    world.send(&Event::new("evt_1")).await.is_duplicate();
    assert_eq!(world.in_state(1).await, 1);
    world.pool_is_whole().await;
}
