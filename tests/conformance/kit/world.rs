//! One inbox at work: over a throw-away database, mounted on an axum router, with a ledger as its handler.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::SystemTime;

use axum::Router;
use axum::body::Body;
use axum::extract::Path;
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use bytes::Bytes;
use http::{Request, StatusCode};
use serde_json::Value;
use sqlx::Pool;
use sqlx::pool::PoolOptions;
use tower::ServiceExt;
use tower_inbox::clock::Timestamp;
use tower_inbox::preset::Preset;
use tower_inbox::verify::{Secret, Signer};
use tower_inbox::{Delivery, Inbox, InboxBuilder, Source, Tx};

use super::probe::{Probe, Running};
use super::{BoxFuture, Event, Reply};
use crate::db::{Entry, TestDb};

/// The source's name.
pub(crate) const SOURCE: &str = "crm";

type Handler<D> = Arc<dyn Fn(Call<D>) -> BoxFuture<Response> + Send + Sync>;

/// What a handler is called with.
pub(crate) struct Call<D: TestDb> {
    pub(crate) tx: Tx<D::DB>,
    pub(crate) delivery: Delivery,
    pub(crate) request: Request<Bytes>,
    /// The path parameter.
    pub(crate) tenant: String,
    /// Which run of this event it is, from 1.
    pub(crate) run: usize,
    _running: Running,
}

impl<D: TestDb> Call<D> {
    /// Writes the event into the ledger.
    pub(crate) async fn append(&mut self) {
        let entry = self.entry();
        D::append(&mut self.tx, &entry)
            .await
            .expect("the ledger takes it");
    }

    /// The event as a line of the ledger.
    pub(crate) fn entry(&self) -> Entry {
        let body: Value = serde_json::from_slice(self.request.body()).expect("the body is JSON");
        Entry {
            event_id: self.delivery.event_id().to_owned(),
            account: self.delivery.correlation_id().unwrap_or("").to_owned(),
            sequence: self
                .delivery
                .sequence()
                .map(|n| i64::try_from(n).expect("it fits")),
            amount: body["data"]["amount"].as_i64().unwrap_or(0),
        }
    }
}

/// Makes a [`World`].
pub(crate) struct Setup<D: TestDb> {
    db: D,
    source: Source,
    connections: u32,
    pool: Option<Pool<D::DB>>,
    handler: Handler<D>,
    build: Vec<Box<dyn FnOnce(InboxBuilder<D::DB>) -> InboxBuilder<D::DB> + Send>>,
    route: &'static str,
    inner: Box<dyn FnOnce(Router) -> Router + Send>,
}

impl<D: TestDb> Setup<D> {
    /// Changes the source. Without: kudos, with one secret.
    pub(crate) fn source(mut self, change: impl FnOnce(Source) -> Source) -> Self {
        self.source = change(self.source);
        self
    }

    /// Changes the builder of the inbox.
    pub(crate) fn inbox(
        mut self,
        change: impl FnOnce(InboxBuilder<D::DB>) -> InboxBuilder<D::DB> + Send + 'static,
    ) -> Self {
        self.build.push(Box::new(change));
        self
    }

    /// The pool's connections. Without: 4.
    pub(crate) fn connections(mut self, connections: u32) -> Self {
        self.connections = connections;
        self
    }

    /// A pool of the test's own. How often its connections are taken is then not counted.
    pub(crate) fn pool(mut self, pool: Pool<D::DB>) -> Self {
        self.pool = Some(pool);
        self
    }

    /// The handler. Without: the ledger, and 204.
    pub(crate) fn handler<F, R>(
        mut self,
        handler: impl Fn(Call<D>) -> F + Send + Sync + 'static,
    ) -> Self
    where
        F: Future<Output = R> + Send + 'static,
        R: IntoResponse,
    {
        self.handler = Arc::new(move |call| {
            let answer = handler(call);
            Box::pin(async move { answer.await.into_response() })
        });
        self
    }

    /// The ledger's handler, which answers with this status when it has written its line; 204 where it is 0.
    pub(crate) fn answers(self, status: impl Fn(&Call<D>) -> u16 + Send + Sync + 'static) -> Self {
        self.handler(move |mut call: Call<D>| {
            let status = match status(&call) {
                0 => StatusCode::NO_CONTENT,
                status => StatusCode::from_u16(status).expect("a status"),
            };
            async move {
                call.append().await;
                status
            }
        })
    }

    /// The route of the handler. Without: `/hooks/{tenant}`.
    pub(crate) fn route(mut self, route: &'static str) -> Self {
        self.route = route;
        self
    }

    /// What lies between the inbox and the handler.
    pub(crate) fn inner(mut self, inner: impl FnOnce(Router) -> Router + Send + 'static) -> Self {
        self.inner = Box::new(inner);
        self
    }

    pub(crate) async fn start(self) -> World<D> {
        let db = self.db;
        let acquired = Arc::new(AtomicUsize::new(0));
        let count = || {
            let acquired = Arc::clone(&acquired);
            move || {
                acquired.fetch_add(1, Ordering::Relaxed);
            }
        };
        let (reused, connected) = (count(), count());
        let options = PoolOptions::new()
            .max_connections(self.connections)
            .before_acquire(move |_, _| {
                reused();
                Box::pin(async { Ok(true) })
            })
            .after_connect(move |_, _| {
                connected();
                Box::pin(async { Ok(()) })
            });
        let pool = match self.pool {
            Some(pool) => pool,
            None => db.pool(options).await,
        };
        let eyes = db.pool(PoolOptions::new().max_connections(2)).await;
        let builder = Inbox::builder(pool.clone())
            .source(self.source)
            .table_prefix(db.prefix());
        let builder = self
            .build
            .into_iter()
            .fold(builder, |builder, change| change(builder));
        let inbox = builder.build().await.expect("the inbox is built");
        let probe = Arc::new(Probe::default());
        let router = (self.inner)(routes::<D>(self.route, self.handler, Arc::clone(&probe)));
        let app = inbox.mount(SOURCE, router);
        World {
            db,
            inbox,
            pool,
            eyes,
            probe,
            app,
            acquired,
        }
    }
}

fn routes<D: TestDb>(route: &str, handler: Handler<D>, probe: Arc<Probe>) -> Router {
    let endpoint = move |Path(tenant): Path<String>, request: axum::extract::Request| {
        let (handler, probe) = (Arc::clone(&handler), Arc::clone(&probe));
        async move {
            let (parts, body) = request.into_parts();
            let body = axum::body::to_bytes(body, usize::MAX)
                .await
                .expect("it is in memory");
            let tx = Tx::<D::DB>::take(&parts.extensions).expect("a transaction");
            let delivery = parts
                .extensions
                .get::<Delivery>()
                .cloned()
                .expect("a delivery");
            let (running, run) = probe.enter(delivery.event_id());
            let request = Request::from_parts(parts, body);
            handler(Call {
                tx,
                delivery,
                request,
                tenant,
                run,
                _running: running,
            })
            .await
        }
    };
    Router::new().route(route, post(endpoint))
}

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
    acquired: Arc<AtomicUsize>,
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
            acquired: Arc::clone(&self.acquired),
        }
    }
}

impl<D: TestDb> World<D> {
    /// A world over this database, with everything as it is by default.
    pub(crate) fn over(db: &D) -> Setup<D> {
        Setup {
            db: db.clone(),
            source: Source::kudos(SOURCE).secrets([secret(db)]),
            connections: 4,
            pool: None,
            handler: Arc::new(|mut call| {
                Box::pin(async move {
                    call.append().await;
                    StatusCode::NO_CONTENT.into_response()
                })
            }),
            build: Vec::new(),
            route: "/hooks/{tenant}",
            inner: Box::new(|router| router),
        }
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

    /// Delivers an event.
    pub(crate) async fn send(&self, event: &Event) -> Reply {
        self.post(self.request(event)).await
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

    /// How often a connection of the inbox's pool was taken.
    pub(crate) fn acquired(&self) -> usize {
        self.acquired.load(Ordering::Relaxed)
    }

    /// Demands that no pooled connection is inside a transaction, or unusable: what is written on each of them, all
    /// of them held at the same time, is seen by others at once.
    pub(crate) async fn pool_is_whole(&self) {
        let mut held = Vec::new();
        for _ in 0..self.pool.options().get_max_connections() {
            held.push(self.pool.acquire().await.expect("a connection"));
        }
        for conn in &mut held {
            let before = self.number("SELECT COUNT(*) FROM mark").await;
            D::execute(conn, "INSERT INTO mark DEFAULT VALUES")
                .await
                .expect("a write");
            assert_eq!(
                self.number("SELECT COUNT(*) FROM mark").await,
                before + 1,
                "a write is held back"
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

fn secret<D: TestDb>(db: &D) -> String {
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
