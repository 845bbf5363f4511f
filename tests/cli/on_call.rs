//! docs/on-call.md: a newcomer's first incident, command by command as it stands there.

use std::collections::BTreeMap;
use std::process::{Command, Stdio};

use crate::support::database::{Database, Kind};
use crate::support::receiver::Setup;
use crate::support::{Directory, wait_until};

const PAGE: &str = include_str!("../../docs/on-call.md");
/// Of the page's own functions: what stands for the built command, and where the receiver is.
const COMMAND: &str = "cargo run -q --features cli --bin tower-inbox --";
const ADDRESS: &str = "http://127.0.0.1:3000";
const DATABASE: &str = "sqlite://drill.db";

/// The shell's blocks of the drill.
fn blocks() -> Vec<&'static str> {
    let (_, drill) = PAGE.split_once("\n## The drill\n").expect("a drill");
    let (drill, _) = drill.split_once("\n## ").expect("it ends");
    let blocks = drill.split("```sh\n").skip(1);
    let blocks = blocks.map(|block| block.split("```").next().expect("it ends"));
    blocks.collect()
}

/// What a block exports.
fn exported(block: &str) -> BTreeMap<&str, &str> {
    let lines = block
        .lines()
        .filter_map(|line| line.strip_prefix("export "));
    let pairs = lines.flat_map(|line| line.split(' ').filter_map(|pair| pair.split_once('=')));
    pairs
        .map(|(name, value)| (name, value.trim_matches('\'')))
        .collect()
}

/// It is done by a shell as it is written; what each line shows must stand behind it. What only looks is looked at again,
/// since a person is slower than a worker.
#[test]
fn the_drill_of_the_page_goes_as_it_is_written() {
    let blocks = blocks();
    let [receiver, functions, steps @ ..] = &blocks[..] else {
        panic!("the drill has two terminals")
    };
    let directory = Directory::new();
    let mut setup = Setup::with(Database::new(Kind::Sqlite, directory.path()), directory);
    for (name, value) in exported(receiver) {
        if name != "DATABASE_URL" {
            setup = setup.set(name, value);
        }
    }
    let database = setup.database.url().to_owned();
    let receiver = setup.start();
    for (text, there) in [(COMMAND, 1), (ADDRESS, 1), (DATABASE, 1)] {
        assert_eq!(functions.matches(text).count(), there, "{text}");
    }
    let functions = functions
        .replace(COMMAND, env!("CARGO_BIN_EXE_tower-inbox"))
        .replace(ADDRESS, &format!("http://{}", receiver.address))
        .replace(DATABASE, &format!("'{database}'"));
    let run = |line: &str| {
        let output = Command::new("bash")
            .args(["-c", &format!("{functions}\n{line}")])
            .env("USER", "ada")
            .stdin(Stdio::null())
            .output()
            .expect("bash runs");
        [output.stdout, output.stderr].concat()
    };
    let mut done = 0;
    for line in steps.iter().flat_map(|block| block.lines()) {
        let (command, shows) = line.split_once("  # ").expect("what it shows");
        let looks = ["check", "streams", "events show", "dead show", "audit"];
        let looks = looks
            .iter()
            .any(|what| command.starts_with(&format!("inbox {what}")));
        let mut said = String::new();
        let mut is_shown = || {
            said = String::from_utf8(run(command)).expect("UTF-8");
            said.contains(shows) && (shows != "in order" || !said.contains("not in order"))
        };
        if looks {
            wait_until(&format!("{command} shows {shows:?}"), is_shown);
        } else {
            assert!(is_shown(), "{command} shows no {shows:?}: {said}");
        }
        done += 1;
    }
    assert!(done >= 20, "the drill was not found: {done} commands");
    let (balance, _) = receiver.ledger("acct-7");
    assert_eq!(balance, 10 + 20 + 30 + 50 + 60 + 70);
}

/// What the page says elsewhere can be typed: every command and option is known.
#[test]
fn every_command_that_the_page_names_is_there() {
    let mut found = 0;
    for text in PAGE
        .split('`')
        .filter(|text| text.starts_with("tower-inbox "))
    {
        // Subcommands are small, options begin with hyphens; the rest stands for somebody's own.
        let words = text.split_whitespace().skip(1);
        let small = words
            .clone()
            .take_while(|word| word.chars().all(|c| c.is_ascii_lowercase() || c == '-'))
            .take_while(|word| !word.starts_with("--"));
        let commands: Vec<_> = small.collect();
        let help = Command::new(env!("CARGO_BIN_EXE_tower-inbox"))
            .args(&commands)
            .arg("--help")
            .output()
            .expect("the built command");
        let said = String::from_utf8_lossy(&help.stdout).into_owned();
        assert!(help.status.success(), "{text}: {help:?}");
        for option in words.filter(|word| word.starts_with("--")) {
            assert!(said.contains(option), "{text}: no {option}");
        }
        found += 1;
    }
    assert!(found >= 20, "the commands were not found: {found}");
}
