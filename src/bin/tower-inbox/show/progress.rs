//! How far a long work is: one line on standard error, if somebody looks at it there.

use std::io::{self, IsTerminal as _, Write as _};
use std::time::{Duration, Instant};

/// Not more often than an eye can follow.
const EVERY: Duration = Duration::from_millis(100);
const BAR: usize = 24;

/// A line that is written anew; nothing at all where standard error is no terminal.
pub(crate) struct Progress {
    what: &'static str,
    total: Option<u64>,
    shown: bool,
    began: Instant,
    last: Option<Instant>,
}

impl Progress {
    pub(crate) fn new(what: &'static str, total: Option<u64>) -> Self {
        Self {
            what,
            total,
            shown: io::stderr().is_terminal(),
            began: Instant::now(),
            last: None,
        }
    }

    /// Whether anybody looks.
    pub(crate) fn is_shown(&self) -> bool {
        self.shown
    }

    pub(crate) fn at(&mut self, done: u64) {
        if !self.shown || self.last.is_some_and(|last| last.elapsed() < EVERY) {
            return;
        }
        self.last = Some(Instant::now());
        let line = line(self.what, done, self.total, self.began.elapsed());
        // A line that runs over is not written anew, but below.
        let line = match terminal_size::terminal_size_of(io::stderr()) {
            Some((width, _)) => super::table::cut(&line, usize::from(width.0)),
            None => line,
        };
        let mut err = io::stderr().lock();
        let _ = write!(err, "\r\x1b[K{line}");
        let _ = err.flush();
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if self.last.is_some() {
            let _ = write!(io::stderr(), "\r\x1b[K");
        }
    }
}

fn line(what: &str, done: u64, total: Option<u64>, since: Duration) -> String {
    let seconds = since.as_secs();
    let Some(total) = total.filter(|total| *total > 0) else {
        return format!("{what}: {done} so far, {seconds} s");
    };
    let done = done.min(total);
    let full = usize::try_from(u128::from(done) * BAR as u128 / u128::from(total)).unwrap_or(BAR);
    let bar = format!("{}{}", "#".repeat(full), ".".repeat(BAR - full));
    let percent = u128::from(done) * 100 / u128::from(total);
    format!("{what} [{bar}] {done}/{total} {percent} %, {seconds} s")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bar_fills_and_never_runs_over() {
        let second = Duration::from_secs(1);
        assert_eq!(
            line("replayed", 6, Some(12), second),
            format!(
                "replayed [{}{}] 6/12 50 %, 1 s",
                "#".repeat(12),
                ".".repeat(12)
            )
        );
        assert!(line("replayed", u64::MAX, Some(3), second).contains("3/3 100 %"));
        assert_eq!(line("purged", 5, None, second), "purged: 5 so far, 1 s");
    }
}
