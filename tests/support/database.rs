//! The database as a parameter: a throw-away one for each test, and what is asked of it from outside of the receiver.

use std::env;
use std::path::{Path, PathBuf};
use std::time::Duration;

use sqlx::sqlite::{SqliteConnectOptions, SqliteConnection};
use sqlx::{AssertSqlSafe, Connection as _};

use super::server::Server;

/// What a test runs on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Sqlite,
    Postgres,
    MySql,
}

/// A database of one test, removed at its end.
pub(crate) struct Database {
    pub(crate) kind: Kind,
    /// As the receiver gets it.
    url: String,
    /// Of the whole server; nothing where the file goes with its directory, or the server with the test.
    server: Option<String>,
    name: String,
}

impl Kind {
    /// As `TOWER_INBOX_TEST_DATABASES` has it.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Sqlite => "sqlite",
            Self::Postgres => "postgres",
            Self::MySql => "mysql",
        }
    }

    /// One transaction at a time may write.
    pub(crate) fn single_writer(self) -> bool {
        self == Self::Sqlite
    }

    /// The server on which a test makes its database.
    fn server(self) -> Result<Option<String>, String> {
        let variable = match self {
            Self::Sqlite => return Ok(None),
            Self::Postgres => "TEST_POSTGRES_URL",
            Self::MySql => "TEST_MYSQL_URL",
        };
        env::var(variable)
            .map(Some)
            .map_err(|_| format!("{variable} is not set: tests/run starts a server"))
    }
}

/// Runs one test, unless its database is to be left out.
pub(crate) fn run(kind: Kind, test: impl FnOnce(Kind)) {
    if is_wanted(kind, || kind.server().map(drop)) {
        test(kind);
    }
}

/// Whether a test is to be run. Something that is missing is a failure if the database is listed.
pub(crate) fn is_wanted(kind: Kind, find: impl FnOnce() -> Result<(), String>) -> bool {
    let listed = env::var("TOWER_INBOX_TEST_DATABASES").ok();
    if let Some(listed) = &listed
        && !listed.split(',').any(|name| name.trim() == kind.name())
    {
        return false;
    }
    match find() {
        Ok(()) => true,
        Err(missing) if listed.is_some() => {
            panic!("{} must be tested and cannot be: {missing}", kind.name())
        }
        Err(missing) => {
            eprintln!("NOT TESTED on {}: {missing}", kind.name());
            false
        }
    }
}

/// Makes one test for each database out of each of these functions of a [`Kind`].
#[allow(unused_macros, reason = "not every test file is about all of them")]
macro_rules! on_each_database {
    ($($test:ident),+ $(,)?) => {
        mod sqlite {
            $(#[test] fn $test() { crate::support::database::run(crate::support::database::Kind::Sqlite, super::$test) })+
        }
        crate::support::database::on_each_server!($($test),+);
    };
}
/// The same without SQLite.
#[allow(unused_macros, reason = "not every test file is about all of them")]
macro_rules! on_each_server {
    ($($test:ident),+ $(,)?) => {
        #[cfg(feature = "postgres")]
        mod postgres {
            $(#[test] fn $test() { crate::support::database::run(crate::support::database::Kind::Postgres, super::$test) })+
        }
        #[cfg(feature = "mysql")]
        mod mysql {
            $(#[test] fn $test() { crate::support::database::run(crate::support::database::Kind::MySql, super::$test) })+
        }
    };
}
#[allow(unused_imports, reason = "not every test file is about all of them")]
pub(crate) use {on_each_database, on_each_server};

impl Database {
    /// A fresh one; a file in this directory, or on the server of the tests.
    pub(crate) fn new(kind: Kind, directory: &Path) -> Self {
        let name = format!("black_box_{:x}", fastrand::u64(..));
        let server = kind.server().expect("it was looked for");
        let Some(server) = server else {
            let url = format!("sqlite://{}?mode=rwc", directory.join("inbox.db").display());
            return Self {
                kind,
                url,
                server: None,
                name,
            };
        };
        execute(kind, &server, &format!("CREATE DATABASE {name}")).expect("a database");
        Self {
            kind,
            url: with_path(&server, &name),
            server: Some(server),
            name,
        }
    }

    /// That of a server of the test's own.
    pub(crate) fn on(server: &Server) -> Self {
        Self {
            kind: server.kind,
            url: server.url.clone(),
            server: None,
            name: String::new(),
        }
    }

    pub(crate) fn url(&self) -> &str {
        &self.url
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    fn file(&self) -> PathBuf {
        let file = self.url.trim_start_matches("sqlite://");
        file.trim_end_matches("?mode=rwc").into()
    }

    /// Transactions that are open and do nothing.
    pub(crate) fn open_transactions(&self) -> i64 {
        match self.kind {
            Kind::Sqlite => i64::from(is_locked(&self.file())),
            Kind::Postgres => self.number(
                "SELECT COUNT(*) FROM pg_stat_activity
                 WHERE datname = current_database() AND state LIKE 'idle in transaction%'",
            ),
            Kind::MySql => {
                // What the view shows is as old as the last time when nobody had asked for 0.1 s.
                std::thread::sleep(Duration::from_millis(fastrand::u64(150..300)));
                self.number(
                    "SELECT COUNT(*) FROM information_schema.innodb_trx t
                     JOIN information_schema.processlist p ON p.id = t.trx_mysql_thread_id
                     WHERE p.db = DATABASE() AND p.id <> CONNECTION_ID()",
                )
            }
        }
    }

    /// How many rows a table of the inbox has.
    pub(crate) fn rows(&self, table: &str) -> i64 {
        self.number(&format!("SELECT COUNT(*) FROM tower_inbox_{table}"))
    }

    /// Any statement, from outside of the receiver.
    #[track_caller]
    pub(crate) fn execute(&self, sql: &str) {
        execute(self.kind, &self.url, sql).expect("it is executed");
    }

    /// The one number that a query finds.
    #[track_caller]
    pub(crate) fn number(&self, sql: &str) -> i64 {
        number(self.kind, &self.url, sql).expect("a number")
    }
}

impl Drop for Database {
    fn drop(&mut self) {
        let Some(server) = &self.server else { return };
        let force = match self.kind {
            Kind::Postgres => " WITH (FORCE)",
            _ => "",
        };
        let drop = format!("DROP DATABASE {}{force}", self.name);
        if let Err(error) = execute(self.kind, server, &drop) {
            eprintln!("{} is left behind: {error}", self.name);
        }
    }
}

/// A URL with another path.
pub(crate) fn with_path(url: &str, path: &str) -> String {
    let (server, _) = url.rsplit_once('/').expect("a URL with a path");
    format!("{server}/{path}")
}

fn wait_for<T>(work: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime");
    runtime.block_on(work)
}

/// A connection of the kind's driver, with which something is done.
macro_rules! on_connection {
    ($kind:expr, $url:expr, |$conn:ident| $work:expr) => {{
        macro_rules! on {
            ($driver:ty) => {
                wait_for(async {
                    let mut $conn = <$driver>::connect($url).await?;
                    let result = $work;
                    $conn.close().await?;
                    result
                })
            };
        }
        match $kind {
            Kind::Sqlite => on!(SqliteConnection),
            #[cfg(feature = "postgres")]
            Kind::Postgres => on!(sqlx::PgConnection),
            #[cfg(feature = "mysql")]
            Kind::MySql => on!(sqlx::MySqlConnection),
            #[allow(unreachable_patterns, reason = "with all features")]
            other => panic!("the tests are built without {}", other.name()),
        }
    }};
}

pub(crate) fn number(kind: Kind, url: &str, sql: &str) -> sqlx::Result<i64> {
    on_connection!(kind, url, |conn| sqlx::query_scalar(AssertSqlSafe(sql))
        .fetch_one(&mut conn)
        .await)
}

fn execute(kind: Kind, url: &str, sql: &str) -> sqlx::Result<()> {
    on_connection!(kind, url, |conn| sqlx::raw_sql(AssertSqlSafe(sql))
        .execute(&mut conn)
        .await
        .map(drop))
}

/// Whether somebody has SQLite's write lock.
fn is_locked(file: &Path) -> bool {
    let tried = wait_for(async {
        let options = SqliteConnectOptions::new()
            .filename(file)
            .busy_timeout(Duration::ZERO);
        let mut conn = SqliteConnection::connect_with(&options).await?;
        let tried = sqlx::raw_sql("BEGIN IMMEDIATE").execute(&mut conn).await;
        if tried.is_ok() {
            sqlx::raw_sql("ROLLBACK").execute(&mut conn).await?;
        }
        conn.close().await?;
        tried
    });
    match tried {
        Ok(_) => false,
        Err(sqlx::Error::Database(error)) if error.code().as_deref() == Some("5") => true,
        Err(error) => panic!("{error}"),
    }
}
