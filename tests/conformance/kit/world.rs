//! One inbox at work: over a throw-away database, mounted on an axum router, with a ledger as its handler.

use std::sync::Arc;
use std::time::SystemTime;

use axum::Router;
use axum::body::Body;
use bytes::Bytes;
use http::Request;
use sqlx::{Connection, Pool};
use tower::ServiceExt;
use tower_inbox::Inbox;
use tower_inbox::clock::Timestamp;
use tower_inbox::preset::Preset;
use tower_inbox::verify::{Secret, Signer};

use super::probe::Probe;
use super::{Event, Reply, Setup, eventually};
use crate::db::{Entry, TestDb};

/// The source's name.
pub(crate) const SOURCE: &str = "crm";

/// An inbox at work. Clones are handles of the same one.
pub(crate) struct World<D: TestDb> {
    pub(crate) db: D,
    pub(crate) inbox: Inbox<D::DB>,
    /// The inbox's pool.
    pub(crate) pool: Pool<D::DB>,
    /// Another pool, to look and to meddle.
    pub(crate) eyes: Pool<D::DB>,
    pub(crate) probe: Arc<Probe>,
    pub(crate) app: Router,
}

impl<D: TestDb> Clone for World<D> {
    fn clone(&self) -> Self {
        Self {
            db: self.db.clone(),
            inbox: self.inbox.clone(),
            pool: self.pool.clone(),
            eyes: self.eyes.clone(),
            probe: Arc::clone(&self.probe),
            app: self.app.clone(),
        }
    }
}

impl<D: TestDb> World<D> {
    /// A world over this database, with everything as it is by default.
    pub(crate) fn over(db: &D) -> Setup<D> {
        Setup::new(db)
    }

    pub(crate) async fn start(db: &D) -> Self {
        Self::over(db).start().await
    }

    /// The same world seen through another app.
    pub(crate) fn through(&self, app: Router) -> Self {
        Self {
            app,
            ..self.clone()
        }
    }

    /// The secret that the world begins with.
    pub(crate) fn secret(&self) -> String {
        secret(&self.db)
    }

    /// A signed request with this event.
    pub(crate) fn request(&self, event: &Event) -> Request<Body> {
        self.signed(event.body())
    }

    /// A signed request with this body.
    pub(crate) fn signed(&self, body: Bytes) -> Request<Body> {
        http(&[&self.secret()], now(), body.clone()).map(|_| Body::from(body))
    }

    /// A signed request with these events in the array `events`.
    pub(crate) fn batch(&self, events: &[Event]) -> Request<Body> {
        let events: Vec<serde_json::Value> = events
            .iter()
            .map(|event| serde_json::from_slice(&event.body()).expect("JSON"))
            .collect();
        self.signed(serde_json::json!({ "events": events }).to_string().into())
    }

    /// Delivers an event.
    pub(crate) async fn send(&self, event: &Event) -> Reply {
        self.post(self.request(event)).await
    }

    /// Delivers an event that a worker has just tried with this status as its end: until it has let go of the event, whoever
    /// comes waits for that attempt, and gets its verdict (§4.8).
    pub(crate) async fn send_after(&self, verdict: u16, event: &Event) -> Reply {
        let mut last = None;
        eventually("the attempt before it has ended", async || {
            let reply = last.insert(self.send(event).await);
            reply.status != verdict
        })
        .await;
        last.expect("it was sent")
    }

    /// Sends a request, and reads the answer.
    pub(crate) async fn post(&self, request: Request<Body>) -> Reply {
        let answer = self.app.clone().oneshot(request).await;
        Reply::read(answer.unwrap_or_else(|never| match never {})).await
    }

    /// Delivers an event in a task of its own.
    pub(crate) fn spawn(&self, event: &Event) -> tokio::task::JoinHandle<Reply> {
        let (world, request) = (self.clone(), self.request(event));
        tokio::spawn(async move { world.post(request).await })
    }

    /// The ledger, in the order in which it was written.
    pub(crate) async fn ledger(&self) -> Vec<Entry> {
        D::ledger(&self.eyes).await
    }

    /// The ids in the ledger.
    pub(crate) async fn applied(&self) -> Vec<String> {
        self.ledger()
            .await
            .into_iter()
            .map(|entry| entry.event_id)
            .collect()
    }

    /// The sequences of one account in the ledger.
    pub(crate) async fn sequences(&self, account: &str) -> Vec<i64> {
        let of_account = |entry: Entry| (entry.account == account).then_some(entry.sequence)?;
        self.ledger()
            .await
            .into_iter()
            .filter_map(of_account)
            .collect()
    }

    /// The one number that a query finds; `{p}` is the prefix of the inbox's tables.
    pub(crate) async fn number(&self, sql: &str) -> i64 {
        D::number(&self.eyes, &sql.replace("{p}", self.db.prefix())).await
    }

    /// The first column of what a query finds.
    pub(crate) async fn texts(&self, sql: &str) -> Vec<String> {
        D::texts(&self.eyes, &sql.replace("{p}", self.db.prefix())).await
    }

    /// Any statement, from outside of the inbox.
    pub(crate) async fn execute(&self, sql: &str) -> u64 {
        let mut conn = self.eyes.acquire().await.expect("a connection");
        let sql = sql.replace("{p}", self.db.prefix());
        D::execute(&mut conn, &sql).await.expect("it is executed")
    }

    /// How many events are in this state: 1 applied, 2 parked, 3 dead.
    pub(crate) async fn in_state(&self, state: i64) -> i64 {
        self.number(&format!(
            "SELECT COUNT(*) FROM {{p}}event WHERE state = {state}"
        ))
        .await
    }

    /// How often the inbox has taken a connection, whether it came from the pool or had stayed.
    pub(crate) fn acquired(&self) -> usize {
        self.inbox.connections_taken()
    }

    /// Demands that no pooled connection is inside a transaction, or unusable: what is written on each of them, all
    /// of them held at the same time, is seen by others at once. Nor does the server know an open one.
    pub(crate) async fn pool_is_whole(&self) {
        // A transaction whose connection was closed ends there a moment later.
        eventually("no open transaction is left", async || {
            D::open_transactions(&self.eyes).await == 0
        })
        .await;
        let mut held = Vec::new();
        for _ in 0..self.pool.options().get_max_connections() {
            held.push(self.pool.acquire().await.expect("a connection"));
        }
        for conn in &mut held {
            let before = self.number("SELECT COUNT(*) FROM mark").await;
            D::execute(conn, "INSERT INTO mark (m) VALUES (0)")
                .await
                .expect("a write");
            assert_eq!(
                self.number("SELECT COUNT(*) FROM mark").await,
                before + 1,
                "a write is held back"
            );
            // The driver does not think so either: what is begun on it is no savepoint of something that has ended.
            let mut begun = Connection::begin(&mut **conn).await.expect("a transaction");
            D::execute(&mut begun, "INSERT INTO mark (m) VALUES (1)")
                .await
                .expect("a write");
            begun.rollback().await.expect("a rollback");
            assert_eq!(
                self.number("SELECT COUNT(*) FROM mark").await,
                before + 1,
                "a transaction is none"
            );
        }
    }

    /// Ends it as an orderly shutdown does, and starts nothing in its place.
    pub(crate) async fn stop(self) {
        self.inbox.shutdown().await;
        drop(self.app);
        self.pool.close().await;
        self.eyes.close().await;
    }
}

pub(super) fn secret<D: TestDb>(db: &D) -> String {
    format!("whk_{}secret", db.prefix())
}

pub(crate) fn now() -> Timestamp {
    SystemTime::now().into()
}

/// A request with the signatures of kudos over `body`, and whatever body is put in.
pub(crate) fn http(secrets: &[&str], at: Timestamp, body: Bytes) -> Request<()> {
    let secrets = secrets
        .iter()
        .map(|text| Secret::text(*text).expect("not empty"));
    let signer = Signer::new(&Preset::KUDOS.scheme(), secrets).expect("an HMAC scheme");
    let request = Request::post("/hooks/acme").header("content-type", "application/json");
    let mut request = request.body(()).expect("a request");
    let headers = signer
        .sign(at, None, &body)
        .expect("kudos signs nothing else");
    request.headers_mut().extend(headers);
    request
}
