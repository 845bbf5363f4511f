//! A look at the receiver's SQLite file from outside.

use std::path::Path;
use std::time::Duration;

use sqlx::sqlite::{SqliteConnectOptions, SqliteConnection};
use sqlx::{AssertSqlSafe, Connection as _};

fn with<T>(
    file: &Path,
    work: impl AsyncFnOnce(&mut SqliteConnection) -> sqlx::Result<T>,
) -> sqlx::Result<T> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime");
    runtime.block_on(async {
        let options = SqliteConnectOptions::new()
            .filename(file)
            .busy_timeout(Duration::ZERO);
        let mut conn = SqliteConnection::connect_with(&options).await?;
        let result = work(&mut conn).await;
        conn.close().await?;
        result
    })
}

/// Whether a transaction of the receiver holds the write lock: a handler runs.
pub(crate) fn is_written(file: &Path) -> bool {
    let tried = with(file, async |conn| {
        sqlx::raw_sql("BEGIN IMMEDIATE").execute(&mut *conn).await?;
        sqlx::raw_sql("ROLLBACK").execute(&mut *conn).await?;
        Ok(())
    });
    match tried {
        Ok(()) => false,
        Err(sqlx::Error::Database(error)) if error.code().as_deref() == Some("5") => true,
        Err(error) => panic!("{error}"),
    }
}

/// How many rows a table of the inbox has.
pub(crate) fn rows(file: &Path, table: &str) -> i64 {
    let sql = format!("SELECT COUNT(*) FROM tower_inbox_{table}");
    with(file, async |conn| {
        sqlx::query_scalar(AssertSqlSafe(sql)).fetch_one(conn).await
    })
    .expect("a count")
}
