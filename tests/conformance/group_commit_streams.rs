//! Group commit of one stream: the next ones of a stream go on in the transaction of the one before them (`Source::batch`), on
//! every database. What is promised is what is promised without.

use std::time::Duration;

use http::StatusCode;

use crate::batch::{Act, Passed, batched, drained, nothing};
use crate::db::TestDb;
use crate::group_commit::{answered, succeeds};
use crate::kit::{BoxFuture, Call, Event, Gate, Reply, SOURCE, Setup, World, eventually, numbered};

suite![
    the_next_ones_of_a_stream_share_one_transaction,
    without_it_each_event_of_a_stream_has_a_transaction_of_its_own,
    no_group_of_a_stream_is_larger_than_the_batch,
    nobody_joins_a_stream_s_group_when_its_time_is_over,
    a_stream_s_group_is_acknowledged_when_it_is_committed_and_not_before,
    a_group_ends_before_a_gap,
    a_group_ends_before_one_that_is_stored_already,
    a_group_goes_on_beside_what_an_operator_has_discarded,
    each_member_of_a_stream_s_group_has_its_own_stored_answer,
    those_that_join_need_no_connection_of_their_own,
    streams_share_their_transactions_each_with_its_own_events,
];

/// The account of the stream in question.
pub(crate) const HOT: &str = "hot";

/// An event of it.
pub(crate) fn hot(sequence: u64) -> Event {
    numbered(HOT, sequence)
}

/// A world whose deliveries share transactions of at most so many events. The handler of the first event of the stream waits
/// at the gate in its first run; `then` says what a handler ends with when it has written its line.
pub(crate) fn streamed<D, F>(
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
    let setup = setup.connections(8).handler(move |mut call: Call<D>| {
        let (gate, then) = (held.clone(), then.clone());
        async move {
            call.append().await;
            if is(&call, 1) && call.run == 1 {
                gate.pass().await;
            }
            then(call).await
        }
    });
    (setup, passed, gate)
}

/// Whether it is called for this sequence.
pub(crate) fn is<D: TestDb>(call: &Call<D>, sequence: u64) -> bool {
    call.delivery.event_id() == hot(sequence).id()
}

/// Succeeds, and waits at the gate with this sequence.
pub(crate) fn held_at<D: TestDb>(
    last: &Gate,
    sequence: u64,
) -> impl Fn(Call<D>) -> BoxFuture<StatusCode> + Clone + use<D> {
    let last = last.clone();
    move |call: Call<D>| {
        let last = last.clone();
        Box::pin(async move {
            if is(&call, sequence) {
                last.pass().await;
            }
            StatusCode::NO_CONTENT
        })
    }
}

/// What a handler of this sequence ends with in its first run; the others succeed.
pub(crate) fn ends_with<D: TestDb>(
    sequence: u64,
    status: StatusCode,
) -> impl Fn(Call<D>) -> std::future::Ready<StatusCode> + Clone + Send + Sync {
    move |call: Call<D>| {
        let ends = is(&call, sequence) && call.run == 1;
        std::future::ready(if ends { status } else { StatusCode::NO_CONTENT })
    }
}

/// Sends the first event, and these when it is in its handler, in this order. All of them have looked whether they are known:
/// while they do, after a tenth of a second, they would be handed nothing.
pub(crate) async fn send_behind<D: TestDb>(
    world: &World<D>,
    gate: &Gate,
    sequences: &[u64],
) -> Vec<tokio::task::JoinHandle<Reply>> {
    let mut sent = vec![world.spawn(&hot(1))];
    gate.reached_by(1).await;
    for (before, sequence) in sequences.iter().enumerate() {
        sent.push(world.spawn(&hot(*sequence)));
        eventually("it waits", async || {
            world.inbox.waiting_to_share().0 > before
        })
        .await;
    }
    eventually("all have looked, and wait", async || {
        world.inbox.waiting_to_share().1 == sequences.len()
    })
    .await;
    sent
}

/// The same, and all their answers.
pub(crate) async fn together<D: TestDb>(
    world: &World<D>,
    gate: &Gate,
    sequences: &[u64],
) -> Vec<Reply> {
    answered(gate, send_behind(world, gate, sequences).await).await
}

/// All up to this one are applied once, in their order, and known as duplicates; nothing else is left of the stream.
pub(crate) async fn applied_in_order<D: TestDb>(world: &World<D>, last: u64) {
    drained(world, HOT, last.cast_signed()).await;
    assert_eq!(world.in_state(1).await, last.cast_signed());
    for sequence in 1..=last {
        world.send(&hot(sequence)).await.is_duplicate();
    }
    assert_eq!(world.sequences(HOT).await.len() as u64, last);
    world.pool_is_whole().await;
}

/// §2.9, §4.1, §5.1: one COMMIT for all of them, in their order, whichever came first.
async fn the_next_ones_of_a_stream_share_one_transaction<D: TestDb>(db: D) {
    let (setup, passed, gate) = streamed(&db, 8, nothing, succeeds);
    let world = setup.start().await;
    for reply in together(&world, &gate, &[3, 2, 6, 5, 4]).await {
        reply.is_applied();
    }
    assert_eq!(
        (passed.of("store.commit"), passed.of("store.insert_behind")),
        (1, 5)
    );
    for sequence in 1..=6 {
        assert_eq!(world.probe.runs(hot(sequence).id()), 1);
    }
    applied_in_order(&world, 6).await;
}

/// §2.9: off by default.
async fn without_it_each_event_of_a_stream_has_a_transaction_of_its_own<D: TestDb>(db: D) {
    let (setup, passed, gate) = streamed(&db, 1, nothing, succeeds);
    let world = setup.start().await;
    let first = world.spawn(&hot(1));
    gate.reached_by(1).await;
    let others: Vec<_> = (2..=4)
        .map(|sequence| world.spawn(&hot(sequence)))
        .collect();
    gate.open();
    first.await.expect("an answer").is_applied();
    for one in others {
        // One that came late has overtaken nobody, and one that came early is parked.
        assert!(one.await.expect("an answer").status < 300);
    }
    drained(&world, HOT, 4).await;
    assert_eq!(passed.of("store.insert_behind"), 0);
    applied_in_order(&world, 4).await;
}

/// §2.9: the others are the next one.
async fn no_group_of_a_stream_is_larger_than_the_batch<D: TestDb>(db: D) {
    let (setup, passed, gate) = streamed(&db, 3, nothing, succeeds);
    let world = setup.start().await;
    for reply in together(&world, &gate, &[2, 3, 4, 5, 6, 7]).await {
        reply.is_applied();
    }
    assert_eq!(passed.of("store.commit"), 3);
    applied_in_order(&world, 7).await;
}

/// §2.9: it is counted from the first one's handler on.
async fn nobody_joins_a_stream_s_group_when_its_time_is_over<D: TestDb>(db: D) {
    let (setup, passed, gate) = streamed(&db, 8, nothing, succeeds);
    let setup = setup.source(|source| source.batch_time(Duration::from_millis(1)));
    let world = setup.start().await;
    let sent = send_behind(&world, &gate, &[2, 3]).await;
    tokio::time::sleep(Duration::from_millis(2)).await;
    gate.open();
    for one in sent {
        one.await.expect("an answer").is_applied();
    }
    // The two others may have shared one.
    assert!(passed.of("store.commit") >= 2);
    assert!(passed.of("store.insert_behind") <= 1);
    applied_in_order(&world, 3).await;
}

/// §2.4, §4.1: nobody is told, and nothing is remembered, while one of them is still in its handler.
async fn a_stream_s_group_is_acknowledged_when_it_is_committed_and_not_before<D: TestDb>(db: D) {
    let last = Gate::shut();
    let (setup, _, gate) = streamed(&db, 8, nothing, held_at(&last, 4));
    let world = setup.start().await;
    let sent = send_behind(&world, &gate, &[2, 3, 4]).await;
    gate.open();
    last.reached_by(1).await;
    let again = world.spawn(&hot(2));
    let later = world.spawn(&hot(5));
    tokio::time::sleep(Duration::from_millis(20)).await;
    let all = sent.iter().chain([&again, &later]);
    assert!(all.into_iter().all(|one| !one.is_finished()));
    assert!(world.applied().await.is_empty());
    last.open();
    for one in sent.into_iter().chain([later]) {
        one.await.expect("an answer").is_applied();
    }
    again.await.expect("an answer").is_duplicate();
    applied_in_order(&world, 5).await;
}

/// §5.1: what is not in its turn is parked, outside of the group.
async fn a_group_ends_before_a_gap<D: TestDb>(db: D) {
    let (setup, passed, gate) = streamed(&db, 8, nothing, succeeds);
    let world = setup.start().await;
    let replies = together(&world, &gate, &[2, 4, 5]).await;
    for (reply, sequence) in replies.iter().zip([1, 2, 4, 5]) {
        match sequence {
            4 | 5 => reply.is_parked(3),
            _ => reply.is_applied(),
        };
    }
    assert_eq!(passed.of("store.insert_behind"), 1);
    assert_eq!(world.sequences(HOT).await, [1, 2]);
    world.send(&hot(3)).await.is_applied();
    applied_in_order(&world, 5).await;
}

/// §5.6: it leaves the group, which is committed, and is applied there and then, by itself or by the worker.
async fn a_group_ends_before_one_that_is_stored_already<D: TestDb>(db: D) {
    let (setup, passed, gate) = streamed(&db, 8, nothing, succeeds);
    let world = setup.start().await;
    world.send(&hot(3)).await.is_parked(1);
    let sent = vec![world.spawn(&hot(1))];
    gate.reached_by(1).await;
    // The first two look, and the third one is told that it waits.
    let before = world.inbox.waiting_to_share().0;
    let second = world.spawn(&hot(2));
    eventually("it waits", async || {
        world.inbox.waiting_to_share().0 > before
    })
    .await;
    let third = world.spawn(&hot(3));
    gate.open();
    for one in sent.into_iter().chain([second]) {
        one.await.expect("an answer").is_applied();
    }
    let reply = third.await.expect("an answer");
    assert!(reply.status < 300, "{reply:?}");
    drained(&world, HOT, 3).await;
    assert!(passed.of("store.insert_behind") <= 2);
    for sequence in 1..=3 {
        assert_eq!(world.probe.runs(hot(sequence).id()), 1);
    }
    applied_in_order(&world, 3).await;
}

/// §4.3: the cursor passes it with the one before it.
async fn a_group_goes_on_beside_what_an_operator_has_discarded<D: TestDb>(db: D) {
    let (setup, passed, gate) = streamed(&db, 8, nothing, succeeds);
    let world = setup.start().await;
    world.send(&hot(3)).await.is_parked(1);
    let ada = world.inbox.operator("ada").expect("a name");
    assert!(
        ada.discard(SOURCE, hot(3).id(), "a test of theirs")
            .await
            .unwrap()
    );
    let replies = together(&world, &gate, &[2, 4]).await;
    for reply in replies {
        reply.is_applied();
    }
    // None if the worker, which the operator has woken, waits for the stream's turn before it.
    assert!(passed.of("store.insert_behind") <= 1);
    assert_eq!(world.sequences(HOT).await, [1, 2, 4]);
    world.pool_is_whole().await;
}

/// §3: as of the run that committed.
async fn each_member_of_a_stream_s_group_has_its_own_stored_answer<D: TestDb>(db: D) {
    let gate = Gate::shut();
    let held = gate.clone();
    let (setup, passed) = batched(&db, 8, nothing);
    let world = setup
        .connections(8)
        .source(|source| source.store_answers(true))
        .inbox(|inbox| inbox.remembered(0))
        .handler(move |mut call: Call<D>| {
            let gate = held.clone();
            async move {
                call.append().await;
                if is(&call, 1) {
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
    let first = together(&world, &gate, &[2, 3, 4]).await;
    assert_eq!(passed.of("store.commit"), 1);
    for (reply, sequence) in first.iter().zip(1..) {
        reply.is(201, "applied");
        let again = world.send(&hot(sequence)).await;
        again.is(201, "duplicate");
        assert_eq!(reply.body, format!("answer to {}", hot(sequence).id()));
        assert_eq!(again.body, reply.body);
    }
    assert_eq!(world.sequences(HOT).await, [1, 2, 3, 4]);
}

/// §2.5: nor a place among those that may be in flight.
async fn those_that_join_need_no_connection_of_their_own<D: TestDb>(db: D) {
    let (setup, passed, gate) = streamed(&db, 16, nothing, succeeds);
    let world = setup.connections(2).start().await;
    let mut sent = vec![world.spawn(&hot(1))];
    gate.reached_by(1).await;
    for sequence in 2..=10 {
        sent.push(world.spawn(&hot(sequence)));
    }
    eventually("they wait", async || world.inbox.waiting_to_share().1 == 9).await;
    gate.open();
    for one in sent {
        one.await.expect("an answer").is_applied();
    }
    assert_eq!(
        (passed.of("store.commit"), passed.of("store.insert_behind")),
        (1, 9)
    );
    applied_in_order(&world, 10).await;
}

/// §5.1: on a database with several writers each has transactions of its own.
async fn streams_share_their_transactions_each_with_its_own_events<D: TestDb>(db: D) {
    let (setup, passed) = batched(&db, 8, nothing);
    let world = setup.connections(8).start().await;
    for round in 0..20 {
        let mut sent = Vec::new();
        for sequence in round * 6 + 1..=round * 6 + 6 {
            for account in ["a", "b", "c", "d"] {
                sent.push(world.spawn(&numbered(account, sequence)));
            }
        }
        for one in sent {
            let reply = one.await.expect("an answer");
            assert!(reply.status < 300, "{reply:?}");
        }
    }
    for account in ["a", "b", "c", "d"] {
        drained(&world, account, 120).await;
    }
    assert!(passed.of("store.insert_behind") > 0);
    world.pool_is_whole().await;
}
