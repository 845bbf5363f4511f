//! `tower-inbox migrate`.

use std::process::ExitCode;

use serde_json::json;
use sqlx::Pool;
use tower_inbox::{Backend, SchemaVersion};

use super::{builder, count};
use crate::cli::Global;
use crate::failure::Failure;
use crate::show::{self, Column, Shown, Table};
use crate::warnings;

/// Brings the inbox's tables up to date
///
/// Safe to repeat, and beside receivers of this version and of the one before. A receiver does the same at its start unless it
/// is told not to. One that was broken off is taken up again. Where a transaction has a table locked, it is tried for a minute.
#[derive(clap::Args)]
pub(crate) struct Given {
    /// Says which versions would be brought, and changes nothing
    #[arg(long)]
    pub(crate) dry_run: bool,
}

pub(crate) async fn run<DB: Backend>(
    pool: Pool<DB>,
    global: &Global,
    given: &Given,
) -> Result<ExitCode, Failure> {
    let before = builder(pool.clone(), global).schema().await?;
    let missing: Vec<_> = before
        .into_iter()
        .filter(|version| !version.applied)
        .collect();
    if !given.dry_run && !missing.is_empty() {
        builder(pool, global).migrate(true).build().await?;
        for warning in warnings::take() {
            show::say(&format!("warning: {warning}"));
        }
    }
    shown(&missing, given.dry_run).print(global.json);
    Ok(ExitCode::SUCCESS)
}

fn shown(missing: &[SchemaVersion], dry_run: bool) -> Shown {
    let versions: Vec<_> = missing
        .iter()
        .map(|version| json!({"number": version.number, "name": version.name}))
        .collect();
    let mut table = Table::new(&[Column::number("VERSION"), Column::new("NAME")]);
    for version in missing {
        let name = version.name.unwrap_or_default();
        table.row([version.number.to_string(), name.to_owned()]);
    }
    let number = count(missing.len() as u64, "version");
    let text = match (missing.is_empty(), dry_run) {
        (true, _) => "the tables are up to date\n".to_owned(),
        (false, true) => format!("{}{number} would be brought\n", table.render(show::width())),
        (false, false) => format!("{}{number} brought\n", table.render(show::width())),
    };
    Shown {
        json: json!({"dry_run": dry_run, "versions": versions}),
        text,
    }
}
