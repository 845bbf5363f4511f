//! What the statements of an event cost, one ingredient after the other: `--only apart`. Without HTTP, over one connection.

use std::time::{Duration, Instant};

use sqlx::{AssertSqlSafe, ConnectOptions, Connection, SqlSafeStr};
use tower_inbox::clock::Timestamp;
use tower_inbox::{Inbox, Source};

use crate::arguments::Plan;
use crate::place::{Kind, Place, tables};
use crate::process::Meter;
use crate::report::{Report, median};
use crate::requests::SECRET;
use crate::servers::Servers;

/// What is sent as one message, and answered before the next. An event's id is the one value of what is prepared, and
/// stands for `{id}` in a text; `{at}` is when it comes, in microseconds.
enum Message {
    Text(&'static str),
    Prepared(&'static str),
}

use Message::{Prepared, Text};

struct Step {
    what: &'static str,
    /// For the connection, once.
    first: &'static str,
    messages: &'static [Message],
}

const HAND: &str = "by hand";
const MESSAGES: &str = "… BEGIN and the insert in one message";
const SAVEPOINT: &str = "… and a savepoint (§4.4)";
const LIMITS: &str = "… and limits of time (§4.6)";
const ROW: &str = "… and this crate's row";
const INDEXES: &str = "… and its indexes (§7)";

macro_rules! effect {
    ($id:literal) => {
        Prepared(concat!(
            "INSERT INTO effect (event_id, account, amount) VALUES (",
            $id,
            ", 'acct', 100)"
        ))
    };
}

/// The columns of an event that belongs to no stream, and all values but its id.
macro_rules! row {
    ($fingerprint:literal, $at:literal, $id:literal) => {
        concat!(
            "INSERT INTO tower_inbox_event (source, state, fingerprint, event_type, received_at, decided_at, event_id) \
             VALUES ('crm', 1, ",
            $fingerprint,
            ", 'payment.captured', ",
            $at,
            ", ",
            $at,
            ", ",
            $id,
            ")"
        )
    };
}

const POSTGRES_HAND: &str = "PREPARE event (text) AS INSERT INTO inbox (source, event_id) VALUES ('crm', $1) ON CONFLICT DO NOTHING";
/// All of an event's values, as the inbox gives them.
macro_rules! postgres_row {
    () => {
        "PREPARE event (text, text, bigint, bytea, text, text, bigint, bigint, bigint, bigint, bigint, bigint) AS \
         INSERT INTO tower_inbox_event (source, event_id, state, fingerprint, event_type, correlation_id, generation, \
         sequence, slot, version, received_at, decided_at) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12) \
         ON CONFLICT DO NOTHING"
    };
}
macro_rules! postgres_limited {
    ($execute:literal) => {
        &[
            Text(concat!(
                "BEGIN; SET LOCAL statement_timeout = 8000; SET LOCAL idle_in_transaction_session_timeout = 9000; \
                 SET LOCAL client_connection_check_interval = 1000; SAVEPOINT mark; ",
                $execute
            )),
            effect!("$1"),
            Text("RELEASE SAVEPOINT mark; SET LOCAL statement_timeout = 0; COMMIT"),
        ]
    };
}
const POSTGRES_ROW: &[Message] = postgres_limited!(
    "EXECUTE event (E'crm', E'{id}', 1, E'\\\\x00112233445566778899aabbccddeeff', E'payment.captured', NULL, 0, NULL, \
     NULL, NULL, {at}, {at})"
);
const POSTGRES: &[Step] = &[
    Step {
        what: HAND,
        first: "SELECT 1",
        messages: &[
            Text("BEGIN"),
            Prepared(
                "INSERT INTO inbox (source, event_id) VALUES ('crm', $1) ON CONFLICT DO NOTHING",
            ),
            effect!("$1"),
            Text("COMMIT"),
        ],
    },
    Step {
        what: MESSAGES,
        first: POSTGRES_HAND,
        messages: &[
            Text("BEGIN; EXECUTE event('{id}')"),
            effect!("$1"),
            Text("COMMIT"),
        ],
    },
    Step {
        what: SAVEPOINT,
        first: POSTGRES_HAND,
        messages: &[
            Text("BEGIN; SAVEPOINT mark; EXECUTE event('{id}')"),
            effect!("$1"),
            Text("RELEASE SAVEPOINT mark; COMMIT"),
        ],
    },
    Step {
        what: LIMITS,
        first: POSTGRES_HAND,
        messages: postgres_limited!("EXECUTE event('{id}')"),
    },
    Step {
        what: ROW,
        first: concat!(
            "DROP INDEX tower_inbox_event_slot, tower_inbox_event_decided, tower_inbox_event_not_applied; ",
            postgres_row!()
        ),
        messages: POSTGRES_ROW,
    },
    Step {
        what: INDEXES,
        first: postgres_row!(),
        messages: POSTGRES_ROW,
    },
];

macro_rules! mysql {
    ($before:literal, $insert:expr) => {
        Text(concat!($before, $insert))
    };
}
macro_rules! mysql_hand {
    ($id:literal) => {
        concat!(
            "INSERT IGNORE INTO inbox (source, event_id) VALUES ('crm', ",
            $id,
            ")"
        )
    };
}
const MYSQL_ENDS: Message =
    Text("RELEASE SAVEPOINT mark; SET STATEMENT max_statement_time = 0 FOR COMMIT");
const MYSQL_ROW: &[Message] = &[
    mysql!(
        "SET innodb_lock_wait_timeout = 8, max_statement_time = 9, idle_transaction_timeout = 39; SAVEPOINT mark; ",
        row!("x'00112233445566778899aabbccddeeff'", "{at}", "'{id}'")
    ),
    effect!("?"),
    MYSQL_ENDS,
];
const MYSQL: &[Step] = &[
    Step {
        what: HAND,
        first: "DO 0",
        messages: &[
            Text("BEGIN"),
            Prepared(mysql_hand!("?")),
            effect!("?"),
            Text("COMMIT"),
        ],
    },
    Step {
        what: MESSAGES,
        first: "DO 0",
        messages: &[
            mysql!("BEGIN; ", mysql_hand!("'{id}'")),
            effect!("?"),
            Text("COMMIT"),
        ],
    },
    Step {
        what: SAVEPOINT,
        first: "DO 0",
        messages: &[
            mysql!("BEGIN; SAVEPOINT mark; ", mysql_hand!("'{id}'")),
            effect!("?"),
            Text("RELEASE SAVEPOINT mark; COMMIT"),
        ],
    },
    Step {
        what: LIMITS,
        first: "SET autocommit = 0",
        messages: &[
            mysql!(
                "SET innodb_lock_wait_timeout = 8, max_statement_time = 9, idle_transaction_timeout = 39; \
                 SAVEPOINT mark; ",
                mysql_hand!("'{id}'")
            ),
            effect!("?"),
            MYSQL_ENDS,
        ],
    },
    Step {
        what: ROW,
        first: "DROP INDEX tower_inbox_event_slot ON tower_inbox_event; \
            DROP INDEX tower_inbox_event_decided ON tower_inbox_event; SET autocommit = 0",
        messages: MYSQL_ROW,
    },
    Step {
        what: INDEXES,
        first: "SET autocommit = 0",
        messages: MYSQL_ROW,
    },
];

const SQLITE_ROW: &[Message] = &[
    Prepared(concat!(
        "BEGIN IMMEDIATE; SAVEPOINT mark; ",
        row!(
            "x'00112233445566778899aabbccddeeff'",
            "CAST(unixepoch('subsec') * 1000000 AS INTEGER)",
            "?"
        ),
        " ON CONFLICT DO NOTHING RETURNING 1"
    )),
    effect!("?"),
    Prepared("RELEASE SAVEPOINT mark; COMMIT"),
];
const SQLITE: &[Step] = &[
    Step {
        what: HAND,
        first: "SELECT 1",
        messages: &[
            Prepared("BEGIN IMMEDIATE"),
            Prepared(
                "INSERT INTO inbox (source, event_id) VALUES ('crm', ?) ON CONFLICT DO NOTHING",
            ),
            effect!("?"),
            Prepared("COMMIT"),
        ],
    },
    Step {
        what: MESSAGES,
        first: "SELECT 1",
        messages: &[
            Prepared(
                "BEGIN IMMEDIATE; INSERT INTO inbox (source, event_id) VALUES ('crm', ?) ON CONFLICT DO NOTHING \
                 RETURNING 1",
            ),
            effect!("?"),
            Prepared("COMMIT"),
        ],
    },
    Step {
        what: SAVEPOINT,
        first: "SELECT 1",
        messages: &[
            Prepared(
                "BEGIN IMMEDIATE; SAVEPOINT mark; INSERT INTO inbox (source, event_id) VALUES ('crm', ?) \
                 ON CONFLICT DO NOTHING RETURNING 1",
            ),
            effect!("?"),
            Prepared("RELEASE SAVEPOINT mark; COMMIT"),
        ],
    },
    Step {
        what: ROW,
        first: "DROP INDEX tower_inbox_event_slot; DROP INDEX tower_inbox_event_decided; \
            DROP INDEX tower_inbox_event_not_applied",
        messages: SQLITE_ROW,
    },
    Step {
        what: INDEXES,
        first: "SELECT 1",
        messages: SQLITE_ROW,
    },
];

/// A turn of a step, each event's share in microseconds.
#[derive(Clone, Copy)]
struct Turn {
    took: f64,
    client: f64,
    database: f64,
}

macro_rules! step {
    ($run:ident, $DB:ty, $Conn:ty) => {
        /// As many events as fit in.
        async fn $run(conn: &mut $Conn, step: &Step, slice: Duration) -> u64 {
            let start = Instant::now();
            let mut done = 0;
            while start.elapsed() < slice {
                let id = format!("evt_{:016x}{:016x}", fastrand::u64(..), fastrand::u64(..));
                for message in step.messages {
                    let sent = match message {
                        Text(text) => {
                            let text = text.replace("{id}", &id).replace("{at}", &Timestamp::now().as_micros().to_string());
                            let text = AssertSqlSafe(text).into_sql_str();
                            sqlx::raw_sql(text).execute(&mut *conn).await.map(drop)
                        }
                        Prepared(text) if text.contains(['$', '?']) => {
                            let query = sqlx::query::<$DB>(*text).bind(&id);
                            query.fetch_all(&mut *conn).await.map(drop)
                        }
                        Prepared(text) => sqlx::query::<$DB>(*text)
                            .fetch_all(&mut *conn)
                            .await
                            .map(drop),
                    };
                    sent.unwrap_or_else(|error| panic!("{}: {error}", step.what));
                }
                done += 1;
            }
            done
        }
    };
}

step!(on_postgres, sqlx::Postgres, sqlx::PgConnection);
step!(on_mysql, sqlx::MySql, sqlx::MySqlConnection);
step!(on_sqlite, sqlx::Sqlite, sqlx::SqliteConnection);

/// The steps of one database in turns, each over a connection to a database of its own.
macro_rules! apart {
    ($report:expr, $servers:expr, $plan:expr, $kind:expr, $steps:expr, $run:ident, $options:expr, $DB:ty) => {{
        let mut sides = Vec::new();
        for step in $steps {
            let place = Place::new($kind, $servers, Some(tables($kind))).await;
            let options = $options(&place.url);
            let pool = sqlx::pool::PoolOptions::<$DB>::new().connect_with(options.clone());
            let inbox = Inbox::builder(pool.await.expect("a pool"))
                .source(Source::kudos("crm").secrets([SECRET]))
                .build()
                .await;
            inbox.expect("its tables").shutdown().await;
            let mut conn = options.connect().await.expect("a connection");
            let first = sqlx::raw_sql(step.first).execute(&mut conn).await;
            first.expect("it begins");
            $run(&mut conn, step, $plan.warm).await;
            sides.push((step, place, conn, Vec::<Turn>::new()));
        }
        for _ in 0..$plan.rounds {
            for (step, place, conn, turns) in &mut sides {
                let meters = [Meter::One(std::process::id()), place.meter];
                let before = meters.map(|meter| meter.seconds());
                let start = Instant::now();
                let done = $run(conn, step, $plan.slice).await as f64;
                let took = start.elapsed().as_secs_f64() * 1e6 / done;
                let after = meters.map(|meter| meter.seconds());
                let share = |at: usize| (after[at] - before[at]) * 1e6 / done;
                turns.push(Turn {
                    took,
                    client: share(0),
                    database: share(1),
                });
            }
        }
        $report.line(&format!(
            "\n| {:?}, one connection | µs/event | CPU µs, client | CPU µs, database |",
            $kind
        ));
        $report.line("|---|---:|---:|---:|");
        for (step, place, conn, turns) in sides {
            let middle = |of: fn(&Turn) -> f64| median(turns.iter().map(of).collect());
            $report.line(&format!(
                "| {} | {:.0} | {:.0} | {:.0} |",
                step.what,
                middle(|turn| turn.took),
                middle(|turn| turn.client),
                middle(|turn| turn.database)
            ));
            let _ = conn.close().await;
            place.close().await;
        }
    }};
}

pub(crate) async fn all(report: &mut Report, servers: &mut Servers, plan: &Plan) {
    report.line(
        "\nThe statements of a new event, sent through sqlx; each line has what the one above has:",
    );
    apart!(
        report,
        servers,
        plan,
        Kind::Postgres,
        POSTGRES,
        on_postgres,
        |url: &str| url
            .parse::<sqlx::postgres::PgConnectOptions>()
            .expect("a URL"),
        sqlx::Postgres
    );
    apart!(
        report,
        servers,
        plan,
        Kind::MySql,
        MYSQL,
        on_mysql,
        |url: &str| url
            .parse::<sqlx::mysql::MySqlConnectOptions>()
            .expect("a URL"),
        sqlx::MySql
    );
    apart!(
        report,
        servers,
        plan,
        Kind::Sqlite,
        SQLITE,
        on_sqlite,
        |url: &str| tower_inbox::sqlite::connect_options(url).expect("a URL"),
        sqlx::Sqlite
    );
}
