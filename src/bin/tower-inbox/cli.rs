//! The command line.

use std::time::Duration;

use clap::{Args, Parser, Subcommand};
use clap_complete::Shell;

use crate::commands::{
    audit, check, cursor, dead, events, migrate, purge, reconcile, skip, status, streams,
};
use crate::database::NoFile;
use crate::failure::{Failure, STATUSES};
use crate::{explain, send};

/// For operators of a webhook inbox: see what waits, behind what, since when, and free it safely
///
/// The commands talk to the database of the receivers (DATABASE_URL), not to a receiver, and none of them applies an event:
/// that is the receivers' part. What changes something names its actor and a reason, which go into the audit table, and is
/// safe to repeat and in a race with workers, deliveries and other operators.
#[derive(Parser)]
#[command(name = "tower-inbox", version, after_help = STATUSES, subcommand_required = true)]
#[command(disable_help_subcommand = false, infer_subcommands = false)]
pub(crate) struct Cli {
    #[command(flatten)]
    pub(crate) global: Global,
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Args)]
#[command(next_help_heading = "Options of every command")]
pub(crate) struct Global {
    /// The database, in place of the environment variable DATABASE_URL, which other users of the machine cannot see:
    /// sqlite:, postgres:, postgresql:, mysql: or mariadb:
    #[arg(long, global = true, value_name = "URL")]
    pub(crate) database_url: Option<String>,
    /// What the names of the inbox's tables begin with
    #[arg(
        long,
        global = true,
        value_name = "PREFIX",
        default_value = "tower_inbox_"
    )]
    pub(crate) table_prefix: String,
    /// Who acts, for the audit table: or TOWER_INBOX_ACTOR, or USER, LOGNAME or USERNAME, which containers and cron do not set
    #[arg(long, global = true, value_name = "NAME")]
    pub(crate) actor: Option<String>,
    /// Prints JSON, one value on a line, for scripts
    #[arg(long, global = true)]
    pub(crate) json: bool,
}

impl Global {
    /// The name for the audit table.
    pub(crate) fn actor(&self) -> Result<String, Failure> {
        let variable = |name: &str| std::env::var(name).ok().filter(|text| !text.is_empty());
        self.actor
            .clone()
            .or_else(|| variable("TOWER_INBOX_ACTOR"))
            .or_else(|| variable("USER"))
            .or_else(|| variable("LOGNAME"))
            .or_else(|| variable("USERNAME"))
            .ok_or_else(|| {
                Failure::usage(
                    "nobody to name in the audit table: give --actor, or set TOWER_INBOX_ACTOR",
                )
            })
    }
}

#[derive(Subcommand)]
pub(crate) enum Command {
    #[command(flatten)]
    Database(DatabaseCommand),
    Explain(explain::Given),
    Send(send::Given),
    /// Prints a script that completes this command line
    ///
    /// bash: tower-inbox completions bash > ~/.local/share/bash-completion/completions/tower-inbox; zsh: … > a directory of
    /// $fpath as _tower-inbox; fish: … > ~/.config/fish/completions/tower-inbox.fish
    Completions {
        /// Which shell
        shell: Shell,
    },
}

#[derive(Subcommand)]
pub(crate) enum DatabaseCommand {
    Migrate(migrate::Given),
    Check(check::Given),
    Status(status::Given),
    Streams(streams::Given),
    Events(events::Given),
    Dead(dead::Given),
    Skip(skip::Given),
    Cursor(cursor::Given),
    Purge(purge::Given),
    Reconcile(reconcile::Given),
    Audit(audit::Given),
}

impl DatabaseCommand {
    /// What can be said before anything is asked.
    pub(crate) fn check(&self, global: &Global) -> Result<(), Failure> {
        match self {
            Self::Dead(given) => given.check(global),
            Self::Events(given) => given.check(global),
            Self::Skip(given) => given.check(global),
            Self::Cursor(given) => given.check(global),
            Self::Purge(given) => given.check(),
            _ => Ok(()),
        }
    }

    /// What is done about a database file that is not there.
    pub(crate) fn of_no_file(&self) -> NoFile {
        match self {
            Self::Migrate(given) if given.dry_run => NoFile::Pretend,
            Self::Migrate(_) => NoFile::Make,
            _ => NoFile::Refuse,
        }
    }
}

/// Looking again and again.
#[derive(Args, Debug)]
pub(crate) struct Watch {
    /// Looks again every so many seconds, until it is interrupted
    #[arg(long, value_name = "SECONDS", num_args = 0..=1, default_missing_value = "2", value_parser = pause)]
    pub(crate) watch: Option<Duration>,
}

fn pause(text: &str) -> Result<Duration, String> {
    let seconds: f64 = text
        .parse()
        .map_err(|_| "not a number of seconds".to_owned())?;
    if !(0.1..=86_400.0).contains(&seconds) {
        return Err("from 0.1 to 86400 seconds".into());
    }
    Ok(Duration::from_secs_f64(seconds))
}

/// Rows of a page.
pub(crate) fn rows(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(rows @ 1..=1_000) => Ok(rows),
        _ => Err("from 1 to 1000".into()),
    }
}

/// Why something is done.
#[derive(Args, Debug)]
pub(crate) struct Why {
    /// Why, for the audit table
    #[arg(long, value_name = "TEXT")]
    reason: Option<String>,
}

impl Why {
    pub(crate) fn given(&self) -> Result<&str, Failure> {
        let reason = self.reason.as_deref();
        let reason = reason.filter(|reason| !reason.trim().is_empty());
        reason.ok_or_else(|| Failure::usage("no reason for the audit table: give --reason"))
    }

    /// Who acts names himself and says why; nobody does for a dry run.
    pub(crate) fn check(&self, global: &Global, dry_run: bool) -> Result<(), Failure> {
        if dry_run {
            return Ok(());
        }
        Failure::all_of([self.given().map(drop), global.actor().map(drop)])
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    #[test]
    fn the_command_line_is_sound_and_every_command_has_its_help() {
        Cli::command().debug_assert();
        fn look(command: &clap::Command) {
            assert!(command.get_about().is_some(), "{}", command.get_name());
            for argument in command.get_arguments() {
                let name = argument.get_id();
                assert!(
                    argument.get_help().is_some(),
                    "{} {name}",
                    command.get_name()
                );
            }
            command.get_subcommands().for_each(look);
        }
        look(&Cli::command());
    }

    #[test]
    fn pauses() {
        assert_eq!(pause("0.5"), Ok(Duration::from_millis(500)));
        for wrong in ["", "0", "-1", "NaN", "inf", "1e9", "x"] {
            assert!(pause(wrong).is_err(), "{wrong}");
        }
    }
}
