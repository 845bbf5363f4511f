use sqlx::{MySql, Pool};

use super::super::super::database::TestDatabase;
use super::{Column, Look, MADE_TO_FAIL, TRIGGER, quoted, texts};

/// What refers to a number that the database draws is one itself.
const COLUMNS: &str = "SELECT CAST(c.table_name AS CHAR), CAST(c.column_name AS CHAR), \
     CAST(c.data_type AS CHAR), CAST(c.extra LIKE '%auto_increment%' OR EXISTS (\
         SELECT 1 FROM information_schema.key_column_usage k JOIN information_schema.columns r \
         ON r.table_schema = k.referenced_table_schema AND r.table_name = k.referenced_table_name \
         AND r.column_name = k.referenced_column_name \
         WHERE k.table_schema = c.table_schema AND k.table_name = c.table_name \
         AND k.column_name = c.column_name AND r.extra LIKE '%auto_increment%') AS SIGNED) \
     FROM information_schema.columns c JOIN information_schema.tables t \
     ON t.table_schema = c.table_schema AND t.table_name = c.table_name \
     WHERE t.table_type = 'BASE TABLE' AND c.table_schema = DATABASE() \
     ORDER BY c.table_name, c.ordinal_position";
const OPERATIONS: [&str; 3] = ["INSERT", "UPDATE", "DELETE"];

impl Look for MySql {
    async fn another(db: &TestDatabase<Self>) -> TestDatabase<Self> {
        TestDatabase::on_mysql(db.url()).await
    }

    async fn columns(pool: &Pool<Self>) -> Result<Vec<Column>, sqlx::Error> {
        let found: Vec<(String, String, String, i64)> =
            sqlx::query_as(COLUMNS).fetch_all(pool).await?;
        let column = |(table, name, kind, drawn): (String, String, String, i64)| {
            let quoted_name = quoted(&name, '`');
            let is_binary = ["binary", "blob", "bit", "geometry"]
                .iter()
                .any(|binary| kind.to_ascii_lowercase().contains(binary));
            Column {
                from: quoted(&table, '`'),
                text: if is_binary {
                    format!("CAST(HEX({quoted_name}) AS CHAR)")
                } else {
                    format!("CAST({quoted_name} AS CHAR)")
                },
                drawn: drawn != 0,
                table,
                name,
            }
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
                 FOR EACH ROW SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = '{MADE_TO_FAIL}'"
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
