//! The command `tower-inbox`: what an operator does from a terminal or a script.
//!
//! `cli` has the command line, `commands` one module for each command that talks to the database; `explain` and `send` need
//! none. Whatever somebody else wrote (ids, errors, headers) goes through `show`, which makes it harmless for a terminal.

#![cfg_attr(
    not(any(feature = "sqlite", feature = "postgres", feature = "mysql")),
    allow(
        dead_code,
        unused_imports,
        unused_variables,
        reason = "without a database most commands can only say so"
    )
)]

mod cli;
mod commands;
mod confirm;
mod database;
mod explain;
mod failure;
mod interrupt;
mod secrets;
mod send;
mod show;
mod warnings;

use std::process::ExitCode;

use clap::{CommandFactory as _, Parser as _};

use self::cli::{Cli, Command};
use self::failure::Failure;

fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        // The help is one of these, too.
        Err(error) => {
            let text = database::without_passwords(&error.render().to_string());
            if error.use_stderr() {
                eprint(&text);
            } else {
                show::print(&text);
            }
            return ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(2));
        }
    };
    let status = run(cli).unwrap_or_else(|failure| {
        show::say(&failure.to_string());
        failure.status()
    });
    match show::what_was_lost() {
        // It is done all the same, but a script must not take half of its report for the whole.
        Some(error) => {
            show::say(&format!("standard output could not be written: {error}"));
            ExitCode::from(1)
        }
        None => status,
    }
}

/// As it is: what was typed may be shown again.
fn eprint(text: &str) {
    use std::io::Write as _;
    let _ = std::io::stderr().write_all(show::safe_lines(text).as_bytes());
}

fn run(Cli { global, command }: Cli) -> Result<ExitCode, Failure> {
    match command {
        Command::Explain(given) => explain::run(given, global.json),
        Command::Completions { shell } => {
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut Cli::command(), "tower-inbox", &mut script);
            let mut script = String::from_utf8_lossy(&script).into_owned();
            if shell == clap_complete::Shell::Bash {
                // The generator takes the hyphen of the command's name for the border to a subcommand, in one place of two, so
                // that nothing behind a subcommand was completed.
                script = script.replace("tower__subcmd__inbox", "tower__inbox");
            }
            show::print(&script);
            Ok(ExitCode::SUCCESS)
        }
        Command::Send(given) => wait_for(send::run(given, global.json)),
        Command::Database(command) => {
            let url = database::url(&global);
            let (url, of_url) = match url {
                Ok(url) => (Some(url), Ok(())),
                Err(failure) => (None, Err(failure)),
            };
            Failure::all_of([command.check(&global), of_url])?;
            warnings::listen();
            let Some(url) = url else {
                return Err(Failure::usage("no database"));
            };
            let no_file = command.of_no_file();
            wait_for(async move {
                database::on_database!(url, no_file, |pool| commands::run(pool, &global, command)
                    .await)
            })
        }
    }
}

fn wait_for(work: impl Future<Output = Result<ExitCode, Failure>>) -> Result<ExitCode, Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| Failure::Away(format!("no runtime: {error}")))?;
    runtime.block_on(work)
}
