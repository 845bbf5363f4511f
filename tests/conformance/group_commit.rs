//! Group commit: deliveries that wait for the one writer or, on PostgreSQL, for a connection share a transaction
//! (`Source::batch`). What is promised is what is promised without. On MySQL they have transactions of their own; streams are in
//! `group_commit_streams`.

use std::time::Duration;

use http::StatusCode;
use tower_inbox::Source;

use crate::batch::{Act, Passed, batched, nothing};
use crate::db::TestDb;
use crate::kit::{BoxFuture, Call, Event, Gate, Reply, Setup, World, eventually, numbered};

suite![
    deliveries_that_wait_share_one_transaction,
    without_it_each_delivery_has_a_transaction_of_its_own,
    no_group_is_larger_than_the_batch,
    nobody_joins_when_the_time_of_a_group_is_over,
    a_group_is_acknowledged_when_it_is_committed_and_not_before,
    firsts_of_streams_share_one_transaction_and_their_cursors_move,
    each_member_of_a_group_has_its_own_stored_answer,
    the_places_of_a_source_are_for_those_who_share_too,
    a_deferred_source_shares_nothing,
    sources_whose_handlers_take_long_share_nothing,
];

/// A world whose deliveries share transactions of at most so many events. The handler of `evt_0` waits at the gate in its
/// first run; `then` says what a handler ends with when it has written its line.
pub(crate) fn grouped<D, F>(
    db: &D,
    size: usize,
    act: impl Fn(&'static str, usize) -> Act + Send + Sync + 'static,
    then: impl Fn(Call<D>) -> F + Clone + Send + Sync + 'static,
) -> (Setup<D>, Passed, Gate)
where
    D: TestDb,
    F: Future<Output = StatusCode> + Send + 'static,
{
    let gate = Gate::shut();
    let held = gate.clone();
    let (setup, passed) = batched(db, size, act);
    let setup = waiting(setup).handler(move |mut call: Call<D>| {
        let (gate, then) = (held.clone(), then.clone());
        async move {
            call.append().await;
            if call.delivery.event_id() == "evt_0" && call.run == 1 {
                gate.pass().await;
            }
            then(call).await
        }
    });
    (setup, passed, gate)
}

/// Who comes while another one is in its handler waits: for the one writer, or for the one place that there is.
pub(crate) fn waiting<D: TestDb>(setup: Setup<D>) -> Setup<D> {
    with_places(setup, 1)
}

/// As [`waiting`], with so many places.
pub(crate) fn with_places<D: TestDb>(setup: Setup<D>, places: usize) -> Setup<D> {
    setup
        .connections(16)
        .inbox(move |inbox| match D::JOINS_ANY && !D::SINGLE_WRITER {
            true => inbox.max_in_flight(places),
            false => inbox,
        })
}

pub(crate) async fn succeeds<D: TestDb>(_: Call<D>) -> StatusCode {
    StatusCode::NO_CONTENT
}

pub(crate) fn evt(n: usize) -> Event {
    Event::new(&format!("evt_{n}"))
}

/// Succeeds, and waits at the gate with this event.
pub(crate) fn held_at<D: TestDb>(
    last: &Gate,
    event_id: &'static str,
) -> impl Fn(Call<D>) -> BoxFuture<StatusCode> + Clone + use<D> {
    let last = last.clone();
    move |call: Call<D>| {
        let last = last.clone();
        Box::pin(async move {
            if call.delivery.event_id() == event_id {
                last.pass().await;
            }
            StatusCode::NO_CONTENT
        })
    }
}

/// Sends `evt_0`, and these when it is in its handler, in this order. All of them are new, and have looked whether they are:
/// while they do, after a tenth of a second, they would be handed nothing.
pub(crate) async fn send_behind<D: TestDb>(
    world: &World<D>,
    gate: &Gate,
    events: &[Event],
) -> Vec<tokio::task::JoinHandle<Reply>> {
    let sent = queue_behind(world, gate, events).await;
    if D::JOINS_ANY {
        eventually("all have looked, and wait", async || {
            world.inbox.waiting_to_share().1 == events.len()
        })
        .await;
    }
    sent
}

/// As [`send_behind`], and some may be known.
pub(crate) async fn queue_behind<D: TestDb>(
    world: &World<D>,
    gate: &Gate,
    events: &[Event],
) -> Vec<tokio::task::JoinHandle<Reply>> {
    queue(world, gate, &evt(0), events).await
}

/// As [`queue_behind`], behind this one.
pub(crate) async fn queue<D: TestDb>(
    world: &World<D>,
    gate: &Gate,
    first: &Event,
    events: &[Event],
) -> Vec<tokio::task::JoinHandle<Reply>> {
    let mut sent = vec![world.spawn(first)];
    gate.reached_by(1).await;
    for event in events {
        let before = world.inbox.waiting_to_share().0;
        sent.push(world.spawn(event));
        if D::JOINS_ANY {
            eventually("it waits", async || {
                world.inbox.waiting_to_share().0 > before
            })
            .await;
        }
    }
    sent
}

/// The same, and all their answers.
pub(crate) async fn together<D: TestDb>(
    world: &World<D>,
    gate: &Gate,
    events: &[Event],
) -> Vec<Reply> {
    answered(gate, send_behind(world, gate, events).await).await
}

/// The gate is opened, and what was sent is answered.
pub(crate) async fn answered(gate: &Gate, sent: Vec<tokio::task::JoinHandle<Reply>>) -> Vec<Reply> {
    gate.open();
    let mut replies = Vec::new();
    for one in sent {
        replies.push(one.await.expect("an answer"));
    }
    replies
}

/// From `evt_1` on.
pub(crate) fn others(count: usize) -> Vec<Event> {
    (1..=count).map(evt).collect()
}

/// Each of `evt_0` to the last one is applied once, and known as a duplicate.
pub(crate) async fn applied_once<D: TestDb>(world: &World<D>, last: usize) {
    let mut applied = world.applied().await;
    applied.sort();
    let mut all: Vec<_> = (0..=last).map(|n| evt(n).id().to_owned()).collect();
    all.sort();
    assert_eq!(applied, all);
    assert_eq!(
        usize::try_from(world.in_state(1).await).expect("few"),
        all.len()
    );
    for n in 0..=last {
        world.send(&evt(n)).await.is_duplicate();
    }
    assert_eq!(world.applied().await.len(), all.len());
    world.pool_is_whole().await;
}

/// §2.9, §4.1: one COMMIT for all of them, in the order in which they came.
async fn deliveries_that_wait_share_one_transaction<D: TestDb>(db: D) {
    let (setup, passed, gate) = grouped(&db, 8, nothing, succeeds);
    let world = setup.start().await;
    for reply in together(&world, &gate, &others(5)).await {
        reply.is_applied();
    }
    if D::JOINS_ANY {
        assert_eq!(
            (passed.of("store.commit"), passed.of("store.insert_behind")),
            (1, 5)
        );
        let order: Vec<_> = (0..=5).map(|n| evt(n).id().to_owned()).collect();
        assert_eq!(world.applied().await, order);
    } else {
        assert_eq!(passed.of("store.commit"), 6);
    }
    for n in 0..=5 {
        assert_eq!(world.probe.runs(evt(n).id()), 1);
    }
    applied_once(&world, 5).await;
}

/// §2.9: off by default.
async fn without_it_each_delivery_has_a_transaction_of_its_own<D: TestDb>(db: D) {
    let (setup, passed, gate) = grouped(&db, 1, nothing, succeeds);
    let world = setup.start().await;
    let first = world.spawn(&evt(0));
    gate.reached_by(1).await;
    let others: Vec<_> = others(4).iter().map(|event| world.spawn(event)).collect();
    gate.open();
    first.await.expect("an answer").is_applied();
    for one in others {
        one.await.expect("an answer").is_applied();
    }
    assert_eq!(
        (passed.of("store.commit"), passed.of("store.insert_behind")),
        (5, 0)
    );
    applied_once(&world, 4).await;
}

/// §2.9: the others wait for the next one.
async fn no_group_is_larger_than_the_batch<D: TestDb>(db: D) {
    let (setup, passed, gate) = grouped(&db, 3, nothing, succeeds);
    let world = setup.start().await;
    for reply in together(&world, &gate, &others(6)).await {
        reply.is_applied();
    }
    if D::JOINS_ANY {
        assert_eq!(passed.of("store.commit"), 3);
    }
    applied_once(&world, 6).await;
}

/// §2.9: it is counted from the first one's handler on.
async fn nobody_joins_when_the_time_of_a_group_is_over<D: TestDb>(db: D) {
    let (setup, passed, gate) = grouped(&db, 8, nothing, succeeds);
    let setup = setup.source(|source| source.batch_time(Duration::from_millis(1)));
    let world = setup.start().await;
    let sent = send_behind(&world, &gate, &others(3)).await;
    tokio::time::sleep(Duration::from_millis(2)).await;
    gate.open();
    for one in sent {
        one.await.expect("an answer").is_applied();
    }
    // The three others may have shared one.
    assert!(passed.of("store.commit") >= 2);
    assert!(passed.of("store.insert_behind") <= 2);
    applied_once(&world, 3).await;
}

/// §2.4, §4.1: nobody is told, and nothing is remembered, while one of them is still in its handler.
async fn a_group_is_acknowledged_when_it_is_committed_and_not_before<D: TestDb>(db: D) {
    if !D::JOINS_ANY {
        return;
    }
    let last = Gate::shut();
    let (setup, _, gate) = grouped(&db, 8, nothing, held_at(&last, "evt_3"));
    let world = setup.start().await;
    let sent = send_behind(&world, &gate, &others(3)).await;
    gate.open();
    last.reached_by(1).await;
    let again = world.spawn(&evt(1));
    tokio::time::sleep(Duration::from_millis(20)).await;
    assert!(sent.iter().chain([&again]).all(|one| !one.is_finished()));
    assert!(world.applied().await.is_empty());
    last.open();
    for one in sent {
        one.await.expect("an answer").is_applied();
    }
    again.await.expect("an answer").is_duplicate();
    applied_once(&world, 3).await;
}

/// §5.1: what is not in its turn is parked, outside of the group.
async fn firsts_of_streams_share_one_transaction_and_their_cursors_move<D: TestDb>(db: D) {
    let (setup, passed, gate) = grouped(&db, 8, nothing, succeeds);
    let world = setup.start().await;
    let events = [
        numbered("a", 1),
        numbered("b", 1),
        numbered("c", 2),
        numbered("d", 1),
    ];
    let replies = together(&world, &gate, &events).await;
    for (n, reply) in replies.iter().enumerate() {
        match n {
            3 => reply.is_parked(1),
            _ => reply.is_applied(),
        };
    }
    if D::JOINS_ANY {
        // Of the group, and of what is parked.
        assert_eq!(passed.of("store.commit"), 2);
    }
    for (account, next) in [("a", 2), ("b", 2), ("d", 2)] {
        let cursor =
            format!("SELECT next_sequence FROM {{p}}cursor WHERE correlation_id = '{account}'");
        assert_eq!(world.number(&cursor).await, next, "{account}");
    }
    world.send(&numbered("c", 1)).await.is_applied();
    eventually("it follows", async || world.sequences("c").await == [1, 2]).await;
    world.pool_is_whole().await;
}

/// §3: as of the run that committed.
async fn each_member_of_a_group_has_its_own_stored_answer<D: TestDb>(db: D) {
    let gate = Gate::shut();
    let held = gate.clone();
    let (setup, passed) = batched(&db, 8, nothing);
    let world = waiting(setup)
        .source(|source| source.store_answers(true))
        .inbox(|inbox| inbox.remembered(0))
        .handler(move |mut call: Call<D>| {
            let gate = held.clone();
            async move {
                call.append().await;
                if call.delivery.event_id() == "evt_0" {
                    gate.pass().await;
                }
                (
                    StatusCode::CREATED,
                    format!("answer to {}", call.delivery.event_id()),
                )
            }
        })
        .start()
        .await;
    let first = together(&world, &gate, &others(3)).await;
    if D::JOINS_ANY {
        assert_eq!(passed.of("store.commit"), 1);
    }
    for (n, reply) in first.iter().enumerate() {
        reply.is(201, "applied");
        let again = world.send(&evt(n)).await;
        again.is(201, "duplicate");
        assert_eq!(reply.body, format!("answer to evt_{n}"));
        assert_eq!(again.body, reply.body);
    }
    assert_eq!(world.applied().await.len(), 4);
}

/// §3: as many handlers of a source run at a time as it says: those that wait for its places are handed nothing by others.
async fn the_places_of_a_source_are_for_those_who_share_too<D: TestDb>(db: D) {
    if D::SINGLE_WRITER {
        return;
    }
    let before = World::<D>::start(&db).await;
    let secret = before.secret();
    before.stop().await;
    let (setup, _, gate) = grouped(&db, 8, nothing, succeeds);
    let other = Source::kudos("other").secrets([secret]).batch(8);
    let world = setup
        .source(|source| source.max_in_flight(1))
        .inbox(|inbox| inbox.source(other).max_in_flight(4))
        .start()
        .await;
    let router = axum::Router::new().route("/hooks/{tenant}", axum::routing::post(async || "done"));
    let others = world.through(world.inbox.mount("other", router));
    let first = world.spawn(&evt(0));
    gate.reached_by(1).await;
    let second = world.spawn(&evt(1));
    // It waits from one of these on, at the latest.
    for n in 0..20 {
        let reply = others.send(&Event::new(&format!("other_{n}"))).await;
        reply.is(200, "applied");
    }
    assert_eq!(world.probe.runs(evt(1).id()), 0);
    gate.open();
    for one in [first, second] {
        one.await.expect("an answer").is_applied();
    }
    assert_eq!(world.probe.peak(), 1);
}

/// §5.13: no handler runs in the transactions of its deliveries.
async fn a_deferred_source_shares_nothing<D: TestDb>(db: D) {
    let (setup, passed) = batched(&db, 8, nothing);
    let world = setup.connections(16).source(Source::deferred).start().await;
    let sent: Vec<_> = others(6).iter().map(|event| world.spawn(event)).collect();
    for one in sent {
        one.await.expect("an answer").is_accepted();
    }
    eventually("they are applied", async || {
        world.applied().await.len() == 6
    })
    .await;
    assert_eq!(passed.of("store.insert_behind"), 0);
}

/// §5.1: others would wait for them.
async fn sources_whose_handlers_take_long_share_nothing<D: TestDb>(db: D) {
    let (setup, passed) = batched(&db, 8, nothing);
    let world = setup
        .connections(16)
        .source(|source| source.batch_time(Duration::from_millis(5)))
        .handler(|mut call: Call<D>| async move {
            call.append().await;
            tokio::time::sleep(Duration::from_millis(20)).await;
        })
        .start()
        .await;
    world.send(&evt(0)).await.is(200, "applied");
    world.send(&evt(1)).await.is(200, "applied");
    let sent: Vec<_> = (2..8).map(|n| world.spawn(&evt(n))).collect();
    for one in sent {
        one.await.expect("an answer").is(200, "applied");
    }
    assert_eq!(
        (passed.of("store.commit"), passed.of("store.insert_behind")),
        (8, 0)
    );
    applied_once(&world, 7).await;
}
