//! §8, §5.15: what is parked in a stream or in none, page by page, and tried all at once.

use std::time::Duration;

use axum::response::IntoResponse as _;
use http::StatusCode;
use tower_inbox::Park;
use tower_inbox::operator::{BulkOptions, Filter, Operator, Reason, Waiting};

use crate::db::TestDb;
use crate::kit::{Call, Event, SOURCE, World, eventually, now, numbered};

suite![
    what_is_parked_is_found_in_a_stream_or_in_none_page_by_page,
    what_waits_for_a_time_is_tried_all_at_once_and_nothing_else_is,
    a_source_is_known_by_whatever_there_is_of_it,
];

const HOUR: Duration = Duration::from_secs(3_600);
const WHY: &str = "mended in 1.4";

fn ada<D: TestDb>(world: &World<D>) -> Operator<D::DB> {
    world.inbox.operator("ada").expect("a name")
}

/// All of them, two at a time.
async fn found<D: TestDb>(world: &World<D>, which: &Waiting) -> Vec<String> {
    let (mut found, mut after) = (Vec::new(), None);
    loop {
        let page = ada(world).waiting(which, after.as_ref(), 2).await;
        let page = page.expect("a page");
        assert!(page.letters.len() <= 2);
        let letters = page
            .letters
            .into_iter()
            .map(|letter| letter.expect("it is read"));
        found.extend(letters.map(|letter| letter.event_id));
        after = page.next;
        if after.is_none() {
            return found;
        }
    }
}

/// Puts off what is called "later", on its first run.
async fn putting_off<D: TestDb>(db: &D) -> World<D> {
    let world = World::<D>::over(db).handler(|mut call: Call<D>| async move {
        call.append().await;
        let id = call.delivery.event_id().to_owned();
        match call.run {
            _ if id.starts_with("bad") => StatusCode::UNPROCESSABLE_ENTITY.into_response(),
            1 if id.starts_with("later") => Park::after(HOUR).into_response(),
            _ => StatusCode::NO_CONTENT.into_response(),
        }
    });
    world.start().await
}

/// §8: with a correlation id or without; one that has no sequence is in no stream.
async fn what_is_parked_is_found_in_a_stream_or_in_none_page_by_page<D: TestDb>(db: D) {
    let world = putting_off(&db).await;
    assert_eq!(found(&world, &Waiting::new()).await, [""; 0]);
    for n in [2, 3] {
        world.send(&numbered("acct", n)).await.is_parked(1);
    }
    for id in ["later 1", "LATER", "later 2", "later 3", "bad"] {
        world.send(&Event::new(id)).await;
    }
    let mut correlated = Event::new("later of acct").with("correlation_id", "acct");
    correlated = correlated.with("filler", "x");
    world.send(&correlated).await.is(202, "parked");
    let in_none = ["later 1", "later 2", "later 3", "later of acct"];
    let all = [&["evt_acct_2", "evt_acct_3"][..], &in_none].concat();
    let here = || Waiting::new().source(SOURCE);
    assert_eq!(found(&world, &Waiting::new()).await, all);
    assert_eq!(found(&world, &here()).await, all);
    assert_eq!(found(&world, &here().in_no_stream()).await, in_none);
    assert_eq!(found(&world, &here().tried_later()).await, in_none);
    let others = Waiting::new().source("other").in_no_stream();
    assert_eq!(found(&world, &others).await, [""; 0]);
    let apart = async |source, limit| {
        let counted = ada(&world).parked_in_no_stream(source, limit).await;
        counted.expect("they are counted")
    };
    assert_eq!(apart(None, 100).await, 4);
    assert_eq!(apart(Some(SOURCE), 3).await, 3);
    assert_eq!(apart(Some("other"), 100).await, 0);
    // With when it is tried next; and no dead letter is among them.
    let page = ada(&world).waiting(&here().in_no_stream(), None, 10).await;
    for letter in page.expect("a page").letters {
        let letter = letter.expect("it is read");
        let (source, at) = (letter.source, letter.not_before.expect("a time"));
        assert!(source == SOURCE && at > now());
    }
    let dead = ada(&world).dead_letters(&Filter::new(), None, 10).await;
    let dead = dead.expect("a page").letters;
    let dead: Vec<_> = dead.iter().flatten().map(|letter| letter.reason).collect();
    assert_eq!(dead, [Some(Reason::Rejected)]);
}

/// §5.5, §5.15
async fn what_waits_for_a_time_is_tried_all_at_once_and_nothing_else_is<D: TestDb>(db: D) {
    let world = putting_off(&db).await;
    world.send(&numbered("acct", 2)).await.is_parked(1);
    for n in 1..=5 {
        let event = Event::new(&format!("later {n}"));
        world.send(&event).await.is(202, "parked");
    }
    world.send(&Event::new("bad")).await.is(422, "rejected");
    let here = Waiting::new().source(SOURCE);
    let bulk = async |which: &Waiting, options| {
        let report = ada(&world).try_now_where(which, WHY, options).await;
        let report = report.expect("the reason is one");
        assert!(report.stopped.is_none() && report.refusals.is_empty());
        (report.matched, report.done)
    };
    let dry = BulkOptions::default().dry_run(true);
    assert_eq!(bulk(&here, dry).await, (5, 0));
    assert_eq!(found(&world, &here.clone().tried_later()).await.len(), 5);
    let other = Waiting::new().source("other");
    assert_eq!(bulk(&other, BulkOptions::default()).await, (0, 0));
    assert_eq!(bulk(&here, BulkOptions::default()).await, (5, 5));
    eventually("all that waited are applied", async || {
        world.applied().await.len() == 5
    })
    .await;
    // What waits for its turn goes on waiting.
    assert_eq!(found(&world, &here).await, ["evt_acct_2"]);
    assert_eq!(bulk(&here, BulkOptions::default()).await, (0, 0));
}

/// §8: a name of which there is nothing was mistyped, perhaps.
async fn a_source_is_known_by_whatever_there_is_of_it<D: TestDb>(db: D) {
    let world = World::<D>::start(&db).await;
    let knows = async |name: &str| ada(&world).knows(name).await.expect("it is asked");
    assert!(!knows("other").await);
    world.send(&Event::new("evt_1")).await.is_applied();
    assert!(knows(SOURCE).await);
    for name in ["other", "", &SOURCE.to_uppercase(), &format!("{SOURCE} ")] {
        assert!(!knows(name).await, "{name:?}");
    }
}
