//! Queries: the connection itself.

macro_rules! statements_of_plain {
    () => {
        async fn run(conn: &mut Self::Connection, statement: SqlStr) -> Result<()> {
            sqlx::raw_sql(statement).execute(conn).await?;
            Ok(())
        }

        async fn rollback_to(conn: &mut Self::Connection) -> Result<()> {
            Self::run(
                conn,
                SqlStr::from_static("ROLLBACK TO SAVEPOINT tower_inbox"),
            )
            .await
        }

        async fn now(conn: &mut Self::Connection, sql: &Sql) -> Result<Timestamp> {
            $crate::fail::point!(sql, "store.now");
            let row = sqlx::query(sql.now.clone())
                .persistent(sql.named)
                .fetch_one(conn)
                .await?;
            Ok(Timestamp::from_micros(row.try_get(0)?))
        }

        async fn schema(conn: &mut Self::Connection, sql: &Sql) -> Result<()> {
            $crate::fail::point!(sql, "store.schema");
            // As plain text: nothing prepared may remember what is no more.
            Self::run(conn, sql.schema.clone()).await
        }

        async fn ping(conn: &mut Self::Connection, sql: &Sql) -> Result<()> {
            $crate::fail::point!(sql, "store.ping");
            sqlx::query(sql.ping.clone())
                .persistent(sql.named)
                .fetch_optional(conn)
                .await?;
            Ok(())
        }
    };
}

pub(crate) use statements_of_plain;
