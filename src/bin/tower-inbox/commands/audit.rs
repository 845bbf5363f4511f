//! `tower-inbox audit`.

use std::process::ExitCode;

use serde_json::{Value, json};
use sqlx::Pool;
use tower_inbox::Backend;
use tower_inbox::operator::{AuditEntry, AuditFilter};

use super::{Office, known};
use crate::cli::{Global, rows};
use crate::failure::Failure;
use crate::show::{self, Column, Shown, Table, moment, rfc3339};

/// What operators did and what the inbox refused, newest first
#[derive(clap::Args)]
pub(crate) struct Given {
    /// About this source
    #[arg(long, value_name = "NAME")]
    source: Option<String>,
    /// About this event of the source
    #[arg(long, value_name = "ID", requires = "source")]
    event: Option<String>,
    /// About this stream of the source, by its correlation id, and about its events
    #[arg(long, value_name = "ID", requires = "source", conflicts_with = "event")]
    correlation_id: Option<String>,
    /// What this operator did; `inbox` is what the inbox did by itself
    #[arg(long, value_name = "NAME")]
    by: Option<String>,
    /// Lines of one page
    #[arg(long, value_name = "ROWS", default_value = "50", value_parser = rows)]
    limit: usize,
    /// From here on: what the page before said
    #[arg(long, value_name = "ID")]
    before: Option<i64>,
}

pub(crate) async fn run<DB: Backend>(
    pool: Pool<DB>,
    global: &Global,
    given: &Given,
) -> Result<ExitCode, Failure> {
    let office = Office::open(pool, global).await?;
    let mut filter = match (&given.source, &given.event, &given.correlation_id) {
        (Some(source), Some(event), _) => AuditFilter::new().event(source, event),
        (Some(source), None, Some(id)) => AuditFilter::new().stream(source, id),
        (Some(source), None, None) => AuditFilter::new().source(source),
        (None, ..) => AuditFilter::new(),
    };
    if let Some(name) = &given.by {
        filter = filter.actor(name);
    }
    let page = office
        .operator
        .audit(&filter, given.before, given.limit)
        .await?;
    if page.entries.is_empty() {
        known::source(&office.operator, given.source.as_deref()).await?;
    }
    let mut table = Table::new(&[
        Column::new("AT"),
        Column::text("ACTOR"),
        Column::text("ACTION"),
        Column::text("SOURCE").optional(),
        Column::text("EVENT"),
        Column::text("CORRELATION").optional(),
        Column::text("DETAIL"),
    ]);
    for entry in &page.entries {
        table.row([
            moment(entry.at),
            entry.actor.clone(),
            entry.action.clone(),
            entry.source.clone(),
            entry.event_id.clone().unwrap_or_default(),
            entry.correlation_id.clone().unwrap_or_default(),
            entry.detail.clone(),
        ]);
    }
    let mut text = if page.entries.is_empty() {
        "none\n".to_owned()
    } else {
        table.render(show::width())
    };
    if let Some(next) = page.next {
        text.push_str(&format!("more: --before {next}\n"));
    }
    let entries: Value = page.entries.iter().map(json).collect();
    let shown = Shown {
        json: json!({"entries": entries, "next": page.next}),
        text,
    };
    shown.print(global.json);
    office.close().await;
    Ok(ExitCode::SUCCESS)
}

pub(crate) fn json(entry: &AuditEntry) -> Value {
    json!({
        "id": entry.id,
        "at": rfc3339(entry.at),
        "source": entry.source,
        "event_id": entry.event_id,
        "correlation_id": entry.correlation_id,
        "action": entry.action,
        "actor": entry.actor,
        "detail": entry.detail,
    })
}

pub(crate) fn sentence(entry: &AuditEntry) -> String {
    let (at, actor) = (moment(entry.at), &entry.actor);
    format!("{at} {actor}: {} ({})", entry.action, entry.detail)
}
