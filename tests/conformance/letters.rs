//! §1, §5.11: dead letters are listed, told of whole, and dealt with in bulk.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tower_inbox::OperatorErrorKind;
use tower_inbox::operator::{BulkOptions, Filter, Letter, Operator, PageKey, Reason, State};

use crate::db::TestDb;
use crate::kit::{Call, Event, SOURCE, World, eventually, now, numbered};

suite![
    dead_letters_are_listed_in_pages_by_what_is_asked_for,
    a_row_that_cannot_be_read_hides_no_other,
    the_whole_story_of_an_event_is_told,
    what_went_wrong_last_is_kept_for_every_reason,
    many_are_replayed_at_once_and_one_that_cannot_be_stops_none,
    many_are_discarded_at_once,
    a_replay_where_the_source_is_not_known_is_refused_if_the_stream_has_not_begun,
];

fn ada<D: TestDb>(world: &World<D>) -> Operator<D::DB> {
    world.inbox.operator("ada").expect("a name")
}

/// All that a filter finds, two at a time.
async fn found<D: TestDb>(world: &World<D>, filter: &Filter) -> Vec<String> {
    let (mut ids, mut after) = (Vec::new(), None);
    loop {
        let page = ada(world)
            .dead_letters(filter, after.as_ref(), 2)
            .await
            .expect("a page");
        assert!(page.letters.len() <= 2);
        ids.extend(
            page.letters
                .into_iter()
                .map(|letter| letter.expect("readable").event_id),
        );
        after = page.next;
        if after.is_none() {
            return ids;
        }
    }
}

/// Answers 422 until it is mended.
async fn refusing<D: TestDb>(db: &D, mended: &Arc<AtomicBool>) -> World<D> {
    let mended = Arc::clone(mended);
    let world = World::<D>::over(db).answers(move |_: &Call<D>| {
        if mended.load(Ordering::Relaxed) {
            0
        } else {
            422
        }
    });
    world.start().await
}

/// §1
async fn dead_letters_are_listed_in_pages_by_what_is_asked_for<D: TestDb>(db: D) {
    let world = refusing(&db, &Arc::default()).await;
    let before = now();
    for n in 0..5 {
        world
            .send(&Event::new(&format!("evt_{n}")))
            .await
            .is(422, "rejected");
    }
    world
        .send(&Event::new("evt_5").with("event_type", "odd"))
        .await
        .is(422, "rejected");
    world.send(&numbered("acct", 1)).await.is(422, "rejected");
    world.send(&numbered("acct", 2)).await.is_parked(1);
    let all = [
        "evt_0",
        "evt_1",
        "evt_2",
        "evt_3",
        "evt_4",
        "evt_5",
        "evt_acct_1",
    ];
    assert_eq!(found(&world, &Filter::new()).await, all);
    assert_eq!(
        found(&world, &Filter::new().source(SOURCE).since(before)).await,
        all
    );
    for nothing in [
        Filter::new().source("other"),
        Filter::new().reason(Reason::Gap),
        Filter::new().until(before),
        Filter::new().source(""),
    ] {
        assert!(found(&world, &nothing).await.is_empty(), "{nothing:?}");
    }
    assert_eq!(
        found(&world, &Filter::new().event_type("odd")).await,
        ["evt_5"]
    );
    let acct = Filter::new().correlation_id("acct");
    assert_eq!(found(&world, &acct).await, ["evt_acct_1"]);
    assert_eq!(found(&world, &acct.clone().parked()).await, ["evt_acct_2"]);
    let both = acct.parked().reason(Reason::Rejected).reason(Reason::Crash);
    assert_eq!(found(&world, &both).await, ["evt_acct_1", "evt_acct_2"]);
    let rest = ada(&world)
        .dead_letters(&Filter::new(), Some(&PageKey::new(SOURCE, "evt_4")), 100)
        .await
        .unwrap();
    assert_eq!((rest.letters.len(), rest.next), (2, None));
}

/// §1. A newer version may have written what this one does not know.
async fn a_row_that_cannot_be_read_hides_no_other<D: TestDb>(db: D) {
    let world = refusing(&db, &Arc::default()).await;
    for n in 0..4 {
        world
            .send(&Event::new(&format!("evt_{n}")))
            .await
            .is(422, "rejected");
    }
    world
        .execute("UPDATE {p}event SET state = 77 WHERE event_id IN ('evt_1', 'evt_3')")
        .await;
    let (mut read, mut unread, mut after) = (Vec::new(), Vec::new(), None);
    loop {
        let page = ada(&world)
            .dead_letters(&Filter::new(), after.as_ref(), 2)
            .await
            .unwrap();
        for letter in page.letters {
            match letter {
                Ok(letter) => read.push(letter.event_id),
                Err(unreadable) => {
                    assert!(unreadable.why.contains("77"), "{unreadable:?}");
                    unread.push(unreadable.key.expect("its key can be read").event_id);
                }
            }
        }
        after = page.next;
        if after.is_none() {
            break;
        }
    }
    assert_eq!(
        (read, unread),
        (
            vec!["evt_0".into(), "evt_2".into()],
            vec!["evt_1".to_owned(), "evt_3".into()]
        )
    );
    let report = ada(&world)
        .discard_where(&Filter::new(), "clean up", BulkOptions::default())
        .await
        .unwrap();
    assert_eq!((report.matched, report.done, report.left), (4, 2, 2));
}

/// §1: "has its request, reason, and correlation context".
async fn the_whole_story_of_an_event_is_told<D: TestDb>(db: D) {
    let mended = Arc::new(AtomicBool::new(true));
    let world = refusing(&db, &mended).await;
    world.send(&numbered("acct", 1)).await.is_applied();
    mended.store(false, Ordering::Relaxed);
    for n in [4, 5] {
        world.send(&numbered("acct", n)).await.is_parked(2);
    }
    world.send(&numbered("acct", 2)).await.is(422, "rejected");
    world.send(&numbered("acct", 2)).await.is(422, "rejected");
    let story = ada(&world)
        .inspect(SOURCE, "evt_acct_2")
        .await
        .unwrap()
        .expect("it is there");
    let Letter {
        state,
        reason,
        sequence,
        last_status,
        ref last_error,
        received_at,
        decided_at,
        ..
    } = story.letter;
    assert_eq!(
        (state, reason, sequence, last_status),
        (State::Dead, Some(Reason::Rejected), Some(2), Some(422))
    );
    assert!(
        last_error.is_some() && received_at <= decided_at && story.letter.attempts == 2,
        "{story:?}"
    );
    let request = story.request.as_ref().expect("its request is kept");
    assert_eq!(
        (request.method().as_str(), request.uri().path()),
        ("POST", "/hooks/acme")
    );
    assert_eq!(request.body(), &numbered("acct", 2).body());
    assert!(request.headers().contains_key("content-type"));
    assert!(!request.headers().contains_key("x-kudos-signature"));
    assert_eq!(story.letter.body_bytes, Some(request.body().len() as u64));
    let stream = story.stream.as_ref().expect("it has a place");
    assert_eq!((stream.next, stream.generation), (2, 0));
    let near: Vec<_> = story
        .neighbours
        .iter()
        .map(|near| (near.sequence, near.reason))
        .collect();
    assert_eq!(near, [(4, None), (5, None)]);
    let shown = format!("{story:?}");
    assert!(
        shown.contains("evt_acct_2")
            && !shown.contains("payment.succeeded\\\"")
            && !shown.contains("amount"),
        "{shown}"
    );
    let applied = ada(&world)
        .inspect(SOURCE, "evt_acct_1")
        .await
        .unwrap()
        .expect("it is there");
    assert_eq!(applied.letter.state, State::Applied);
    assert!(applied.request.is_none() && applied.letter.body_bytes.is_none());
    assert!(
        ada(&world)
            .inspect(SOURCE, "evt_none")
            .await
            .unwrap()
            .is_none()
    );
    let parked = ada(&world)
        .inspect(SOURCE, "evt_acct_4")
        .await
        .unwrap()
        .expect("it is there");
    assert_eq!(
        (parked.letter.state, parked.letter.reason),
        (State::Parked, None)
    );
}

/// §5.5: "with the last status and error".
async fn what_went_wrong_last_is_kept_for_every_reason<D: TestDb>(db: D) {
    let world = World::<D>::over(&db)
        .source(|source| {
            let source = source.backoff([Duration::from_millis(10)]).max_attempts(2);
            source.recovery_window(Duration::from_millis(300))
        })
        .answers(|call: &Call<D>| match call.delivery.correlation_id() {
            Some("fails") if call.delivery.sequence() == Some(2) => 503,
            Some("refused") if call.delivery.sequence() == Some(2) => 409,
            _ => 0,
        })
        .start()
        .await;
    for account in ["fails", "refused", "gap"] {
        let early = if account == "gap" { 3 } else { 2 };
        world.send(&numbered(account, early)).await.is_parked(1);
        world.send(&numbered(account, 1)).await.is_applied();
    }
    for (id, reason, status) in [
        ("evt_fails_2", Reason::Handler, Some(503)),
        ("evt_refused_2", Reason::Rejected, Some(409)),
        ("evt_gap_3", Reason::Gap, None),
    ] {
        eventually("it is dead", async || {
            let story = ada(&world).inspect(SOURCE, id).await.unwrap().unwrap();
            story.letter.reason == Some(reason)
        })
        .await;
        let letter = ada(&world)
            .inspect(SOURCE, id)
            .await
            .unwrap()
            .unwrap()
            .letter;
        assert_eq!(letter.last_status, status, "{letter:?}");
        assert!(
            letter.last_error.is_some_and(|error| !error.is_empty()),
            "{id}"
        );
    }
}

/// §1, §5.15. Each in a transaction of its own, so many a second.
async fn many_are_replayed_at_once_and_one_that_cannot_be_stops_none<D: TestDb>(db: D) {
    let mended = Arc::new(AtomicBool::new(false));
    let world = refusing(&db, &mended).await;
    for n in 0..6 {
        world
            .send(&Event::new(&format!("evt_{n}")))
            .await
            .is(422, "rejected");
    }
    let none = if D::NAME == "sqlite" { "X''" } else { "''" };
    world
        .execute(&format!(
            "UPDATE {{p}}pending SET body = {none} WHERE event_id = 'evt_2'"
        ))
        .await;
    mended.store(true, Ordering::Relaxed);
    let all = |options| {
        let ada = ada(&world);
        async move {
            ada.replay_where(&Filter::new().source(SOURCE), "mended", options)
                .await
                .unwrap()
        }
    };
    let fast = BulkOptions::default().per_second(NonZeroU32::new(1_000).unwrap());
    let dry = all(fast.dry_run(true)).await;
    assert_eq!((dry.matched, dry.done), (6, 0));
    assert_eq!(world.in_state(3).await, 6);
    let report = all(fast).await;
    assert_eq!((report.matched, report.done, report.left), (6, 5, 1));
    assert_eq!(report.refusals.len(), 1);
    assert_eq!(report.refusals[0].key, Some(PageKey::new(SOURCE, "evt_2")));
    assert!(
        report.refusals[0].why.contains("was not kept"),
        "{report:?}"
    );
    eventually("they are applied", async || world.ledger().await.len() == 5).await;
    // Safe to repeat, from a task of its own.
    let ada = ada(&world);
    let again = tokio::spawn(async move {
        ada.replay_where(&Filter::new(), "again", BulkOptions::default())
            .await
    });
    assert_eq!(again.await.unwrap().unwrap().done, 0);
}

/// §1, §5.15
async fn many_are_discarded_at_once<D: TestDb>(db: D) {
    let world = refusing(&db, &Arc::default()).await;
    for n in 0..3 {
        world
            .send(&Event::new(&format!("evt_{n}")))
            .await
            .is(422, "rejected");
    }
    world
        .send(&Event::new("evt_x").with("event_type", "odd"))
        .await
        .is(422, "rejected");
    let odd = Filter::new().event_type("odd");
    let report = ada(&world)
        .discard_where(&odd, "theirs", BulkOptions::default())
        .await
        .unwrap();
    assert_eq!((report.matched, report.done, report.left), (1, 1, 0));
    assert_eq!((world.in_state(6).await, world.in_state(3).await), (1, 3));
}

/// §5.15: no worker would find it, since the stream's cursor went with the rollback of its first event.
async fn a_replay_where_the_source_is_not_known_is_refused_if_the_stream_has_not_begun<
    D: TestDb,
>(
    db: D,
) {
    let mended = Arc::new(AtomicBool::new(false));
    let world = refusing(&db, &mended).await;
    let elsewhere = World::<D>::over(&db).named("other").start().await;
    world.send(&numbered("acct", 1)).await.is(422, "rejected");
    mended.store(true, Ordering::Relaxed);
    let refused = ada(&elsewhere).replay(SOURCE, "evt_acct_1", "mended").await;
    let refused = refused.expect_err("nobody would apply it");
    assert_eq!(refused.kind(), OperatorErrorKind::NotFound, "{refused}");
    assert_eq!(world.in_state(3).await, 1);
    let replayed = ada(&world).replay(SOURCE, "evt_acct_1", "mended").await;
    assert!(replayed.expect("it is"));
    eventually("it is applied", async || {
        world.sequences("acct").await == [1]
    })
    .await;
}
