//! Files and providers.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use super::super::{Refresh, Secrets};
use super::{labels, secret};
use crate::clock::Timestamp;
use crate::verify::{KeyEncoding, Secret, SecretError};

/// A directory of one test, removed at its end.
struct Dir(PathBuf);

impl Dir {
    fn new(name: &str) -> Self {
        let dir = std::env::temp_dir().join(format!("inbox-secrets-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        Self(dir)
    }

    fn file(&self) -> PathBuf {
        self.0.join("secrets")
    }

    /// As a careful operator does it: another file, renamed over the old one.
    fn replace(&self, text: &str) {
        let new = self.0.join("new");
        std::fs::write(&new, text).unwrap();
        std::fs::rename(new, self.file()).unwrap();
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// What is logged on this thread while the guard lives.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl std::io::Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl Log {
    fn start() -> (Self, tracing::subscriber::DefaultGuard) {
        let log = Self::default();
        let writer = log.clone();
        let subscriber = tracing_subscriber::fmt()
            .with_ansi(false)
            .with_writer(move || writer.clone())
            .finish();
        (log, tracing::subscriber::set_default(subscriber))
    }

    fn lines(&self, with: &str) -> usize {
        let bytes = self.0.lock().unwrap();
        let text = String::from_utf8_lossy(&bytes);
        text.lines().filter(|line| line.contains(with)).count()
    }
}

async fn within_a_second(mut holds: impl FnMut() -> bool) -> Duration {
    let start = Instant::now();
    while !holds() {
        assert!(
            start.elapsed() < Duration::from_secs(1),
            "not within a second"
        );
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    start.elapsed()
}

fn from(path: &Path) -> Secrets {
    Secrets::from_file(KeyEncoding::Text, path)
}

fn newest(secrets: &Secrets) -> Vec<u8> {
    secrets.snapshot().unwrap().newest().expose().to_vec()
}

/// §6.1: an atomic replace is in force within a second; a broken, empty or missing file keeps the old secrets and
/// is logged once for each change.
#[tokio::test]
async fn a_file_is_watched() {
    let (log, _guard) = Log::start();
    let dir = Dir::new("watched");
    dir.replace("b\na\n");
    let secrets = from(&dir.file());
    let shared = secrets.clone();
    assert_eq!(labels(&shared), ["secret-1", "secret-2"], "at once");

    // Of the same length, so that only inode and times differ.
    dir.replace("c\nb\n");
    within_a_second(|| newest(&shared) == b"c").await;
    assert_eq!(
        labels(&shared),
        ["secret-3", "secret-1"],
        "a key that stays keeps its name"
    );

    assert_eq!(log.lines("ERROR"), 0);
    for (broken, reason) in [
        ("", "the file is empty"),
        ("c\n b\n", "line 2 begins or ends with a blank"),
        (
            "c\nb\na\n",
            "the file has 3 secrets: one or two are allowed",
        ),
        ("c\nc\n", "the two secrets are the same"),
    ] {
        let before = log.lines(reason);
        dir.replace(broken);
        within_a_second(|| log.lines(reason) > before).await;
        tokio::time::sleep(Duration::from_millis(600)).await;
        assert_eq!(log.lines(reason), before + 1, "once: {reason}");
        assert_eq!(labels(&shared), ["secret-3", "secret-1"], "{reason}");
    }
    std::fs::remove_file(dir.file()).unwrap();
    within_a_second(|| log.lines("cannot be read") == 1).await;
    assert_eq!(newest(&shared), b"c");

    // In place, too: not atomic, and nevertheless seen.
    std::fs::write(dir.file(), "d\n").unwrap();
    within_a_second(|| newest(&shared) == b"d").await;
    assert_eq!(log.lines("the old ones stay"), log.lines("ERROR"));
    assert_eq!(shared.rotate(secret("x")), Err(SecretError::KeptElsewhere));
    assert_eq!(shared.revoke("secret-4"), Err(SecretError::KeptElsewhere));
    assert_eq!(
        shared.replace([secret("x")]),
        Err(SecretError::KeptElsewhere)
    );
}

/// §2.2: a file that is not there yet is no reason for a 401, and no reason not to start.
#[tokio::test]
async fn a_file_that_comes_later() {
    let (log, _guard) = Log::start();
    let dir = Dir::new("later");
    let secrets = from(&dir.file());
    assert_eq!(secrets.snapshot().unwrap_err(), SecretError::NotAvailable);
    assert!(secrets.active().is_empty());
    assert_eq!(log.lines("deliveries get 503"), 1);
    let problem = secrets.problem().unwrap();
    let start = format!("the file {} cannot be read: ", dir.file().display());
    assert!(problem.starts_with(&start), "{problem}");
    dir.replace("a");
    within_a_second(|| secrets.snapshot().is_ok()).await;
    assert_eq!(secrets.problem(), None);
}

/// §6.1. The task ends with the last handle.
#[tokio::test]
async fn the_last_handle_ends_the_task() {
    let dir = Dir::new("ends");
    dir.replace("a");
    let before = tokio::runtime::Handle::current()
        .metrics()
        .num_alive_tasks();
    let alive = || {
        tokio::runtime::Handle::current()
            .metrics()
            .num_alive_tasks()
    };
    let secrets = from(&dir.file());
    let provided = Secrets::from_provider(
        || async { Ok(vec![Secret::text("a")?]) },
        Refresh::default(),
    );
    assert_eq!(alive(), before + 2);
    drop((secrets.clone(), provided.clone()));
    tokio::time::sleep(Duration::from_millis(20)).await;
    assert_eq!(alive(), before + 2);
    drop((secrets, provided));
    within_a_second(|| alive() == before).await;
}

/// §6.1. Made without a runtime, looked after by the first one that uses it, and by the next one when that is gone.
#[test]
fn any_runtime_will_do() {
    let dir = Dir::new("runtimes");
    dir.replace("a");
    let secrets = from(&dir.file());
    assert_eq!(newest(&secrets), b"a");
    for text in ["b", "c"] {
        dir.replace(text);
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        runtime.block_on(within_a_second(|| newest(&secrets) == text.as_bytes()));
    }
}

/// §6.1
#[test]
fn json_files() {
    let dir = Dir::new("json");
    let path = dir.0.join("secrets.json");
    let load = |text: &str| {
        std::fs::write(&path, text).unwrap();
        from(&path)
    };
    let secrets = load(
        r#"[{"secret":"b","label":"march","not_before":"1970-01-01T00:00:02Z"},
            {"secret":"a","not_after":"1970-01-01T00:00:04Z"}]"#,
    );
    let active = secrets.active();
    assert_eq!(labels(&secrets), ["march", "secret-1"]);
    assert_eq!(active[0].not_before, Some(Timestamp::from_secs(2)));
    assert_eq!(active[1].not_after, Some(Timestamp::from_secs(4)));
    assert_eq!(labels(&load(r#"["b","a"]"#)).len(), 2);
    let (log, _guard) = Log::start();
    for broken in [
        "[]",
        "{}",
        "[1]",
        r#"["a""#,
        r#"[""]"#,
        r#"[{"label":"x"}]"#,
        r#"[{"secret":"hunter2","label":"hunter2"}]"#,
        r#"[{"secret":"hunter2","label":""}]"#,
        r#"[{"secret":"hunter2","not_after":"soon"}]"#,
        r#"[{"secret":"hunter2","notafter":"1970-01-01T00:00:04Z"}]"#,
        r#"["hunter2","b","c"]"#,
    ] {
        assert!(load(broken).snapshot().is_err(), "{broken}");
    }
    assert_eq!(log.lines("ERROR"), 11);
    assert_eq!(log.lines("hunter2"), 0, "§6.5");
}

/// §6.1. A provider is asked in the background, again after a failure, and what it gave last stays.
#[tokio::test(start_paused = true)]
async fn a_provider_is_asked_again() {
    let (log, _guard) = Log::start();
    let calls = Arc::new(AtomicU32::new(0));
    let counted = Arc::clone(&calls);
    let secrets = Secrets::from_provider(
        move || {
            let call = counted.fetch_add(1, Ordering::Relaxed);
            async move {
                match call {
                    0 => Err("vault is sealed".into()),
                    1 => std::future::pending().await,
                    2 => panic!("a provider's own fault"),
                    3 => Ok(vec![Secret::text("a")?]),
                    4 | 5 => Ok(Vec::new()),
                    _ => Ok(vec![Secret::text("b")?, Secret::text("a")?]),
                }
            }
        },
        Refresh::default(),
    );
    assert_eq!(secrets.snapshot().unwrap_err(), SecretError::NotAvailable);
    let start = tokio::time::Instant::now();
    while secrets.snapshot().is_err() {
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    // 1 s, 10 s of waiting for the answer, 2 s, 4 s; each wait ± a quarter.
    let waited = start.elapsed().as_secs_f64();
    assert!((15.2..18.9).contains(&waited), "{waited}");
    assert_eq!(log.lines("vault is sealed"), 1);
    assert_eq!(log.lines("no answer within 10s"), 1);
    assert_eq!(log.lines("it panicked"), 1);
    tokio::time::sleep(Duration::from_secs(61)).await;
    assert_eq!(
        labels(&secrets),
        ["secret-1"],
        "an empty answer keeps the old one"
    );
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert_eq!(labels(&secrets), ["secret-2", "secret-1"]);
    assert_eq!(log.lines("give one or two secrets"), 1, "said once");
    assert_eq!(secrets.revoke("secret-1"), Err(SecretError::KeptElsewhere));
    let asked = calls.load(Ordering::Relaxed);
    tokio::time::sleep(Duration::from_secs(120)).await;
    assert_eq!(calls.load(Ordering::Relaxed), asked + 2, "once a minute");
}

/// §6.1. The variables of this test belong to cargo, and are there.
#[test]
fn environment_variables() {
    let load = |names: &[&str]| Secrets::from_env(KeyEncoding::Text, names.iter().copied());
    let secrets = load(&["CARGO_PKG_NAME", "TOWER_INBOX_NO_SUCH_VARIABLE"]).unwrap();
    assert_eq!(newest(&secrets), b"tower-inbox");
    assert_eq!(
        secrets.rotate(secret("x")),
        Ok(()),
        "the handle is the truth afterwards"
    );
    for (names, error) in [
        (
            &["TOWER_INBOX_NO_SUCH_VARIABLE", "CARGO_PKG_NAME"][..],
            "NO_SUCH_VARIABLE is not set",
        ),
        (
            &["CARGO_PKG_NAME", "CARGO_PKG_NAME"],
            "CARGO_PKG_NAME: the two secrets are the same",
        ),
        (&[], "give one or two secrets, newest first"),
    ] {
        let text = load(names).unwrap_err().to_string();
        assert!(
            text.contains(error) && !text.contains("tower-inbox"),
            "{text}"
        );
    }
}

/// §6.1: an operator sees which secret is still in use.
#[test]
fn last_verified() {
    let secrets = Secrets::new([secret("b"), secret("a")]).unwrap();
    let noted = |secrets: &Secrets| {
        secrets
            .active()
            .into_iter()
            .map(|a| a.last_verified)
            .collect::<Vec<_>>()
    };
    assert_eq!(noted(&secrets), [None, None]);
    let set = secrets.snapshot().unwrap();
    let verified = crate::verify::Accepted::by(set.iter().last().unwrap()).into_verified();
    secrets.note_verified("crm", &verified, Timestamp::from_secs(7));
    secrets.note_verified("crm", &verified, Timestamp::from_secs(5));
    assert_eq!(noted(&secrets), [None, Some(Timestamp::from_secs(7))]);
    secrets.replace([secret("c"), secret("a")]).unwrap();
    assert_eq!(
        noted(&secrets),
        [None, Some(Timestamp::from_secs(7))],
        "a key that stays keeps it"
    );
}

/// Counts what is counted, by its labels.
#[derive(Default)]
struct Counted(Mutex<std::collections::BTreeMap<String, Arc<std::sync::atomic::AtomicU64>>>);

impl metrics::Recorder for Counted {
    fn describe_counter(
        &self,
        _: metrics::KeyName,
        _: Option<metrics::Unit>,
        _: metrics::SharedString,
    ) {
    }
    fn describe_gauge(
        &self,
        _: metrics::KeyName,
        _: Option<metrics::Unit>,
        _: metrics::SharedString,
    ) {
    }
    fn describe_histogram(
        &self,
        _: metrics::KeyName,
        _: Option<metrics::Unit>,
        _: metrics::SharedString,
    ) {
    }

    fn register_counter(&self, key: &metrics::Key, _: &metrics::Metadata<'_>) -> metrics::Counter {
        let labels: Vec<_> = key
            .labels()
            .map(|label| format!("{}={}", label.key(), label.value()))
            .collect();
        let name = format!("{}{{{}}}", key.name(), labels.join(","));
        metrics::Counter::from_arc(Arc::clone(self.0.lock().unwrap().entry(name).or_default()))
    }

    fn register_gauge(&self, _: &metrics::Key, _: &metrics::Metadata<'_>) -> metrics::Gauge {
        metrics::Gauge::noop()
    }

    fn register_histogram(
        &self,
        _: &metrics::Key,
        _: &metrics::Metadata<'_>,
    ) -> metrics::Histogram {
        metrics::Histogram::noop()
    }
}

/// §6.1, §6.5: which secret verified is counted, by its label.
#[test]
fn verified_deliveries_are_counted_by_label() {
    let secrets = Secrets::new([secret("hunter2").labelled("march"), secret("a")]).unwrap();
    let set = secrets.snapshot().unwrap();
    let counted = Counted::default();
    metrics::with_local_recorder(&counted, || {
        for secret in set.iter().chain([set.newest()]) {
            let verified = crate::verify::Accepted::by(secret).into_verified();
            secrets.note_verified("crm", &verified, Timestamp::from_secs(7));
        }
        // A source that has the same secrets.
        let verified = crate::verify::Accepted::by(set.newest()).into_verified();
        secrets.note_verified("billing", &verified, Timestamp::from_secs(7));
    });
    let counts: Vec<_> = counted
        .0
        .into_inner()
        .unwrap()
        .into_iter()
        .map(|(name, count)| format!("{name} {}", count.load(Ordering::Relaxed)))
        .collect();
    assert_eq!(
        counts,
        [
            "inbox_verified_total{source=billing,secret=march} 1",
            "inbox_verified_total{source=crm,secret=march} 2",
            "inbox_verified_total{source=crm,secret=secret-1} 1"
        ]
    );
}
