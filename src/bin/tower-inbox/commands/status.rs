//! `tower-inbox status`.

use std::fmt::Write as _;
use std::process::ExitCode;

use serde_json::json;
use sqlx::Pool;
use tower_inbox::Backend;
use tower_inbox::clock::Timestamp;
use tower_inbox::operator::Operator;
use tower_inbox::stats::{Counts, SourceStats};

use super::letter::number;
use super::{Office, count, known, watch};
use crate::cli::{Global, Watch};
use crate::failure::Failure;
use crate::show::{self, Column, Shown, Table, ago, moment, safe, took};

/// From low to high, for the hours.
const BARS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];

/// Each source's last 24 hours, and what waits now
#[derive(clap::Args)]
pub(crate) struct Given {
    /// One source, with its event types, hours, dead letters by reason, and secrets
    #[arg(long, value_name = "NAME")]
    source: Option<String>,
    #[command(flatten)]
    watch: Watch,
}

pub(crate) async fn run<DB: Backend>(
    pool: Pool<DB>,
    global: &Global,
    given: &Given,
) -> Result<ExitCode, Failure> {
    let office = Office::open(pool, global).await?;
    let operator = &office.operator;
    let source = given.source.as_deref();
    watch(&given.watch, global.json, async || {
        look(operator, source).await
    })
    .await?;
    office.close().await;
    Ok(ExitCode::SUCCESS)
}

async fn look<DB: Backend>(
    operator: &Operator<DB>,
    source: Option<&str>,
) -> Result<Shown, Failure> {
    let mut stats = operator.stats().await?;
    if let Some(name) = source {
        stats.sources.retain(|stats| stats.source == name);
        if stats.sources.is_empty() {
            known::source(operator, source).await?;
        }
    }
    let text = match (source, stats.sources.as_slice()) {
        (Some(_), []) => "nothing was delivered in 24 hours, and nothing waits\n".to_owned(),
        (None, []) => "nothing was delivered yet\n".to_owned(),
        (Some(_), [one]) => whole(one, stats.at),
        (_, all) => overview(all, stats.at),
    };
    let json = serde_json::to_value(&stats).unwrap_or_else(|_| json!({}));
    Ok(Shown { json, text })
}

fn overview(sources: &[SourceStats], now: Timestamp) -> String {
    let mut table = Table::new(&[
        Column::text("SOURCE"),
        Column::number("PARKED"),
        Column::number("OLDEST"),
        Column::number("GAPS"),
        Column::number("DEAD"),
        Column::number("LAG"),
        Column::number("24 H"),
        Column::number("OK"),
        Column::number("FAILED"),
        Column::number("P95").optional(),
        Column::number("LAST 5XX").optional(),
        Column::number("REFUSED").optional(),
        Column::number("LEASES").optional(),
        Column::number("ROWS").optional(),
    ]);
    for source in sources {
        let counts = &source.counts;
        table.row([
            source.source.clone(),
            source.parked.to_string(),
            source
                .oldest_parked
                .map(|at| ago(at, now))
                .unwrap_or_default(),
            source.gaps.to_string(),
            dead(source).to_string(),
            source.drain_lag.map(took).unwrap_or_default(),
            counts.total.to_string(),
            counts.success_percent().unwrap_or_default(),
            counts.failed.to_string(),
            counts.p95.map(took).unwrap_or_default(),
            counts.last_5xx.map(|at| ago(at, now)).unwrap_or_default(),
            source.refused.to_string(),
            source.leases.to_string(),
            number(source.rows),
        ]);
    }
    table.render(show::width())
}

fn dead(source: &SourceStats) -> u64 {
    source.dead_letters.values().sum()
}

fn whole(source: &SourceStats, now: Timestamp) -> String {
    let mut out = String::new();
    let mut line = |name: &str, text: &str| {
        let _ = writeln!(out, "{name:<14}{text}");
    };
    let counts = &source.counts;
    line("source", &safe(&source.source));
    let oldest = source.oldest_parked;
    let oldest = oldest.map(|at| format!(", the oldest for {}", ago(at, now)));
    line(
        "parked",
        &format!("{}{}", source.parked, oldest.unwrap_or_default()),
    );
    let gaps = count(source.gaps, "stream");
    line(
        "gaps",
        &format!("{gaps} behind a sequence that has not come"),
    );
    line("dead letters", &dead(source).to_string());
    for (reason, letters) in source
        .dead_letters
        .iter()
        .filter(|(_, letters)| **letters > 0)
    {
        line("", &format!("{letters} {reason}"));
    }
    let lag = source.drain_lag.map_or("nothing is due".into(), |lag| {
        format!("the oldest due event has been so for {}", took(lag))
    });
    line("drain", &lag);
    line("leases", &source.leases.to_string());
    let counted = source.rows_at;
    let counted = counted.map(|at| format!(", counted {} ago", ago(at, now)));
    let rows = source
        .rows
        .map_or("not counted yet".into(), |rows| rows.to_string());
    line("rows", &(rows + &counted.unwrap_or_default()));
    line("refused", &format!("{} at the door", source.refused));
    for secret in &source.secrets {
        let at = ago(secret.last_verified, now);
        line(
            "secret",
            &format!("{}, last verified {at} ago", safe(&secret.label)),
        );
    }
    let reconciled = source.reconciled_at;
    line(
        "reconciled",
        &reconciled.map_or("never".into(), |at| format!("{} ago", ago(at, now))),
    );
    line("hours", &hours(source));
    out.push('\n');
    out.push_str(&types(source, counts, now));
    out
}

/// Deliveries an hour, the present one last.
fn hours(source: &SourceStats) -> String {
    let most = source
        .slots
        .iter()
        .map(|slot| slot.total)
        .max()
        .unwrap_or(0);
    let bars = source.slots.iter().map(|slot| {
        let step = (slot.total * 7).div_ceil(most.max(1));
        BARS[usize::try_from(step).unwrap_or(7).min(7)]
    });
    let bars: String = bars.collect();
    let since = source.slots.first().map(|slot| moment(slot.at));
    format!(
        "{bars} since {}, at most {most} an hour",
        since.unwrap_or_default()
    )
}

fn types(source: &SourceStats, counts: &Counts, now: Timestamp) -> String {
    let mut table = Table::new(&[
        Column::text("EVENT TYPE"),
        Column::number("24 H"),
        Column::number("DELIVERED"),
        Column::number("DUPLICATES"),
        Column::number("PARKED"),
        Column::number("DISCARDED"),
        Column::number("FAILED"),
        Column::number("OK"),
        Column::number("P95").optional(),
        Column::number("P99").optional(),
        Column::number("LAST 5XX").optional(),
    ]);
    let mut row = |name: &str, counts: &Counts| {
        table.row([
            name.to_owned(),
            counts.total.to_string(),
            counts.delivered.to_string(),
            counts.duplicates.to_string(),
            counts.parked.to_string(),
            counts.discarded.to_string(),
            counts.failed.to_string(),
            counts.success_percent().unwrap_or_default(),
            counts.p95.map(took).unwrap_or_default(),
            counts.p99.map(took).unwrap_or_default(),
            counts.last_5xx.map(|at| ago(at, now)).unwrap_or_default(),
        ]);
    };
    for of_type in &source.types {
        row(
            of_type.event_type.as_deref().unwrap_or("-"),
            &of_type.counts,
        );
    }
    row("(all)", counts);
    table.render(show::width())
}
