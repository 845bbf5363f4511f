//! Bringing the schema up to date, statement by statement: DDL commits by itself here, so that what is broken off must be taken
//! up where it was left.

use std::time::{Duration, Instant};

use sqlx::migrate::{MigrateError, Migration, Migrator};
use sqlx::mysql::{MySqlDatabaseError, MySqlRow};
use sqlx::{AssertSqlSafe, Connection, FromRow, MySqlConnection, MySqlPool, Row};

use crate::store::SchemaVersion;
use crate::store::held::{Held, LOCK_WAIT, Step, peer_at_work, peer_wait};
use crate::store::migrate::{self, Version};

const VERSIONS: &[Version] = &[
    Version {
        number: 1,
        name: "inbox",
        sql: include_str!("../../../migrations/mysql/0001_inbox.sql"),
    },
    Version {
        number: 2,
        name: "order",
        sql: include_str!("../../../migrations/mysql/0002_order.sql"),
    },
    Version {
        number: 3,
        name: "keeping",
        sql: include_str!("../../../migrations/mysql/0003_keeping.sql"),
    },
    Version {
        number: 4,
        name: "stats",
        sql: include_str!("../../../migrations/mysql/0004_stats.sql"),
    },
    Version {
        number: 5,
        name: "audit",
        sql: include_str!("../../../migrations/mysql/0005_audit.sql"),
    },
];

/// Looks, and changes nothing.
pub(super) async fn versions(
    pool: &MySqlPool,
    prefix: &str,
    patience: Duration,
) -> Result<Vec<SchemaVersion>, MigrateError> {
    let mut conn = limited(pool).await?;
    let there = rows(&mut conn, &format!("{prefix}migrations"), patience).await;
    let _ = conn.close().await;
    // One that was broken off is not there.
    let applied = there?.into_iter().filter(|row| row.2).map(|row| row.0);
    Ok(migrate::described(&applied.collect::<Vec<_>>(), VERSIONS))
}

/// Applies what is missing.
pub(super) async fn run(
    pool: &MySqlPool,
    prefix: &str,
    patience: Duration,
) -> Result<(), MigrateError> {
    let migrator = migrate::migrator(prefix, VERSIONS);
    let table = format!("{prefix}migrations");
    let mut conn = limited(pool).await?;
    let done = async {
        let there = rows(&mut conn, &table, patience).await?;
        if missing(&migrator, &there)?.is_empty() {
            return Ok(());
        }
        alone(&mut conn, prefix, patience).await?;
        bring(&mut conn, &migrator, &table, patience).await
    };
    let done = done.await;
    // The lock goes with its connection, and the session's settings too.
    let _ = conn.close().await;
    done
}

/// A connection that waits for the lock of a table as long as one try does; it is never pooled.
async fn limited(pool: &MySqlPool) -> Result<MySqlConnection, MigrateError> {
    let mut conn = pool.acquire().await?.detach();
    let settings = format!(
        "SET SESSION lock_wait_timeout = {}, autocommit = 1",
        LOCK_WAIT.as_secs()
    );
    sqlx::raw_sql(AssertSqlSafe(settings))
        .execute(&mut conn)
        .await?;
    Ok(conn)
}

/// Two processes must not even begin the same version. The driver's own lock waits "for ever" by a negative number, which
/// MariaDB refuses, and the driver does not look at the answer. On the connection that migrates: its lock is there as long
/// as a statement of it runs, even if its process is gone, so that no migration at work is taken for a broken one.
async fn alone(
    conn: &mut MySqlConnection,
    prefix: &str,
    patience: Duration,
) -> Result<(), MigrateError> {
    let name = format!("CONCAT('tower_inbox ', MD5(CONCAT(DATABASE(), '.{prefix}')))");
    let wait = peer_wait(patience);
    let lock = format!(
        "SELECT CAST(GET_LOCK({name}, {}) AS SIGNED)",
        wait.as_secs()
    );
    let locked: Option<i64> = sqlx::query_scalar(AssertSqlSafe(lock))
        .fetch_one(conn)
        .await?;
    if locked == Some(1) {
        Ok(())
    } else {
        Err(peer_at_work(wait))
    }
}

/// Sends a statement, and again as long as somebody else has the lock that it needs. The table of versions is no exception: a
/// backup locks all tables, or the whole server.
async fn sent(
    conn: &mut MySqlConnection,
    step: Step,
    statement: &str,
    patience: Duration,
) -> Result<Vec<MySqlRow>, MigrateError> {
    let mut held = Held::new(patience);
    loop {
        let done = sqlx::raw_sql(AssertSqlSafe(statement.to_owned()))
            .fetch_all(&mut *conn)
            .await;
        match done {
            Err(error) if is_held(&error) => {
                let holder = holder(conn).await;
                held.pause(step, &holder).await?;
            }
            done => return Ok(done?),
        }
    }
}

/// How far a version has come that was broken off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Progress {
    /// So many of its statements are done.
    done: usize,
    /// Before this one, the next may be done without anybody having seen it.
    unsure: usize,
}

impl Progress {
    /// Where the driver has its time of a version that is done, in the row of one that is not.
    const DRIVERS: i64 = -1;

    fn of(kept: i64) -> Self {
        let Ok(kept) = usize::try_from(kept) else {
            // The driver's own row says nothing.
            return Self {
                done: 0,
                unsure: usize::MAX,
            };
        };
        let done = kept / 2;
        Self {
            done,
            unsure: done + kept % 2,
        }
    }

    /// Nothing of this statement has happened.
    fn before(statement: usize) -> i64 {
        i64::try_from(2 * statement).unwrap_or(Self::DRIVERS)
    }

    /// This statement is sent.
    fn within(statement: usize) -> i64 {
        Self::before(statement).saturating_add(1)
    }
}

/// What the table of versions says: number, checksum, whether it is done, and its time or how far it is.
type Kept = (i64, Vec<u8>, bool, i64);

async fn rows(
    conn: &mut MySqlConnection,
    table: &str,
    patience: Duration,
) -> Result<Vec<Kept>, MigrateError> {
    let list = format!("SELECT version, checksum, success, execution_time FROM {table}");
    match sent(conn, Step::List, &list, patience).await {
        Err(MigrateError::Execute(error)) if migrate::is_no_table(&error) => Ok(Vec::new()),
        rows => {
            let rows = rows?;
            let rows = rows.iter().map(Kept::from_row);
            Ok(rows.collect::<Result<_, sqlx::Error>>()?)
        }
    }
}

/// The versions of this crate that are not done, and how far they are.
fn missing<'a>(
    migrator: &'a Migrator,
    there: &[Kept],
) -> Result<Vec<(&'a Migration, Option<i64>)>, MigrateError> {
    let mut missing = Vec::new();
    for version in migrator.iter() {
        match there.iter().find(|row| row.0 == version.version) {
            Some((_, checksum, ..)) if *checksum != *version.checksum => {
                return Err(MigrateError::VersionMismatch(version.version));
            }
            Some((_, _, true, _)) => {}
            Some((_, _, false, kept)) => missing.push((version, Some(*kept))),
            None => missing.push((version, None)),
        }
    }
    Ok(missing)
}

async fn bring(
    conn: &mut MySqlConnection,
    migrator: &Migrator,
    table: &str,
    patience: Duration,
) -> Result<(), MigrateError> {
    // As the driver would have it.
    let versions = format!(
        "CREATE TABLE IF NOT EXISTS {table} (version BIGINT PRIMARY KEY, description TEXT NOT NULL, \
         installed_on TIMESTAMP NOT NULL DEFAULT CURRENT_TIMESTAMP, success BOOLEAN NOT NULL, checksum BLOB NOT NULL, \
         execution_time BIGINT NOT NULL)"
    );
    sent(conn, Step::List, &versions, patience).await?;
    let there = rows(conn, table, patience).await?;
    for (version, kept) in missing(migrator, &there)? {
        let kept = match kept {
            Some(kept) => {
                let version = version.version;
                tracing::warn!(version, "a migration was broken off, and is taken up again");
                kept
            }
            None => {
                begin(conn, table, version, patience).await?;
                Progress::before(0)
            }
        };
        let bringing = Bringing {
            conn: &mut *conn,
            table,
            version,
            kept,
            patience,
        };
        bringing.run().await?;
    }
    Ok(())
}

/// The row of a version, as the driver would have it.
async fn begin(
    conn: &mut MySqlConnection,
    table: &str,
    version: &Migration,
    patience: Duration,
) -> Result<(), MigrateError> {
    let checksum: String = version
        .checksum
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect();
    let insert = format!(
        "INSERT INTO {table} (version, description, success, checksum, execution_time) \
         VALUES ({}, '{}', FALSE, x'{checksum}', {})",
        version.version,
        version.description,
        Progress::before(0)
    );
    sent(conn, Step::Version(version.version), &insert, patience).await?;
    Ok(())
}

/// One version.
struct Bringing<'a> {
    conn: &'a mut MySqlConnection,
    table: &'a str,
    version: &'a Migration,
    kept: i64,
    patience: Duration,
}

impl Bringing<'_> {
    async fn run(mut self) -> Result<(), MigrateError> {
        let start = Instant::now();
        let Progress { done, unsure } = Progress::of(self.kept);
        let statements = statements(self.version.sql.as_str());
        for (n, statement) in statements.iter().enumerate().skip(done) {
            self.keep(Progress::within(n), self.patience).await?;
            match self.step(statement).await {
                Ok(()) => {}
                // What was there before anybody began is not ours, and an error.
                Err(MigrateError::ExecuteMigration(error, _)) if n < unsure && is_done(&error) => {}
                Err(error) => {
                    if n >= unsure && !is_lost(&error) {
                        // It has been waited for already.
                        let _ = self.keep(Progress::before(n), Duration::ZERO).await;
                    }
                    return Err(error);
                }
            }
        }
        let done = format!(
            "UPDATE {} SET success = TRUE, execution_time = {} WHERE version = {}",
            self.table,
            i64::try_from(start.elapsed().as_nanos()).unwrap_or(i64::MAX),
            self.version.version
        );
        self.send(&done, self.patience).await
    }

    /// Writes down how far it is. Where an earlier version of the driver had begun, that is not known, and stays so.
    async fn keep(&mut self, progress: i64, patience: Duration) -> Result<(), MigrateError> {
        if self.kept == Progress::DRIVERS {
            return Ok(());
        }
        let keep = format!(
            "UPDATE {} SET execution_time = {progress} WHERE version = {}",
            self.table, self.version.version
        );
        self.send(&keep, patience).await
    }

    async fn step(&mut self, statement: &str) -> Result<(), MigrateError> {
        match self.send(statement, self.patience).await {
            Err(MigrateError::Execute(error)) => {
                let version = self.version.version;
                Err(MigrateError::ExecuteMigration(error, version))
            }
            done => done,
        }
    }

    async fn send(&mut self, statement: &str, patience: Duration) -> Result<(), MigrateError> {
        let step = Step::Version(self.version.version);
        sent(self.conn, step, statement, patience).await?;
        Ok(())
    }
}

/// The statements of a file, without its comments.
fn statements(file: &str) -> Vec<String> {
    let lines = file.lines();
    let code: Vec<_> = lines
        .map(|line| line.split("--").next().unwrap_or_default())
        .collect();
    code.join("\n")
        .split(';')
        .map(|statement| statement.trim().to_owned())
        .filter(|statement| !statement.is_empty())
        .collect()
}

fn number(error: &sqlx::Error) -> Option<u16> {
    let error = error.as_database_error()?;
    Some(error.try_downcast_ref::<MySqlDatabaseError>()?.number())
}

/// Lock wait timeout, deadlock.
fn is_held(error: &sqlx::Error) -> bool {
    matches!(number(error), Some(1205 | 1213))
}

/// The table is there, the column is, the index is; what is to be dropped is not.
fn is_done(error: &sqlx::Error) -> bool {
    matches!(number(error), Some(1050 | 1060 | 1061 | 1091))
}

/// The server did not say that nothing has happened.
fn is_lost(error: &MigrateError) -> bool {
    match error {
        MigrateError::ExecuteMigration(error, _) => number(error).is_none(),
        _ => false,
    }
}

/// Whose transaction is the oldest one, of those in this database if there are any: MariaDB tells the holders of such locks
/// by a plugin only.
async fn holder(conn: &mut MySqlConnection) -> String {
    let look = "SELECT CONCAT('the longest open transaction is that of connection ', trx_mysql_thread_id, ', for ', \
                TIMESTAMPDIFF(SECOND, trx_started, NOW()), ' s: KILL ', trx_mysql_thread_id, ' ends it') \
                FROM information_schema.innodb_trx \
                LEFT JOIN information_schema.processlist ON id = trx_mysql_thread_id \
                WHERE trx_mysql_thread_id NOT IN (0, CONNECTION_ID()) \
                ORDER BY db <=> DATABASE() DESC, trx_started LIMIT 1";
    let found = async {
        let row = sqlx::raw_sql(look).fetch_optional(conn).await?;
        row.map(|row| row.try_get_unchecked(0)).transpose()
    };
    match found.await {
        Ok(Some(holder)) => holder,
        Ok(None) => "no transaction is open by now: look at SHOW PROCESSLIST".to_owned(),
        // PROCESS is the privilege for it.
        Err(error) => {
            let error: sqlx::Error = error;
            format!("who has it could not be seen ({error}): look at SHOW PROCESSLIST")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each begins at the start of a line, as a statement of DDL, and all that is between them is theirs.
    #[test]
    fn files_are_taken_apart_into_their_statements() {
        for version in VERSIONS {
            let found = statements(version.sql);
            let starts = ["CREATE ", "ALTER ", "DROP "];
            let begins = |line: &str| starts.iter().any(|start| line.starts_with(start));
            let expected = version.sql.lines().filter(|line| begins(line)).count();
            assert_eq!(found.len(), expected, "{}", version.name);
            assert!(found.iter().all(|statement| begins(statement)), "{found:?}");
            let semicolons = found.iter().filter(|statement| statement.contains(';'));
            assert_eq!(semicolons.count(), 0);
        }
    }

    #[test]
    fn how_far_a_version_has_come_is_kept_as_a_number() {
        let at = |done, unsure| Progress { done, unsure };
        assert_eq!(Progress::of(Progress::DRIVERS), at(0, usize::MAX));
        assert_eq!(Progress::of(Progress::before(0)), at(0, 0));
        assert_eq!(Progress::of(Progress::within(0)), at(0, 1));
        assert_eq!(Progress::of(Progress::before(3)), at(3, 3));
        assert_eq!(Progress::of(Progress::within(3)), at(3, 4));
    }
}
