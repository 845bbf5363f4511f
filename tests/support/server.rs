//! Servers of a test's own, to kill and to start again: PostgreSQL, MariaDB, PgBouncer. As tests/sh/databases.sh starts
//! them: not as root, on the loopback.

use std::fs::{self, File, Permissions};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, chown};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use super::database::{Kind, number};
use super::wait_until;

/// A server. It ends, and its directory goes, with this.
pub(crate) struct Server {
    pub(crate) kind: Kind,
    pub(crate) url: String,
    directory: PathBuf,
    port: u16,
    child: Child,
}

/// The programs that a server needs, or what is missing.
pub(crate) fn find(kind: Kind) -> Result<(), String> {
    match kind {
        Kind::Sqlite => Ok(()),
        Kind::Postgres => program("initdb")
            .and_then(|_| program("postgres"))
            .map(drop),
        Kind::MySql => program("mariadb-install-db")
            .and_then(|_| program("mariadbd"))
            .map(drop),
    }
}

/// The path of PgBouncer, or that it is missing.
pub(crate) fn find_pgbouncer() -> Result<(), String> {
    program("pgbouncer").map(drop)
}

impl Server {
    /// An empty one.
    pub(crate) fn start(kind: Kind) -> Self {
        let (directory, port) = (place(), free_port());
        let password = format!("{:x}", fastrand::u64(..));
        let data = directory.join("data");
        let path = |name: &str| directory.join(name).display().to_string();
        let (install, scheme, database) = match kind {
            Kind::Sqlite => panic!("it has no server"),
            Kind::Postgres => {
                write(&directory, "password", &password);
                let mut install = command(&directory, "initdb");
                install.args(["-U", "tower_inbox", "--pwfile=password", "--auth=md5"]);
                install.args(["--encoding=UTF8", "--locale=C", "--no-sync", "-D"]);
                install.arg(&data);
                (install, "postgres", "postgres")
            }
            Kind::MySql => {
                let accounts = format!(
                    "CREATE DATABASE IF NOT EXISTS app;\n\
                     CREATE OR REPLACE USER tower_inbox@'127.0.0.1' IDENTIFIED BY '{password}';\n\
                     GRANT ALL ON *.* TO tower_inbox@'127.0.0.1';\nFLUSH PRIVILEGES;\n"
                );
                write(&directory, "accounts.sql", &accounts);
                let mut install = command(&directory, "mariadb-install-db");
                install.args(["--no-defaults", "--skip-test-db", "--skip-name-resolve"]);
                install.arg("--auth-root-authentication-method=normal");
                install.arg(format!("--datadir={}", path("data")));
                install.arg(format!("--tmpdir={}", path("")));
                (install, "mysql", "app")
            }
        };
        done(install);
        let url = format!("{scheme}://tower_inbox:{password}@127.0.0.1:{port}/{database}");
        let child = spawn(run(kind, &directory, port), &directory);
        let server = Self {
            kind,
            url,
            directory,
            port,
            child,
        };
        server.answers();
        server
    }

    /// PgBouncer in transaction mode, in front of this server, with so many connections to it. `url` is the server's;
    /// what comes back serves any of its databases.
    pub(crate) fn pgbouncer(url: &str, connections: u32) -> Self {
        let (directory, port) = (place(), free_port());
        let server = url.split_once("://").expect("a URL").1;
        let (account, address) = server.split_once('@').expect("an account");
        let (user, password) = account.split_once(':').expect("a password");
        let (host, behind) = address.split_once(':').expect("a port");
        let behind = behind.split('/').next().expect("a port");
        write(
            &directory,
            "accounts",
            &format!("\"{user}\" \"{password}\"\n"),
        );
        // `extra_float_digits` is what the driver says when it connects; it is of no account here.
        let settings = format!(
            "[databases]\n* = host={host} port={behind}\n\
             [pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {port}\nunix_socket_dir =\n\
             pool_mode = transaction\ndefault_pool_size = {connections}\nmax_client_conn = 500\n\
             auth_type = md5\nauth_file = {}\nignore_startup_parameters = extra_float_digits\n",
            directory.join("accounts").display()
        );
        let settings = write(&directory, "pgbouncer.ini", &settings);
        let mut run = command(&directory, "pgbouncer");
        run.arg(settings);
        let child = spawn(run, &directory);
        let (_, database) = address.rsplit_once('/').expect("a database");
        let server = Self {
            kind: Kind::Postgres,
            url: format!("postgres://{account}@127.0.0.1:{port}/{database}"),
            directory,
            port,
            child,
        };
        wait_until("pgbouncer listens", || {
            TcpStream::connect(("127.0.0.1", port)).is_ok()
        });
        server
    }

    /// Every process of it, at the same time: as when the machine dies.
    pub(crate) fn kill(&mut self) {
        let pid = self.child.id();
        let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children"));
        let children = children.unwrap_or_default();
        // A process that has ended meanwhile makes no difference.
        let _ = Command::new("kill")
            .args(["-s", "KILL", &pid.to_string()])
            .args(children.split_whitespace())
            .stderr(Stdio::null())
            .status();
        self.child.wait().expect("it was ours");
    }

    pub(crate) fn restart(&mut self) {
        self.child = spawn(run(self.kind, &self.directory, self.port), &self.directory);
        self.answers();
    }

    fn answers(&self) {
        wait_until("the server answers", || {
            number(self.kind, &self.url, "SELECT COUNT(*)").is_ok()
        });
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Ok(None) = self.child.try_wait() {
            self.kill();
        }
        let _ = fs::remove_dir_all(&self.directory);
    }
}

fn run(kind: Kind, directory: &Path, port: u16) -> Command {
    let path = |name: &str| directory.join(name).display().to_string();
    match kind {
        Kind::Sqlite => panic!("it has no server"),
        Kind::Postgres => {
            let mut run = command(directory, "postgres");
            run.args(["-D", &path("data"), "-p", &port.to_string()]);
            run.args(["-c", "listen_addresses=127.0.0.1"]);
            run.args(["-c", "unix_socket_directories="]);
            run
        }
        Kind::MySql => {
            let mut run = command(directory, "mariadbd");
            run.args(["--no-defaults", "--bind-address=127.0.0.1"]);
            run.args(["--skip-name-resolve", "--character-set-server=utf8mb4"]);
            run.arg(format!("--port={port}"));
            for (option, name) in [
                ("datadir", "data"),
                ("socket", "socket"),
                ("pid-file", "pid"),
                ("tmpdir", ""),
                ("init-file", "accounts.sql"),
            ] {
                run.arg(format!("--{option}={}", path(name)));
            }
            run
        }
    }
}

/// A directory that belongs to whom the servers run as.
fn place() -> PathBuf {
    let directory = std::env::temp_dir().join(format!("tower-inbox-box-{:x}", fastrand::u64(..)));
    fs::create_dir_all(&directory).expect("a directory");
    fs::set_permissions(&directory, Permissions::from_mode(0o711)).expect("ours");
    if let Some((uid, gid)) = account(&directory) {
        chown(&directory, Some(uid), Some(gid)).expect("root may");
    }
    directory
}

fn write(directory: &Path, name: &str, text: &str) -> PathBuf {
    let path = directory.join(name);
    fs::write(&path, text).expect("it can be written");
    let owner = fs::metadata(directory).expect("it is there");
    chown(&path, Some(owner.uid()), Some(owner.gid())).expect("it is ours or we may");
    fs::set_permissions(&path, Permissions::from_mode(0o600)).expect("we may");
    path
}

fn free_port() -> u16 {
    let free = |port: &u16| TcpListener::bind(("127.0.0.1", *port)).is_ok();
    (0..100)
        .map(|_| fastrand::u16(20_000..32_000))
        .find(free)
        .expect("a free port")
}

/// `nobody`, if who runs the tests is root: none of the servers runs as that.
fn account(directory: &Path) -> Option<(u32, u32)> {
    if fs::metadata(directory).ok()?.uid() != 0 {
        return None;
    }
    let users = fs::read_to_string("/etc/passwd").ok()?;
    let line = users.lines().find(|line| line.starts_with("nobody:"))?;
    let mut fields = line.split(':').skip(2);
    Some((fields.next()?.parse().ok()?, fields.next()?.parse().ok()?))
}

/// A command that runs as the directory's owner.
fn command(directory: &Path, name: &str) -> Command {
    let mut command = Command::new(program(name).unwrap_or_else(|missing| panic!("{missing}")));
    let owner = fs::metadata(directory).expect("it is there");
    let ours = fs::metadata("/proc/self").expect("we are there");
    if owner.uid() != ours.uid() {
        command.uid(owner.uid()).gid(owner.gid());
    }
    command.current_dir(directory).stdin(Stdio::null());
    command
}

fn done(mut command: Command) {
    let output = command.output().expect("it runs");
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{text}");
}

fn spawn(mut command: Command, directory: &Path) -> Child {
    let log = File::options()
        .create(true)
        .append(true)
        .open(directory.join("log"))
        .expect("a log");
    command
        .stdout(log.try_clone().expect("a log"))
        .stderr(log)
        .spawn()
        .expect("its program was found")
}

/// The distribution's own comes first: what is in PATH may be a wrapper.
fn program(name: &str) -> Result<PathBuf, String> {
    let versions = fs::read_dir("/usr/lib/postgresql").into_iter().flatten();
    let mut places: Vec<_> = versions
        .flatten()
        .map(|entry| entry.path().join("bin"))
        .collect();
    places.sort();
    places.reverse();
    places.extend(["/usr/sbin", "/usr/local/sbin", "/usr/libexec"].map(PathBuf::from));
    places.extend(std::env::split_paths(
        &std::env::var_os("PATH").unwrap_or_default(),
    ));
    let found = places.into_iter().map(|place| place.join(name));
    let found = found.into_iter().find(|path| path.is_file());
    found.ok_or_else(|| format!("{name} was not found: tests/run installs it where it may"))
}
