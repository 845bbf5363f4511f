//! The ledger on PostgreSQL.

use sqlx::postgres::PgConnection;
use sqlx::{Pool, Postgres, Row as _};

use super::{Account, Change, Entry, Ledger, LedgerError, account};

/// One message and so one transaction. Its lock is what lets two receivers start at the same time: `IF NOT EXISTS` does
/// not. The lock ends with the transaction, so that it may pass a PgBouncer.
const TABLES: &str = "
    SELECT pg_advisory_xact_lock(hashtext('tower-inbox: the ledger of the receiver'));
    CREATE TABLE IF NOT EXISTS ledger_account (
        account TEXT COLLATE \"C\" PRIMARY KEY,
        balance BIGINT NOT NULL
    );
    CREATE TABLE IF NOT EXISTS ledger_entry (
        position   BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
        account    TEXT COLLATE \"C\" NOT NULL,
        event_id   TEXT NOT NULL,
        event_type TEXT,
        sequence   BIGINT,
        amount     BIGINT NOT NULL
    );
    CREATE INDEX IF NOT EXISTS ledger_entry_account ON ledger_entry (account, position);";

/// `numeric_value_out_of_range`
const OVERFLOW: &str = "22003";

impl Ledger for Postgres {
    async fn create(pool: &Pool<Self>) -> sqlx::Result<()> {
        sqlx::raw_sql(TABLES).execute(pool).await?;
        Ok(())
    }

    async fn append(conn: &mut PgConnection, change: &Change<'_>) -> Result<i64, LedgerError> {
        // The sum is checked by the server: an integer that overflows is an error here.
        let balance = sqlx::query_scalar(
            "INSERT INTO ledger_account AS a (account, balance) VALUES ($1, $2)
             ON CONFLICT (account) DO UPDATE SET balance = a.balance + excluded.balance RETURNING balance",
        )
        // Without a name, so that it works behind PgBouncer too.
        .persistent(false)
        .bind(change.account)
        .bind(change.amount)
        .fetch_one(&mut *conn)
        .await
        .map_err(|error| match error.as_database_error() {
            Some(refused) if refused.code().as_deref() == Some(OVERFLOW) => LedgerError::Overflow,
            _ => LedgerError::Database(error),
        })?;
        sqlx::query(
            "INSERT INTO ledger_entry (account, event_id, event_type, sequence, amount) VALUES ($1, $2, $3, $4, $5)",
        )
        .persistent(false)
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
        // In a transaction: behind PgBouncer the statement's parts stay together.
        let mut tx = pool.begin().await?;
        let rows = sqlx::query(
            "SELECT a.balance, e.event_id, e.event_type, e.sequence, e.amount
             FROM ledger_account a JOIN ledger_entry e ON e.account = a.account
             WHERE a.account = $1 ORDER BY e.position",
        )
        .persistent(false)
        .bind(name)
        .fetch_all(&mut *tx)
        .await?;
        tx.commit().await?;
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
