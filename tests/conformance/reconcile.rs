//! §7.5, §4.1a: pulling what was never delivered, and what a database lost.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use axum::body::Body;
use tower_inbox::Origin;
use tower_inbox::clock::{Clock, Timestamp};
use tower_inbox::reconcile::{
    Item, List, Page, Problem, Query, ReplayError, ReplayErrorKind, ReplayFuture, ReplaySource,
    Unreadable,
};

use crate::db::TestDb;
use crate::kit::{
    Call, Event, Gate, Replays, SOURCE, Setup, TestClock, World, eventually, item, numbered,
    seeded, within,
};

suite![
    what_was_given_up_in_two_hours_of_downtime_is_applied_once_and_in_order,
    twice_changes_nothing,
    an_event_is_compared_by_its_id_alone,
    a_run_that_is_dropped_in_the_middle_goes_on_at_its_page,
    another_process_takes_over_when_the_lease_of_a_dead_one_ends,
    what_failed_is_met_again_and_nothing_is_remembered_past_it,
    dead_letters_are_left_to_operators,
    a_gap_is_asked_for_by_its_sequence,
    events_without_content_are_ordered_again_unless_they_are_known,
    two_processes_at_the_same_time_apply_each_event_once,
    a_schedule_reconciles_until_the_shutdown,
    a_hostile_list_is_bounded_and_reported,
    what_a_list_calls_an_event_must_be_what_it_says_itself,
    what_tells_about_deliveries_is_not_handed_over,
    only_a_mounted_source_is_reconciled,
    an_operators_look_at_delivered_events_remembers_nothing,
];

const MINUTE: u64 = 60;

fn after(start: Timestamp, seconds: u64) -> Timestamp {
    start.plus(Duration::from_secs(seconds))
}

fn timed<D: TestDb>(db: &D, clock: &TestClock) -> Setup<D> {
    let clock = clock.clone();
    World::<D>::over(db).inbox(move |inbox| inbox.clock(clock))
}

/// Kudos' schedule: when an event that was sent first at `first` is sent, in seconds; each pause ± 25 %.
fn attempts(first: u64, rng: &mut fastrand::Rng) -> Vec<u64> {
    let mut at = first;
    let mut all = vec![at];
    for pause in [30_u64, 120, 600, 1_800, 3_600] {
        at += pause * 3 / 4 + rng.u64(0..=pause / 2);
        all.push(at);
    }
    all
}

/// §5.1, §7.5. The issue: "a producer that exhausts its six attempts while the receiver is down for two simulated
/// hours: after reconciliation the ledger is exact, order included; at no time a double".
async fn what_was_given_up_in_two_hours_of_downtime_is_applied_once_and_in_order<D: TestDb>(db: D) {
    let mut rng = seeded("two hours of downtime");
    let clock = TestClock::new();
    let start = clock.now();
    let (down, up) = (10 * MINUTE, 130 * MINUTE);
    let replays = Replays::new().pages_of(3);
    // (at, event, attempt), in the order of their times.
    let mut sendings = Vec::new();
    for account in ["acct-1", "acct-2", "acct-3"] {
        for sequence in 1..=8 {
            let first = 2 * MINUTE * sequence + rng.u64(0..MINUTE);
            for (n, at) in attempts(first, &mut rng).into_iter().enumerate() {
                sendings.push((at, numbered(account, sequence), n + 1));
            }
        }
    }
    sendings.sort_by_key(|(at, _, _)| *at);
    let mut done = std::collections::HashSet::new();
    let mut given_up = 0;
    let mut world = Some(timed(&db, &clock).start().await);
    for (at, event, attempt) in sendings {
        if done.contains(event.id()) {
            continue;
        }
        if at >= down && at < up {
            if let Some(world) = world.take() {
                world.stop().await;
            }
        } else if world.is_none() {
            world = Some(timed(&db, &clock).start().await);
        }
        let ahead = after(start, at).since(clock.now());
        clock.advance(ahead);
        let Some(world) = &world else {
            if attempt == 6 {
                replays.exhausted(&event, after(start, at));
                given_up += 1;
            }
            continue;
        };
        let request = crate::kit::http(&[&world.secret()], clock.now(), event.body());
        let reply = world.post(request.map(|_| Body::from(event.body()))).await;
        assert!(reply.status < 300, "{reply:?}");
        done.insert(event.id().to_owned());
    }
    assert!(given_up > 0, "some are given up");
    let world = match world {
        Some(world) => world,
        None => timed(&db, &clock).start().await,
    };
    let applied_before = world.ledger().await.len();
    assert!(applied_before < 24);
    let report = world.inbox.reconcile(SOURCE, &replays).await.unwrap();
    assert!(report.is_complete(), "{report:?}");
    assert_eq!(report.found, given_up, "{report:?}");
    assert_eq!((report.failed, report.dead), (0, 0), "{report:?}");
    eventually("what was parked is drained", async || {
        world.ledger().await.len() >= 24
    })
    .await;
    for account in ["acct-1", "acct-2", "acct-3"] {
        assert_eq!(world.sequences(account).await, [1, 2, 3, 4, 5, 6, 7, 8]);
    }
    assert_eq!(world.ledger().await.len(), 24);
    let again = world.inbox.reconcile(SOURCE, &replays).await.unwrap();
    assert_eq!((again.applied, again.parked), (0, 0), "{again:?}");
    assert_eq!(world.ledger().await.len(), 24);
    world.pool_is_whole().await;
}

/// §7.5: "twice changes nothing". The handler sees how an event came.
async fn twice_changes_nothing<D: TestDb>(db: D) {
    let world = World::<D>::over(&db)
        .handler(|mut call: Call<D>| async move {
            let expected = match call.delivery.event_id() {
                "evt_live" => Origin::Live,
                _ => Origin::Reconciled,
            };
            assert_eq!(call.delivery.origin(), expected);
            call.append().await;
            http::StatusCode::NO_CONTENT
        })
        .start()
        .await;
    world.send(&Event::new("evt_live")).await.is_applied();
    let replays = Replays::new().pages_of(2);
    let now = Timestamp::now();
    for id in ["evt_1", "evt_live", "evt_2", "evt_3"] {
        replays.exhausted(&Event::new(id), now);
    }
    let first = world.inbox.reconcile(SOURCE, &replays).await.unwrap();
    assert_eq!(
        (
            first.found,
            first.applied,
            first.already_applied,
            first.pages
        ),
        (4, 3, 1, 2),
        "{first:?}"
    );
    assert_eq!(first.lists, [List::Exhausted]);
    let rows = world.number("SELECT COUNT(*) FROM {p}event").await;
    let second = world.inbox.reconcile(SOURCE, &replays).await.unwrap();
    assert_eq!(
        (second.found, second.applied, second.already_applied),
        (4, 0, 4),
        "{second:?}"
    );
    assert_eq!(rows, world.number("SELECT COUNT(*) FROM {p}event").await);
    assert_eq!(world.ledger().await.len(), 4);
    // And what was reconciled is a duplicate to its producer.
    world.send(&Event::new("evt_2")).await.is_duplicate();
}

/// §7.5 against §4.12: a delivery with other content is refused, what is on a list is not.
async fn an_event_is_compared_by_its_id_alone<D: TestDb>(db: D) {
    let world = World::<D>::start(&db).await;
    world.send(&Event::new("evt_1")).await.is_applied();
    let other = Event::new("evt_1").amount(7);
    world.send(&other).await.is(422, "rejected");
    let replays = Replays::new();
    replays.exhausted(&other, Timestamp::now());
    let report = world.inbox.reconcile(SOURCE, &replays).await.unwrap();
    assert_eq!((report.already_applied, report.dead), (1, 0), "{report:?}");
    assert_eq!(world.ledger().await[0].amount, 1);
}

/// §7.5
async fn a_run_that_is_dropped_in_the_middle_goes_on_at_its_page<D: TestDb>(db: D) {
    let world = World::<D>::start(&db).await;
    let gate = Gate::shut();
    let replays = Replays::new().pages_of(2).held_by(&gate);
    for n in 1..=5 {
        replays.exhausted(&numbered("acct", n), Timestamp::now());
    }
    let (inbox, held) = (world.inbox.clone(), replays.clone());
    let run = tokio::spawn(async move { inbox.reconcile(SOURCE, &held).await.map(drop) });
    gate.reached_by(1).await;
    run.abort();
    let _ = run.await;
    assert_eq!(world.sequences("acct").await, [1, 2]);
    gate.open();
    replays.asked();
    let report = world.inbox.reconcile(SOURCE, &replays).await.unwrap();
    assert!(report.is_complete(), "{report:?}");
    assert_eq!(report.applied, 3, "{report:?}");
    assert_eq!(
        replays.asked()[0].2.as_deref(),
        Some("2"),
        "not from the beginning"
    );
    assert_eq!(world.sequences("acct").await, [1, 2, 3, 4, 5]);
    world.pool_is_whole().await;
}

/// §7.5
async fn another_process_takes_over_when_the_lease_of_a_dead_one_ends<D: TestDb>(db: D) {
    let clock = TestClock::new();
    let world = timed(&db, &clock).start().await;
    let other = timed(&db, &clock).start().await;
    let gate = Gate::shut();
    let replays = Replays::new().pages_of(1).held_by(&gate);
    for n in 1..=3 {
        replays.exhausted(&numbered("acct", n), clock.now());
    }
    let (inbox, held) = (world.inbox.clone(), replays.clone());
    let run = tokio::spawn(async move { inbox.reconcile(SOURCE, &held).await.map(drop) });
    gate.reached_by(1).await;
    let busy = other.inbox.reconcile(SOURCE, &replays).await;
    assert!(busy.unwrap_err().to_string().contains("another process"));
    // It dies without a word.
    run.abort();
    let _ = run.await;
    gate.open();
    assert!(other.inbox.reconcile(SOURCE, &replays).await.is_err());
    clock.advance(Duration::from_secs(6 * MINUTE));
    let report = other.inbox.reconcile(SOURCE, &replays).await.unwrap();
    assert_eq!(
        (report.applied, report.is_complete()),
        (2, true),
        "{report:?}"
    );
    assert_eq!(world.sequences("acct").await, [1, 2, 3]);
}

/// §7.5: "Only moved after the whole page was dealt with".
async fn what_failed_is_met_again_and_nothing_is_remembered_past_it<D: TestDb>(db: D) {
    let mended = Arc::new(AtomicBool::new(false));
    let seen = Arc::clone(&mended);
    let world = World::<D>::over(&db)
        .answers(move |call: &Call<D>| {
            let fails = call.delivery.event_id() == "evt_2" && !seen.load(Ordering::Relaxed);
            if fails { 503 } else { 0 }
        })
        .start()
        .await;
    let replays = Replays::new();
    let at = |hours: u64| after(Timestamp::from_secs(1_700_000_000), hours * 3_600);
    for n in 1..=4 {
        replays.exhausted(&Event::new(&format!("evt_{n}")), at(10 * n));
    }
    let report = world.inbox.reconcile(SOURCE, &replays).await.unwrap();
    assert_eq!((report.applied, report.failed), (3, 1), "{report:?}");
    assert_eq!(report.missing[0].event_id, "evt_2");
    assert!(report.missing[0].why.contains("503"), "{report:?}");
    mended.store(true, Ordering::Relaxed);
    replays.asked();
    let report = world.inbox.reconcile(SOURCE, &replays).await.unwrap();
    assert_eq!((report.found, report.applied), (3, 1), "{report:?}");
    // An hour before what failed; from now on an hour before the last one.
    assert_eq!(replays.asked()[0].1, Some(at(19)));
    let report = world.inbox.reconcile(SOURCE, &replays).await.unwrap();
    assert_eq!((report.found, report.already_applied), (1, 1), "{report:?}");
    assert_eq!(replays.asked()[0].1, Some(at(39)));
}

/// §5.11, §7.5. A schedule must not try again and again what a handler has judged.
async fn dead_letters_are_left_to_operators<D: TestDb>(db: D) {
    let world = World::<D>::over(&db).answers(|_| 422).start().await;
    let replays = Replays::new();
    replays.exhausted(&Event::new("evt_1"), Timestamp::now());
    for run in 1..=3 {
        let report = world.inbox.reconcile(SOURCE, &replays).await.unwrap();
        assert_eq!((report.dead, report.failed), (1, 0), "{run}: {report:?}");
        assert_eq!(world.probe.runs("evt_1"), 1);
    }
    assert_eq!(world.in_state(3).await, 1);
}

/// §5.4, §7.5: "Can fill a known gap early".
async fn a_gap_is_asked_for_by_its_sequence<D: TestDb>(db: D) {
    let world = World::<D>::start(&db).await;
    world.send(&numbered("acct", 4)).await.is_parked(1);
    world.send(&numbered("other", 3)).await.is_parked(1);
    let replays = Replays::new();
    for n in 1..=3 {
        let listed = item(&numbered("acct", n), Timestamp::now());
        replays.knows("acct", i64::try_from(n).unwrap(), listed);
    }
    // One that lies about its place.
    replays.knows("other", 1, item(&numbered("other", 2), Timestamp::now()));
    let report = world.inbox.reconcile(SOURCE, &replays).await.unwrap();
    assert_eq!((report.applied, report.failed), (3, 1), "{report:?}");
    eventually("the successor is drained", async || {
        world.sequences("acct").await == [1, 2, 3, 4]
    })
    .await;
    replays.knows("other", 1, item(&numbered("other", 1), Timestamp::now()));
    let report = world.inbox.reconcile(SOURCE, &replays).await.unwrap();
    assert_eq!(report.gaps[0].sequence, 2, "nobody knows it: {report:?}");
    assert_eq!(world.sequences("other").await, [1]);
}

/// §7.5
async fn events_without_content_are_ordered_again_unless_they_are_known<D: TestDb>(db: D) {
    let world = World::<D>::start(&db).await;
    world.send(&Event::new("evt_1")).await.is_applied();
    let replays = Replays::new();
    for id in ["evt_1", "evt_2"] {
        let listed = item(&Event::new(id), Timestamp::now());
        let bare = Item {
            request: None,
            ..listed
        };
        replays.list(List::Exhausted, bare);
    }
    let report = world.inbox.reconcile(SOURCE, &replays).await.unwrap();
    assert_eq!(
        (report.already_applied, report.sent_again),
        (1, 1),
        "{report:?}"
    );
    assert_eq!(replays.sent_again(), ["del_evt_2"]);
    world.send(&Event::new("evt_2")).await.is_applied();
    let report = world.inbox.reconcile(SOURCE, &replays).await.unwrap();
    assert_eq!(
        (report.already_applied, report.sent_again),
        (2, 0),
        "{report:?}"
    );
}

/// §4.1, §7.5. A row sees to it that one at a time is at it; and if it did not, the events' rows would.
async fn two_processes_at_the_same_time_apply_each_event_once<D: TestDb>(db: D) {
    let one = World::<D>::start(&db).await;
    let other = World::<D>::start(&db).await;
    let replays = Replays::new().pages_of(4);
    for n in 1..=10 {
        replays.exhausted(&numbered("acct", n), Timestamp::now());
        replays.delivered(&numbered("acct", n), Timestamp::now());
    }
    let spawn = |world: &World<D>, delivered: bool| {
        let (inbox, replays) = (world.inbox.clone(), replays.clone());
        tokio::spawn(async move {
            loop {
                let asked = inbox.reconciliation(SOURCE);
                let asked = match delivered {
                    true => asked.delivered_since(Timestamp::from_secs(0)),
                    false => asked,
                };
                match asked.run(&replays).await {
                    Ok(report) => return report,
                    Err(busy) => assert!(busy.to_string().contains("reconciling"), "{busy}"),
                }
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        })
    };
    // Of two lists, so that two are really at work at the same time.
    let runs = [
        spawn(&one, false),
        spawn(&other, true),
        spawn(&other, false),
    ];
    let live: Vec<_> = (1..=10)
        .map(|n| other.spawn(&numbered("acct", n)))
        .collect();
    for run in runs {
        let report = run.await.unwrap();
        assert!(report.is_complete(), "{report:?}");
    }
    for reply in live {
        reply.await.unwrap();
    }
    one.inbox.reconcile(SOURCE, &replays).await.unwrap();
    eventually("all are applied", async || one.ledger().await.len() >= 10).await;
    let all: Vec<i64> = (1..=10).collect();
    assert_eq!(one.sequences("acct").await, all);
    one.pool_is_whole().await;
    other.pool_is_whole().await;
}

/// §7.5
async fn a_schedule_reconciles_until_the_shutdown<D: TestDb>(db: D) {
    let world = World::<D>::start(&db).await;
    let replays = Replays::new();
    let every = Duration::from_secs(3_600);
    let reconciler = world
        .inbox
        .reconciliation(SOURCE)
        .every(every, replays.clone());
    assert!(reconciler.after(0).await);
    replays.exhausted(&Event::new("evt_1"), Timestamp::now());
    reconciler.wake();
    assert!(reconciler.after(1).await);
    let last = reconciler.last().unwrap().unwrap();
    assert_eq!((last.applied, reconciler.runs()), (1, 2), "{last:?}");
    world.inbox.shutdown().await;
    assert!(!within(Duration::from_secs(5), reconciler.after(2)).await);
    let refused = world.inbox.reconcile(SOURCE, &replays).await.unwrap_err();
    assert!(refused.to_string().contains("shutting down"));
}

/// A list that never ends, goes in a circle, lies, or cannot be read.
struct Hostile(&'static str);

impl ReplaySource for Hostile {
    fn page<'a>(&'a self, query: Query<'a>) -> ReplayFuture<'a, Page> {
        let n: u64 = query.page.map_or(0, |page| page.parse().unwrap_or(0));
        let event = |n: u64, at| item(&Event::new(&format!("evt_{}_{n}", self.0)), at);
        let mut page = Page {
            items: vec![event(n, Timestamp::now())],
            ..Page::default()
        };
        Box::pin(async move {
            match self.0 {
                "endless" => page.next = Some((n + 1).to_string()),
                "circle" => page.next = Some("1".into()),
                "nameless" => page.next = Some(String::new()),
                "long" => page.next = Some("x".repeat(2_000)),
                "count" => page.announced = Some(7_000_000_000),
                "future" => page.items.push(event(1, Timestamp::from_micros(i64::MAX))),
                "past" => page.items.push(event(1, Timestamp::from_micros(i64::MIN))),
                "twice" => page.items.push(event(n, Timestamp::now())),
                "garbage" => page.unreadable.push(Unreadable {
                    what: "item 2".into(),
                    why: "not JSON".into(),
                    at: None,
                }),
                _ => {
                    let away = ReplayError::new(ReplayErrorKind::Unavailable, "503");
                    return Err(away);
                }
            }
            Ok(page)
        })
    }
}

/// §7.5: "A hostile or broken replay endpoint … is bounded and reported."
async fn a_hostile_list_is_bounded_and_reported<D: TestDb>(db: D) {
    let world = World::<D>::start(&db).await;
    let run = async |kind| {
        let asked = world.inbox.reconciliation(SOURCE).max_pages(5);
        asked.run(&Hostile(kind)).await.unwrap()
    };
    let report = run("endless").await;
    assert!(
        matches!(report.problem, Some(Problem::Bounded(_))),
        "{report:?}"
    );
    assert_eq!((report.pages, report.applied), (5, 5), "{report:?}");
    // It goes on where it was, bounded again.
    let report = run("endless").await;
    assert_eq!((report.pages, report.applied), (5, 5), "{report:?}");
    for kind in ["circle", "nameless", "long"] {
        let report = run(kind).await;
        assert!(
            matches!(report.problem, Some(Problem::Endless(_))),
            "{report:?}"
        );
        assert!(report.applied > 0 && report.pages <= 2, "{report:?}");
    }
    let report = run("count").await;
    assert!(
        report.is_complete() && report.complaints.len() == 1,
        "{report:?}"
    );
    let report = run("future").await;
    assert!(
        report.is_complete() && report.complaints.len() == 1,
        "{report:?}"
    );
    assert_eq!(report.applied, 2);
    let report = run("twice").await;
    assert_eq!(
        (report.applied, report.already_applied),
        (1, 1),
        "{report:?}"
    );
    let report = run("past").await;
    assert_eq!(report.applied, 2, "{report:?}");
    let report = run("garbage").await;
    assert_eq!((report.applied, report.failed), (1, 1), "{report:?}");
    assert_eq!(report.missing[0].event_id, "item 2");
    let report = run("away").await;
    assert!(
        matches!(report.problem, Some(Problem::Producer(_))),
        "{report:?}"
    );
    // A time in the future hides nothing.
    let replays = Replays::new();
    replays.exhausted(&Event::new("evt_last"), Timestamp::now());
    let report = world.inbox.reconcile(SOURCE, &replays).await.unwrap();
    assert_eq!(report.applied, 1, "{report:?}");
    world.pool_is_whole().await;
}

/// §7.5
async fn what_a_list_calls_an_event_must_be_what_it_says_itself<D: TestDb>(db: D) {
    let world = World::<D>::start(&db).await;
    let replays = Replays::new();
    let mut listed = item(&Event::new("evt_1"), Timestamp::now());
    listed.event_id = "evt_2".into();
    replays.list(List::Exhausted, listed);
    let mut listed = item(&Event::new("evt_3"), Timestamp::now());
    *listed.request.as_mut().unwrap().body_mut() = "no JSON".into();
    replays.list(List::Exhausted, listed);
    let mut listed = item(&Event::new("evt_4"), Timestamp::now());
    *listed.request.as_mut().unwrap().body_mut() = vec![b' '; 2 * 1024 * 1024].into();
    replays.list(List::Exhausted, listed);
    let report = world.inbox.reconcile(SOURCE, &replays).await.unwrap();
    assert_eq!((report.failed, report.applied), (3, 0), "{report:?}");
    assert!(report.missing[0].why.contains("evt_1"), "{report:?}");
    assert!(world.ledger().await.is_empty());
}

/// §5.3, §7.5
async fn only_a_mounted_source_is_reconciled<D: TestDb>(db: D) {
    let world = World::<D>::over(&db)
        .inbox(|inbox| inbox.source(tower_inbox::Source::kudos("idle").secrets(["whk_x"])))
        .start()
        .await;
    let replays = Replays::new();
    for name in ["idle", "nobody"] {
        assert!(world.inbox.reconcile(name, &replays).await.is_err());
    }
    assert!(replays.asked().is_empty());
}

/// §7.5
async fn an_operators_look_at_delivered_events_remembers_nothing<D: TestDb>(db: D) {
    let world = World::<D>::start(&db).await;
    let replays = Replays::new();
    let start = Timestamp::from_secs(1_700_000_000);
    for n in 1..=3 {
        replays.delivered(&Event::new(&format!("evt_{n}")), after(start, n));
    }
    for applied in [2, 0] {
        let asked = world.inbox.reconciliation(SOURCE);
        let asked = asked.delivered_since(after(start, 2));
        let report = asked.run(&replays).await.unwrap();
        assert_eq!((report.found, report.applied), (2, applied), "{report:?}");
        assert_eq!(report.lists, [List::Delivered]);
    }
    assert_eq!(world.applied().await, ["evt_2", "evt_3"]);
}

/// §7.4: a producer's log of deliveries has its control events, too.
async fn what_tells_about_deliveries_is_not_handed_over<D: TestDb>(db: D) {
    let replays = Replays::new();
    let start = Event::new("ctl_1").with("event_type", "subscription.replay_started");
    replays.exhausted(&start, Timestamp::now());
    replays.exhausted(&Event::new("evt_1"), Timestamp::now());
    let world = World::<D>::start(&db).await;
    let report = world.inbox.reconcile(SOURCE, &replays).await.unwrap();
    assert_eq!(
        (report.applied, report.already_applied),
        (1, 1),
        "{report:?}"
    );
    assert_eq!(world.applied().await, ["evt_1"]);
}
