//! An app with a console over a throw-away SQLite database, and visitors of it.

use std::collections::BTreeMap;
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::response::{IntoResponse as _, Response};
use axum::routing::post;
use http::{HeaderMap, Method, Request, StatusCode, header};
use sqlx::Sqlite;
use tower::ServiceExt as _;
use tower_inbox::clock::{Clock, SystemClock};
use tower_inbox::console::{Access, Console};
use tower_inbox::testkit::{self, Event, Kit, TestDatabase};
use tower_inbox::{Inbox, Park, Preset, Source, Tx};

pub(crate) const TOKEN: &str = "a token of the tests, long enough";
pub(crate) const SOURCE: &str = "crm";
const SECRET: &str = "a secret of the tests";
/// Long, since the machine may be busy with other tests.
const LIMIT: Duration = Duration::from_secs(30);

/// The app, with the console at `/console`.
pub(crate) struct World {
    pub(crate) inbox: Inbox<Sqlite>,
    pub(crate) app: Router,
    pub(crate) db: TestDatabase<Sqlite>,
    kit: Kit<Sqlite>,
    /// What says `bad` is refused until this is set.
    mended: Arc<AtomicBool>,
}

type ConsoleOf = Console<Sqlite>;

impl World {
    /// With actions turned on, behind [`TOKEN`].
    pub(crate) async fn new() -> Self {
        Self::with(|console| console.actions(true)).await
    }

    pub(crate) async fn with(console: impl FnOnce(ConsoleOf) -> ConsoleOf) -> Self {
        let token = Access::token(TOKEN).expect("long enough");
        Self::open(token, SystemClock, console).await
    }

    pub(crate) async fn open(
        access: Access,
        clock: impl Clock,
        console: impl FnOnce(ConsoleOf) -> ConsoleOf,
    ) -> Self {
        let db = testkit::sqlite().await;
        db.execute("CREATE TABLE effects (event_id TEXT NOT NULL)")
            .await;
        let mended = Arc::new(AtomicBool::new(false));
        // What fails is tried again long after the test.
        let source = Source::kudos(SOURCE)
            .secrets([SECRET])
            .backoff([Duration::from_secs(3_600)]);
        let inbox = Inbox::builder(db.pool())
            .clock(clock)
            .source(source)
            .build()
            .await
            .expect("an inbox");
        let is_mended = Arc::clone(&mended);
        let handler = move |tx: Tx<Sqlite>, event: tower_inbox::Delivery| {
            let is_mended = Arc::clone(&is_mended);
            apply(tx, event, is_mended)
        };
        let webhooks = inbox.mount(
            SOURCE,
            Router::new().route("/webhooks/kudos", post(handler)),
        );
        let console = console(Console::new(&inbox, access)).into_router();
        let app = webhooks.nest("/console", console);
        let kit = Kit::new(&inbox, app.clone());
        Self {
            inbox,
            app,
            db,
            kit,
            mended,
        }
    }

    /// From now on nothing is refused any more.
    pub(crate) fn mend(&self) {
        self.mended.store(true, Ordering::Relaxed);
    }

    /// Delivers an event, signed.
    pub(crate) async fn send(&self, event: Event) {
        let request = event.request(Preset::KUDOS, SECRET);
        if !event.id().is_ascii() {
            // The body's id is any text; the header's copy of it, which may be left out, is ASCII.
            let mut request = request.to("/webhooks/kudos").build::<Body>();
            request.headers_mut().remove("x-kudos-event-id");
            let answer = self.app.clone().oneshot(request).await;
            let answer = answer.unwrap_or_else(|never| match never {});
            assert_eq!(answer.status(), StatusCode::UNPROCESSABLE_ENTITY);
            return;
        }
        let story = self.kit.send(request).await;
        assert!([202, 204, 422].contains(&story.reply().status), "{story}");
    }

    /// In no stream, and put off by their handler for an hour: what is called `put_off`.
    pub(crate) async fn put_off(&self, numbers: std::ops::Range<u32>) {
        for number in numbers {
            self.send(testkit::event(format!("put_off_{number}"))).await;
        }
    }

    /// Sequences of one stream: `evt_<stream>_<sequence>`.
    pub(crate) async fn stream(&self, stream: &str, sequences: impl IntoIterator<Item = i64>) {
        for sequence in sequences {
            let id = format!("evt_{stream}_{sequence}");
            self.send(testkit::event(id).stream(stream, sequence)).await;
        }
    }

    /// Dead letters, `rejected`.
    pub(crate) async fn dead(&self, ids: impl IntoIterator<Item = String>) {
        for id in ids {
            self.send(testkit::event(id).data(serde_json::json!({"card": "4242"})))
                .await;
        }
    }

    pub(crate) async fn applied(&self) -> i64 {
        self.db.number("SELECT count(*) FROM effects").await
    }

    /// Waits until so many events are applied.
    pub(crate) async fn wait_for_applied(&self, number: i64) {
        wait_until("events are applied", async || {
            self.applied().await >= number
        })
        .await;
        assert_eq!(self.applied().await, number);
    }

    /// Nobody yet.
    pub(crate) fn visitor(&self) -> Visitor {
        Visitor {
            app: self.app.clone(),
            base: "/console".into(),
            cookies: BTreeMap::new(),
            headers: HeaderMap::new(),
        }
    }

    /// Somebody who has signed in.
    pub(crate) async fn ada(&self) -> Visitor {
        let mut ada = self.visitor();
        ada.sign_in("ada", TOKEN).await.is(StatusCode::SEE_OTHER);
        ada
    }
}

async fn apply(
    mut tx: Tx<Sqlite>,
    event: tower_inbox::Delivery,
    mended: Arc<AtomicBool>,
) -> Response {
    let is_mended = mended.load(Ordering::Relaxed);
    match event.event_id() {
        id if id.contains("bad") && !is_mended => {
            return StatusCode::UNPROCESSABLE_ENTITY.into_response();
        }
        id if id.contains("later") && !is_mended => {
            return StatusCode::SERVICE_UNAVAILABLE.into_response();
        }
        id if id.contains("put_off") && !is_mended => {
            return Park::after(Duration::from_secs(3_600)).into_response();
        }
        _ => {}
    }
    let inserted = sqlx::query("INSERT INTO effects (event_id) VALUES (?)")
        .bind(event.event_id())
        .execute(&mut *tx)
        .await;
    match inserted {
        Ok(_) => StatusCode::NO_CONTENT.into_response(),
        Err(_) => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
    }
}

pub(crate) async fn wait_until<F: Future<Output = bool>>(what: &str, ask: impl Fn() -> F) {
    let began = Instant::now();
    while !ask().await {
        assert!(began.elapsed() < LIMIT, "waited {LIMIT:?} in vain: {what}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// A browser without a screen: it keeps cookies, and follows nothing by itself.
pub(crate) struct Visitor {
    app: Router,
    /// Where the console is.
    pub(crate) base: String,
    pub(crate) cookies: BTreeMap<String, String>,
    /// With every request.
    pub(crate) headers: HeaderMap,
}

/// An answer.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) body: String,
}

impl Visitor {
    /// The name of his session's cookie: `inbox_console_` and what tells this console from others of its host.
    pub(crate) fn session(&self) -> String {
        let is_one = |name: &&String| name.starts_with("inbox_console_") && !name.contains("said");
        let name = self.cookies.keys().find(is_one);
        name.expect("he is signed in").clone()
    }

    /// Of a console that is elsewhere.
    pub(crate) fn of(app: Router, base: &str) -> Self {
        Self {
            app,
            base: base.into(),
            cookies: BTreeMap::new(),
            headers: HeaderMap::new(),
        }
    }

    /// A header that is sent from now on.
    pub(crate) fn header(&mut self, name: &'static str, value: &str) {
        self.headers
            .insert(name, value.parse().expect("a header's value"));
    }

    pub(crate) async fn get(&mut self, path: &str) -> Answer {
        self.ask(Method::GET, path, Body::empty()).await
    }

    /// A form, with the fields as they are given.
    pub(crate) async fn post(&mut self, path: &str, fields: &[(&str, &str)]) -> Answer {
        self.ask(Method::POST, path, Body::from(form(fields))).await
    }

    /// A form of the session's own: with its token.
    pub(crate) async fn submit(&mut self, path: &str, fields: &[(&str, &str)]) -> Answer {
        let token = self.form_token().await;
        let mut fields = fields.to_vec();
        fields.push(("form", &token));
        self.post(path, &fields).await
    }

    /// What a page's forms carry: each page has the one that signs out.
    pub(crate) async fn form_token(&mut self) -> String {
        self.get("/streams").await.field("form").expect("a form")
    }

    pub(crate) async fn sign_in(&mut self, name: &str, token: &str) -> Answer {
        self.post("/login", &[("actor", name), ("token", token)])
            .await
    }

    /// Follows where an answer leads.
    pub(crate) async fn follow(&mut self, answer: &Answer) -> Answer {
        let to = answer.location();
        let within = to
            .strip_prefix(&self.base)
            .unwrap_or_else(|| panic!("{to} is elsewhere"));
        self.get(within).await
    }

    pub(crate) async fn ask(&mut self, method: Method, path: &str, body: Body) -> Answer {
        let path = match (self.base.as_str(), path) {
            ("", path) => path.to_owned(),
            // What is nested is asked for its first page by the prefix alone.
            (base, path) => match path.strip_prefix("/?") {
                Some(query) => format!("{base}?{query}"),
                None if path == "/" => base.to_owned(),
                None => format!("{base}{path}"),
            },
        };
        let mut request = Request::new(body);
        *request.method_mut() = method.clone();
        *request.uri_mut() = path
            .parse()
            .unwrap_or_else(|error| panic!("{path}: {error}"));
        let headers = request.headers_mut();
        headers.insert(header::ACCEPT, "text/html,*/*".parse().expect("a value"));
        headers.insert(header::HOST, "ops.example".parse().expect("a value"));
        if method == Method::POST {
            let kind = "application/x-www-form-urlencoded"
                .parse()
                .expect("a value");
            headers.insert(header::CONTENT_TYPE, kind);
        }
        if !self.cookies.is_empty() {
            let cookies: Vec<_> = self
                .cookies
                .iter()
                .map(|(name, value)| format!("{name}={value}"))
                .collect();
            headers.insert(header::COOKIE, cookies.join("; ").parse().expect("a value"));
        }
        for (name, value) in &self.headers {
            headers.insert(name, value.clone());
        }
        let answer = self.app.clone().oneshot(request).await;
        let (parts, body) = answer.unwrap_or_else(|never| match never {}).into_parts();
        let body = to_bytes(body, usize::MAX).await.expect("a body");
        let answer = Answer {
            status: parts.status,
            headers: parts.headers,
            body: String::from_utf8(body.to_vec()).expect("text"),
        };
        self.keep(&answer);
        answer
    }

    fn keep(&mut self, answer: &Answer) {
        for cookie in answer.cookies() {
            let pair = cookie
                .split(';')
                .next()
                .and_then(|pair| pair.split_once('='));
            let (name, value) = pair.expect("a name and a value");
            match value {
                "" => self.cookies.remove(name),
                value => self.cookies.insert(name.into(), value.into()),
            };
        }
    }
}

impl Answer {
    #[track_caller]
    pub(crate) fn is(&self, status: StatusCode) -> &Self {
        assert_eq!(self.status, status, "{}\n{:?}", self.body, self.headers);
        self
    }

    #[track_caller]
    pub(crate) fn says(&self, text: &str) -> &Self {
        assert!(
            self.body.contains(text),
            "{text:?} is not in\n{}",
            self.body
        );
        self
    }

    #[track_caller]
    pub(crate) fn says_not(&self, text: &str) -> &Self {
        assert!(!self.body.contains(text), "{text:?} is in\n{}", self.body);
        self
    }

    #[track_caller]
    pub(crate) fn location(&self) -> &str {
        let to = self.headers.get(header::LOCATION);
        to.and_then(|to| to.to_str().ok())
            .unwrap_or_else(|| panic!("leads nowhere: {self:?}"))
    }

    pub(crate) fn cookies(&self) -> Vec<&str> {
        let cookies = self.headers.get_all(header::SET_COOKIE).iter();
        cookies.filter_map(|cookie| cookie.to_str().ok()).collect()
    }

    /// The value of the first field of this name.
    pub(crate) fn field(&self, name: &str) -> Option<String> {
        let mark = format!("name=\"{name}\" value=\"");
        let (_, rest) = self.body.split_once(&mark)?;
        rest.split('"').next().map(str::to_owned)
    }

    /// Where its links and forms lead.
    pub(crate) fn links(&self) -> Vec<String> {
        let mut links = Vec::new();
        for mark in [" href=\"", " action=\"", " src=\""] {
            for rest in self.body.split(mark).skip(1) {
                let link = rest.split('"').next().unwrap_or_default();
                links.push(link.replace("&amp;", "&"));
            }
        }
        links
    }
}

pub(crate) fn form(fields: &[(&str, &str)]) -> String {
    query(fields)
}

/// As a browser writes it.
pub(crate) fn query(fields: &[(&str, &str)]) -> String {
    let mut text = String::new();
    for (name, value) in fields {
        if !text.is_empty() {
            text.push('&');
        }
        text.push_str(name);
        text.push('=');
        for byte in value.bytes() {
            match byte {
                b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' | b'.' => {
                    text.push(char::from(byte))
                }
                byte => text.push_str(&format!("%{byte:02X}")),
            }
        }
    }
    text
}
