//! Secrets in a watched file.

use std::fmt;
use std::io::Read as _;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::{Duration, SystemTime};

use zeroize::{Zeroize as _, Zeroizing};

use super::Shared;
use super::set::MOST;
use super::upkeep::{Loaded, Origin};
use crate::verify::secret::{KeyEncoding, Secret};
use crate::verify::time;

/// Four looks a second: what was renamed over the file is in force well within the promised second.
const LOOK_EVERY: Duration = Duration::from_millis(250);
/// Two secrets and their labels are far smaller; a file that somebody pointed at by mistake is not read whole.
const LONGEST: usize = 64 * 1024;
/// A file that was written this recently may be written again within one tick of its file system's clock, so that
/// its times tell nothing: two seconds is the coarsest tick in use (FAT).
const UNSETTLED: Duration = Duration::from_secs(2);
/// A label goes into metrics.
const LONGEST_LABEL: usize = 64;

pub(super) struct File {
    encoding: KeyEncoding,
    path: PathBuf,
    seen: Mutex<Seen>,
    problem: Mutex<Option<String>>,
}

#[derive(Default)]
struct Seen {
    /// Of the file that was read last; nothing if there was none.
    stamp: Option<Stamp>,
    /// Whether an equal stamp means an equal file.
    settled: bool,
    looked: bool,
}

/// What tells one state of a file from another without reading it.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Stamp {
    modified: Option<SystemTime>,
    len: u64,
    /// Device, inode and the time of the last change of that: another file, or the same one renamed, chmodded or
    /// written with its old times.
    identity: (u64, u64, i64, i64),
}

impl Stamp {
    fn of(metadata: &std::fs::Metadata) -> Self {
        #[cfg(unix)]
        let identity = {
            use std::os::unix::fs::MetadataExt as _;
            let m = metadata;
            (m.dev(), m.ino(), m.ctime(), m.ctime_nsec())
        };
        #[cfg(not(unix))]
        let identity = (0, 0, 0, 0);
        Self {
            modified: metadata.modified().ok(),
            len: metadata.len(),
            identity,
        }
    }

    fn is_settled(&self) -> bool {
        let age = self
            .modified
            .and_then(|modified| SystemTime::now().duration_since(modified).ok());
        // Times in the future, or none at all: read on, it is small.
        age.is_some_and(|age| age > UNSETTLED)
    }
}

impl File {
    pub(super) fn new(encoding: KeyEncoding, path: PathBuf) -> Self {
        Self {
            encoding,
            path,
            seen: Mutex::default(),
            problem: Mutex::default(),
        }
    }

    /// What is in the file, if it may be something else than last time. Blocks.
    pub(super) fn poll(&self) -> Option<Loaded> {
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        let stamp = std::fs::metadata(&self.path).map(|metadata| Stamp::of(&metadata));
        let known = seen.looked && seen.stamp == stamp.as_ref().ok().copied();
        if known && seen.settled {
            return None;
        }
        let read = stamp
            .and_then(|_| self.read())
            .map_err(|error| format!("the file {} cannot be read: {error}", self.path.display()));
        seen.looked = true;
        let (stamp, text) = match read {
            Ok((stamp, text)) => (Some(stamp), Ok(text)),
            Err(error) => (None, Err(error)),
        };
        if !known {
            // Another state of the file: what is wrong with it is said again.
            *self.problem.lock().unwrap_or_else(PoisonError::into_inner) = None;
        }
        seen.stamp = stamp;
        // One that is not there is looked for again in any case.
        seen.settled = stamp.is_some_and(|stamp| stamp.is_settled());
        Some(text.and_then(|text| self.parse(&text)))
    }

    fn read(&self) -> std::io::Result<(Stamp, Zeroizing<Vec<u8>>)> {
        let file = std::fs::File::open(&self.path)?;
        // Of what is read, not of what may have been renamed over it since.
        let stamp = Stamp::of(&file.metadata()?);
        // Never grown: growing would leave copies behind that nobody wipes.
        let mut text = Zeroizing::new(Vec::with_capacity(LONGEST + 1));
        file.take(LONGEST as u64 + 1).read_to_end(&mut text)?;
        Ok((stamp, text))
    }

    fn parse(&self, text: &[u8]) -> Loaded {
        if text.len() > LONGEST {
            return Err(format!("the file is larger than {LONGEST} bytes"));
        }
        let text = std::str::from_utf8(text).map_err(|_| "the file is not UTF-8".to_owned())?;
        let text = text.strip_prefix('\u{feff}').unwrap_or(text);
        let is_json = self
            .path
            .extension()
            .is_some_and(|extension| extension.eq_ignore_ascii_case("json"));
        let secrets = if is_json {
            json(self.encoding, text)?
        } else {
            lines(self.encoding, text)?
        };
        if secrets.is_empty() {
            return Err("the file is empty".to_owned());
        }
        if secrets.len() > MOST {
            let count = secrets.len();
            return Err(format!(
                "the file has {count} secrets: one or two are allowed"
            ));
        }
        Ok(secrets)
    }

    pub(super) async fn watch(self: Arc<Self>, shared: Weak<Shared>) {
        loop {
            tokio::time::sleep(LOOK_EVERY).await;
            let file = Arc::clone(&self);
            // File systems over a network can take their time.
            let Ok(read) = tokio::task::spawn_blocking(move || file.poll()).await else {
                return;
            };
            let Some(shared) = shared.upgrade() else {
                return;
            };
            if let Some(read) = read {
                shared.take_over(&*self, read);
            }
        }
    }
}

impl Origin for File {
    fn problem(&self) -> &Mutex<Option<String>> {
        &self.problem
    }
}

impl fmt::Display for File {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "file {}", self.path.display())
    }
}

fn lines(encoding: KeyEncoding, text: &str) -> Loaded {
    let mut secrets = Vec::new();
    for (number, line) in (1..).zip(text.lines()).filter(|(_, line)| !line.is_empty()) {
        if line.trim() != line {
            return Err(format!("line {number} begins or ends with a blank"));
        }
        let secret = Secret::decode(encoding, line);
        secrets.push(secret.map_err(|error| format!("line {number}: {error}"))?);
    }
    Ok(secrets)
}

fn json(encoding: KeyEncoding, text: &str) -> Loaded {
    use serde_json::Value;

    // Without the parser's own words: they can quote what is in the file.
    let mut items: Vec<Value> = serde_json::from_str(text).map_err(|error| {
        format!(
            "the file is no JSON array (line {}, column {})",
            error.line(),
            error.column()
        )
    })?;
    let secrets = (1..).zip(&items).map(|(number, item)| {
        one(encoding, item).map_err(|error| format!("secret {number}: {error}"))
    });
    let secrets = secrets.collect();
    items.iter_mut().for_each(wipe);
    secrets
}

fn one(encoding: KeyEncoding, item: &serde_json::Value) -> Result<Secret, String> {
    use serde_json::Value;

    let decode = |text: &str| Secret::decode(encoding, text).map_err(|error| error.to_string());
    let members = match item {
        Value::String(text) => return decode(text),
        Value::Object(members) => members,
        _ => return Err("neither a string nor an object".to_owned()),
    };
    let text = members.get("secret").and_then(Value::as_str);
    let text = text.ok_or("it has no string `secret`")?;
    let mut secret = decode(text)?;
    for (name, value) in members.iter().filter(|(name, _)| *name != "secret") {
        let value = value
            .as_str()
            .ok_or_else(|| format!("`{}` is no string", time::clip(name)))?;
        let instant = || {
            time::rfc3339(value)
                .map(|(at, _)| at)
                .ok_or_else(|| format!("`{name}` is no RFC 3339 time"))
        };
        secret = match name.as_str() {
            "label" if value.is_empty() || value.len() > LONGEST_LABEL || value == text => {
                return Err(format!(
                    "`label` must be 1 to {LONGEST_LABEL} bytes, and not the secret"
                ));
            }
            "label" => secret.labelled(value),
            "not_before" => secret.not_before(instant()?),
            "not_after" => secret.not_after(instant()?),
            // A misspelt limit must not be no limit.
            _ => return Err(format!("`{}` is not known", time::clip(name))),
        };
    }
    Ok(secret)
}

fn wipe(value: &mut serde_json::Value) {
    use serde_json::Value;

    match value {
        Value::String(text) => text.zeroize(),
        Value::Array(items) => items.iter_mut().for_each(wipe),
        Value::Object(members) => members.values_mut().for_each(wipe),
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}
