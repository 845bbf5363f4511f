//! Bringing the schema up to date. Each version is one transaction with its row: what is broken off is rolled back.

use std::time::Duration;

use sqlx::migrate::{MigrateError, Migrator};
use sqlx::{AssertSqlSafe, Connection, PgConnection, PgPool, Row};

use crate::store::SchemaVersion;
use crate::store::held::{Held, LOCK_WAIT, Peer, Step};
use crate::store::migrate::{self, Version};

const VERSIONS: &[Version] = &[
    Version {
        number: 1,
        name: "inbox",
        sql: include_str!("../../../migrations/postgres/0001_inbox.sql"),
    },
    Version {
        number: 2,
        name: "order",
        sql: include_str!("../../../migrations/postgres/0002_order.sql"),
    },
    Version {
        number: 3,
        name: "keeping",
        sql: include_str!("../../../migrations/postgres/0003_keeping.sql"),
    },
    Version {
        number: 4,
        name: "stats",
        sql: include_str!("../../../migrations/postgres/0004_stats.sql"),
    },
    Version {
        number: 5,
        name: "audit",
        sql: include_str!("../../../migrations/postgres/0005_audit.sql"),
    },
];

/// What the driver has prepared.
const SWEEP: &str = "DEALLOCATE ALL";

/// Looks, and changes nothing.
pub(super) async fn versions(
    pool: &PgPool,
    prefix: &str,
    patience: Duration,
) -> Result<Vec<SchemaVersion>, MigrateError> {
    let applied = applied(pool, prefix, patience).await?;
    let applied: Vec<_> = applied.into_iter().map(|(version, _)| version).collect();
    Ok(migrate::described(&applied, VERSIONS))
}

/// Numbers and checksums.
type Applied = Vec<(i64, Vec<u8>)>;

async fn applied(pool: &PgPool, prefix: &str, patience: Duration) -> Result<Applied, MigrateError> {
    let mut held = Held::new(patience);
    loop {
        match list(pool, prefix).await {
            Err(error) if is_held(&error) => {
                held.pause(Step::List, &holder(pool, prefix).await).await?;
            }
            applied => return applied,
        }
    }
}

async fn list(pool: &PgPool, prefix: &str) -> Result<Applied, MigrateError> {
    // The driver's own list names its statement in any case, and leaves it behind on one of PgBouncer's connections. What is
    // sent together is one transaction.
    let list = format!(
        "{}; SELECT version, checksum FROM {prefix}migrations",
        lock_limit()
    );
    let mut conn = pool.acquire().await?;
    let rows = sqlx::raw_sql(AssertSqlSafe(list))
        .fetch_all(&mut *conn)
        .await;
    match rows {
        Err(error) if migrate::is_no_table(&error) => Ok(Vec::new()),
        rows => {
            let rows = rows?;
            let rows = rows
                .iter()
                .map(|row| Ok((row.try_get(0)?, row.try_get(1)?)));
            Ok(rows.collect::<Result<_, sqlx::Error>>()?)
        }
    }
}

/// Applies what is missing. `unnamed`: statements have no names, as behind PgBouncer in transaction mode.
pub(super) async fn run(
    pool: &PgPool,
    unnamed: bool,
    prefix: &str,
    patience: Duration,
) -> Result<(), MigrateError> {
    let migrator = migrate::migrator(prefix, VERSIONS);
    let there = applied(pool, prefix, patience).await?;
    let mut missing = Vec::new();
    for version in migrator.iter() {
        match there.iter().find(|row| row.0 == version.version) {
            Some((_, checksum)) if *checksum != *version.checksum => {
                return Err(MigrateError::VersionMismatch(version.version));
            }
            Some(_) => {}
            None => missing.push(version.version),
        }
    }
    let mut attempt = 1;
    for version in missing {
        let mut held = Held::new(patience);
        loop {
            // One that is left in the middle of a transaction, however that comes about, is never pooled.
            let mut conn = pool.acquire().await?.detach();
            let brought = bring(&mut conn, unnamed, &migrator, prefix, version, patience).await;
            let _ = conn.close().await;
            let Err(error) = brought else {
                break;
            };
            if is_held(&error) {
                let holder = holder(pool, prefix).await;
                held.pause(Step::Version(version), &holder).await?;
            } else if attempt < migrate::attempts(VERSIONS) && !is_ours(&error) {
                // Beside a process of an earlier version of this crate, which takes no lock of its own, both find a version
                // missing, and one of them fails. Looking again finds either nothing to do or the same error.
                tracing::debug!(%error, attempt, "migration failed; looking again");
                attempt += 1;
            } else {
                return Err(error);
            }
        }
    }
    Ok(())
}

/// What is missing up to this version.
async fn bring(
    conn: &mut PgConnection,
    unnamed: bool,
    migrator: &Migrator,
    prefix: &str,
    version: i64,
    patience: Duration,
) -> Result<(), MigrateError> {
    // One process at a time: the next one would take it for somebody who is in the way. The lock ends with the transaction,
    // since a session's would stay behind on one of PgBouncer's connections; and no transaction is open between two looks.
    let alone = format!(
        "SELECT pg_try_advisory_xact_lock(hashtextextended('tower_inbox ' || COALESCE(current_schema(), '') || '.{prefix}', 0))"
    );
    let mut peer = Peer::new(patience);
    let mut tx = loop {
        let mut tx = conn.begin().await?;
        let row = sqlx::raw_sql(AssertSqlSafe(alone.clone()))
            .fetch_one(&mut *tx)
            .await?;
        if row.try_get(0)? {
            break tx;
        }
        tx.rollback().await?;
        peer.pause().await?;
    };
    sqlx::raw_sql(AssertSqlSafe(lock_limit()))
        .execute(&mut *tx)
        .await?;
    // The driver's migrator names its statements in any case. In one transaction they are all on one server connection,
    // which is swept before and after.
    if unnamed {
        sqlx::raw_sql(SWEEP).execute(&mut *tx).await?;
    }
    migrator.run_direct(Some(version), &mut *tx, false).await?;
    if unnamed {
        sqlx::raw_sql(SWEEP).execute(&mut *tx).await?;
    }
    Ok(tx.commit().await?)
}

fn lock_limit() -> String {
    format!("SET LOCAL lock_timeout = {}", LOCK_WAIT.as_millis())
}

/// It has been waited for long enough.
fn is_ours(error: &MigrateError) -> bool {
    matches!(error, MigrateError::Source(_))
}

/// A lock was not had in time, or a deadlock with whoever has it was ended.
fn is_held(error: &MigrateError) -> bool {
    let (MigrateError::Execute(error) | MigrateError::ExecuteMigration(error, _)) = error else {
        return false;
    };
    let code = error.as_database_error().and_then(|error| error.code());
    matches!(code.as_deref(), Some("55P03" | "40P01"))
}

/// Who has locked one of the inbox's tables for the longest time.
async fn holder(pool: &PgPool, prefix: &str) -> String {
    // Underscores mean themselves. What the session runs is left out: it may hold what an event holds.
    let like = prefix.replace('_', "\\_");
    let look = format!(
        "SELECT 'session ' || activity.pid || ' (' || COALESCE(NULLIF(application_name, ''), usename, backend_type, '?') || \
         ', ' || COALESCE(state, '?') || ') has one of the inbox''s tables locked, in a transaction that began ' || \
         COALESCE(EXTRACT(EPOCH FROM clock_timestamp() - xact_start)::BIGINT::TEXT, '?') || \
         ' s ago: SELECT pg_terminate_backend(' || activity.pid || ') ends it' \
         FROM pg_locks JOIN pg_class ON pg_class.oid = relation JOIN pg_stat_activity activity ON activity.pid = pg_locks.pid \
         WHERE granted AND database = (SELECT oid FROM pg_database WHERE datname = current_database()) \
         AND relkind = 'r' AND relname LIKE '{like}%' AND activity.pid <> pg_backend_pid() \
         ORDER BY xact_start NULLS LAST LIMIT 1"
    );
    let found = async {
        let mut conn = pool.acquire().await?;
        let row = sqlx::raw_sql(AssertSqlSafe(look))
            .fetch_optional(&mut *conn)
            .await?;
        row.map(|row| row.try_get(0)).transpose()
    };
    match found.await {
        Ok(Some(holder)) => holder,
        Ok(None) => "whoever had it has let go of it by now".to_owned(),
        Err(error) => {
            format!("who has it could not be seen ({error}): look at pg_locks and pg_stat_activity")
        }
    }
}
