use std::str::FromStr as _;
use std::time::Duration;

use sqlx::postgres::{PgConnectOptions, PgConnection, PgPoolOptions};
use sqlx::{AssertSqlSafe, ConnectOptions as _, Connection as _, Pool, Postgres};

use super::{
    CONNECTIONS, Cell, PREFIX, TestBackend, TestDatabase, fresh_name, is_first_look, is_left_over,
    not_made, refuse_other_scheme, refuse_paused_clock,
};

/// Somebody is connected to the template, for a moment as a rule.
const TEMPLATE_IN_USE: &str = "55006";

impl TestDatabase<Postgres> {
    pub(in crate::testkit) async fn on_postgres(server: &str) -> Self {
        refuse_paused_clock();
        refuse_other_scheme(server, &["postgres", "postgresql"]);
        not_made(
            "no database could be made on this PostgreSQL server",
            make(server).await,
        )
    }
}

async fn make(server: &str) -> Result<TestDatabase<Postgres>, sqlx::Error> {
    let options = PgConnectOptions::from_str(server)?;
    let name = fresh_name();
    let mut conn = options.connect().await?;
    if is_first_look(server) {
        remove_left_overs(&mut conn).await;
    }
    let mut tries = 0;
    loop {
        let created = execute(&mut conn, &format!("CREATE DATABASE {name}")).await;
        match created {
            Err(sqlx::Error::Database(error))
                if error.code().as_deref() == Some(TEMPLATE_IN_USE) && tries < 20 =>
            {
                tries += 1;
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
            other => break other?,
        }
    }
    // Made: from here on it goes with the value.
    let pool = PgPoolOptions::new()
        .max_connections(CONNECTIONS)
        .connect_lazy_with(options.database(&name));
    let made = TestDatabase::on_server(pool, server, name);
    conn.close().await?;
    Ok(made)
}

impl TestBackend for Postgres {
    async fn remove(server: &str, name: &str) -> Result<(), sqlx::Error> {
        let mut conn = PgConnectOptions::from_str(server)?.connect().await?;
        execute(
            &mut conn,
            &format!("DROP DATABASE IF EXISTS {name} WITH (FORCE)"),
        )
        .await?;
        conn.close().await
    }

    async fn cells(pool: &Pool<Self>, sql: &str) -> Result<Vec<Vec<Cell>>, sqlx::Error> {
        let rows = sqlx::raw_sql(AssertSqlSafe(sql)).fetch_all(pool).await?;
        rows.iter().map(Cell::all).collect()
    }
}

async fn execute(conn: &mut PgConnection, sql: &str) -> Result<(), sqlx::Error> {
    sqlx::raw_sql(AssertSqlSafe(sql)).execute(conn).await?;
    Ok(())
}

/// Without force: one that somebody is connected to is no left-over.
async fn remove_left_overs(conn: &mut PgConnection) {
    let names: Result<Vec<String>, _> =
        sqlx::query_scalar("SELECT datname::text FROM pg_database WHERE starts_with(datname, $1)")
            .bind(PREFIX)
            .fetch_all(&mut *conn)
            .await;
    for name in names.unwrap_or_default() {
        if is_left_over(&name) {
            let _ = execute(conn, &format!("DROP DATABASE IF EXISTS {name}")).await;
        }
    }
}
