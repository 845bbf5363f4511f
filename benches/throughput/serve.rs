//! A side that is served by this binary: `throughput serve <side> <database url> [setting=value]...`. It prints
//! `listening <port>`, and ends when its standard input does, which is when its parent is gone.

use std::sync::Arc;
use std::time::Duration;

use axum::body::Bytes;
use axum::routing::post;
use axum::serve::ListenerExt;
use axum::{Json, Router, http::StatusCode};
use serde::Deserialize;
use sqlx::pool::PoolOptions;
use tokio::io::AsyncReadExt;
use tower_inbox::verify::{Secrets, VerifyLayer};
use tower_inbox::{Backend, Inbox, Preset, Secret, Source, Tx};

use crate::peer;
use crate::requests::SECRET;

/// After a purge that found nothing any more.
const PURGE_AGAIN: Duration = Duration::from_millis(100);

/// Events that may share a transaction.
const GROUP: usize = 32;

/// What a side can be told.
#[derive(Default)]
struct Settings {
    connections: u32,
    remembered: Option<usize>,
    untested: bool,
    purge: bool,
    retention_days: Option<u64>,
    recorder: bool,
    /// Metrics are recorded, and scraped once a second.
    exporter: bool,
    no_statistics: bool,
    /// Besides the one that is driven.
    sources: usize,
    grouped: bool,
}

pub(crate) fn main(arguments: &[String]) {
    let [side, url, settings @ ..] = arguments else {
        panic!("serve <side> <database url> [setting=value]...");
    };
    tokio::runtime::Runtime::new()
        .expect("a runtime")
        .block_on(serve(side, url, &read(settings)));
}

fn read(settings: &[String]) -> Settings {
    let mut read = Settings::default();
    for setting in settings {
        let (name, value) = setting.split_once('=').expect("setting=value");
        match name {
            "connections" => read.connections = value.parse().expect("a number"),
            "remembered" => read.remembered = Some(value.parse().expect("a number")),
            "untested" => read.untested = value.parse().expect("true or false"),
            "purge" => read.purge = value.parse().expect("true or false"),
            "retention_days" => read.retention_days = Some(value.parse().expect("a number")),
            "sources" => read.sources = value.parse().expect("a number"),
            "recorder" => read.recorder = value.parse().expect("true or false"),
            "exporter" => read.exporter = value.parse().expect("true or false"),
            "no_statistics" => read.no_statistics = value.parse().expect("true or false"),
            "grouped" => read.grouped = value.parse().expect("true or false"),
            other => panic!("there is no setting {other}"),
        }
    }
    read
}

/// As a service has it that is watched: buckets for the histograms, and somebody who scrapes.
fn export() {
    let recorder = metrics_exporter_prometheus::PrometheusBuilder::new()
        .set_buckets(&[0.001, 0.005, 0.025, 0.1, 0.5, 2.5, 8.0])
        .expect("there are some")
        .install_recorder()
        .expect("the only one");
    tokio::spawn(async move {
        loop {
            tokio::time::sleep(Duration::from_secs(1)).await;
            recorder.run_upkeep();
            std::hint::black_box(recorder.render());
        }
    });
}

async fn serve(side: &str, url: &str, settings: &Settings) {
    if settings.recorder {
        metrics::set_global_recorder(metrics::NoopRecorder).expect("the only one");
    }
    if settings.exporter {
        export();
    }
    let scheme = url.split(':').next().unwrap_or_default();
    let app = match (side, scheme) {
        ("verify_only", _) => verify_only(),
        ("verify_layer", _) => verify_layer(),
        ("ours", "postgres") => ours_postgres(url, settings).await,
        ("ours", "mysql") => ours_mysql(url, settings).await,
        ("ours", "sqlite") => ours_sqlite(url, settings).await,
        ("handwritten", "postgres") => {
            let pool = pool::<sqlx::Postgres>(settings).connect(url).await;
            let app = peer::App::new(SECRET, pool.expect("a pool"));
            Router::new()
                .route("/", post(peer::postgres::receive))
                .with_state(Arc::new(app))
        }
        ("rowlock", "postgres") => {
            let pool = pool::<sqlx::Postgres>(settings).connect(url).await;
            let app = peer::App::new(SECRET, pool.expect("a pool"));
            Router::new()
                .route("/", post(peer::ordered::receive))
                .with_state(Arc::new(app))
        }
        ("handwritten", "mysql") => {
            let pool = pool::<sqlx::MySql>(settings).connect(url).await;
            let app = peer::App::new(SECRET, pool.expect("a pool"));
            Router::new()
                .route("/", post(peer::mysql::receive))
                .with_state(Arc::new(app))
        }
        ("handwritten", "sqlite") => {
            let pool = peer::sqlite::pool(url, pool(settings)).await;
            let app = peer::App::new(SECRET, pool.expect("a pool"));
            Router::new()
                .route("/", post(peer::sqlite::receive))
                .with_state(Arc::new(app))
        }
        other => panic!("there is no side {other:?}"),
    };
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0")
        .await
        .expect("a port");
    println!(
        "listening {}",
        listener.local_addr().expect("an address").port()
    );
    let listener = listener.tap_io(|stream| {
        let _ = stream.set_nodelay(true);
    });
    let parent_is_gone = async {
        let mut nothing = [0; 64];
        while let Ok(1..) = tokio::io::stdin().read(&mut nothing).await {}
        // Not by returning: the runtime would wait for the thread that reads.
        std::process::exit(0)
    };
    tokio::select! {
        served = axum::serve(listener, app) => served.expect("it serves"),
        () = parent_is_gone => {}
    }
}

/// A pool with sqlx's defaults but for its size.
fn pool<DB: sqlx::Database>(settings: &Settings) -> PoolOptions<DB> {
    PoolOptions::new()
        .max_connections(settings.connections)
        .test_before_acquire(!settings.untested)
}

/// The signature alone: what is there without a database.
fn verify_only() -> Router {
    Router::new()
        .route("/", post(peer::verify_only))
        .with_state(peer::key(SECRET))
}

/// The same by this crate's layer, without an inbox.
fn verify_layer() -> Router {
    let secret = Secret::text(SECRET).expect("a secret");
    let secrets = Secrets::new([secret]).expect("secrets");
    Router::new()
        .route("/", post(async |_: Bytes| StatusCode::NO_CONTENT))
        .layer(VerifyLayer::new(Preset::KUDOS.scheme(), secrets))
}

#[derive(Deserialize)]
struct Event {
    event_id: String,
    data: Payment,
}

#[derive(Deserialize)]
struct Payment {
    account: String,
    amount: i64,
}

/// The inbox as its README has it, with a handler of one statement.
macro_rules! ours {
    ($DB:ty, $insert:literal, $inbox:expr) => {{
        async fn on_event(
            mut tx: Tx<$DB>,
            Json(event): Json<Event>,
        ) -> Result<StatusCode, StatusCode> {
            sqlx::query($insert)
                .bind(&event.event_id)
                .bind(&event.data.account)
                .bind(event.data.amount)
                .execute(&mut *tx)
                .await
                .map_err(|_| StatusCode::INTERNAL_SERVER_ERROR)?;
            Ok(StatusCode::NO_CONTENT)
        }
        let inbox: Inbox<$DB> = $inbox;
        inbox.mount("crm", Router::new().route("/", post(on_event)))
    }};
}

async fn ours_postgres(url: &str, settings: &Settings) -> Router {
    let pool = pool(settings).connect(url).await.expect("a pool");
    ours!(
        sqlx::Postgres,
        "INSERT INTO effect (event_id, account, amount) VALUES ($1, $2, $3)",
        inbox(pool, settings).await
    )
}

async fn ours_mysql(url: &str, settings: &Settings) -> Router {
    let pool = pool(settings).connect(url).await.expect("a pool");
    ours!(
        sqlx::MySql,
        "INSERT INTO effect (event_id, account, amount) VALUES (?, ?, ?)",
        inbox(pool, settings).await
    )
}

async fn ours_sqlite(url: &str, settings: &Settings) -> Router {
    let pool = tower_inbox::sqlite::connect(url, settings.connections)
        .await
        .expect("a pool");
    ours!(
        sqlx::Sqlite,
        "INSERT INTO effect (event_id, account, amount) VALUES (?, ?, ?)",
        inbox(pool, settings).await
    )
}

async fn inbox<DB: Backend>(pool: sqlx::Pool<DB>, settings: &Settings) -> Inbox<DB> {
    let mut source = Source::kudos("crm").secrets([SECRET]);
    if let Some(days) = settings.retention_days {
        source = source.retention(Duration::from_secs(days * 86_400));
    }
    if settings.grouped {
        source = source.batch(GROUP);
    }
    let mut builder = Inbox::builder(pool).source(source);
    for n in 0..settings.sources {
        builder = builder.source(Source::kudos(format!("other_{n}")).secrets([SECRET]));
    }
    if let Some(events) = settings.remembered {
        builder = builder.remembered(events);
    }
    if settings.no_statistics {
        builder = builder.no_statistics();
    }
    let inbox = builder.build().await.expect("an inbox");
    if settings.purge {
        let inbox = inbox.clone();
        tokio::spawn(async move {
            loop {
                inbox.purge("crm").await.expect("a purge");
                tokio::time::sleep(PURGE_AGAIN).await;
            }
        });
    }
    inbox
}
