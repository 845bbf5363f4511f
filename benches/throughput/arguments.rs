//! The command line.

use std::path::PathBuf;
use std::time::Duration;

pub(crate) struct Arguments {
    pub(crate) list: bool,
    pub(crate) only: Vec<String>,
    /// A file with two marker lines, between which the results go.
    pub(crate) write: Option<PathBuf>,
    pub(crate) plan: Plan,
}

/// How long it takes.
pub(crate) struct Plan {
    pub(crate) name: &'static str,
    pub(crate) quick: bool,
    pub(crate) rounds: usize,
    /// Before a slice counts.
    pub(crate) warm: Duration,
    pub(crate) slice: Duration,
}

const FULL: Plan = Plan {
    name: "full",
    quick: false,
    rounds: 7,
    warm: Duration::from_millis(1_000),
    slice: Duration::from_millis(5_000),
};
const QUICK: Plan = Plan {
    name: "quick",
    quick: true,
    rounds: 3,
    warm: Duration::from_millis(500),
    slice: Duration::from_millis(1_500),
};
/// `cargo test --benches` wants to know whether it works, not how fast.
const WORKS: Plan = Plan {
    name: "works",
    quick: true,
    rounds: 1,
    warm: Duration::from_millis(50),
    slice: Duration::from_millis(200),
};
/// What is run then: no server is started for it.
const WORKS_NAME: &str = "sqlite_unique_vs_handwritten";

pub(crate) fn read(arguments: &[String]) -> Arguments {
    let mut read = Arguments {
        list: false,
        only: Vec::new(),
        write: None,
        plan: FULL,
    };
    let (mut quick, mut bench) = (false, false);
    let mut rest = arguments.iter();
    while let Some(argument) = rest.next() {
        match argument.as_str() {
            "--list" => read.list = true,
            "--quick" => quick = true,
            // cargo's own.
            "--bench" => bench = true,
            "--only" => match rest.next() {
                Some(name) => read.only.push(name.clone()),
                None => stop("--only needs a name; --list has them"),
            },
            "--write" => match rest.next() {
                Some(file) => read.write = Some(file.into()),
                None => stop("--write needs a file"),
            },
            other => stop(&format!(
                "what is {other}? --list, --only NAME, --quick, --write FILE"
            )),
        }
    }
    if !bench {
        read.plan = WORKS;
        if read.only.is_empty() {
            read.only.push(WORKS_NAME.into());
        }
    } else if quick {
        read.plan = QUICK;
    }
    read
}

/// Ends with a message, as a mistake in the command line does.
pub(crate) fn stop(message: &str) -> ! {
    eprintln!("throughput: {message}");
    std::process::exit(2)
}
