//! What cannot be undone is told before it is done; and what is tried again later says when, and can be tried now.

use http::StatusCode;
use tower_inbox::testkit;

use crate::kit::{Answer, Visitor, World, query, wait_until};

async fn audited(world: &World) -> i64 {
    let lines = "SELECT count(*) FROM tower_inbox_audit";
    world.db.number(lines).await
}

const STREAM: [(&str, &str); 4] = [
    ("source", "crm"),
    ("id", "acct_1"),
    ("seen_next", "2"),
    ("seen_generation", "0"),
];

/// Asks what would happen.
async fn ask(ada: &mut Visitor, path: &str, fields: &[(&str, &str)]) -> Answer {
    let fields = [&STREAM[..], fields].concat();
    ada.get(&format!("{path}?{}", query(&fields))).await
}

/// Does what a page asks about, with the fields of its own form.
async fn confirm(ada: &mut Visitor, path: &str, page: &Answer, names: &[&str]) -> Answer {
    let fields = names
        .iter()
        .map(|name| (*name, page.field(name).expect("a field")));
    let fields: Vec<_> = fields.collect();
    let mut fields: Vec<_> = fields
        .iter()
        .map(|(name, value)| (*name, &**value))
        .collect();
    fields.push(("reason", "ticket 7"));
    let done = ada.submit(path, &fields).await;
    done.is(StatusCode::SEE_OTHER);
    ada.follow(&done).await
}

const SKIP: [&str; 6] = [
    "source",
    "id",
    "seen_next",
    "seen_generation",
    "first",
    "last",
];

#[tokio::test]
async fn a_skip_says_what_is_set_aside_and_what_becomes_due() {
    let world = World::new().await;
    world.stream("acct_1", [1, 3, 5, 6, 8]).await;
    let mut ada = world.ada().await;
    let page = ada.get("/stream?source=crm&id=acct_1").await;
    page.says("method=\"get\" action=\"/console/stream/skip\"");
    let page = ask(&mut ada, "/stream/skip", &[("first", "2"), ("last", "4")]).await;
    page.is(StatusCode::OK)
        .says("<b id=\"sequences\">3 sequences</b>")
        .says("One event is stored there")
        .says("evt_acct_1_3")
        .says("2</b> events, sequence <b>5</b> to <b>6</b>, are due at once")
        .says("cannot be undone")
        .says_not("evt_acct_1_8");
    assert_eq!((audited(&world).await, world.applied().await), (0, 1));
    confirm(&mut ada, "/stream/skip", &page, &SKIP)
        .await
        .says("Skipped 2 to 4.");
    world.wait_for_applied(3).await;
    // What was seen is not so any more.
    let page = ask(&mut ada, "/stream/skip", &[("first", "2"), ("last", "4")]).await;
    page.says("has moved while you looked at it: it waits for 7")
        .says_not("method=\"post\" action=\"/console/stream/skip\"");
}

#[tokio::test]
async fn a_mistyped_number_is_seen() {
    let world = World::new().await;
    world.stream("acct_1", [1, 3]).await;
    let mut ada = world.ada().await;
    let far = [("first", "2"), ("last", "20000000000")];
    let page = ask(&mut ada, "/stream/skip", &far).await;
    page.says("19,999,999,999 sequences")
        .says("The highest sequence that has come is <b>3</b>")
        .says("<b>19,999,999,997</b> sequences that the producer may have yet to send");
    let page = ask(&mut ada, "/stream/fast-forward", &[("to", "4")]).await;
    page.says("2 sequences").says_not("yet to send");
    // Ahead of the cursor nothing is freed, and what is passed is refused.
    ask(&mut ada, "/stream/skip", &[("first", "5"), ("last", "5")])
        .await
        .says("waits for <b>2</b> as before");
    ask(&mut ada, "/stream/skip", &[("first", "1"), ("last", "2")])
        .await
        .says("Sequence 1 is passed already");
    ask(&mut ada, "/stream/skip", &[("first", "3"), ("last", "2")])
        .await
        .is(StatusCode::BAD_REQUEST);
    ask(
        &mut ada,
        "/stream/skip",
        &[("first", "2"), ("last", "9223372036854775808")],
    )
    .await
    .is(StatusCode::BAD_REQUEST)
    .says("last is to be a whole number");
    assert_eq!(audited(&world).await, 0);
}

#[tokio::test]
async fn a_fast_forward_and_a_reset_say_what_becomes_of_what_is_stored() {
    let world = World::new().await;
    world.stream("acct_1", (1..2).chain(4..=30)).await;
    let mut ada = world.ada().await;
    let page = ask(&mut ada, "/stream/fast-forward", &[("to", "29")]).await;
    page.says("<b id=\"stored\">25</b> events are stored there")
        .says("25 of them parked")
        .says("and 5 more")
        .says("2</b> events, sequence <b>29</b> to <b>30</b>");
    let page = ask(&mut ada, "/stream/reset", &[("first", "1")]).await;
    page.says("<b id=\"stored\">27 stored events become dead letters</b>")
        .says("number <b>1</b>");
    let fields = ["source", "id", "seen_next", "seen_generation", "first"];
    confirm(&mut ada, "/stream/reset", &page, &fields)
        .await
        .says("a new generation has begun");
    assert_eq!(audited(&world).await, 1);
}

#[tokio::test]
async fn a_discard_says_what_goes_with_it() {
    let world = World::new().await;
    world.stream("acct_1", [1, 3]).await;
    let bad = testkit::event("evt_bad_2").stream("acct_1", 2);
    world.send(bad).await;
    world.dead(["evt_bad_free".to_owned()]).await;
    let mut ada = world.ada().await;
    let page = ada.get("/event?source=crm&id=evt_bad_2").await;
    page.says("method=\"get\" action=\"/console/event/discard\"");
    let page = ada.get("/event/discard?source=crm&id=evt_bad_2").await;
    page.says("Its sequence <b>2</b> is skipped with it")
        .says("1</b> event, sequence <b>3</b>, is due at once")
        .says("cannot be undone");
    confirm(&mut ada, "/event/discard", &page, &["source", "id"])
        .await
        .says("Discarded: it is never applied.");
    world.wait_for_applied(2).await;
    ada.get("/event/discard?source=crm&id=evt_bad_free")
        .await
        .says("holds no place in a stream");
    for id in ["evt_bad_2", "evt_acct_1_1", "evt_none"] {
        let page = ada.get(&format!("/event/discard?source=crm&id={id}")).await;
        page.is(StatusCode::OK)
            .says("Nothing was changed.")
            .says_not("method=\"post\" action=\"/console/event/discard\"");
    }
    assert_eq!(audited(&world).await, 1);
}

#[tokio::test]
async fn what_is_tried_again_says_when_and_is_tried_now() {
    let world = World::new().await;
    let later = testkit::event("evt_later_2").stream("acct_1", 2);
    world.send(later).await;
    world.stream("acct_1", [3, 1]).await;
    let mut ada = world.ada().await;
    wait_until("it has failed once", async || {
        let page = world.ada().await.get("/stream?source=crm&id=acct_1").await;
        page.body.contains("was tried <b>1 time</b> in vain")
    })
    .await;
    ada.get("/streams").await.says("tried once (503), again in");
    ada.get("/stream?source=crm&id=acct_1")
        .await
        .says("action=\"/console/event/try-now\"")
        .says("Next attempt");
    ada.get("/event?source=crm&id=evt_acct_1_3")
        .await
        .says("when its turn is there: the stream waits for 2")
        .says_not("/event/try-now");
    let event = "/event?source=crm&id=evt_later_2";
    ada.get(event)
        .await
        .says("Attempts so far")
        .says("of 10")
        .says(" UTC <span class=\"quiet\">(<time");
    world.mend();
    let of = [
        ("source", "crm"),
        ("id", "evt_later_2"),
        ("reason", "mended"),
    ];
    let done = ada.submit("/event/try-now", &of).await;
    ada.follow(&done).await.says("the worker tries it at once");
    world.wait_for_applied(3).await;
    let again = ada.submit("/event/try-now", &of).await;
    ada.follow(&again).await.says("nothing was changed");
    assert_eq!(audited(&world).await, 1);
}
