//! §5.5, §5.10: what the handler itself said about what it refused or failed, kept where a source wants it.

use std::time::Duration;

use axum::response::IntoResponse as _;
use http::StatusCode;
use tower_inbox::operator::{Erasure, Operator, State};

use crate::db::TestDb;
use crate::elements;
use crate::kit::{Call, Event, SOURCE, Setup, World, eventually, numbered};

suite![
    words_about_one_event_of_a_request_go_when_that_is_erased,
    words_of_a_redelivery_after_an_erasure_can_be_erased_too,
    unless_a_source_wants_them_no_words_of_an_answer_are_kept,
    the_words_of_a_refusal_are_kept_beside_its_dead_letter_and_go_out_whole,
    the_words_of_each_failed_attempt_are_kept_beside_what_waits,
    words_go_with_the_request_that_they_are_about,
    of_a_request_with_several_events_the_one_that_was_refused_has_the_words,
];

const HOUR: Duration = Duration::from_secs(3_600);
/// With a line's end and a NUL, which PostgreSQL takes in no text.
const WHY: &str = "no account \u{201c}7\u{201d}\n\0, and more than is kept";

fn ada<D: TestDb>(world: &World<D>) -> Operator<D::DB> {
    world.inbox.operator("ada").expect("a name")
}

/// Refuses, fails, or says the run, by the event's id.
fn talking<D: TestDb>(db: &D) -> Setup<D> {
    World::<D>::over(db).handler(|mut call: Call<D>| async move {
        call.append().await;
        let id = call.delivery.event_id();
        let run = call.run;
        if id.contains("refused") {
            (StatusCode::UNPROCESSABLE_ENTITY, WHY).into_response()
        } else if id.contains("failing") {
            let words = format!("run {run} found nobody there");
            (StatusCode::BAD_GATEWAY, words).into_response()
        } else if id.contains("bytes") {
            (StatusCode::UNPROCESSABLE_ENTITY, vec![0xff, 0, 0xfe]).into_response()
        } else if id.contains("silent") {
            StatusCode::UNPROCESSABLE_ENTITY.into_response()
        } else {
            StatusCode::NO_CONTENT.into_response()
        }
    })
}

/// State, attempts and words.
async fn told<D: TestDb>(world: &World<D>, id: &str) -> (State, i64, String) {
    let story = ada(world).inspect(SOURCE, id).await.expect("asked");
    let letter = story.expect("it is known").letter;
    let words = letter.last_error.unwrap_or_default();
    (letter.state, letter.attempts, words)
}

/// §5.5: the status, and that it was the handler's.
async fn unless_a_source_wants_them_no_words_of_an_answer_are_kept<D: TestDb>(db: D) {
    let world = talking(&db)
        .source(|source| source.backoff([HOUR]))
        .start()
        .await;
    world.send(&Event::new("refused")).await.is(422, "rejected");
    world
        .send(&Event::new("failing").of("acct", 2))
        .await
        .is_parked(1);
    world.send(&numbered("acct", 1)).await.is_applied();
    eventually("it has failed", async || {
        !told(&world, "failing").await.2.is_empty()
    })
    .await;
    for id in ["refused", "failing"] {
        let (_, _, words) = told(&world, id).await;
        assert!(!words.is_empty() && !words.contains(": "), "{words}");
    }
}

/// §4.13: the producer gets the handler's answer as it is.
async fn the_words_of_a_refusal_are_kept_beside_its_dead_letter_and_go_out_whole<D: TestDb>(db: D) {
    let world = talking(&db)
        .source(|source| source.keep_failure_answers(30))
        .start()
        .await;
    let reply = world.send(&Event::new("refused")).await;
    reply.is(422, "rejected");
    assert_eq!(reply.body, WHY);
    let (state, attempts, words) = told(&world, "refused").await;
    assert_eq!((state, attempts), (State::Dead, 1));
    let kept = "the handler refused it: no account \u{201c}7\u{201d}\\n\\u{0}, and more\u{2026}";
    assert_eq!(words, kept);
    for (id, kept) in [
        ("bytes", "the handler refused it: 3 bytes that are no text"),
        ("silent", "the handler refused it"),
    ] {
        world.send(&Event::new(id)).await.is(422, "rejected");
        assert_eq!(told(&world, id).await.2, kept);
    }
    // A redelivery is a new attempt, of which the same is kept.
    world.send(&Event::new("refused")).await.is(422, "rejected");
    assert_eq!(
        told(&world, "refused").await,
        (State::Dead, 2, kept.to_owned())
    );
    world.pool_is_whole().await;
}

/// §5.5: drained, with the attempts counted on, and when it is given up.
async fn the_words_of_each_failed_attempt_are_kept_beside_what_waits<D: TestDb>(db: D) {
    let world = talking(&db)
        .one_by_one()
        .source(|source| {
            source
                .keep_failure_answers(4_096)
                .backoff([HOUR])
                .max_attempts(2)
        })
        .start()
        .await;
    world
        .send(&Event::new("failing").of("acct", 2))
        .await
        .is_parked(1);
    world
        .send(&Event::new("refused").of("acct", 3))
        .await
        .is_parked(1);
    world.send(&numbered("acct", 1)).await.is_applied();
    let said = |run: u32| format!("the handler failed it: run {run} found nobody there");
    // Counted when it begins, told when it has failed.
    eventually("it has failed once", async || {
        told(&world, "failing").await == (State::Parked, 1, said(1))
    })
    .await;
    ada(&world)
        .try_now(SOURCE, "failing", "mended")
        .await
        .unwrap();
    eventually("it is given up", async || world.in_state(3).await == 1).await;
    assert_eq!(told(&world, "failing").await, (State::Dead, 2, said(2)));
    // A worker's attempt that is refused says why, too.
    ada(&world)
        .discard(SOURCE, "failing", "theirs")
        .await
        .unwrap();
    eventually("the next one is refused", async || {
        world.in_state(3).await == 1
    })
    .await;
    let (state, _, words) = told(&world, "refused").await;
    assert_eq!(state, State::Dead);
    assert!(words.ends_with("\\u{0}, and more than is kept"), "{words}");
}

/// §7.3
async fn words_go_with_the_request_that_they_are_about<D: TestDb>(db: D) {
    let world = talking(&db)
        .source(|source| source.keep_failure_answers(100))
        .start()
        .await;
    world.send(&Event::new("refused")).await.is(422, "rejected");
    assert!(told(&world, "refused").await.2.contains("no account"));
    let erased = ada(&world)
        .erase(SOURCE, Erasure::Event("refused"), "their wish")
        .await;
    assert_eq!(erased.expect("it is dead").letters, 1);
    assert_eq!(
        told(&world, "refused").await,
        (State::Dead, 1, String::new())
    );
}

/// §4.13, (elements)
async fn of_a_request_with_several_events_the_one_that_was_refused_has_the_words<D: TestDb>(db: D) {
    let world = talking(&db)
        .source(|_| elements::split().keep_failure_answers(10))
        .start()
        .await;
    world
        .post(elements::batch(&["good", "refused"]))
        .await
        .is(422, "rejected");
    for (id, wanted) in [
        ("good", "the handler refused another event of its request"),
        ("refused", "the handler refused it: no account\u{2026}"),
    ] {
        let (state, _, words) = told(&world, id).await;
        assert_eq!((state, &*words), (State::Dead, wanted), "{id}");
    }
}

/// §7.3: "It goes with the event's request when that is erased".
async fn words_of_a_redelivery_after_an_erasure_can_be_erased_too<D: TestDb>(db: D) {
    let world = talking(&db)
        .source(|source| source.keep_failure_answers(100))
        .start()
        .await;
    world.send(&Event::new("refused")).await.is(422, "rejected");
    let erase = async || {
        ada(&world)
            .erase(SOURCE, Erasure::Event("refused"), "their wish")
            .await
            .expect("it is dead")
            .letters
    };
    assert_eq!(erase().await, 1);
    // The producer sends it again (§5.11).
    world.send(&Event::new("refused")).await.is(422, "rejected");
    let said = told(&world, "refused").await.2;
    let erased = erase().await;
    let left = told(&world, "refused").await.2;
    assert_eq!(
        left, "",
        "kept by the redelivery: {said:?}; erased then: {erased}"
    );
}

/// §7.3, (elements)
async fn words_about_one_event_of_a_request_go_when_that_is_erased<D: TestDb>(db: D) {
    let world = talking(&db)
        .source(|_| elements::split().keep_failure_answers(100))
        .start()
        .await;
    world
        .post(elements::batch(&["good", "refused"]))
        .await
        .is(422, "rejected");
    let erased = ada(&world)
        .erase(SOURCE, Erasure::Event("refused"), "their wish")
        .await;
    assert_eq!(erased.expect("it is dead").letters, 1);
    let left = told(&world, "good").await.2;
    assert!(!left.contains("no account"), "{left}");
}
