//! Whether this process can do its work: for probes, load balancers and people.
//!
//! Many probes at once share one look at the database, which takes no connection of the pool where there is a server (the
//! maintenance connection asks), and at most one where there is none. Nothing that is said holds a secret or an address.

#[cfg(feature = "axum")]
mod routes;

use std::time::Duration;

use serde::Serialize;
use tokio::sync::Mutex;
use tokio::time::{Instant, timeout_at};

use crate::inbox::Inbox;
use crate::order::upkeep::every_source;
use crate::shared::Shared;
use crate::store::{Backend, Fault, Size};

/// What a look of the worker may take, beyond the pause before it: three questions of ten seconds at most.
const LOOK: Duration = Duration::from_secs(30);
/// Sources whose parking is full are named up to here: with many tenants a probe's answer stays short.
const NAMED: usize = 10;

/// What [`Inbox::readiness`] found, check by check.
///
/// As JSON: `{"checks":[{"name":"database","ok":true}, …]}`, where a check that failed says `why`, and one about a source has
/// its name in `source`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Readiness {
    /// Each check, at least one of each name that was asked for.
    pub checks: Vec<Check>,
}

/// One check.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Check {
    /// - `database`: it answers.
    /// - `schema`: the inbox's tables are there as this version needs them. Not asked while the database is away.
    /// - `worker`: it runs, and has looked for what is due within [`poll_every`](crate::InboxBuilder::poll_every) twice and
    ///   30 s.
    /// - `parking`: each source has room for one more event within its bounds.
    pub name: &'static str,
    /// The source that it is about, if it is about one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub source: Option<String>,
    /// Whether it is as it should be.
    pub ok: bool,
    /// Why it is not.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
}

impl Readiness {
    /// Whether every check is as it should be.
    pub fn is_ready(&self) -> bool {
        self.checks.iter().all(|check| check.ok)
    }
}

impl Check {
    fn new(name: &'static str, failed: Option<String>) -> Self {
        Self {
            name,
            source: None,
            ok: failed.is_none(),
            why: failed,
        }
    }
}

impl<DB: Backend> Inbox<DB> {
    /// Whether this process can do its work now: the database answers within `patience`, its tables are those of this
    /// version, the worker runs and gets on, and no source's parking is full.
    ///
    /// Calls at the same time share one look at the database. It never fails: what could not be found out is a check that says
    /// so.
    ///
    /// ```no_run
    /// # async fn example(inbox: &tower_inbox::Inbox<sqlx::Sqlite>) {
    /// let readiness = inbox.readiness(std::time::Duration::from_millis(800)).await;
    /// for check in readiness.checks.iter().filter(|check| !check.ok) {
    ///     eprintln!("{}: {}", check.name, check.why.as_deref().unwrap_or_default());
    /// }
    /// # }
    /// ```
    pub async fn readiness(&self, patience: Duration) -> Readiness {
        let mut checks = self.look(patience).await;
        checks.push(Check::new("worker", self.worker_failed()));
        checks.extend(parking(&self.shared));
        Readiness { checks }
    }

    /// `database`, and `schema` if that could be asked.
    async fn look(&self, patience: Duration) -> Vec<Check> {
        let (database, schema) = match self.shared.health.look(&self.shared, patience).await {
            Looked::Right => (None, Some(None)),
            Looked::OtherTables => {
                let why = "the inbox's tables are not those of this version: run its migrations";
                (None, Some(Some(why.to_owned())))
            }
            Looked::Away => {
                let why = format!("the database did not answer within {patience:?}");
                (Some(why), None)
            }
        };
        let schema = schema.map(|failed| Check::new("schema", failed));
        let database = Check::new("database", database);
        [database].into_iter().chain(schema).collect()
    }

    fn worker_failed(&self) -> Option<String> {
        let status = self.worker_status();
        if self.shared.worker.stopped() {
            return Some("the inbox is shut down".into());
        }
        if !status.running {
            return Some("it does not run: no source is mounted in this process".into());
        }
        let Some(last) = status.last_look else {
            return Some("it has not looked for due events yet".into());
        };
        let age = self.shared.clock.now().since(last);
        let late = age > self.shared.poll_every * 2 + LOOK;
        late.then(|| format!("its last look for due events was {} s ago", age.as_secs()))
    }
}

/// One check for all of them, or one for each that is full.
fn parking<DB: Backend>(shared: &Shared<DB>) -> Vec<Check> {
    let full = every_source(shared).into_iter().filter_map(|source| {
        let Size { events, bytes } = source.room().full()?;
        let why = format!("it is full with {events} events of {bytes} bytes");
        Some(Check {
            source: Some(source.name().to_owned()),
            ..Check::new("parking", Some(why))
        })
    });
    let mut full: Vec<_> = full.take(NAMED).collect();
    full.sort_by(|a, b| a.source.cmp(&b.source));
    if full.is_empty() {
        full.push(Check::new("parking", None));
    }
    full
}

/// What a look at the database came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Looked {
    Right,
    OtherTables,
    Away,
}

/// The look that is shared.
#[derive(Default)]
pub(crate) struct Health(Mutex<Option<Look>>);

#[derive(Clone, Copy)]
struct Look {
    ended: Instant,
    looked: Looked,
    /// Given up after this, without an answer.
    given_up: Option<Duration>,
}

impl Look {
    /// Whether it will do for whoever came at this time. One that had less patience has not shown anything.
    fn will_do(&self, arrived: Instant, patience: Duration) -> bool {
        self.ended >= arrived && self.given_up.is_none_or(|after| after >= patience)
    }
}

impl Health {
    /// Nobody who comes while somebody looks causes a look of his own.
    async fn look<DB: Backend>(&self, shared: &Shared<DB>, patience: Duration) -> Looked {
        let arrived = Instant::now();
        let until = arrived + patience;
        let Ok(mut last) = timeout_at(until, self.0.lock()).await else {
            return Looked::Away;
        };
        if let Some(last) = last.filter(|last| last.will_do(arrived, patience)) {
            return last.looked;
        }
        let began = Instant::now();
        let answered = timeout_at(until, look(shared)).await.ok();
        let looked = answered.unwrap_or(Looked::Away);
        let ended = Instant::now();
        let before = last.replace(Look {
            ended,
            looked,
            given_up: answered.is_none().then(|| ended - began),
        });
        tell(before.map(|before| before.looked), looked);
        looked
    }
}

async fn look<DB: Backend>(shared: &Shared<DB>) -> Looked {
    if shared.pool.is_closed() {
        return Looked::Away;
    }
    if !DB::CHEAP_INCARNATION {
        // Not through the pool: one that is busy says nothing about the database.
        return shared.watch.schema().await.unwrap_or(Looked::Away);
    }
    let Ok(mut conn) = shared.acquire_statements().await else {
        return Looked::Away;
    };
    let looked = schema::<DB>(&mut conn, shared).await;
    conn.done(looked).await.unwrap_or(Looked::Away)
}

/// Over this connection. An error if the database did not answer.
pub(crate) async fn schema<DB: Backend>(
    conn: &mut DB::Connection,
    shared: &Shared<DB>,
) -> Result<Looked, sqlx::Error> {
    let Err(error) = DB::schema(conn, &shared.sql).await else {
        return Ok(Looked::Right);
    };
    match DB::fault(&error) {
        Fault::Gone => Err(error),
        // It was busy, and said so.
        Fault::Transient => Ok(Looked::Right),
        Fault::Refused => {
            tracing::debug!(%error, "the inbox's tables are not those of this version");
            Ok(Looked::OtherTables)
        }
    }
}

/// Once for each change: probes come often.
fn tell(before: Option<Looked>, now: Looked) {
    if before == Some(now) {
        return;
    }
    match now {
        Looked::Away => tracing::warn!("a health check got no answer from the database"),
        Looked::OtherTables => {
            tracing::error!("the inbox's tables are not those of this version: run its migrations");
        }
        Looked::Right if before.is_some() => tracing::info!("the database answers again"),
        Looked::Right => {}
    }
}
