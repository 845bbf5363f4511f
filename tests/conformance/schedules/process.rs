//! The real inbox, in a runtime of its own: what is at work in it can be made to end at any point, as if by `kill -9`.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use http::StatusCode;
use sqlx::Pool;
use tokio::runtime::{Builder, Runtime};
use tokio::task::JoinHandle;
use tower_inbox::clock::Clock;
use tower_inbox::operator::Operator;
use tower_inbox::verify::Secret;
use tower_inbox::{FailPoints, OperatorError, OperatorErrorKind as Kind};

use super::explore::Delivery;
use super::reference::{
    Answer, BACKOFF, Id, MAX_ATTEMPTS, MAX_CRASHES, Picture, Plan, RETENTION, WINDOW, stream_name,
};
use crate::db::TestDb;
use crate::kit::{Call, Event, Reply, TestClock, World, http};

/// What is to happen at the fail points from now on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Trap {
    #[default]
    None,
    /// Whoever comes to a fail point after so many others stands still, and everybody after him.
    After(u8),
    /// Whoever comes to this one does.
    At(&'static str),
    /// The first one that comes to this one loses the database.
    Fault(&'static str),
}

#[derive(Default)]
struct Trapped {
    trap: Trap,
    sprung: bool,
}

/// What outlives a process: the database, its clock, and what the handler is going to do.
pub(super) struct Site<D: TestDb> {
    pub(super) db: D,
    pub(super) eyes: Pool<D::DB>,
    /// The source of this case, with which its ids begin too.
    pub(super) name: String,
    pub(super) clock: TestClock,
    pub(super) plans: Arc<Mutex<BTreeMap<String, Plan>>>,
    pub(super) remembers: bool,
}

/// One process.
pub(super) struct Process<D: TestDb> {
    pub(super) world: World<D>,
    runtime: Option<Runtime>,
    trapped: Arc<Mutex<Trapped>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn millis(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

fn secret<D: TestDb>(db: &D, n: u8) -> String {
    format!("whk_{}{n}", db.prefix())
}

impl<D: TestDb> Site<D> {
    /// A process with these secrets, newest first, and a trap that is set already.
    pub(super) async fn start(&self, secrets: &[u8], trap: Trap) -> Process<D> {
        let trapped = Arc::new(Mutex::new(Trapped {
            trap,
            sprung: false,
        }));
        let (plans, clock, remembers) =
            (Arc::clone(&self.plans), self.clock.clone(), self.remembers);
        let points = fail_points(&trapped);
        let secrets: Vec<_> = secrets.iter().map(|n| secret(&self.db, *n)).collect();
        let setup = World::over(&self.db)
            .named(&self.name)
            // The reference says what is there after each step of one event.
            .one_by_one()
            .eyes(self.eyes.clone())
            .source(|source| {
                source
                    .secrets(secrets)
                    .recovery_window(millis(WINDOW))
                    .backoff([millis(BACKOFF)])
                    .max_attempts(MAX_ATTEMPTS)
                    .max_crashes(MAX_CRASHES)
                    .retention(millis(RETENTION))
                    .insecure_short_retention()
            })
            .inbox(move |inbox| {
                let inbox = if remembers {
                    inbox
                } else {
                    inbox.remembered(0)
                };
                inbox
                    .clock(clock)
                    .poll_every(millis(100))
                    .fail_points(points)
            })
            .handler(move |mut call: Call<D>| {
                let plan = lock(&plans).get(call.delivery.event_id()).copied();
                async move {
                    call.append().await;
                    match plan {
                        None => StatusCode::NO_CONTENT,
                        Some(Plan::Fail | Plan::Break) => StatusCode::INTERNAL_SERVER_ERROR,
                        Some(Plan::Reject) => StatusCode::UNPROCESSABLE_ENTITY,
                        // Not `panic!`, whose message would be said each time.
                        Some(Plan::Panic) => std::panic::resume_unwind(Box::new("planned")),
                    }
                }
            });
        let runtime = Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .expect("a runtime");
        let world = runtime.spawn(setup.start()).await.expect("it starts");
        Process {
            world,
            runtime: Some(runtime),
            trapped,
        }
    }

    /// The event as its producer writes it.
    fn event(&self, id: Id, content: u8) -> Event {
        let event = Event::new(&self.event_id(id)).amount(content.into());
        match id.place() {
            Some((stream, n)) => event.of(stream_name(stream), n.unsigned_abs()),
            None => event,
        }
    }

    pub(super) fn event_id(&self, id: Id) -> String {
        format!("{}-{id}", self.name)
    }

    /// What is in the database.
    pub(super) async fn picture(&self) -> Picture {
        let name = &self.name;
        let query = format!(
            "SELECT CONCAT('row|', e.event_id, '|', e.state, '|', COALESCE(p.reason, 0), '|',
                CASE WHEN e.yielded_to IS NULL THEN 0 ELSE 1 END, '|',
                CASE WHEN COALESCE(p.lease_token, 0) = 0 THEN 0 ELSE 1 END, '|', COALESCE(p.out_of_order, 0), '|',
                COALESCE(p.attempts, 0), '|', COALESCE(p.unfinished, 0))
            FROM {{p}}event e LEFT JOIN {{p}}pending p ON p.source = e.source AND p.event_id = e.event_id
            WHERE e.source = '{name}'
            UNION ALL SELECT CONCAT('cursor|', correlation_id, '|', next_sequence)
            FROM {{p}}cursor WHERE source = '{name}'
            UNION ALL SELECT CONCAT('never|', correlation_id, '|', first_sequence)
            FROM {{p}}range WHERE source = '{name}'
            UNION ALL SELECT CONCAT('ledger|', n, '|', event_id, '|', amount)
            FROM ledger WHERE event_id LIKE '{name}-%'"
        );
        let query = query.replace("{p}", self.db.prefix());
        let mut picture = Picture::default();
        let mut ledger = BTreeMap::new();
        for line in D::texts(&self.eyes, &query).await {
            let line = line.replace(&format!("{name}-"), "");
            if let Some(row) = line.strip_prefix("row|") {
                picture.lines.push(row.to_owned());
            } else if let Some(entry) = line.strip_prefix("ledger|") {
                let (n, entry) = entry.split_once('|').expect("two columns");
                ledger.insert(n.parse::<u64>().expect("a number"), entry.to_owned());
            } else {
                picture.lines.push(line);
            }
        }
        picture.lines.sort();
        for entry in ledger.into_values() {
            let (id, amount) = entry.split_once('|').expect("two columns");
            let lane = match (id.strip_prefix("free"), &id[..1]) {
                (Some(n), _) => (None, n.parse().expect("a number")),
                (None, name) => ((0..3).find(|stream| stream_name(*stream) == name), 0),
            };
            let of_lane: &mut Vec<String> = picture.ledger.entry(lane).or_default();
            of_lane.push(format!("{id}:{amount}"));
        }
        picture
    }
}

fn fail_points(trapped: &Arc<Mutex<Trapped>>) -> FailPoints {
    let trapped = Arc::clone(trapped);
    FailPoints::new(move |name| {
        let mut at = lock(&trapped);
        let (mut stands, mut fails) = (false, false);
        // Those of single statements are walked elsewhere; what is counted here is how far an event has come.
        let counts = !name.contains('.');
        match at.trap {
            Trap::None => {}
            Trap::After(_) if !counts && !at.sprung => {}
            Trap::After(0) => stands = true,
            Trap::After(more) => at.trap = Trap::After(more - 1),
            Trap::At(point) if name == point => {
                at.trap = Trap::After(0);
                stands = true;
            }
            Trap::Fault(point) if name == point => {
                at.trap = Trap::None;
                fails = true;
            }
            Trap::At(_) | Trap::Fault(_) => {}
        }
        at.sprung |= stands || fails;
        async move {
            if stands {
                std::future::pending::<()>().await;
            }
            if fails {
                return Err(sqlx::Error::WorkerCrashed);
            }
            Ok(())
        }
    })
}

impl<D: TestDb> Process<D> {
    fn runtime(&self) -> &Runtime {
        self.runtime.as_ref().expect("it has not ended")
    }

    pub(super) fn set(&self, trap: Trap) {
        *lock(&self.trapped) = Trapped {
            trap,
            sprung: false,
        };
    }

    /// Whether somebody has come to the trap.
    pub(super) fn sprung(&self) -> bool {
        lock(&self.trapped).sprung
    }

    /// A delivery under way.
    pub(super) fn deliver(&self, site: &Site<D>, delivery: Delivery) -> JoinHandle<Answer> {
        let Delivery {
            id,
            content,
            secret: by,
        } = delivery;
        let body = site.event(id, content).body();
        let request = http(&[&secret(&site.db, by)], site.clock.now(), body.clone());
        let (world, request) = (self.world.clone(), request.map(|()| body.into()));
        self.runtime()
            .spawn(async move { told(&world.post(request).await) })
    }

    /// An operator at work, in the process.
    pub(super) async fn operator<T: Send + 'static, F: Future<Output = T> + Send + 'static>(
        &self,
        act: impl FnOnce(Operator<D::DB>) -> F,
    ) -> T {
        let operator = self.world.inbox.operator("ada").expect("a name");
        self.runtime().spawn(act(operator)).await.expect("it ends")
    }

    pub(super) async fn purge(&self, site: &Site<D>) {
        let (inbox, name) = (self.world.inbox.clone(), site.name.clone());
        let purged = self
            .runtime()
            .spawn(async move { inbox.purge(&name).await.map(drop) });
        purged.await.expect("it ends").expect("it is purged");
    }

    pub(super) fn rotate(&self, site: &Site<D>, to: u8) -> Answer {
        let secrets = self.world.inbox.secrets(&site.name).expect("it has some");
        let new = Secret::text(secret(&site.db, to)).expect("not empty");
        match secrets.rotate(new) {
            Ok(()) => Answer::Done,
            Err(tower_inbox::verify::SecretError::TooMany) => Answer::Error("TooMany"),
            Err(error) => Answer::Odd(error.to_string()),
        }
    }

    pub(super) fn revoke_oldest(&self, site: &Site<D>) -> Answer {
        let secrets = self.world.inbox.secrets(&site.name).expect("it has some");
        let active = secrets.active();
        let oldest = active.last().expect("one at least");
        match secrets.revoke(&oldest.label) {
            Ok(()) => Answer::Done,
            Err(tower_inbox::verify::SecretError::None) => Answer::Error("None"),
            Err(error) => Answer::Odd(error.to_string()),
        }
    }

    /// Ends it as `kill -9` does: nothing in it goes on.
    pub(super) fn kill(mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }

    /// Ends it in order.
    pub(super) async fn stop(self) {
        let (inbox, pool) = (self.world.inbox.clone(), self.world.pool.clone());
        let stopped = self.runtime().spawn(async move {
            inbox.shutdown().await;
            pool.close().await;
        });
        stopped.await.expect("it ends");
        self.kill();
    }
}

impl<D: TestDb> Drop for Process<D> {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

/// What a producer was told.
fn told(reply: &Reply) -> Answer {
    let about = |text: &str| {
        reply.is_problem() && reply.body.windows(text.len()).any(|w| w == text.as_bytes())
    };
    match (reply.status, reply.outcome()) {
        (204, "applied") => Answer::Applied,
        (200, "duplicate") if reply.body == r#"{"status":"discarded"}"# => Answer::Discarded,
        (200, "duplicate") if reply.body == r#"{"status":"already_processed"}"# => {
            Answer::Duplicate
        }
        (202, "parked") if reply.body == r#"{"status":"set_aside"}"# => Answer::SetAside,
        (202, "parked") => match reply.json()["waiting_for"].as_i64() {
            Some(n) => Answer::Parked(n),
            None => Answer::Odd(format!("{reply:?}")),
        },
        (422, "rejected") if about("with other content") => Answer::OtherContent,
        (422, "rejected") if about("belongs to another event id") => Answer::PlaceTaken,
        (422, "rejected") if about("was refused while this one waited") => Answer::SameVerdict,
        (422, "rejected") if !reply.is_problem() => Answer::Rejected,
        (500, "failed") if !reply.is_problem() || about("panicked") => Answer::Failed,
        (503, "failed") if reply.is_problem() => Answer::Away,
        (401, "rejected") => Answer::Refused,
        _ => Answer::Odd(format!("{reply:?}")),
    }
}

/// What an operator was told.
pub(super) fn done(result: Result<bool, OperatorError>) -> Answer {
    match result.as_ref().map_err(OperatorError::kind) {
        Ok(true) => Answer::Done,
        Ok(false) => Answer::Already,
        Err(Kind::NotFound) => Answer::Error("NotFound"),
        Err(Kind::CursorMoved { .. }) => Answer::Error("CursorMoved"),
        Err(Kind::Applied) => Answer::Error("Applied"),
        Err(Kind::SetAside) => Answer::Error("SetAside"),
        Err(Kind::InTurn) => Answer::Error("InTurn"),
        Err(Kind::Yielded) => Answer::Error("Yielded"),
        Err(Kind::Closed) => Answer::Error("Closed"),
        Err(_) => Answer::Odd(format!("{result:?}")),
    }
}
