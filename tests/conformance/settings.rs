//! Configurations that cannot be safe are refused at build, with a text that says what to write instead.

use std::time::Duration;

use sqlx::pool::PoolOptions;
use tower_inbox::preset::Preset;
use tower_inbox::{BuildError, BuildErrorKind, Inbox, InboxBuilder, Source};

use crate::db::TestDb;
use crate::kit::{Event, World};

suite![
    sources_without_usable_secrets_are_refused,
    sources_with_unusable_names_are_refused,
    a_retention_below_the_floor_is_refused_unless_it_is_said_twice,
    limits_that_cannot_work_are_refused,
    prefixes_that_are_no_plain_identifiers_are_refused,
    missing_tables_are_refused_with_the_way_to_make_them,
    tables_are_made_once_and_by_several_at_the_same_time,
    tables_with_another_prefix_live_beside_these,
];

type Build<D> = InboxBuilder<<D as TestDb>::DB>;

async fn build<D: TestDb>(
    db: &D,
    change: impl FnOnce(Build<D>) -> Build<D>,
) -> Result<Inbox<D::DB>, BuildError> {
    let pool = db.pool(PoolOptions::new().max_connections(2)).await;
    change(Inbox::builder(pool).table_prefix(db.prefix()))
        .build()
        .await
}

/// Demands a refusal of this kind whose text has all of these.
async fn refused<D: TestDb>(
    db: &D,
    change: impl FnOnce(Build<D>) -> Build<D>,
    kind: BuildErrorKind,
    says: &[&str],
) {
    let error = build(db, change).await.expect_err(&format!("{says:?}"));
    assert_eq!(error.kind(), kind, "{error}");
    for word in says {
        assert!(
            error.to_string().contains(word),
            "{word:?} is not in: {error}"
        );
    }
}

/// §6.1, §6.3
async fn sources_without_usable_secrets_are_refused<D: TestDb>(db: D) {
    let with = |secrets: &'static [&'static str]| {
        move |builder: Build<D>| {
            builder.source(Source::kudos("crm").secrets(secrets.iter().copied()))
        }
    };
    let kind = BuildErrorKind::Secret;
    refused(
        &db,
        |builder| builder.source(Source::kudos("crm")),
        kind,
        &["\"crm\"", ".secrets([new, old])"],
    )
    .await;
    refused(
        &db,
        with(&[]),
        kind,
        &["\"crm\"", "give one or two secrets, newest first"],
    )
    .await;
    refused(&db, with(&[""]), kind, &["\"crm\"", "empty"]).await;
    refused(&db, with(&["good", ""]), kind, &["\"crm\"", "empty"]).await;
    refused(
        &db,
        with(&["a", "b", "c"]),
        kind,
        &["\"crm\"", "3 secrets given: give one or two"],
    )
    .await;
    refused(
        &db,
        with(&["a", "a"]),
        kind,
        &["\"crm\"", "the two secrets are the same"],
    )
    .await;
    for text in ["whsec_", "whsec_!!!!", ""] {
        let source = Source::new("std", Preset::STANDARD).secrets([text]);
        refused(&db, |builder| builder.source(source), kind, &["\"std\""]).await;
    }
}

fn good(name: &str) -> Source {
    Source::kudos(name).secrets(["secret"])
}

/// §1: a source's name is part of every key.
async fn sources_with_unusable_names_are_refused<D: TestDb>(db: D) {
    let kind = BuildErrorKind::Name;
    for name in ["", "a b", "a/b", "é", "a\n", &"x".repeat(65)] {
        refused(
            &db,
            |builder| builder.source(good(name)),
            kind,
            &["1 to 64"],
        )
        .await;
    }
    let twice = |builder: Build<D>| {
        builder
            .source(good("crm"))
            .source(Source::sequenced("crm").secrets(["x"]))
    };
    refused(&db, twice, kind, &["\"crm\"", "its own name"]).await;
    refused(&db, |builder| builder, kind, &[".source("]).await;
    build(&db, |builder| {
        builder
            .source(good("A-z_0.9"))
            .source(good(&"x".repeat(64)))
    })
    .await
    .unwrap();
}

/// §7.1
async fn a_retention_below_the_floor_is_refused_unless_it_is_said_twice<D: TestDb>(db: D) {
    let kind = BuildErrorKind::UnsafeSetting;
    for (preset, hours) in [(Preset::KUDOS, 2), (Preset::BRIEF, 72)] {
        let short = Source::new("crm", preset)
            .secrets(["x"])
            .retention(Duration::from_secs(hours * 3_600));
        let says = [".retention(", ".insecure_short_retention()", "floor"];
        refused(&db, |builder| builder.source(short.clone()), kind, &says).await;
        build(&db, |builder| {
            builder.source(short.insecure_short_retention())
        })
        .await
        .unwrap();
    }
    let brief = Source::new("crm", Preset::BRIEF)
        .secrets(["x"])
        .retention(Duration::from_secs(74 * 3_600));
    build(&db, |builder| builder.source(brief)).await.unwrap();
}

/// (setup)
async fn limits_that_cannot_work_are_refused<D: TestDb>(db: D) {
    let kind = BuildErrorKind::UnsafeSetting;
    type Change = fn(Source) -> Source;
    let sources: [(Change, &str); 8] = [
        (|source| source.budget(Duration::from_millis(10)), "100 ms"),
        (|source| source.budget(Duration::ZERO), "100 ms"),
        (|source| source.body_limit(0), "at least 1"),
        (|source| source.body_limit(1 << 40), "body budget"),
        (|source| source.backoff([]), "backoff"),
        (|source| source.max_attempts(0), "max_attempts"),
        (|source| source.max_in_flight(0), "max_in_flight"),
        (
            |source| source.park_limit(0).max_attempts(0),
            "max_attempts",
        ),
    ];
    for (change, says) in sources {
        refused(
            &db,
            |builder| builder.source(change(good("crm"))),
            kind,
            &["\"crm\"", says],
        )
        .await;
    }
    refused(
        &db,
        |builder| builder.source(good("crm")).max_in_flight(0),
        kind,
        &["max_in_flight"],
    )
    .await;
    refused(
        &db,
        |builder| builder.source(good("crm")).max_waiting(0),
        kind,
        &["max_waiting"],
    )
    .await;
    refused(
        &db,
        |builder| builder.source(good("crm").body_limit(10)).body_budget(0),
        kind,
        &["body_budget"],
    )
    .await;
}

/// (schema). A prefix goes into the statements' text.
async fn prefixes_that_are_no_plain_identifiers_are_refused<D: TestDb>(db: D) {
    for prefix in [
        "",
        "Inbox_",
        "1inbox_",
        "a-b_",
        "a b",
        "x; DROP TABLE ledger; --",
        "é_",
        &"x".repeat(33),
    ] {
        let bad = |builder: Build<D>| builder.source(good("crm")).table_prefix(prefix);
        refused(&db, bad, BuildErrorKind::Name, &["table prefix", "1 to 32"]).await;
    }
}

/// (schema)
async fn missing_tables_are_refused_with_the_way_to_make_them<D: TestDb>(db: D) {
    let without = |builder: Build<D>| builder.source(good("crm")).migrate(false);
    refused(
        &db,
        without,
        BuildErrorKind::Schema,
        &[".migrate(true)", "migrations/", D::NAME],
    )
    .await;
    build(&db, |builder| builder.source(good("crm")))
        .await
        .unwrap();
    build(&db, without).await.unwrap();
}

/// (schema). Issue 3: "concurrent migration by several processes is safe".
async fn tables_are_made_once_and_by_several_at_the_same_time<D: TestDb>(db: D) {
    let builds: Vec<_> = (0..6)
        .map(|_| {
            let db = db.clone();
            tokio::spawn(async move {
                build(&db, |builder| builder.source(good("crm")))
                    .await
                    .map(drop)
            })
        })
        .collect();
    for built in builds {
        built.await.unwrap().unwrap();
    }
    let world = World::<D>::start(&db).await;
    world.send(&Event::new("evt_1")).await.is_applied();
    world.stop().await;
    let world = World::<D>::start(&db).await;
    world.send(&Event::new("evt_1")).await.is_duplicate();
}

/// (schema)
async fn tables_with_another_prefix_live_beside_these<D: TestDb>(db: D) {
    let world = World::<D>::start(&db).await;
    world.send(&Event::new("evt_1")).await.is_applied();
    let other = World::<D>::over(&db)
        .inbox(|inbox| inbox.table_prefix("other_"))
        .start()
        .await;
    other.send(&Event::new("evt_1")).await.is_applied();
    world.send(&Event::new("evt_1")).await.is_duplicate();
    assert_eq!(world.number("SELECT COUNT(*) FROM other_event").await, 1);
    assert_eq!(world.ledger().await.len(), 2);
}

/// SQLite's own settings: §4.1a.
#[cfg(feature = "sqlite")]
mod sqlite_settings {
    use sqlx::sqlite::{
        SqliteConnectOptions, SqliteJournalMode, SqlitePoolOptions, SqliteSynchronous,
    };

    use super::*;
    use crate::db::sqlite::SqliteFile;

    async fn with(
        options: SqliteConnectOptions,
        pool: SqlitePoolOptions,
    ) -> Result<(), BuildError> {
        let pool = pool.connect_with(options).await.expect("a pool");
        let built = Inbox::builder(pool.clone())
            .source(good("crm"))
            .build()
            .await
            .map(drop);
        // Otherwise the next one cannot change the journal's mode, and gets WAL after all.
        pool.close().await;
        built
    }

    /// §4.1a: "WAL and synchronous FULL, or refused".
    #[tokio::test]
    async fn weak_durability_is_refused_with_the_fix() {
        crate::db::run(|db: SqliteFile| async move {
            let strong = || tower_inbox::sqlite::connect_options(&db.url()).unwrap();
            let weak = [
                strong().synchronous(SqliteSynchronous::Off),
                strong().synchronous(SqliteSynchronous::Normal),
                strong().journal_mode(SqliteJournalMode::Memory),
                strong().journal_mode(SqliteJournalMode::Off),
                strong().journal_mode(SqliteJournalMode::Delete),
            ];
            for options in weak {
                let what = format!("{options:?}");
                let refused = with(options, SqlitePoolOptions::new().max_connections(1)).await;
                let error = refused.expect_err(&what);
                assert_eq!(error.kind(), BuildErrorKind::UnsafeSetting);
                for word in ["tower_inbox::sqlite::connect_options", "Wal", "Full"] {
                    assert!(error.to_string().contains(word), "{error}");
                }
            }
            for options in [strong(), strong().synchronous(SqliteSynchronous::Extra)] {
                with(options, SqlitePoolOptions::new()).await.unwrap();
            }
        })
        .await;
    }

    /// §4.1a. A database in memory exists once for each connection, and as long as that connection.
    #[tokio::test]
    async fn in_memory_with_more_than_one_lasting_connection_is_refused() {
        crate::db::run(|_: SqliteFile| async move {
            let options = || SqliteConnectOptions::new().in_memory(true);
            let lasting = || {
                SqlitePoolOptions::new()
                    .max_lifetime(None)
                    .idle_timeout(None)
            };
            let short_lived = [
                lasting().max_connections(2),
                SqlitePoolOptions::new().max_connections(1),
                lasting()
                    .max_connections(1)
                    .idle_timeout(Duration::from_secs(60)),
            ];
            for pool in short_lived {
                let error = with(options(), pool).await.unwrap_err();
                assert_eq!(error.kind(), BuildErrorKind::UnsafeSetting);
                for word in ["use a file", "max_connections(1)", "max_lifetime(None)"] {
                    assert!(error.to_string().contains(word), "{error}");
                }
            }
            with(options(), lasting().max_connections(1)).await.unwrap();
        })
        .await;
    }
}
