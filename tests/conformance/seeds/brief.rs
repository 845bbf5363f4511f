//! The coordination brief, section by section: `docs/brief.md`.

use std::collections::HashSet;
use std::time::Duration;

use axum::response::IntoResponse;
use tower_inbox::preset::Reaction;
use tower_inbox::{BuildErrorKind, Inbox};

use super::producer::{Producer, Way, pauses, status_in_amount};
use crate::db::TestDb;
use crate::kit::{Call, SOURCE, Setup, seeded};
use crate::shared::preset::Preset;
use crate::shared::schedule::Ending;

suite![
    an_event_has_one_key_of_its_own_in_all_six_attempts,
    an_unseen_key_is_processed_and_a_seen_one_gets_the_stored_response,
    each_code_of_the_lists_ends_as_its_list_says,
    what_is_refused_is_kept_for_the_reconciliation,
    timeouts_and_lost_connections_are_tried_again_and_applied_once,
    a_retry_after_on_429_overrides_the_schedule,
    after_the_sixth_attempt_an_event_is_exhausted_and_can_still_be_sent_again,
    a_replay_after_72_hours_is_known_by_the_shortest_retention,
    a_retention_of_72_hours_is_too_short,
    two_senders_that_know_nothing_of_each_other_cause_one_application,
];

const HOUR: Duration = Duration::from_secs(3_600);

fn through(_: &crate::shared::plan::Event, _: u32, _: Duration) -> Way {
    Way::Through
}

/// A handler whose response names its run, so that a second run would show.
fn answering<D: TestDb>(setup: Setup<D>) -> Setup<D> {
    setup.handler(|mut call: Call<D>| async move {
        call.append().await;
        let text = format!("run {} of {}", call.run, call.delivery.event_id());
        (http::StatusCode::CREATED, text).into_response()
    })
}

/// brief 1: "a unique idempotency key (UUIDv4) per event before the first delivery attempt … reused unchanged".
async fn an_event_has_one_key_of_its_own_in_all_six_attempts<D: TestDb>(db: D) {
    let mut producer = Producer::new(Preset::Brief);
    let world = answering(producer.receiver(&db)).start().await;
    let events = producer.events(20, 3, false);
    // Only the last attempt gets there.
    let last_only = |_: &_, number, _| if number < 6 { Way::Down } else { Way::Through };
    let stories = producer.run(&world, &events, last_only).await;
    let mut keys = HashSet::new();
    for (event, story) in events.iter().zip(&stories) {
        story.ends(Ending::Delivered, 6);
        let sent = story.header("idempotency-key");
        assert_eq!(sent, [event.id.as_str(); 6]);
        let bytes = sent[0].as_bytes();
        assert_eq!((bytes.len(), bytes[14]), (36, b'4'), "{}", sent[0]);
        assert!(b"89ab".contains(&bytes[19]), "{}", sent[0]);
        assert!(keys.insert(sent[0].to_owned()), "twice: {}", sent[0]);
        // Each attempt is signed anew, so that nothing of the signature can be the key.
        let signatures: HashSet<_> = story.header("x-signature").into_iter().collect();
        assert_eq!(signatures.len(), 6);
    }
    let mut applied = world.applied().await;
    applied.sort_unstable();
    let mut ids: Vec<_> = keys.into_iter().collect();
    ids.sort_unstable();
    assert_eq!(applied, ids);
}

/// brief 2: by the process that ran it, and by another one.
async fn an_unseen_key_is_processed_and_a_seen_one_gets_the_stored_response<D: TestDb>(db: D) {
    let mut producer = Producer::new(Preset::Brief);
    let world = answering(producer.receiver(&db)).start().await;
    let event = producer.event();
    // The sender sees none of its five answers.
    let lost = |_: &_, number, _| {
        if number < 6 {
            Way::AnswerLost
        } else {
            Way::Through
        }
    };
    let story = producer.deliver(&world, &event, lost).await;
    story.ends(Ending::Delivered, 6);
    assert_eq!(story.statuses(), [201; 6]);
    let other = answering(producer.receiver(&db)).start().await;
    let elsewhere = producer.send(&other, &event).await;
    elsewhere.is(201, "duplicate");
    for (number, sent) in story.sent.iter().enumerate() {
        let reply = sent.reply.as_ref().expect("it arrived");
        let outcome = if number == 0 { "applied" } else { "duplicate" };
        reply.is(201, outcome);
        assert_eq!(reply.body, format!("run 1 of {}", event.id));
        assert_eq!(reply.body, elsewhere.body);
    }
    assert_eq!(world.applied().await, [event.id]);
}

/// brief 3, as the handler's own answers. One that is in no list goes out as a 503, which is in one.
async fn each_code_of_the_lists_ends_as_its_list_says<D: TestDb>(db: D) {
    let mut producer = Producer::new(Preset::Brief);
    let world = status_in_amount(producer.receiver(&db)).start().await;
    let mut sum = 0;
    let mut ends = async |status: u16, verdict, attempts, first: u16| {
        let mut event = producer.event();
        event.amount = status.into();
        let story = producer.deliver(&world, &event, through).await;
        story.ends(verdict, attempts);
        assert_eq!(story.statuses()[0], first);
        sum += usize::from(verdict == Ending::Delivered);
        assert_eq!(world.ledger().await.len(), sum, "{status}");
    };
    for status in [200, 201, 204, 226, 299] {
        ends(status, Ending::Delivered, 1, status).await;
    }
    for status in [408, 425, 429, 500, 502, 503, 504] {
        ends(status, Ending::Delivered, 2, status).await;
    }
    for status in [301, 302, 307, 308, 400, 401, 403, 404, 409, 422] {
        ends(status, Ending::Refused, 1, status).await;
    }
    // A handler's 410 is a verdict on this event; only a deregistered source answers 410.
    ends(410, Ending::Refused, 1, 422).await;
    for status in [501, 505, 507, 599] {
        ends(status, Ending::Delivered, 2, 503).await;
    }
}

/// brief 3: every code, as preset and schedule have it; and what is in no list is terminal for the sender.
#[test]
fn the_lists_of_codes_are_the_briefs_and_nothing_is_in_two() {
    let answers = tower_inbox::Preset::BRIEF.answers;
    for status in 200..=599 {
        let listed = match status {
            200..=299 => Some(Reaction::Delivered),
            408 | 425 | 429 | 500 | 502 | 503 | 504 => Some(Reaction::Retries),
            300..=399 | 400 | 401 | 403 | 404 | 409 | 410 | 422 => Some(Reaction::Stops),
            _ => None,
        };
        assert_eq!(answers.reaction(status), listed, "{status}");
        let sender = super::reactions::of_schedule("brief", status, None, "");
        assert_eq!(sender, listed.unwrap_or(Reaction::Stops), "{status}");
    }
}

/// brief 3: "terminal (no retry; routed to reconciliation)": the receiver keeps the request as well.
async fn what_is_refused_is_kept_for_the_reconciliation<D: TestDb>(db: D) {
    let mut producer = Producer::new(Preset::Brief);
    let world = status_in_amount(producer.receiver(&db)).start().await;
    let mut event = producer.event();
    event.amount = 403;
    let story = producer.deliver(&world, &event, through).await;
    story.ends(Ending::Refused, 1).last().is(403, "rejected");
    assert!(world.ledger().await.is_empty());
    let kept = "SELECT event_id FROM {p}pending WHERE reason = 3 AND last_status = 403";
    assert_eq!(world.texts(kept).await, [event.id.as_str()]);
    // Sent again on purpose, it is a new attempt.
    producer.send(&world, &event).await.is_applied();
    producer.send(&world, &event).await.is(204, "duplicate");
    assert_eq!(world.applied().await, [event.id]);
}

/// brief 3, 4: "network timeouts/connection failures".
async fn timeouts_and_lost_connections_are_tried_again_and_applied_once<D: TestDb>(db: D) {
    let mut producer = Producer::new(Preset::Brief);
    let world = answering(producer.receiver(&db)).start().await;
    let events = producer.events(40, 4, false);
    let mut rng = producer.rng.fork();
    let ways = [Way::Through, Way::Down, Way::AnswerLost];
    let any = |_: &_, number, _| match number {
        6 => Way::Through,
        _ => ways[rng.usize(..3)],
    };
    let stories = producer.run(&world, &events, any).await;
    for story in &stories {
        assert_eq!(story.verdict, Some(Ending::Delivered), "{story:?}");
        for (sent, step) in story.sent[1..].iter().zip(&[30, 90, 210, 450, 930]) {
            let (low, high) = (step * 8 / 10, step * 12 / 10);
            let range = Duration::from_secs(low)..=Duration::from_secs(high);
            assert!(range.contains(&sent.at), "{:?} for {step}", sent.at);
        }
    }
    let applied = world.applied().await;
    let once: HashSet<_> = applied.iter().collect();
    assert_eq!((applied.len(), once.len()), (40, 40));
}

/// brief 4: "30s initial, doubling per attempt …, capped at 480s, maximum 5 retries …, jitter ±20%".
#[test]
fn five_pauses_begin_at_30_s_and_double_to_480_s_within_20_percent() {
    let mut rng = seeded("the pauses of brief");
    let mut spread = [(f64::MAX, f64::MIN); 5];
    for _ in 0..2_000 {
        let pauses = pauses("brief", &mut rng);
        assert_eq!(pauses.len(), 5);
        for ((pause, step), (low, high)) in pauses
            .iter()
            .zip([30.0, 60.0, 120.0, 240.0, 480.0])
            .zip(&mut spread)
        {
            let share = pause.as_secs_f64() / step;
            (*low, *high) = (low.min(share), high.max(share));
        }
        // What the receiver's retention counts with.
        assert!(pauses.iter().sum::<Duration>() <= tower_inbox::Preset::BRIEF.retry_span);
    }
    for (low, high) in spread {
        assert!((0.8..0.82).contains(&low), "{low}");
        assert!(high > 1.18 && high <= 1.2, "{high}");
    }
}

/// brief, assumptions: "429 with Retry-After overrides the backoff schedule".
async fn a_retry_after_on_429_overrides_the_schedule<D: TestDb>(db: D) {
    let mut producer = Producer::new(Preset::Brief);
    let wait = |call: &Call<D>| (call.run <= 2).then(|| call.entry().amount);
    let world = producer.receiver(&db).handler(move |call: Call<D>| {
        let wait = wait(&call);
        async move {
            match wait {
                Some(wait) => (
                    http::StatusCode::TOO_MANY_REQUESTS,
                    [("retry-after", wait.to_string())],
                )
                    .into_response(),
                None => http::StatusCode::OK.into_response(),
            }
        }
    });
    let world = world.start().await;
    for wait in [3, 900] {
        let mut event = producer.event();
        event.amount = wait;
        let story = producer.deliver(&world, &event, through).await;
        story.ends(Ending::Delivered, 3);
        let wait = u64::try_from(wait).expect("positive");
        let at: Vec<_> = story.sent.iter().map(|sent| sent.at.as_secs()).collect();
        assert_eq!(at, [0, wait, 2 * wait]);
    }
}

/// brief 5, 6: exhausted at the sender, and unknown to the receiver, which is what the reconciliation is for.
async fn after_the_sixth_attempt_an_event_is_exhausted_and_can_still_be_sent_again<D: TestDb>(
    db: D,
) {
    let mut producer = Producer::new(Preset::Brief);
    let world = answering(producer.receiver(&db)).start().await;
    let events = producer.events(5, 2, false);
    let stories = producer.run(&world, &events, |_, _, _| Way::Down).await;
    for story in &stories {
        story.ends(Ending::Exhausted, 6);
        assert!(story.sent[5].at <= tower_inbox::Preset::BRIEF.retry_span);
    }
    assert!(world.ledger().await.is_empty());
    producer.clock.advance(70 * HOUR);
    for (event, outcome) in events
        .iter()
        .zip(["applied"; 5])
        .chain(events.iter().zip(["duplicate"; 5]))
    {
        producer.send(&world, event).await.is(201, outcome);
    }
    let ids: Vec<_> = events.into_iter().map(|event| event.id).collect();
    assert_eq!(world.applied().await, ids);
}

/// brief 6: "retains keys for 72 hours (matching Sender's replay window) so replays are safely idempotent". The window
/// begins when the retries have ended, so that the shortest retention is 73 hours.
async fn a_replay_after_72_hours_is_known_by_the_shortest_retention<D: TestDb>(db: D) {
    let mut producer = Producer::new(Preset::Brief);
    let receiver = |producer: &Producer| {
        answering(producer.receiver(&db)).source(|source| source.retention(73 * HOUR))
    };
    let world = receiver(&producer).start().await;
    let event = producer.event();
    let story = producer.deliver(&world, &event, |_, _, _| Way::AnswerLost);
    story.await.ends(Ending::Exhausted, 6);
    producer.clock.advance(72 * HOUR);
    world.inbox.purge(SOURCE).await.expect("it is purged");
    // In a process that remembers nothing of its own.
    let other = receiver(&producer).start().await;
    let replay = producer.send(&other, &event).await;
    replay.is(201, "duplicate");
    assert_eq!(replay.body, format!("run 1 of {}", event.id));
    assert_eq!(world.applied().await, [event.id]);
    // And then it is forgotten, by whichever of the two looks first.
    producer.clock.advance(HOUR);
    crate::kit::eventually("the row is gone", async || {
        let _ = other.inbox.purge(SOURCE).await;
        world.in_state(1).await == 0
    })
    .await;
}

/// brief 6 and its assumption "72h key retention on both sides; if Receiver needs longer, it must say so": it says so.
async fn a_retention_of_72_hours_is_too_short<D: TestDb>(db: D) {
    let producer = Producer::new(Preset::Brief);
    for (hours, fits) in [(72, false), (73, true)] {
        let pool = db.pool(sqlx::pool::PoolOptions::new()).await;
        let source = producer.source().retention(hours * HOUR);
        let builder = Inbox::builder(pool).source(source);
        let built = builder.table_prefix(db.prefix()).build().await;
        let kind = built.err().map(|error| error.kind());
        assert_eq!(kind, (!fits).then_some(BuildErrorKind::UnsafeSetting));
    }
}

/// brief, assumptions: "Receiver, not Sender, owns deduplication".
async fn two_senders_that_know_nothing_of_each_other_cause_one_application<D: TestDb>(db: D) {
    let mut producer = Producer::new(Preset::Brief);
    let world = answering(producer.receiver(&db)).start().await;
    let other = answering(producer.receiver(&db)).start().await;
    for event in producer.events(10, 1, false) {
        let (one, two, three) = tokio::join!(
            producer.send(&world, &event),
            producer.send(&other, &event),
            producer.send(&world, &event),
        );
        let mut outcomes = [&one, &two, &three].map(|reply| {
            assert_eq!(reply.body, format!("run 1 of {}", event.id));
            reply.outcome().to_owned()
        });
        outcomes.sort_unstable();
        assert_eq!(outcomes, ["applied", "duplicate", "duplicate"]);
    }
    assert_eq!(world.ledger().await.len(), 10);
}
