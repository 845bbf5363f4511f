//! The built receiver as a child process.

use std::fs::File;
use std::io::{self, BufRead as _, BufReader};
use std::net::{SocketAddr, TcpListener};
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver as Lines};
use std::thread;

use super::database::{Database, Kind};
use super::event::{Event, SECRET};
use super::http::{self, Response};
use super::stopped::wait_until_stopped;
use super::{Directory, LIMIT, binary, wait_for};

/// Everything that a developer's shell may have set.
const VARIABLES: [&str; 29] = [
    "DATABASE_URL",
    "LISTEN",
    "KUDOS_SECRETS",
    "STANDARD_SECRETS",
    "BRIEF_SECRETS",
    "SEQUENCED_SECRETS",
    "STRIPE_SECRETS",
    "GITHUB_SECRETS",
    "SHOPIFY_SECRETS",
    "SLACK_SECRETS",
    "CONSOLE_TOKEN",
    "DELIVERY_BUDGET",
    "RECOVERY_WINDOW",
    "RETENTION",
    "ALLOW_SHORT_RETENTION",
    "BACKOFF",
    "LEASE",
    "POOL_SIZE",
    "MAX_IN_FLIGHT",
    "BODY_LIMIT",
    "PARK_LIMIT",
    "TOLERANCE",
    "FIRST_SEQUENCE",
    "DEFERRED",
    "STORE_RESPONSES",
    "CONSOLE_ACTIONS",
    "DEMO_FAULTS",
    "FAIL_POINT",
    "RUST_LOG",
];

/// A receiver's settings: its database stays when the process is another one.
pub(crate) struct Setup {
    pub(crate) database: Database,
    directory: Directory,
    variables: Vec<(String, String)>,
}

/// A running receiver, killed when dropped.
pub(crate) struct Receiver {
    child: Child,
    pub(crate) address: SocketAddr,
    lines: Lines<String>,
    log: &'static str,
    args: Vec<String>,
    /// None after its end.
    setup: Option<Arc<Setup>>,
}

impl Setup {
    /// On SQLite, with one secret for kudos, and faults on demand.
    pub(crate) fn new() -> Self {
        Self::on(Kind::Sqlite)
    }

    /// The same on a fresh database of this kind.
    pub(crate) fn on(kind: Kind) -> Self {
        let directory = Directory::new();
        Self::with(Database::new(kind, directory.path()), directory)
    }

    /// The same on this database.
    pub(crate) fn with(database: Database, directory: Directory) -> Self {
        Self {
            database,
            directory,
            variables: Vec::new(),
        }
        .set("DEMO_FAULTS", "1")
        .set("KUDOS_SECRETS", SECRET)
    }

    pub(crate) fn set(mut self, variable: &str, value: &str) -> Self {
        self.unset(variable);
        self.variables.push((variable.to_owned(), value.to_owned()));
        self
    }

    pub(crate) fn without(mut self, variable: &str) -> Self {
        self.unset(variable);
        self
    }

    fn unset(&mut self, variable: &str) {
        self.variables.retain(|(name, _)| name != variable);
    }

    /// The command, without what the environment of the test may have set.
    pub(crate) fn command(&self) -> Command {
        let mut command = Command::new(binary::example("receiver"));
        for variable in VARIABLES {
            command.env_remove(variable);
        }
        command
            .env("LISTEN", "127.0.0.1:0")
            .env("DATABASE_URL", self.database.url())
            .envs(self.variables.iter().map(|(name, value)| (name, value)))
            .stdin(Stdio::null());
        command
    }

    /// Runs it to its end, which comes at once if a setting is wrong.
    pub(crate) fn refused(&self) -> Output {
        self.command().output().expect("the receiver runs")
    }

    /// A process that ends at this fail point by itself, sooner or later, with nobody asking it anything.
    pub(crate) fn run_to(&self, fail_point: &str) {
        let mut command = self.command();
        let mut child = command
            .env("FAIL_POINT", fail_point)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("the receiver runs");
        let ended = wait_for("the receiver comes to its fail point", || {
            child.try_wait().expect("it can be asked")
        });
        assert_eq!(ended.code(), None, "it was to crash");
    }

    /// On a port that stays its own when the process is another one.
    pub(crate) fn on_own_port(self) -> Self {
        let address = own_address();
        self.set("LISTEN", &address)
    }

    #[track_caller]
    pub(crate) fn start(self) -> Receiver {
        spawn(Arc::new(self), "receiver.log", Vec::new()).expect("the receiver starts")
    }

    /// Two processes, one after the other, each on a port that stays its own.
    #[track_caller]
    pub(crate) fn start_two_apart(self) -> [Receiver; 2] {
        let first = self.on_own_port().start();
        let second = first.beside();
        [first, second]
    }

    /// Two processes that start at the same time.
    #[track_caller]
    pub(crate) fn start_two(self) -> [Receiver; 2] {
        let setup = Arc::new(self);
        let starting = ["receiver.log", "second.log"].map(|log| {
            let setup = setup.clone();
            thread::spawn(move || spawn(setup, log, Vec::new()))
        });
        starting.map(|one| one.join().expect("no panic").expect("a receiver starts"))
    }
}

/// Outside of the range from which the system takes ports for others.
fn own_address() -> String {
    let free = |port: &u16| TcpListener::bind(("127.0.0.1", *port)).is_ok();
    let port = (0..100)
        .map(|_| fastrand::u16(20_000..32_000))
        .find(free)
        .expect("a free port");
    format!("127.0.0.1:{port}")
}

fn spawn(setup: Arc<Setup>, log: &'static str, args: Vec<String>) -> io::Result<Receiver> {
    let appended = File::options()
        .create(true)
        .append(true)
        .open(setup.directory.file(log))?;
    let mut child = setup
        .command()
        .args(&args)
        .stdout(Stdio::piped())
        .stderr(appended)
        .spawn()?;
    let out = BufReader::new(child.stdout.take().expect("it is piped"));
    let (send, lines) = mpsc::channel();
    thread::spawn(move || {
        for line in out.lines().map_while(Result::ok) {
            // Nobody may be left to read it; the pipe must be emptied all the same.
            let _ = send.send(line);
        }
    });
    let unspecified = SocketAddr::from(([0, 0, 0, 0], 0));
    let mut receiver = Receiver {
        child,
        address: unspecified,
        lines,
        log,
        args,
        setup: Some(setup),
    };
    let Ok(first) = receiver.lines.recv_timeout(LIMIT) else {
        return Err(io::Error::other(format!(
            "no first line; it logged: {}",
            receiver.log()
        )));
    };
    let address = first
        .strip_prefix("listening on http://")
        .expect("the first line is the address");
    receiver.address = address.parse().expect("an address");
    Ok(receiver)
}

impl Receiver {
    /// Sends a whole request and reads the answer.
    #[track_caller]
    pub(crate) fn send(&self, request: &[u8]) -> Response {
        http::exchange(self.address, request).expect("an answer")
    }

    /// Delivers an event as Kudos does.
    #[track_caller]
    pub(crate) fn deliver(&self, event: &Event) -> Response {
        self.send(&event.kudos())
    }

    /// Delivers an event in a thread of its own.
    pub(crate) fn deliver_meanwhile(
        &self,
        event: &Event,
    ) -> thread::JoinHandle<io::Result<Response>> {
        let (address, request) = (self.address, event.kudos());
        thread::spawn(move || http::exchange(address, &request))
    }

    #[track_caller]
    pub(crate) fn get(&self, path: &str) -> Response {
        self.send(&http::request("GET", path, &[], b""))
    }

    /// Balance, and the ids of the entries in their order.
    #[track_caller]
    pub(crate) fn ledger(&self, account: &str) -> (i64, Vec<String>) {
        let response = self.get(&format!("/ledger/{account}"));
        assert_eq!(response.status, 200, "{response:?}");
        let ledger = response.json();
        assert_eq!(ledger["account"], account);
        let entries = ledger["entries"].as_array().expect("entries").iter();
        let ids = entries.map(|entry| entry["event_id"].as_str().expect("an id").to_owned());
        (
            ledger["balance"].as_i64().expect("a balance"),
            ids.collect(),
        )
    }

    /// Whether the stream of [`Event::of`] is applied up to this sequence, each once and in order.
    #[track_caller]
    pub(crate) fn has_stream(&self, correlation: &str, last: i64) -> bool {
        let expected: Vec<_> = (1..=last)
            .map(|n| format!("evt_{correlation}_{n}"))
            .collect();
        self.ledger(correlation) == ((1..=last).sum(), expected)
    }

    /// A metric's value; 0 if it is not there.
    #[track_caller]
    pub(crate) fn metric(&self, name: &str, labels: &[(&str, &str)]) -> f64 {
        let text = self.get("/metrics");
        let wanted: Vec<_> = labels
            .iter()
            .map(|(key, value)| format!("{key}=\"{value}\""))
            .collect();
        let values = text.text().lines().filter_map(|line| {
            let (key, value) = line.rsplit_once(' ')?;
            let found = key.split('{').next() == Some(name)
                && wanted.iter().all(|label| key.contains(label));
            found.then(|| value.parse::<f64>().expect("a number"))
        });
        values.sum()
    }

    /// Waits until this event's handler is at its fault, in its transaction, in this process.
    #[track_caller]
    pub(crate) fn wait_until_at_its_fault(&self, event: &Event) {
        super::wait_until("the handler is at its fault", || {
            self.was_at_its_fault(event)
        });
    }

    /// Whether this event's handler has come to its fault in this process.
    pub(crate) fn was_at_its_fault(&self, event: &Event) -> bool {
        let named = format!("event_id=\"{}\"", event.id());
        let is_told = |line: &str| line.contains("a demo fault ") && line.contains(&named);
        self.log().lines().any(is_told)
    }

    fn setup(&self) -> &Arc<Setup> {
        self.setup.as_ref().expect("it runs")
    }

    pub(crate) fn database(&self) -> &Database {
        &self.setup().database
    }

    /// What it has logged so far.
    pub(crate) fn log(&self) -> String {
        let log: PathBuf = self.setup().directory.file(self.log);
        std::fs::read_to_string(log).expect("a log")
    }

    /// One more process on the same database, on a port of its own.
    #[track_caller]
    pub(crate) fn beside(&self) -> Self {
        let args = vec!["--listen".to_owned(), own_address()];
        spawn(self.setup().clone(), "second.log", args).expect("the second receiver starts")
    }

    /// A further line of standard output.
    #[track_caller]
    pub(crate) fn line(&self) -> String {
        self.lines.recv_timeout(LIMIT).expect("one more line")
    }

    /// Its process.
    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn signal(&self, name: &str) {
        // By the shell's own command: std can only kill.
        let kill = format!("kill -{name} {}", self.child.id());
        let status = Command::new("sh")
            .args(["-c", &kill])
            .status()
            .expect("sh runs");
        assert!(status.success(), "{kill}");
        if name == "STOP" {
            wait_until_stopped(self.child.id());
        }
    }

    /// kill -9 and a new process on the same database.
    #[track_caller]
    pub(crate) fn crash(mut self) -> Self {
        self.child.kill().expect("it is killed");
        self.child.wait().expect("it is gone");
        let (setup, args) = (self.setup().clone(), self.args.clone());
        spawn(setup, self.log, args).expect("the receiver starts again")
    }

    /// Ends it, and gives its settings back: for the next process on the same database.
    pub(crate) fn kill(mut self) -> Setup {
        self.child.kill().expect("it is killed");
        self.child.wait().expect("it is gone");
        let setup = self.setup.take().expect("it runs");
        drop(self);
        Arc::into_inner(setup).expect("nobody else has its settings")
    }

    #[track_caller]
    pub(crate) fn wait(&mut self) -> ExitStatus {
        wait_for("the receiver ends", || {
            self.child.try_wait().expect("it can be asked")
        })
    }
}

impl Drop for Receiver {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
