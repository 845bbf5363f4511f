//! What cannot be undone is asked about.

use std::io::{self, BufRead as _, IsTerminal as _, Write as _};

use crate::failure::Failure;
use crate::show::safe_lines;

/// How somebody says that it is meant.
#[derive(clap::Args, Debug)]
pub(crate) struct Confirmation {
    /// Does it without asking: for scripts
    #[arg(long, short = 'y')]
    yes: bool,
    /// Shows what would be done, and changes nothing
    #[arg(long)]
    pub(crate) dry_run: bool,
}

impl Confirmation {
    /// Before anything is looked at: whether it can be asked for at all.
    pub(crate) fn can_be_given(&self) -> Result<(), Failure> {
        let terminal = || io::stdin().is_terminal() && io::stderr().is_terminal();
        if self.yes || self.dry_run || terminal() {
            return Ok(());
        }
        Err(Failure::usage(
            "this cannot be undone, and there is no terminal to ask on: look with --dry-run, then say --yes",
        ))
    }

    /// Asks, unless it is said already.
    pub(crate) fn ask(&self, what: &str) -> Result<(), Failure> {
        if self.yes {
            return Ok(());
        }
        self.can_be_given()?;
        let mut err = io::stderr().lock();
        let _ = write!(
            err,
            "{}\nThis cannot be undone. Go on? [y/N] ",
            safe_lines(what)
        );
        let _ = err.flush();
        let mut answer = String::new();
        let read = io::stdin().lock().read_line(&mut answer);
        let said = matches!(answer.trim().to_lowercase().as_str(), "y" | "yes");
        if read.is_ok() && said {
            return Ok(());
        }
        Err(Failure::refused("nothing was done"))
    }
}
