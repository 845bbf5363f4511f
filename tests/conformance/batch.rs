//! Batches: what is due of one stream, in one transaction (`Source::batch`). What is promised is what is promised without.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tower_inbox::{BuildErrorKind, FailPoints, Inbox, Source};

use crate::db::TestDb;
use crate::kit::{Call, Event, Gate, Setup, World, eventually, numbered};

suite![
    what_is_due_of_a_stream_is_applied_in_order_by_one_commit_for_so_many,
    without_it_each_event_has_a_transaction_of_its_own,
    a_batch_ends_before_what_has_to_be_looked_at_alone,
    no_member_begins_when_the_time_of_a_batch_is_over,
    each_member_has_its_own_stored_answer,
    what_a_deferred_source_has_stored_is_batched_too,
    a_size_that_is_no_batch_is_refused,
];

/// What happens at a fail point.
pub(crate) enum Act {
    Nothing,
    Wait(Gate),
    Fail,
}

/// How often each fail point was passed.
#[derive(Clone, Default)]
pub(crate) struct Passed(Arc<Mutex<BTreeMap<&'static str, usize>>>);

impl Passed {
    pub(crate) fn of(&self, point: &str) -> usize {
        let counts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        counts.get(point).copied().unwrap_or(0)
    }

    fn count(&self, point: &'static str) -> usize {
        let mut counts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let times = counts.entry(point).or_default();
        *times += 1;
        *times
    }
}

/// A world with batches of this size, whose time is never over. `act` is asked at each fail point, with how often it was
/// passed, this time included.
pub(crate) fn batched<D: TestDb>(
    db: &D,
    size: usize,
    act: impl Fn(&'static str, usize) -> Act + Send + Sync + 'static,
) -> (Setup<D>, Passed) {
    let passed = Passed::default();
    let counted = passed.clone();
    let points = FailPoints::new(move |name| {
        let act = act(name, counted.count(name));
        async move {
            match act {
                Act::Nothing => Ok(()),
                Act::Fail => Err(sqlx::Error::WorkerCrashed),
                Act::Wait(gate) => {
                    gate.pass().await;
                    Ok(())
                }
            }
        }
    });
    let setup = World::<D>::over(db)
        .source(move |source| {
            source
                .batch(size)
                .batch_time(Duration::from_secs(60))
                .backoff([Duration::from_millis(20)])
        })
        // Whose commits are none of these.
        .inbox(|inbox| inbox.fail_points(points).no_statistics());
    (setup, passed)
}

pub(crate) fn nothing(_: &'static str, _: usize) -> Act {
    Act::Nothing
}

/// Parks what is behind the first one, and then applies that.
pub(crate) async fn make_due<D: TestDb>(world: &World<D>, account: &str, last: u64) {
    park(world, account, last).await;
    let reply = world.send(&numbered(account, 1)).await;
    assert_eq!(reply.outcome(), "applied", "{reply:?}");
}

pub(crate) async fn park<D: TestDb>(world: &World<D>, account: &str, last: u64) {
    for sequence in (2..=last).rev() {
        world.send(&numbered(account, sequence)).await.is_parked(1);
    }
}

/// Until all of it is applied, each once and in its order, and nothing else is left of it.
pub(crate) async fn drained<D: TestDb>(world: &World<D>, account: &str, last: i64) {
    let all: Vec<_> = (1..=last).collect();
    eventually("all of it is applied", async || {
        world.sequences(account).await.len() >= all.len()
    })
    .await;
    assert_eq!(world.sequences(account).await, all);
    let kept = format!("SELECT COUNT(*) FROM {{p}}pending WHERE correlation_id = '{account}'");
    eventually("nothing is pending", async || {
        world.number(&kept).await == 0
    })
    .await;
    let cursor =
        format!("SELECT next_sequence FROM {{p}}cursor WHERE correlation_id = '{account}'");
    assert_eq!(world.number(&cursor).await, last + 1);
}

pub(crate) const LEASES: &str = "SELECT COUNT(*) FROM {p}pending WHERE lease_token <> 0";

/// §5.1, §5.5, §5.7
async fn what_is_due_of_a_stream_is_applied_in_order_by_one_commit_for_so_many<D: TestDb>(db: D) {
    let (setup, passed) = batched(&db, 8, nothing);
    let world = setup.start().await;
    park(&world, "acct", 20).await;
    let before = passed.of("store.commit");
    world.send(&numbered("acct", 1)).await.is_applied();
    drained(&world, "acct", 20).await;
    // One of the delivery, and three of 8, 8 and 3.
    assert_eq!(passed.of("store.commit") - before, 4);
    assert_eq!(
        (passed.of("store.claim_batch"), passed.of("store.claim")),
        (3, 0)
    );
    assert_eq!(world.in_state(1).await, 20);
    for sequence in 1..=20 {
        assert_eq!(world.probe.runs(numbered("acct", sequence).id()), 1);
        world.send(&numbered("acct", sequence)).await.is_duplicate();
    }
    // One alone is no batch.
    world.send(&numbered("acct", 22)).await.is_parked(21);
    world.send(&numbered("acct", 21)).await.is_applied();
    drained(&world, "acct", 22).await;
    assert_eq!(
        (passed.of("store.claim_batch"), passed.of("store.claim")),
        (3, 1)
    );
    world.pool_is_whole().await;
}

/// §5.7: off by default.
async fn without_it_each_event_has_a_transaction_of_its_own<D: TestDb>(db: D) {
    let (setup, passed) = batched(&db, 1, nothing);
    let world = setup.start().await;
    make_due(&world, "acct", 5).await;
    drained(&world, "acct", 5).await;
    assert_eq!(passed.of("store.claim"), 4);
    assert!(passed.of("store.due_head") >= 4);
    for point in [
        "due_batch",
        "claim_batch",
        "lock_batch",
        "mark_member",
        "hand_back_batch",
    ] {
        assert_eq!(passed.of(&format!("store.{point}")), 0, "{point}");
    }
}

/// §5.1, §5.4, §5.5: a gap, a skipped range, what was tried before, what is not to be tried yet, what was dead for a gap.
async fn a_batch_ends_before_what_has_to_be_looked_at_alone<D: TestDb>(db: D) {
    let stops = [
        (
            "tried",
            "UPDATE {p}pending SET attempts = 1 WHERE sequence = 4",
            2,
            1,
        ),
        (
            "crashed",
            "UPDATE {p}pending SET unfinished = 1, attempts = 1 WHERE sequence = 4",
            2,
            1,
        ),
        (
            "revived",
            "UPDATE {p}pending SET reason = 1 WHERE sequence = 4",
            2,
            1,
        ),
    ];
    for (account, change, batches, alone) in stops {
        let (setup, passed) = batched(&db, 8, nothing);
        let world = setup.start().await;
        park(&world, account, 6).await;
        let change = format!("{change} AND correlation_id = '{account}'");
        assert_eq!(world.execute(&change).await, 1);
        if account == "revived" {
            let dead =
                "UPDATE {p}event SET state = 3 WHERE sequence = 4 AND correlation_id = 'revived'";
            assert_eq!(world.execute(dead).await, 1);
        }
        world.send(&numbered(account, 1)).await.is_applied();
        drained(&world, account, 6).await;
        let claims = (passed.of("store.claim_batch"), passed.of("store.claim"));
        assert_eq!(claims, (batches, alone), "{account}");
        world.stop().await;
    }
    // 4 is skipped, and never comes; 8 is missing.
    let (setup, passed) = batched(&db, 8, nothing);
    let world = setup.start().await;
    for sequence in [9, 7, 6, 5, 3, 2] {
        world.send(&numbered("gaps", sequence)).await.is_parked(1);
    }
    let ada = world.inbox.operator("ada").expect("a name");
    let seen = ada.cursor("crm", "gaps").await.unwrap().map(|at| at.seen());
    let seen = seen.unwrap_or_else(|| panic!("the stream is known"));
    ada.skip("crm", "gaps", 4, seen, "a test").await.unwrap();
    world.send(&numbered("gaps", 1)).await.is_applied();
    eventually("as far as it may", async || {
        world.sequences("gaps").await == [1, 2, 3, 5, 6, 7]
    })
    .await;
    world.send(&numbered("gaps", 8)).await.is_applied();
    eventually("all of it", async || {
        world.sequences("gaps").await == [1, 2, 3, 5, 6, 7, 8, 9]
    })
    .await;
    // 2 and 3 alone, since the cursor jumps behind 3; 5 to 7; 9.
    assert_eq!(
        (passed.of("store.claim_batch"), passed.of("store.claim")),
        (1, 3)
    );
}

/// §5.1: the others wait for the next one, with nothing left behind.
async fn no_member_begins_when_the_time_of_a_batch_is_over<D: TestDb>(db: D) {
    let (setup, passed) = batched(&db, 8, nothing);
    let world = setup
        .source(|source| source.batch_time(Duration::ZERO))
        .start()
        .await;
    park(&world, "acct", 6).await;
    let before = passed.of("store.commit");
    world.send(&numbered("acct", 1)).await.is_applied();
    drained(&world, "acct", 6).await;
    // The delivery's, and one for each; the last one is alone.
    assert_eq!(passed.of("store.commit") - before, 6);
    assert_eq!(passed.of("store.hand_back_batch"), 4);
    for sequence in 1..=6 {
        assert_eq!(world.probe.runs(numbered("acct", sequence).id()), 1);
    }
}

/// §5.1
async fn each_member_has_its_own_stored_answer<D: TestDb>(db: D) {
    let (setup, passed) = batched(&db, 8, nothing);
    let world = setup
        .source(|source| source.store_answers(true))
        .handler(|mut call: Call<D>| async move {
            call.append().await;
            format!("the answer to {}", call.delivery.event_id())
        })
        .start()
        .await;
    park(&world, "acct", 5).await;
    world.send(&numbered("acct", 1)).await.is(200, "applied");
    drained(&world, "acct", 5).await;
    assert_eq!(passed.of("store.claim_batch"), 1);
    let forgetful = World::<D>::over(&db)
        .source(|source| source.store_answers(true))
        .inbox(|inbox| inbox.remembered(0))
        .start()
        .await;
    for sequence in 1..=5 {
        for through in [&world, &forgetful] {
            let reply = through.send(&numbered("acct", sequence)).await;
            reply.is(200, "duplicate");
            assert_eq!(reply.body, format!("the answer to evt_acct_{sequence}"));
        }
    }
}

/// §5.13
async fn what_a_deferred_source_has_stored_is_batched_too<D: TestDb>(db: D) {
    let (setup, passed) = batched(&db, 8, nothing);
    let world = setup.source(Source::deferred).start().await;
    for sequence in (1..=9).rev() {
        world
            .send(&numbered("acct", sequence))
            .await
            .is(202, "accepted");
    }
    world.send(&Event::new("free")).await.is(202, "accepted");
    drained(&world, "acct", 9).await;
    eventually("what has no place too", async || {
        world.applied().await.len() == 10
    })
    .await;
    assert!(passed.of("store.claim_batch") >= 1);
}

/// (setup)
async fn a_size_that_is_no_batch_is_refused<D: TestDb>(db: D) {
    let pool = World::<D>::start(&db).await.pool;
    for (size, good) in [(0, false), (1, true), (256, true), (257, false)] {
        let source = Source::kudos("crm").secrets(["whk_any"]).batch(size);
        let built = Inbox::builder(pool.clone())
            .source(source)
            .table_prefix(db.prefix())
            .build()
            .await;
        match built {
            Ok(_) => assert!(good, "{size}"),
            Err(error) => {
                assert!(!good, "{size}: {error}");
                assert_eq!(error.kind(), BuildErrorKind::UnsafeSetting);
            }
        }
    }
}
