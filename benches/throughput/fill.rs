//! Rows that were there before, made in the server as copies of one that the inbox has written: which columns a table has is
//! the crate's own business.

use std::fmt::Write as _;

use sqlx::{AssertSqlSafe, Connection, PgConnection, SqlSafeStr};

/// What a database has in it before a side begins, on PostgreSQL.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fill {
    /// Nothing.
    Empty,
    /// So many million events of yesterday; a tenth of that with `--quick`.
    Events(u64),
    /// So many million cursors of other streams; a tenth of that with `--quick`.
    Cursors(u64),
    /// So many thousand events behind a gap, a hundred in each stream; a tenth of that with `--quick`.
    Parked(u64),
    /// Events that are past their retention: as many before each turn.
    Old,
}

/// More than a purge removes in a turn and until the next one.
const OLD: u64 = 250_000;
/// Events of the past: older than the default retention of 30 days, and not.
const LONG_AGO: u64 = 40 * 86_400 * 1_000_000;
const YESTERDAY: u64 = 86_400 * 1_000_000;
/// Rows in one statement.
const PIECE: u64 = 1_000_000;

impl Fill {
    /// Rows that are made once, before the first turn.
    pub(crate) async fn once(self, url: &str, quick: bool) {
        let rows = |millions: u64| millions * if quick { 100_000 } else { 1_000_000 };
        match self {
            Self::Empty | Self::Old => {}
            Self::Events(millions) => {
                fill(url, "event", "event_id", rows(millions), YESTERDAY).await;
            }
            Self::Cursors(millions) => {
                fill(url, "cursor", "correlation_id", rows(millions), YESTERDAY).await;
            }
            Self::Parked(thousands) => park(url, rows(thousands) / 1_000).await,
        }
    }

    /// Rows that are made anew before each turn. Where none is missing the table is tidied all the same, so that the turns of
    /// both sides begin alike, behind a checkpoint.
    pub(crate) async fn again(self, url: &str) {
        if self == Self::Old {
            let left = left(url).await;
            fill(url, "event", "event_id", OLD.saturating_sub(left), LONG_AGO).await;
        }
    }
}

async fn connect(url: &str) -> PgConnection {
    let connected = PgConnection::connect(url).await;
    connected.expect("the server answers")
}

/// Old events that are left.
pub(crate) async fn left(url: &str) -> u64 {
    let mut conn = connect(url).await;
    let sql = "SELECT count(*) FROM tower_inbox_event WHERE event_id LIKE 'old_%'";
    let left: i64 = sqlx::query_scalar(sql)
        .fetch_one(&mut conn)
        .await
        .expect("a number");
    let _ = conn.close().await;
    left.unsigned_abs()
}

async fn fill(url: &str, table: &str, key: &str, rows: u64, ago: u64) {
    let mut conn = connect(url).await;
    let columns: Vec<String> = sqlx::query_scalar(
        "SELECT column_name::text FROM information_schema.columns
         WHERE table_schema = 'public' AND table_name = 'tower_inbox_' || $1 AND is_identity = 'NO' AND is_generated = 'NEVER'
         ORDER BY ordinal_position",
    )
    .bind(table)
    .fetch_all(&mut conn)
    .await
    .expect("columns");
    let mut values = String::new();
    for column in &columns {
        let comma = if values.is_empty() { "" } else { ", " };
        let _ = match column.as_str() {
            // Random, as ids of events are.
            column if column == key => {
                write!(values, "{comma}'old_' || md5(random()::text || n::text)")
            }
            "received_at" | "decided_at" | "updated_at" => {
                write!(values, "{comma}{column} - {ago} + n")
            }
            column => write!(values, "{comma}{column}"),
        };
    }
    let columns = columns.join(", ");
    let mut done = 0;
    while done < rows {
        let piece = PIECE.min(rows - done);
        let sql = format!(
            "INSERT INTO tower_inbox_{table} ({columns}) SELECT {values}
             FROM (SELECT * FROM tower_inbox_{table} WHERE {key} NOT LIKE 'old_%' LIMIT 1) AS one, generate_series(1, {piece}) AS n"
        );
        let made = sqlx::query(AssertSqlSafe(sql).into_sql_str())
            .execute(&mut conn)
            .await
            .unwrap_or_else(|error| panic!("rows of {table}: {error}"));
        assert_eq!(made.rows_affected(), piece, "there is a row to copy");
        done += piece;
    }
    for after in [
        format!("VACUUM ANALYZE tower_inbox_{table}"),
        "CHECKPOINT".into(),
    ] {
        sqlx::raw_sql(AssertSqlSafe(after).into_sql_str())
            .execute(&mut conn)
            .await
            .expect("it is tidied");
    }
    let _ = conn.close().await;
}

/// Events with 1 KiB each that wait for the second one of their stream. No event that the inbox has written can be copied:
/// each has another place.
async fn park(url: &str, rows: u64) {
    let mut conn = connect(url).await;
    let columns = "source, event_id, state, fingerprint, correlation_id, sequence, slot, received_at, decided_at";
    let at = "(EXTRACT(EPOCH FROM now()) * 1000000)::BIGINT";
    for sql in [
        format!(
            "INSERT INTO tower_inbox_event ({columns})
             SELECT 'crm', 'old_' || n, 2, decode(md5(n::text), 'hex'), 'old_' || n / 100, n % 100 + 3, n % 100 + 3, {at}, {at}
             FROM generate_series(0, {rows} - 1) AS n"
        ),
        "INSERT INTO tower_inbox_pending
            (source, event_id, correlation_id, sequence, not_before, parked_at, bytes, method, uri, headers, body)
         SELECT source, event_id, correlation_id, sequence, 0, received_at, 1024, 'POST', '/', '', decode(repeat('20', 1024), 'hex')
         FROM tower_inbox_event WHERE event_id LIKE 'old_%'"
            .into(),
        format!(
            "INSERT INTO tower_inbox_cursor (source, correlation_id, next_sequence, updated_at)
             SELECT DISTINCT source, correlation_id, 2, {at} FROM tower_inbox_event WHERE event_id LIKE 'old_%'"
        ),
        "VACUUM ANALYZE".into(),
        "CHECKPOINT".into(),
    ] {
        sqlx::raw_sql(AssertSqlSafe(sql).into_sql_str())
            .execute(&mut conn)
            .await
            .expect("events are parked");
    }
    let _ = conn.close().await;
}

/// What a row of it takes with its indexes, in bytes.
pub(crate) async fn size(url: &str, table: &str) -> f64 {
    let mut conn = connect(url).await;
    let sql = format!(
        "SELECT pg_total_relation_size('{table}')::float8 / greatest(count(*), 1) FROM {table}"
    );
    let size = sqlx::query_scalar(AssertSqlSafe(sql).into_sql_str());
    let size = size.fetch_one(&mut conn).await.expect("a number");
    let _ = conn.close().await;
    size
}

/// Where the server's log ends, in bytes.
pub(crate) async fn log_end(url: &str) -> u64 {
    let mut conn = connect(url).await;
    let sql = "SELECT (pg_current_wal_insert_lsn() - '0/0'::pg_lsn)::BIGINT";
    let end: i64 = sqlx::query_scalar(sql)
        .fetch_one(&mut conn)
        .await
        .expect("a number");
    let _ = conn.close().await;
    end.unsigned_abs()
}
