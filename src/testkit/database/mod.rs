//! Databases of one test each.

#[cfg(feature = "mysql")]
mod mysql;
mod number;
#[cfg(feature = "postgres")]
mod postgres;
#[cfg(feature = "sqlite")]
mod sqlite;

use std::collections::HashSet;
use std::fmt;
use std::future::Future;
use std::hash::{BuildHasher as _, Hasher as _, RandomState};
use std::panic::Location;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use sqlx::{AssertSqlSafe, Pool, SqlSafeStr as _};

use self::number::Cell;
pub(super) use self::number::number;
use super::check::Look;
use crate::clock::Timestamp;

/// What the names of all these databases begin with.
const PREFIX: &str = "tower_inbox_kit_";
/// A run that is still at work is younger, one that waits for somebody in a debugger too: what is older was left behind by
/// one that was killed.
const LEFT_OVER: Duration = Duration::from_secs(24 * 3_600);
/// How long the removal of one database may hold up the end of its test.
const REMOVAL: Duration = Duration::from_secs(20);
/// As many as a small app has: concurrent deliveries and the worker find one each.
const CONNECTIONS: u32 = 5;

/// A database that belongs to one test: made by [`sqlite`](super::sqlite()), [`postgres`](super::postgres()) and
/// [`mysql`](super::mysql()), and removed when it is dropped, after a panic too.
///
/// ```
/// # #[cfg(feature = "sqlite")]
/// # #[tokio::main(flavor = "current_thread")] async fn main() {
/// let db = tower_inbox::testkit::sqlite().await;
/// db.execute("CREATE TABLE payments (amount INTEGER); INSERT INTO payments VALUES (5)").await;
/// assert_eq!(db.number("SELECT SUM(amount) FROM payments").await, 5);
/// # }
/// # #[cfg(not(feature = "sqlite"))] fn main() {}
/// ```
pub struct TestDatabase<DB: TestBackend> {
    pool: Pool<DB>,
    url: String,
    place: Place,
}

/// What there is to remove.
#[allow(dead_code, reason = "each back end makes its own")]
enum Place {
    Memory,
    Directory(PathBuf),
    Server { url: String, name: String },
}

/// A back end on which the kit can make databases: each of the crate's. Nobody else can implement it.
pub trait TestBackend: Look {
    /// How long a second writer waits for the only one that there may be; nothing where there are several.
    #[doc(hidden)]
    const WRITER_WAITS: Option<Duration> = None;

    /// Removes a database of this name from a server, whoever is connected to it.
    #[doc(hidden)]
    fn remove(server: &str, name: &str) -> impl Future<Output = Result<(), sqlx::Error>> + Send;

    /// All rows that a query finds.
    #[doc(hidden)]
    fn cells(
        pool: &Pool<Self>,
        sql: &str,
    ) -> impl Future<Output = Result<Vec<Vec<Cell>>, sqlx::Error>> + Send;
}

impl<DB: TestBackend> TestDatabase<DB> {
    fn new(pool: Pool<DB>, url: String, place: Place) -> Self {
        Self { pool, url, place }
    }

    /// The one of this name, which was made on this server.
    #[cfg(any(feature = "postgres", feature = "mysql"))]
    fn on_server(pool: Pool<DB>, server: &str, name: String) -> Self {
        let url = with_database(server, &name);
        let server = server.to_owned();
        Self::new(pool, url, Place::Server { url: server, name })
    }

    /// A handle of the pool, for [`Inbox::builder`](crate::Inbox::builder) and for the app.
    pub fn pool(&self) -> Pool<DB> {
        self.pool.clone()
    }

    /// The URL of this database, for whatever makes its own pool. Of a database in memory: of no use to anybody else.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Executes statements, several of them separated by semicolons: the schema of the app, say.
    ///
    /// # Panics
    /// If the database refuses one.
    #[track_caller]
    pub fn execute(&self, sql: &str) -> impl Future<Output = ()> + Send {
        let caller = Location::caller();
        async move {
            let done = async {
                let mut conn = self.pool.acquire().await?;
                DB::run(&mut conn, AssertSqlSafe(sql).into_sql_str()).await
            };
            if let Err(error) = done.await {
                panic!("{error} ({caller}): {sql}");
            }
        }
    }

    /// The one number that a query finds, such as a count or a sum; no number at all (NULL) counts as 0. A decimal or a
    /// floating-point number is one if it is whole; a text is none.
    ///
    /// # Panics
    /// If the database refuses it, or it finds something else: no row or several, several columns, a text, a fraction.
    #[track_caller]
    pub fn number(&self, sql: &str) -> impl Future<Output = i64> + Send {
        let caller = Location::caller();
        async move { number(&self.pool, sql, caller).await }
    }
}

impl<DB: TestBackend> fmt::Debug for TestDatabase<DB> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The URL has a password in it.
        let place = match &self.place {
            Place::Memory => "in memory".into(),
            Place::Directory(path) => path.display().to_string(),
            Place::Server { name, .. } => name.clone(),
        };
        f.debug_tuple("TestDatabase").field(&place).finish()
    }
}

impl<DB: TestBackend> Drop for TestDatabase<DB> {
    fn drop(&mut self) {
        // The pool is closed from here on, whoever still has a handle of it; its connections end by themselves.
        drop(self.pool.close());
        match std::mem::replace(&mut self.place, Place::Memory) {
            Place::Memory => {}
            Place::Directory(path) => {
                // A connection may make a file of its journal meanwhile, once.
                let _ = std::fs::remove_dir_all(&path).or_else(|_| std::fs::remove_dir_all(&path));
            }
            Place::Server { url, name } => apart(async move {
                if let Err(error) = DB::remove(&url, &name).await {
                    tracing::warn!(name, %error, "a test's database is left behind");
                }
            }),
        }
    }
}

/// Runs something to its end on a thread of its own: the runtime of the test may be at its end, or have one thread only.
fn apart(work: impl Future<Output = ()> + Send + 'static) {
    let thread = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build();
        if let Ok(runtime) = runtime {
            // What takes longer is a left-over, for a later run.
            let _ = runtime.block_on(async { tokio::time::timeout(REMOVAL, work).await });
        }
    });
    // It does not panic; and if it did, the test would have passed all the same.
    let _ = thread.join();
}

/// A name that nobody has: when it was made, and 64 bits that the operating system drew.
fn fresh_name() -> String {
    let drawn = RandomState::new().build_hasher().finish();
    format!("{PREFIX}{:x}_{drawn:016x}", Timestamp::now().as_secs())
}

/// Whether this is the name of a database that a killed run has left behind.
fn is_left_over(name: &str) -> bool {
    let made = name
        .strip_prefix(PREFIX)
        .and_then(|rest| rest.split('_').next())
        .and_then(|secs| i64::from_str_radix(secs, 16).ok());
    made.is_some_and(|secs| Timestamp::now().since(Timestamp::from_secs(secs)) > LEFT_OVER)
}

/// Whether this process has not looked there for left-overs yet.
fn is_first_look(place: &str) -> bool {
    static LOOKED: Mutex<Option<HashSet<String>>> = Mutex::new(None);
    let mut looked = LOOKED.lock().unwrap_or_else(PoisonError::into_inner);
    looked.get_or_insert_default().insert(place.to_owned())
}

/// The URL of another database on the same server.
#[cfg(any(feature = "postgres", feature = "mysql"))]
fn with_database(server: &str, name: &str) -> String {
    let authority = server.find("://").map_or(0, |at| at + 3);
    let end = |from: usize, stops: &[char]| {
        server[from..]
            .find(stops)
            .map_or(server.len(), |at| from + at)
    };
    let path = end(authority, &['/', '?', '#']);
    let query = end(path, &['?', '#']);
    format!("{}/{name}{}", &server[..path], &server[query..])
}

/// What a constructor says when there is no database to be had.
fn not_made<T>(what: &str, made: Result<T, sqlx::Error>) -> T {
    match made {
        Ok(made) => made,
        // The URL is not in it: it has a password.
        Err(error) => panic!("{what}: {error}"),
    }
}

/// A runtime whose clock stands still lets every time-out of a pool pass at once.
///
/// # Panics
/// If that is so.
fn refuse_paused_clock() {
    let (before, real) = (tokio::time::Instant::now(), Instant::now());
    while real.elapsed() < Duration::from_micros(10) {
        std::hint::spin_loop();
    }
    assert!(
        before.elapsed() > Duration::ZERO,
        "do not pause tokio's clock (`start_paused`, `tokio::time::pause`), since a database answers in real time: \
         `testkit::VirtualClock` is the clock that a test moves"
    );
}

/// Refuses the URL of another kind of database, before anything is tried.
///
/// # Panics
/// If it has none of these schemes, which are written in front of `://`.
#[cfg(any(feature = "postgres", feature = "mysql"))]
fn refuse_other_scheme(server: &str, schemes: &[&str]) {
    let scheme = server.split_once("://").map_or("", |(scheme, _)| scheme);
    assert!(
        schemes.contains(&scheme),
        "the URL of this server begins with `{scheme}://`, and not with `{}://`",
        schemes[0]
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_tell_their_age_and_do_not_repeat() {
        let (one, other) = (fresh_name(), fresh_name());
        assert_ne!(one, other);
        assert!(one.len() <= 63, "PostgreSQL's limit");
        assert!(!is_left_over(&one));
        let hours_ago = |hours: i64| {
            let secs = Timestamp::now().as_secs() - hours * 3_600;
            format!("{PREFIX}{secs:x}_0123456789abcdef")
        };
        assert!(is_left_over(&hours_ago(25)));
        assert!(!is_left_over(&hours_ago(23)));
        assert!(!is_left_over(&hours_ago(-2)), "a clock that is ahead");
        for other in ["postgres", "tower_inbox_kit_", "tower_inbox_kit_x_1"] {
            assert!(!is_left_over(other), "{other}");
        }
    }

    #[cfg(any(feature = "postgres", feature = "mysql"))]
    #[test]
    fn another_database_of_a_server_has_its_url_but_for_the_path() {
        for (server, url) in [
            ("postgres://u:p@h:1/postgres", "postgres://u:p@h:1/x"),
            ("postgres://h", "postgres://h/x"),
            (
                "mysql://h/a?ssl-mode=disabled",
                "mysql://h/x?ssl-mode=disabled",
            ),
            ("mysql://h?a=/b", "mysql://h/x?a=/b"),
        ] {
            assert_eq!(with_database(server, "x"), url);
        }
    }
}
