//! On SQLite: WAL, synchronous FULL, and BEGIN IMMEDIATE, since a deferred transaction that begins to write late is
//! refused at once when somebody else has written meanwhile.

use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Bytes;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use sqlx::sqlite::{SqliteConnectOptions, SqliteJournalMode, SqlitePoolOptions, SqliteSynchronous};
use sqlx::{Sqlite, SqlitePool};

use super::{App, fault, read, verify};

pub(crate) const TABLES: &str =
    "CREATE TABLE inbox (source TEXT NOT NULL, event_id TEXT NOT NULL, received_at INTEGER NOT NULL DEFAULT (unixepoch()),
        PRIMARY KEY (source, event_id)) WITHOUT ROWID";

/// SQLite's writers poll for its one lock, and some are unlucky for long.
const BUSY: Duration = Duration::from_secs(30);

pub(crate) async fn pool(url: &str, options: SqlitePoolOptions) -> Result<SqlitePool, sqlx::Error> {
    let connect = SqliteConnectOptions::from_str(url)?
        .journal_mode(SqliteJournalMode::Wal)
        .synchronous(SqliteSynchronous::Full)
        .busy_timeout(BUSY);
    options.connect_with(connect).await
}

pub(crate) async fn receive(
    State(app): State<Arc<App<Sqlite>>>,
    headers: HeaderMap,
    body: Bytes,
) -> Result<StatusCode, StatusCode> {
    verify(&app.key, &headers, &body)?;
    let event = read(&body)?;
    let mut tx = app
        .pool
        .begin_with("BEGIN IMMEDIATE")
        .await
        .map_err(fault)?;
    let inserted =
        sqlx::query("INSERT INTO inbox (source, event_id) VALUES (?, ?) ON CONFLICT DO NOTHING")
            .bind("crm")
            .bind(&event.event_id)
            .execute(&mut *tx)
            .await
            .map_err(fault)?;
    if inserted.rows_affected() == 0 {
        tx.rollback().await.map_err(fault)?;
        return Ok(StatusCode::OK);
    }
    sqlx::query("INSERT INTO effect (event_id, account, amount) VALUES (?, ?, ?)")
        .bind(&event.event_id)
        .bind(&event.data.account)
        .bind(event.data.amount)
        .execute(&mut *tx)
        .await
        .map_err(fault)?;
    tx.commit().await.map_err(fault)?;
    Ok(StatusCode::NO_CONTENT)
}
