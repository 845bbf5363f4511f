//! What somebody on call looks for first: what needs him most, an event by its id, and what was decided about it.

use axum::Router;
use http::StatusCode;
use tower_inbox::console::{Access, Console};
use tower_inbox::testkit;
use tower_inbox::{Inbox, Source};

use crate::kit::{TOKEN, Visitor, World, wait_until};

/// What somebody has to do something about comes first, and is named.
#[tokio::test]
async fn the_overview_begins_with_what_needs_somebody_most() {
    let world = World::new().await;
    for stream in ["a_gap", "b_gap", "c_gap"] {
        world.stream(stream, [1, 3]).await;
    }
    let later = testkit::event("evt_later_2").stream("y_fails", 2);
    world.send(later).await;
    world.stream("y_fails", [1]).await;
    world
        .send(testkit::event("evt_bad_z").stream("z_stuck", 1))
        .await;
    world.stream("z_stuck", [2]).await;
    wait_until("it is sorted", async || {
        let page = world.ada().await.get("/").await;
        page.body.contains("1 stream waits for an event that fails")
    })
    .await;
    let page = world.ada().await.get("/").await;
    page.says("1 stream is held up by a dead letter: <a href=\"/console/stream?source=crm&amp;id=z_stuck\">")
        .says_not("None of them holds a stream up.")
        .says("All 5 that wait")
        .says_not("c_gap");
    let at = |text: &str| page.body.rfind(text).unwrap_or_else(|| panic!("no {text}"));
    assert!(at("z_stuck") < at("y_fails") && at("y_fails") < at("a_gap"));
    let list = world.ada().await.get("/streams").await;
    list.says("held up by a dead letter</span>")
        .says("failing</span>")
        .says("gap</span>")
        .says("cell failing")
        .says("failing: tried once (503), again in")
        .says("oldest event stored <time");
    let mut ada = world.ada().await;
    ada.get("/stream?source=crm&id=y_fails")
        .await
        .says("cell failing")
        .says("was tried <b>1 time</b> in vain")
        .says("failing</span></td>");
    ada.get("/event?source=crm&id=evt_later_2")
        .await
        .says("parked: failing</span>");
}

/// §5.3: an attempt is counted before it is begun, and has not failed as long as it runs.
#[tokio::test]
async fn what_a_worker_is_trying_just_now_has_not_failed() {
    let world = World::new().await;
    world.put_off(0..1).await;
    world
        .send(testkit::event("put_off_1").stream("acct_1", 1))
        .await;
    let pages = [
        "/event?source=crm&id=put_off_0",
        "/event?source=crm&id=put_off_1",
        "/stream?source=crm&id=acct_1",
    ];
    let mut ada = world.ada().await;
    for page in pages {
        ada.get(page).await.says("Try now").says("in 5");
    }
    // As a worker claims them.
    world
        .db
        .execute(
            "UPDATE tower_inbox_pending SET lease_token = 7, attempts = attempts + 1, unfinished = unfinished + 1, \
             lease_until = not_before",
        )
        .await;
    for page in pages {
        let page = ada.get(page).await;
        page.says_not("failing")
            .says_not("Try now")
            .says_not("in 5");
    }
    ada.get(pages[0])
        .await
        .says("being tried now</span>")
        .says("0<span class=\"quiet\"> of ");
    ada.get(pages[2]).await.says("a worker is trying it now");
    ada.get("/streams").await.says_not("failing</span>");
    ada.get("/").await.says_not("waits for an event that fails");
}

/// What was counted after the page was begun is not to come.
#[tokio::test]
async fn nothing_that_has_happened_is_said_to_be_in_0_s() {
    let world = World::new().await;
    world
        .db
        .execute(
            "INSERT INTO tower_inbox_row_count (source, counted, counted_at) \
             VALUES ('crm', 7, unixepoch() * 1000000 + 90000000)",
        )
        .await;
    let page = world.ada().await.get("/").await;
    page.says("counted <time").says_not("\">in ");
}

#[tokio::test]
async fn an_event_is_found_by_its_id_from_every_page() {
    let world = World::new().await;
    world.stream("acct_1", [1, 3]).await;
    let mut ada = world.ada().await;
    for path in ["/", "/streams", "/dead", "/audit"] {
        let page = ada.get(path).await;
        page.says("<form class=\"find\" role=\"search\" method=\"get\" action=\"/console/find\">")
            // There is but one source.
            .says_not("<select");
    }
    for path in [
        "/find?id=evt_acct_1_3",
        "/find?source=&id=+evt_acct_1_3+",
        "/find?source=crm&id=evt_acct_1_3",
    ] {
        let found = ada.get(path).await;
        found.is(StatusCode::SEE_OTHER);
        ada.follow(&found)
            .await
            .is(StatusCode::OK)
            .says("when its turn is there");
    }
    for (path, shown) in [
        ("/find?id=%3Cscript%3Ealert(1)", "&lt;script&gt;alert(1)"),
        ("/find?source=%3Cb%3E&id=evt_acct_1_3", "&lt;b&gt;"),
        ("/find?id=evt_acct_1_%25", "evt_acct_1_%"),
    ] {
        ada.get(path)
            .await
            .is(StatusCode::NOT_FOUND)
            .says("<h1>Not found here</h1>")
            .says(shown)
            .says_not("<script>")
            .says_not("<b><b>");
    }
    ada.get("/find")
        .await
        .is(StatusCode::OK)
        .says("<label for=\"find-again\">Event id</label>");
}

#[tokio::test]
async fn where_several_sources_have_an_id_one_chooses() {
    let db = testkit::sqlite().await;
    let source = |name| Source::kudos(name).secrets(["a secret of the tests"]);
    let inbox = Inbox::builder(db.pool())
        .source(source("billing"))
        .source(source("crm"))
        .build()
        .await
        .expect("an inbox");
    for (source, id) in [("billing", "evt_1"), ("crm", "evt_1"), ("crm", "evt_2")] {
        db.execute(&format!(
            "INSERT INTO tower_inbox_event (source, event_id, state, fingerprint, received_at, decided_at) \
             VALUES ('{source}', '{id}', 1, x'00', 0, unixepoch() * 1000000)"
        ))
        .await;
    }
    let access = Access::token(TOKEN).expect("long enough");
    let console = Console::new(&inbox, access).into_router();
    let mut ada = Visitor::of(Router::new().nest("/console", console), "/console");
    ada.sign_in("ada", TOKEN).await.is(StatusCode::SEE_OTHER);
    ada.get("/")
        .await
        .says("<select name=\"source\"")
        .says("<option value=\"billing\">billing</option>");
    let both = ada.get("/find?id=evt_1").await;
    both.is(StatusCode::OK)
        .says("Several sources have an event of this id.")
        .says("source=billing&amp;id=evt_1")
        .says("source=crm&amp;id=evt_1");
    let named = ada.get("/find?id=evt_1&source=crm").await;
    assert_eq!(
        named.is(StatusCode::SEE_OTHER).location(),
        "/console/event?source=crm&id=evt_1"
    );
    ada.get("/find?id=evt_2&source=billing")
        .await
        .is(StatusCode::NOT_FOUND);
}

/// A page of an event is not always one of a dead letter.
#[tokio::test]
async fn an_events_page_is_in_the_part_that_lists_it() {
    let world = World::new().await;
    world.stream("acct_1", [1, 3]).await;
    world.dead(["evt_bad_1".to_owned()]).await;
    world.put_off(0..1).await;
    let mut ada = world.ada().await;
    for (id, part) in [
        ("evt_bad_1", Some("Dead letters")),
        ("evt_acct_1_3", Some("Streams")),
        ("evt_acct_1_1", None),
        ("put_off_0", Some("Waiting")),
        ("evt_none", None),
    ] {
        let page = ada.get(&format!("/event?source=crm&id={id}")).await;
        let lit = page.body.split("aria-current=\"page\">").nth(1);
        assert_eq!(lit.and_then(|rest| rest.split('<').next()), part, "{id}");
        let is_missing = page.status == StatusCode::NOT_FOUND;
        assert_eq!(is_missing, id == "evt_none", "{id}");
    }
}

#[tokio::test]
async fn what_was_decided_about_an_event_is_found_from_its_page() {
    let world = World::new().await;
    world
        .dead(["evt_bad_1".to_owned(), "evt_bad_2".to_owned()])
        .await;
    let mut ada = world.ada().await;
    for id in ["evt_bad_1", "evt_bad_2"] {
        let reason = format!("the reason of {id}");
        let discard = [("source", "crm"), ("id", id), ("reason", &*reason)];
        ada.submit("/event/discard", &discard).await;
    }
    let link = "/audit?source=crm&event=evt_bad_1";
    let page = ada.get("/event?source=crm&id=evt_bad_1").await;
    let there = page.links();
    assert!(there.contains(&format!("/console{link}")), "{there:?}");
    let log = ada.get(link).await;
    log.says("the reason of evt_bad_1")
        .says_not("the reason of evt_bad_2");
    log.says("name=\"event\" type=\"text\" value=\"evt_bad_1\"");
    ada.get(&format!("{link}&actor=bob"))
        .await
        .says("Nothing of that was decided");
}
