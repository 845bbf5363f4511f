//! A receiver at work in the test's own process, and the command beside it in one of its own.

use std::collections::BTreeMap;
use std::pin::Pin;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::State;
use axum::response::{IntoResponse as _, Response};
use axum::routing::post;
use bytes::Bytes;
use http::{Request, StatusCode};
use serde_json::{Value, json};
use sqlx::Pool;
use tokio::runtime::Runtime;
use tower::ServiceExt as _;
use tower_inbox::clock::Timestamp;
use tower_inbox::verify::{Secret, Signer};
use tower_inbox::{Backend, Delivery, Inbox, Park, Preset, Source};

use crate::support::Directory;
use crate::support::database::{Database, Kind};

pub(crate) const SECRET: &str = "the producer's secret";

/// What the handler does, and did.
#[derive(Default)]
pub(crate) struct Handled {
    /// It refuses nothing any more.
    mended: AtomicBool,
    /// Event ids, in the order in which they were applied.
    applied: Mutex<Vec<String>>,
}

/// A database, and perhaps a receiver on it.
pub(crate) struct World {
    pub(crate) db: Database,
    pub(crate) directory: Directory,
    pub(crate) handled: Arc<Handled>,
    pub(crate) runtime: Runtime,
    receiver: Option<Receiver>,
}

type Stop = Box<dyn FnOnce() -> Pin<Box<dyn Future<Output = ()> + Send>> + Send>;

struct Receiver {
    app: Router,
    stop: Stop,
}

/// How the command ended, and what it said.
pub(crate) struct Outcome {
    pub(crate) status: i32,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl World {
    /// A fresh database, without tables.
    pub(crate) fn empty(kind: Kind) -> Self {
        let directory = Directory::new();
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build();
        Self {
            db: Database::new(kind, directory.path()),
            directory,
            handled: Arc::default(),
            runtime: runtime.expect("a runtime"),
            receiver: None,
        }
    }

    /// With a receiver at work.
    pub(crate) fn new(kind: Kind) -> Self {
        let mut world = Self::empty(kind);
        world.start();
        world
    }

    pub(crate) fn start(&mut self) {
        let url = self.db.url().to_owned();
        let handled = Arc::clone(&self.handled);
        let receiver = match self.db.kind {
            Kind::Sqlite => self.runtime.block_on(async {
                start(tower_inbox::sqlite::connect(&url, 4).await, handled).await
            }),
            #[cfg(feature = "postgres")]
            Kind::Postgres => self.runtime.block_on(async {
                start(Pool::<sqlx::Postgres>::connect(&url).await, handled).await
            }),
            #[cfg(feature = "mysql")]
            Kind::MySql => self
                .runtime
                .block_on(async { start(Pool::<sqlx::MySql>::connect(&url).await, handled).await }),
            #[allow(unreachable_patterns, reason = "with all features")]
            other => panic!("the tests are built without {}", other.name()),
        };
        self.receiver = Some(receiver);
    }

    pub(crate) fn stop(&mut self) {
        if let Some(receiver) = self.receiver.take() {
            self.runtime.block_on((receiver.stop)());
        }
    }

    pub(crate) fn app(&self) -> Router {
        self.receiver.as_ref().expect("it is at work").app.clone()
    }

    /// From now on the handler refuses nothing.
    pub(crate) fn mend(&self) {
        self.handled.mended.store(true, Ordering::Relaxed);
    }

    pub(crate) fn applied(&self) -> Vec<String> {
        self.handled.applied.lock().expect("no panic").clone()
    }

    /// Delivers an event.
    pub(crate) fn send(&self, event: &Value) -> u16 {
        let (app, request) = (self.app(), signed(event));
        self.runtime.block_on(async { deliver(app, request).await })
    }

    /// Delivers an event while the test goes on.
    pub(crate) fn sending(&self, event: &Value) -> tokio::task::JoinHandle<u16> {
        let (app, request) = (self.app(), signed(event));
        self.runtime.spawn(deliver(app, request))
    }

    /// Runs the command on this database.
    pub(crate) fn run(&self, arguments: &[&str]) -> Outcome {
        self.command(arguments).outcome()
    }

    pub(crate) fn command(&self, arguments: &[&str]) -> Call {
        Call::new(arguments).env("DATABASE_URL", self.db.url())
    }

    /// Runs it with `--json`, and demands this status.
    #[track_caller]
    pub(crate) fn json(&self, status: i32, arguments: &[&str]) -> Value {
        let outcome = self.run(&[arguments, &["--json"]].concat());
        assert_eq!(outcome.status, status, "{arguments:?}: {outcome:?}");
        outcome.json()
    }
}

impl Drop for World {
    fn drop(&mut self) {
        self.stop();
    }
}

/// A command to be run.
pub(crate) struct Call {
    arguments: Vec<String>,
    env: BTreeMap<String, String>,
}

impl Call {
    pub(crate) fn new(arguments: &[&str]) -> Self {
        Self {
            arguments: arguments.iter().map(ToString::to_string).collect(),
            env: BTreeMap::from([("USER".into(), "ada".into())]),
        }
    }

    pub(crate) fn env(mut self, name: &str, value: &str) -> Self {
        self.env.insert(name.into(), value.into());
        self
    }

    pub(crate) fn without(mut self, name: &str) -> Self {
        self.env.remove(name);
        self
    }

    /// With nothing of the test's own environment that matters, and without a terminal.
    pub(crate) fn build(&self) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tower-inbox"));
        for name in [
            "DATABASE_URL",
            "TOWER_INBOX_ACTOR",
            "USER",
            "LOGNAME",
            "USERNAME",
        ] {
            command.env_remove(name);
        }
        command
            .args(&self.arguments)
            .envs(&self.env)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        command
    }

    pub(crate) fn outcome(&self) -> Outcome {
        let output = self.build().output().expect("the built command");
        Outcome {
            status: output.status.code().expect("no signal"),
            stdout: String::from_utf8(output.stdout).expect("UTF-8"),
            stderr: String::from_utf8(output.stderr).expect("UTF-8"),
        }
    }
}

impl std::fmt::Debug for Outcome {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self {
            status,
            stdout,
            stderr,
        } = self;
        write!(f, "status {status}\n{stdout}{stderr}")
    }
}

impl Outcome {
    /// The one value on the one line.
    #[track_caller]
    pub(crate) fn json(&self) -> Value {
        let parsed = serde_json::from_str(&self.stdout);
        parsed.unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    /// Demands a status, and a text on standard error.
    #[track_caller]
    pub(crate) fn is(&self, status: i32, says: &str) {
        assert_eq!(self.status, status, "{self:?}");
        assert!(self.stderr.contains(says), "no {says:?}: {self:?}");
    }
}

/// An event with a place in a stream.
pub(crate) fn numbered(stream: &str, sequence: i64) -> Value {
    let mut event = plain(&format!("evt_{stream}_{sequence}"));
    event["correlation_id"] = stream.into();
    event["sequence"] = sequence.into();
    event
}

/// An event without one.
pub(crate) fn plain(id: &str) -> Value {
    json!({"event_id": id, "event_type": "order.paid", "data": {}})
}

/// The same, which the handler refuses with 422 until it is mended.
pub(crate) fn refused(mut event: Value) -> Value {
    event["data"] = json!({"status": 422});
    event
}

/// The same, which the handler fails with 503 until it is mended.
pub(crate) fn failing(mut event: Value) -> Value {
    event["data"] = json!({"status": 503});
    event
}

/// The same, which the handler puts off for an hour until it is mended.
pub(crate) fn put_off(mut event: Value) -> Value {
    event["data"] = json!({"not_yet": true});
    event
}

fn signed(event: &Value) -> Request<Body> {
    let body = event.to_string();
    let secret = Secret::text(SECRET).expect("not empty");
    let signer = Signer::new(&Preset::SEQUENCED.scheme(), [secret]).expect("an HMAC scheme");
    let headers = signer.sign(Timestamp::now(), None, body.as_bytes());
    let mut request = Request::post("/hooks").header("content-type", "application/json");
    for (name, value) in headers.expect("signed") {
        request = request.header(name, value);
    }
    request.body(Body::from(body)).expect("a request")
}

async fn deliver(app: Router, request: Request<Body>) -> u16 {
    let answer = app.oneshot(request).await;
    answer
        .unwrap_or_else(|never| match never {})
        .status()
        .as_u16()
}

async fn start<DB: Backend>(
    pool: Result<Pool<DB>, sqlx::Error>,
    handled: Arc<Handled>,
) -> Receiver {
    let source = Source::sequenced("crm")
        .secrets([SECRET])
        .recovery_window(Duration::from_secs(3_600))
        // What fails is tried again long after the test.
        .backoff([Duration::from_secs(3_600)]);
    let inbox = Inbox::builder(pool.expect("a database"))
        .source(source)
        .poll_every(Duration::from_millis(200))
        .build()
        .await
        .expect("an inbox");
    let routes = Router::new()
        .route("/hooks", post(on_event))
        .with_state(handled);
    let app = inbox.mount("crm", routes);
    let stop: Stop = Box::new(move || Box::pin(async move { inbox.shutdown().await }));
    Receiver { app, stop }
}

async fn on_event(State(handled): State<Arc<Handled>>, event: Delivery, body: Bytes) -> Response {
    let body: Value = serde_json::from_slice(&body).expect("JSON");
    let asked = body["data"]["status"].as_u64();
    if let Some(status) = asked.filter(|_| !handled.mended.load(Ordering::Relaxed)) {
        let status = u16::try_from(status).expect("a status");
        return StatusCode::from_u16(status)
            .expect("a status")
            .into_response();
    }
    if body["data"]["not_yet"] == true && !handled.mended.load(Ordering::Relaxed) {
        return Park::after(Duration::from_secs(3_600)).into_response();
    }
    let mut applied = handled.applied.lock().expect("no panic");
    applied.push(event.event_id().to_owned());
    StatusCode::NO_CONTENT.into_response()
}
