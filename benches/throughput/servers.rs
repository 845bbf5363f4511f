//! The database servers: those of `TEST_POSTGRES_URL` and `TEST_MYSQL_URL`, or private ones as `tests/run` starts them.
//!
//! Private ones are durable, as the tests' are (nothing turns fsync off), and have memory enough that a checkpoint or a full
//! cache does not decide a round.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};

use crate::process::{Meter, listener};

/// More than the defaults, which are for the smallest machines; a quarter of one with 4 GiB.
const POSTGRES: &str = "-c shared_buffers=1GB -c max_wal_size=8GB -c checkpoint_timeout=30min";
const MYSQL: &str = "--innodb-buffer-pool-size=1G --innodb-log-file-size=1G";

/// One that runs.
pub(crate) struct Server {
    pub(crate) url: String,
    pub(crate) meter: Meter,
    /// `tests/run`, which stops it.
    script: Option<Child>,
}

/// Each is started when it is first asked for.
#[derive(Default)]
pub(crate) struct Servers {
    postgres: Option<Server>,
    mysql: Option<Server>,
}

impl Servers {
    pub(crate) fn postgres(&mut self) -> &Server {
        self.postgres
            .get_or_insert_with(|| Server::get("postgres", "TEST_POSTGRES_URL"))
    }

    pub(crate) fn started_postgres(&self) -> Option<&str> {
        self.postgres.as_ref().map(|server| server.url.as_str())
    }

    pub(crate) fn started_mysql(&self) -> Option<&str> {
        self.mysql.as_ref().map(|server| server.url.as_str())
    }

    pub(crate) fn mysql(&mut self) -> &Server {
        self.mysql
            .get_or_insert_with(|| Server::get("mysql", "TEST_MYSQL_URL"))
    }
}

impl Server {
    fn get(database: &str, variable: &str) -> Self {
        let (url, script) = match std::env::var(variable) {
            Ok(url) => (url, None),
            Err(_) => start(database, variable),
        };
        let pid = port(&url).and_then(listener);
        if pid.is_none() {
            println!("{database}: its process is not to be seen; its CPU time is missing below");
        }
        Self {
            url,
            meter: pid.map_or(Meter::None, Meter::All),
            script,
        }
    }
}

fn port(url: &str) -> Option<u16> {
    let (_, after) = url.rsplit_once('@')?;
    let (host, _) = after.split_once('/').unwrap_or((after, ""));
    host.rsplit_once(':')?.1.parse().ok()
}

/// `tests/run --env --only <database>`, which prints `export <variable>=<url>` and stays.
fn start(database: &str, variable: &str) -> (String, Option<Child>) {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/run");
    // Should this process be killed outright, the script is told, and stops what it started.
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "TERM", "--", script]);
    let mut child = command
        .args(["--env", "--only", database])
        .env("TOWER_INBOX_POSTGRES_SETTINGS", POSTGRES)
        .env("TOWER_INBOX_MYSQL_SETTINGS", MYSQL)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let prefix = format!("export {variable}=");
    let lines = BufReader::new(child.stdout.take().expect("its output")).lines();
    let mut lines = lines.map_while(Result::ok);
    for line in lines.by_ref() {
        if let Some(url) = line.strip_prefix(&prefix) {
            // It may have more to say, and ends where nobody reads.
            std::thread::spawn(move || lines.for_each(drop));
            // Quoted for a shell.
            return (url.replace('\\', ""), Some(child));
        }
    }
    let _ = child.wait();
    panic!("tests/run --env --only {database} did not start it");
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Some(script) = &mut self.script {
            // Enter ends it.
            if let Some(input) = &mut script.stdin {
                let _ = input.write_all(b"\n");
            }
            let _ = script.wait();
        }
    }
}
