//! §2.4, §2.6: how often a delivery's connection has to wait for the server. Counted where it happens, between the two;
//! the pool's own questions whether a connection still answers are counted apart.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use sqlx::pool::PoolOptions;
use sqlx::{Connection, Pool};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use crate::db::TestDb;
use crate::kit::{Event, World, eventually, numbered};

/// Of the same work: the worker, the maintenance connection and a busy machine, where a connection goes back to the pool
/// between two deliveries, only ever add to it, and so the least counts.
const TRIES: u64 = 60;

/// What lies between a pool and its server.
#[derive(Clone, Default)]
struct Line {
    trips: Arc<AtomicUsize>,
    pings: Arc<AtomicUsize>,
}

impl Line {
    /// The port that leads to this one.
    async fn before(&self, port: u16) -> u16 {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let own = listener.local_addr().unwrap().port();
        let line = self.clone();
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let server = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
                tokio::spawn(line.clone().carry(client, server));
            }
        });
        own
    }

    /// A trip begins when the client speaks, and ends when the server does.
    async fn carry(self, mut client: TcpStream, mut server: TcpStream) {
        let (mut out, mut back) = (vec![0; 65_536], vec![0; 65_536]);
        let mut asked = false;
        loop {
            tokio::select! {
                read = client.read(&mut out) => {
                    let Ok(n @ 1..) = read else { return };
                    if !std::mem::replace(&mut asked, true) {
                        // PostgreSQL's Sync, MySQL's COM_PING.
                        let ping = matches!(&out[..n], b"S\0\0\0\x04" | [1, 0, 0, 0, 0x0e]);
                        let count = if ping { &self.pings } else { &self.trips };
                        count.fetch_add(1, Ordering::SeqCst);
                    }
                    if server.write_all(&out[..n]).await.is_err() {
                        return;
                    }
                }
                read = server.read(&mut back) => {
                    let Ok(n @ 1..) = read else { return };
                    asked = false;
                    if client.write_all(&back[..n]).await.is_err() {
                        return;
                    }
                }
            }
        }
    }

    /// The least that a delivery takes: trips, and pings besides.
    async fn least(&self, mut deliver: impl AsyncFnMut(u64)) -> (usize, usize) {
        let mut least = (usize::MAX, usize::MAX);
        for n in 1..=TRIES {
            let count = || {
                (
                    self.trips.load(Ordering::SeqCst),
                    self.pings.load(Ordering::SeqCst),
                )
            };
            let before = count();
            deliver(n).await;
            let after = count();
            least = (
                least.0.min(after.0 - before.0),
                least.1.min(after.1 - before.1),
            );
        }
        least
    }
}

async fn pool<D: TestDb>(options: Options<D>) -> Pool<D::DB> {
    let options = PoolOptions::new().max_connections(5).connect_with(options);
    options.await.unwrap()
}

type Options<D> = <<<D as TestDb>::DB as sqlx::Database>::Connection as Connection>::Options;

/// `begun`: for the first event of a stream.
async fn counted<D: TestDb>(db: D, line: Line, options: Options<D>, begun: usize) {
    let first = World::<D>::over(&db)
        .remembering()
        .keeping_connections()
        .pool(pool::<D>(options.clone()).await)
        .start()
        .await;
    let event = |n: u64| Event::new(&format!("evt_{n}"));
    // The statements are prepared, and the first delivery of a process looks what is known.
    first.send(&event(0)).await.is_applied();
    for n in 1..=3 {
        first.send(&numbered("acct_0", n)).await.is_applied();
    }
    let new = line
        .least(async |n| {
            first.send(&event(n)).await.is_applied();
        })
        .await;
    assert_eq!(
        new,
        (3, 0),
        "BEGIN with the INSERT; the handler's one; RELEASE and COMMIT"
    );
    let next = line
        .least(async |n| {
            first.send(&numbered("acct", n)).await.is_applied();
        })
        .await;
    assert_eq!(next, (3, 0), "the next event of a stream");
    let firsts = line
        .least(async |n| {
            first
                .send(&numbered(&format!("acct_{n}"), 1))
                .await
                .is_applied();
        })
        .await;
    assert_eq!(firsts, (begun, 0), "the first event of a stream");
    let known = line
        .least(async |n| {
            first.send(&event(n)).await.is_duplicate();
        })
        .await;
    assert_eq!(known, (0, 0), "this process saw the commit");
    first.stop().await;
    let second = World::<D>::over(&db)
        .keeping_connections()
        .pool(pool::<D>(options).await)
        .start()
        .await;
    // Its worker, which begins by looking round, keeps connections of its own meanwhile.
    eventually("it has looked round", async || {
        second
            .inbox
            .readiness(Duration::from_secs(1))
            .await
            .is_ready()
    })
    .await;
    second.send(&event(0)).await.is_duplicate();
    let cold = line
        .least(async |n| {
            second.send(&event(n)).await.is_duplicate();
        })
        .await;
    assert_eq!(cold, (1, 0), "another process saw it");
    second.stop().await;
}

/// §2.4, §2.6
#[cfg(feature = "postgres")]
#[tokio::test(flavor = "multi_thread")]
async fn a_delivery_takes_no_more_round_trips_than_it_must_on_postgres() {
    crate::db::run(|db: crate::db::postgres::PostgresDb| async move {
        let (line, options) = (Line::default(), db.options());
        let port = line.before(options.get_port()).await;
        let options = options.host("127.0.0.1").port(port);
        counted(db, line, options, 3).await;
    })
    .await;
}

/// §2.4, §2.6: a cursor is opened, then moved.
#[cfg(feature = "mysql")]
#[tokio::test(flavor = "multi_thread")]
async fn a_delivery_takes_no_more_round_trips_than_it_must_on_mysql() {
    crate::db::run(|db: crate::db::mysql::MySqlDb| async move {
        let (line, options) = (Line::default(), db.options());
        let port = line.before(options.get_port()).await;
        let options = options.host("127.0.0.1").port(port);
        counted(db, line, options, 5).await;
    })
    .await;
}
