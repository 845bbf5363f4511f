//! The measurements.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::Body;
use axum::extract::State;
use axum::routing::post;
use http::{Request, StatusCode};
use sqlx::Pool;
use tokio::sync::Notify;
use tower::ServiceExt;
use tower_inbox::clock::Timestamp;
use tower_inbox::verify::Signer;
use tower_inbox::{Delivery, Inbox, Preset, Secret, Source};

use crate::place::{CONNECTIONS, Place, name, on_server};

const SECRET: &str = "a secret of the bench";
/// Streams that are healthy, and how long they are looked at.
const HEALTHY: usize = 8;

struct Plan {
    sizes: &'static [u64],
    rounds: usize,
    slice: Duration,
    behind: u64,
}

const FULL: Plan = Plan {
    sizes: &[100, 1_000, 10_000],
    rounds: 3,
    slice: Duration::from_millis(1_500),
    behind: 1_000,
};
const QUICK: Plan = Plan {
    sizes: &[100, 1_000],
    rounds: 3,
    slice: Duration::from_millis(500),
    behind: 1_000,
};
/// `cargo test --benches` wants to know whether it works, not how fast.
const WORKS: Plan = Plan {
    sizes: &[10, 20],
    rounds: 1,
    slice: Duration::from_millis(50),
    behind: 10,
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
    let file = |name: &str| format!("sqlite://{}?mode=rwc", folder.join(name).display());
    let sqlite = async |url: String| {
        tower_inbox::sqlite::connect(&url, CONNECTIONS)
            .await
            .expect("a pool")
    };
    let pools = [sqlite(file("a")).await, sqlite(file("b")).await];
    measure::<sqlx::Sqlite>(plan, pools, &mut bars).await;
    std::fs::remove_dir_all(&folder).expect("the folder goes");
    if let Ok(url) = std::env::var("TEST_POSTGRES_URL") {
        let names = [name(), name()];
        let mut pools = Vec::new();
        for name in &names {
            on_server::<sqlx::Postgres>(&url, format!("CREATE DATABASE {name}")).await;
            let to: sqlx::postgres::PgConnectOptions = url.parse().expect("a URL");
            let options = sqlx::postgres::PgPoolOptions::new().max_connections(CONNECTIONS);
            pools.push(options.connect_lazy_with(to.database(name)));
        }
        let pools = pools.try_into().expect("two");
        measure::<sqlx::Postgres>(plan, pools, &mut bars).await;
        for name in &names {
            let drop = format!("DROP DATABASE {name} WITH (FORCE)");
            on_server::<sqlx::Postgres>(&url, drop).await;
        }
    }
    if let Ok(url) = std::env::var("TEST_MYSQL_URL") {
        let names = [name(), name()];
        let mut pools = Vec::new();
        for name in &names {
            on_server::<sqlx::MySql>(&url, format!("CREATE DATABASE {name}")).await;
            let to: sqlx::mysql::MySqlConnectOptions = url.parse().expect("a URL");
            let options = sqlx::mysql::MySqlPoolOptions::new().max_connections(CONNECTIONS);
            pools.push(options.connect_lazy_with(to.database(name)));
        }
        let pools = pools.try_into().expect("two");
        measure::<sqlx::MySql>(plan, pools, &mut bars).await;
        for name in &names {
            on_server::<sqlx::MySql>(&url, format!("DROP DATABASE {name}")).await;
        }
    }
    for bar in bars {
        println!("{bar}");
    }
}

async fn measure<DB: Place>(plan: &Plan, pools: [Pool<DB>; 2], bars: &mut Vec<String>) {
    let [one, other] = pools;
    batched(plan, [one.clone(), other.clone()], bars).await;
    let receiver = Receiver::new(one, 1).await;
    storage(&receiver, plan).await;
    let (least, most) = (plan.sizes[0], plan.sizes[plan.sizes.len() - 1]);
    let mut ratios = Vec::new();
    // Once for nothing: connections, statements and pages are there then.
    receiver.drain(least).await;
    for round in 0..plan.rounds {
        let mut rates = Vec::new();
        for size in plan.sizes {
            // Short drains several times, so that as much is measured of them.
            let times = (most / size).clamp(1, 10);
            let mut took = Duration::ZERO;
            for _ in 0..times {
                took += receiver.drain(*size).await;
            }
            let rate = (size * times) as f64 / took.as_secs_f64();
            println!(
                "{:9} round {round}: {size:6} parked: {rate:7.0} events/s",
                DB::LABEL
            );
            rates.push(rate);
        }
        ratios.push(rates[rates.len() - 1] / rates[0]);
    }
    bars.push(bar(&format!("drain_flat_{}", DB::LABEL), ratios, "0.8"));

    let wedged = Receiver::new(other, 1).await;
    wedged.park("wedged", plan.behind).await;
    wedged.deliver("wedged", 1).await;
    let mut ratios = Vec::new();
    for round in 0..plan.rounds * 2 + 1 {
        // The first of the two is another one each time.
        let (without, with) = if round % 2 == 0 {
            let without = receiver.healthy(round, plan.slice).await;
            (without, wedged.healthy(round, plan.slice).await)
        } else {
            let with = wedged.healthy(round, plan.slice).await;
            (receiver.healthy(round, plan.slice).await, with)
        };
        println!(
            "{:9} round {round}: {HEALTHY} streams: {without:7.0} events/s, beside a wedged one {with:7.0}",
            DB::LABEL
        );
        ratios.push(with / without);
    }
    bars.push(bar(&format!("wedged_{}", DB::LABEL), ratios, "0.9"));
    for receiver in [receiver, wedged] {
        receiver.inbox.shutdown().await;
        receiver.pool.close().await;
    }
}

/// One stream, drained one by one and in batches of some sizes, in turns. The handler does nothing, so that what is
/// compared is the inbox's own part.
async fn batched<DB: Place>(plan: &Plan, pools: [Pool<DB>; 2], bars: &mut Vec<String>) {
    let [one, other] = pools;
    let events = plan.sizes[1];
    for size in [8, 32, 128] {
        let single = Receiver::new(one.clone(), 1).await;
        let batched = Receiver::new(other.clone(), size).await;
        for receiver in [&single, &batched] {
            receiver.drain(plan.sizes[0]).await;
        }
        let mut ratios = Vec::new();
        for round in 0..plan.rounds {
            let (mut rates, mut sides) = ([0.0; 2], [(0, &single), (1, &batched)]);
            // The first of the two is another one each time.
            if round % 2 == 1 {
                sides.reverse();
            }
            for (side, receiver) in sides {
                rates[side] = events as f64 / receiver.drain(events).await.as_secs_f64();
            }
            println!(
                "{:9} round {round}: {:7.0} events/s one by one, {:7.0} in batches of {size}",
                DB::LABEL,
                rates[0],
                rates[1]
            );
            ratios.push(rates[1] / rates[0]);
        }
        let database = match DB::LABEL {
            "postgres" => "pg",
            "mysql" => "my",
            other => other,
        };
        // The one in the middle is the figure; the others tell which size is worth its while.
        let name = match size {
            32 => format!("{database}_drain_batched_vs_one_by_one"),
            size => format!("{database}_drain_batched_{size}_vs_one_by_one"),
        };
        bars.push(bar(&name, ratios, "3.0"));
        for receiver in [single, batched] {
            receiver.inbox.shutdown().await;
        }
    }
}

/// Prints what a parked event of 1 KiB takes.
async fn storage<DB: Place>(receiver: &Receiver<DB>, plan: &Plan) {
    let events = plan.sizes[plan.sizes.len() - 1];
    let sizes = async || {
        let pending = DB::bytes_of(&receiver.pool, "tower_inbox_pending").await;
        (
            pending,
            DB::bytes_of(&receiver.pool, "tower_inbox_event").await,
        )
    };
    let before = sizes().await;
    receiver.park("stored", events).await;
    let after = sizes().await;
    let each = |after: i64, before: i64| (after - before) as f64 / events as f64;
    println!(
        "{:9} a parked event of 1 KiB takes {:.0} bytes, and {:.0} in the table of events",
        DB::LABEL,
        each(after.0, before.0),
        each(after.1, before.1)
    );
    let mut conn = receiver.pool.acquire().await.expect("a connection");
    for table in ["event", "pending", "cursor"] {
        let forget = format!("DELETE FROM tower_inbox_{table} WHERE correlation_id = 'stored'");
        DB::execute(&mut conn, forget).await;
    }
}

fn bar(name: &str, mut ratios: Vec<f64>, goal: &str) -> String {
    ratios.sort_by(f64::total_cmp);
    let median = ratios[ratios.len() / 2];
    let (min, max) = (ratios[0], ratios[ratios.len() - 1]);
    format!("bar {name} {median:.3} ({min:.3}-{max:.3}) goal {goal}")
}

/// An inbox whose handler does nothing but count, and fails whatever is second in the stream `wedged`.
struct Receiver<DB: Place> {
    inbox: Inbox<DB>,
    pool: Pool<DB>,
    app: Router,
    ran: Arc<Ran>,
    signer: Signer,
}

#[derive(Default)]
struct Ran {
    runs: AtomicUsize,
    some: Notify,
}

impl<DB: Place> Receiver<DB> {
    async fn new(pool: Pool<DB>, batch: usize) -> Self {
        let source = Source::kudos("crm")
            .secrets([SECRET])
            .park_limit(1_000_000)
            .park_bytes(1 << 40)
            .batch(batch);
        let inbox = Inbox::builder(pool.clone())
            .source(source)
            .build()
            .await
            .expect("an inbox");
        let ran = Arc::new(Ran::default());
        let handler = async |State(ran): State<Arc<Ran>>, delivery: axum::Extension<Delivery>| {
            if delivery.correlation_id() == Some("wedged") && delivery.sequence() == Some(2) {
                return StatusCode::SERVICE_UNAVAILABLE;
            }
            ran.runs.fetch_add(1, Ordering::Relaxed);
            ran.some.notify_one();
            StatusCode::NO_CONTENT
        };
        let routes = Router::new()
            .route("/", post(handler))
            .with_state(Arc::clone(&ran));
        let secret = Secret::text(SECRET).expect("a secret");
        Self {
            app: inbox.mount("crm", routes),
            signer: Signer::new(&Preset::KUDOS.scheme(), [secret]).expect("a signer"),
            inbox,
            pool,
            ran,
        }
    }

    async fn deliver(&self, account: &str, sequence: u64) -> StatusCode {
        let head = format!(
            r#"{{"event_id":"evt_{account}_{sequence}","event_type":"payment.succeeded","correlation_id":"{account}","sequence":{sequence},"data":{{"note":""#
        );
        let body = format!("{head}{}\"}}}}", "x".repeat(1_024 - head.len() - 3));
        let signed = self.signer.sign(Timestamp::now(), None, body.as_bytes());
        let mut request = Request::post("/")
            .body(Body::from(body))
            .expect("a request");
        request.headers_mut().extend(signed.expect("signed"));
        let answer = self.app.clone().oneshot(request).await;
        answer.unwrap_or_else(|never| match never {}).status()
    }

    /// Parks so many events behind the first one: one by the inbox, and the others as copies of its rows.
    async fn park(&self, account: &str, events: u64) {
        assert_eq!(self.deliver(account, 2).await, StatusCode::ACCEPTED);
        let digits = "SELECT 0 AS d UNION ALL SELECT 1 UNION ALL SELECT 2 UNION ALL SELECT 3 UNION ALL SELECT 4
            UNION ALL SELECT 5 UNION ALL SELECT 6 UNION ALL SELECT 7 UNION ALL SELECT 8 UNION ALL SELECT 9";
        let numbers = format!(
            "SELECT 3 + a.d + 10 * b.d + 100 * c.d + 1000 * e.d AS n
             FROM ({digits}) AS a, ({digits}) AS b, ({digits}) AS c, ({digits}) AS e"
        );
        let mut conn = self.pool.acquire().await.expect("a connection");
        for (table, copied, placed) in [
            (
                "event",
                "state, fingerprint, event_type, received_at, decided_at",
                "sequence, slot",
            ),
            (
                "pending",
                "attempts, not_before, parked_at, bytes, method, uri, headers, body",
                "sequence",
            ),
        ] {
            let numbered = if placed.contains("slot") { "n, n" } else { "n" };
            let copy = format!(
                "INSERT INTO tower_inbox_{table} (source, event_id, correlation_id, {copied}, {placed})
                 SELECT source, concat('evt_{account}_', n), correlation_id, {copied}, {numbered}
                 FROM tower_inbox_{table}, ({numbers}) AS numbers
                 WHERE event_id = 'evt_{account}_2' AND n <= {}",
                events + 1
            );
            DB::execute(&mut conn, copy).await;
        }
    }

    /// How long it takes from the event that fills the gap to the last one behind it.
    async fn drain(&self, events: u64) -> Duration {
        static STREAMS: AtomicUsize = AtomicUsize::new(0);
        let account = format!("s{}", STREAMS.fetch_add(1, Ordering::Relaxed));
        self.park(&account, events).await;
        let all = self.ran.runs.load(Ordering::Relaxed) + 1 + events as usize;
        let start = Instant::now();
        assert_eq!(self.deliver(&account, 1).await, StatusCode::NO_CONTENT);
        while self.ran.runs.load(Ordering::Relaxed) < all {
            self.ran.some.notified().await;
        }
        start.elapsed()
    }

    /// Events per second of healthy streams, each with a producer that sends one after the other.
    async fn healthy(&self, round: usize, slice: Duration) -> f64 {
        let over = AtomicBool::new(false);
        let start = Instant::now();
        let stream = async |stream: usize| {
            let account = format!("h{round}_{stream}");
            let mut sequence = 0;
            while !over.load(Ordering::Relaxed) {
                let status = self.deliver(&account, sequence + 1).await;
                // Where there is but one writer some are told to come again.
                sequence += u64::from(status == StatusCode::NO_CONTENT);
                if start.elapsed() > slice {
                    over.store(true, Ordering::Relaxed);
                }
            }
            sequence
        };
        let (a, b, c, d, e, f, g, h) = tokio::join!(
            stream(0),
            stream(1),
            stream(2),
            stream(3),
            stream(4),
            stream(5),
            stream(6),
            stream(7)
        );
        (a + b + c + d + e + f + g + h) as f64 / start.elapsed().as_secs_f64()
    }
}
