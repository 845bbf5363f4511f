//! The measurements.

use std::time::{Duration, Instant};

use axum::Router;
use axum::body::Body;
use axum::routing::post;
use http::{Request, StatusCode};
use sqlx::Pool;
use tower::ServiceExt;
use tower_inbox::clock::Timestamp;
use tower_inbox::verify::Signer;
use tower_inbox::{Inbox, Preset, Secret, Source};

use crate::place::{CONNECTIONS, Place, name, on_server};

const SECRET: &str = "a secret of the bench";
/// Deliveries at the same time.
const CLIENTS: usize = 8;
const DAY: Duration = Duration::from_secs(24 * 3600);
const KEPT: Duration = Duration::from_secs(30 * 24 * 3600);

struct Plan {
    /// Rows that may go, as a power of ten.
    magnitude: u32,
    rounds: usize,
    slice: Duration,
}

const FULL: Plan = Plan {
    magnitude: 6,
    rounds: 5,
    slice: Duration::from_secs(6),
};
const QUICK: Plan = Plan {
    magnitude: 5,
    rounds: 3,
    slice: Duration::from_secs(2),
};
/// `cargo test --benches` wants to know whether it works, not how fast.
const WORKS: Plan = Plan {
    magnitude: 3,
    rounds: 1,
    slice: Duration::from_millis(100),
};

pub(crate) fn main() {
    let has = |flag: &str| std::env::args().any(|argument| argument == flag);
    let plan = match (has("--bench"), has("--quick")) {
        (false, _) => WORKS,
        (true, true) => QUICK,
        (true, false) => FULL,
    };
    tokio::runtime::Runtime::new()
        .expect("a runtime")
        .block_on(all(&plan));
}

async fn all(plan: &Plan) {
    let mut bars = Vec::new();
    let folder = std::env::temp_dir().join(name());
    std::fs::create_dir(&folder).expect("a folder");
    let url = format!("sqlite://{}?mode=rwc", folder.join("a").display());
    let pool = tower_inbox::sqlite::connect(&url, CONNECTIONS).await;
    measure::<sqlx::Sqlite>(plan, pool.expect("a pool"), &mut bars).await;
    std::fs::remove_dir_all(&folder).expect("the folder goes");
    if let Ok(url) = std::env::var("TEST_POSTGRES_URL") {
        let name = name();
        on_server::<sqlx::Postgres>(&url, format!("CREATE DATABASE {name}")).await;
        let to: sqlx::postgres::PgConnectOptions = url.parse().expect("a URL");
        let options = sqlx::postgres::PgPoolOptions::new().max_connections(CONNECTIONS);
        let pool = options.connect_lazy_with(to.database(&name));
        measure::<sqlx::Postgres>(plan, pool, &mut bars).await;
        on_server::<sqlx::Postgres>(&url, format!("DROP DATABASE {name} WITH (FORCE)")).await;
    }
    if let Ok(url) = std::env::var("TEST_MYSQL_URL") {
        let name = name();
        on_server::<sqlx::MySql>(&url, format!("CREATE DATABASE {name}")).await;
        let to: sqlx::mysql::MySqlConnectOptions = url.parse().expect("a URL");
        let options = sqlx::mysql::MySqlPoolOptions::new().max_connections(CONNECTIONS);
        let pool = options.connect_lazy_with(to.database(&name));
        measure::<sqlx::MySql>(plan, pool, &mut bars).await;
        on_server::<sqlx::MySql>(&url, format!("DROP DATABASE {name}")).await;
    }
    for bar in bars {
        println!("{bar}");
    }
}

async fn measure<DB: Place>(plan: &Plan, pool: Pool<DB>, bars: &mut Vec<String>) {
    fill(plan, &pool).await;
    let mut ratios = Vec::new();
    for round in 0..plan.rounds {
        // Ten years are kept, and then thirty days: the same tables, with something to remove and without.
        let mut without = Duration::ZERO;
        let mut with = Duration::ZERO;
        for purges in [round % 2 == 0, round % 2 != 0] {
            let kept = if purges { KEPT } else { DAY * 3650 };
            let (p99, done) = slice(&pool, kept, plan.slice, round).await;
            println!(
                "{:9} round {round}: {} purge: p99 {:6.2} ms of {done} deliveries",
                DB::LABEL,
                if purges { "beside a " } else { "without a" },
                p99.as_secs_f64() * 1e3
            );
            *(if purges { &mut with } else { &mut without }) = p99;
        }
        ratios.push(with.as_secs_f64() / without.as_secs_f64());
    }
    ratios.sort_by(f64::total_cmp);
    bars.push(format!(
        "bar purge_p99_{} {:.3} ({:.3}-{:.3}) goal 1.5",
        DB::LABEL,
        ratios[ratios.len() / 2],
        ratios[0],
        ratios[ratios.len() - 1]
    ));
    pool.close().await;
}

async fn inbox<DB: Place>(pool: &Pool<DB>, kept: Duration) -> (Inbox<DB>, Router) {
    let source = Source::kudos("crm").secrets([SECRET]).retention(kept);
    let inbox = Inbox::builder(pool.clone()).source(source).build().await;
    let inbox = inbox.expect("an inbox");
    let routes = Router::new().route("/", post(async || StatusCode::NO_CONTENT));
    let app = inbox.mount("crm", routes);
    (inbox, app)
}

/// Rows of events that were applied long ago: copies of one that the inbox has written.
async fn fill<DB: Place>(plan: &Plan, pool: &Pool<DB>) {
    let (inbox, app) = inbox(pool, DAY * 3650).await;
    assert_eq!(deliver(&app, "first").await, StatusCode::NO_CONTENT);
    inbox.shutdown().await;
    let digits = "SELECT 0 AS d UNION ALL SELECT 1 UNION ALL SELECT 2 UNION ALL SELECT 3 UNION ALL SELECT 4
        UNION ALL SELECT 5 UNION ALL SELECT 6 UNION ALL SELECT 7 UNION ALL SELECT 8 UNION ALL SELECT 9";
    let (mut number, mut from) = (String::from("0"), Vec::new());
    for power in 0..plan.magnitude {
        number.push_str(&format!(" + {} * d{power}.d", 10_u64.pow(power)));
        from.push(format!("({digits}) AS d{power}"));
    }
    let year = DAY.as_micros() * 365;
    let copy = format!(
        "INSERT INTO tower_inbox_event (source, event_id, state, fingerprint, event_type, received_at, decided_at)
         SELECT source, concat('evt_old_', n), state, fingerprint, event_type, received_at - {year}, decided_at - {year} + n
         FROM tower_inbox_event, (SELECT {number} AS n FROM {}) AS numbers WHERE event_id = 'evt_first'",
        from.join(", ")
    );
    let mut conn = pool.acquire().await.expect("a connection");
    DB::execute(&mut conn, copy).await;
}

/// The 99th percentile, and how many there were.
async fn slice<DB: Place>(
    pool: &Pool<DB>,
    kept: Duration,
    slice: Duration,
    round: usize,
) -> (Duration, usize) {
    let (inbox, app) = inbox(pool, kept).await;
    let run = fastrand::u32(..);
    // Connections and statements are there then, and a purge is under way.
    for n in 0..20 {
        deliver(&app, &format!("{run:x}_{round}_warm_{n}")).await;
    }
    let until = Instant::now() + slice;
    let clients: Vec<_> = (0..CLIENTS)
        .map(|client| {
            let app = app.clone();
            tokio::spawn(async move {
                let mut took = Vec::new();
                while Instant::now() < until {
                    let id = format!("{run:x}_{round}_{client}_{}", took.len());
                    let start = Instant::now();
                    assert_eq!(deliver(&app, &id).await, StatusCode::NO_CONTENT);
                    took.push(start.elapsed());
                }
                took
            })
        })
        .collect();
    let mut took = Vec::new();
    for client in clients {
        took.extend(client.await.expect("a client"));
    }
    inbox.shutdown().await;
    took.sort_unstable();
    (took[took.len() * 99 / 100], took.len())
}

async fn deliver(app: &Router, id: &str) -> StatusCode {
    let body = format!(
        r#"{{"event_id":"evt_{id}","event_type":"payment.succeeded","data":{{"amount":1}}}}"#
    );
    let secret = Secret::text(SECRET).expect("a secret");
    let signer = Signer::new(&Preset::KUDOS.scheme(), [secret]).expect("a signer");
    let signed = signer.sign(Timestamp::now(), None, body.as_bytes());
    let mut request = Request::post("/")
        .body(Body::from(body))
        .expect("a request");
    request.headers_mut().extend(signed.expect("signed"));
    let answer = app.clone().oneshot(request).await;
    answer.unwrap_or_else(|never| match never {}).status()
}
