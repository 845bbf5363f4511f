//! `tower-inbox reconcile`: what can be seen of it from outside.

use std::process::ExitCode;

use serde_json::{Value, json};
use sqlx::Pool;
use tower_inbox::Backend;
use tower_inbox::clock::Timestamp;
use tower_inbox::operator::{Operator, State};
use tower_inbox::reconcile::{HttpReplays, KudosReplays, List, Query, ReplaySource};
use tower_inbox::reconcile::{Page, ReplayErrorKind};

use super::{Office, known};
use crate::cli::Global;
use crate::failure::Failure;
use crate::show::{self, Column, Progress, Shown, Table, ago, instant, moment, rfc3339, safe};

/// Pages that are looked through at most: a list that never ends, ends here.
const PAGES: usize = 1_000;
/// Events that are named; the counts have them all.
const NAMED: usize = 100;

/// What producers gave up, and what of it is missing here
///
/// Reconciling hands events over to a receiver's handler, which this command does not have: `Inbox::reconcile` in the
/// receiver, once or from time to time, does it. From here one sees how far it is (status), and which events of a producer's
/// list are not applied (missing), which is what a run would deal with.
#[derive(clap::Args)]
pub(crate) struct Given {
    #[command(subcommand)]
    command: Command,
}

#[derive(clap::Subcommand)]
enum Command {
    Status(Status),
    Missing(Missing),
}

/// How far the lists of each source have been dealt with, and when the database was another one than before
#[derive(clap::Args)]
struct Status {
    /// Of this source
    #[arg(long, value_name = "NAME")]
    source: Option<String>,
}

/// Asks a producer for its list, and says which of its events are not applied here; changes nothing
///
/// Exit status 1 if there are some, or if the list could not be read to its end.
#[derive(clap::Args)]
struct Missing {
    /// The name of the source
    source: String,
    /// Where the producer's list is: https://…
    #[arg(long)]
    url: String,
    /// The environment variable with the key to it
    #[arg(long, value_name = "NAME")]
    key_env: String,
    /// Kudos' delivery log, and not a list in this crate's own shape
    #[arg(long)]
    kudos: bool,
    /// Which list
    #[arg(long, value_enum, default_value = "exhausted")]
    list: Which,
    /// What came onto it since: RFC 3339, or how long ago, such as 2d
    #[arg(long, value_name = "TIME", value_parser = instant)]
    since: Option<Timestamp>,
    /// Events of this type
    #[arg(long = "type", value_name = "TYPE")]
    event_type: Option<String>,
}

#[derive(Clone, Copy, clap::ValueEnum)]
enum Which {
    /// What the producer has given up
    Exhausted,
    /// What it believes to have delivered
    Delivered,
}

pub(crate) async fn run<DB: Backend>(
    pool: Pool<DB>,
    global: &Global,
    given: Given,
) -> Result<ExitCode, Failure> {
    match given.command {
        Command::Status(given) => status(pool, global, &given).await,
        Command::Missing(given) => {
            let list = given.open()?;
            let office = Office::open(pool, global).await?;
            missing(&office.operator, global, &given, &*list).await
        }
    }
}

async fn status<DB: Backend>(
    pool: Pool<DB>,
    global: &Global,
    given: &Status,
) -> Result<ExitCode, Failure> {
    let office = Office::open(pool, global).await?;
    let operator = &office.operator;
    let mut lists = operator.reconciliations().await?;
    lists.retain(|list| {
        given
            .source
            .as_ref()
            .is_none_or(|name| *name == list.source)
    });
    if lists.is_empty() {
        known::source(operator, given.source.as_deref()).await?;
    }
    let incidents = operator.incidents().await?;
    let now = Timestamp::now();
    let mut table = Table::new(&[
        Column::text("SOURCE"),
        Column::new("LIST"),
        Column::number("FINISHED"),
        Column::new("DEALT WITH UP TO"),
        Column::new("STATE"),
        Column::new("HELD BACK BY ONE OF").optional(),
    ]);
    for list in &lists {
        let state = match (list.running_until, list.unfinished) {
            (Some(_), _) => "at work",
            (None, true) => "broken off",
            (None, false) => "",
        };
        table.row([
            list.source.clone(),
            list.list.as_str().to_owned(),
            list.finished_at
                .map_or("never".into(), |at| format!("{} ago", ago(at, now))),
            list.through.map(moment).unwrap_or_default(),
            state.to_owned(),
            list.held_back.map(moment).unwrap_or_default(),
        ]);
    }
    let mut text = if lists.is_empty() {
        "no list was ever gone through\n".to_owned()
    } else {
        table.render(show::width())
    };
    for incident in &incidents {
        let since = incident
            .since
            .map_or("a time that is not known".into(), moment);
        text.push_str(&format!(
            "{}: the database was another one, or an older copy; what was committed after {since} may be lost\n",
            moment(incident.found_at)
        ));
    }
    let lists = lists.iter().map(|list| {
        json!({
            "source": list.source,
            "list": list.list.as_str(),
            "through": list.through.map(rfc3339),
            "unfinished": list.unfinished,
            "held_back": list.held_back.map(rfc3339),
            "finished_at": list.finished_at.map(rfc3339),
            "running_until": list.running_until.map(rfc3339),
        })
    });
    let incidents = incidents.iter().map(|incident| {
        json!({"found_at": rfc3339(incident.found_at), "since": incident.since.map(rfc3339)})
    });
    let json = json!({
        "lists": lists.collect::<Value>(),
        "incidents": incidents.collect::<Value>(),
    });
    Shown { json, text }.print(global.json);
    office.close().await;
    Ok(ExitCode::SUCCESS)
}

impl Missing {
    fn open(&self) -> Result<Box<dyn ReplaySource>, Failure> {
        let key = std::env::var(&self.key_env)
            .map_err(|_| Failure::usage(format!("--key-env: {} is not set", self.key_env)))?;
        // The path is where a run would hand events over to; nothing is handed over here.
        Ok(if self.kudos {
            Box::new(KudosReplays::new(&self.url, &key, "/")?)
        } else {
            Box::new(HttpReplays::new(&self.url, &key)?.path("/")?)
        })
    }

    fn list(&self) -> List {
        match self.list {
            Which::Exhausted => List::Exhausted,
            Which::Delivered => List::Delivered,
        }
    }
}

/// What was found on a list.
#[derive(Default)]
struct Found {
    listed: u64,
    applied: u64,
    /// Decided otherwise: discarded, superseded, held by the fence.
    decided: u64,
    missing: u64,
    unreadable: u64,
    named: Vec<(String, Timestamp, &'static str)>,
}

async fn missing<DB: Backend>(
    operator: &Operator<DB>,
    global: &Global,
    given: &Missing,
    list: &dyn ReplaySource,
) -> Result<ExitCode, Failure> {
    let (mut found, mut page_name) = (Found::default(), None::<String>);
    let mut progress = Progress::new("looked at", None);
    let mut pages = 0;
    let whole = loop {
        if pages == PAGES {
            break false;
        }
        pages += 1;
        let query = Query::new(given.list())
            .since(given.since)
            .event_type(given.event_type.as_deref())
            .page(page_name.as_deref());
        let page = list.page(query).await.map_err(|error| match error.kind() {
            ReplayErrorKind::Unavailable => Failure::Away(error.to_string()),
            _ => Failure::refused(error.to_string()),
        })?;
        look(operator, &given.source, &page, &mut found, &mut progress).await?;
        if page.next.is_none() {
            break true;
        }
        if page.next == page_name {
            break false;
        }
        page_name = page.next;
    };
    drop(progress);
    shown(&found, given, whole).print(global.json);
    let fine = whole && found.missing == 0 && found.unreadable == 0;
    Ok(ExitCode::from(u8::from(!fine)))
}

async fn look<DB: Backend>(
    operator: &Operator<DB>,
    source: &str,
    page: &Page,
    found: &mut Found,
    progress: &mut Progress,
) -> Result<(), Failure> {
    found.unreadable += page.unreadable.len() as u64;
    for item in &page.items {
        found.listed += 1;
        progress.at(found.listed);
        let story = operator.inspect(source, &item.event_id).await?;
        let state = match story.map(|story| story.letter.state) {
            Some(State::Applied) => {
                found.applied += 1;
                continue;
            }
            Some(State::Discarded | State::Superseded | State::Fenced) => {
                found.decided += 1;
                continue;
            }
            Some(State::Parked) => "parked",
            Some(_) => "dead",
            None => "unknown",
        };
        found.missing += 1;
        if found.named.len() < NAMED {
            found.named.push((item.event_id.clone(), item.at, state));
        }
    }
    Ok(())
}

fn shown(found: &Found, given: &Missing, whole: bool) -> Shown {
    let mut table = Table::new(&[
        Column::text("EVENT"),
        Column::new("LISTED"),
        Column::new("HERE"),
    ]);
    for (id, at, state) in &found.named {
        table.row([id.clone(), moment(*at), (*state).to_owned()]);
    }
    let mut text = if found.named.is_empty() {
        String::new()
    } else {
        table.render(show::width())
    };
    text.push_str(&format!(
        "{} listed by the producer of {}: {} applied, {} decided otherwise, {} missing{}{}\n",
        found.listed,
        safe(&given.source),
        found.applied,
        found.decided,
        found.missing,
        match found.unreadable {
            0 => String::new(),
            n => format!(", {n} that cannot be read"),
        },
        if whole {
            ""
        } else {
            "; the list was not read to its end"
        },
    ));
    let named = found.named.iter();
    let named =
        named.map(|(id, at, state)| json!({"event_id": id, "at": rfc3339(*at), "state": state}));
    Shown {
        json: json!({
            "source": given.source,
            "list": given.list().as_str(),
            "listed": found.listed,
            "applied": found.applied,
            "decided": found.decided,
            "missing": found.missing,
            "unreadable": found.unreadable,
            "events": named.collect::<Value>(),
            "whole": whole,
        }),
        text,
    }
}
