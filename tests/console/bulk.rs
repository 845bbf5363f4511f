//! Many dead letters at once.

use http::StatusCode;

use crate::kit::{World, wait_until};

async fn audited(world: &World) -> i64 {
    world
        .db
        .number("SELECT count(*) FROM tower_inbox_audit")
        .await
}

fn ids(numbers: std::ops::Range<u32>) -> impl Iterator<Item = String> {
    numbers.map(|number| format!("evt_bad_{number}"))
}

#[tokio::test]
async fn a_dry_run_comes_first_and_changes_nothing() {
    let world = World::new().await;
    world.dead(ids(0..3)).await;
    let mut ada = world.ada().await;
    let dry = ada
        .submit("/dead/dry-run", &[("verb", "replay"), ("source", "crm")])
        .await;
    dry.is(StatusCode::OK)
        .says("<b id=\"matched\">3</b>")
        .says(">evt_bad_2<")
        .says_not(" more<")
        .says("Nothing has been changed yet");
    assert_eq!((audited(&world).await, world.applied().await), (0, 0));

    world.mend();
    let fields =
        ["source", "seen_at", "verb", "seen"].map(|name| (name, dry.field(name).expect("a field")));
    let mut confirm: Vec<_> = fields
        .iter()
        .map(|(name, value)| (*name, &**value))
        .collect();
    confirm.push(("reason", "mended, ticket 8"));
    let done = ada.submit("/dead/bulk", &confirm).await;
    done.is(StatusCode::SEE_OTHER);
    ada.follow(&done).await.says("Replayed 3 dead letters.");
    world.wait_for_applied(3).await;
    assert_eq!(audited(&world).await, 3);
}

#[tokio::test]
async fn what_came_after_the_dry_run_is_not_touched() {
    let world = World::new().await;
    world.dead(ids(0..2)).await;
    let mut ada = world.ada().await;
    let dry = ada.submit("/dead/dry-run", &[("verb", "discard")]).await;
    let seen_at = dry.field("seen_at").expect("a time");
    world.dead(ids(2..5)).await;
    let confirm = [
        ("verb", "discard"),
        ("seen", "2"),
        ("seen_at", &seen_at),
        ("reason", "a test"),
    ];
    let done = ada.submit("/dead/bulk", &confirm).await;
    ada.follow(&done)
        .await
        .says("Discarded 2 dead letters.")
        .says("evt_bad_4")
        .says_not(">evt_bad_1<");
}

#[tokio::test]
async fn another_number_than_was_seen_changes_nothing() {
    let world = World::new().await;
    world.dead(ids(0..2)).await;
    let mut ada = world.ada().await;
    let confirm = [("verb", "discard"), ("seen", "3"), ("reason", "a test")];
    let refused = ada.submit("/dead/bulk", &confirm).await;
    refused
        .is(StatusCode::CONFLICT)
        .says("2 match now, and 3 were seen");
    assert_eq!(audited(&world).await, 0);
}

#[tokio::test]
async fn what_nobody_meant_is_refused() {
    let world = World::new().await;
    let mut ada = world.ada().await;
    ada.submit("/dead/dry-run", &[("verb", "delete")])
        .await
        .is(StatusCode::BAD_REQUEST);
    ada.submit("/dead/dry-run", &[])
        .await
        .is(StatusCode::BAD_REQUEST);
    let no_reason = [("verb", "discard"), ("seen", "0")];
    ada.submit("/dead/bulk", &no_reason)
        .await
        .is(StatusCode::BAD_REQUEST);
    let no_number = [("verb", "discard"), ("seen", "all"), ("reason", "a test")];
    ada.submit("/dead/bulk", &no_number)
        .await
        .is(StatusCode::BAD_REQUEST);
}

#[tokio::test]
async fn a_long_one_goes_on_by_itself_and_nothing_is_begun_beside_it() {
    let world = World::new().await;
    // More than are done in the three seconds for which an answer waits.
    world.dead(ids(0..400)).await;
    world.mend();
    let mut ada = world.ada().await;
    let dry = ada.submit("/dead/dry-run", &[("verb", "replay")]).await;
    dry.says("and 380 more");
    assert_eq!(dry.body.matches("<th scope=\"row\"").count(), 20);
    let confirm = [("verb", "replay"), ("seen", "400"), ("reason", "mended")];
    let begun = ada.submit("/dead/bulk", &confirm).await;
    begun.is(StatusCode::SEE_OTHER);
    let page = ada.follow(&begun).await;
    page.says("Under way: replay 400 dead letters.")
        .says("Still under way");
    let left = ada
        .submit("/dead/dry-run", &[("verb", "replay")])
        .await
        .field("seen");
    let beside = [
        ("verb", "replay"),
        ("seen", &*left.expect("a number")),
        ("reason", "again"),
    ];
    ada.submit("/dead/bulk", &beside)
        .await
        .is(StatusCode::CONFLICT);
    wait_until("it has ended", async || {
        let page = world.ada().await.get("/dead").await;
        page.body.contains("Replayed 400 dead letters.")
    })
    .await;
    world.wait_for_applied(400).await;
}
