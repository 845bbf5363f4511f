//! What is measured.

use crate::catalogue::{self, Bar, Group, Load, Measure, Run, Side};
use crate::fill::Fill;
use crate::place::Kind;
use crate::requests::Feed;

/// Connections of each side's pool.
const POOL: usize = 32;

const fn serve(label: &'static str, name: &'static str, feed: Feed) -> Side {
    other(label, Run::Serve(name), feed)
}

const fn other(label: &'static str, run: Run, feed: Feed) -> Side {
    Side {
        label,
        run,
        settings: &[],
        feed,
        known: 200,
        fill: Fill::Empty,
    }
}

const fn with(side: Side, settings: &'static [&'static str]) -> Side {
    Side { settings, ..side }
}

/// As most figures are.
const POSTGRES: Group = Group {
    database: Kind::Postgres,
    connections: 32,
    pool: POOL,
    load: Load::Closed,
    topic: "",
    sides: &[],
    bars: &[],
};
const GROWTH: Group = Group {
    topic: catalogue::GROWTH,
    ..POSTGRES
};

const OURS: Side = serve("ours", "ours", Feed::Unique);
const HAND: Side = serve("handwritten", "handwritten", Feed::Unique);
/// Deliveries that wait for the one writer share a transaction, and so do the next ones of a stream.
const GROUPED: &[&str] = &["grouped=true"];
/// Where nobody waits for a writer: with few connections, for which they wait.
const GROUPED_OF_FEW: &[&str] = &["grouped=true", "connections=5"];
const SINGLE: Side = serve("single", "ours", Feed::Unique);
/// Without the round trip by which sqlx looks whether a connection of the pool is alive.
const TUNED: Side = with(
    serve("handwritten_tuned", "handwritten", Feed::Unique),
    &["untested=true"],
);
/// Fewer than a process remembers.
const KNOWN: Feed = Feed::Known(20_000);
/// SQLite takes its time to apply them at first.
const FEW: Feed = Feed::Known(2_000);
const HOT: Feed = Feed::Ordered(1);
const MANY: Feed = Feed::Ordered(1_000);

/// Less is better.
const fn p99(name: &'static str, over: &'static str, goal: &'static str) -> Bar {
    Bar {
        measure: Measure::P99,
        ..bar(name, over, goal)
    }
}

const fn filled(side: Side, fill: Fill) -> Side {
    Side { fill, ..side }
}

const fn bar(name: &'static str, over: &'static str, goal: &'static str) -> Bar {
    Bar {
        name,
        of: "ours",
        over,
        measure: Measure::Rate,
        goal,
    }
}

pub(crate) const GROUPS: &[Group] = &[
    Group {
        sides: &[
            OURS,
            HAND,
            TUNED,
            other("pgbench", Run::Pgbench, Feed::Unique),
            other("fastify", Run::Fastify, Feed::Unique),
            other("fastapi", Run::Fastapi, Feed::Unique),
        ],
        bars: &[
            bar("pg_unique_vs_handwritten", "handwritten", "1.25"),
            bar(
                "pg_unique_vs_handwritten_tuned",
                "handwritten_tuned",
                "none",
            ),
            bar("pg_unique_vs_pgbench", "pgbench", "0.70"),
            bar("pg_unique_vs_fastify", "fastify", "1.7"),
            bar("pg_unique_vs_fastapi", "fastapi", "2.8"),
        ],
        ..POSTGRES
    },
    Group {
        sides: &[
            with(OURS, GROUPED_OF_FEW),
            HAND,
            with(
                serve("handwritten_5", "handwritten", Feed::Unique),
                &["connections=5"],
            ),
            other("pgbench", Run::Pgbench, Feed::Unique),
            other("fastify", Run::Fastify, Feed::Unique),
            other("fastapi", Run::Fastapi, Feed::Unique),
        ],
        bars: &[
            bar("pg_unique_vs_handwritten_grouped", "handwritten", "1.25"),
            bar(
                "pg_unique_vs_handwritten_5_grouped",
                "handwritten_5",
                "none",
            ),
            bar("pg_unique_vs_pgbench_grouped", "pgbench", "0.70"),
            bar("pg_unique_vs_fastify_grouped", "fastify", "1.7"),
            bar("pg_unique_vs_fastapi_grouped", "fastapi", "2.8"),
        ],
        ..POSTGRES
    },
    Group {
        connections: 8,
        sides: &[with(OURS, GROUPED_OF_FEW), SINGLE],
        bars: &[bar("pg_grouped_vs_single_8", "single", "0.95")],
        ..POSTGRES
    },
    Group {
        connections: 1,
        sides: &[with(OURS, GROUPED_OF_FEW), SINGLE],
        bars: &[bar("pg_grouped_vs_single_1", "single", "0.95")],
        ..POSTGRES
    },
    Group {
        database: Kind::Postgres,
        connections: 8,
        pool: POOL,
        load: Load::Closed,
        topic: "",
        sides: &[OURS, HAND, TUNED],
        bars: &[
            bar("pg_unique_vs_handwritten_8", "handwritten", "1.0"),
            bar(
                "pg_unique_vs_handwritten_tuned_8",
                "handwritten_tuned",
                "none",
            ),
        ],
    },
    Group {
        database: Kind::Postgres,
        connections: 1,
        pool: POOL,
        load: Load::Closed,
        topic: "",
        sides: &[OURS, HAND, TUNED],
        bars: &[
            bar("pg_unique_vs_handwritten_1", "handwritten", "1.0"),
            bar(
                "pg_unique_vs_handwritten_tuned_1",
                "handwritten_tuned",
                "none",
            ),
        ],
    },
    Group {
        database: Kind::MySql,
        connections: 32,
        pool: POOL,
        load: Load::Closed,
        topic: "",
        sides: &[OURS, HAND, TUNED],
        bars: &[
            bar("my_unique_vs_handwritten", "handwritten", "1.1"),
            bar(
                "my_unique_vs_handwritten_tuned",
                "handwritten_tuned",
                "none",
            ),
        ],
    },
    Group {
        database: Kind::Sqlite,
        connections: 32,
        pool: POOL,
        load: Load::Closed,
        topic: "",
        sides: &[OURS, HAND, TUNED],
        bars: &[
            bar("sqlite_unique_vs_handwritten", "handwritten", "1.4"),
            bar(
                "sqlite_unique_vs_handwritten_tuned",
                "handwritten_tuned",
                "none",
            ),
        ],
    },
    Group {
        database: Kind::Sqlite,
        connections: 1,
        pool: POOL,
        load: Load::Closed,
        topic: "",
        sides: &[OURS, HAND],
        bars: &[bar("sqlite_unique_vs_handwritten_1", "handwritten", "0.95")],
    },
    Group {
        database: Kind::Sqlite,
        connections: 32,
        pool: POOL,
        load: Load::Closed,
        topic: "",
        sides: &[with(OURS, GROUPED), HAND],
        bars: &[bar(
            "sqlite_unique_vs_handwritten_grouped",
            "handwritten",
            "3.0",
        )],
    },
    Group {
        database: Kind::Sqlite,
        connections: 8,
        pool: POOL,
        load: Load::Closed,
        topic: "",
        sides: &[with(OURS, GROUPED), SINGLE],
        bars: &[bar("sqlite_grouped_vs_single_8", "single", "0.95")],
    },
    Group {
        database: Kind::Sqlite,
        connections: 1,
        pool: POOL,
        load: Load::Closed,
        topic: "",
        sides: &[with(OURS, GROUPED), SINGLE],
        bars: &[bar("sqlite_grouped_vs_single_1", "single", "0.95")],
    },
    Group {
        sides: &[
            serve("ours", "ours", KNOWN),
            Side {
                known: 204,
                ..serve("verify_only", "verify_only", KNOWN)
            },
            Side {
                known: 204,
                ..serve("verify_layer", "verify_layer", KNOWN)
            },
        ],
        bars: &[bar("dup_vs_verify_only", "verify_only", "0.75")],
        ..POSTGRES
    },
    Group {
        sides: &[
            serve("ours", "ours", KNOWN),
            other("fastify", Run::Fastify, KNOWN),
        ],
        bars: &[bar("pg_dup_vs_fastify", "fastify", "5")],
        ..POSTGRES
    },
    Group {
        sides: &[
            // It remembers nothing, as a process that has just started.
            with(serve("ours", "ours", KNOWN), &["remembered=0"]),
            serve("handwritten", "handwritten", KNOWN),
            with(
                serve("handwritten_tuned", "handwritten", KNOWN),
                &["untested=true"],
            ),
        ],
        bars: &[
            bar("pg_dup_cold_vs_handwritten", "handwritten", "1.5"),
            bar(
                "pg_dup_cold_vs_handwritten_tuned",
                "handwritten_tuned",
                "none",
            ),
        ],
        ..POSTGRES
    },
    Group {
        sides: &[
            serve("ours", "ours", HOT),
            with(serve("batched", "ours", HOT), GROUPED),
            serve("rowlock", "rowlock", HOT),
        ],
        bars: &[
            bar("pg_hot_key_vs_rowlock", "rowlock", "2.0"),
            Bar {
                of: "batched",
                ..bar("pg_hot_key_batched_vs_rowlock", "rowlock", "2.0")
            },
        ],
        ..POSTGRES
    },
    Group {
        connections: 8,
        sides: &[
            with(serve("ours", "ours", HOT), GROUPED),
            serve("single", "ours", HOT),
        ],
        bars: &[bar("pg_hot_key_grouped_vs_single_8", "single", "0.95")],
        ..POSTGRES
    },
    Group {
        connections: 1,
        sides: &[
            with(serve("ours", "ours", HOT), GROUPED),
            serve("single", "ours", HOT),
        ],
        bars: &[bar("pg_hot_key_grouped_vs_single_1", "single", "0.95")],
        ..POSTGRES
    },
    Group {
        sides: &[
            serve("ours", "ours", MANY),
            serve("unordered", "ours", Feed::Unique),
        ],
        bars: &[bar(
            "pg_many_keys_ordered_vs_unordered",
            "unordered",
            "0.75",
        )],
        ..POSTGRES
    },
    Group {
        database: Kind::Postgres,
        connections: 32,
        pool: POOL,
        load: Load::Half,
        topic: "",
        sides: &[OURS, HAND],
        bars: &[p99("p99_at_half_load", "handwritten", "<=1.2")],
    },
    // The same tables, of which one has what is past its retention: the other keeps it for ten years.
    Group {
        sides: &[
            filled(with(OURS, &["purge=true"]), Fill::Old),
            filled(
                with(
                    serve("not_purging", "ours", Feed::Unique),
                    &["retention_days=3650"],
                ),
                Fill::Old,
            ),
        ],
        bars: &[
            bar("pg_purging_vs_not", "not_purging", "0.92"),
            p99("pg_purging_vs_not_p99", "not_purging", "<=1.5"),
        ],
        ..GROWTH
    },
    Group {
        sides: &[
            filled(OURS, Fill::Events(10)),
            serve("empty", "ours", Feed::Unique),
        ],
        bars: &[bar("pg_10m_rows_vs_empty", "empty", "0.8")],
        ..GROWTH
    },
    Group {
        // From the table: what is remembered does not depend on its size.
        sides: &[
            filled(
                with(serve("ours", "ours", KNOWN), &["remembered=0"]),
                Fill::Events(10),
            ),
            with(serve("empty", "ours", KNOWN), &["remembered=0"]),
        ],
        bars: &[bar("pg_10m_rows_vs_empty_dup", "empty", "0.75")],
        ..GROWTH
    },
    Group {
        sides: &[
            filled(serve("ours", "ours", MANY), Fill::Cursors(10)),
            serve("empty", "ours", MANY),
        ],
        bars: &[bar("pg_10m_cursors_vs_empty", "empty", "none")],
        ..GROWTH
    },
    // Behind gaps of other streams: nothing of it is due.
    Group {
        sides: &[
            filled(serve("ours", "ours", MANY), Fill::Parked(100)),
            serve("empty", "ours", MANY),
        ],
        bars: &[bar("pg_100k_parked_vs_empty", "empty", "none")],
        ..GROWTH
    },
    Group {
        sides: &[
            with(OURS, &["sources=10000"]),
            with(serve("hundred", "ours", Feed::Unique), &["sources=100"]),
            serve("one", "ours", Feed::Unique),
        ],
        bars: &[
            bar("pg_10k_sources_vs_one", "one", "none"),
            bar("pg_10k_sources_vs_hundred", "hundred", "none"),
        ],
        ..GROWTH
    },
    // Known events, on which little else is spent. A recorder that records nothing, over none.
    Group {
        database: Kind::Sqlite,
        connections: 32,
        pool: POOL,
        load: Load::Closed,
        topic: "",
        sides: &[
            serve("ours", "ours", FEW),
            with(serve("recorder", "ours", FEW), &["recorder=true"]),
        ],
        bars: &[bar("metrics_off_vs_on", "recorder", "0.98")],
    },
    // All that is counted, recorded, written and scraped, over nothing of it.
    Group {
        database: Kind::Sqlite,
        connections: 32,
        pool: POOL,
        load: Load::Closed,
        topic: "",
        sides: &[
            with(OURS, &["exporter=true"]),
            with(
                serve("uncounted", "ours", Feed::Unique),
                &["no_statistics=true"],
            ),
        ],
        bars: &[bar("sqlite_counted_vs_uncounted", "uncounted", "0.98")],
    },
    Group {
        database: Kind::Sqlite,
        connections: 32,
        pool: POOL,
        load: Load::Closed,
        topic: "",
        sides: &[
            with(serve("ours", "ours", FEW), &["exporter=true"]),
            with(serve("uncounted", "ours", FEW), &["no_statistics=true"]),
        ],
        bars: &[bar("sqlite_dup_counted_vs_uncounted", "uncounted", "0.98")],
    },
];
