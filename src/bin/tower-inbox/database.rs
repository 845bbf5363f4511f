//! The database that a URL names, and texts in which no password of one shows.

use std::time::Duration;

use crate::cli::Global;
use crate::failure::Failure;

/// What has no URL gets one from here.
const VARIABLE: &str = "DATABASE_URL";
/// How long a server may take to answer at the start.
#[cfg(any(feature = "postgres", feature = "mysql"))]
pub(crate) const GREETING: Duration = Duration::from_secs(5);
/// How long another process may hold SQLite's one lock.
#[cfg(feature = "sqlite")]
const BUSY: Duration = Duration::from_secs(5);
/// Enough for looking and acting at once: one of them listens, on PostgreSQL.
pub(crate) const CONNECTIONS: u32 = 4;

/// What a URL begins with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Sqlite,
    Postgres,
    MySql,
}

/// The URL to be used, and whose it is.
pub(crate) fn url(global: &Global) -> Result<(String, Kind), Failure> {
    let given = match &global.database_url {
        Some(url) => {
            if has_password(url) {
                crate::show::say(
                    "others on this machine can see a password on the command line: prefer the environment variable \
                     DATABASE_URL",
                );
            }
            Some(url.clone())
        }
        None => std::env::var(VARIABLE).ok(),
    };
    let url = given.filter(|url| !url.is_empty()).ok_or_else(|| {
        Failure::usage(
            "no database: set the environment variable DATABASE_URL, or give --database-url",
        )
    })?;
    let kind = match url.split(':').next() {
        Some("sqlite") => Kind::Sqlite,
        Some("postgres" | "postgresql") => Kind::Postgres,
        Some("mysql" | "mariadb") => Kind::MySql,
        _ => {
            return Err(Failure::usage(
                "the database's URL begins with none of sqlite:, postgres:, postgresql:, mysql:, mariadb:",
            ));
        }
    };
    Ok((url, kind))
}

/// This command was built without it.
#[allow(dead_code, reason = "not where all are compiled in")]
pub(crate) fn left_out(feature: &str) -> Failure {
    Failure::Usage(format!(
        "this tower-inbox was built without the feature {feature}, which that database needs: cargo install tower-inbox \
         --features cli,{feature}"
    ))
}

/// What is done about a database file that is not there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NoFile {
    Make,
    /// As if it were there, and empty.
    Pretend,
    Refuse,
}

/// Opens the pool of a URL, and does something with it.
macro_rules! on_database {
    ($url:expr, $no_file:expr, |$pool:ident| $work:expr) => {{
        let (url, kind) = $url;
        match kind {
            #[cfg(feature = "sqlite")]
            $crate::database::Kind::Sqlite => {
                let $pool = $crate::database::sqlite(&url, $no_file).await?;
                $work
            }
            #[cfg(feature = "postgres")]
            $crate::database::Kind::Postgres => {
                let options =
                    <sqlx::postgres::PgConnectOptions as std::str::FromStr>::from_str(&url);
                let $pool = $crate::database::server::<sqlx::Postgres>(options).await?;
                $work
            }
            #[cfg(feature = "mysql")]
            $crate::database::Kind::MySql => {
                let options =
                    <sqlx::mysql::MySqlConnectOptions as std::str::FromStr>::from_str(&url);
                let $pool = $crate::database::server::<sqlx::MySql>(options).await?;
                $work
            }
            #[cfg(not(feature = "sqlite"))]
            $crate::database::Kind::Sqlite => Err($crate::database::left_out("sqlite")),
            #[cfg(not(feature = "postgres"))]
            $crate::database::Kind::Postgres => Err($crate::database::left_out("postgres")),
            #[cfg(not(feature = "mysql"))]
            $crate::database::Kind::MySql => Err($crate::database::left_out("mysql")),
        }
    }};
}
pub(crate) use on_database;

#[allow(dead_code, reason = "not without a database")]
fn malformed(error: &sqlx::Error) -> Failure {
    Failure::Usage(format!("the database's URL cannot be read: {error}"))
}

#[allow(dead_code, reason = "not without a database")]
fn away(why: impl std::fmt::Display) -> Failure {
    Failure::Away(format!("the database cannot be asked: {why}"))
}

/// A file is made, or turned over to WAL, by nothing but `migrate`: a receiver's URL often says that it may be, and the file
/// may be of something else altogether.
#[cfg(feature = "sqlite")]
pub(crate) async fn sqlite(
    url: &str,
    no_file: NoFile,
) -> Result<sqlx::Pool<sqlx::Sqlite>, Failure> {
    let options = tower_inbox::sqlite::connect_options(url);
    let options = options.map_err(|error| malformed(&error))?;
    let file = options.get_filename();
    let asked = match no_file {
        _ if file.exists() => url.replace("mode=rwc", "mode=rw"),
        NoFile::Make if url.contains("mode=") => url.to_owned(),
        NoFile::Make if url.contains('?') => format!("{url}&mode=rwc"),
        NoFile::Make => format!("{url}?mode=rwc"),
        NoFile::Pretend => return in_memory().await,
        NoFile::Refuse => {
            return Err(Failure::Schema(format!(
                "there is no database file {}: tower-inbox migrate makes it, or DATABASE_URL is another one",
                file.display()
            )));
        }
    };
    if no_file == NoFile::Make {
        return tower_inbox::sqlite::connect(&asked, CONNECTIONS)
            .await
            .map_err(away);
    }
    let as_it_is = <sqlx::sqlite::SqliteConnectOptions as std::str::FromStr>::from_str(&asked)
        .map_err(|error| malformed(&error))?
        .synchronous(sqlx::sqlite::SqliteSynchronous::Full)
        .busy_timeout(BUSY);
    tower_inbox::sqlite::connect_with(as_it_is, CONNECTIONS)
        .await
        .map_err(away)
}

#[cfg(feature = "sqlite")]
async fn in_memory() -> Result<sqlx::Pool<sqlx::Sqlite>, Failure> {
    let options = sqlx::pool::PoolOptions::new()
        .max_connections(1)
        .max_lifetime(None)
        .idle_timeout(None);
    options.connect("sqlite::memory:").await.map_err(away)
}

/// A pool on a server that answers now. The pool itself would try for long, and then tell of its patience and not of
/// the reason.
#[cfg(any(feature = "postgres", feature = "mysql"))]
pub(crate) async fn server<DB: tower_inbox::Backend>(
    options: Result<<DB::Connection as sqlx::Connection>::Options, sqlx::Error>,
) -> Result<sqlx::Pool<DB>, Failure> {
    use sqlx::{ConnectOptions as _, Connection as _};
    let options = options.map_err(|error| malformed(&error))?;
    let greeting = async { options.connect().await?.close().await };
    match tokio::time::timeout(GREETING, greeting).await {
        Ok(Ok(())) => Ok(sqlx::pool::PoolOptions::new()
            .max_connections(CONNECTIONS)
            .connect_lazy_with(options)),
        Ok(Err(error)) => Err(away(error)),
        Err(_) => Err(away(format!("no answer within {GREETING:?}"))),
    }
}

fn has_password(url: &str) -> bool {
    without_passwords(url) != url
}

/// With `***` for the password of every URL in the text: between `://user:` and the last `@` before its path or its end.
pub(crate) fn without_passwords(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find("://") {
        let (before, after) = rest.split_at(at + 3);
        out.push_str(before);
        let (url, behind) = after.split_at(end_of_url(after));
        // A password may hold a slash that should have been escaped.
        match url.rsplit_once('@') {
            Some((login, place)) => {
                match login.split_once(':') {
                    Some((user, _)) => {
                        out.push_str(user);
                        out.push_str(":***");
                    }
                    None => out.push_str(login),
                }
                out.push('@');
                out.push_str(&without_parameter(place));
            }
            None => out.push_str(&without_parameter(url)),
        }
        rest = behind;
    }
    out.push_str(rest);
    out
}

/// Where a URL ends in a text. What looks like a login goes on to its `@` in the same line: a password may hold spaces and
/// quotation marks that should have been escaped.
fn end_of_url(text: &str) -> usize {
    let ends = |c: char| c.is_whitespace() || matches!(c, '"' | '\'' | '`');
    let end = text.find(ends).unwrap_or(text.len());
    let first = &text[..end];
    let line = text.find(['\n', '\r']).unwrap_or(text.len());
    if first.contains('@') || !first.contains(':') {
        return end;
    }
    match text[..line].find('@') {
        Some(at) => text[at..].find(ends).map_or(text.len(), |more| at + more),
        None => end,
    }
}

/// Some drivers take the password as a parameter.
fn without_parameter(url: &str) -> String {
    let Some((place, query)) = url.split_once('?') else {
        return url.to_owned();
    };
    let pairs = query.split('&').map(|pair| match pair.split_once('=') {
        Some((name, _)) if name.eq_ignore_ascii_case("password") => format!("{name}=***"),
        _ => pair.to_owned(),
    });
    format!("{place}?{}", pairs.collect::<Vec<_>>().join("&"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_password_stays_in_a_text() {
        for (text, without) in [
            ("nothing", "nothing"),
            ("sqlite://a.db?mode=rwc", "sqlite://a.db?mode=rwc"),
            ("postgres://ada@h/db", "postgres://ada@h/db"),
            (
                "at 'postgres://ada:p@ss/w:rd@h:1/db?x=1', and mysql://b:c@d/e",
                "at 'postgres://ada:***@h:1/db?x=1', and mysql://b:***@d/e",
            ),
            (
                "argument 'postgres://ada:hun ter' 2@h/db' found",
                "argument 'postgres://ada:***@h/db' found",
            ),
            (
                "http://h:80/ and no more\nx@y",
                "http://h:80/ and no more\nx@y",
            ),
            (
                "postgres://h/db?user=a&password=hunter2&x=y",
                "postgres://h/db?user=a&password=***&x=y",
            ),
        ] {
            assert_eq!(without_passwords(text), without);
        }
        assert!(has_password("mysql://a:b@c/d") && !has_password("mysql://a@c/d"));
    }
}
