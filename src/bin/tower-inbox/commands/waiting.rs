//! `tower-inbox events list --parked`: what waits, in a stream or in none.

use std::process::ExitCode;

use serde_json::{Value, json};
use sqlx::Pool;
use tower_inbox::Backend;
use tower_inbox::clock::Timestamp;
use tower_inbox::operator::{Operator, PageKey, Waiting};

use super::letter::{self, Letters};
use super::{Office, known, watch};
use crate::cli::{Global, Watch, rows};
use crate::failure::Failure;
use crate::show::{Shown, quoted};

/// Events that wait, by source and event id
///
/// Parked ones: behind a lower sequence, for the time of their next attempt, or for a receiver. `streams` has those that have a
/// place in a stream, stream by stream.
#[derive(clap::Args)]
pub(super) struct List {
    /// Those that are parked, which is all that there is a list of here: `dead list` has dead letters
    #[arg(long, required = true)]
    parked: bool,
    #[command(flatten)]
    which: Which,
    /// Events of one page
    #[arg(long, value_name = "ROWS", default_value = "50", value_parser = rows)]
    limit: usize,
    /// From here on: what the page before said
    #[arg(long, num_args = 2, value_names = ["SOURCE", "EVENT_ID"], allow_hyphen_values = true)]
    after: Vec<String>,
    #[command(flatten)]
    watch: Watch,
}

/// Which of what is parked.
#[derive(clap::Args)]
#[command(next_help_heading = "Which events")]
pub(super) struct Which {
    /// Of this source
    #[arg(long, value_name = "NAME")]
    source: Option<String>,
    /// Those alone that have no place in a stream
    #[arg(long)]
    no_stream: bool,
}

impl Which {
    pub(super) fn is_empty(&self) -> bool {
        self.source.is_none() && !self.no_stream
    }

    pub(super) fn source(&self) -> Option<&str> {
        self.source.as_deref()
    }

    pub(super) fn waiting(&self) -> Waiting {
        let which = match &self.source {
            Some(name) => Waiting::new().source(name),
            None => Waiting::new(),
        };
        match self.no_stream {
            true => which.in_no_stream(),
            false => which,
        }
    }
}

pub(super) async fn list<DB: Backend>(
    pool: Pool<DB>,
    global: &Global,
    given: &List,
) -> Result<ExitCode, Failure> {
    let office = Office::open(pool, global).await?;
    let operator = &office.operator;
    watch(&given.watch, global.json, async || {
        page(operator, given).await
    })
    .await?;
    office.close().await;
    Ok(ExitCode::SUCCESS)
}

async fn page<DB: Backend>(operator: &Operator<DB>, given: &List) -> Result<Shown, Failure> {
    let after = match given.after.as_slice() {
        [source, id] => Some(PageKey::new(source, id)),
        _ => None,
    };
    let page = operator
        .waiting(&given.which.waiting(), after.as_ref(), given.limit)
        .await?;
    if page.letters.is_empty() {
        known::source(operator, given.which.source()).await?;
    }
    let (mut table, now) = (Letters::waiting(), Timestamp::now());
    for letter in &page.letters {
        table.add(letter, now);
    }
    let mut text = match page.letters.is_empty() {
        true => "none\n".to_owned(),
        false => table.render(),
    };
    if let Some(next) = &page.next {
        let (source, id) = (quoted(&next.source), quoted(&next.event_id));
        text.push_str(&format!("more: --after {source} {id}\n"));
    }
    let events: Value = page.letters.iter().map(letter::any_json).collect();
    let next = page.next.as_ref();
    Ok(Shown {
        json: json!({
            "events": events,
            "next": next.map(|key| json!({"source": key.source, "event_id": key.event_id})),
        }),
        text,
    })
}
