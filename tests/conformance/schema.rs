//! The inbox's tables: how they come to be, what they are called, and what their columns must hold (§4.9).

use crate::db::TestDb;
use crate::kit::{Event, World, eventually, numbered};

suite![
    several_processes_may_migrate_at_the_same_time,
    inboxes_with_different_prefixes_in_one_database_know_nothing_of_each_other,
    missing_tables_are_refused_with_the_fix,
    the_longest_identifiers_fit_and_are_told_apart_at_their_last_byte,
    a_body_of_any_bytes_is_kept_as_it_came,
];

/// (schema): "Concurrent migration by several processes is safe" (issue 3).
async fn several_processes_may_migrate_at_the_same_time<D: TestDb>(db: D) {
    let starts: Vec<_> = (0..4)
        .map(|_| {
            let db = db.clone();
            tokio::spawn(async move { World::<D>::start(&db).await })
        })
        .collect();
    let mut worlds = Vec::new();
    for start in starts {
        worlds.push(start.await.expect("it starts"));
    }
    assert_eq!(
        worlds[0].number("SELECT COUNT(*) FROM {p}migrations").await,
        5
    );
    for (n, world) in worlds.iter().enumerate() {
        world.send(&Event::new("evt_1")).await;
        world
            .send(&Event::new(&format!("evt_of_{n}")))
            .await
            .is_applied();
    }
    assert_eq!(worlds[0].ledger().await.len(), 5);
    // And again, when there is nothing to do.
    World::<D>::start(&db)
        .await
        .send(&Event::new("evt_1"))
        .await
        .is_duplicate();
}

/// (schema): "A configurable table prefix" (issue 3).
async fn inboxes_with_different_prefixes_in_one_database_know_nothing_of_each_other<D: TestDb>(
    db: D,
) {
    let world = World::<D>::start(&db).await;
    let other = World::<D>::over(&db)
        .inbox(|inbox| inbox.table_prefix("another_"))
        .start()
        .await;
    for world in [&world, &other] {
        world.send(&numbered("acct", 2)).await.is_parked(1);
        world.send(&numbered("acct", 1)).await.is_applied();
        world.send(&numbered("acct", 1)).await.is_duplicate();
    }
    eventually("both drain their own", async || {
        world.ledger().await.len() == 4
    })
    .await;
    for table in ["another_event", "{p}event"] {
        assert_eq!(
            world.number(&format!("SELECT COUNT(*) FROM {table}")).await,
            2
        );
    }
}

/// (schema): "A start-up check whose error is the fix" (issue 3).
async fn missing_tables_are_refused_with_the_fix<D: TestDb>(db: D) {
    let world = World::<D>::start(&db).await;
    let refused = tower_inbox::Inbox::builder(world.pool.clone())
        .source(tower_inbox::Source::kudos("crm").secrets(["whk_any"]))
        .table_prefix("nowhere_")
        .migrate(false)
        .build()
        .await;
    let error = refused.expect_err("there are no such tables").to_string();
    assert!(
        error.contains("migrate(true)") && error.contains("migrations/"),
        "{error}"
    );
}

/// §4.9: 255 bytes of UTF-8, of several bytes a character, in every identifier at once: also within every index.
async fn the_longest_identifiers_fit_and_are_told_apart_at_their_last_byte<D: TestDb>(db: D) {
    let world = World::<D>::start(&db).await;
    // 63 characters of 4 bytes, and 3 bytes.
    let long = |end: &str| format!("{}{end}", "\u{1f980}".repeat(63));
    let ids = ["\u{20ac}", "\u{20ad}", "abc", "abC", "ab "].map(long);
    for id in &ids {
        assert_eq!(id.len(), 255);
        let event = Event::new(id).of(id, 1).with("event_type", long("typ"));
        world.send(&event).await.is_applied();
        let next = format!("{}nxt", "\u{1f980}".repeat(63));
        let parked = Event::new(&next.replace("nxt", &id[252..]).replacen(
            '\u{1f980}',
            "\u{1f99e}",
            1,
        ));
        world.send(&parked.of(id, 3)).await.is_parked(2);
    }
    for id in &ids {
        let event = Event::new(id).of(id, 1).with("event_type", long("typ"));
        world.send(&event).await.is_duplicate();
        world
            .send(&Event::new(&format!("second {}", &id[100..])).of(id, 2))
            .await
            .is_applied();
    }
    eventually("all are applied", async || world.ledger().await.len() == 15).await;
    for id in &ids {
        assert_eq!(world.sequences(id).await, [1, 2, 3]);
    }
}

/// §5.3: "Raw bodies as bytes" (issue 3); TRAPS: NUL and lone surrogates do not fit text or JSON columns.
async fn a_body_of_any_bytes_is_kept_as_it_came<D: TestDb>(db: D) {
    let seen = std::sync::Arc::new(std::sync::Mutex::new(Vec::new()));
    let sight = seen.clone();
    let world = World::<D>::over(&db)
        .handler(move |call: crate::kit::Call<D>| {
            sight.lock().unwrap().push(call.request.body().clone());
            async { http::StatusCode::NO_CONTENT }
        })
        .start()
        .await;
    let event = numbered("acct", 2).with("note", "a\u{0}b \u{1f980} \\ ' \" %s ? $1 {p}");
    let mut body = event.body().to_vec();
    // White space as it came, escapes that no re-serialisation would keep, and a lone surrogate.
    body.splice(
        1..1,
        b" \"odd\" : \"\\ud800 \\u0041\\/\" ,\r\n\t".iter().copied(),
    );
    let body = bytes::Bytes::from(body);
    world.post(world.signed(body.clone())).await.is_parked(1);
    world.send(&numbered("acct", 1)).await.is_applied();
    eventually("it is drained", async || seen.lock().unwrap().len() == 2).await;
    assert_eq!(seen.lock().unwrap()[1], body);
}
