//! Issue 3: a database that is killed under load, freezes, or is set up worse than the contract wants. Each test has a
//! server of its own.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use crate::db::server::{OnServer, Server};
use crate::kit::watch::Watch;
use crate::kit::{Event, Gate, World, eventually, numbered, within};

/// Makes one test for each database server out of each of these functions.
macro_rules! on_servers {
    ($($test:ident),+ $(,)?) => {
        on_servers! { @on postgres "postgres" PostgresDb: $($test),+ }
        on_servers! { @on mysql "mysql" MySqlDb: $($test),+ }
    };
    (@on $module:ident $feature:literal $db:ident: $($test:ident),+) => {
        #[cfg(feature = $feature)]
        mod $module {
            $(
                #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                async fn $test() {
                    crate::db::server::run(super::$test::<crate::db::$module::$db>).await;
                }
            )+
        }
    };
}

on_servers![
    a_database_that_is_killed_three_times_under_load_loses_and_repeats_nothing,
    a_database_that_freezes_gets_503_in_time_and_is_used_again_when_it_answers,
    settings_that_may_lose_a_commit_are_warned_about,
    a_probe_names_the_database_while_it_is_away_and_no_longer,
];

const SECOND: Duration = Duration::from_secs(1);

/// Sends events as a producer does, each until it is acknowledged, and new ones until it is told to stop.
async fn produce<D: OnServer>(
    world: World<D>,
    account: String,
    stop: Arc<AtomicBool>,
    acknowledged: Arc<AtomicUsize>,
) -> u64 {
    for n in 1.. {
        if stop.load(Ordering::Relaxed) {
            return n - 1;
        }
        let ordered = numbered(&account, n);
        let free = Event::new(&format!("evt_free_{account}_{n}"));
        for event in [ordered.clone(), free, ordered] {
            loop {
                let reply = world.send(&event).await;
                match reply.status {
                    200..300 => break,
                    // The handler's own connection may break, which is a 500 of the handler's.
                    429 | 500 | 503 => tokio::time::sleep(Duration::from_millis(30)).await,
                    _ => panic!("{reply:?}"),
                }
            }
            acknowledged.fetch_add(1, Ordering::Relaxed);
        }
    }
    unreachable!("it is stopped")
}

/// §4.1, §5.14: "kill -9 … under load, three times: every event ends up applied once; no idle-in-transaction connection
/// is left"; "recovers by itself; /healthz tells the truth within a second".
async fn a_database_that_is_killed_three_times_under_load_loses_and_repeats_nothing<D: OnServer>(
    db: D,
    mut server: Server<D>,
) {
    let world = World::<D>::over(&db)
        .connections(6)
        .source(|source| source.budget(Duration::from_secs(4)))
        .start()
        .await;
    let (stop, acknowledged) = (Arc::<AtomicBool>::default(), Arc::<AtomicUsize>::default());
    let accounts: Vec<_> = (0..8).map(|n| format!("acct{n}")).collect();
    let producers: Vec<_> = accounts
        .iter()
        .map(|account| {
            tokio::spawn(produce(
                world.clone(),
                account.clone(),
                Arc::clone(&stop),
                Arc::clone(&acknowledged),
            ))
        })
        .collect();
    for _ in 0..3 {
        let so_far = acknowledged.load(Ordering::Relaxed);
        eventually("it is under load", async || {
            acknowledged.load(Ordering::Relaxed) >= so_far + 100
        })
        .await;
        within(SECOND, world.inbox.ping(SECOND)).await.unwrap();
        server.kill();
        let told = world.inbox.ping(SECOND).await;
        assert!(told.is_err(), "a database that is gone is called healthy");
        server.restart().await;
        let start = Instant::now();
        eventually("it is healthy again", async || {
            world.inbox.ping(SECOND).await.is_ok()
        })
        .await;
        assert!(start.elapsed() < 2 * SECOND, "{:?}", start.elapsed());
    }
    let so_far = acknowledged.load(Ordering::Relaxed);
    eventually("it is under load again", async || {
        acknowledged.load(Ordering::Relaxed) >= so_far + 100
    })
    .await;
    stop.store(true, Ordering::Relaxed);
    for (producer, account) in producers.into_iter().zip(&accounts) {
        let sent = producer.await.unwrap();
        eventually("what was parked is drained", async || {
            world.sequences(account).await.len() as u64 >= sent
        })
        .await;
        let expected: Vec<_> = (1..=sent.cast_signed()).collect();
        assert_eq!(world.sequences(account).await, expected, "{account}");
        let mut free = world.applied().await;
        let mark = format!("evt_free_{account}_");
        free.retain(|id| id.starts_with(&mark));
        assert_eq!(free.len() as u64, sent);
        free.sort();
        free.dedup();
        assert_eq!(
            free.len() as u64,
            sent,
            "{account}: something was applied twice"
        );
    }
    world.pool_is_whole().await;
}

/// §3, §4.6. A server that neither answers nor closes anything: deliveries are answered in time, and so is a health
/// check.
async fn a_database_that_freezes_gets_503_in_time_and_is_used_again_when_it_answers<D: OnServer>(
    db: D,
    server: Server<D>,
) {
    const BUDGET: Duration = Duration::from_secs(2);
    let world = World::<D>::over(&db)
        .source(|source| source.budget(BUDGET))
        .start()
        .await;
    world.send(&Event::new("evt_1")).await.is_applied();
    server.freeze();
    let frozen = Instant::now();
    for round in 0..2 {
        let sent: Vec<_> = (1..=8)
            .map(|n| world.spawn(&numbered(&format!("acct{n}"), 1)))
            .collect();
        let ping = world.inbox.ping(SECOND);
        assert!(within(SECOND + SECOND / 2, ping).await.is_err());
        for reply in sent {
            let reply = within(BUDGET + 2 * SECOND, reply).await.unwrap();
            // Those that find no connection are told so before it is known that the database is away.
            assert!(
                matches!(reply.status, 429 | 503),
                "round {round}: {reply:?}"
            );
        }
    }
    assert!(frozen.elapsed() < 2 * (BUDGET + 2 * SECOND));
    server.thaw();
    for n in 1..=8 {
        let event = numbered(&format!("acct{n}"), 1);
        eventually("it is served again", async || {
            let reply = world.send(&event).await;
            matches!(reply.outcome(), "applied" | "duplicate")
        })
        .await;
    }
    within(SECOND, world.inbox.ping(SECOND)).await.unwrap();
    assert_eq!(world.ledger().await.len(), 9);
    world.pool_is_whole().await;
}

/// (health): within the probe's patience, frozen or gone.
async fn a_probe_names_the_database_while_it_is_away_and_no_longer<D: OnServer>(
    db: D,
    mut server: Server<D>,
) {
    let world = World::<D>::start(&db).await;
    let ready = async || world.inbox.readiness(SECOND).await;
    let away = async || {
        let readiness = within(SECOND + SECOND / 2, ready()).await;
        let named = |name: &str| readiness.checks.iter().find(|check| check.name == name);
        // Whatever else suffers from it, the tables are not blamed.
        named("database").is_some_and(|check| !check.ok) && named("schema").is_none()
    };
    let again = "it is ready again";
    eventually("it is ready", async || ready().await.is_ready()).await;
    server.freeze();
    assert!(away().await, "frozen");
    server.thaw();
    eventually(again, async || ready().await.is_ready()).await;
    server.kill();
    assert!(away().await, "gone");
    server.restart().await;
    eventually(again, async || ready().await.is_ready()).await;
}

/// §4.1a: "weaker flush settings warn at start".
async fn settings_that_may_lose_a_commit_are_warned_about<D: OnServer>(db: D, server: Server<D>) {
    let world = World::<D>::start(&db).await;
    for (name, weaken) in D::weaker_settings() {
        // Each start says what it finds, and nothing of what is in order.
        let watch = Watch::everything();
        World::<D>::start(&db).await.stop().await;
        let warned = |line: &String| line.starts_with("WARN tower_inbox") && line.contains(name);
        assert!(!watch.take().iter().any(warned), "{name}");
        world.execute(weaken).await;
        eventually(name, async || {
            // PostgreSQL's takes effect after a reload, a moment later.
            if D::NAME == "postgres" {
                world.number("SELECT pg_reload_conf()::int").await;
            }
            World::<D>::start(&db).await.stop().await;
            watch.take().iter().any(warned)
        })
        .await;
    }
    drop(server);
}

/// §4.7: 1290, MariaDB's read-only server. (PostgreSQL can demote one database alone: `sessions`.)
#[cfg(feature = "mysql")]
#[tokio::test(flavor = "multi_thread")]
async fn a_read_only_server_gets_503_and_is_used_again_when_it_is_writable() {
    use crate::db::TestDb;
    use crate::db::mysql::MySqlDb;
    crate::db::server::run(|db: MySqlDb, server| async move {
        let options = db.options().username("app").password("app");
        let pool = sqlx::pool::PoolOptions::new().max_connections(1);
        let world = World::over(&db)
            .pool(pool.connect_with(options).await.unwrap())
            .handler(|mut call: crate::kit::Call<MySqlDb>| async move {
                call.append().await;
                http::StatusCode::NO_CONTENT
            })
            .start()
            .await;
        let id = async || {
            let id = MySqlDb::CONNECTION_ID.unwrap();
            MySqlDb::number(&world.pool, id).await
        };
        world.send(&Event::new("evt_1")).await.is_applied();
        let before = id().await;
        world.execute("SET GLOBAL read_only = 1").await;
        for event in [Event::new("evt_2"), numbered("acct", 1)] {
            world
                .send(&event)
                .await
                .is_problem_about(503, "failed", "database");
        }
        // What is known can still be told.
        world.send(&Event::new("evt_1")).await.is_duplicate();
        assert_ne!(id().await, before, "the connection was not closed");
        world.execute("SET GLOBAL read_only = 0").await;
        for event in [Event::new("evt_2"), numbered("acct", 1)] {
            world.send(&event).await.is_applied();
        }
        world.pool_is_whole().await;
        drop(server);
    })
    .await;
}

/// Holds handlers, and has the number of the connection that the last one came with.
#[cfg(feature = "mysql")]
#[derive(Clone)]
struct Held {
    gate: Gate,
    number: Arc<AtomicI64>,
}

#[cfg(feature = "mysql")]
impl Held {
    fn new() -> Self {
        Self {
            gate: Gate::shut(),
            number: Arc::default(),
        }
    }

    /// A handler waits here.
    async fn pass(&self, call: &mut crate::kit::Call<crate::db::mysql::MySqlDb>) {
        use crate::db::TestDb;
        use crate::db::mysql::MySqlDb;
        let number = MySqlDb::number_on(&mut call.tx, MySqlDb::CONNECTION_ID.unwrap()).await;
        self.number.store(number.unwrap(), Ordering::Relaxed);
        self.gate.pass().await;
    }

    async fn number(&self) -> i64 {
        self.gate.reached_by(1).await;
        self.number.load(Ordering::Relaxed)
    }
}

/// §4.6: what a delivery has left running is ended by its connection's number, which a server that was started again has
/// given to somebody else.
#[cfg(feature = "mysql")]
#[tokio::test(flavor = "multi_thread")]
async fn nobody_is_killed_by_a_number_of_before_the_server_was_started_again() {
    use sqlx::{ConnectOptions, Connection};

    use crate::db::TestDb;
    use crate::db::mysql::MySqlDb;
    crate::db::server::run(|db: MySqlDb, mut server| async move {
        let held = Held::new();
        let holds = held.clone();
        // Above those that the inbox gets when it is back.
        for _ in 0..30 {
            db.options().connect().await.unwrap().close().await.unwrap();
        }
        let world = World::over(&db)
            .source(|source| source.budget(Duration::from_secs(30)))
            .handler(move |mut call: crate::kit::Call<MySqlDb>| {
                let held = holds.clone();
                async move {
                    held.pass(&mut call).await;
                    http::StatusCode::NO_CONTENT
                }
            })
            .start()
            .await;
        let sent = world.spawn(&Event::new("evt_1"));
        let number = held.number().await;
        let mut innocent = loop {
            server.kill();
            server.restart().await;
            let mut others = Vec::new();
            let last = loop {
                let mut conn = db.options().connect().await.unwrap();
                let id = MySqlDb::CONNECTION_ID.unwrap();
                let id = MySqlDb::number_on(&mut conn, id).await.unwrap();
                if id >= number {
                    break (id, conn);
                }
                others.push(conn);
            };
            // The inbox may have been given just this one.
            if last.0 == number {
                break last.1;
            }
        };
        let healthy = async || {
            eventually("it is healthy", async || {
                world.inbox.ping(SECOND).await.is_ok()
            })
            .await;
        };
        healthy().await;
        held.gate.open();
        assert_eq!(sent.await.unwrap().status, 503);
        // What it had ended was asked for before this.
        healthy().await;
        let answer = MySqlDb::number_on(&mut innocent, "SELECT 1").await;
        assert_eq!(answer.unwrap(), 1, "connection {number} was killed");
        drop(server);
    })
    .await;
}

/// §4.6: the maintenance connection may be another one by the time that something is to be ended.
#[cfg(feature = "mysql")]
#[tokio::test(flavor = "multi_thread")]
async fn what_a_delivery_left_running_is_ended_though_the_maintenance_connection_was_lost() {
    use crate::db::TestDb;
    use crate::db::mysql::MySqlDb;
    crate::db::run(|db: MySqlDb| async move {
        let held = Held::new();
        let holds = held.clone();
        let world = World::over(&db)
            .source(|source| source.budget(3 * SECOND))
            .handler(move |mut call: crate::kit::Call<MySqlDb>| {
                let held = holds.clone();
                async move {
                    held.pass(&mut call).await;
                    // Without a limit of the server's own, and where it does not look for its client.
                    let forever = "SET max_statement_time = 0, innodb_lock_wait_timeout = 3600;
                        UPDATE taken SET times = times + 1 WHERE n = 1";
                    let _ = MySqlDb::execute(&mut call.tx, forever).await;
                    http::StatusCode::NO_CONTENT
                }
            })
            .start()
            .await;
        let ping = async || world.inbox.ping(SECOND).await.is_ok();
        eventually("it is healthy", ping).await;
        let sent = world.spawn(&Event::new("evt_1"));
        let number = held.number().await;
        let others = format!(
            "SELECT CAST(id AS CHAR) FROM information_schema.processlist
             WHERE db = DATABASE() AND id NOT IN ({number}, CONNECTION_ID())"
        );
        for other in MySqlDb::texts(&world.eyes, &others).await {
            let mut operator = world.eyes.acquire().await.unwrap();
            // It may be one that looks on, and gone by now.
            let _ = MySqlDb::execute(&mut operator, &format!("KILL {other}")).await;
        }
        eventually("there is another maintenance connection", ping).await;
        let mut holder = world.eyes.acquire().await.unwrap();
        let hold = "START TRANSACTION; UPDATE taken SET times = times + 1 WHERE n = 1";
        MySqlDb::execute(&mut holder, hold).await.unwrap();
        held.gate.open();
        assert_eq!(sent.await.unwrap().status, 503);
        let left =
            format!("SELECT COUNT(*) FROM information_schema.processlist WHERE id = {number}");
        eventually("it is ended", async || {
            MySqlDb::number(&world.eyes, &left).await == 0
        })
        .await;
    })
    .await;
}

/// §4.2: nothing is cancelled once it has been sent. A COMMIT that waits, for a backup say, is not ended by the limit on the
/// statements before it.
#[cfg(feature = "mysql")]
#[tokio::test(flavor = "multi_thread")]
async fn a_commit_has_no_limit_of_time() {
    use sqlx::ConnectOptions;

    use crate::db::TestDb;
    use crate::db::mysql::MySqlDb;
    crate::db::server::run(|db: MySqlDb, server| async move {
        let gate = Gate::shut();
        let held = gate.clone();
        let world = World::over(&db)
            .source(|source| source.budget(SECOND))
            .handler(move |mut call: crate::kit::Call<MySqlDb>| {
                let held = held.clone();
                async move {
                    call.append().await;
                    if call.delivery.event_id() == "evt_2" {
                        held.pass().await;
                    }
                    http::StatusCode::NO_CONTENT
                }
            })
            .start()
            .await;
        // The next one begins in a session that has had limits.
        world.send(&Event::new("evt_1")).await.is_applied();
        let sent = world.spawn(&Event::new("evt_2"));
        gate.reached_by(1).await;
        let mut backup = db.options().connect().await.unwrap();
        MySqlDb::execute(&mut backup, "FLUSH TABLES WITH READ LOCK")
            .await
            .unwrap();
        gate.open();
        // The time under test: longer than the limit, which is a second and a half.
        let waits = "SELECT COUNT(*) FROM information_schema.processlist WHERE info LIKE '%COMMIT' AND time_ms > 2500";
        eventually("it waits beyond that", async || {
            MySqlDb::number_on(&mut backup, waits).await.unwrap() == 1
        })
        .await;
        MySqlDb::execute(&mut backup, "UNLOCK TABLES").await.unwrap();
        assert_eq!(sent.await.unwrap().status, 503, "its time was over");
        eventually("it is committed", async || world.ledger().await.len() == 2).await;
        world.send(&Event::new("evt_2")).await.is_duplicate();
        drop(server);
    })
    .await;
}

/// A network that loses one connection without a word: from the message on that holds the word, nothing of it comes
/// through in either direction, and nobody closes it.
mod network {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::{Arc, Mutex};

    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::{TcpListener, TcpStream};

    #[derive(Clone, Default)]
    pub(super) struct Network {
        word: Arc<Mutex<Option<&'static str>>>,
        lost: Arc<AtomicUsize>,
    }

    impl Network {
        /// The next connection that says this is lost.
        pub(super) fn loses(&self, word: &'static str) {
            *self.word.lock().unwrap() = Some(word);
        }

        /// How many are lost.
        pub(super) fn lost(&self) -> usize {
            self.lost.load(Ordering::Relaxed)
        }

        /// The port that leads to this one.
        pub(super) async fn before(&self, port: u16) -> u16 {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let own = listener.local_addr().unwrap().port();
            let network = self.clone();
            tokio::spawn(async move {
                while let Ok((client, _)) = listener.accept().await {
                    let server = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
                    tokio::spawn(network.clone().carry(client, server));
                }
            });
            own
        }

        async fn carry(self, mut client: TcpStream, mut server: TcpStream) {
            let (mut out, mut back) = (vec![0; 65_536], vec![0; 65_536]);
            loop {
                tokio::select! {
                    read = client.read(&mut out) => match read {
                        Ok(n) if n > 0 => {
                            if self.is_lost(&out[..n]) {
                                // Both ends stay open.
                                std::future::pending::<()>().await;
                            }
                            if server.write_all(&out[..n]).await.is_err() {
                                return;
                            }
                        }
                        _ => return,
                    },
                    read = server.read(&mut back) => match read {
                        Ok(n) if n > 0 => {
                            if client.write_all(&back[..n]).await.is_err() {
                                return;
                            }
                        }
                        _ => return,
                    },
                }
            }
        }

        fn is_lost(&self, said: &[u8]) -> bool {
            let mut word = self.word.lock().unwrap();
            let lost = word
                .is_some_and(|word| said.windows(word.len()).any(|part| part == word.as_bytes()));
            if lost {
                *word = None;
                self.lost.fetch_add(1, Ordering::Relaxed);
            }
            lost
        }
    }
}

use network::Network;
use sqlx::Pool;

const BUDGET: Duration = Duration::from_secs(2);

async fn behind<D: crate::db::TestDb>(db: &D, pool: Pool<D::DB>) -> World<D> {
    World::<D>::over(db)
        .pool(pool)
        .source(|source| source.budget(BUDGET))
        .start()
        .await
}

/// §5.14: "once the obstacle is gone … without a call or a restart". The worker's own look at what is due is lost.
async fn a_look_that_is_lost_does_not_stop_the_worker<D: crate::db::TestDb>(
    db: D,
    network: Network,
    pool: Pool<D::DB>,
) {
    network.loses("p.not_before <= ");
    let world = behind(&db, pool).await;
    eventually("it is lost", async || network.lost() == 1).await;
    world.send(&numbered("acct", 2)).await.is_parked(1);
    world.send(&numbered("acct", 1)).await.is_applied();
    eventually("2 follows", async || {
        world.sequences("acct").await == [1, 2]
    })
    .await;
}

/// §5.4, §5.14. The same for what has to be done from time to time: a parked event's window ends.
async fn a_count_that_is_lost_does_not_stop_the_upkeep<D: crate::db::TestDb>(
    db: D,
    network: Network,
    pool: Pool<D::DB>,
) {
    network.loses("MIN(parked_at)");
    let world = World::<D>::over(&db)
        .pool(pool)
        .source(|source| source.recovery_window(Duration::from_millis(200)))
        .start()
        .await;
    eventually("it is lost", async || network.lost() == 1).await;
    world.send(&numbered("acct", 2)).await.is_parked(1);
    eventually("it is a dead letter", async || world.in_state(3).await == 1).await;
}

/// §4.2, §5.14: the retry finds out, and the stream goes on.
async fn a_commit_that_is_lost_holds_up_neither_its_event_nor_its_stream<D: crate::db::TestDb>(
    db: D,
    network: Network,
    pool: Pool<D::DB>,
) {
    let world = behind(&db, pool).await;
    network.loses("COMMIT");
    let event = numbered("acct", 1);
    assert_eq!(world.send(&event).await.status, 503);
    assert_eq!(network.lost(), 1);
    eventually("the retry is applied", async || {
        matches!(world.send(&event).await.outcome(), "applied" | "duplicate")
    })
    .await;
    world.send(&numbered("acct", 2)).await.is_applied();
    assert_eq!(world.sequences("acct").await, [1, 2]);
}

/// §4.5: deliveries that lose their connection, one after the other, do not use the pool up.
async fn looks_that_are_lost_leave_the_pool_whole<D: crate::db::TestDb>(
    db: D,
    network: Network,
    pool: Pool<D::DB>,
) {
    let world = behind(&db, pool).await;
    world.send(&Event::new("evt_0")).await.is_applied();
    for n in 1..=3 {
        let before = network.lost();
        network.loses("evt_lost");
        let event = Event::new(&format!("evt_lost_{n}"));
        let reply = world.send(&event).await;
        assert!(matches!(reply.status, 429 | 503), "{reply:?}");
        assert_eq!(network.lost(), before + 1);
    }
    for n in 1..=3 {
        let event = Event::new(&format!("evt_lost_{n}"));
        eventually("the retry is applied", async || {
            world.send(&event).await.outcome() == "applied"
        })
        .await;
    }
}

/// Makes one test for each database server out of each of these functions, behind a network.
macro_rules! behind_networks {
    ($($test:ident),+ $(,)?) => {
        behind_networks! { @on behind_postgres "postgres" postgres PostgresDb: $($test),+ }
        behind_networks! { @on behind_mysql "mysql" mysql MySqlDb: $($test),+ }
    };
    (@on $module:ident $feature:literal $of:ident $db:ident: $($test:ident),+) => {
        #[cfg(feature = $feature)]
        mod $module {
            $(
                #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                async fn $test() {
                    crate::db::run(|db: crate::db::$of::$db| async move {
                        let network = super::Network::default();
                        let options = db.options();
                        let port = network.before(options.get_port()).await;
                        let pool = sqlx::pool::PoolOptions::new().max_connections(3);
                        let pool = pool.connect_with(options.host("127.0.0.1").port(port)).await;
                        super::$test(db, network, pool.unwrap()).await;
                    })
                    .await;
                }
            )+
        }
    };
}

behind_networks![
    a_look_that_is_lost_does_not_stop_the_worker,
    a_count_that_is_lost_does_not_stop_the_upkeep,
    a_commit_that_is_lost_holds_up_neither_its_event_nor_its_stream,
    looks_that_are_lost_leave_the_pool_whole,
];
