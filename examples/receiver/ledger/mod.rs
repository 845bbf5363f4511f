//! The ledger: what the events of this receiver are about.
//!
//! It lives in the database of the inbox, so that an entry and the mark that its event is applied are one commit.
//! There is no key on the event id: that each is here once is the inbox's doing, and must be seen if it fails.

#[cfg(feature = "mysql")]
mod mysql;
#[cfg(feature = "postgres")]
mod postgres;
#[cfg(feature = "sqlite")]
mod sqlite;

use std::fmt;

use serde::Serialize;
use sqlx::Pool;
use tower_inbox::Backend;

/// What one event does to an account.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Change<'a> {
    pub(crate) account: &'a str,
    pub(crate) amount: i64,
    pub(crate) event_id: &'a str,
    pub(crate) event_type: Option<&'a str>,
    pub(crate) sequence: Option<i64>,
}

/// `GET /ledger/{account}`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Account {
    pub(crate) account: String,
    pub(crate) balance: i64,
    /// In the order in which they were applied.
    pub(crate) entries: Vec<Entry>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Entry {
    pub(crate) event_id: String,
    pub(crate) event_type: Option<String>,
    pub(crate) sequence: Option<i64>,
    pub(crate) amount: i64,
}

/// Why a change was not written.
#[derive(Debug)]
pub(crate) enum LedgerError {
    /// The balance would leave the range of a 64-bit integer.
    Overflow,
    Database(sqlx::Error),
}

impl From<sqlx::Error> for LedgerError {
    fn from(error: sqlx::Error) -> Self {
        Self::Database(error)
    }
}

impl fmt::Display for LedgerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Overflow => f.write_str("the balance would be too large"),
            Self::Database(error) => error.fmt(f),
        }
    }
}

/// The ledger's part of a database. A further one is a file like those beside this one.
pub(crate) trait Ledger: Backend {
    /// Makes the tables, if they are not there.
    fn create(pool: &Pool<Self>) -> impl Future<Output = sqlx::Result<()>> + Send;

    /// Adds to the balance and appends an entry, in the transaction of `conn`; the new balance.
    ///
    /// The balance comes first: where rows are locked, its lock is what puts an account's entries in one order.
    fn append(
        conn: &mut Self::Connection,
        change: &Change<'_>,
    ) -> impl Future<Output = Result<i64, LedgerError>> + Send;

    /// An account, as of one moment.
    fn read(pool: &Pool<Self>, account: &str)
    -> impl Future<Output = sqlx::Result<Account>> + Send;
}

/// Out of the rows of one statement, which sees one moment. A transaction of two would be left open by a client that
/// disconnects.
fn account(
    name: &str,
    rows: impl Iterator<Item = sqlx::Result<(i64, Entry)>>,
) -> sqlx::Result<Account> {
    let mut account = Account {
        account: name.to_owned(),
        balance: 0,
        entries: Vec::new(),
    };
    for row in rows {
        let (balance, entry) = row?;
        account.balance = balance;
        account.entries.push(entry);
    }
    Ok(account)
}
