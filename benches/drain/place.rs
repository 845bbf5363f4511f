//! The databases that the bench runs on.

use std::future::Future;

use sqlx::{AssertSqlSafe, ConnectOptions, Connection, Database, Pool, SqlSafeStr};
use tower_inbox::Backend;

pub(crate) const CONNECTIONS: u32 = 10;

/// A database of the bench's own.
pub(crate) trait Place: Backend {
    const LABEL: &'static str;
    /// Bytes of a table and its indexes, before and after it was filled.
    fn bytes_of(pool: &Pool<Self>, table: &str) -> impl Future<Output = i64> + Send;
    fn execute(
        conn: &mut <Self as Database>::Connection,
        sql: String,
    ) -> impl Future<Output = ()> + Send;
}

macro_rules! execute {
    () => {
        async fn execute(conn: &mut <Self as Database>::Connection, sql: String) {
            sqlx::raw_sql(AssertSqlSafe(sql).into_sql_str())
                .execute(conn)
                .await
                .expect("it is executed");
        }
    };
}

impl Place for sqlx::Sqlite {
    const LABEL: &'static str = "sqlite";

    async fn bytes_of(pool: &Pool<Self>, table: &str) -> i64 {
        let pages = format!(
            "SELECT COALESCE(SUM(pgsize), 0) FROM dbstat WHERE name LIKE '{table}%' OR name LIKE 'sqlite_autoindex_{table}%'"
        );
        match sqlx::query_scalar(AssertSqlSafe(pages))
            .fetch_one(pool)
            .await
        {
            Ok(bytes) => bytes,
            // Compiled without that table: the whole file, in which nothing else grows.
            Err(_) => sqlx::query_scalar(
                "SELECT page_count * page_size FROM pragma_page_count, pragma_page_size",
            )
            .fetch_one(pool)
            .await
            .expect("pages"),
        }
    }

    execute!();
}

impl Place for sqlx::Postgres {
    const LABEL: &'static str = "postgres";

    async fn bytes_of(pool: &Pool<Self>, table: &str) -> i64 {
        let size = format!("SELECT pg_total_relation_size('{table}')");
        sqlx::query_scalar(AssertSqlSafe(size))
            .fetch_one(pool)
            .await
            .expect("a size")
    }

    execute!();
}

impl Place for sqlx::MySql {
    const LABEL: &'static str = "mysql";

    async fn bytes_of(pool: &Pool<Self>, table: &str) -> i64 {
        sqlx::raw_sql(AssertSqlSafe(format!("ANALYZE TABLE {table}")))
            .execute(pool)
            .await
            .expect("it is analysed");
        let size = format!(
            "SELECT CAST(data_length + index_length AS SIGNED) FROM information_schema.tables
             WHERE table_schema = DATABASE() AND table_name = '{table}'"
        );
        sqlx::query_scalar(AssertSqlSafe(size))
            .fetch_one(pool)
            .await
            .expect("a size")
    }

    execute!();
}

/// A name that nobody else has.
pub(crate) fn name() -> String {
    format!("tower_inbox_bench_{:x}", fastrand::u64(..))
}

/// Makes a database on a server, and says how to connect to it.
pub(crate) async fn on_server<DB: Place>(url: &str, statement: String)
where
    <DB::Connection as Connection>::Options: ConnectOptions<Connection = DB::Connection>,
{
    let server: <DB::Connection as Connection>::Options = url
        .parse()
        .unwrap_or_else(|_| panic!("the URL of {}", DB::LABEL));
    let mut conn = server.connect().await.expect("the server answers");
    DB::execute(&mut conn, statement).await;
    let _ = conn.close().await;
}
