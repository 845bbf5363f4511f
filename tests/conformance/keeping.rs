//! §7.1 to §7.3: what is forgotten, when, and what is never. §3: sources that their owner has deregistered.

use std::time::Duration;

use tower_inbox::Source;
use tower_inbox::verify::Tolerance;

use crate::db::TestDb;
use crate::kit::{Event, SOURCE, TestClock, World, eventually, numbered};

suite![
    a_purge_reports_what_it_removed_and_leaves_cursors,
    nothing_is_forgotten_while_clocks_are_apart,
    of_two_clocks_the_earlier_one_counts,
    a_year_old_sequenced_event_is_a_duplicate_and_an_unsequenced_one_is_new,
    what_is_forgotten_while_its_duplicates_come_is_not_applied_again,
    dead_letters_are_kept_until_an_operator_has_decided,
    dead_letters_with_a_retention_are_forgotten_and_their_events_are_new,
    a_dead_letter_whose_turn_has_come_is_not_forgotten,
    a_letter_that_a_dead_worker_had_claimed_is_forgotten_once_it_is_set_aside,
    a_deregistered_source_answers_410_to_whoever_signs,
];

const DAY: Duration = Duration::from_secs(24 * 3600);

async fn at<D: TestDb>(db: &D, clock: &TestClock) -> World<D> {
    let (read, far) = (clock.clone(), DAY * 4000);
    World::<D>::over(db)
        .inbox(move |inbox| inbox.clock(read))
        .source(|source| source.tolerance(Tolerance::new(far, far)))
        .start()
        .await
}

/// §7.1: and a second purge finds nothing.
async fn a_purge_reports_what_it_removed_and_leaves_cursors<D: TestDb>(db: D) {
    let clock = TestClock::new().of_the_database_too();
    let world = at(&db, &clock).await;
    for n in 1..=5 {
        world.send(&numbered("acct", n)).await.is_applied();
    }
    world.send(&numbered("acct", 7)).await.is_parked(6);
    assert_eq!(world.inbox.purge("crm").await.expect("it is").events, 0);
    clock.advance(DAY * 29);
    world.send(&Event::new("evt_young")).await.is_applied();
    clock.advance(DAY * 2);
    // The worker may have been quicker.
    let removed = world.inbox.purge("crm").await.expect("it is").events;
    assert!(removed == 5 || removed == 0, "{removed}");
    eventually("the old ones are gone", async || {
        world.in_state(1).await == 1
    })
    .await;
    assert_eq!(world.number("SELECT next_sequence FROM {p}cursor").await, 6);
    assert_eq!(world.number("SELECT COUNT(*) FROM {p}pending").await, 1);
    assert_eq!(world.inbox.purge("crm").await.expect("it is").events, 0);
    assert!(world.inbox.purge("nobody").await.is_err());
}

/// §7.1, §9: five minutes, either way.
async fn nothing_is_forgotten_while_clocks_are_apart<D: TestDb>(db: D) {
    let clock = TestClock::new();
    let world = at(&db, &clock).await;
    world.send(&Event::new("evt_1")).await.is_applied();
    clock.advance(DAY * 400);
    let refused = world
        .inbox
        .purge("crm")
        .await
        .expect_err("clocks are apart");
    assert!(refused.to_string().contains("clocks"), "{refused}");
    assert_eq!(world.in_state(1).await, 1);
    world.send(&Event::new("evt_1")).await.is_duplicate();
}

/// §7.1: a process that runs four minutes ahead forgets nothing too early.
async fn of_two_clocks_the_earlier_one_counts<D: TestDb>(db: D) {
    let ahead = TestClock::new();
    ahead.advance(Duration::from_secs(240));
    let world = at(&db, &ahead).await;
    world.send(&Event::new("evt_1")).await.is_applied();
    // By the database's clock it is 30 days old, less a minute; by this process's it is older than that.
    let almost = format!(
        "UPDATE {{p}}event SET decided_at = decided_at - {}",
        (DAY * 30 + Duration::from_secs(180)).as_micros()
    );
    assert_eq!(world.execute(&almost).await, 1);
    assert_eq!(world.inbox.purge("crm").await.expect("it is").events, 0);
    let older = "UPDATE {p}event SET decided_at = decided_at - 120000000";
    assert_eq!(world.execute(older).await, 1);
    eventually("now it is", async || {
        let _ = world.inbox.purge("crm").await;
        world.in_state(1).await == 0
    })
    .await;
}

/// §7.2, issue 6: the cursor stays; an event without a place is forgotten whole, which the README says.
async fn a_year_old_sequenced_event_is_a_duplicate_and_an_unsequenced_one_is_new<D: TestDb>(db: D) {
    let clock = TestClock::new().of_the_database_too();
    let world = at(&db, &clock).await;
    world.send(&numbered("acct", 1)).await.is_applied();
    world.send(&Event::new("evt_1")).await.is_applied();
    clock.advance(DAY * 365);
    eventually("both rows are gone", async || {
        let _ = world.inbox.purge("crm").await;
        world.in_state(1).await == 0
    })
    .await;
    // Another process, which remembers nothing.
    let other = at(&db, &clock).await;
    other.send(&numbered("acct", 1)).await.is_duplicate();
    other.send(&Event::new("evt_1")).await.is_applied();
    assert_eq!(world.sequences("acct").await, [1]);
}

/// §7.1, §7.2, §9: a duplicate finds its row, or finds it gone and has the cursor alone to tell it.
async fn what_is_forgotten_while_its_duplicates_come_is_not_applied_again<D: TestDb>(db: D) {
    const LENGTH: u64 = 60;
    let clock = TestClock::new().of_the_database_too();
    let world = at(&db, &clock).await;
    for n in 1..=LENGTH {
        world.send(&numbered("acct", n)).await.is_applied();
    }
    clock.advance(DAY * 31);
    // Another process, which has to look.
    let other = at(&db, &clock).await;
    let mut duplicates = Vec::new();
    for n in 1..=LENGTH {
        duplicates.push((n, other.spawn(&numbered("acct", n))));
        duplicates.push((n, other.spawn(&numbered("acct", n))));
        // As a purge removes it, if that has not come to it yet.
        let id = numbered("acct", n).id().to_owned();
        world
            .execute(&format!("DELETE FROM {{p}}event WHERE event_id = '{id}'"))
            .await;
    }
    for (n, reply) in duplicates {
        let reply = reply.await.unwrap();
        if reply.status != 503 {
            reply.is_duplicate();
        }
        other.send(&numbered("acct", n)).await.is_duplicate();
    }
    eventually("all are forgotten", async || {
        let _ = world.inbox.purge("crm").await;
        world.in_state(1).await == 0
    })
    .await;
    for n in 1..=LENGTH {
        other.send(&numbered("acct", n)).await.is_duplicate();
        assert_eq!(other.probe.runs(numbered("acct", n).id()), 0);
    }
    assert_eq!(
        world.sequences("acct").await,
        (1..=LENGTH.cast_signed()).collect::<Vec<_>>()
    );
    other.pool_is_whole().await;
}

/// §7.3: whatever they wait for, and however old they are.
async fn dead_letters_are_kept_until_an_operator_has_decided<D: TestDb>(db: D) {
    let clock = TestClock::new().of_the_database_too();
    let world = with_dead_letters(&db, &clock, |source| source).await;
    clock.advance(DAY * 4000);
    for _ in 0..2 {
        world.inbox.purge("crm").await.expect("it is");
    }
    assert_eq!(world.in_state(1).await, 0, "what was applied is forgotten");
    assert_eq!(world.in_state(3).await, 3);
    assert_eq!(world.number("SELECT COUNT(*) FROM {p}pending").await, 3);
    let ada = world.inbox.operator("ada").expect("a name");
    let replayed = ada.replay("crm", "evt_free", "mended").await;
    assert!(replayed.expect("it is"));
    assert!(
        ada.discard("crm", "evt_acct_2", "theirs")
            .await
            .expect("it is")
    );
    eventually(
        "both are closed, and what waited behind one is free",
        async || world.in_state(3).await == 0,
    )
    .await;
    assert_eq!(world.applied().await.len(), 3);
}

/// §7.3: their retention counts from their death, and is none of the applied ones'. What is sent again is new, in its order.
async fn dead_letters_with_a_retention_are_forgotten_and_their_events_are_new<D: TestDb>(db: D) {
    let clock = TestClock::new().of_the_database_too();
    let world = with_dead_letters(&db, &clock, |source| {
        source.retention(DAY * 90).dead_letter_retention(DAY * 40)
    })
    .await;
    clock.advance(DAY * 40 - Duration::from_secs(5));
    assert_eq!(world.inbox.purge("crm").await.expect("it is").letters, 0);
    assert_eq!(world.in_state(3).await, 3);
    clock.advance(Duration::from_secs(10));
    // The worker may have been quicker.
    let letters = world.inbox.purge("crm").await.expect("it is").letters;
    assert!(letters <= 3, "{letters}");
    eventually("they are gone", async || world.in_state(3).await == 0).await;
    assert_eq!(world.number("SELECT COUNT(*) FROM {p}pending").await, 0);
    assert_eq!(world.in_state(1).await, 1, "what was applied is kept");
    assert_eq!(world.inbox.purge("crm").await.expect("it is").letters, 0);
    for n in [3, 2] {
        let reply = world.send(&numbered("acct", n)).await;
        assert!(matches!(reply.status, 202 | 204), "{reply:?}");
    }
    world.send(&Event::new("evt_free")).await.is_applied();
    eventually("all are applied, in order", async || {
        world.sequences("acct").await == [1, 2, 3]
    })
    .await;
    for event in [numbered("acct", 2), Event::new("evt_free")] {
        world.send(&event).await.is_duplicate();
    }
    world.pool_is_whole().await;
}

/// §5.4, §7.3: what was acknowledged, and comes back by itself, is not forgotten before it does.
async fn a_dead_letter_whose_turn_has_come_is_not_forgotten<D: TestDb>(db: D) {
    let clock = TestClock::new().of_the_database_too();
    let world =
        with_dead_letters(&db, &clock, |source| source.dead_letter_retention(DAY * 40)).await;
    let wait = |until: i64| {
        format!("UPDATE {{p}}pending SET not_before = {until} WHERE event_id = 'evt_acct_3'")
    };
    // The worker is to be late.
    world.execute(&wait(i64::MAX)).await;
    let ada = world.inbox.operator("ada").expect("a name");
    let discarded = ada.discard("crm", "evt_acct_2", "theirs").await;
    assert!(discarded.expect("it is"));
    clock.advance(DAY * 41);
    eventually("the other one is gone", async || {
        let _ = world.inbox.purge("crm").await;
        world.in_state(3).await == 1
    })
    .await;
    for _ in 0..2 {
        assert_eq!(world.inbox.purge("crm").await.expect("it is").letters, 0);
    }
    world.execute(&wait(0)).await;
    eventually("it has come back", async || {
        world.applied().await.contains(&"evt_acct_3".to_owned())
    })
    .await;
    assert_eq!(world.number("SELECT COUNT(*) FROM {p}pending").await, 0);
}

/// §7.3, §5.7: whichever way an operator put it out of the way.
async fn a_letter_that_a_dead_worker_had_claimed_is_forgotten_once_it_is_set_aside<D: TestDb>(
    db: D,
) {
    let clock = TestClock::new().of_the_database_too();
    let (read, far) = (clock.clone(), DAY * 5000);
    let world = World::<D>::over(&db)
        .inbox(move |inbox| inbox.clock(read))
        .source(|source| {
            let source = source.tolerance(Tolerance::new(far, far));
            source.dead_letter_retention(DAY * 40)
        })
        .start()
        .await;
    for account in ["skip", "forward", "reset"] {
        world.send(&numbered(account, 1)).await.is_applied();
        world.send(&numbered(account, 3)).await.is_parked(2);
    }
    // As a worker leaves it that was killed in its handler.
    let claimed = format!(
        "UPDATE {{p}}pending SET lease_token = 7, lease_owner = 'gone', lease_until = {0}, not_before = {0}",
        i64::MAX
    );
    assert_eq!(world.execute(&claimed).await, 3);
    let (ada, why) = (world.inbox.operator("ada").expect("a name"), "it kills");
    let seen = async |account| {
        let stream = ada.cursor(SOURCE, account).await.unwrap();
        stream.expect("it has begun").seen()
    };
    let at = seen("skip").await;
    ada.skip(SOURCE, "skip", 3, at, why).await.unwrap();
    let at = seen("forward").await;
    ada.fast_forward(SOURCE, "forward", 4, at, why)
        .await
        .unwrap();
    let at = seen("reset").await;
    ada.reset(SOURCE, "reset", 1, at, why).await.unwrap();
    assert_eq!(world.in_state(3).await, 3);
    clock.advance(DAY * 41);
    eventually("they are forgotten", async || {
        world.inbox.purge(SOURCE).await.expect("it is");
        world.in_state(3).await == 0
    })
    .await;
    assert_eq!(world.number("SELECT COUNT(*) FROM {p}pending").await, 0);
}

/// Three dead letters: one without a place, one in its turn, and one behind it whose gap nobody fills.
async fn with_dead_letters<D: TestDb>(
    db: &D,
    clock: &TestClock,
    change: impl FnOnce(Source) -> Source,
) -> World<D> {
    let (read, far) = (clock.clone(), DAY * 5000);
    let world = World::<D>::over(db)
        .inbox(move |inbox| inbox.clock(read))
        .source(|source| {
            let source = source.recovery_window(Duration::from_millis(200));
            change(source.tolerance(Tolerance::new(far, far)))
        })
        .answers(|call| match (call.delivery.sequence(), call.run) {
            (None | Some(2), 1) => 422,
            _ => 0,
        })
        .start()
        .await;
    let free = world.send(&Event::new("evt_free")).await;
    free.is(422, "rejected");
    world.send(&numbered("acct", 1)).await.is_applied();
    let second = world.send(&numbered("acct", 2)).await;
    second.is(422, "rejected");
    world.send(&numbered("acct", 3)).await.is_parked(2);
    clock.advance(Duration::from_secs(1));
    eventually("all three are dead letters", async || {
        world.in_state(3).await == 3
    })
    .await;
    world
}

/// §3: 410 for nobody else, since producers pause the endpoint on it.
async fn a_deregistered_source_answers_410_to_whoever_signs<D: TestDb>(db: D) {
    let world = World::<D>::start(&db).await;
    world.send(&Event::new("evt_1")).await.is_applied();
    // As another process, or the command line, does it.
    world
        .execute("INSERT INTO {p}source (source, gone, changed_at) VALUES ('crm', 1, 0)")
        .await;
    let mut n = 1;
    eventually("it is known here", async || {
        n += 1;
        let reply = world.send(&Event::new(&format!("evt_{n}"))).await;
        assert!(matches!(reply.status, 204 | 410), "{reply:?}");
        reply.status == 410
    })
    .await;
    let gone = world.send(&Event::new("evt_1")).await;
    gone.is_problem_about(410, "rejected", "deregistered");
    let mut forged = world.request(&Event::new("evt_1"));
    forged.headers_mut().remove("x-kudos-signature");
    assert_eq!(world.post(forged).await.status, 401);
    // It is known at once by a process that starts.
    let other = World::<D>::start(&db).await;
    assert_eq!(other.send(&Event::new("evt_1")).await.status, 410);
    other.execute("UPDATE {p}source SET gone = 0").await;
    eventually("it is armed again", async || {
        world.send(&Event::new("evt_1")).await.status == 200
    })
    .await;
}
