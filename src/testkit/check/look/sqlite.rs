use sqlx::{Pool, Sqlite};

use super::super::super::database::TestDatabase;
use super::{Column, Look, MADE_TO_FAIL, TRIGGER, quoted, texts};

/// The rowid's alias is the only column that SQLite draws.
const COLUMNS: &str = "SELECT t.name, c.name, \
     CAST(upper(c.type) = 'INTEGER' AND c.pk = 1 \
         AND (SELECT COUNT(*) FROM pragma_table_info(t.name) k WHERE k.pk > 0) = 1 AS INTEGER) \
     FROM sqlite_master t JOIN pragma_table_info(t.name) c \
     WHERE t.type = 'table' AND t.name NOT LIKE 'sqlite\\_%' ESCAPE '\\' ORDER BY t.name, c.cid";
const OPERATIONS: [&str; 3] = ["INSERT", "UPDATE", "DELETE"];

impl Look for Sqlite {
    async fn another(db: &TestDatabase<Self>) -> TestDatabase<Self> {
        if db.url().contains(":memory:") {
            TestDatabase::memory().await
        } else {
            TestDatabase::file().await
        }
    }

    async fn columns(pool: &Pool<Self>) -> Result<Vec<Column>, sqlx::Error> {
        let found: Vec<(String, String, i64)> = sqlx::query_as(COLUMNS).fetch_all(pool).await?;
        let column = |(table, name, drawn): (String, String, i64)| Column {
            from: quoted(&table, '"'),
            text: format!("quote({})", quoted(&name, '"')),
            drawn: drawn != 0,
            table,
            name,
        };
        Ok(found.into_iter().map(column).collect())
    }

    async fn texts(
        pool: &Pool<Self>,
        sql: String,
        columns: usize,
    ) -> Result<Vec<Vec<Option<String>>>, sqlx::Error> {
        texts!(pool, sql, columns)
    }

    fn break_writes(from: &str, number: usize) -> Vec<String> {
        let statement = |operation| {
            format!(
                "CREATE TRIGGER {TRIGGER}_{operation}_{number} BEFORE {operation} ON {from} \
                 BEGIN SELECT RAISE(ABORT, '{MADE_TO_FAIL}'); END"
            )
        };
        OPERATIONS.map(statement).into()
    }

    fn mend_writes(_: &str, number: usize) -> Vec<String> {
        let statement =
            |operation| format!("DROP TRIGGER IF EXISTS {TRIGGER}_{operation}_{number}");
        OPERATIONS.map(statement).into()
    }
}
