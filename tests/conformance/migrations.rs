//! Migrations that are broken off, and that have to wait for others.

#[cfg(feature = "postgres")]
use std::collections::HashSet;
use std::fs;
use std::future::Future;
use std::path::Path;
use std::pin::pin;
#[cfg(feature = "mysql")]
use std::sync::Arc;
#[cfg(any(feature = "postgres", feature = "mysql"))]
use std::time::Duration;

use sqlx::migrate::{Migration, MigrationType};
use sqlx::pool::PoolOptions;
use sqlx::{AssertSqlSafe, Pool, SqlSafeStr};
#[cfg(feature = "mysql")]
use tokio::sync::Semaphore;
#[cfg(feature = "mysql")]
use tokio::task::JoinSet;
use tower_inbox::{Backend, BuildError, Inbox, InboxBuilder, Source};

use crate::db::TestDb;
#[cfg(any(feature = "postgres", feature = "mysql"))]
use crate::kit::within;
use crate::kit::{eventually, seeded};

suite![
    a_migration_that_is_dropped_at_any_point_is_taken_up_again,
    a_table_of_somebody_else_is_not_taken_for_one_of_ours,
];

/// Makes a test for one database out of each of these functions; without one it is MySQL.
macro_rules! only_on {
    ($($test:ident),+ $(,)?) => {
        only_on! { mysql "mysql" mysql_alone MySqlDb: $($test),+ }
    };
    ($of:ident $feature:literal $module:ident $db:ident: $($test:ident),+ $(,)?) => {
        #[cfg(feature = $feature)]
        mod $module {
            $(
                #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                async fn $test() {
                    crate::db::run(super::$test::<crate::db::$of::$db>).await;
                }
            )+
        }
    };
}

/// Makes one test for each database server.
macro_rules! on_servers {
    ($($test:ident),+ $(,)?) => {
        only_on! { postgres "postgres" held_up_on_postgres PostgresDb: $($test),+ }
        only_on! { mysql "mysql" held_up_on_mysql MySqlDb: $($test),+ }
    };
}

only_on![
    a_migration_waits_for_a_backup_that_has_locked_the_list_of_versions,
    a_migration_that_was_broken_off_is_taken_up_again,
    a_migration_goes_on_at_the_statement_at_which_it_was,
];

on_servers![
    a_migration_waits_for_a_long_transaction_and_deliveries_do_not,
    a_migration_that_has_waited_for_too_long_says_for_whom,
    a_list_of_versions_that_is_locked_is_not_waited_for_for_ever,
];

only_on! { postgres "postgres" beside_another PostgresDb:
    a_migration_waits_for_another_one_and_takes_it_for_nobody_in_the_way,
}

/// One of this crate's files, as it is run in a database.
struct File {
    version: i64,
    name: String,
    statements: Vec<String>,
    /// As the driver has it.
    checksum: String,
}

/// All of them, in their order.
fn files<D: TestDb>(db: &D) -> Vec<File> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("migrations")
        .join(<D::DB as Backend>::MIGRATIONS);
    let entries = fs::read_dir(folder).expect("the files are here");
    let mut files: Vec<_> = entries
        .map(|entry| {
            let path = entry.expect("a file").path();
            let sql = fs::read_to_string(&path).expect("a text");
            let sql = sql.replace("tower_inbox_", db.prefix());
            let stem = path.file_stem().unwrap().to_string_lossy().into_owned();
            let (version, name) = stem.split_once('_').expect("a number and a name");
            let version = version.parse().expect("a number");
            let code: Vec<_> = sql
                .lines()
                .map(|line| line.split("--").next().unwrap())
                .collect();
            let code = code.join("\n");
            let statements = code.split(';').map(|one| one.trim().to_owned());
            let statements = statements.filter(|one| !one.is_empty()).collect();
            let text = AssertSqlSafe(sql).into_sql_str();
            let migration = Migration::new(version, "".into(), MigrationType::Simple, text, false);
            let bytes = migration.checksum.iter();
            File {
                version,
                name: name.to_owned(),
                statements,
                checksum: bytes.map(|byte| format!("{byte:02x}")).collect(),
            }
        })
        .collect();
    files.sort_by_key(|file| file.version);
    files
}

/// Runs statements, with the prefix in them.
async fn run<D: TestDb>(db: &D, pool: &Pool<D::DB>, sql: &str) {
    let mut conn = pool.acquire().await.expect("a connection");
    let sql = sql.replace("{p}", db.prefix());
    let done = D::execute(&mut conn, &sql).await;
    done.unwrap_or_else(|error| panic!("{sql}: {error}"));
}

/// The table of versions, and the row of one: done, or broken off with what was kept of how far it was.
async fn note<D: TestDb>(db: &D, pool: &Pool<D::DB>, file: &File, broken: Option<i64>) {
    let (blob, bytes) = match D::NAME {
        "postgres" => ("BYTEA", format!("'\\x{}'::bytea", file.checksum)),
        _ => ("BLOB", format!("x'{}'", file.checksum)),
    };
    let table = format!(
        "CREATE TABLE IF NOT EXISTS {{p}}migrations (version BIGINT PRIMARY KEY, description TEXT NOT NULL,
        installed_on TIMESTAMP NOT NULL DEFAULT CURRENT_TIMESTAMP, success BOOLEAN NOT NULL, checksum {blob} NOT NULL,
        execution_time BIGINT NOT NULL)"
    );
    run(db, pool, &table).await;
    let row = format!(
        "INSERT INTO {{p}}migrations (version, description, success, checksum, execution_time)
        VALUES ({}, '{}', {}, {bytes}, {})",
        file.version,
        file.name,
        broken.is_none(),
        broken.unwrap_or(1),
    );
    run(db, pool, &row).await;
}

/// Brings these versions, as the driver would.
async fn apply<D: TestDb>(db: &D, pool: &Pool<D::DB>, files: &[File]) {
    for file in files {
        run(db, pool, &file.statements.join(";")).await;
        note(db, pool, file, None).await;
    }
}

/// Columns and indexes of all the inbox's tables but that of the versions.
async fn shape<D: TestDb>(db: &D, pool: &Pool<D::DB>) -> Vec<String> {
    let look = match D::NAME {
        "sqlite" => {
            "SELECT m.tbl_name || ' ' || c.cid || ' ' || c.name || ' ' || c.type || ' ' || c.\"notnull\" || ' '
                || COALESCE(c.dflt_value, '') || ' ' || c.pk
            FROM sqlite_master m JOIN pragma_table_info(m.name) c
            WHERE m.type = 'table' AND m.name LIKE '{p}%' AND m.name <> '{p}migrations'
            UNION ALL SELECT tbl_name || ' ' || name || ' ' || COALESCE(sql, '') FROM sqlite_master
            WHERE type = 'index' AND tbl_name LIKE '{p}%' AND tbl_name <> '{p}migrations'"
        }
        "postgres" => {
            "SELECT CONCAT_WS(' ', table_name, ordinal_position, column_name, data_type, is_nullable, column_default,
                collation_name) AS line
            FROM information_schema.columns WHERE table_name LIKE '{p}%' AND table_name <> '{p}migrations'
            UNION ALL SELECT indexdef FROM pg_indexes WHERE tablename LIKE '{p}%' AND tablename <> '{p}migrations'"
        }
        _ => {
            "SELECT CONCAT_WS(' ', table_name, ordinal_position, column_name, column_type, is_nullable, column_default,
                extra, collation_name) AS line
            FROM information_schema.columns
            WHERE table_schema = DATABASE() AND table_name LIKE '{p}%' AND table_name <> '{p}migrations'
            UNION ALL SELECT CONCAT_WS(' ', table_name, index_name, non_unique, seq_in_index, column_name)
            FROM information_schema.statistics
            WHERE table_schema = DATABASE() AND table_name LIKE '{p}%' AND table_name <> '{p}migrations'"
        }
    };
    let lines = D::texts(pool, &look.replace("{p}", db.prefix())).await;
    let lines = lines.iter().map(|line| line.replace(db.prefix(), "{p}"));
    let mut lines: Vec<_> = lines.collect();
    lines.sort();
    lines
}

/// The shape after each version, from none on.
async fn shapes<D: TestDb>() -> Vec<Vec<String>> {
    let db = D::create().await.expect("a database");
    let pool = db.pool(PoolOptions::new().max_connections(1)).await;
    let mut shapes = vec![shape(&db, &pool).await];
    for file in files(&db) {
        apply(&db, &pool, &[file]).await;
        shapes.push(shape(&db, &pool).await);
    }
    pool.close().await;
    db.destroy().await;
    assert!(shapes.is_sorted_by(|before, after| before != after));
    shapes
}

fn builder<D: TestDb>(db: &D, pool: &Pool<D::DB>) -> InboxBuilder<D::DB> {
    Inbox::builder(pool.clone())
        .source(Source::kudos("crm").secrets(["whk_any"]))
        .table_prefix(db.prefix())
}

async fn build<D: TestDb>(db: &D, pool: &Pool<D::DB>) -> Result<(), BuildError> {
    builder(db, pool).build().await.map(|_| ())
}

/// Asks the schema, and whether all of it is there, before and after the start that takes up what was broken off.
async fn starts_anew<D: TestDb>(db: &D, pool: &Pool<D::DB>, whole: &[String], after: &str) {
    let built = build(db, pool).await;
    built.unwrap_or_else(|error| panic!("{after}: {error}"));
    assert_eq!(shape(db, pool).await, whole, "{after}");
    let versions = builder(db, pool).schema().await.expect("the versions");
    assert!(versions.iter().all(|one| one.applied), "{after}");
    // And again, when there is nothing to do.
    build(db, pool).await.expect("it starts again");
}

/// (schema): as if its process was killed behind any statement of any version. MySQL commits each by itself.
#[cfg(feature = "mysql")]
async fn a_migration_that_was_broken_off_is_taken_up_again<D: TestDb>(_: D) {
    // The driver's own row, as earlier versions of this crate left it, does not say how far it was.
    broken_off::<D>(|_| vec![-1]).await;
}

/// (schema): the same, with what is written down before each statement: the next one was begun or not, and was done or not.
#[cfg(feature = "mysql")]
async fn a_migration_goes_on_at_the_statement_at_which_it_was<D: TestDb>(_: D) {
    broken_off::<D>(|done| match 2 * done {
        0 => vec![0, 1],
        // These two take some time for each; it is the third that differs from statement to statement.
        at @ (4 | 10) => vec![at, at + 1, at - 1],
        at => vec![at - 1],
    })
    .await;
}

/// Breaks off behind each statement, with each of what `kept` says of how far it was.
#[cfg(feature = "mysql")]
async fn broken_off<D: TestDb>(kept: impl Fn(i64) -> Vec<i64>) {
    let shapes = shapes::<D>().await;
    let whole = Arc::new(shapes.last().expect("there are versions").clone());
    let steps: Vec<_> = {
        let db = D::create().await.expect("a database");
        let files = files(&db);
        db.destroy().await;
        files.iter().map(|file| file.statements.len()).collect()
    };
    // Most of the time is the server's disk's.
    let places = Arc::new(Semaphore::new(6));
    let mut all = JoinSet::new();
    for (version, count) in steps.into_iter().enumerate() {
        for done in 0..=count {
            for kept in kept(i64::try_from(done).expect("a small number")) {
                let (whole, places) = (Arc::clone(&whole), Arc::clone(&places));
                all.spawn(async move {
                    let _place = places.acquire().await.expect("it stays open");
                    broken_off_at::<D>(version, done, kept, &whole).await;
                });
            }
        }
    }
    while let Some(one) = all.join_next().await {
        one.expect("it was taken up again");
    }
}

#[cfg(feature = "mysql")]
async fn broken_off_at<D: TestDb>(version: usize, done: usize, kept: i64, whole: &[String]) {
    let db = D::create().await.expect("a database");
    let pool = db.pool(PoolOptions::new().max_connections(1)).await;
    let files = files(&db);
    apply(&db, &pool, &files[..version]).await;
    let broken = &files[version];
    note(&db, &pool, broken, Some(kept)).await;
    if done > 0 {
        run(&db, &pool, &broken.statements[..done].join(";")).await;
    }
    let seen = builder(&db, &pool).schema().await.expect("the versions");
    assert!(!seen[version].applied, "it is not there yet");
    let after = format!("version {}, {done} done, {kept}", version + 1);
    starts_anew(&db, &pool, whole, &after).await;
    pool.close().await;
    db.destroy().await;
}

/// Polls a future so many times; what it came to, if it did.
async fn polled<F: Future>(future: F, times: usize) -> Option<F::Output> {
    let mut future = pin!(future);
    let mut left = times;
    std::future::poll_fn(|context| {
        if left == 0 {
            return std::task::Poll::Ready(None);
        }
        left -= 1;
        future.as_mut().poll(context).map(Some)
    })
    .await
}

/// (schema): PostgreSQL and SQLite roll a version back that is broken off, so that there are whole ones only; on MySQL the
/// next start goes on where it was left.
async fn a_migration_that_is_dropped_at_any_point_is_taken_up_again<D: TestDb>(_: D) {
    let shapes = shapes::<D>().await;
    let whole = shapes.last().expect("there are versions");
    // Each point is come by once in so many runs.
    let stride = match D::NAME {
        "sqlite" => 3,
        // A database is made anew for each.
        _ => 16,
    };
    let mut times = seeded("a migration that is dropped").usize(1..=stride);
    let mut between = 0;
    loop {
        let db = D::create().await.expect("a database");
        let pool = db.pool(PoolOptions::new().max_connections(1)).await;
        let ended = polled(build(&db, &pool), times).await;
        // The connection goes with the process.
        drop(pool);
        let pool = db.pool(PoolOptions::new().max_connections(2)).await;
        if D::NAME != "mysql" {
            let mut now = shape(&db, &pool).await;
            if !shapes.contains(&now) {
                // The server may have seen the first of a commit's tables only: two parts of the question are not one look.
                eventually("only whole versions are there", async || {
                    now = shape(&db, &pool).await;
                    shapes.contains(&now)
                })
                .await;
            }
            between += usize::from(now != shapes[0] && now != *whole);
        }
        starts_anew(&db, &pool, whole, &format!("dropped at poll {times}")).await;
        pool.close().await;
        db.destroy().await;
        if let Some(ended) = ended {
            ended.expect("it was built");
            break;
        }
        times += stride;
    }
    assert!(
        D::NAME == "mysql" || between > 0,
        "none was dropped between two versions"
    );
}

/// (schema): what is there although nobody has made it is an error, and stays one at every start.
async fn a_table_of_somebody_else_is_not_taken_for_one_of_ours<D: TestDb>(db: D) {
    let shapes = shapes::<D>().await;
    let whole = shapes.last().expect("there are versions");
    let pool = db.pool(PoolOptions::new().max_connections(2)).await;
    run(&db, &pool, "CREATE TABLE {p}guard (theirs INTEGER)").await;
    for _ in 0..3 {
        let error = build(&db, &pool).await.expect_err("it is not ours");
        assert!(error.to_string().contains("guard"), "{error}");
    }
    run(&db, &pool, "DROP TABLE {p}guard").await;
    starts_anew(&db, &pool, whole, "a table of somebody else").await;
}

/// What a delivery has time for, of the producer with the least patience.
#[cfg(any(feature = "postgres", feature = "mysql"))]
const BUDGET: Duration = Duration::from_secs(2);

/// Version 1, and a transaction that has read the events, as a long handler's or a backup.
#[cfg(any(feature = "postgres", feature = "mysql"))]
async fn held<D: TestDb>(db: &D, pool: &Pool<D::DB>) -> sqlx::pool::PoolConnection<D::DB> {
    apply(db, pool, &files(db)[..1]).await;
    let mut holder = pool.acquire().await.expect("a connection");
    let begin = "START TRANSACTION; SELECT COUNT(*) FROM {p}event".replace("{p}", db.prefix());
    D::execute(&mut holder, &begin).await.expect("it is read");
    holder
}

/// (schema): version 2 changes the table of events, which the transaction has read. The deliveries are those of a receiver of
/// version 1.
#[cfg(any(feature = "postgres", feature = "mysql"))]
async fn a_migration_waits_for_a_long_transaction_and_deliveries_do_not<D: TestDb>(db: D) {
    let pool = db.pool(PoolOptions::new().max_connections(3)).await;
    let mut holder = held(&db, &pool).await;
    let migrating = {
        let (db, pool) = (
            db.clone(),
            db.pool(PoolOptions::new().max_connections(2)).await,
        );
        tokio::spawn(async move { build(&db, &pool).await })
    };
    let waiting = match D::NAME {
        "postgres" => {
            "SELECT COUNT(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
        }
        _ => {
            "SELECT COUNT(*) FROM information_schema.processlist
            WHERE db = DATABASE() AND state LIKE 'Waiting for table metadata lock%'"
        }
    };
    // Three tries of it: what comes while it waits, and what comes while it pauses.
    let mut delivered = 0;
    for _ in 0..3 {
        eventually("the migration waits", async || {
            D::number(&pool, waiting).await > 0
        })
        .await;
        let mut pauses = false;
        while !pauses {
            let event = format!(
                "INSERT INTO {{p}}event (source, event_id, state, fingerprint, received_at, decided_at)
                VALUES ('crm', 'evt_{delivered}', 1, {}, 1, 1)",
                match D::NAME {
                    "postgres" => "'\\x00112233445566778899aabbccddeeff'",
                    _ => "x'00112233445566778899aabbccddeeff'",
                }
            );
            within(BUDGET, run(&db, &pool, &event)).await;
            delivered += 1;
            pauses = D::number(&pool, waiting).await == 0;
        }
    }
    assert!(!migrating.is_finished(), "it has not got its lock");
    D::execute(&mut holder, "ROLLBACK").await.expect("it ends");
    let migrated = within(Duration::from_secs(20), migrating).await;
    migrated.expect("no panic").expect("it is built");
    let events = "SELECT COUNT(*) FROM {p}event".replace("{p}", db.prefix());
    assert_eq!(D::number(&pool, &events).await, delivered);
    assert_eq!(
        &shape(&db, &pool).await,
        shapes::<D>().await.last().unwrap()
    );
}

/// (schema): "A start-up check whose error is the fix" (issue 3).
#[cfg(any(feature = "postgres", feature = "mysql"))]
async fn a_migration_that_has_waited_for_too_long_says_for_whom<D: TestDb>(db: D) {
    let pool = db.pool(PoolOptions::new().max_connections(3)).await;
    let mut holder = held(&db, &pool).await;
    let id = D::CONNECTION_ID.expect("there is a server");
    let id = D::number_on(&mut holder, id).await.expect("a number");
    let patience = Duration::from_millis(1_500);
    let built = builder(&db, &pool).migration_patience(patience).build();
    let error = within(Duration::from_secs(20), built).await;
    let error = error.expect_err("it is held up").to_string();
    for part in ["version 2", "tower-inbox migrate", &id.to_string()] {
        assert!(error.contains(part), "{part} is not in: {error}");
    }
    let fix = match D::NAME {
        "postgres" => format!("pg_terminate_backend({id})"),
        _ => format!("KILL {id} "),
    };
    assert!(error.contains(&fix), "{fix} is not in: {error}");
    holder.close().await.expect("it is closed");
    let whole = shapes::<D>().await;
    starts_anew(
        &db,
        &pool,
        whole.last().unwrap(),
        "a wait that was too long",
    )
    .await;
}

/// (schema): all that a start asks for is limited, the list of versions too.
#[cfg(any(feature = "postgres", feature = "mysql"))]
async fn a_list_of_versions_that_is_locked_is_not_waited_for_for_ever<D: TestDb>(db: D) {
    let pool = db.pool(PoolOptions::new().max_connections(3)).await;
    apply(&db, &pool, &files(&db)[..1]).await;
    let mut holder = pool.acquire().await.expect("a connection");
    let lock = match D::NAME {
        "postgres" => "BEGIN; LOCK TABLE {p}migrations",
        _ => "LOCK TABLES {p}migrations WRITE",
    };
    let lock = lock.replace("{p}", db.prefix());
    D::execute(&mut holder, &lock).await.expect("it is locked");
    let patience = Duration::from_millis(1_500);
    let builder = || builder(&db, &pool).migration_patience(patience);
    let built = within(Duration::from_secs(20), builder().build()).await;
    let seen = within(Duration::from_secs(20), builder().schema()).await;
    let (built, seen) = (built.map(|_| ()), seen.map(|_| ()));
    for ended in [built, seen] {
        let error = ended.expect_err("it is held up").to_string();
        assert!(error.contains("the list of versions"), "{error}");
    }
    holder.close().await.expect("it is closed");
    let whole = shapes::<D>().await;
    starts_anew(&db, &pool, whole.last().unwrap(), "a list that was locked").await;
}

/// (schema): a backup without a snapshot lets the list of versions be read and not be written to.
#[cfg(feature = "mysql")]
async fn a_migration_waits_for_a_backup_that_has_locked_the_list_of_versions<D: TestDb>(db: D) {
    let pool = db.pool(PoolOptions::new().max_connections(3)).await;
    apply(&db, &pool, &files(&db)[..1]).await;
    let mut holder = pool.acquire().await.expect("a connection");
    let lock = "LOCK TABLES {p}migrations READ".replace("{p}", db.prefix());
    D::execute(&mut holder, &lock).await.expect("it is locked");
    let migrating = {
        let (db, pool) = (
            db.clone(),
            db.pool(PoolOptions::new().max_connections(2)).await,
        );
        tokio::spawn(async move { build(&db, &pool).await })
    };
    let waiting = "SELECT COUNT(*) FROM information_schema.processlist
        WHERE db = DATABASE() AND state LIKE 'Waiting for table%lock%'";
    for _ in 0..2 {
        for waits in [true, false] {
            eventually("the migration waits, and pauses", async || {
                assert!(!migrating.is_finished(), "it has not got its lock");
                (D::number(&pool, waiting).await > 0) == waits
            })
            .await;
        }
    }
    D::execute(&mut holder, "UNLOCK TABLES")
        .await
        .expect("it ends");
    let migrated = within(Duration::from_secs(20), migrating).await;
    migrated.expect("no panic").expect("it is built");
    assert_eq!(
        &shape(&db, &pool).await,
        shapes::<D>().await.last().unwrap()
    );
}

/// (schema): what another process does that migrates is not counted against one's patience, and nobody is told to end it.
#[cfg(feature = "postgres")]
async fn a_migration_waits_for_another_one_and_takes_it_for_nobody_in_the_way<D: TestDb>(db: D) {
    let pool = db.pool(PoolOptions::new().max_connections(3)).await;
    // It has made the list, and is within version 2.
    let mut other = held(&db, &pool).await;
    let at_work = "LOCK TABLE {p}event; SELECT pg_advisory_xact_lock(
        hashtextextended('tower_inbox ' || current_schema() || '.{p}', 0))";
    let at_work = at_work.replace("{p}", db.prefix());
    D::execute(&mut other, &at_work)
        .await
        .expect("it is locked");
    let migrating = {
        let (db, pool) = (
            db.clone(),
            db.pool(PoolOptions::new().max_connections(2)).await,
        );
        // It would not wait at all for whom it took for one in the way.
        tokio::spawn(async move {
            let builder = builder(&db, &pool).migration_patience(Duration::ZERO);
            builder.build().await.map(|_| ())
        })
    };
    // Each look is a transaction that ends.
    let looks = "SELECT query_start::TEXT FROM pg_stat_activity WHERE datname = current_database() AND query = 'ROLLBACK'";
    let mut seen = HashSet::new();
    eventually("it has looked again and again", async || {
        assert!(!migrating.is_finished(), "the other one is at work");
        seen.extend(D::texts(&pool, looks).await);
        seen.len() > 4
    })
    .await;
    D::execute(&mut other, "ROLLBACK").await.expect("it ends");
    let migrated = within(Duration::from_secs(20), migrating).await;
    migrated.expect("no panic").expect("it is built");
    assert_eq!(
        &shape(&db, &pool).await,
        shapes::<D>().await.last().unwrap()
    );
}
