//! §5.2, adopt: a stream begins where it stands when it has settled.

use std::time::Duration;

use crate::db::TestDb;
use crate::kit::{SOURCE, Setup, TestClock, World, eventually, numbered, seeded, within};

suite![
    a_new_stream_parks_what_comes_until_it_has_settled_and_begins_at_the_lowest,
    a_stream_begins_when_it_has_settled_and_not_at_the_next_look,
    a_stream_that_came_from_its_very_first_event_has_nothing_before_its_start,
    a_restart_begins_what_settled_meanwhile_without_any_request,
    two_firsts_of_a_new_stream_in_two_receivers_are_one_stream,
    a_stream_that_settles_is_no_gap,
    what_is_lower_than_the_start_of_its_stream_is_set_aside,
    a_stream_that_has_a_cursor_goes_on_as_it_is,
    a_first_event_that_was_refused_before_is_replayed_and_waits_for_nothing,
    many_new_streams_of_two_receivers_all_begin_at_their_lowest,
];

const SETTLE: Duration = Duration::from_secs(30);

/// A source that adopts, by a clock that stands still; and a worker that looks often.
fn adopting<D: TestDb>(db: &D, clock: &TestClock) -> Setup<D> {
    let clock = clock.clone();
    World::<D>::over(db)
        .source(|source| source.adopt_first_sequence(SETTLE))
        .inbox(move |inbox| inbox.clock(clock).poll_every(Duration::from_millis(100)))
}

/// The first and last sequence of what lies before the starts of all streams.
async fn before_start<D: TestDb>(world: &World<D>) -> (i64, i64, i64) {
    (
        world
            .number("SELECT COUNT(*) FROM {p}range WHERE kind = 3 AND generation = 0")
            .await,
        world
            .number("SELECT COALESCE(MIN(first_sequence), -1) FROM {p}range")
            .await,
        world
            .number("SELECT COALESCE(MAX(last_sequence), -1) FROM {p}range")
            .await,
    )
}

/// §5.2: "arrivals park for a settle time (default 30 s), then the stream starts at the lowest one"
async fn a_new_stream_parks_what_comes_until_it_has_settled_and_begins_at_the_lowest<D: TestDb>(
    db: D,
) {
    let clock = TestClock::new();
    let world = adopting(&db, &clock).start().await;
    for sequence in [7, 5, 9, 7] {
        world.send(&numbered("acct", sequence)).await.is_parked(0);
    }
    clock.advance(SETTLE - Duration::from_millis(1));
    world.send(&numbered("acct", 8)).await.is_parked(0);
    // The worker has been round since then: it has begun another stream.
    world.send(&numbered("other", 3)).await.is_parked(0);
    world
        .execute("UPDATE {p}cursor SET settles_at = 1 WHERE correlation_id = 'other'")
        .await;
    eventually("the other one begins", async || {
        world.sequences("other").await == [3]
    })
    .await;
    assert!(world.sequences("acct").await.is_empty());
    clock.advance(Duration::from_millis(1));
    eventually("it begins", async || world.sequences("acct").await == [5]).await;
    world.send(&numbered("acct", 7)).await.is_parked(6);
    world.send(&numbered("acct", 6)).await.is_applied();
    eventually("the rest follows", async || {
        world.sequences("acct").await == [5, 6, 7, 8, 9]
    })
    .await;
    world.send(&numbered("acct", 11)).await.is_parked(10);
    world
        .execute("DELETE FROM {p}range WHERE correlation_id = 'other'")
        .await;
    assert_eq!(before_start(&world).await, (1, 0, 4));
}

/// §5.2, without a poll: the process that parked has a timer.
async fn a_stream_begins_when_it_has_settled_and_not_at_the_next_look<D: TestDb>(db: D) {
    let world = World::<D>::over(&db)
        .source(|source| source.adopt_first_sequence(Duration::from_secs(2)))
        .inbox(|inbox| inbox.poll_every(Duration::from_secs(120)))
        .start()
        .await;
    world.send(&numbered("acct", 4)).await.is_parked(0);
    world.send(&numbered("acct", 3)).await.is_parked(0);
    let begun = eventually("it begins", async || {
        world.sequences("acct").await == [3, 4]
    });
    within(Duration::from_secs(8), begun).await;
}

/// §5.2
async fn a_stream_that_came_from_its_very_first_event_has_nothing_before_its_start<D: TestDb>(
    db: D,
) {
    let clock = TestClock::new();
    let world = adopting(&db, &clock).start().await;
    for sequence in [1, 0] {
        world.send(&numbered("acct", sequence)).await.is_parked(0);
    }
    clock.advance(SETTLE);
    eventually("it begins", async || {
        world.sequences("acct").await == [0, 1]
    })
    .await;
    assert_eq!(before_start(&world).await.0, 0);
}

/// §5.2, §5.9
async fn a_restart_begins_what_settled_meanwhile_without_any_request<D: TestDb>(db: D) {
    let clock = TestClock::new();
    let world = adopting(&db, &clock).start().await;
    for sequence in [9, 8] {
        world.send(&numbered("acct", sequence)).await.is_parked(0);
    }
    world.stop().await;
    clock.advance(SETTLE);
    let world = adopting(&db, &clock).start().await;
    eventually("it begins", async || {
        world.sequences("acct").await == [8, 9]
    })
    .await;
}

/// §5.2, §9: "two firsts of a new stream"
async fn two_firsts_of_a_new_stream_in_two_receivers_are_one_stream<D: TestDb>(db: D) {
    let clock = TestClock::new();
    let worlds = [
        adopting(&db, &clock).start().await,
        adopting(&db, &clock).start().await,
    ];
    let firsts = [
        worlds[0].spawn(&numbered("acct", 12)),
        worlds[1].spawn(&numbered("acct", 11)),
    ];
    for first in firsts {
        first.await.unwrap().is_parked(0);
    }
    assert_eq!(worlds[0].number("SELECT COUNT(*) FROM {p}cursor").await, 1);
    clock.advance(SETTLE);
    eventually("it begins", async || {
        worlds[0].sequences("acct").await == [11, 12]
    })
    .await;
    for world in &worlds {
        world.send(&numbered("acct", 12)).await.is_duplicate();
    }
    assert_eq!(before_start(&worlds[0]).await, (1, 0, 10));
}

/// §5.2, §5.4: the window is for gaps, and there is none before the stream has begun.
async fn a_stream_that_settles_is_no_gap<D: TestDb>(db: D) {
    let clock = TestClock::new();
    let world = adopting(&db, &clock)
        .source(|source| source.recovery_window(Duration::from_secs(1)))
        .start()
        .await;
    world.send(&numbered("acct", 3)).await.is_parked(0);
    world.send(&numbered("other", 3)).await.is_parked(0);
    world
        .execute(
            "UPDATE {p}cursor SET settles_at = NULL, next_sequence = 1 WHERE correlation_id = 'other'",
        )
        .await;
    clock.advance(Duration::from_secs(2));
    // The sweep goes by id, and has had the first one before.
    eventually("the gap of the other one is given up", async || {
        world
            .number("SELECT COUNT(*) FROM {p}pending WHERE reason = 1 AND correlation_id = 'other'")
            .await
            == 1
    })
    .await;
    assert_eq!(world.in_state(3).await, 1);
    clock.advance(SETTLE);
    eventually("it begins", async || world.sequences("acct").await == [3]).await;
}

/// §4.3: "inside a recorded … before-start range: … 202 `set_aside`"
async fn what_is_lower_than_the_start_of_its_stream_is_set_aside<D: TestDb>(db: D) {
    let clock = TestClock::new();
    let world = adopting(&db, &clock).start().await;
    world.send(&numbered("acct", 5)).await.is_parked(0);
    clock.advance(SETTLE);
    eventually("it begins", async || world.sequences("acct").await == [5]).await;
    for _ in 0..2 {
        let reply = world.send(&numbered("acct", 4)).await;
        reply.is(202, "parked");
        assert_eq!(reply.json()["status"], "set_aside");
    }
    assert_eq!(world.sequences("acct").await, [5]);
}

/// §5.2. Adoption is for streams that are new.
async fn a_stream_that_has_a_cursor_goes_on_as_it_is<D: TestDb>(db: D) {
    let world = World::<D>::start(&db).await;
    world.send(&numbered("acct", 1)).await.is_applied();
    world.stop().await;
    let clock = TestClock::new();
    let world = adopting(&db, &clock).start().await;
    world.send(&numbered("acct", 3)).await.is_parked(2);
    world.send(&numbered("acct", 2)).await.is_applied();
    eventually("3 follows", async || {
        world.sequences("acct").await == [1, 2, 3]
    })
    .await;
}

/// §5.2, §4.7: a crowd of new streams at once.
async fn many_new_streams_of_two_receivers_all_begin_at_their_lowest<D: TestDb>(db: D) {
    const STREAMS: usize = 12;
    let mut random = seeded("many new streams");
    let clock = TestClock::new();
    let worlds = [
        adopting(&db, &clock).start().await,
        adopting(&db, &clock).start().await,
    ];
    let streams: Vec<(String, u64)> = (0..STREAMS)
        .map(|n| (format!("s{n}"), random.u64(0..20)))
        .collect();
    let mut events: Vec<_> = streams
        .iter()
        .flat_map(|(name, lowest)| (*lowest..lowest + 4).map(move |n| numbered(name, n)))
        .collect();
    while !events.is_empty() {
        random.shuffle(&mut events);
        let sent: Vec<_> = events
            .drain(..)
            .map(|event| (worlds[random.usize(..2)].spawn(&event), event))
            .collect();
        for (reply, event) in sent {
            let reply = reply.await.unwrap();
            match reply.status {
                202 => drop(reply.is_parked(0)),
                // Load, or contention that this machine is too slow for: the producer comes again.
                429 | 503 => events.push(event),
                _ => panic!("{reply:?}"),
            }
        }
    }
    clock.advance(SETTLE);
    eventually("all are applied", async || {
        worlds[0].ledger().await.len() == STREAMS * 4
    })
    .await;
    for (name, lowest) in streams {
        let lowest = i64::try_from(lowest).unwrap();
        let wanted: Vec<_> = (lowest..lowest + 4).collect();
        assert_eq!(worlds[0].sequences(&name).await, wanted);
    }
}

/// §5.2, §5.15: before the source adopted, it had its turn; so its stream begins there, and settles no more.
async fn a_first_event_that_was_refused_before_is_replayed_and_waits_for_nothing<D: TestDb>(db: D) {
    let world = World::<D>::over(&db).answers(|_| 422).start().await;
    world.send(&numbered("acct", 1)).await.is(422, "rejected");
    world.stop().await;
    // Its clock stands still: nothing settles.
    let world = adopting(&db, &TestClock::new()).start().await;
    let ada = world.inbox.operator("ada").expect("a name");
    let replayed = ada.replay(SOURCE, "evt_acct_1", "mended").await;
    assert!(replayed.expect("it is"));
    eventually("it is applied", async || {
        world.sequences("acct").await == [1]
    })
    .await;
    world.send(&numbered("acct", 2)).await.is_applied();
}
