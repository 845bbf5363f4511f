//! The receiver's own pool.

#[cfg(any(feature = "postgres", feature = "mysql"))]
use std::str::FromStr as _;
#[cfg(any(feature = "postgres", feature = "mysql"))]
use std::time::Duration;

use sqlx::Pool;
use sqlx::pool::PoolOptions;
use tower_inbox::Backend;

/// How long a server may take to answer at the start.
#[cfg(any(feature = "postgres", feature = "mysql"))]
const GREETING: Duration = Duration::from_secs(5);

/// Why there is no pool.
pub(crate) enum Closed {
    /// The URL is malformed.
    Url(sqlx::Error),
    /// The database does not answer, or does not want us.
    Database(String),
}

/// A database that can be opened by its URL.
pub(crate) trait Open: Backend {
    /// A pool; the database must be there.
    fn open(
        url: &str,
        options: PoolOptions<Self>,
    ) -> impl Future<Output = Result<Pool<Self>, Closed>> + Send;
}

#[cfg(feature = "sqlite")]
impl Open for sqlx::Sqlite {
    async fn open(url: &str, options: PoolOptions<Self>) -> Result<Pool<Self>, Closed> {
        // The library's own pool is the one that notices a file that was put back.
        tower_inbox::sqlite::connect(url, options.get_max_connections())
            .await
            .map_err(|error| match error {
                sqlx::Error::Configuration(_) => Closed::Url(error),
                _ => Closed::Database(error.to_string()),
            })
    }
}

#[cfg(feature = "postgres")]
impl Open for sqlx::Postgres {
    async fn open(url: &str, options: PoolOptions<Self>) -> Result<Pool<Self>, Closed> {
        let to = sqlx::postgres::PgConnectOptions::from_str(url).map_err(Closed::Url)?;
        connected(to, options).await
    }
}

#[cfg(feature = "mysql")]
impl Open for sqlx::MySql {
    async fn open(url: &str, options: PoolOptions<Self>) -> Result<Pool<Self>, Closed> {
        // Isolation and modes stay as the server has them.
        let to = sqlx::mysql::MySqlConnectOptions::from_str(url).map_err(Closed::Url)?;
        connected(to, options).await
    }
}

/// A pool on a server that answers now. The pool itself would try for long, and then tell of its patience and not of
/// the reason.
#[cfg(any(feature = "postgres", feature = "mysql"))]
async fn connected<DB: Backend>(
    to: <DB::Connection as sqlx::Connection>::Options,
    options: PoolOptions<DB>,
) -> Result<Pool<DB>, Closed> {
    use sqlx::{ConnectOptions as _, Connection as _};
    let greeting = async { to.connect().await?.close().await };
    match tokio::time::timeout(GREETING, greeting).await {
        Ok(Ok(())) => Ok(options.connect_lazy_with(to)),
        Ok(Err(error)) => Err(Closed::Database(error.to_string())),
        Err(_) => Err(Closed::Database(format!(
            "it did not answer within {GREETING:?}"
        ))),
    }
}
