//! What the black-box tests share: the receiver as a child process, and a producer that speaks HTTP by hand.
#![allow(
    dead_code,
    clippy::print_stderr,
    reason = "no test file uses all of it, and each compiles it for itself"
)]

pub(crate) mod binary;
pub(crate) mod database;
pub(crate) mod event;
pub(crate) mod http;
pub(crate) mod receiver;
pub(crate) mod server;
pub(crate) mod stopped;

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// How long a condition may take to come true: long, since the machine may be busy with other tests.
pub(crate) const LIMIT: Duration = Duration::from_secs(30);

/// Asks again and again until there is something; panics with `what` after [`LIMIT`].
#[track_caller]
pub(crate) fn wait_for<T>(what: &str, mut ask: impl FnMut() -> Option<T>) -> T {
    let began = Instant::now();
    loop {
        if let Some(found) = ask() {
            return found;
        }
        assert!(began.elapsed() < LIMIT, "waited {LIMIT:?} in vain: {what}");
        thread::sleep(Duration::from_millis(10));
    }
}

/// Asks again and again until it is so.
#[track_caller]
pub(crate) fn wait_until(what: &str, mut ask: impl FnMut() -> bool) {
    wait_for(what, || ask().then_some(()));
}

/// A directory of one test, removed at its end.
pub(crate) struct Directory(PathBuf);

impl Directory {
    pub(crate) fn new() -> Self {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let name = format!("black-box-{}-{number}", std::process::id());
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
        // What an earlier process of the same number left behind.
        let _ = std::fs::remove_dir_all(&path);
        std::fs::create_dir_all(&path).expect("a temporary directory");
        Self(path)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }

    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        // A test that failed leaves its database and logs, to be looked at.
        if !thread::panicking() {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }
}
