//! The ledger on MariaDB and MySQL.
//!
//! What comes from outside is VARBINARY, as in the inbox's own tables: no collation folds two accounts into one.

use sqlx::mysql::{MySqlConnection, MySqlRow};
use sqlx::{MySql, Pool, Row as _};

use super::{Account, Change, Entry, Ledger, LedgerError, account};

/// Each statement commits by itself and waits for another receiver's.
const TABLES: &str = "
    CREATE TABLE IF NOT EXISTS ledger_account (
        account VARBINARY(255) PRIMARY KEY,
        balance BIGINT NOT NULL
    ) ENGINE = InnoDB;
    CREATE TABLE IF NOT EXISTS ledger_entry (
        position   BIGINT AUTO_INCREMENT PRIMARY KEY,
        account    VARBINARY(255) NOT NULL,
        event_id   VARBINARY(255) NOT NULL,
        event_type VARBINARY(255),
        sequence   BIGINT,
        amount     BIGINT NOT NULL,
        INDEX ledger_entry_account (account, position)
    ) ENGINE = InnoDB;";

impl Ledger for MySql {
    async fn create(pool: &Pool<Self>) -> sqlx::Result<()> {
        sqlx::raw_sql(TABLES).execute(pool).await?;
        Ok(())
    }

    async fn append(conn: &mut MySqlConnection, change: &Change<'_>) -> Result<i64, LedgerError> {
        // Makes the row or locks it. A SELECT first would lock the gap where it is not there yet, for two at once, and
        // then neither could insert.
        sqlx::query(
            "INSERT INTO ledger_account (account, balance) VALUES (?, 0) ON DUPLICATE KEY UPDATE balance = balance",
        )
        .bind(change.account)
        .execute(&mut *conn)
        .await?;
        let balance: i64 =
            sqlx::query_scalar("SELECT balance FROM ledger_account WHERE account = ? FOR UPDATE")
                .bind(change.account)
                .fetch_one(&mut *conn)
                .await?;
        // Not in SQL: whether that is an error there depends on the session's mode.
        let balance = balance
            .checked_add(change.amount)
            .ok_or(LedgerError::Overflow)?;
        sqlx::query("UPDATE ledger_account SET balance = ? WHERE account = ?")
            .bind(balance)
            .bind(change.account)
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
                event_id: text(row, 1)?.unwrap_or_default(),
                event_type: text(row, 2)?,
                sequence: row.try_get(3)?,
                amount: row.try_get(4)?,
            };
            Ok((row.try_get(0)?, entry))
        });
        account(name, rows)
    }
}

fn text(row: &MySqlRow, index: usize) -> sqlx::Result<Option<String>> {
    let bytes: Option<Vec<u8>> = row.try_get(index)?;
    bytes
        .map(String::from_utf8)
        .transpose()
        .map_err(|error| sqlx::Error::Decode(error.into()))
}
