//! §5.14, §2.10: what one process parks and another one makes due is applied without a call: at once where processes can
//! tell each other (PostgreSQL), and at the worker's next look elsewhere.

use std::time::Duration;

use crate::db::TestDb;
use crate::kit::{Setup, World, eventually, numbered, within};

suite![
    what_another_receiver_parked_is_applied_at_once_or_at_the_next_look,
    the_connection_that_listens_ends_with_the_inbox,
    a_look_as_rare_as_never_is_refused,
];

/// Of PostgreSQL alone.
fn can_tell<D: TestDb>() -> bool {
    D::NAME == "postgres"
}

fn looking<D: TestDb>(db: &D) -> Setup<D> {
    let pause = if can_tell::<D>() { 120 } else { 1 };
    World::<D>::over(db).inbox(move |inbox| inbox.poll_every(Duration::from_secs(pause)))
}

async fn listening<D: TestDb>(world: &World<D>) -> i64 {
    let listening = "SELECT COUNT(*) FROM pg_stat_activity
        WHERE datname = current_database() AND query LIKE 'LISTEN %'";
    world.number(listening).await
}

/// §5.14
async fn what_another_receiver_parked_is_applied_at_once_or_at_the_next_look<D: TestDb>(db: D) {
    let (one, other) = (looking(&db).start().await, looking(&db).start().await);
    if can_tell::<D>() {
        eventually("both listen", async || listening(&one).await == 2).await;
    }
    for round in 0..6 {
        let account = format!("acct-{round}");
        one.send(&numbered(&account, 2)).await.is_parked(1);
        // Knows of nothing that waits, as far as it has counted.
        other.send(&numbered(&account, 1)).await.is_applied();
        let applied = eventually("2 follows", async || {
            one.sequences(&account).await == [1, 2]
        });
        within(Duration::from_secs(5), applied).await;
    }
}

/// (shutdown). A server has connections to count, and databases that somebody wants to drop.
async fn the_connection_that_listens_ends_with_the_inbox<D: TestDb>(db: D) {
    if !can_tell::<D>() {
        return;
    }
    let (stopped, dropped) = (looking(&db).start().await, looking(&db).start().await);
    let eyes = stopped.clone();
    eventually("both listen", async || listening(&eyes).await == 2).await;
    eyes.inbox.shutdown().await;
    eventually("one is gone", async || listening(&eyes).await == 1).await;
    drop(dropped);
    eventually("both are gone", async || listening(&eyes).await == 0).await;
    drop(stopped);
}

/// §5.14: "within 5 minutes at worst".
async fn a_look_as_rare_as_never_is_refused<D: TestDb>(db: D) {
    let world = World::<D>::start(&db).await;
    for pause in [Duration::ZERO, Duration::from_secs(121)] {
        let refused = tower_inbox::Inbox::builder(world.pool.clone())
            .source(tower_inbox::Source::kudos("crm").secrets(["whk_any"]))
            .poll_every(pause)
            .build()
            .await;
        let refused = refused.expect_err("it is refused").to_string();
        assert!(refused.contains("poll_every"), "{refused}");
    }
}
