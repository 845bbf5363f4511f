#![doc = include_str!("../../docs/testkit.md")]

mod app;
mod attempt;
mod check;
mod clock;
mod database;
mod elsewhere;
mod event;
mod ground;
mod kit;
mod log;
mod network;
mod pass;
mod producer;
mod receive;
mod reply;
mod request;
mod run;
pub mod schedule;
mod show;
mod socket;
mod story;
mod write;

use std::sync::Arc;

pub use self::app::App;
pub use self::check::{Check, Checking, Finding, Report, Severity, check_idempotent};
pub use self::clock::VirtualClock;
pub use self::database::{TestBackend, TestDatabase};
pub use self::event::Event;
pub use self::kit::Kit;
pub use self::network::{Network, Point, Sending, Way};
pub use self::producer::Producer;
pub use self::reply::Reply;
pub use self::request::SignedRequest;
pub use self::schedule::Ending;
pub use self::story::{Attempt, Story};
pub use crate::operator::{Reason, State};
pub use crate::probe::Probe;

use crate::preset::Preset;

/// A SQLite database of one test: a file in a directory of its own, as in production (several connections, one writer).
///
/// # Panics
/// If there is no place for temporary files, or tokio's clock is paused: a [`VirtualClock`] is the one that a test moves.
#[cfg(feature = "sqlite")]
pub async fn sqlite() -> TestDatabase<sqlx::Sqlite> {
    TestDatabase::file().await
}

/// A SQLite database in memory: the fastest, on one connection, so that nothing runs beside a handler.
///
/// # Panics
/// If it cannot be opened, or tokio's clock is paused.
#[cfg(feature = "sqlite")]
pub async fn sqlite_in_memory() -> TestDatabase<sqlx::Sqlite> {
    TestDatabase::memory().await
}

/// A database of one test on a PostgreSQL server, such as `postgres://user:password@localhost/postgres`: the user must be
/// allowed to create databases.
///
/// # Panics
/// If none can be made there, it is the URL of something else, or tokio's clock is paused.
#[cfg(feature = "postgres")]
pub async fn postgres(server: &str) -> TestDatabase<sqlx::Postgres> {
    TestDatabase::on_postgres(server).await
}

/// A database of one test on a MySQL or MariaDB server, such as `mysql://user:password@localhost/mysql`: the user must be
/// allowed to create databases.
///
/// # Panics
/// If none can be made there, it is the URL of something else, or tokio's clock is paused.
#[cfg(feature = "mysql")]
pub async fn mysql(server: &str) -> TestDatabase<sqlx::MySql> {
    TestDatabase::on_mysql(server).await
}

/// Begins an event, with the producer's own id of it.
pub fn event(id: impl Into<String>) -> Event {
    Event::new(id.into())
}

/// A producer of a receiver in another process, signing with this secret: [`Producer::over`] says where that is.
pub fn producer(preset: Preset, secret: impl Into<String>) -> Producer {
    let ground = elsewhere::Elsewhere::default();
    Producer::new(Arc::new(ground), preset, secret.into())
}

/// A secret in the form of every preset.
pub const SECRET: &str = "whsec_dG93ZXItaW5ib3gtdGVzdC1raXQtc2VjcmV0LTAx";
