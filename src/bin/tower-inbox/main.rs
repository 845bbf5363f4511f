//! The command `tower-inbox`. One module for each subcommand: its `HELP`, and a `run` that gives the exit status.
//!
//! Exit status 2 is a wrong command line everywhere; what else there is, each subcommand says.

#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a command-line program"
)]

mod explain;

use std::process::ExitCode;

const HELP: &str = "\
tower-inbox: for operators of a webhook inbox

usage: tower-inbox <command> [options]

commands:
  explain   why a captured delivery verifies, or why not

`tower-inbox <command> --help` has the rest.
";

/// A wrong command line: what is wrong with it.
struct Usage(String);

impl<E: std::error::Error> From<E> for Usage {
    fn from(error: E) -> Self {
        Self(error.to_string())
    }
}

fn main() -> ExitCode {
    let mut arguments = lexopt::Parser::from_env();
    let run = match arguments.next() {
        Ok(Some(lexopt::Arg::Value(command))) => match command.to_str() {
            Some("explain") => explain::run(arguments),
            Some("help") => return help(),
            _ => Err(Usage(format!("no command {command:?}"))),
        },
        Ok(Some(lexopt::Arg::Short('h') | lexopt::Arg::Long("help"))) => return help(),
        Ok(Some(lexopt::Arg::Short('V') | lexopt::Arg::Long("version"))) => {
            println!("tower-inbox {}", env!("CARGO_PKG_VERSION"));
            return ExitCode::SUCCESS;
        }
        Ok(Some(other)) => Err(other.unexpected().into()),
        Ok(None) => Err(Usage("no command".into())),
        Err(error) => Err(error.into()),
    };
    run.unwrap_or_else(|Usage(what)| {
        eprintln!("tower-inbox: {what}; see --help");
        ExitCode::from(2)
    })
}

fn help() -> ExitCode {
    print!("{HELP}");
    ExitCode::SUCCESS
}
