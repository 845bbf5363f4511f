//! `tower-inbox purge`.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use serde_json::json;
use sqlx::Pool;
use tower_inbox::clock::Timestamp;
use tower_inbox::operator::{Filter, Operator};
use tower_inbox::preset::Preset;
use tower_inbox::{Backend, Purged, Source};

use super::{Office, count, known, named};
use crate::cli::Global;
use crate::confirm::Confirmation;
use crate::failure::Failure;
use crate::interrupt::Interrupt;
use crate::secrets;
use crate::show::{Progress, Shown, duration, parse_duration, rfc3339, safe};

/// How often a work that says nothing is looked after.
const TICK: Duration = Duration::from_millis(200);
/// Dead letters of a page that is counted.
const PAGE: usize = 1_000;

/// Forgets applied events of a source that are older than its retention, as its receivers do by themselves
///
/// What is forgotten is a new event when its producer sends it again. The retention is a setting of the receivers, which are
/// not asked: say the same here. Below the time in which the producer may send an event again it is refused. Cursors stay,
/// and so do dead letters unless they are asked for.
#[derive(clap::Args)]
pub(crate) struct Given {
    /// The name of the source
    source: String,
    /// What was applied longer ago than this, such as 30d
    #[arg(long, value_name = "DURATION", value_parser = parse_duration)]
    older_than: Duration,
    /// Dead letters that became one longer ago than this, too
    #[arg(long, value_name = "DURATION", value_parser = parse_duration)]
    dead_letters_older_than: Option<Duration>,
    /// The source's preset: it says for how long its producer may send an event again
    #[arg(
        long,
        value_name = "NAME",
        required_unless_present = "insecure_short_retention"
    )]
    preset: Option<String>,
    /// Gives up the promise that a late redelivery is known: whatever the producer may still send again
    #[arg(long)]
    insecure_short_retention: bool,
    #[command(flatten)]
    confirmation: Confirmation,
}

impl Given {
    pub(crate) fn check(&self) -> Result<(), Failure> {
        Failure::all_of([self.preset().map(drop), self.confirmation.can_be_given()])
    }

    fn preset(&self) -> Result<Preset, Failure> {
        let Some(name) = &self.preset else {
            return Ok(Preset::KUDOS);
        };
        let preset = Preset::named(name).copied();
        preset.ok_or_else(|| {
            let names = secrets::names();
            Failure::usage(format!("no preset {name:?}; there are {names}"))
        })
    }

    fn source(&self) -> Result<Source, Failure> {
        let mut source = named(&self.source, self.preset()?).retention(self.older_than);
        if let Some(kept) = self.dead_letters_older_than {
            source = source.dead_letter_retention(kept);
        }
        Ok(if self.insecure_short_retention {
            source.insecure_short_retention()
        } else {
            source
        })
    }
}

pub(crate) async fn run<DB: Backend>(
    pool: Pool<DB>,
    global: &Global,
    given: &Given,
) -> Result<ExitCode, Failure> {
    let dry_run = given.confirmation.dry_run;
    let opened = Office::to_act(pool, global, dry_run, vec![given.source()?]).await;
    let office = opened.map_err(|failure| match failure {
        // Of the source: in the words of this command.
        Failure::Refused(why) if why.contains("retention") => Failure::Refused(format!(
            "{why} (here: --older-than, or --insecure-short-retention)"
        )),
        failure => failure,
    })?;
    let now = Timestamp::now();
    let before = now.minus(given.older_than);
    let stale = office.operator.count_stale(&given.source, before).await?;
    if stale == 0 {
        known::source(&office.operator, Some(&given.source)).await?;
    }
    let dead = match given.dead_letters_older_than {
        Some(kept) => {
            let before = now.minus(kept);
            Some((
                count_dead(&office.operator, &given.source, before).await?,
                kept,
            ))
        }
        None => None,
    };
    let source = safe(&given.source);
    let mut what = format!(
        "{} of {source} older than {}",
        count(stale, "event"),
        duration(given.older_than)
    );
    if let Some((dead, kept)) = dead {
        let (dead, kept) = (count(dead, "dead letter"), duration(kept));
        what.push_str(&format!(
            ", and {dead} of it older than {kept}, with their requests,"
        ));
    }
    what.push_str(" to be forgotten");
    if dry_run {
        let json = json!({
            "dry_run": true,
            "source": given.source,
            "before": rfc3339(before),
            "events": stale,
            "dead_letters": dead.map_or(0, |(dead, _)| dead),
        });
        let text = format!("{what}\n");
        Shown { json, text }.print(global.json);
        return Ok(ExitCode::SUCCESS);
    }
    given.confirmation.ask(&what)?;
    let interrupt = Interrupt::listen();
    let purged = purge(&office, &given.source, before, stale, &interrupt).await?;
    let json = json!({
        "source": given.source,
        "events": purged.events,
        "answers": purged.answers,
        "fences": purged.fences,
        "dead_letters": purged.letters,
    });
    let text = format!(
        "forgotten: {}, {}, {}, {}\n",
        count(purged.events, "event"),
        count(purged.answers, "stored answer"),
        count(purged.fences, "fence"),
        count(purged.letters, "dead letter")
    );
    Shown { json, text }.print(global.json);
    office.close().await;
    Ok(if interrupt.is_asked() {
        Interrupt::status()
    } else {
        ExitCode::SUCCESS
    })
}

/// Dead letters that became one before.
async fn count_dead<DB: Backend>(
    operator: &Operator<DB>,
    source: &str,
    before: Timestamp,
) -> Result<u64, Failure> {
    let filter = Filter::new().source(source).until(before);
    let (mut dead, mut after) = (0, None);
    loop {
        let page = operator.dead_letters(&filter, after.as_ref(), PAGE).await?;
        dead += page.letters.len() as u64;
        after = page.next;
        if after.is_none() {
            return Ok(dead);
        }
    }
}

/// Purges, and says how far it is where somebody looks.
async fn purge<DB: Backend>(
    office: &Office<DB>,
    source: &str,
    before: Timestamp,
    stale: u64,
    interrupt: &Interrupt,
) -> Result<Purged, Failure> {
    let mut progress = Progress::new("forgotten", Some(stale));
    let purge = office.inbox.purge(source);
    tokio::pin!(purge);
    let mut pause = TICK;
    loop {
        tokio::select! {
            purged = &mut purge => return Ok(purged?),
            () = interrupt.asked() => {
                // It ends after the batch that it is at.
                let (purged, ()) = tokio::join!(purge, office.inbox.shutdown());
                return Ok(purged?);
            }
            () = tokio::time::sleep(pause), if progress.is_shown() => {
                // Of many rows that takes long: it must not take the most of the time. If it cannot be had, the bar stands.
                let began = Instant::now();
                if let Ok(left) = office.operator.count_stale(source, before).await {
                    progress.at(stale.saturating_sub(left));
                }
                pause = TICK.max(began.elapsed() * 10);
            }
        }
    }
}
