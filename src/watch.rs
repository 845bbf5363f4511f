//! The maintenance connection: one per inbox, beside the pool, on databases that are servers.
//!
//! It notices within a second that the server is gone or is another one, so that nothing is remembered across a
//! restart, a restore or a failover (§2.4); and it ends on the server what a connection that was closed hard has left
//! running there (§4.6).

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use sqlx::{ConnectOptions, Connection, SqlStr};
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, sleep, timeout};

use crate::fail::point;
use crate::health::{self, Looked};
use crate::shared::Shared;
use crate::store::Backend;

/// Between two looks. A restart or a restore takes longer than this.
const LOOK_EVERY: Duration = Duration::from_millis(500);
/// A server that does not answer this statement for so long is as good as gone.
const PATIENCE: Duration = Duration::from_secs(2);
/// Between two attempts to connect.
const AGAIN: Duration = Duration::from_millis(250);
/// Requests that wait for the connection. One more is dropped: the server's own limits then end the statement.
const BACKLOG: usize = 256;

/// The inbox's side of it.
#[derive(Clone)]
pub(crate) struct Watch {
    requests: mpsc::Sender<Request>,
    alive: Arc<AtomicBool>,
    connected: Arc<AtomicU64>,
}

/// How often the maintenance connection was made: which one it is.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Nth(u64);

/// Owners of leases, and their beats.
type Beats = Vec<(String, i64)>;

enum Request {
    /// With the maintenance connection of a time before the one to be killed was last heard of.
    Kill(SqlStr, Nth),
    Notify(Vec<String>),
    Ping(oneshot::Sender<()>),
    Schema(oneshot::Sender<Looked>),
    /// A worker's sign of life, its count, and the others' rows as the answer.
    Beat(i64, oneshot::Sender<Beats>),
    Stop(oneshot::Sender<()>),
}

impl Request {
    /// Not to be done any more, over the connection that there is now. Of probes: nobody waits for the answer, which is all
    /// there is to it. Of what is to be killed: a server that was started again counts its connections anew, so that the
    /// number may be somebody else's now. Only a connection that has lived since is proof that it is the same server.
    fn is_given_up(&self, now: Option<Nth>) -> bool {
        match self {
            Self::Kill(_, before) => Some(*before) != now,
            Self::Ping(reply) => reply.is_closed(),
            Self::Schema(reply) => reply.is_closed(),
            Self::Notify(_) | Self::Beat(..) | Self::Stop(_) => false,
        }
    }
}

/// What the task needs.
pub(crate) struct Watcher {
    requests: mpsc::Receiver<Request>,
    alive: Arc<AtomicBool>,
    connected: Arc<AtomicU64>,
}

impl Watch {
    pub(crate) fn new() -> (Self, Watcher) {
        let (sender, requests) = mpsc::channel(BACKLOG);
        let (alive, connected) = (Arc::new(AtomicBool::new(true)), Arc::default());
        (
            Self {
                requests: sender,
                alive: Arc::clone(&alive),
                connected: Arc::clone(&connected),
            },
            Watcher {
                requests,
                alive,
                connected,
            },
        )
    }

    /// Whether the server answered the last look.
    pub(crate) fn alive(&self) -> bool {
        self.alive.load(Ordering::Acquire)
    }

    /// The one that there is, or was last.
    pub(crate) fn nth(&self) -> Nth {
        Nth(self.connected.load(Ordering::Acquire))
    }

    /// Ends a connection, if it is the same server as then: `before` is from before it was last heard of. Lost like
    /// [`Watch::notify`]: the server's own limits end the statement.
    pub(crate) fn kill(&self, statement: SqlStr, before: Nth) {
        let _ = self.requests.try_send(Request::Kill(statement, before));
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
        let (mut next_look, mut lost) = (Instant::now(), false);
        loop {
            let wait = tokio::time::timeout_at(next_look, self.requests.recv()).await;
            let request = match wait {
                Ok(Some(request)) => Some(request),
                // The inbox is gone.
                Ok(None) => return,
                Err(_) => None,
            };
            let nth = Nth(self.connected.load(Ordering::Relaxed));
            // While the server is away there may be many of these, and others wait behind them.
            let now = (conn.is_some() || !lost).then_some(nth);
            if request
                .as_ref()
                .is_some_and(|request| request.is_given_up(now))
            {
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
                conn = connect(&shared).await;
                // What began before the first one is none of an earlier server's.
                if lost {
                    self.connected.fetch_add(1, Ordering::Release);
                }
            }
            let done = match conn.as_mut() {
                Some(conn) => timeout(PATIENCE, handle(conn, &shared, request))
                    .await
                    .unwrap_or(false),
                None => false,
            };
            if done {
                self.alive.store(true, Ordering::Release);
                next_look = Instant::now() + LOOK_EVERY;
                continue;
            }
            lost = true;
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

async fn connect<DB: Backend>(shared: &Shared<DB>) -> Option<DB::Connection> {
    let options = shared.pool.connect_options();
    timeout(PATIENCE, options.connect()).await.ok()?.ok()
}

async fn handle<DB: Backend>(
    conn: &mut DB::Connection,
    shared: &Shared<DB>,
    request: Option<Request>,
) -> bool {
    match request {
        Some(Request::Kill(statement, _)) => {
            // It may have ended by itself, which is an error here and good news.
            let killed = async {
                point!(shared, "watch.kill");
                DB::run(conn, statement).await
            };
            match killed.await {
                Ok(()) => true,
                Err(error) => matches!(error, sqlx::Error::Database(_)),
            }
        }
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
        Some(Request::Stop(_)) | None => look(conn, shared).await,
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
