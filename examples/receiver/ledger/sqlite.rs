//! The ledger on SQLite.

use sqlx::sqlite::SqliteConnection;
use sqlx::{Pool, Row as _, Sqlite};

use super::{Account, Change, Entry, Ledger, LedgerError, account};

const TABLES: &str = "
    CREATE TABLE IF NOT EXISTS ledger_account (
        account TEXT PRIMARY KEY,
        balance INTEGER NOT NULL
    ) STRICT;
    CREATE TABLE IF NOT EXISTS ledger_entry (
        position   INTEGER PRIMARY KEY AUTOINCREMENT,
        account    TEXT NOT NULL,
        event_id   TEXT NOT NULL,
        event_type TEXT,
        sequence   INTEGER,
        amount     INTEGER NOT NULL
    ) STRICT;
    CREATE INDEX IF NOT EXISTS ledger_entry_account ON ledger_entry (account, position);";

impl Ledger for Sqlite {
    async fn create(pool: &Pool<Self>) -> sqlx::Result<()> {
        sqlx::raw_sql(TABLES).execute(pool).await?;
        Ok(())
    }

    async fn append(conn: &mut SqliteConnection, change: &Change<'_>) -> Result<i64, LedgerError> {
        let balance: Option<i64> =
            sqlx::query_scalar("SELECT balance FROM ledger_account WHERE account = ?")
                .bind(change.account)
                .fetch_optional(&mut *conn)
                .await?;
        // Not in SQL: where an integer overflows SQLite goes on with a float.
        let balance = balance
            .unwrap_or(0)
            .checked_add(change.amount)
            .ok_or(LedgerError::Overflow)?;
        sqlx::query(
            "INSERT INTO ledger_account (account, balance) VALUES (?, ?)
             ON CONFLICT (account) DO UPDATE SET balance = excluded.balance",
        )
        .bind(change.account)
        .bind(balance)
        .execute(&mut *conn)
        .await?;
        sqlx::query(
            "INSERT INTO ledger_entry (account, event_id, event_type, sequence, amount) VALUES (?, ?, ?, ?, ?)",
        )
        .bind(change.account)
        .bind(change.event_id)
        .bind(change.event_type)
        .bind(change.sequence)
        .bind(change.amount)
        .execute(&mut *conn)
        .await?;
        Ok(balance)
    }

    async fn read(pool: &Pool<Self>, name: &str) -> sqlx::Result<Account> {
        let rows = sqlx::query(
            "SELECT a.balance, e.event_id, e.event_type, e.sequence, e.amount
             FROM ledger_account a JOIN ledger_entry e ON e.account = a.account
             WHERE a.account = ? ORDER BY e.position",
        )
        .bind(name)
        .fetch_all(pool)
        .await?;
        let rows = rows.iter().map(|row| {
            let entry = Entry {
                event_id: row.try_get(1)?,
                event_type: row.try_get(2)?,
                sequence: row.try_get(3)?,
                amount: row.try_get(4)?,
            };
            Ok((row.try_get(0)?, entry))
        });
        account(name, rows)
    }
}
