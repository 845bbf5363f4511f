//! `tower-inbox streams`.

use std::process::ExitCode;

use serde_json::{Value, json};
use sqlx::Pool;
use tower_inbox::Backend;
use tower_inbox::clock::Timestamp;
use tower_inbox::operator::{Operator, Reason, StreamKey, StreamPage, WaitingStream};

use super::letter::number;
use super::{Office, known, stream, watch};
use crate::cli::{Global, Watch, rows};
use crate::failure::Failure;
use crate::show::{self, Column, Shown, Table, ago, rfc3339, took};

/// Streams that wait: behind what, how much, since when
#[derive(clap::Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct Given {
    #[command(subcommand)]
    command: Option<Command>,
    #[command(flatten)]
    list: List,
}

#[derive(clap::Args)]
struct List {
    /// Of this source
    #[arg(long, value_name = "NAME")]
    source: Option<String>,
    /// Streams of one page
    #[arg(long, value_name = "ROWS", default_value = "50", value_parser = rows)]
    limit: usize,
    /// From here on: what the page before said
    #[arg(long, num_args = 2, value_names = ["SOURCE", "CORRELATION_ID"], allow_hyphen_values = true)]
    after: Vec<String>,
    #[command(flatten)]
    watch: Watch,
}

#[derive(clap::Subcommand)]
enum Command {
    Show(Show),
}

/// Where one stream stands, what it waits for, and what is stored behind that
#[derive(clap::Args)]
struct Show {
    /// The name of its source
    source: String,
    /// Its correlation id
    correlation_id: String,
    /// Stored events from this sequence on
    #[arg(long, value_name = "SEQUENCE")]
    from: Option<i64>,
    /// Stored events of one page
    #[arg(long, value_name = "ROWS", default_value = "50", value_parser = rows)]
    limit: usize,
    #[command(flatten)]
    watch: Watch,
}

pub(crate) async fn run<DB: Backend>(
    pool: Pool<DB>,
    global: &Global,
    given: Given,
) -> Result<ExitCode, Failure> {
    let office = Office::open(pool, global).await?;
    let operator = &office.operator;
    match given.command {
        None => {
            let list = &given.list;
            watch(&list.watch, global.json, async || {
                one_page(operator, list).await
            })
            .await?;
        }
        Some(Command::Show(given)) => {
            watch(&given.watch, global.json, async || {
                one(operator, &given).await
            })
            .await?;
        }
    }
    office.close().await;
    Ok(ExitCode::SUCCESS)
}

async fn one_page<DB: Backend>(operator: &Operator<DB>, list: &List) -> Result<Shown, Failure> {
    let after = match list.after.as_slice() {
        [source, id] => Some(StreamKey::new(source, id)),
        _ => None,
    };
    let source = list.source.as_deref();
    let page = operator.streams(source, after.as_ref(), list.limit).await?;
    if page.streams.is_empty() {
        known::source(operator, source).await?;
    }
    Ok(shown(&page))
}

fn shown(page: &StreamPage) -> Shown {
    let now = Timestamp::now();
    let mut table = Table::new(&[
        Column::text("SOURCE"),
        Column::text("CORRELATION"),
        Column::number("WAITS FOR"),
        Column::text("WHICH IS"),
        Column::number("PARKED"),
        Column::number("DEAD"),
        Column::number("STORED").optional(),
        Column::number("SINCE"),
        Column::number("GEN").optional(),
    ]);
    for stream in &page.streams {
        table.row([
            stream.source.clone(),
            stream.correlation_id.clone(),
            stream
                .next
                .map_or("its first".into(), |next| next.to_string()),
            standing(stream, now),
            stream.parked.to_string(),
            stream.dead.to_string(),
            stored(stream),
            ago(stream.oldest, now),
            stream.generation.to_string(),
        ]);
    }
    let mut text = if page.streams.is_empty() {
        "no stream waits\n".to_owned()
    } else {
        table.render(show::width())
    };
    if let Some(next) = &page.next {
        let (source, id) = (
            show::quoted(&next.source),
            show::quoted(&next.correlation_id),
        );
        text.push_str(&format!("more: --after {source} {id}\n"));
    }
    let next = page.next.as_ref();
    Shown {
        json: json!({
            "streams": page.streams.iter().map(waiting_json).collect::<Value>(),
            "next": next.map(|key| json!({"source": key.source, "correlation_id": key.correlation_id})),
        }),
        text,
    }
}

/// What keeps it waiting.
fn standing(stream: &WaitingStream, now: Timestamp) -> String {
    let Some(head) = &stream.head else {
        return if stream.next.is_some_and(|next| next < 0) {
            "settling".into()
        } else {
            "missing".into()
        };
    };
    let status = head
        .last_status
        .map_or_else(String::new, |status| format!(" ({status})"));
    match head.reason {
        Some(reason) => format!("dead: {}{status}", reason.as_str()),
        None if head.attempts == 0 && head.not_before > now => format!(
            "put off, again in {}",
            took(head.not_before.since(now).as_secs_f64())
        ),
        None if head.attempts == 0 => "due".into(),
        None if head.not_before > now => format!(
            "tried {}{status}, again in {}",
            times(head.attempts),
            took(head.not_before.since(now).as_secs_f64())
        ),
        None => format!("tried {}{status}, due", times(head.attempts)),
    }
}

fn times(attempts: i64) -> String {
    if attempts == 1 {
        "once".into()
    } else {
        format!("{attempts} times")
    }
}

fn stored(stream: &WaitingStream) -> String {
    if stream.first == stream.last {
        return number(Some(stream.first));
    }
    format!("{}-{}", stream.first, stream.last)
}

fn waiting_json(stream: &WaitingStream) -> Value {
    json!({
        "source": stream.source,
        "correlation_id": stream.correlation_id,
        "generation": stream.generation,
        "next": stream.next,
        "first": stream.first,
        "last": stream.last,
        "parked": stream.parked,
        "dead": stream.dead,
        "oldest": rfc3339(stream.oldest),
        "head": stream.head.as_ref().map(|head| json!({
            "reason": head.reason.map(Reason::as_str),
            "attempts": head.attempts,
            "last_status": head.last_status,
            // A dead letter has no next attempt.
            "not_before": head.reason.is_none().then(|| rfc3339(head.not_before)),
        })),
    })
}

async fn one<DB: Backend>(operator: &Operator<DB>, given: &Show) -> Result<Shown, Failure> {
    let (source, id) = (&given.source, &given.correlation_id);
    let view = operator.stream(source, id, given.from, given.limit).await?;
    let view = known::stream(operator, view, source, id).await?;
    let strip = stream::strip(&view, given.from);
    let mut json = stream::info_json(&view.info);
    json["source"] = source.as_str().into();
    json["correlation_id"] = id.as_str().into();
    json["strip"] = stream::strip_json(&strip);
    json["events"] = view.events.iter().map(stream::event_json).collect();
    json["more"] = view.more.into();
    let mut text = format!(
        "{} of {} {}\n{}\n",
        show::safe(id),
        show::safe(source),
        stream::stands(&view.info),
        stream::strip_text(&view.info, given.from, &strip)
    );
    if !view.events.is_empty() {
        text.push('\n');
        text.push_str(&stream::events_table(&view));
    }
    if let Some(last) = view.events.last().filter(|_| view.more) {
        text.push_str(&format!(
            "more: --from {}\n",
            last.sequence.saturating_add(1)
        ));
    }
    Ok(Shown { json, text })
}
