//! How a [`World`] is made: the source, the inbox, the pool and the handler, each with a default.

use std::future::Future;
use std::sync::Arc;

use axum::Router;
use axum::extract::Path;
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use bytes::Bytes;
use http::{Request, StatusCode};
use serde_json::Value;
use sqlx::Pool;
use sqlx::pool::PoolOptions;
use tower_inbox::{Delivery, Inbox, InboxBuilder, Source, Tx};

use super::probe::{Probe, Running};
use super::world::secret;
use super::{BoxFuture, SOURCE, World};
use crate::db::{Entry, TestDb};

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
            sequence: self.delivery.sequence(),
            amount: body["data"]["amount"].as_i64().unwrap_or(0),
        }
    }
}

type Change<D> =
    Box<dyn FnOnce(InboxBuilder<<D as TestDb>::DB>) -> InboxBuilder<<D as TestDb>::DB> + Send>;

/// What makes deliveries faster, for every test that does not set it itself: the whole suite must hold with it on and off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Levers {
    /// The defaults.
    Default,
    /// Nothing is remembered, and no connection stays with the inbox.
    Off,
    /// Shared transactions too.
    On,
}

impl Levers {
    fn by_environment() -> Self {
        match std::env::var("TOWER_INBOX_TEST_LEVERS").as_deref() {
            Err(_) => Self::Default,
            Ok("off") => Self::Off,
            Ok("on") => Self::On,
            Ok(other) => panic!("TOWER_INBOX_TEST_LEVERS is on or off, not {other:?}"),
        }
    }

    fn source(self, source: Source) -> Source {
        match self {
            Self::Default | Self::Off => source,
            Self::On => source.batch(32),
        }
    }

    fn inbox<DB: tower_inbox::Backend>(self, builder: InboxBuilder<DB>) -> InboxBuilder<DB> {
        match self {
            Self::Default | Self::On => builder,
            Self::Off => builder.remembered(0).keep_connections(0),
        }
    }
}

/// Makes a [`World`].
pub(crate) struct Setup<D: TestDb> {
    db: D,
    name: String,
    source: Source,
    connections: u32,
    pool: Option<Pool<D::DB>>,
    eyes: Option<Pool<D::DB>>,
    handler: Handler<D>,
    build: Vec<Change<D>>,
    route: &'static str,
    inner: Box<dyn FnOnce(Router) -> Router + Send>,
}

impl<D: TestDb> Setup<D> {
    pub(super) fn new(db: &D) -> Self {
        Self {
            db: db.clone(),
            name: SOURCE.to_owned(),
            source: Levers::by_environment().source(Source::kudos(SOURCE).secrets([secret(db)])),
            connections: 4,
            pool: None,
            eyes: None,
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

    /// Another source, with what is set for it so far forgotten. Without: `crm`.
    pub(crate) fn named(mut self, name: &str) -> Self {
        self.name = name.to_owned();
        self.source =
            Levers::by_environment().source(Source::kudos(name).secrets([secret(&self.db)]));
        self
    }

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

    /// Commits are remembered whatever the levers are: this is what the test is about.
    pub(crate) fn remembering(self) -> Self {
        self.inbox(|inbox| inbox.remembered(1_000))
    }

    /// Connections stay with the inbox, whatever the levers are, and for longer than a busy machine needs between two
    /// deliveries: for what is only seen on one that has stayed.
    #[cfg(any(feature = "failpoints", feature = "postgres", feature = "mysql"))]
    pub(crate) fn keeping_connections(self) -> Self {
        self.inbox(|inbox| {
            let inbox = inbox.keep_connections(usize::MAX);
            #[cfg(feature = "failpoints")]
            let inbox = inbox.keep_connections_long();
            inbox
        })
    }

    /// Whatever the levers are: the handler is run as often as the attempts say, and not once more in a batch that is undone.
    pub(crate) fn one_by_one(self) -> Self {
        self.source(|source| source.batch(1))
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

    /// Another pool to look with, for several worlds one after the other.
    #[cfg(feature = "failpoints")]
    pub(crate) fn eyes(mut self, eyes: Pool<D::DB>) -> Self {
        self.eyes = Some(eyes);
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
        let options = PoolOptions::new().max_connections(self.connections);
        let pool = match self.pool {
            Some(pool) => pool,
            None => db.pool(options).await,
        };
        let eyes = match self.eyes {
            Some(eyes) => eyes,
            None => db.pool(PoolOptions::new().max_connections(2)).await,
        };
        let builder = Inbox::builder(pool.clone())
            .source(self.source)
            .table_prefix(db.prefix());
        let builder = Levers::by_environment().inbox(builder);
        let builder = self
            .build
            .into_iter()
            .fold(builder, |builder, change| change(builder));
        let inbox = builder.build().await.expect("the inbox is built");
        let probe = Arc::new(Probe::default());
        let router = (self.inner)(routes::<D>(self.route, self.handler, Arc::clone(&probe)));
        let app = inbox.mount(&self.name, router);
        World {
            db,
            inbox,
            pool,
            eyes,
            probe,
            app,
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
