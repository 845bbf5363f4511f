//! Who gets in, by a token or by a check of the app's own, and for how long.

use std::net::SocketAddr;
use std::time::Duration;

use axum::Router;
use axum::extract::ConnectInfo;
use http::StatusCode;
use tower_inbox::BuildErrorKind;
use tower_inbox::clock::{Clock, SystemClock};
use tower_inbox::console::{Access, Actor, Console};
use tower_inbox::testkit::VirtualClock;

use crate::kit::{TOKEN, Visitor, World};

#[test]
fn a_token_that_can_be_guessed_is_refused() {
    for short in ["", "hush", "fifteen bytes.."] {
        let refused = Access::token(short).expect_err("too short");
        assert_eq!(refused.kind(), BuildErrorKind::Secret, "{short:?}");
        assert!(short.is_empty() || !refused.to_string().contains(short));
    }
    assert!(Access::token("sixteen bytes...").is_ok());
    for empty in ["", " "] {
        assert!(Access::insecure_short_token(empty).is_err());
    }
    let access = Access::insecure_short_token("hush").expect("not empty");
    assert!(!format!("{access:?}").contains("hush"));
}

#[test]
fn an_actor_is_a_name_that_the_audit_table_takes() {
    for name in ["ada", "Ada Lovelace", "アダ", &"x".repeat(255)] {
        assert_eq!(Actor::new(name).expect("a name").name(), name);
    }
    for name in ["", " ", "a\nb", &"x".repeat(256), "inbox", " Inbox "] {
        assert_eq!(Actor::new(name), None, "{name:?}");
    }
}

#[tokio::test]
async fn whoever_has_the_token_signs_in_by_name_and_out_again() {
    let world = World::new().await;
    let mut ada = world.visitor();
    let away = ada.get("/streams?source=crm").await;
    let form = ada.follow(&away).await;
    form.is(StatusCode::OK).says("type=\"password\"");
    let to = form.field("to").expect("where to come back to");
    let fields = [("actor", "Ada"), ("token", TOKEN), ("to", &to)];
    let entered = ada.post("/login", &fields).await;
    entered.is(StatusCode::SEE_OTHER);
    assert_eq!(entered.location(), "/console/streams?source=crm");
    ada.follow(&entered).await.is(StatusCode::OK).says("Ada");
    let left = ada.submit("/logout", &[]).await;
    left.is(StatusCode::SEE_OTHER);
    ada.get("/").await.is(StatusCode::SEE_OTHER);
    assert!(ada.cookies.is_empty(), "{:?}", ada.cookies);
}

#[tokio::test]
async fn a_wrong_token_or_no_name_does_not_sign_in() {
    let world = World::new().await;
    let mut eve = world.visitor();
    for (name, token, status) in [
        ("eve", "wrong", StatusCode::UNAUTHORIZED),
        ("eve", "", StatusCode::UNAUTHORIZED),
        ("", TOKEN, StatusCode::BAD_REQUEST),
        (" ", TOKEN, StatusCode::BAD_REQUEST),
    ] {
        let answer = eve.sign_in(name, token).await;
        answer.is(status).says("role=\"alert\"");
        assert!(answer.cookies().is_empty() && !answer.body.contains(TOKEN));
    }
    eve.header("sec-fetch-site", "cross-site");
    eve.sign_in("eve", TOKEN).await.is(StatusCode::FORBIDDEN);
}

#[tokio::test]
async fn one_comes_back_to_the_console_and_nowhere_else() {
    let world = World::new().await;
    for to in [
        "https://evil.example/",
        "//evil.example/",
        "/\\evil.example",
        "evil",
    ] {
        let fields = [("actor", "ada"), ("token", TOKEN), ("to", to)];
        let answer = world.visitor().post("/login", &fields).await;
        assert_eq!(answer.location(), "/console", "{to}");
    }
}

#[tokio::test]
async fn the_cookie_is_out_of_reach_of_scripts_and_other_sites() {
    let world = World::new().await;
    let entered = world.visitor().sign_in("ada", TOKEN).await;
    let [cookie] = entered.cookies()[..] else {
        panic!("{entered:?}")
    };
    for part in [
        "; HttpOnly",
        // A link in a chat opens its page; what acts is a POST.
        "; SameSite=Lax",
        "; Path=/console",
        "; Max-Age=43200",
    ] {
        assert!(cookie.contains(part), "{cookie}");
    }
    assert!(
        !cookie.contains("Secure") && !cookie.contains(TOKEN),
        "{cookie}"
    );
    let mut by_proxy = world.visitor();
    by_proxy.header("x-forwarded-proto", "https");
    let entered = by_proxy.sign_in("ada", TOKEN).await;
    assert!(entered.cookies()[0].ends_with("; Secure"), "{entered:?}");
    by_proxy.header("x-forwarded-proto", "HTTPS , http");
    let entered = by_proxy.sign_in("ada", TOKEN).await;
    assert!(entered.cookies()[0].ends_with("; Secure"), "{entered:?}");
    by_proxy.header("x-forwarded-proto", "http, https");
    let entered = by_proxy.sign_in("ada", TOKEN).await;
    assert!(!entered.cookies()[0].contains("Secure"), "{entered:?}");
    let https = World::with(|console| console.https(true)).await;
    let entered = https.visitor().sign_in("ada", TOKEN).await;
    assert!(entered.cookies()[0].ends_with("; Secure"), "{entered:?}");
}

#[tokio::test]
async fn a_session_ends_and_processes_with_the_same_token_share_it() {
    let clock = VirtualClock::at(SystemClock.now());
    let token = || Access::token(TOKEN).expect("long enough");
    let world = World::open(token(), clock.clone(), |console| {
        console.session(Duration::from_secs(600))
    })
    .await;
    let mut ada = world.ada().await;
    let other = Router::new().nest(
        "/console",
        Console::new(&world.inbox, token()).into_router(),
    );
    let mut there = Visitor::of(other, "/console");
    there.cookies = ada.cookies.clone();
    there.get("/").await.is(StatusCode::OK);
    clock.advance(Duration::from_secs(599));
    ada.get("/").await.is(StatusCode::OK);
    clock.advance(Duration::from_secs(1));
    for visitor in [&mut ada, &mut there] {
        visitor.get("/").await.is(StatusCode::SEE_OTHER);
    }
}

#[tokio::test]
async fn another_token_ends_every_session() {
    let world = World::new().await;
    let ada = world.ada().await;
    let another = Access::token("another token of the tests").expect("long enough");
    let other = Router::new().nest(
        "/console",
        Console::new(&world.inbox, another).into_router(),
    );
    let mut there = Visitor::of(other, "/console");
    there.cookies = ada.cookies.clone();
    there.get("/").await.is(StatusCode::SEE_OTHER);
}

#[test]
#[should_panic(expected = "a minute to 7 days")]
fn a_session_that_would_never_end_is_refused() {
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    runtime.block_on(async {
        World::with(|console| console.session(Duration::from_secs(8 * 86_400))).await;
    });
}

#[tokio::test]
async fn a_script_acts_by_its_token_under_a_name() {
    let world = World::new().await;
    world.stream("acct_1", [1, 3]).await;
    let mut script = world.visitor();
    script.header("authorization", &format!("bearer {TOKEN}"));
    script.header("accept", "application/json");
    script
        .get("/api/stats")
        .await
        .is(StatusCode::OK)
        .says("\"sources\"");
    let skip = [
        ("source", "crm"),
        ("id", "acct_1"),
        ("seen_next", "2"),
        ("seen_generation", "0"),
        ("first", "2"),
        ("last", "2"),
        ("reason", "lost, ticket 7"),
    ];
    let nameless = script.post("/stream/skip", &skip).await;
    nameless.is(StatusCode::BAD_REQUEST).says("inbox-actor");
    script.header("inbox-actor", "nightly job");
    script
        .post("/stream/skip", &skip)
        .await
        .is(StatusCode::OK)
        .says("\"status\":\"done\"");
    world.wait_for_applied(2).await;
    let again = script.post("/stream/skip", &skip).await;
    again.is(StatusCode::OK).says("was so already");
    let mut stale = skip;
    stale[4].1 = "9";
    stale[5].1 = "9";
    let moved = script.post("/stream/skip", &stale).await;
    moved.is(StatusCode::CONFLICT).says("cursor has moved");
    assert_eq!(moved.headers["content-type"], "application/problem+json");
    world
        .ada()
        .await
        .get("/audit")
        .await
        .says("nightly job")
        .says("lost, ticket 7");
}

#[tokio::test]
async fn wrong_tokens_are_slowed_down_for_each_client_by_itself() {
    const SHORT: &str = "sixteen bytes...";
    let short = Access::token(SHORT).expect("long enough");
    let world = World::open(short, SystemClock, |console| console).await;
    let from = |address: [u8; 4]| {
        let address = ConnectInfo(SocketAddr::from((address, 40_000)));
        Visitor::of(
            world.app.clone().layer(axum::Extension(address)),
            "/console",
        )
    };
    let mut eve = from([192, 0, 2, 66]);
    let mut slowed = None;
    for _ in 0..40 {
        let answer = eve.sign_in("eve", "wrong").await;
        if answer.status == StatusCode::TOO_MANY_REQUESTS {
            slowed = Some(answer);
            break;
        }
        answer.is(StatusCode::UNAUTHORIZED);
    }
    let slowed = slowed.expect("forty guesses in a moment");
    let wait: u64 = slowed.headers["retry-after"]
        .to_str()
        .expect("text")
        .parse()
        .expect("seconds");
    assert!((1..=3).contains(&wait), "{wait}");
    // Not even the right one is told from a wrong one now, so that nothing is learnt by going on.
    eve.sign_in("eve", SHORT)
        .await
        .is(StatusCode::TOO_MANY_REQUESTS);
    from([192, 0, 2, 7])
        .sign_in("ada", SHORT)
        .await
        .is(StatusCode::SEE_OTHER);
}

#[tokio::test]
async fn the_apps_own_check_names_the_actor() {
    let access = Access::check(|parts| {
        let name = parts
            .headers
            .get("x-remote-user")
            .and_then(|name| name.to_str().ok());
        let actor = name.and_then(Actor::new);
        async move { actor }
    });
    let world = World::open(access, SystemClock, |console| console.actions(true)).await;
    world.stream("acct_1", [1, 3]).await;
    let mut ada = world.visitor();
    ada.get("/")
        .await
        .is(StatusCode::UNAUTHORIZED)
        .says_not("crm");
    let answer = ada.get("/").await;
    assert!(
        !answer.headers.contains_key("www-authenticate"),
        "{answer:?}"
    );
    ada.get("/login").await.is(StatusCode::NOT_FOUND);
    ada.sign_in("ada", TOKEN).await.is(StatusCode::NOT_FOUND);
    ada.header("x-remote-user", "ada");
    ada.get("/")
        .await
        .is(StatusCode::OK)
        .says("crm")
        .says_not("Sign out");
    let discard = [
        ("source", "crm"),
        ("id", "evt_acct_1_3"),
        ("reason", "a test"),
    ];
    ada.post("/event/discard", &discard)
        .await
        .is(StatusCode::FORBIDDEN);
    let page = ada.get("/event?source=crm&id=evt_acct_1_3").await;
    let own = page.field("form").expect("a form");
    let mut with_token = discard.to_vec();
    with_token.push(("form", &own));
    // Whose form it is counts, and so does whose browser it is.
    ada.header("x-remote-user", "eve");
    ada.post("/event/discard", &with_token)
        .await
        .is(StatusCode::FORBIDDEN);
    let mut elsewhere = world.visitor();
    elsewhere.header("x-remote-user", "ada");
    elsewhere
        .post("/event/discard", &with_token)
        .await
        .is(StatusCode::FORBIDDEN);
    ada.header("x-remote-user", "ada");
    ada.post("/event/discard", &with_token)
        .await
        .is(StatusCode::SEE_OTHER);
    ada.get("/audit").await.says("ada").says("a test");
}

#[tokio::test]
async fn links_are_right_wherever_it_is_mounted() {
    let world = World::new().await;
    let console = || {
        let token = Access::token(TOKEN).expect("long enough");
        Console::new(&world.inbox, token).into_router()
    };
    let deep = Router::new().nest("/ops/{team}", Router::new().nest("/inbox", console()));
    for (app, base) in [(console(), ""), (deep, "/ops/blue/inbox")] {
        let mut ada = Visitor::of(app, base);
        let away = ada.get("/").await;
        assert_eq!(away.location(), format!("{base}/login"));
        let entered = ada.sign_in("ada", TOKEN).await;
        assert_eq!(entered.location(), if base.is_empty() { "/" } else { base });
        let path = if base.is_empty() {
            "Path=/;"
        } else {
            "Path=/ops/blue/inbox;"
        };
        assert!(entered.cookies()[0].contains(path), "{entered:?}");
        let page = ada.get("/").await;
        page.is(StatusCode::OK);
        for link in page.links() {
            let own = link.starts_with('#') || link.starts_with(base) && link.starts_with('/');
            assert!(own, "{link} below {base:?}");
        }
        let style = page
            .links()
            .into_iter()
            .find(|link| link.ends_with(".css"))
            .expect("a style");
        let style = ada.get(&style[base.len()..]).await;
        style.is(StatusCode::OK).says("prefers-color-scheme");
    }
}
