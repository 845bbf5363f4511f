//! Processes: sides that are started and ended, and the CPU time of each.

use std::collections::HashMap;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};

/// Of a second, in the kernel's accounts as they are shown to processes: the same on every Linux.
const TICKS: f64 = 100.0;

/// A child that says `listening <port>`, and that ends when its standard input does.
pub(crate) struct Receiver {
    child: Child,
    pub(crate) port: u16,
}

impl Receiver {
    /// Starts it and waits until it listens.
    pub(crate) fn start(command: &mut Command) -> Self {
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap_or_else(|error| panic!("{command:?}: {error}"));
        let lines = BufReader::new(child.stdout.take().expect("its output")).lines();
        for line in lines.map_while(Result::ok) {
            if let Some(port) = line.strip_prefix("listening ") {
                let port = port.trim().parse().expect("a port");
                return Self { child, port };
            }
        }
        let _ = child.wait();
        panic!("{command:?} ended before it listened");
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }
}

impl Drop for Receiver {
    fn drop(&mut self) {
        drop(self.child.stdin.take());
        let _ = self.child.wait();
    }
}

/// Counts the CPU time of a process.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Meter {
    /// That process alone, its threads included.
    One(u32),
    /// With its children, and those of these: a server that has a process for each connection.
    All(u32),
    /// Nobody's: a database in the receiver's own process, or one that is elsewhere.
    None,
}

impl Meter {
    /// CPU seconds so far.
    pub(crate) fn seconds(&self) -> f64 {
        match self {
            Self::One(pid) => stat(*pid).map_or(0.0, |stat| stat.own),
            Self::All(pid) => {
                let all: HashMap<u32, Stat> = processes().collect();
                // Of those that ended their parent keeps the account.
                all.iter()
                    .filter(|(each, _)| belongs(&all, **each, *pid))
                    .map(|(_, stat)| stat.own + stat.children)
                    .sum()
            }
            Self::None => 0.0,
        }
    }
}

struct Stat {
    parent: u32,
    own: f64,
    children: f64,
}

fn processes() -> impl Iterator<Item = (u32, Stat)> {
    std::fs::read_dir("/proc")
        .into_iter()
        .flatten()
        .filter_map(|entry| {
            let pid = entry.ok()?.file_name().to_str()?.parse().ok()?;
            Some((pid, stat(pid)?))
        })
}

fn belongs(all: &HashMap<u32, Stat>, mut pid: u32, to: u32) -> bool {
    while pid != to {
        match all.get(&pid) {
            Some(stat) if stat.parent != 0 => pid = stat.parent,
            _ => return false,
        }
    }
    true
}

/// `/proc/<pid>/stat`; its second field is a name in parentheses, which may have anything in it.
fn stat(pid: u32) -> Option<Stat> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let fields: Vec<&str> = text.rsplit_once(')')?.1.split_whitespace().collect();
    let ticks = |at: usize| fields.get(at)?.parse::<f64>().ok();
    Some(Stat {
        parent: fields.get(1)?.parse().ok()?,
        own: (ticks(11)? + ticks(12)?) / TICKS,
        children: (ticks(13)? + ticks(14)?) / TICKS,
    })
}

/// Who listens on a port of this machine, if that can be seen: the oldest of those that do, which is the parent.
pub(crate) fn listener(port: u16) -> Option<u32> {
    let sockets: Vec<String> = ["/proc/net/tcp", "/proc/net/tcp6"]
        .iter()
        .filter_map(|table| std::fs::read_to_string(table).ok())
        .flat_map(|table| listening(&table, port))
        .map(|inode| format!("socket:[{inode}]"))
        .collect();
    let holds = |pid: u32| {
        let descriptors = std::fs::read_dir(format!("/proc/{pid}/fd"))
            .into_iter()
            .flatten();
        descriptors
            .filter_map(|descriptor| std::fs::read_link(descriptor.ok()?.path()).ok())
            .any(|to: std::path::PathBuf| sockets.iter().any(|socket| Path::new(socket) == to))
    };
    if sockets.is_empty() {
        return None;
    }
    processes()
        .map(|(pid, _)| pid)
        .filter(|pid| holds(*pid))
        .min()
}

fn listening(table: &str, port: u16) -> Vec<String> {
    let port = format!(":{port:04X}");
    table
        .lines()
        .filter_map(|line| {
            let fields: Vec<&str> = line.split_whitespace().collect();
            // Local address, state (0A listens), inode.
            let (local, state, inode) = (fields.get(1)?, fields.get(3)?, fields.get(9)?);
            (local.ends_with(&port) && *state == "0A").then(|| (*inode).to_owned())
        })
        .collect()
}
