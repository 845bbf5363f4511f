//! The reference receiver: a ledger behind the inbox, over real HTTP.
//!
//! `cargo run --example receiver` starts it on port 3000 with a SQLite file and prints the secret that the sender
//! needs. Every setting is an environment variable and a flag: see `--help`. With `--features postgres,mysql` it runs
//! on PostgreSQL, MariaDB and MySQL as well, by its `DATABASE_URL`.
#![cfg_attr(
    not(any(feature = "sqlite", feature = "postgres", feature = "mysql")),
    allow(
        dead_code,
        unreachable_code,
        unused_imports,
        unused_variables,
        reason = "without a database it can only say so"
    )
)]
#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a command-line program"
)]

#[cfg(feature = "console")]
mod console;
mod data;
mod faults;
mod http;
mod ledger;
mod open;
mod settings;
#[path = "../shared/mod.rs"]
mod shared;

use std::error::Error;
use std::fmt::Write as _;
use std::future::IntoFuture as _;
use std::io::{IsTerminal as _, Write as _};
use std::net::SocketAddr;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use axum::serve::ListenerExt as _;
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder};
use sqlx::Pool;
use sqlx::pool::PoolOptions;
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tower_inbox::Preset;
use tower_inbox::verify::Tolerance;
use tower_inbox::{BuildErrorKind, Inbox, Source};
use tracing_subscriber::EnvFilter;

use faults::{Faulty, Runs};
use http::App;
use open::{Closed, Open};
use settings::{CLI, Kind, Mounted, Settings};
use shared::args::Wrong;

/// Beyond the budget of a delivery: what a network needs to bring its answer back.
const GRACE: Duration = Duration::from_secs(2);
/// Buckets of every histogram, in seconds: from a duplicate in memory, over the patience of producers, to a slow worker.
const BUCKETS: [f64; 14] = [
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 8.0, 30.0,
];
/// How often the recorder of metrics folds what it has gathered.
const UPKEEP: Duration = Duration::from_secs(5);

/// Why the receiver did not run, or not to its end.
enum Failure {
    /// A setting that cannot be used: status 2.
    Setting(Wrong),
    /// The world outside: status 1.
    Other(Box<dyn Error>),
}

impl<E: Into<Box<dyn Error>>> From<E> for Failure {
    fn from(error: E) -> Self {
        Self::Other(error.into())
    }
}

#[tokio::main]
async fn main() -> ExitCode {
    let settings = Settings::from(&CLI.settings()).unwrap_or_else(|wrong| wrong.exit(CLI.name));
    tracing_subscriber::fmt()
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal())
        .with_env_filter(
            EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("info")),
        )
        .init();
    let ran = match settings.database.kind {
        #[cfg(feature = "sqlite")]
        Kind::Sqlite => run::<sqlx::Sqlite>(settings).await,
        #[cfg(feature = "postgres")]
        Kind::Postgres => run::<sqlx::Postgres>(settings).await,
        #[cfg(feature = "mysql")]
        Kind::MySql => run::<sqlx::MySql>(settings).await,
    };
    match ran {
        Ok(()) => ExitCode::SUCCESS,
        Err(Failure::Setting(wrong)) => wrong.exit(CLI.name),
        Err(Failure::Other(error)) => {
            eprintln!("{}: {error}", CLI.name);
            ExitCode::FAILURE
        }
    }
}

async fn run<DB: Faulty + Open>(mut settings: Settings) -> Result<(), Failure> {
    // Taken before anything is announced, so that a signal that comes at once is not lost.
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let metrics = PrometheusBuilder::new()
        .set_buckets_for_metric(Matcher::Suffix("_seconds".to_owned()), &BUCKETS)?
        .install_recorder()?;

    let random = settings
        .mounted
        .is_empty()
        .then(random_secret)
        .transpose()?;
    if let Some(secret) = &random {
        let preset = &Preset::KUDOS;
        settings.mounted.push(Mounted {
            preset,
            secrets: vec![secret.clone()],
        });
    }
    let options = PoolOptions::<DB>::new()
        .max_connections(settings.pool_size)
        // A delivery's own budget ends its wait; what has none, such as a look at the ledger, waits no longer.
        .acquire_timeout(settings.longest_budget());
    let pool = DB::open(&settings.database.url, options)
        .await
        .map_err(|error| match error {
            Closed::Url(error) => Failure::Setting(Wrong(format!("DATABASE_URL: {error}"))),
            Closed::Database(error) => format!("the database could not be opened: {error}").into(),
        })?;
    DB::create(&pool)
        .await
        .map_err(|error| format!("the ledger's tables could not be made: {error}"))?;
    let inbox = inbox(&pool, &settings).await?;

    let app = Arc::new(App {
        pool: pool.clone(),
        inbox: inbox.clone(),
        metrics: metrics.clone(),
        faults: settings.demo_faults.then(Runs::default),
    });
    let presets: Vec<_> = settings
        .mounted
        .iter()
        .map(|mounted| mounted.preset.name)
        .collect();
    let router = http::router(app, &presets);
    #[cfg(feature = "console")]
    let router = console::mount(router, &inbox, &settings).map_err(Failure::Setting)?;
    let listener = TcpListener::bind(&settings.listen)
        .await
        .map_err(|error| format!("LISTEN: {:?} cannot be used: {error}", settings.listen))?;
    let address = listener.local_addr()?;
    announce(&format!("listening on http://{address}"));
    if let Some(secret) = random {
        announce(&format!(
            "no secrets were set; one for kudos was made: KUDOS_SECRETS={secret}"
        ));
    }
    if settings.demo_faults {
        tracing::warn!("DEMO_FAULTS is on: events say by themselves what goes wrong");
    }
    let upkeep = tokio::spawn(async move {
        loop {
            tokio::time::sleep(UPKEEP).await;
            metrics.run_upkeep();
        }
    });

    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let listener = listener.tap_io(|stream| {
        // Small answers must not wait for more to be sent.
        let _ = stream.set_nodelay(true);
    });
    // With the address of who asks: the console slows each client down by itself.
    let app = router.into_make_service_with_connect_info::<SocketAddr>();
    let server = axum::serve(listener, app).with_graceful_shutdown(async {
        let _ = stopped.await;
    });
    let mut server = tokio::spawn(server.into_future());
    tokio::select! {
        ended = &mut server => ended??,
        _ = terminate.recv() => tracing::info!("SIGTERM: no new deliveries, those in flight are finished"),
        _ = interrupt.recv() => tracing::info!("interrupted: no new deliveries, those in flight are finished"),
    }
    let _ = stop.send(());
    if tokio::time::timeout(settings.longest_budget() + GRACE, &mut server)
        .await
        .is_err()
    {
        tracing::warn!("some connections were still open and are closed");
        server.abort();
    }
    inbox.shutdown().await;
    upkeep.abort();
    pool.close().await;
    tracing::info!("ended in good order");
    Ok(())
}

/// A line on standard output. Nobody may be reading there; that is no reason to stop.
fn announce(line: &str) {
    let mut out = std::io::stdout().lock();
    let _ = writeln!(out, "{line}").and_then(|()| out.flush());
}

async fn inbox<DB: Faulty>(pool: &Pool<DB>, settings: &Settings) -> Result<Inbox<DB>, Failure> {
    let mut builder = Inbox::builder(pool.clone()).lease(settings.lease);
    #[cfg(feature = "failpoints")]
    {
        builder = builder.fail_points(ends_at_its_fail_point());
    }
    if let Some(deliveries) = settings.max_in_flight {
        builder = builder.max_in_flight(deliveries);
    }
    for mounted in &settings.mounted {
        builder = builder.source(source(mounted, settings));
    }
    builder.build().await.map_err(|error| match error.kind() {
        BuildErrorKind::Schema | BuildErrorKind::Database => error.into(),
        _ => Failure::Setting(Wrong(error.to_string())),
    })
}

fn source(mounted: &Mounted, settings: &Settings) -> Source {
    let mut source = Source::new(mounted.preset.name, *mounted.preset)
        .secrets(mounted.secrets.iter().cloned())
        .tolerance(Tolerance::new(settings.tolerance, settings.tolerance))
        .budget(settings.budget_of(mounted.preset))
        .body_limit(settings.body_limit)
        .backoff(settings.backoff.iter().copied())
        .park_limit(settings.park_limit);
    if settings
        .deferred
        .iter()
        .any(|name| name == mounted.preset.name)
    {
        source = source.deferred();
    }
    if let Some(store) = settings.store_responses {
        source = source.store_answers(store);
    }
    source = match settings.first_sequence {
        Some(first) => source.first_sequence(first),
        None => source.adopt_first_sequence(settings.settle),
    };
    if let Some(retention) = settings.retention {
        source = source.retention(retention);
    }
    if let Some(window) = settings.recovery_window {
        source = source.recovery_window(window);
    }
    if settings.allow_short_retention {
        source = source.insecure_short_retention();
    }
    source
}

/// `FAIL_POINT=name` ends the process there, as a crash would; `name:3` the third time. For the tests of this crate.
#[cfg(feature = "failpoints")]
fn ends_at_its_fail_point() -> tower_inbox::FailPoints {
    use std::sync::atomic::{AtomicUsize, Ordering};
    let Ok(wanted) = std::env::var("FAIL_POINT") else {
        return tower_inbox::FailPoints::default();
    };
    let (wanted, times) = match wanted.split_once(':') {
        Some((name, times)) => (name.to_owned(), times.parse().unwrap_or(1)),
        None => (wanted, 1),
    };
    let reached = AtomicUsize::new(0);
    tower_inbox::FailPoints::new(move |name| {
        if name == wanted && reached.fetch_add(1, Ordering::Relaxed) + 1 == times {
            std::process::abort();
        }
        async { Ok(()) }
    })
}

/// 256 bits.
fn random_secret() -> Result<String, Box<dyn Error>> {
    let mut bytes = [0; 32];
    getrandom::fill(&mut bytes).map_err(|error| format!("no random numbers: {error}"))?;
    Ok(bytes.iter().fold(String::from("whk_"), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    }))
}
