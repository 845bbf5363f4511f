use sqlx::{MySql, Pool};

use super::super::super::database::TestDatabase;
use super::{Column, Look, MADE_TO_FAIL, TRIGGER, quoted, texts};

// Each of them names the database by itself, and joins nothing: only then the server looks into no other database.
const COLUMNS: &str = "SELECT CAST(table_name AS CHAR), CAST(column_name AS CHAR), \
     CAST(data_type AS CHAR), CAST(extra LIKE '%auto_increment%' AS SIGNED) \
     FROM information_schema.columns WHERE table_schema = DATABASE() \
     ORDER BY table_name, ordinal_position";
const TABLES: &str = "SELECT CAST(table_name AS CHAR) FROM information_schema.tables \
     WHERE table_schema = DATABASE() AND table_type = 'BASE TABLE'";
const REFERENCES: &str = "SELECT CAST(table_name AS CHAR), CAST(column_name AS CHAR), \
     CAST(referenced_table_name AS CHAR), CAST(referenced_column_name AS CHAR) \
     FROM information_schema.key_column_usage \
     WHERE table_schema = DATABASE() AND referenced_table_name IS NOT NULL";
const OPERATIONS: [&str; 3] = ["INSERT", "UPDATE", "DELETE"];

impl Look for MySql {
    async fn another(db: &TestDatabase<Self>) -> TestDatabase<Self> {
        TestDatabase::on_mysql(db.url()).await
    }

    async fn columns(pool: &Pool<Self>) -> Result<Vec<Column>, sqlx::Error> {
        let tables: Vec<String> = sqlx::query_scalar(TABLES).fetch_all(pool).await?;
        let found: Vec<(String, String, String, i64)> =
            sqlx::query_as(COLUMNS).fetch_all(pool).await?;
        let references: Vec<(String, String, String, String)> =
            sqlx::query_as(REFERENCES).fetch_all(pool).await?;
        let is_numbered = |table: &str, name: &str| {
            let mut found = found.iter();
            found.any(|(of, column, _, numbered)| of == table && column == name && *numbered != 0)
        };
        // What refers to a number that the database draws is one itself.
        let refers = |table: &str, name: &str| {
            let mut references = references.iter();
            references.any(|(from, column, to, key)| {
                from == table && column == name && is_numbered(to, key)
            })
        };
        let columns = found
            .iter()
            .filter(|(table, ..)| tables.contains(table))
            .map(|(table, name, kind, _)| {
                let quoted_name = quoted(name, '`');
                let is_binary = ["binary", "blob", "bit", "geometry"]
                    .iter()
                    .any(|binary| kind.to_ascii_lowercase().contains(binary));
                Column {
                    from: quoted(table, '`'),
                    text: if is_binary {
                        format!("CAST(HEX({quoted_name}) AS CHAR)")
                    } else {
                        format!("CAST({quoted_name} AS CHAR)")
                    },
                    drawn: is_numbered(table, name) || refers(table, name),
                    table: table.clone(),
                    name: name.clone(),
                }
            });
        Ok(columns.collect())
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
