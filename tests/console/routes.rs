//! Every path, from the very table of which the router is made: what it needs, and that it is not had without.

use std::collections::{BTreeSet, VecDeque};
use std::path::Path;

use axum::body::Body;
use http::{Method, StatusCode, header};
use sqlx::Sqlite;
use tower_inbox::console::{Access, Actor, Console, ConsoleRoute, Needs};

use crate::kit::{Answer, SOURCE, TOKEN, Visitor, World, query};

fn table() -> Vec<ConsoleRoute> {
    Console::<Sqlite>::routes()
}

fn guarded() -> impl Iterator<Item = ConsoleRoute> {
    let guarded = table()
        .into_iter()
        .filter(|route| route.needs != Needs::Nothing);
    assert!(guarded.clone().count() > 10, "a table that is none");
    guarded
}

/// All that any path may ask for.
const FIELDS: [(&str, &str); 11] = [
    ("source", SOURCE),
    ("id", "evt_bad_1"),
    ("reason", "a test"),
    ("seen_next", "3"),
    ("seen_generation", "0"),
    ("first", "3"),
    ("last", "3"),
    ("to", "4"),
    ("verb", "replay"),
    ("seen", "0"),
    ("actor", "ada"),
];

async fn ask(visitor: &mut Visitor, route: &ConsoleRoute, token: Option<&str>) -> Answer {
    let mut fields = FIELDS.to_vec();
    if let Some(token) = token {
        fields.push(("form", token));
    }
    match route.method {
        Method::GET => {
            let path = format!("{}?{}", route.path, query(&FIELDS));
            visitor.get(&path).await
        }
        _ => visitor.post(&route.path, &fields).await,
    }
}

/// A world with something on every page.
async fn furnished(world: &World) {
    world.stream("acct_1", [1, 2, 5]).await;
    world.dead(["evt_bad_1".to_owned()]).await;
}

#[tokio::test]
async fn whoever_is_not_signed_in_gets_nothing() {
    let world = World::new().await;
    furnished(&world).await;
    let name = world.ada().await.session();
    let forged =
        "YWRh.9999999999.00.0000000000000000000000000000000000000000000000000000000000000000";
    for route in guarded() {
        let mut nobody = world.visitor();
        let answer = ask(&mut nobody, &route, None).await;
        answer.is(StatusCode::SEE_OTHER);
        assert!(answer.location().starts_with("/console/login"), "{route:?}");
        nobody.cookies.insert(name.clone(), forged.into());
        ask(&mut nobody, &route, Some(""))
            .await
            .is(StatusCode::SEE_OTHER);

        let mut script = world.visitor();
        script.header("accept", "application/json");
        let answer = ask(&mut script, &route, None).await;
        answer.is(StatusCode::UNAUTHORIZED).says_not(SOURCE);
        assert_eq!(answer.headers[header::WWW_AUTHENTICATE], "Bearer");
    }
    assert_eq!(audited(&world).await, 0);
}

#[tokio::test]
async fn a_wrong_token_gets_nothing() {
    for route in guarded() {
        // Each with tries of its own.
        let world = World::new().await;
        for wrong in [
            "Bearer",
            "Bearer ",
            "Bearer wrong",
            &format!("Bearer {TOKEN}x"),
        ] {
            let mut script = world.visitor();
            script.header("authorization", wrong);
            script.header("inbox-actor", "eve");
            ask(&mut script, &route, None)
                .await
                .is(StatusCode::UNAUTHORIZED);
        }
        assert_eq!(audited(&world).await, 0);
    }
}

#[tokio::test]
async fn a_form_that_is_not_of_the_session_is_refused() {
    let world = World::new().await;
    furnished(&world).await;
    let mut bob = world.visitor();
    bob.sign_in("bob", TOKEN).await.is(StatusCode::SEE_OTHER);
    let bobs = bob.form_token().await;
    assert_eq!(bobs.len(), 64, "{bobs:?}");
    let mut ada = world.ada().await;
    let own = ada.form_token().await;
    for route in guarded().filter(|route| route.method == Method::POST) {
        for token in [None, Some(""), Some("00"), Some(&*bobs)] {
            ask(&mut ada, &route, token).await.is(StatusCode::FORBIDDEN);
        }
        for (name, elsewhere) in [
            ("sec-fetch-site", "cross-site"),
            ("sec-fetch-site", "same-site"),
            ("origin", "https://evil.example"),
            ("origin", "null"),
        ] {
            ada.headers.clear();
            ada.header(name, elsewhere);
            ask(&mut ada, &route, Some(&own))
                .await
                .is(StatusCode::FORBIDDEN);
        }
        ada.headers.clear();
    }
    assert_eq!(audited(&world).await, 0);
}

#[tokio::test]
async fn a_console_that_only_looks_refuses_every_action() {
    let world = World::with(|console| console).await;
    furnished(&world).await;
    let mut ada = world.ada().await;
    let own = ada.form_token().await;
    let mut script = world.visitor();
    script.header("authorization", &format!("Bearer {TOKEN}"));
    script.header("inbox-actor", "ada");
    let actions: Vec<_> = guarded()
        .filter(|route| route.needs == Needs::Actions)
        .collect();
    assert!(actions.len() >= 9, "{actions:?}");
    for route in &actions {
        ask(&mut ada, route, Some(&own))
            .await
            .is(StatusCode::FORBIDDEN);
        ask(&mut script, route, None)
            .await
            .is(StatusCode::FORBIDDEN);
    }
    for page in [
        "/stream?source=crm&id=acct_1",
        "/event?source=crm&id=evt_acct_1_5",
        "/dead?source=crm",
    ] {
        let page = ada.get(page).await;
        page.is(StatusCode::OK).says("read-only");
        for route in &actions {
            page.says_not(&format!("action=\"/console{}\"", route.path));
        }
    }
    assert_eq!(audited(&world).await, 0);
}

#[tokio::test]
async fn an_actor_who_may_only_look_is_refused_every_action() {
    let looks = Access::check(|_| async { Actor::new("eve").map(Actor::read_only) });
    let world = World::open(looks, tower_inbox::clock::SystemClock, |console| {
        console.actions(true)
    })
    .await;
    let mut eve = world.visitor();
    let page = eve.get("/event?source=crm&id=none").await;
    page.is(StatusCode::NOT_FOUND).says("read-only");
    for route in guarded().filter(|route| route.needs == Needs::Actions) {
        ask(&mut eve, &route, None).await.is(StatusCode::FORBIDDEN);
    }
}

#[tokio::test]
async fn with_all_that_it_needs_every_path_answers() {
    let world = World::new().await;
    furnished(&world).await;
    // The id of an event is the one of a stream, too.
    world.stream("evt_bad_1", [2]).await;
    for route in guarded() {
        // Signing out is among them.
        let mut ada = world.ada().await;
        let own = ada.form_token().await;
        let answer = ask(&mut ada, &route, Some(&own)).await;
        assert!(
            [200, 303, 409].contains(&answer.status.as_u16()),
            "{route:?}: {} {}",
            answer.status,
            answer.body
        );
        assert!(
            answer.status != 303
                || route.path == "/logout"
                || !answer.location().contains("/login"),
            "{route:?}"
        );
    }
}

#[tokio::test]
async fn what_needs_nothing_shows_nothing() {
    let world = World::new().await;
    furnished(&world).await;
    for route in table().iter().filter(|route| route.needs == Needs::Nothing) {
        let mut nobody = world.visitor();
        let answer = ask(&mut nobody, route, None).await;
        answer
            .says_not("acct_1")
            .says_not("evt_bad_1")
            .says_not(">crm<");
        assert!(answer.cookies().is_empty(), "{route:?}");
    }
}

#[tokio::test]
async fn every_answer_is_kept_from_frames_stores_and_other_sites() {
    let world = World::new().await;
    furnished(&world).await;
    let mut ada = world.ada().await;
    let own = ada.form_token().await;
    let mut answers = Vec::new();
    for route in table() {
        answers.push((
            route.path.clone(),
            ask(&mut world.visitor(), &route, None).await,
        ));
        answers.push((route.path.clone(), ask(&mut ada, &route, None).await));
        if route.path != "/logout" {
            answers.push((route.path.clone(), ask(&mut ada, &route, Some(&own)).await));
        }
    }
    answers.push(("nowhere".into(), ada.get("/nowhere").await));
    answers.push((
        "405".into(),
        ada.ask(Method::DELETE, "/streams", Body::empty()).await,
    ));
    for (path, answer) in answers {
        let header = |name: &str| {
            let value = answer
                .headers
                .get(name)
                .and_then(|value| value.to_str().ok());
            value.unwrap_or_else(|| panic!("{path}: {name} is not there"))
        };
        let policy = header("content-security-policy");
        assert!(
            policy.contains("default-src 'none'") && policy.contains("frame-ancestors 'none'"),
            "{policy}"
        );
        assert!(!policy.contains("unsafe"), "{policy}");
        assert_eq!(header("x-frame-options"), "DENY");
        assert_eq!(header("x-content-type-options"), "nosniff");
        assert_eq!(header("referrer-policy"), "same-origin");
        let kept = path.starts_with("/assets/");
        assert_eq!(header("cache-control") == "no-store", !kept, "{path}");
        answer
            .says_not(" style=\"")
            .says_not("<style")
            .says_not("javascript:");
        assert!(
            !answer.body.contains(" onclick") && !answer.body.contains("<script>"),
            "{path}"
        );
    }
}

#[tokio::test]
async fn what_is_not_in_the_table_is_not_there() {
    let world = World::new().await;
    let mut ada = world.ada().await;
    for path in [
        "/nowhere",
        "/streams/1",
        "/assets/style.css",
        "/.git",
        "/console",
    ] {
        ada.get(path).await.is(StatusCode::NOT_FOUND);
    }
    for route in table() {
        let known: Vec<_> = table()
            .into_iter()
            .filter(|other| other.path == route.path)
            .collect();
        for method in [
            Method::GET,
            Method::POST,
            Method::PUT,
            Method::DELETE,
            Method::PATCH,
        ] {
            if known.iter().all(|route| route.method != method) {
                let answer = ada.ask(method, &route.path, Body::empty()).await;
                answer.is(StatusCode::METHOD_NOT_ALLOWED);
            }
        }
    }
}

/// Each line of the console's sources that has one of these, without comments: file and line.
fn lines_with(calls: &[&str]) -> Vec<(String, String)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/console");
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).expect("the sources") {
        let path = entry.expect("an entry").path();
        let name = path
            .file_name()
            .expect("a name")
            .to_string_lossy()
            .into_owned();
        let text = std::fs::read_to_string(&path).expect("a source");
        let lines = text
            .lines()
            .map(str::trim)
            .filter(|line| !line.starts_with("//"));
        for line in lines.filter(|line| calls.iter().any(|call| line.contains(call))) {
            found.push((name.clone(), line.to_owned()));
        }
    }
    found
}

/// A path could get past the table only where the router is made.
#[test]
fn the_router_is_made_of_the_table_alone() {
    let calls = [
        ".route(",
        ".route_service(",
        ".nest(",
        ".nest_service(",
        ".merge(",
        ".fallback_service(",
    ];
    let expected = (
        "routes.rs".to_owned(),
        "router = router.route(&path, handler);".to_owned(),
    );
    assert_eq!(lines_with(&calls), [expected]);
}

/// Templates escape what they write, unless they are told not to.
#[test]
fn nothing_is_written_into_a_page_unescaped() {
    assert_eq!(
        lines_with(&[
            "PreEscaped",
            "from_raw",
            "innerHTML",
            "insertAdjacentHTML",
            "document.write"
        ]),
        []
    );
    assert!(!lines_with(&["html! {"]).is_empty());
}

/// Also no form and no link leads elsewhere.
#[tokio::test]
async fn every_link_and_form_of_every_page_is_in_the_table() {
    let world = World::new().await;
    furnished(&world).await;
    let mut ada = world.ada().await;
    let paths: BTreeSet<_> = table().into_iter().map(|route| route.path).collect();
    let (mut seen, mut queue) = (BTreeSet::new(), VecDeque::from(["/".to_owned()]));
    while let Some(link) = queue.pop_front() {
        let path = link.split('?').next().unwrap_or_default().to_owned();
        assert!(paths.contains(&path), "{link} is not in the table");
        let is_page = table()
            .iter()
            .any(|route| route.path == path && route.method == Method::GET);
        if !is_page || path == "/login" || seen.len() > 60 {
            continue;
        }
        let page = ada.get(&link).await;
        // A form that asks for a page leads to it without what is asked for.
        if page.status != StatusCode::BAD_REQUEST || link.contains('?') {
            page.is(StatusCode::OK);
        }
        for link in page.links() {
            if link.starts_with('#') {
                continue;
            }
            let within = link
                .strip_prefix("/console")
                .unwrap_or_else(|| panic!("{link} is elsewhere"));
            let within = if within.is_empty() { "/" } else { within };
            if seen.insert(within.to_owned()) {
                queue.push_back(within.to_owned());
            }
        }
    }
    for page in ["/streams", "/dead", "/audit", "/api/stats"] {
        assert!(
            seen.iter().any(|link| link.starts_with(page)),
            "no link leads to {page}"
        );
    }
    for part in [
        "/stream?",
        "/event?",
        "/stream/skip",
        "/event/replay",
        "/dead/dry-run",
        "/event/body",
    ] {
        assert!(
            seen.iter().any(|link| link.starts_with(part)),
            "nothing leads to {part}: {seen:?}"
        );
    }
}

async fn audited(world: &World) -> i64 {
    world
        .db
        .number("SELECT count(*) FROM tower_inbox_audit")
        .await
}
