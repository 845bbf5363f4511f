//! What others on the way do to whoever signs in: proxies, guesses beside his, and paths and values that nobody meant.

use axum::Router;
use http::StatusCode;
use tower_inbox::clock::SystemClock;
use tower_inbox::console::{Access, Actor, Console};

use crate::kit::{TOKEN, Visitor, World};

#[tokio::test]
async fn nobody_keeps_the_owner_of_a_long_token_out_from_the_same_place() {
    let world = World::new().await;
    let mut eve = world.visitor();
    let mut statuses = Vec::new();
    for _ in 0..40 {
        statuses.push(eve.sign_in("eve", "wrong").await.status);
    }
    assert!(
        statuses.contains(&StatusCode::TOO_MANY_REQUESTS),
        "{statuses:?}"
    );
    world
        .visitor()
        .sign_in("ada", TOKEN)
        .await
        .is(StatusCode::SEE_OTHER);
    let mut script = world.visitor();
    script.header("authorization", &format!("Bearer {TOKEN}"));
    script.get("/api/stats").await.is(StatusCode::OK);
    script.header("authorization", "Bearer wrong");
    script
        .get("/api/stats")
        .await
        .is(StatusCode::TOO_MANY_REQUESTS);
}

#[tokio::test]
async fn one_signs_in_also_behind_a_proxy_that_signs_in_by_itself() {
    let world = World::new().await;
    let mut ada = world.visitor();
    ada.header("authorization", "Basic YWRhOmh1c2g=");
    let away = ada.get("/").await;
    assert_eq!(away.is(StatusCode::SEE_OTHER).location(), "/console/login");
    ada.sign_in("ada", TOKEN).await.is(StatusCode::SEE_OTHER);
    ada.get("/").await.is(StatusCode::OK).says("ada");
}

#[tokio::test]
async fn where_it_is_mounted_says_nothing_about_its_cookies_but_their_path() {
    let world = World::new().await;
    let token = Access::token(TOKEN).expect("long enough");
    let console = Console::new(&world.inbox, token).into_router();
    let app = Router::new().nest("/ops/{team}", console);
    let mut ada = Visitor::of(app, "/ops/a;Domain=evil.example");
    let entered = ada.sign_in("ada", TOKEN).await;
    let cookie = entered.is(StatusCode::SEE_OTHER).cookies()[0].to_owned();
    assert!(!cookie.contains(";Domain"), "{cookie}");
    assert!(
        cookie.contains("; Path=/ops/a%3BDomain=evil.example;"),
        "{cookie}"
    );
}

#[tokio::test]
async fn blanks_around_a_token_are_not_part_of_it() {
    let padded = Access::token(format!(" {TOKEN}\n")).expect("long enough");
    let world = World::open(padded, SystemClock, |console| console).await;
    world.ada().await.get("/").await.is(StatusCode::OK);
    assert!(Access::token(format!("short{}", " ".repeat(20))).is_err());
}

#[tokio::test]
async fn what_no_database_could_have_is_refused_before_it_is_asked() {
    let world = World::new().await;
    let mut ada = world.ada().await;
    for path in [
        "/event?source=crm&id=%00",
        "/dead?type=a%00b",
        "/streams?source=%00",
    ] {
        ada.get(path).await.is(StatusCode::BAD_REQUEST).says("NUL");
    }
    ada.get("/event?source=crm&id=%ff%fe")
        .await
        .is(StatusCode::NOT_FOUND);
}

#[tokio::test]
async fn another_sites_cookie_of_the_same_name_signs_nobody_out() {
    let world = World::new().await;
    let mut ada = world.ada().await;
    let name = ada.session();
    let own = ada.cookies.remove(&name).expect("a session");
    ada.header("cookie", &format!("{name}=eve.1.2.3; {name}={own}"));
    let page = ada.get("/streams").await;
    let token = page.is(StatusCode::OK).says("ada").field("form");
    let token = token.expect("a form");
    let ask = [
        ("source", "crm"),
        ("id", "none"),
        ("reason", "a look"),
        ("form", &*token),
    ];
    ada.post("/event/body", &ask).await.is(StatusCode::OK);
}

/// Browsers send a host's cookies to all its ports, and a console is often mounted at the same path of several.
#[tokio::test]
async fn two_consoles_of_one_host_sign_nobody_out_of_the_other_and_keep_their_words_apart() {
    let world = World::new().await;
    let at = |access, inbox| {
        let console = Console::new(inbox, access).actions(true).into_router();
        let app = Router::new().nest("/console", console);
        Visitor::of(app, "/console")
    };
    let other = || Access::token("another token of another console").expect("long enough");
    let mut one = world.ada().await;
    let mut two = at(other(), &world.inbox);
    two.cookies = std::mem::take(&mut one.cookies);
    two.get("/").await.is(StatusCode::SEE_OTHER);
    let entered = two.sign_in("bob", "another token of another console").await;
    entered.is(StatusCode::SEE_OTHER);
    one.cookies = two.cookies.clone();
    one.get("/streams").await.is(StatusCode::OK).says("ada");
    two.get("/streams").await.is(StatusCode::OK).says("bob");
    // What is said on the next page of the one is not of the other.
    let skip = [
        ("source", "crm"),
        ("id", "none"),
        ("seen_next", "1"),
        ("seen_generation", "0"),
        ("first", "1"),
        ("last", "1"),
        ("reason", "lost"),
    ];
    one.submit("/stream/skip", &skip)
        .await
        .is(StatusCode::SEE_OTHER);
    two.cookies = one.cookies.clone();
    let page = two.get("/streams").await;
    page.is(StatusCode::OK).says_not("alert good");
    let page = one.get("/streams").await;
    page.is(StatusCode::OK).says("alert good");
    // Of another check of the same inbox, the forms.
    let check = || Access::check(|_| async { Actor::new("eve") });
    let mut three = at(check(), &world.inbox);
    three.cookies = one.cookies.clone();
    three.get("/streams").await.is(StatusCode::OK).says("eve");
    one.cookies = three.cookies.clone();
    one.get("/streams").await.is(StatusCode::OK).says("ada");
}

/// A form of which one byte comes, and no more: whoever sends it has shown nothing yet.
#[tokio::test]
async fn a_form_that_does_not_come_is_not_waited_for() {
    let world = World::new().await;
    let mut nobody = world.visitor();
    // The time that it has passes at once.
    tokio::time::pause();
    let body = axum::body::Body::new(Stuck);
    let answer = nobody.ask(http::Method::POST, "/login", body).await;
    tokio::time::resume();
    answer.is(StatusCode::REQUEST_TIMEOUT).says("in time");
}

/// A body that never ends.
struct Stuck;

impl http_body::Body for Stuck {
    type Data = bytes::Bytes;
    type Error = std::convert::Infallible;

    fn poll_frame(
        self: std::pin::Pin<&mut Self>,
        _: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Option<Result<http_body::Frame<Self::Data>, Self::Error>>> {
        std::task::Poll::Pending
    }
}
