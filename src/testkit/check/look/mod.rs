//! Looking into a database of any back end, and making writes fail there.

#[cfg(feature = "mysql")]
mod mysql;
#[cfg(feature = "postgres")]
mod postgres;
#[cfg(feature = "sqlite")]
mod sqlite;

use std::future::Future;

use sqlx::Pool;

use super::super::database::TestDatabase;
use crate::store::Backend;

/// What is said when the kit makes a write fail.
const MADE_TO_FAIL: &str = "the test kit makes this fail";
/// What the names of the kit's triggers begin with.
const TRIGGER: &str = "tower_inbox_kit_fails";

/// A column of an ordinary table.
#[derive(Clone, Debug)]
pub struct Column {
    /// As people call its table.
    pub(super) table: String,
    /// Its table in a statement.
    pub(super) from: String,
    pub(super) name: String,
    /// Its value as text, in a statement.
    pub(super) text: String,
    /// The database draws its values: those of one run are not those of another one.
    pub(super) drawn: bool,
}

/// What the check needs of a back end.
pub trait Look: Backend {
    /// Another database in the same place.
    #[doc(hidden)]
    fn another(db: &TestDatabase<Self>) -> impl Future<Output = TestDatabase<Self>> + Send
    where
        Self: super::super::TestBackend;

    /// All columns of all ordinary tables, those of one table together.
    #[doc(hidden)]
    fn columns(pool: &Pool<Self>) -> impl Future<Output = Result<Vec<Column>, sqlx::Error>> + Send;

    /// The rows of a query for so many texts.
    #[doc(hidden)]
    fn texts(
        pool: &Pool<Self>,
        sql: String,
        columns: usize,
    ) -> impl Future<Output = Result<Vec<Vec<Option<String>>>, sqlx::Error>> + Send;

    /// What makes every write of this table fail, the how-manieth it may be.
    #[doc(hidden)]
    fn break_writes(from: &str, number: usize) -> Vec<String>;

    /// What makes them succeed again.
    #[doc(hidden)]
    fn mend_writes(from: &str, number: usize) -> Vec<String>;
}

/// Makes the texts of rows out of whatever row type a back end has.
#[cfg(any(feature = "sqlite", feature = "postgres", feature = "mysql"))]
macro_rules! texts {
    ($pool:expr, $sql:expr, $columns:expr) => {{
        let rows = sqlx::query(sqlx::AssertSqlSafe($sql))
            .fetch_all($pool)
            .await?;
        let texts = rows.iter().map(|row| {
            let text = |at| sqlx::Row::try_get::<Option<String>, usize>(row, at);
            (0..$columns).map(text).collect::<Result<Vec<_>, _>>()
        });
        texts.collect()
    }};
}
#[cfg(any(feature = "sqlite", feature = "postgres", feature = "mysql"))]
use texts;

/// A name between these marks.
#[cfg(any(feature = "sqlite", feature = "postgres", feature = "mysql"))]
fn quoted(name: &str, mark: char) -> String {
    let doubled = name.replace(mark, &format!("{mark}{mark}"));
    format!("{mark}{doubled}{mark}")
}
