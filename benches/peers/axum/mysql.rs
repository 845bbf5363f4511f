//! On MySQL and MariaDB.

use std::sync::Arc;

use axum::body::Bytes;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use sqlx::MySql;

use super::{App, fault, read, verify};

pub(crate) const TABLES: &str =
    "CREATE TABLE inbox (source VARCHAR(64) NOT NULL, event_id VARCHAR(255) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
        received_at DATETIME(6) NOT NULL DEFAULT CURRENT_TIMESTAMP(6), PRIMARY KEY (source, event_id))";

pub(crate) async fn receive(
    State(app): State<Arc<App<MySql>>>,
    headers: HeaderMap,
    body: Bytes,
) -> Result<StatusCode, StatusCode> {
    verify(&app.key, &headers, &body)?;
    let event = read(&body)?;
    let mut tx = app.pool.begin().await.map_err(fault)?;
    let inserted = sqlx::query("INSERT IGNORE INTO inbox (source, event_id) VALUES (?, ?)")
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
