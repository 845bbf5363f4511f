//! On PostgreSQL, and in order: the row of the stream's cursor is locked, what is early is stored, and what was stored is
//! applied in the transaction of the event that it waited for.

use std::sync::Arc;

use axum::body::Bytes;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use sqlx::{PgConnection, Postgres};

use super::{App, Event, fault, read, verify};

pub(crate) const TABLES: &str =
    "CREATE TABLE inbox (source TEXT NOT NULL, event_id TEXT NOT NULL, received_at TIMESTAMPTZ NOT NULL DEFAULT now(),
        PRIMARY KEY (source, event_id));
     CREATE TABLE stream (correlation_id TEXT PRIMARY KEY, last BIGINT NOT NULL, early BIGINT NOT NULL);
     CREATE TABLE early (correlation_id TEXT NOT NULL, sequence BIGINT NOT NULL, body BYTEA NOT NULL,
        PRIMARY KEY (correlation_id, sequence))";

pub(crate) async fn receive(
    State(app): State<Arc<App<Postgres>>>,
    headers: HeaderMap,
    body: Bytes,
) -> Result<StatusCode, StatusCode> {
    verify(&app.key, &headers, &body)?;
    let event = read(&body)?;
    let (Some(stream), Some(sequence)) = (&event.correlation_id, event.sequence) else {
        return Err(StatusCode::BAD_REQUEST);
    };
    let mut tx = app.pool.begin().await.map_err(fault)?;
    let inserted =
        sqlx::query("INSERT INTO inbox (source, event_id) VALUES ($1, $2) ON CONFLICT DO NOTHING")
            .bind("crm")
            .bind(&event.event_id)
            .execute(&mut *tx)
            .await
            .map_err(fault)?;
    if inserted.rows_affected() == 0 {
        tx.rollback().await.map_err(fault)?;
        return Ok(StatusCode::OK);
    }
    let (mut last, mut early) = lock(&mut tx, stream).await.map_err(fault)?;
    if sequence <= last {
        tx.rollback().await.map_err(fault)?;
        return Ok(StatusCode::OK);
    }
    if sequence > last + 1 {
        sqlx::query("UPDATE stream SET early = early + 1 WHERE correlation_id = $1")
            .bind(stream)
            .execute(&mut *tx)
            .await
            .map_err(fault)?;
        sqlx::query("INSERT INTO early (correlation_id, sequence, body) VALUES ($1, $2, $3)")
            .bind(stream)
            .bind(sequence)
            .bind(&body[..])
            .execute(&mut *tx)
            .await
            .map_err(fault)?;
        tx.commit().await.map_err(fault)?;
        return Ok(StatusCode::ACCEPTED);
    }
    apply(&mut tx, &event).await.map_err(fault)?;
    last += 1;
    while early > 0
        && let Some(body) = next(&mut tx, stream, last + 1).await.map_err(fault)?
    {
        apply(&mut tx, &read(&body)?).await.map_err(fault)?;
        last += 1;
        early -= 1;
    }
    sqlx::query("UPDATE stream SET last = $2, early = $3 WHERE correlation_id = $1")
        .bind(stream)
        .bind(last)
        .bind(early)
        .execute(&mut *tx)
        .await
        .map_err(fault)?;
    tx.commit().await.map_err(fault)?;
    Ok(StatusCode::NO_CONTENT)
}

/// The stream's last sequence, and how many wait beyond it.
async fn lock(conn: &mut PgConnection, stream: &str) -> Result<(i64, i64), sqlx::Error> {
    let locked = "SELECT last, early FROM stream WHERE correlation_id = $1 FOR UPDATE";
    if let Some(row) = sqlx::query_as(locked)
        .bind(stream)
        .fetch_optional(&mut *conn)
        .await?
    {
        return Ok(row);
    }
    sqlx::query(
        "INSERT INTO stream (correlation_id, last, early) VALUES ($1, 0, 0) ON CONFLICT DO NOTHING",
    )
    .bind(stream)
    .execute(&mut *conn)
    .await?;
    sqlx::query_as(locked)
        .bind(stream)
        .fetch_one(&mut *conn)
        .await
}

async fn next(
    conn: &mut PgConnection,
    stream: &str,
    sequence: i64,
) -> Result<Option<Vec<u8>>, sqlx::Error> {
    sqlx::query_scalar(
        "DELETE FROM early WHERE correlation_id = $1 AND sequence = $2 RETURNING body",
    )
    .bind(stream)
    .bind(sequence)
    .fetch_optional(conn)
    .await
}

async fn apply(conn: &mut PgConnection, event: &Event) -> Result<(), sqlx::Error> {
    sqlx::query("INSERT INTO effect (event_id, account, amount) VALUES ($1, $2, $3)")
        .bind(&event.event_id)
        .bind(&event.data.account)
        .bind(event.data.amount)
        .execute(conn)
        .await?;
    Ok(())
}
