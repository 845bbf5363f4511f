//! A server of a test's own, to kill, to freeze and to set up wrongly: as tests/sh/databases.sh starts them.

use std::fs::{self, Permissions};
use std::future::Future;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use sqlx::Connection;

use super::{Conn, LIMIT, TestDb, caught, made, passed};
use crate::stopped::{wait_until_ended, wait_until_stopped};

/// A database that a test can have a server of its own for.
pub(crate) trait OnServer: TestDb {
    /// Makes the data directory in `at`.
    fn install(at: &Place) -> Result<(), String>;
    /// The command that runs the server.
    fn command(at: &Place) -> Command;
    fn url(at: &Place) -> String;
    /// A name in the warning, and what makes the setting weaker than the contract wants it.
    fn weaker_settings() -> Vec<(&'static str, &'static str)>;
    /// A fresh database there.
    fn on(url: &str) -> impl Future<Output = Result<Self, String>> + Send;
}

/// Where a server lives.
pub(crate) struct Place {
    directory: PathBuf,
    port: u16,
    password: String,
    /// Neither server runs as root.
    user: Option<(u32, u32)>,
}

/// A server. It ends, and its directory goes, with this.
pub(crate) struct Server<D: OnServer> {
    place: Place,
    child: Child,
    url: String,
    _of: std::marker::PhantomData<D>,
}

/// Runs one test on a server of its own, unless the database is to be left out.
pub(crate) async fn run<D: OnServer, F: Future<Output = ()>>(test: impl FnOnce(D, Server<D>) -> F) {
    let made = made(D::NAME, async || {
        let server = Server::<D>::start().await?;
        let db = D::on(&server.url).await?;
        Ok((db, server))
    });
    let Some((db, server)) = made.await else {
        return;
    };
    passed(caught(tokio::time::timeout(LIMIT, test(db, server))).await);
}

impl<D: OnServer> Server<D> {
    async fn start() -> Result<Self, String> {
        let place = Place::new().map_err(|error| error.to_string())?;
        let installed = D::install(&place);
        if let Err(missing) = installed {
            let _ = fs::remove_dir_all(&place.directory);
            return Err(missing);
        }
        let url = D::url(&place);
        let child = place.spawn::<D>();
        let server = Self {
            place,
            child,
            url,
            _of: std::marker::PhantomData,
        };
        server.answers().await;
        Ok(server)
    }

    async fn answers(&self) {
        let start = Instant::now();
        loop {
            match Conn::<D>::connect(&self.url).await {
                Ok(conn) => return conn.close().await.expect("it closes"),
                Err(error) => assert!(
                    start.elapsed() < Duration::from_secs(60),
                    "{error}; its log: {}",
                    fs::read_to_string(self.place.directory.join("log")).unwrap_or_default()
                ),
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// Every process of it, at the same time: as when the machine dies.
    pub(crate) fn kill(&mut self) {
        // Stopped first: none is begun any more, of which nothing would be known.
        self.freeze();
        let all = self.signal("KILL");
        self.child.wait().expect("it was ours");
        // PostgreSQL does not start as long as one of them has its memory.
        all.into_iter().for_each(wait_until_ended);
    }

    pub(crate) async fn restart(&mut self) {
        self.child = self.place.spawn::<D>();
        self.answers().await;
    }

    /// Nothing answers, and no connection is closed.
    pub(crate) fn freeze(&self) {
        // Twice: one that its first process has begun meanwhile is among them then.
        for pid in (0..2).flat_map(|_| self.signal("STOP")) {
            wait_until_stopped(pid);
        }
    }

    pub(crate) fn thaw(&self) {
        self.signal("CONT");
    }

    /// To each of its processes.
    fn signal(&self, name: &str) -> Vec<u32> {
        let pid = self.child.id();
        let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children"));
        let children = children.unwrap_or_default();
        let children = children.split_whitespace().flat_map(str::parse);
        let all: Vec<u32> = [pid].into_iter().chain(children).collect();
        // A process that has ended meanwhile makes no difference.
        let _ = Command::new("kill")
            .args(["-s", name])
            .args(all.iter().map(u32::to_string))
            .stderr(Stdio::null())
            .status();
        all
    }
}

impl<D: OnServer> Drop for Server<D> {
    fn drop(&mut self) {
        if let Ok(None) = self.child.try_wait() {
            self.signal("KILL");
            let _ = self.child.wait();
        }
        let _ = fs::remove_dir_all(&self.place.directory);
    }
}

impl Place {
    fn new() -> std::io::Result<Self> {
        let mark = fastrand::u64(..);
        let directory = std::env::temp_dir().join(format!("tower-inbox-server-{mark:x}"));
        fs::create_dir_all(&directory)?;
        fs::set_permissions(&directory, Permissions::from_mode(0o711))?;
        let (owner, user) = {
            use std::os::unix::fs::MetadataExt;
            (fs::metadata(&directory)?.uid(), nobody())
        };
        let user = if owner == 0 { user } else { None };
        if let Some((uid, gid)) = user {
            std::os::unix::fs::chown(&directory, Some(uid), Some(gid))?;
        }
        // Free now; nobody else is likely to take it before the server does.
        let port = std::net::TcpListener::bind("127.0.0.1:0")?
            .local_addr()?
            .port();
        Ok(Self {
            directory,
            port,
            password: format!("{mark:x}"),
            user,
        })
    }

    fn command(&self, program: &Path) -> Command {
        let mut command = Command::new(program);
        if let Some((uid, gid)) = self.user {
            command.uid(uid).gid(gid);
        }
        command.current_dir(&self.directory).stdin(Stdio::null());
        command
    }

    fn spawn<D: OnServer>(&self) -> Child {
        let log = fs::File::options()
            .create(true)
            .append(true)
            .open(self.directory.join("log"))
            .expect("a log");
        D::command(self)
            .stdout(log.try_clone().expect("a log"))
            .stderr(log)
            .spawn()
            .expect("the server's program was found before")
    }

    fn write(&self, name: &str, text: &str) -> Result<PathBuf, String> {
        let path = self.directory.join(name);
        fs::write(&path, text).map_err(|error| error.to_string())?;
        fs::set_permissions(&path, Permissions::from_mode(0o644))
            .map_err(|error| error.to_string())?;
        Ok(path)
    }

    fn install(&self, mut command: Command) -> Result<(), String> {
        let done = command.output().map_err(|error| error.to_string())?;
        if done.status.success() {
            return Ok(());
        }
        Err(String::from_utf8_lossy(&done.stderr).into_owned())
    }
}

/// The user and group that are everywhere and own nothing.
fn nobody() -> Option<(u32, u32)> {
    let users = fs::read_to_string("/etc/passwd").ok()?;
    let line = users.lines().find(|line| line.starts_with("nobody:"))?;
    let mut fields = line.split(':').skip(2);
    Some((fields.next()?.parse().ok()?, fields.next()?.parse().ok()?))
}

/// A program in one of these directories, the last one that sorts first, or in PATH.
fn find(program: &str, directories: Vec<PathBuf>) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let places = directories.into_iter().rev();
    places
        .chain(std::env::split_paths(&path))
        .map(|directory| directory.join(program))
        .find(|path| path.is_file())
}

#[cfg(feature = "postgres")]
mod postgres {
    use super::*;
    use crate::db::postgres::PostgresDb;

    fn program(name: &str) -> Option<PathBuf> {
        let versions = fs::read_dir("/usr/lib/postgresql").into_iter().flatten();
        let mut versions: Vec<_> = versions
            .flatten()
            .map(|entry| entry.path().join("bin"))
            .collect();
        versions.sort();
        find(name, versions)
    }

    impl OnServer for PostgresDb {
        fn install(at: &Place) -> Result<(), String> {
            let initdb = program("initdb").ok_or("initdb was not found")?;
            at.write("password", &at.password)?;
            let mut command = at.command(&initdb);
            command.args(["-D", "data", "-U", "tower_inbox", "--pwfile=password"]);
            command.args(["--auth=md5", "--encoding=UTF8", "--locale=C", "--no-sync"]);
            at.install(command)
        }

        fn command(at: &Place) -> Command {
            let mut command = at.command(&program("postgres").unwrap_or_default());
            command.args(["-D", "data", "-p", &at.port.to_string()]);
            command.args(["-c", "listen_addresses=127.0.0.1"]);
            command.args(["-c", "unix_socket_directories="]);
            command
        }

        fn url(at: &Place) -> String {
            let (password, port) = (&at.password, at.port);
            format!("postgres://tower_inbox:{password}@127.0.0.1:{port}/postgres")
        }

        fn weaker_settings() -> Vec<(&'static str, &'static str)> {
            vec![("fsync", "ALTER SYSTEM SET fsync = off")]
        }

        async fn on(url: &str) -> Result<Self, String> {
            Self::on(url).await
        }
    }
}

#[cfg(feature = "mysql")]
mod mysql {
    use super::*;
    use crate::db::mysql::MySqlDb;

    fn program(name: &str) -> Option<PathBuf> {
        find(
            name,
            ["/usr/libexec", "/usr/local/sbin", "/usr/sbin"]
                .map(PathBuf::from)
                .into(),
        )
    }

    impl OnServer for MySqlDb {
        fn install(at: &Place) -> Result<(), String> {
            program("mariadbd").ok_or("mariadbd was not found")?;
            let install =
                program("mariadb-install-db").ok_or("mariadb-install-db was not found")?;
            // `app`: without the right to write on a server that is read-only.
            let accounts = format!(
                "CREATE OR REPLACE USER tower_inbox@'127.0.0.1' IDENTIFIED BY '{0}';\n\
                GRANT ALL ON *.* TO tower_inbox@'127.0.0.1' WITH GRANT OPTION;\n\
                CREATE OR REPLACE USER app@'127.0.0.1' IDENTIFIED BY 'app';\n\
                GRANT CREATE, ALTER, DROP, INDEX, SELECT, INSERT, UPDATE, DELETE ON *.* TO app@'127.0.0.1';\n\
                FLUSH PRIVILEGES;\n",
                at.password
            );
            at.write("accounts.sql", &accounts)?;
            let mut command = at.command(&install);
            command.args(["--no-defaults", "--skip-test-db", "--skip-name-resolve"]);
            command.arg("--auth-root-authentication-method=normal");
            command.arg(format!("--datadir={}", at.directory.join("data").display()));
            command.arg(format!("--tmpdir={}", at.directory.display()));
            at.install(command)
        }

        fn command(at: &Place) -> Command {
            let mut command = at.command(&program("mariadbd").unwrap_or_default());
            let path = |name: &str| at.directory.join(name).display().to_string();
            command.args([
                "--no-defaults",
                "--bind-address=127.0.0.1",
                "--skip-name-resolve",
            ]);
            command.args([
                "--character-set-server=utf8mb4",
                "--log-bin",
                "--sync-binlog=1",
            ]);
            command.arg(format!("--port={}", at.port));
            command.arg(format!("--datadir={}", path("data")));
            command.arg(format!("--socket={}", path("socket")));
            command.arg(format!("--pid-file={}", path("pid")));
            command.arg(format!("--tmpdir={}", path("")));
            command.arg(format!("--init-file={}", path("accounts.sql")));
            command
        }

        fn url(at: &Place) -> String {
            let (password, port) = (&at.password, at.port);
            format!("mysql://tower_inbox:{password}@127.0.0.1:{port}/mysql")
        }

        fn weaker_settings() -> Vec<(&'static str, &'static str)> {
            vec![
                (
                    "innodb_flush_log_at_trx_commit",
                    "SET GLOBAL innodb_flush_log_at_trx_commit = 2",
                ),
                ("sync_binlog", "SET GLOBAL sync_binlog = 0"),
            ]
        }

        async fn on(url: &str) -> Result<Self, String> {
            Self::on(url).await
        }
    }
}
