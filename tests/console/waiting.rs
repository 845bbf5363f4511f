//! What is parked in no stream: seen, and tried all at once.

use http::StatusCode;

use crate::kit::{World, wait_until};

async fn audited(world: &World) -> i64 {
    world
        .db
        .number("SELECT count(*) FROM tower_inbox_audit")
        .await
}

/// §8: the overview counts it, so that it is found from there.
#[tokio::test]
async fn what_is_parked_in_no_stream_is_found_from_the_page_of_streams() {
    let world = World::new().await;
    let mut ada = world.ada().await;
    ada.get("/streams").await.says_not("in no stream");
    world.put_off(0..1).await;
    ada.get("/streams")
        .await
        .says("1 event</a> is parked in no stream");
    world.put_off(1..3).await;
    world.stream("acct_1", [2, 3]).await;
    world.dead(["evt_bad_1".to_owned()]).await;
    for path in ["/streams", "/streams?source=crm"] {
        let streams = ada.get(path).await;
        streams
            .is(StatusCode::OK)
            .says("3 events</a> are parked in no stream");
        let link = streams
            .body
            .split("/console/waiting?")
            .nth(1)
            .expect("a link");
        let link = link
            .split('"')
            .next()
            .expect("it ends")
            .replace("&amp;", "&");
        let page = ada.get(&format!("/waiting?{link}")).await;
        page.is(StatusCode::OK)
            .says(">put_off_0<")
            .says(">put_off_2<")
            .says_not("evt_acct_1_2")
            .says_not("evt_bad_1");
    }
    ada.get("/streams?source=other")
        .await
        .says_not("in no stream");
    let all = ada.get("/waiting").await;
    all.says("evt_acct_1_2")
        .says("in its turn")
        .says("in 5")
        .says_not("evt_bad_1");
    // A name that was mistyped is not all clear.
    for path in ["/waiting", "/dead", "/audit", "/streams"] {
        ada.get(&format!("{path}?source=other"))
            .await
            .is(StatusCode::OK)
            .says("or there is no such source.");
        ada.get(path).await.says_not("no such source");
    }
    // A parked event is no dead letter, here as at the command line.
    let dead = ada.get("/dead?because=parked").await;
    dead.is(StatusCode::BAD_REQUEST).says("Waiting");
}

#[tokio::test]
async fn more_than_a_page_goes_on_where_it_ended() {
    let world = World::new().await;
    world.put_off(0..101).await;
    let mut ada = world.ada().await;
    let first = ada.get("/waiting?apart=yes").await;
    first.says("rel=\"next\"").says("after_source=crm");
    let rest = ada
        .get("/waiting?apart=yes&after_source=crm&after=put_off_98")
        .await;
    rest.says(">put_off_99<").says_not(">put_off_98<");
}

/// §5.5, §5.15
#[tokio::test]
async fn all_are_tried_now_after_a_dry_run_that_names_them() {
    let world = World::new().await;
    world.put_off(0..3).await;
    world.stream("acct_1", [2]).await;
    let mut ada = world.ada().await;
    let fields = [("source", "crm"), ("apart", "yes")];
    let dry = ada.submit("/waiting/dry-run", &fields).await;
    dry.is(StatusCode::OK)
        .says("<b id=\"matched\">3</b>")
        .says(">put_off_2<")
        .says("Nothing has been changed yet");
    assert_eq!((audited(&world).await, world.applied().await), (0, 0));
    ada.submit("/waiting/bulk", &fields)
        .await
        .is(StatusCode::BAD_REQUEST);
    world.mend();
    let with_reason = [&fields[..], &[("reason", "mended, ticket 8")]].concat();
    let done = ada.submit("/waiting/bulk", &with_reason).await;
    done.is(StatusCode::SEE_OTHER);
    ada.follow(&done).await.says("Made due 3 parked events.");
    world.wait_for_applied(3).await;
    assert_eq!(audited(&world).await, 3);
    wait_until("none is left", async || {
        let page = world.ada().await.get("/waiting?apart=yes").await;
        page.body.contains("Nothing is parked.")
    })
    .await;
}
