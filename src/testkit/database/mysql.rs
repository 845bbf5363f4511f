use std::str::FromStr as _;

use sqlx::mysql::{MySqlConnectOptions, MySqlConnection, MySqlPoolOptions};
use sqlx::{AssertSqlSafe, ConnectOptions as _, Connection as _, MySql, Pool};

use super::{
    CONNECTIONS, Cell, PREFIX, TestBackend, TestDatabase, fresh_name, is_first_look, is_left_over,
    not_made, refuse_other_scheme, refuse_paused_clock,
};

impl TestDatabase<MySql> {
    pub(in crate::testkit) async fn on_mysql(server: &str) -> Self {
        refuse_paused_clock();
        refuse_other_scheme(server, &["mysql", "mariadb"]);
        not_made(
            "no database could be made on this MySQL or MariaDB server",
            make(server).await,
        )
    }
}

async fn make(server: &str) -> Result<TestDatabase<MySql>, sqlx::Error> {
    let options = MySqlConnectOptions::from_str(server)?;
    let name = fresh_name();
    let mut conn = options.connect().await?;
    if is_first_look(server) {
        remove_left_overs(&mut conn).await;
    }
    execute(&mut conn, &format!("CREATE DATABASE {name}")).await?;
    // Made: from here on it goes with the value.
    let pool = MySqlPoolOptions::new()
        .max_connections(CONNECTIONS)
        .connect_lazy_with(options.database(&name));
    let made = TestDatabase::on_server(pool, server, name);
    conn.close().await?;
    Ok(made)
}

impl TestBackend for MySql {
    async fn remove(server: &str, name: &str) -> Result<(), sqlx::Error> {
        let mut conn = MySqlConnectOptions::from_str(server)?.connect().await?;
        // DROP DATABASE waits for whoever has used a table in a transaction that is open.
        for id in connected(&mut conn, name).await? {
            // It may have ended by itself.
            let _ = execute(&mut conn, &format!("KILL {id}")).await;
        }
        execute(&mut conn, "SET lock_wait_timeout = 8").await?;
        execute(&mut conn, &format!("DROP DATABASE IF EXISTS {name}")).await?;
        conn.close().await
    }

    async fn cells(pool: &Pool<Self>, sql: &str) -> Result<Vec<Vec<Cell>>, sqlx::Error> {
        let rows = sqlx::raw_sql(AssertSqlSafe(sql)).fetch_all(pool).await?;
        rows.iter().map(Cell::all).collect()
    }
}

async fn execute(conn: &mut MySqlConnection, sql: &str) -> Result<(), sqlx::Error> {
    sqlx::raw_sql(AssertSqlSafe(sql)).execute(conn).await?;
    Ok(())
}

/// Who is connected to a database of this name, as far as this user may see it.
async fn connected(conn: &mut MySqlConnection, name: &str) -> Result<Vec<i64>, sqlx::Error> {
    sqlx::query_scalar("SELECT CAST(id AS SIGNED) FROM information_schema.processlist WHERE db = ?")
        .bind(name)
        .fetch_all(conn)
        .await
}

/// One that somebody is connected to is no left-over.
async fn remove_left_overs(conn: &mut MySqlConnection) {
    let names: Result<Vec<String>, _> = sqlx::query_scalar(
        "SELECT CAST(schema_name AS CHAR) FROM information_schema.schemata WHERE schema_name LIKE ?",
    )
    .bind(format!("{}%", PREFIX.replace('_', "\\_")))
    .fetch_all(&mut *conn)
    .await;
    for name in names.unwrap_or_default() {
        let is_used = match connected(conn, &name).await {
            Ok(connected) => !connected.is_empty(),
            Err(_) => true,
        };
        if is_left_over(&name) && !is_used {
            let _ = execute(conn, &format!("DROP DATABASE IF EXISTS {name}")).await;
        }
    }
}
