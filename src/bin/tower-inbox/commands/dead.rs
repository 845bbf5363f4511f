//! `tower-inbox dead`: dead letters, one or many.

use std::num::NonZeroU32;
use std::process::ExitCode;
use std::time::Duration;

use serde_json::json;
use sqlx::Pool;
use tower_inbox::Backend;
use tower_inbox::clock::Timestamp;
use tower_inbox::operator::{Filter, Operator, PageKey};

use super::act::{Act, Among, Verb};
use super::letter::{self, FilterArgs, Letters};
use super::{First, Office, events, known, watch};
use crate::cli::{Global, Watch, Why, rows};
use crate::confirm::Confirmation;
use crate::failure::Failure;
use crate::show::{Shown, parse_duration, quoted};

/// Dead letters: look at them, replay them, discard them
#[derive(clap::Args)]
pub(crate) struct Given {
    #[command(subcommand)]
    command: Command,
}

#[derive(clap::Subcommand)]
enum Command {
    List(List),
    Show(events::Show),
    Replay(Replay),
    Discard(Discard),
    Release(Release),
}

/// Dead letters, by source and event id
#[derive(clap::Args)]
struct List {
    /// Letters of one page
    #[arg(long, value_name = "ROWS", default_value = "50", value_parser = rows)]
    limit: usize,
    /// From here on: what the page before said
    #[arg(long, num_args = 2, value_names = ["SOURCE", "EVENT_ID"], allow_hyphen_values = true)]
    after: Vec<String>,
    #[command(flatten)]
    watch: Watch,
    #[command(flatten)]
    filter: FilterArgs,
}

/// Puts dead letters back into their turn, with no attempts counted; a receiver applies each when its turn is there
///
/// One, by source and event id; or all that match. Without --dead-reason: those of gap, handler, rejected and crash.
#[derive(clap::Args)]
struct Replay {
    #[command(flatten)]
    which: Which,
    /// One whose turn never comes, since its sequence is skipped or passed, is applied after events that should have come
    /// after it
    #[arg(long, requires = "event_id")]
    out_of_order: bool,
    /// One: waits until it is applied, or for so long (30s); status 1 if it is not applied by then
    #[arg(long, value_name = "TIME", num_args = 0..=1, default_missing_value = "30s", value_parser = parse_duration)]
    wait: Option<Duration>,
    /// Where the streams of its source begin, for a first event of which nothing else is known
    #[arg(long, value_enum, default_value = "adopt")]
    first_sequence: First,
    #[command(flatten)]
    many: Many,
    #[command(flatten)]
    filter: FilterArgs,
}

/// Decides that dead letters are never applied: their requests are removed, and their sequences skipped
///
/// One, by source and event id; or all that match.
#[derive(clap::Args)]
struct Discard {
    #[command(flatten)]
    which: Which,
    /// Where the streams of its source begin, for a first event of which nothing else is known
    #[arg(long, value_enum, default_value = "adopt")]
    first_sequence: First,
    #[command(flatten)]
    many: Many,
    #[command(flatten)]
    filter: FilterArgs,
}

/// Lets an event pass that the fence holds, since it was honest after all: a receiver applies its stored request
#[derive(clap::Args)]
struct Release {
    /// The name of its source
    source: String,
    /// The producer's own id of it
    event_id: String,
    #[command(flatten)]
    why: Why,
}

#[derive(clap::Args)]
struct Which {
    /// One: the name of its source
    #[arg(value_name = "SOURCE", requires = "event_id", conflicts_with_all = ["all", "FilterArgs"])]
    source_name: Option<String>,
    /// The producer's own id of it
    event_id: Option<String>,
    /// Every one of every source
    #[arg(long)]
    all: bool,
}

/// What every action on one or many events has.
#[derive(clap::Args)]
pub(super) struct Many {
    /// At most so many a second
    #[arg(long, value_name = "NUMBER", default_value = "100")]
    pub(super) per_second: NonZeroU32,
    #[command(flatten)]
    pub(super) why: Why,
    #[command(flatten)]
    pub(super) confirmation: Confirmation,
}

impl Which {
    /// The one, or all that the options say.
    fn among(&self, filter: Filter) -> Among {
        match self.one() {
            Some((source, id)) => Among::One(source.to_owned(), id.to_owned()),
            None => Among::Stored(filter),
        }
    }

    fn one(&self) -> Option<(&str, &str)> {
        Some((self.source_name.as_deref()?, self.event_id.as_deref()?))
    }
}

impl Given {
    pub(crate) fn check(&self, global: &Global) -> Result<(), Failure> {
        let (which, many, filter) = match &self.command {
            Command::Replay(given) => (&given.which, &given.many, &given.filter),
            Command::Discard(given) => (&given.which, &given.many, &given.filter),
            Command::Release(given) => return given.why.check(global, false),
            Command::List(given) => return given.filter.is_of_dead_letters(),
            Command::Show(_) => return Ok(()),
        };
        let named = match which.one().is_none() && !which.all && filter.is_empty() {
            true => Err(Failure::usage(
                "which ones: name a source and an event id, or say by options which ones, or --all",
            )),
            false => Ok(()),
        };
        // One that is replayed can be discarded after all.
        let confirmed = match &self.command {
            Command::Replay(given) if given.which.one().is_some() && !given.out_of_order => Ok(()),
            _ => many.confirmation.can_be_given(),
        };
        let waits = match &self.command {
            Command::Replay(given) if given.wait.is_some() && given.which.one().is_none() => Err(
                Failure::usage("--wait is for one dead letter: name a source and an event id"),
            ),
            _ => Ok(()),
        };
        // What is parked can be discarded, too.
        let dead = match &self.command {
            Command::Replay(given) => given.filter.is_of_dead_letters(),
            _ => Ok(()),
        };
        Failure::all_of([
            named,
            dead,
            many.why.check(global, many.confirmation.dry_run),
            confirmed,
            waits,
        ])
    }
}

pub(crate) async fn run<DB: Backend>(
    pool: Pool<DB>,
    global: &Global,
    given: Given,
) -> Result<ExitCode, Failure> {
    match given.command {
        Command::List(given) => {
            let office = Office::open(pool, global).await?;
            let operator = &office.operator;
            watch(&given.watch, global.json, async || {
                list(operator, &given).await
            })
            .await?;
            office.close().await;
            Ok(ExitCode::SUCCESS)
        }
        Command::Show(given) => events::show(pool, global, &given).await,
        Command::Replay(given) => {
            let act = Act {
                verb: Verb::Replay,
                among: given.which.among(given.filter.replayable()),
                source: given.filter.source(),
                out_of_order: given.out_of_order,
                wait: given.wait,
                first: given.first_sequence,
                many: &given.many,
            };
            act.run(pool, global).await
        }
        Command::Discard(given) => {
            let act = Act {
                verb: Verb::Discard,
                among: given.which.among(given.filter.filter()),
                source: given.filter.source(),
                out_of_order: false,
                wait: None,
                first: given.first_sequence,
                many: &given.many,
            };
            act.run(pool, global).await
        }
        Command::Release(given) => release(pool, global, &given).await,
    }
}

async fn list<DB: Backend>(operator: &Operator<DB>, given: &List) -> Result<Shown, Failure> {
    let after = match given.after.as_slice() {
        [source, id] => Some(PageKey::new(source, id)),
        _ => None,
    };
    let filter = given.filter.filter();
    let page = operator
        .dead_letters(&filter, after.as_ref(), given.limit)
        .await?;
    if page.letters.is_empty() {
        known::source(operator, given.filter.source()).await?;
    }
    let (mut table, now) = (Letters::dead(), Timestamp::now());
    let mut letters = Vec::new();
    for letter in &page.letters {
        table.add(letter, now);
        letters.push(letter::any_json(letter));
    }
    let mut text = if letters.is_empty() {
        "none\n".to_owned()
    } else {
        table.render()
    };
    if let Some(next) = &page.next {
        let (source, id) = (quoted(&next.source), quoted(&next.event_id));
        text.push_str(&format!("more: --after {source} {id}\n"));
    }
    let next = page.next.as_ref();
    Ok(Shown {
        json: json!({
            "letters": letters,
            "next": next.map(|key| json!({"source": key.source, "event_id": key.event_id})),
        }),
        text,
    })
}

async fn release<DB: Backend>(
    pool: Pool<DB>,
    global: &Global,
    given: &Release,
) -> Result<ExitCode, Failure> {
    let actor = global.actor()?;
    let office = Office::of_actor(pool, global, Vec::new()).await?;
    let (source, id, reason) = (&given.source, &given.event_id, given.why.given()?);
    let story = office.operator.inspect(source, id).await?;
    known::event(&office.operator, story, source, id).await?;
    let released = office
        .inbox
        .release_fenced(source, id, &actor, reason)
        .await?;
    changed(released, "released; a receiver applies it").print(global.json);
    office.close().await;
    Ok(ExitCode::SUCCESS)
}

pub(super) fn changed(changed: bool, done: &str) -> Shown {
    let text = if changed {
        done
    } else {
        "so already, or decided otherwise; nothing was done"
    };
    Shown {
        json: json!({"changed": changed}),
        text: format!("{text}\n"),
    }
}
