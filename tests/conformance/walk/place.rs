//! What a walk needs of a database beyond what tests need: errors of its own, and a way back to it for another process.

#[cfg(any(feature = "postgres", feature = "mysql"))]
use sqlx::pool::PoolOptions;

use super::hook::Kind;
use crate::db::TestDb;

/// A database that is walked.
pub(crate) trait Walked: TestDb {
    /// By which [`Walked::reopen`] finds it.
    fn handle(&self) -> String;
    fn reopen(handle: &str) -> Self;
    /// An error as the driver reports it.
    fn fault(&self, kind: Kind) -> impl Future<Output = sqlx::Error> + Send;
}

/// What a server says when it is told to raise an error.
#[cfg(any(feature = "postgres", feature = "mysql"))]
async fn raised<D: TestDb>(db: &D, raise: &str) -> sqlx::Error {
    let pool = db.pool(PoolOptions::new().max_connections(1)).await;
    let mut conn = pool.acquire().await.expect("a connection");
    D::execute(&mut conn, raise)
        .await
        .expect_err("it is raised")
}

mod sqlite {
    use std::time::Duration;

    use sqlx::Connection;
    use sqlx::sqlite::{SqliteConnectOptions, SqliteConnection};

    use super::{Kind, Walked};
    use crate::db::sqlite::SqliteFile;

    impl Walked for SqliteFile {
        fn handle(&self) -> String {
            self.as_handle()
        }

        fn reopen(handle: &str) -> Self {
            Self::of_handle(handle)
        }

        async fn fault(&self, kind: Kind) -> sqlx::Error {
            let file = self
                .path()
                .with_file_name(format!("busy-{:x}.db", fastrand::u64(..)));
            let options = SqliteConnectOptions::new()
                .filename(file)
                .create_if_missing(true)
                .busy_timeout(Duration::ZERO);
            let open = async || {
                SqliteConnection::connect_with(&options)
                    .await
                    .expect("a file")
            };
            match kind {
                Kind::Transient => {
                    let (mut one, mut other) = (open().await, open().await);
                    let begin = async |conn: &mut SqliteConnection| {
                        sqlx::raw_sql("BEGIN IMMEDIATE").execute(conn).await
                    };
                    begin(&mut one).await.expect("nobody else has it");
                    begin(&mut other).await.expect_err("it is busy")
                }
                Kind::Refused => {
                    let refused = sqlx::raw_sql("SELECT * FROM nowhere")
                        .execute(&mut open().await)
                        .await;
                    refused.expect_err("there is no such table")
                }
                _ => sqlx::Error::WorkerCrashed,
            }
        }
    }
}

/// The same for both servers, but for how they are told.
#[cfg(any(feature = "postgres", feature = "mysql"))]
macro_rules! on_a_server {
    ($module:ident $place:ident: $transient:literal, $refused:literal) => {
        mod $module {
            use super::{Kind, Walked, raised};
            use crate::db::$module::$place;

            impl Walked for $place {
                fn handle(&self) -> String {
                    self.as_handle()
                }

                fn reopen(handle: &str) -> Self {
                    Self::of_handle(handle)
                }

                async fn fault(&self, kind: Kind) -> sqlx::Error {
                    match kind {
                        Kind::Transient => raised(self, $transient).await,
                        Kind::Refused => raised(self, $refused).await,
                        _ => sqlx::Error::WorkerCrashed,
                    }
                }
            }
        }
    };
}

#[cfg(feature = "postgres")]
on_a_server!(postgres PostgresDb:
    "DO $$ BEGIN RAISE EXCEPTION 'a walk' USING ERRCODE = '40001'; END $$",
    "SELECT 1 / 0");
#[cfg(feature = "mysql")]
on_a_server!(mysql MySqlDb:
    "SIGNAL SQLSTATE '40001' SET MYSQL_ERRNO = 1213, MESSAGE_TEXT = 'a walk'",
    "SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'a walk'");
