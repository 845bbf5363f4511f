//! The receiving side: all that an app needs to have its webhooks applied exactly once and in order.

use std::collections::HashSet;
use std::error::Error;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::routing::{get, post};
use axum::{Json, Router};
use serde::Deserialize;
use sqlx::{Pool, Sqlite};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use tower_inbox::{Delivery, Inbox, Source, Tx};

use crate::ledger::{Account, Change, Ledger, LedgerError};

/// The worker's waits, when the handler fails on a parked event: as much faster than the default as the sender.
const BACKOFF: [Duration; 3] = [
    Duration::from_millis(20),
    Duration::from_millis(100),
    Duration::from_millis(500),
];

/// A running receiver.
pub(crate) struct Receiver {
    pub(crate) address: SocketAddr,
    pub(crate) inbox: Inbox<Sqlite>,
    app: Arc<App>,
    server: JoinHandle<std::io::Result<()>>,
}

struct App {
    pool: Pool<Sqlite>,
    /// Events that the handler has seen before: it fails on some when it meets them first.
    met: Mutex<HashSet<String>>,
    failures: AtomicU64,
}

impl Receiver {
    pub(crate) async fn start(database: &str, secret: &str) -> Result<Self, Box<dyn Error>> {
        let pool = tower_inbox::sqlite::connect(database, 10).await?;
        Sqlite::create(&pool).await?;
        let source = Source::kudos("kudos").secrets([secret]).backoff(BACKOFF);
        let inbox = Inbox::builder(pool.clone()).source(source).build().await?;

        let app = Arc::new(App {
            pool,
            met: Mutex::default(),
            failures: AtomicU64::new(0),
        });
        let webhooks = Router::new()
            .route("/webhooks/kudos", post(receive))
            .with_state(app.clone());
        let router = Router::new()
            .route("/ledger/{account}", get(ledger))
            .with_state(app.clone())
            .merge(inbox.mount("kudos", webhooks));

        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let server = tokio::spawn(async move { axum::serve(listener, router).await });
        Ok(Self {
            address,
            inbox,
            app,
            server,
        })
    }

    /// How often the handler failed on purpose.
    pub(crate) fn failures(&self) -> u64 {
        self.app.failures.load(Ordering::Relaxed)
    }

    pub(crate) async fn stop(self) {
        self.inbox.shutdown().await;
        self.server.abort();
        self.app.pool.close().await;
    }
}

#[derive(Deserialize)]
struct Event {
    data: Data,
}

#[derive(Deserialize)]
struct Data {
    account: String,
    amount: i64,
}

/// The handler: what it writes to `tx` is committed together with the mark that the event is applied, or not at all.
async fn receive(
    State(app): State<Arc<App>>,
    delivery: Delivery,
    mut tx: Tx<Sqlite>,
    Json(event): Json<Event>,
) -> StatusCode {
    let change = Change {
        account: &event.data.account,
        amount: event.data.amount,
        event_id: delivery.event_id(),
        event_type: delivery.event_type(),
        sequence: delivery.sequence(),
    };
    match Sqlite::append(&mut tx, &change).await {
        Ok(_) if app.fails_on(delivery.event_id()) => StatusCode::SERVICE_UNAVAILABLE,
        Ok(_) => StatusCode::OK,
        Err(LedgerError::Overflow) => StatusCode::UNPROCESSABLE_ENTITY,
        Err(LedgerError::Database(_)) => StatusCode::SERVICE_UNAVAILABLE,
    }
}

impl App {
    /// Every eighth event or so, when it is met first.
    fn fails_on(&self, event_id: &str) -> bool {
        let sum: u64 = event_id.bytes().map(u64::from).sum();
        let mut met = self.met.lock().unwrap_or_else(PoisonError::into_inner);
        let fails = sum.is_multiple_of(8) && met.insert(event_id.to_owned());
        if fails {
            self.failures.fetch_add(1, Ordering::Relaxed);
        }
        fails
    }
}

async fn ledger(
    State(app): State<Arc<App>>,
    Path(account): Path<String>,
) -> Result<Json<Account>, StatusCode> {
    Sqlite::read(&app.pool, &account)
        .await
        .map(Json)
        .map_err(|_| StatusCode::SERVICE_UNAVAILABLE)
}
