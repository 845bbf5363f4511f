//! A database of its own for each side.

use std::path::PathBuf;

use sqlx::{AssertSqlSafe, ConnectOptions, Connection, SqlSafeStr};

use crate::peer;
use crate::process::Meter;
use crate::servers::Servers;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Sqlite,
    Postgres,
    MySql,
}

/// What the handlers of all sides write to: no index, so that the database's work is the inbox's.
const EFFECT: &str = "CREATE TABLE effect (event_id VARCHAR(255) NOT NULL, account VARCHAR(255) NOT NULL, amount BIGINT NOT NULL)";

/// A database that nobody else has.
pub(crate) struct Place {
    pub(crate) url: String,
    pub(crate) meter: Meter,
    kind: Kind,
    /// The server's, and the name; for SQLite nothing and the folder.
    server: String,
    name: String,
}

impl Place {
    /// With the tables of a peer that is written by hand, or without.
    pub(crate) async fn new(
        kind: Kind,
        servers: &mut Servers,
        tables: Option<&'static str>,
    ) -> Self {
        let name = format!("tower_inbox_bench_{:x}", fastrand::u64(..));
        let (server, meter) = match kind {
            Kind::Sqlite => (String::new(), Meter::None),
            Kind::Postgres => (servers.postgres().url.clone(), servers.postgres().meter),
            Kind::MySql => (servers.mysql().url.clone(), servers.mysql().meter),
        };
        let url = if kind == Kind::Sqlite {
            let folder = folder(&name);
            std::fs::create_dir_all(&folder).expect("a folder");
            format!("sqlite://{}?mode=rwc", folder.join("db").display())
        } else {
            execute(kind, &server, &format!("CREATE DATABASE {name}")).await;
            let (until, _) = server.rsplit_once('/').expect("the server's database");
            format!("{until}/{name}")
        };
        let place = Self {
            url,
            meter,
            kind,
            server,
            name,
        };
        place.execute(EFFECT).await;
        if let Some(tables) = tables {
            place.execute(tables).await;
        }
        place
    }

    /// Some statements, each with a `;` behind it but the last.
    pub(crate) async fn execute(&self, statements: &str) {
        execute(self.kind, &self.url, statements).await;
    }

    pub(crate) async fn close(self) {
        match self.kind {
            Kind::Sqlite => std::fs::remove_dir_all(folder(&self.name)).expect("it goes"),
            Kind::Postgres => {
                let drop = format!("DROP DATABASE {} WITH (FORCE)", self.name);
                execute(self.kind, &self.server, &drop).await;
            }
            Kind::MySql => {
                let drop = format!("DROP DATABASE {}", self.name);
                execute(self.kind, &self.server, &drop).await;
            }
        }
    }
}

/// Beside what was built, which is on a disk: the folder for temporary files is often in memory, where a flush costs
/// nothing.
pub(crate) fn folder(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name)
}

async fn execute(kind: Kind, url: &str, statements: &str) {
    let sql = AssertSqlSafe(statements.to_owned()).into_sql_str();
    macro_rules! on {
        ($options:expr) => {{
            let mut conn = $options.connect().await.expect("the server answers");
            sqlx::raw_sql(sql)
                .execute(&mut conn)
                .await
                .unwrap_or_else(|error| panic!("{statements}: {error}"));
            let _ = conn.close().await;
        }};
    }
    match kind {
        Kind::Sqlite => on!(tower_inbox::sqlite::connect_options(url).expect("a URL")),
        Kind::Postgres => {
            on!(url
                .parse::<sqlx::postgres::PgConnectOptions>()
                .expect("a URL"))
        }
        Kind::MySql => on!(url
            .parse::<sqlx::mysql::MySqlConnectOptions>()
            .expect("a URL")),
    }
}

/// The tables of the peer that is written by hand.
pub(crate) fn tables(kind: Kind) -> &'static str {
    match kind {
        Kind::Sqlite => peer::sqlite::TABLES,
        Kind::Postgres => peer::postgres::TABLES,
        Kind::MySql => peer::mysql::TABLES,
    }
}
