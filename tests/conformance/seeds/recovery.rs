//! The strategy of guaranteed consistency: what it gives up, what it replays, and that nobody has to restart anything.
//! `docs/consistency.md`.

use std::time::Duration;

use tower_inbox::operator::{Filter, Reason};

use super::producer::{Producer, Way, status_in_amount};
use crate::db::TestDb;
use crate::kit::{SOURCE, eventually};
use crate::shared::plan::Event;
use crate::shared::preset::Preset;
use crate::shared::schedule::Ending;

suite![
    after_five_minutes_both_sides_have_a_dead_letter_with_its_context,
    a_dead_letter_is_replayed_by_hand,
    an_outage_of_less_than_five_minutes_needs_no_dead_letter,
    what_one_process_has_parked_the_next_one_applies,
];

const MINUTE: Duration = Duration::from_secs(60);

/// Step 8: an event whose predecessor never comes.
async fn after_five_minutes_both_sides_have_a_dead_letter_with_its_context<D: TestDb>(db: D) {
    let mut producer = Producer::new(Preset::Sequenced);
    let world = producer.receiver(&db).start().await;
    let events = producer.events(2, 1, true);
    let (first, second) = (&events[0], &events[1]);
    let lost = |event: &Event, _: u32, _: Duration| match event.id == first.id {
        true => Way::Down,
        false => Way::Through,
    };
    let stories = producer.run(&world, &events, lost).await;
    for story in &stories {
        assert_eq!(story.verdict, Some(Ending::Exhausted), "{story:?}");
        assert_eq!(story.sent.last().expect("attempts").at, 5 * MINUTE);
    }
    producer.clock.advance(MINUTE);
    // A process looks for what is overdue when it begins, and then once a minute of real time.
    let sweeping = producer.receiver(&db).start().await;
    let operator = sweeping.inbox.operator("a test").expect("a name");
    let mut letters = Vec::new();
    eventually("the receiver gives it up", async || {
        let page = operator
            .dead_letters(&Filter::new().source(SOURCE), None, 10)
            .await;
        letters = page.expect("a page").letters;
        !letters.is_empty()
    })
    .await;
    let [Ok(letter)] = letters.as_slice() else {
        panic!("{letters:?}")
    };
    let order = second.order.as_ref().expect("it is sequenced");
    assert_eq!(letter.event_id, second.id);
    assert_eq!(letter.correlation_id.as_deref(), Some(&*order.correlation));
    assert_eq!(letter.sequence, Some(2));
    assert_eq!(letter.reason, Some(Reason::Gap));
    // The producer replays what it has given up: the other one comes back by itself.
    producer.send(&world, first).await.is_applied();
    eventually("both are applied", async || world.ledger().await.len() == 2).await;
    assert_eq!(world.sequences(&order.correlation).await, [1, 2]);
    assert_eq!(world.number("SELECT COUNT(*) FROM {p}pending").await, 0);
}

/// Step 8: "for replay", at the receiver: a verdict that was wrong.
async fn a_dead_letter_is_replayed_by_hand<D: TestDb>(db: D) {
    let mut producer = Producer::new(Preset::Sequenced);
    let world = status_in_amount(producer.receiver(&db)).start().await;
    let mut events = producer.events(2, 1, true);
    (events[0].amount, events[1].amount) = (422, 204);
    producer.send(&world, &events[0]).await.is(422, "rejected");
    producer.send(&world, &events[1]).await.is_parked(1);
    let operator = world.inbox.operator("a test").expect("a name");
    let replayed = operator.replay(SOURCE, &events[0].id, "mended").await;
    assert!(replayed.expect("it is replayed"));
    let account = &events[0]
        .order
        .as_ref()
        .expect("it is sequenced")
        .correlation;
    eventually("both are applied, in order", async || {
        world.sequences(account).await == [1, 2]
    })
    .await;
    producer.send(&world, &events[0]).await.is_duplicate();
}

/// "Measurable recovery figure": whenever the receiver is back within five minutes, everything is delivered.
async fn an_outage_of_less_than_five_minutes_needs_no_dead_letter<D: TestDb>(db: D) {
    let mut producer = Producer::new(Preset::Sequenced);
    let world = producer.receiver(&db).start().await;
    for _ in 0..5 {
        let back = Duration::from_secs(producer.rng.u64(1..=300));
        let events = producer.events(6, 2, true);
        let before = world.ledger().await.len();
        let away = |_: &Event, _: u32, at| if at < back { Way::Down } else { Way::Through };
        let stories = producer.run(&world, &events, away).await;
        for story in &stories {
            assert_eq!(
                story.verdict,
                Some(Ending::Delivered),
                "back at {back:?}: {story:?}"
            );
            assert!(story.sent.last().expect("attempts").at <= 5 * MINUTE);
        }
        assert_eq!(world.ledger().await.len(), before + 6);
    }
    assert_eq!(world.in_state(3).await, 0);
}

/// "No application restarts are required: … persistent tables and queues, not in-memory state" — nor do they hurt.
async fn what_one_process_has_parked_the_next_one_applies<D: TestDb>(db: D) {
    let mut producer = Producer::new(Preset::Sequenced);
    let events = producer.events(3, 1, true);
    let account = events[0]
        .order
        .as_ref()
        .expect("it is sequenced")
        .correlation
        .clone();
    let first = producer.receiver(&db).start().await;
    producer.send(&first, &events[2]).await.is_parked(1);
    producer.send(&first, &events[0]).await.is_applied();
    first.stop().await;
    let second = producer.receiver(&db).start().await;
    producer.send(&second, &events[1]).await.is_applied();
    eventually("all are applied", async || {
        second.sequences(&account).await == [1, 2, 3]
    })
    .await;
    producer
        .deliver(&second, &events[2], |_, _, _| Way::Through)
        .await
        .ends(Ending::Delivered, 1);
}
