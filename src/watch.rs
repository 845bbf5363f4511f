//! The maintenance connection: one per inbox, beside the pool, on databases that are servers.
//!
//! It notices within a second that the server is gone or is another one, so that nothing is remembered across a
//! restart, a restore or a failover (§2.4); and it ends on the server what a connection that was closed hard has left
//! running there (§4.6).

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use sqlx::{ConnectOptions, Connection, SqlStr};
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, sleep, timeout};

use crate::fail::point;
use crate::health::{self, Looked};
use crate::shared::Shared;
use crate::store::{Backend, Kill, RunningServer};

/// Between two looks. A restart or a restore takes longer than this.
const LOOK_EVERY: Duration = Duration::from_millis(500);
/// A server that does not answer this statement for so long is as good as gone.
const PATIENCE: Duration = Duration::from_secs(2);
/// Between two attempts to connect.
const AGAIN: Duration = Duration::from_millis(250);
/// Beyond what a server says it has run, in whole seconds by its own clock.
const UP_MARGIN: Duration = Duration::from_secs(2);
/// Requests that wait for the connection. One more is dropped: what the server has of limits then ends the statement.
const BACKLOG: usize = 256;

/// The inbox's side of it.
#[derive(Clone)]
pub(crate) struct Watch {
    requests: mpsc::Sender<Request>,
    alive: Arc<AtomicBool>,
    starts: Arc<AtomicU64>,
}

/// How often the server may have been another one, or may have been started again, since the inbox was built.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Start(u64);

/// Owners of leases, and their beats.
type Beats = Vec<(String, i64)>;

enum Request {
    /// With the server's start before the connection to be killed was last heard of.
    Kill(Kill, Start),
    Notify(Vec<String>),
    Ping(oneshot::Sender<()>),
    Schema(oneshot::Sender<Looked>),
    /// A worker's sign of life, its count, and the others' rows as the answer.
    Beat(i64, oneshot::Sender<Beats>),
    Stop(oneshot::Sender<()>),
}

impl Request {
    /// Nobody waits for its answer, which is all there is to it.
    fn is_given_up(&self) -> bool {
        match self {
            Self::Ping(reply) => reply.is_closed(),
            Self::Schema(reply) => reply.is_closed(),
            Self::Kill(..) | Self::Notify(_) | Self::Beat(..) | Self::Stop(_) => false,
        }
    }
}

/// What the task needs.
pub(crate) struct Watcher {
    requests: mpsc::Receiver<Request>,
    alive: Arc<AtomicBool>,
    starts: Arc<AtomicU64>,
}

impl Watch {
    pub(crate) fn new() -> (Self, Watcher) {
        let (sender, requests) = mpsc::channel(BACKLOG);
        let (alive, starts) = (Arc::new(AtomicBool::new(true)), Arc::default());
        (
            Self {
                requests: sender,
                alive: Arc::clone(&alive),
                starts: Arc::clone(&starts),
            },
            Watcher {
                requests,
                alive,
                starts,
            },
        )
    }

    /// Whether the server answered the last look.
    pub(crate) fn alive(&self) -> bool {
        self.alive.load(Ordering::Acquire)
    }

    /// The server's start, as far as it is known.
    pub(crate) fn start(&self) -> Start {
        Start(self.starts.load(Ordering::Acquire))
    }

    /// Ends a connection, unless the server may have been started again since: it counts its connections anew then, and the
    /// number is somebody else's. `before` is from before the connection was last heard of. Lost if there is too much to do,
    /// or nobody to do it.
    pub(crate) fn kill(&self, kill: Kill, before: Start) {
        let _ = self.requests.try_send(Request::Kill(kill, before));
    }

    /// Tells other processes. Lost if there is too much to do: they look by themselves, too.
    pub(crate) fn notify(&self, hints: Vec<String>) {
        let _ = self.requests.try_send(Request::Notify(hints));
    }

    /// Whether the server answers now. Never, if it is gone: the caller has its own patience.
    pub(crate) async fn ping(&self) -> bool {
        let (reply, answered) = oneshot::channel();
        self.requests.send(Request::Ping(reply)).await.is_ok() && answered.await.is_ok()
    }

    /// Whether the tables are as they should be. Never, if the server is gone: the caller has its own patience. Nothing after
    /// [`Watch::stop`].
    pub(crate) async fn schema(&self) -> Option<Looked> {
        let (reply, answered) = oneshot::channel();
        self.requests.send(Request::Schema(reply)).await.ok()?;
        answered.await.ok()
    }

    /// A sign of life of this process's worker. Nothing if it did not get through in time.
    pub(crate) async fn beat(&self, beat: i64) -> Option<Beats> {
        let (reply, answered) = oneshot::channel();
        self.requests.try_send(Request::Beat(beat, reply)).ok()?;
        timeout(PATIENCE, answered).await.ok()?.ok()
    }

    /// Closes the connection, so that it holds up nobody who wants the database for themselves.
    pub(crate) async fn stop(&self) {
        let (reply, closed) = oneshot::channel();
        if self.requests.send(Request::Stop(reply)).await.is_ok() {
            let _ = timeout(PATIENCE, closed).await;
        }
    }
}

impl Watcher {
    pub(crate) async fn run<DB: Backend>(mut self, shared: Weak<Shared<DB>>) {
        let mut conn: Option<DB::Connection> = None;
        let (mut next_look, mut kills) = (Instant::now(), Kills::new());
        let mut seen = Seen {
            server: None,
            heard: Instant::now(),
        };
        loop {
            let wait = tokio::time::timeout_at(next_look, self.requests.recv()).await;
            let request = match wait {
                Ok(Some(request)) => Some(request),
                // The inbox is gone.
                Ok(None) => return,
                Err(_) => None,
            };
            // Of probes that have gone while the server was away there may be many, and others wait behind them.
            if request.as_ref().is_some_and(Request::is_given_up) {
                continue;
            }
            if let Some(Request::Stop(reply)) = request {
                if let Some(conn) = conn {
                    let _ = timeout(PATIENCE, conn.close()).await;
                }
                let _ = reply.send(());
                return;
            }
            let Some(shared) = shared.upgrade() else {
                return;
            };
            if conn.is_none() {
                conn = connect(&shared, &mut seen, &self.starts).await;
            }
            // They stay until they are done, or are to be done no more.
            let request = match request {
                Some(Request::Kill(kill, before)) => {
                    if kills.len() < BACKLOG {
                        kills.push_back((kill, before));
                    }
                    None
                }
                request => request,
            };
            let start = Start(self.starts.load(Ordering::Acquire));
            let done = match conn.as_mut() {
                Some(conn) => timeout(PATIENCE, async {
                    kill(conn, &shared, &mut kills, (&seen, start)).await
                        && handle(conn, &shared, request).await
                })
                .await
                .unwrap_or(false),
                None => false,
            };
            if done {
                self.alive.store(true, Ordering::Release);
                seen.heard = Instant::now();
                next_look = Instant::now() + LOOK_EVERY;
                continue;
            }
            if self.alive.swap(false, Ordering::AcqRel) {
                tracing::warn!("the database does not answer");
            }
            // What it committed last may be lost with it.
            shared.recent.clear();
            if let Some(conn) = conn.take() {
                // Closing in the background: the peer may never answer.
                tokio::spawn(timeout(PATIENCE, conn.close_hard()));
            }
            drop(shared);
            sleep(AGAIN).await;
            next_look = Instant::now();
        }
    }
}

/// Connections that are to be ended, each with the server's start before it was last heard of.
type Kills = VecDeque<(Kill, Start)>;

/// What is known of the server.
struct Seen {
    /// Not before the first connection.
    server: Option<Arc<str>>,
    /// When it answered last: the inbox was built then, or later.
    heard: Instant,
}

impl Seen {
    /// Whether this is that server, and has run since it was heard last.
    fn is_still(&self, server: &RunningServer) -> bool {
        let same = self.server.as_ref().is_none_or(|name| *name == server.name);
        same && server.up > self.heard.elapsed() + UP_MARGIN
    }
}

async fn connect<DB: Backend>(
    shared: &Shared<DB>,
    seen: &mut Seen,
    starts: &AtomicU64,
) -> Option<DB::Connection> {
    let connected = async {
        let mut conn = shared.pool.connect_options().connect().await?;
        point!(shared, "watch.look");
        let server = DB::server(&mut conn).await?;
        Ok::<_, sqlx::Error>((conn, server))
    };
    let (conn, server) = timeout(PATIENCE, connected).await.ok()?.ok()?;
    if let Some(server) = server {
        if !seen.is_still(&server) {
            starts.fetch_add(1, Ordering::AcqRel);
        }
        seen.server = Some(server.name);
    }
    seen.heard = Instant::now();
    Some(conn)
}

/// Ends what is to be ended there.
#[cfg_attr(
    not(feature = "failpoints"),
    allow(unused_variables, reason = "the fail point's")
)]
async fn kill<DB: Backend>(
    conn: &mut DB::Connection,
    shared: &Shared<DB>,
    kills: &mut Kills,
    (seen, start): (&Seen, Start),
) -> bool {
    while let Some((kill, before)) = kills.front() {
        if *before == start && seen.server.as_ref() == Some(&kill.server) {
            let statement = kill.statement.clone();
            let killed = async {
                point!(shared, "watch.kill");
                DB::run(conn, statement).await
            };
            // It may have ended by itself, which is an error here and good news.
            if let Err(error) = killed.await
                && !matches!(error, sqlx::Error::Database(_))
            {
                return false;
            }
        }
        kills.pop_front();
    }
    true
}

async fn handle<DB: Backend>(
    conn: &mut DB::Connection,
    shared: &Shared<DB>,
    request: Option<Request>,
) -> bool {
    match request {
        Some(Request::Notify(hints)) => match DB::notify(conn, &shared.sql, &hints).await {
            Ok(()) => true,
            // A server that does not take them is there all the same.
            Err(error) => matches!(error, sqlx::Error::Database(_)),
        },
        Some(Request::Ping(reply)) => {
            let answered = look(conn, shared).await;
            if answered {
                let _ = reply.send(());
            }
            answered
        }
        Some(Request::Schema(reply)) => match health::schema(conn, shared).await {
            Ok(looked) => {
                let _ = reply.send(looked);
                true
            }
            Err(error) => {
                tracing::debug!(%error, "the maintenance connection failed");
                false
            }
        },
        Some(Request::Beat(count, reply)) => match beat(conn, shared, count).await {
            Ok(others) => {
                let _ = reply.send(others);
                true
            }
            // One that was refused says nothing about the connection.
            Err(error) => matches!(error, sqlx::Error::Database(_)),
        },
        Some(Request::Kill(..) | Request::Stop(_)) | None => look(conn, shared).await,
    }
}

async fn beat<DB: Backend>(
    conn: &mut DB::Connection,
    shared: &Shared<DB>,
    count: i64,
) -> Result<Beats, sqlx::Error> {
    let (owner, now) = (shared.worker.leases.owner(), shared.clock.now());
    // For the reason that `Pooled::bracket` has.
    let bracketed = !shared.sql.named;
    if bracketed {
        DB::run(conn, SqlStr::from_static("BEGIN")).await?;
    }
    let others = DB::beat(conn, &shared.sql, owner, count, now).await;
    if bracketed {
        DB::run(conn, SqlStr::from_static("COMMIT")).await?;
    }
    others
}

async fn look<DB: Backend>(conn: &mut DB::Connection, shared: &Shared<DB>) -> bool {
    let looked = async {
        point!(shared, "watch.look");
        DB::incarnation(conn).await
    };
    match looked.await {
        Ok(now) => {
            shared.observe(now);
            true
        }
        Err(error) => {
            tracing::debug!(%error, "the maintenance connection failed");
            false
        }
    }
}
