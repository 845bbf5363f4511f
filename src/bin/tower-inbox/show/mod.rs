//! What is printed: tables for people, JSON for scripts, progress for whoever waits.

mod progress;
mod table;
mod text;
mod time;

use std::io::{self, IsTerminal as _, Write as _};
use std::sync::{Mutex, PoisonError};

use serde_json::Value;

pub(crate) use self::progress::Progress;
pub(crate) use self::table::{Column, Table};
pub(crate) use self::text::{json_safe, quoted, safe, safe_lines};
pub(crate) use self::time::{ago, duration, instant, moment, parse_duration, rfc3339, took};

/// The width of the terminal; nothing if standard output is none, so that whatever reads it gets everything.
pub(crate) fn width() -> Option<usize> {
    if !io::stdout().is_terminal() {
        return None;
    }
    let asked = std::env::var("COLUMNS")
        .ok()
        .and_then(|text| text.parse().ok());
    let of_terminal = || terminal_size::terminal_size().map(|(width, _)| usize::from(width.0));
    asked.or_else(of_terminal).filter(|width| *width > 0)
}

/// Why standard output did not take everything.
static LOST: Mutex<Option<io::Error>> = Mutex::new(None);

/// To standard output. False if nobody reads it: a reader that has gone away (`| head`) is no reason to complain.
pub(crate) fn print(text: &str) -> bool {
    let mut out = io::stdout().lock();
    let printed = out.write_all(text.as_bytes()).and_then(|()| out.flush());
    let Err(error) = printed else { return true };
    if error.kind() != io::ErrorKind::BrokenPipe {
        *LOST.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
    }
    false
}

/// What standard output did not take, for another reason: a full disk, say.
pub(crate) fn what_was_lost() -> Option<io::Error> {
    LOST.lock().unwrap_or_else(PoisonError::into_inner).take()
}

/// To standard error, a line with the program's name.
pub(crate) fn say(text: &str) {
    let text = safe_lines(&crate::database::without_passwords(text));
    let _ = writeln!(io::stderr(), "tower-inbox: {text}");
}

/// One JSON value on one line, of characters that do nothing to a terminal.
pub(crate) fn json_line(value: &Value) -> String {
    let mut line = json_safe(&value.to_string());
    line.push('\n');
    line
}

/// What a command has to say, both ways.
pub(crate) struct Shown {
    pub(crate) json: Value,
    pub(crate) text: String,
}

impl Shown {
    pub(crate) fn render(&self, json: bool) -> String {
        if json {
            json_line(&self.json)
        } else {
            self.text.clone()
        }
    }

    pub(crate) fn print(&self, json: bool) {
        print(&self.render(json));
    }
}
