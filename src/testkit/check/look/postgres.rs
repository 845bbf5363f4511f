use sqlx::{Pool, Postgres};

use super::super::super::database::TestDatabase;
use super::{Column, Look, MADE_TO_FAIL, TRIGGER, quoted, texts};

/// What refers to a number that the database draws is one itself.
const COLUMNS: &str = "SELECT c.table_schema::text, c.table_name::text, c.column_name::text, \
     c.is_identity = 'YES' OR COALESCE(c.column_default, '') LIKE 'nextval(%' \
     OR EXISTS (SELECT 1 FROM pg_constraint f \
         JOIN pg_attribute a ON a.attrelid = f.conrelid AND a.attnum = ANY (f.conkey) \
         JOIN pg_attribute r ON r.attrelid = f.confrelid AND r.attnum = ANY (f.confkey) \
         LEFT JOIN pg_attrdef d ON d.adrelid = r.attrelid AND d.adnum = r.attnum \
         WHERE f.contype = 'f' AND a.attname = c.column_name \
         AND f.conrelid = format('%I.%I', c.table_schema, c.table_name)::regclass \
         AND (r.attidentity <> '' OR pg_get_expr(d.adbin, d.adrelid) LIKE 'nextval(%')) \
     FROM information_schema.columns c JOIN information_schema.tables t \
     ON t.table_schema = c.table_schema AND t.table_name = c.table_name \
     WHERE t.table_type = 'BASE TABLE' AND c.table_schema NOT IN ('pg_catalog', 'information_schema') \
     ORDER BY 1, 2, c.ordinal_position";
/// `io_error`: no constraint of the team's is meant.
const CODE: &str = "58030";

impl Look for Postgres {
    async fn another(db: &TestDatabase<Self>) -> TestDatabase<Self> {
        TestDatabase::on_postgres(db.url()).await
    }

    async fn columns(pool: &Pool<Self>) -> Result<Vec<Column>, sqlx::Error> {
        let found: Vec<(String, String, String, bool)> =
            sqlx::query_as(COLUMNS).fetch_all(pool).await?;
        let column = |(schema, table, name, drawn): (String, String, String, bool)| Column {
            from: format!("{}.{}", quoted(&schema, '"'), quoted(&table, '"')),
            text: format!("{}::text", quoted(&name, '"')),
            table: match schema.as_str() {
                "public" => table,
                _ => format!("{schema}.{table}"),
            },
            name,
            drawn,
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

    fn break_writes(from: &str, _: usize) -> Vec<String> {
        vec![
            format!(
                "CREATE OR REPLACE FUNCTION {TRIGGER}() RETURNS trigger LANGUAGE plpgsql AS \
                 $$ BEGIN RAISE EXCEPTION '{MADE_TO_FAIL}' USING ERRCODE = '{CODE}'; END $$"
            ),
            format!(
                "CREATE TRIGGER {TRIGGER} BEFORE INSERT OR UPDATE OR DELETE ON {from} \
                 FOR EACH STATEMENT EXECUTE FUNCTION {TRIGGER}()"
            ),
        ]
    }

    fn mend_writes(from: &str, _: usize) -> Vec<String> {
        vec![format!("DROP TRIGGER IF EXISTS {TRIGGER} ON {from}")]
    }
}
