//! §5.15, §8: what waits, behind what, since when; what was decided, and by whom.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use axum::response::IntoResponse as _;
use http::StatusCode;
use tower_inbox::operator::{AuditFilter, Operator, RangeKind, Reason, StreamKey, WaitingStream};
use tower_inbox::{OperatorErrorKind, Park};

use crate::db::TestDb;
use crate::kit::{Call, Event, SOURCE, World, eventually, now, numbered};

suite![
    streams_that_wait_are_listed_in_pages_with_what_they_wait_for,
    a_stream_that_a_dead_letter_holds_up_is_listed_and_one_that_goes_on_is_not,
    a_stream_whose_head_is_tried_again_and_again_says_so,
    the_streams_that_need_somebody_most_come_first,
    a_parked_event_that_has_taken_a_dead_letters_place_is_what_the_stream_waits_for,
    a_stream_is_shown_with_its_cursor_its_ranges_and_what_is_stored,
    the_audit_log_is_read_newest_first_in_pages,
    the_audit_log_is_read_by_stream_and_by_actor,
    whoever_reads_a_body_is_in_the_audit_log_before_he_sees_it,
];

fn ada<D: TestDb>(world: &World<D>) -> Operator<D::DB> {
    world.inbox.operator("ada").expect("a name")
}

/// All of them, two at a time.
async fn waiting<D: TestDb>(world: &World<D>, source: Option<&str>) -> Vec<WaitingStream> {
    let (mut streams, mut after) = (Vec::new(), None);
    loop {
        let page = ada(world).streams(source, after.as_ref(), 2).await;
        let page = page.expect("a page");
        assert!(page.streams.len() <= 2);
        streams.extend(page.streams);
        after = page.next;
        if after.is_none() {
            return streams;
        }
    }
}

/// Refuses with 422 until it is mended.
async fn refusing<D: TestDb>(db: &D, mended: &Arc<AtomicBool>) -> World<D> {
    let mended = Arc::clone(mended);
    let world = World::<D>::over(db).answers(move |call: &Call<D>| {
        let bad = call.delivery.event_id().contains("bad");
        if bad && !mended.load(Ordering::Relaxed) {
            422
        } else {
            0
        }
    });
    world.start().await
}

/// §8
async fn streams_that_wait_are_listed_in_pages_with_what_they_wait_for<D: TestDb>(db: D) {
    let world = World::<D>::start(&db).await;
    assert_eq!(waiting(&world, None).await, []);
    let before = now();
    for (stream, sequences) in [
        ("a", &[3, 2, 5][..]),
        ("A", &[2]),
        ("b", &[1, 3]),
        ("c", &[1, 2]),
        ("d ", &[9]),
    ] {
        for n in sequences {
            world.send(&numbered(stream, *n)).await;
        }
    }
    let found = waiting(&world, None).await;
    assert_eq!(waiting(&world, Some(SOURCE)).await, found);
    assert_eq!(waiting(&world, Some("other")).await, []);
    let told: Vec<_> = found
        .iter()
        .map(|stream| {
            assert!(stream.source == SOURCE && stream.generation == 0);
            assert!(stream.oldest >= before && stream.oldest <= now());
            // What it waits for has not come.
            assert_eq!(stream.head, None);
            let WaitingStream {
                next,
                first,
                last,
                parked,
                dead,
                ..
            } = stream;
            (
                &*stream.correlation_id,
                (*next, *first, *last, *parked, *dead),
            )
        })
        .collect();
    // Byte by byte, on every database.
    assert_eq!(
        told,
        [
            ("A", (Some(1), 2, 2, 1, 0)),
            ("a", (Some(1), 2, 5, 3, 0)),
            ("b", (Some(2), 3, 3, 1, 0)),
            ("d ", (Some(1), 9, 9, 1, 0)),
        ]
    );
    // What was seen is what an action is decided by.
    let (b, seen) = (&found[2], found[2].seen().expect("it has a cursor"));
    let skipped = ada(&world)
        .skip(SOURCE, &b.correlation_id, 2, seen, "lost")
        .await;
    assert!(skipped.expect("nobody else is here").changed);
    eventually("it goes on", async || world.sequences("b").await == [1, 3]).await;
    let rest = ada(&world)
        .streams(None, Some(&StreamKey::new(SOURCE, "a")), 10)
        .await
        .expect("a page");
    let rest: Vec<_> = rest.streams.iter().map(|s| &*s.correlation_id).collect();
    assert_eq!(rest, ["d "]);
}

/// §5.10, §8
async fn a_stream_that_a_dead_letter_holds_up_is_listed_and_one_that_goes_on_is_not<D: TestDb>(
    db: D,
) {
    let mended = Arc::default();
    let world = refusing(&db, &mended).await;
    let bad = Event::new("bad_1").of("stuck", 1);
    world.send(&bad).await.is(422, "rejected");
    world
        .send(&Event::new("bad_free"))
        .await
        .is(422, "rejected");
    let found = waiting(&world, None).await;
    let [stuck] = found.as_slice() else {
        panic!("{found:?}");
    };
    assert_eq!(
        (stuck.next, stuck.first, stuck.parked, stuck.dead),
        (Some(1), 1, 0, 1)
    );
    world.send(&numbered("stuck", 2)).await.is_parked(1);
    let found = waiting(&world, None).await;
    assert_eq!((found[0].parked, found[0].dead), (1, 1));
    let head = found[0].head.as_ref().expect("it is stored");
    let head = (head.reason, head.attempts, head.last_status);
    assert_eq!(head, (Some(Reason::Rejected), 1, Some(422)));
    // Set aside on purpose, it holds nothing up.
    let seen = found[0].seen().expect("it has a cursor");
    let skipped = ada(&world).skip(SOURCE, "stuck", 1, seen, "for good").await;
    assert!(skipped.expect("nobody else is here").changed);
    eventually("it goes on", async || world.sequences("stuck").await == [2]).await;
    assert_eq!(waiting(&world, None).await, []);
}

/// §5.5, §8
async fn a_stream_whose_head_is_tried_again_and_again_says_so<D: TestDb>(db: D) {
    let world = World::<D>::over(&db)
        .source(|source| source.backoff([Duration::from_secs(3_600)]))
        .answers(|call: &Call<D>| match call.delivery.sequence() {
            Some(1) => 0,
            _ => 500,
        });
    let world = world.start().await;
    world.send(&numbered("acct", 2)).await.is_parked(1);
    world.send(&numbered("acct", 3)).await.is_parked(1);
    world.send(&numbered("acct", 1)).await.is(204, "applied");
    let head = async || {
        waiting(&world, None)
            .await
            .first()
            .and_then(|s| s.head.clone())
    };
    eventually("2 has failed", async || {
        head().await.is_some_and(|head| head.last_status.is_some())
    })
    .await;
    let head = head().await.expect("it is stored");
    let told = (head.reason, head.attempts, head.last_status);
    assert_eq!(told, (None, 1, Some(500)));
    assert!(head.not_before > now());
}

/// §5.15, §8: by what they need, and the oldest first; where a stream has no cursor too.
async fn the_streams_that_need_somebody_most_come_first<D: TestDb>(db: D) {
    let world = World::<D>::over(&db)
        .source(|source| source.backoff([Duration::from_secs(3_600)]))
        .answers(|call: &Call<D>| match call.delivery.event_id() {
            id if id.contains("bad") => 422,
            "evt_a_fails_2" => 500,
            _ => 0,
        });
    let world = world.start().await;
    // The last ones by name have waited longest; what needs nobody, and what is free, come first.
    world.send(&numbered("z_gap", 3)).await.is_parked(1);
    world.send(&numbered("y_gap", 1)).await.is(204, "applied");
    world.send(&numbered("y_gap", 4)).await.is_parked(2);
    world.send(&numbered("a_fails", 2)).await.is_parked(1);
    world.send(&numbered("a_fails", 1)).await.is(204, "applied");
    world.send(&numbered("c_stuck", 1)).await.is(204, "applied");
    for (id, stream, sequence) in [("bad_c", "c_stuck", 2), ("bad_b", "b_stuck", 1)] {
        let bad = Event::new(id).of(stream, sequence);
        world.send(&bad).await.is(422, "rejected");
    }
    world
        .send(&Event::new("bad_free"))
        .await
        .is(422, "rejected");
    world.send(&numbered("b_stuck", 2)).await.is_parked(1);
    world.send(&numbered("0_fine", 1)).await.is(204, "applied");
    let began = now();
    let told = async || {
        // A look that took long stands for a while.
        let urgent = ada(&world)
            .urgent_streams()
            .await
            .expect("they are asked for");
        assert!(urgent.at <= now());
        let streams = urgent.streams.iter();
        let names = streams.map(|stream| stream.correlation_id.clone());
        let numbers = (urgent.all, urgent.held_up, urgent.failing);
        (names.collect::<Vec<_>>().join(" "), numbers)
    };
    let expected = "c_stuck b_stuck a_fails z_gap y_gap".to_owned();
    eventually("each is where it belongs", async || {
        told().await == (expected.clone(), (5, 2, 1))
    })
    .await;
    // They say the same as in the list by name.
    let urgent = ada(&world).urgent_streams().await.expect("asked for");
    let mut by_name = urgent.streams.clone();
    by_name.sort_by(|one, other| one.correlation_id.cmp(&other.correlation_id));
    assert_eq!(by_name, waiting(&world, Some(SOURCE)).await);
    assert!(urgent.streams.iter().all(|stream| stream.oldest <= began));
}

/// §4.3, §8: the dead letter yielded, so that it holds nothing up.
async fn a_parked_event_that_has_taken_a_dead_letters_place_is_what_the_stream_waits_for<
    D: TestDb,
>(
    db: D,
) {
    let world = World::<D>::over(&db).handler(|mut call: Call<D>| async move {
        call.append().await;
        match call.delivery.event_id() {
            "bad" => StatusCode::UNPROCESSABLE_ENTITY.into_response(),
            "put off" => Park::after(Duration::from_secs(3_600)).into_response(),
            _ => StatusCode::NO_CONTENT.into_response(),
        }
    });
    let world = world.start().await;
    let urgent = async || {
        let urgent = ada(&world).urgent_streams().await.expect("asked for");
        (urgent.all, urgent.held_up, urgent.failing)
    };
    let bad = Event::new("bad").of("acct", 1);
    world.send(&bad).await.is(422, "rejected");
    eventually("it is held up", async || urgent().await == (1, 1, 0)).await;
    let other = Event::new("put off").of("acct", 1);
    world.send(&other).await.is(202, "parked");
    world.send(&numbered("acct", 2)).await.is_parked(1);
    eventually("it is not held up", async || urgent().await == (1, 0, 0)).await;
    let found = waiting(&world, None).await;
    let head = found[0].head.as_ref().expect("it is stored");
    // Nothing of what is told is the dead letter's.
    let told = (head.reason, head.attempts, head.last_status);
    assert_eq!(told, (None, 0, None));
    assert!(head.not_before > now());
    assert_eq!(
        ada(&world)
            .urgent_streams()
            .await
            .expect("asked for")
            .streams,
        found
    );
}

/// §8
async fn a_stream_is_shown_with_its_cursor_its_ranges_and_what_is_stored<D: TestDb>(db: D) {
    let mended = Arc::default();
    let world = refusing(&db, &mended).await;
    let ada = ada(&world);
    assert!(
        ada.stream(SOURCE, "acct", None, 10)
            .await
            .expect("it is asked for")
            .is_none()
    );
    world.send(&Event::new("bad_1").of("acct", 1)).await;
    for n in [2, 4, 6, 7] {
        world.send(&numbered("acct", n)).await.is_parked(1);
    }
    let look = async |from, limit| {
        let view = ada.stream(SOURCE, "acct", from, limit).await;
        view.expect("it is asked for").expect("it has begun")
    };
    let seen = look(None, 10).await.info.seen();
    ada.skip(SOURCE, "acct", 6, seen, "never").await.unwrap();
    let view = look(None, 10).await;
    assert_eq!((view.info.next, view.more), (1, false));
    let ranges: Vec<_> = view.info.ranges.iter().collect();
    assert!(
        matches!(ranges.as_slice(), [range] if (range.first, range.last, range.kind) == (6, 6, RangeKind::Skipped)),
        "{ranges:?}"
    );
    let told: Vec<_> = view
        .events
        .iter()
        .map(|event| {
            assert!(!event.leased);
            let status = event.last_status;
            (&*event.event_id, event.sequence, event.reason, status)
        })
        .collect();
    assert_eq!(
        told,
        [
            ("bad_1", 1, Some(Reason::Rejected), Some(422)),
            ("evt_acct_2", 2, None, None),
            ("evt_acct_4", 4, None, None),
            ("evt_acct_6", 6, Some(Reason::Skipped), None),
            ("evt_acct_7", 7, None, None),
        ]
    );
    assert_eq!(view.events[0].attempts, 1);
    let part = look(Some(3), 2).await;
    let part = (
        part.events.iter().map(|event| event.sequence).collect(),
        part.more,
    );
    assert_eq!(part, (vec![4, 6], true));
    assert!(!look(Some(6), 2).await.more);
}

/// §5.15
async fn the_audit_log_is_read_newest_first_in_pages<D: TestDb>(db: D) {
    let mended = Arc::default();
    let world = refusing(&db, &mended).await;
    for n in 0..5 {
        let id = format!("bad_{n}");
        world.send(&Event::new(&id)).await.is(422, "rejected");
        let reason = format!("reason {n}");
        let discarded = ada(&world).discard(SOURCE, &id, &reason).await;
        assert!(discarded.expect("it is dead"));
    }
    let read = async |filter: &AuditFilter| {
        let (mut found, mut before) = (Vec::new(), None);
        loop {
            let page = ada(&world).audit(filter, before, 2).await.expect("a page");
            let entries = page.entries.into_iter();
            found.extend(entries.filter(|entry| entry.action == "discard"));
            before = page.next;
            if before.is_none() {
                break found;
            }
        }
    };
    let all = read(&AuditFilter::new()).await;
    let ids: Vec<_> = all.iter().map(|e| e.event_id.clone().unwrap()).collect();
    assert_eq!(ids, ["bad_4", "bad_3", "bad_2", "bad_1", "bad_0"]);
    for entry in &all {
        assert_eq!((&*entry.source, &*entry.actor), (SOURCE, "ada"));
        assert!(entry.detail.contains("reason"), "{entry:?}");
    }
    assert!(all.is_sorted_by(|one, next| one.id > next.id && one.at >= next.at));
    assert_eq!(read(&AuditFilter::new().source(SOURCE)).await, all);
    assert_eq!(read(&AuditFilter::new().source("other")).await, []);
    let one = read(&AuditFilter::new().event(SOURCE, "bad_3")).await;
    assert_eq!(one, [all[1].clone()]);
    assert_eq!(read(&AuditFilter::new().event("other", "bad_3")).await, []);
}

/// §5.15: a stream's lines are those about it and about its events, whoever wrote them.
async fn the_audit_log_is_read_by_stream_and_by_actor<D: TestDb>(db: D) {
    let mended = Arc::default();
    let world = refusing(&db, &mended).await;
    let [ada, bob] = ["ada", "bob"].map(|name| world.inbox.operator(name).expect("a name"));
    for stream in ["acct", "ACCT"] {
        world.send(&numbered(stream, 1)).await.is_applied();
        world.send(&numbered(stream, 3)).await.is_parked(2);
        let bad = format!("bad_{stream}");
        world
            .send(&Event::new(&bad).of(stream, 9))
            .await
            .is_parked(2);
    }
    world
        .send(&Event::new("bad_free"))
        .await
        .is(422, "rejected");
    let seen = ada.cursor(SOURCE, "acct").await.unwrap().unwrap().seen();
    ada.skip(SOURCE, "acct", 2, seen, "skipped").await.unwrap();
    bob.body(SOURCE, "bad_acct", "looked").await.unwrap();
    bob.discard(SOURCE, "bad_acct", "discarded").await.unwrap();
    ada.discard(SOURCE, "bad_ACCT", "another's").await.unwrap();
    ada.discard(SOURCE, "bad_free", "nobody's").await.unwrap();
    let cursor = ada.cursor(SOURCE, "acct").await.unwrap().unwrap().seen();
    let reset = ada.reset(SOURCE, "acct", 1, cursor, "reset").await;
    // The worker may be about to apply what was skipped to.
    if reset.is_err() {
        eventually("it is applied", async || {
            world.sequences("acct").await == [1, 3]
        })
        .await;
        let cursor = ada.cursor(SOURCE, "acct").await.unwrap().unwrap().seen();
        ada.reset(SOURCE, "acct", 1, cursor, "reset").await.unwrap();
    }
    let read = async |filter: AuditFilter| {
        let (mut found, mut before) = (Vec::new(), None);
        loop {
            let page = ada.audit(&filter, before, 2).await.expect("a page");
            for entry in page.entries {
                let why = entry.detail.rsplit(": ").next().expect("a text").to_owned();
                found.push((entry.actor, why, entry.correlation_id.unwrap_or_default()));
            }
            before = page.next;
            if before.is_none() {
                return found;
            }
        }
    };
    let line = |who: &str, why: &str, of: &str| (who.to_owned(), why.to_owned(), of.to_owned());
    let of_acct = [
        line("ada", "reset", "acct"),
        line("bob", "discarded", "acct"),
        line("bob", "looked", "acct"),
        line("ada", "skipped", "acct"),
    ];
    let stream = || AuditFilter::new().stream(SOURCE, "acct");
    assert_eq!(read(stream()).await, of_acct);
    assert_eq!(read(stream().actor("bob")).await, of_acct[1..3]);
    assert_eq!(read(stream().actor("inbox")).await, []);
    assert_eq!(read(AuditFilter::new().stream("other", "acct")).await, []);
    assert_eq!(read(AuditFilter::new().actor("bob")).await, of_acct[1..3]);
    let bobs = AuditFilter::new().actor("bob");
    assert_eq!(read(bobs.event(SOURCE, "bad_acct")).await, of_acct[1..3]);
    let adas = read(AuditFilter::new().source(SOURCE).actor("ada")).await;
    let others = [
        line("ada", "nobody's", ""),
        line("ada", "another's", "ACCT"),
    ];
    assert_eq!(adas, [&of_acct[..1], &others, &of_acct[3..]].concat());
}

/// §5.15
async fn whoever_reads_a_body_is_in_the_audit_log_before_he_sees_it<D: TestDb>(db: D) {
    let world = World::<D>::start(&db).await;
    let event = numbered("acct", 2);
    world.send(&event).await.is_parked(1);
    let ada = ada(&world);
    let shown = |id: &str| {
        let filter = AuditFilter::new().event(SOURCE, id);
        let ada = &ada;
        async move {
            let page = ada.audit(&filter, None, 10).await.expect("a page");
            let of_bodies = page.entries.iter().filter(|e| e.action == "show_body");
            of_bodies.map(|e| e.detail.clone()).collect::<Vec<_>>()
        }
    };
    for n in 1..=2 {
        let body = ada.body(SOURCE, "evt_acct_2", "ticket 7").await;
        let body = body.expect("it is asked for").expect("it is kept");
        assert_eq!(body, event.body());
        assert_eq!(shown("evt_acct_2").await, vec!["ticket 7"; n]);
    }
    let refused = ada.body(SOURCE, "evt_acct_2", "").await;
    assert_eq!(
        refused.map_err(|e| e.kind()),
        Err(OperatorErrorKind::Invalid)
    );
    // Of an applied one none is kept, and nobody has read it.
    world.send(&numbered("acct", 1)).await.is(204, "applied");
    let flow = ada.body(SOURCE, "evt_acct_1", "why").await;
    assert_eq!(flow.expect("it is asked for"), None);
    assert_eq!(ada.body(SOURCE, "never", "why").await.unwrap(), None);
    assert_eq!(shown("evt_acct_1").await, Vec::<String>::new());
}
