//! `dead replay` and `dead discard`: one, or all that match as of a look.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;
use std::process::ExitCode;
use std::time::Duration;

use serde_json::{Value, json};
use sqlx::Pool;
use tower_inbox::clock::Timestamp;
use tower_inbox::operator::{BulkOptions, BulkReport, Filter, Letter, Operator, State, Unreadable};
use tower_inbox::{Backend, Source};

use super::dead::{Many, Which, changed};
use super::letter::{self, Letters};
use super::{First, Office, count, outlook};
use crate::cli::Global;
use crate::failure::Failure;
use crate::interrupt::Interrupt;
use crate::show::{Progress, Shown, quoted, safe};

/// Letters of one page, and of what a dry run names.
const PAGE: usize = 500;
const NAMED: usize = 20;

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Verb {
    Replay,
    Discard,
}

impl Verb {
    fn done(self) -> &'static str {
        match self {
            Self::Replay => "replayed",
            Self::Discard => "discarded",
        }
    }
}

/// Replaying or discarding.
pub(super) struct Act<'a> {
    pub(super) verb: Verb,
    pub(super) out_of_order: bool,
    /// For how long it is waited for that it is applied.
    pub(super) wait: Option<Duration>,
    pub(super) first: First,
    pub(super) filter: Filter,
    pub(super) which: &'a Which,
    pub(super) many: &'a Many,
}

/// What would be dealt with.
#[derive(Default)]
struct Found {
    matched: u64,
    sources: BTreeSet<String>,
    /// By reason; parked ones, too.
    kinds: BTreeMap<String, u64>,
    /// When the last of them became one.
    latest: Option<Timestamp>,
    named: Option<Letters>,
    json: Vec<Value>,
}

impl Found {
    /// How many, of what kind, of whom: not all that can be discarded is dead.
    fn what(&self) -> String {
        let dead = !self.kinds.keys().any(|kind| kind == "parked");
        let number = count(self.matched, if dead { "dead letter" } else { "event" });
        if self.kinds.is_empty() {
            return number;
        }
        let kinds = self.kinds.iter();
        let kinds: Vec<_> = kinds.map(|(kind, n)| format!("{n} {kind}")).collect();
        let sources = match self.sources.first() {
            Some(only) if self.sources.len() == 1 => quoted(only),
            _ => count(self.sources.len() as u64, "source"),
        };
        format!("{number} of {sources} ({})", kinds.join(", "))
    }

    /// The first twenty are named.
    fn name(&mut self, letter: &Result<Letter, Unreadable>, now: Timestamp) {
        if self.json.len() == NAMED {
            return;
        }
        self.named.get_or_insert_with(Letters::new).add(letter, now);
        self.json.push(match letter {
            Ok(letter) => letter::json(letter),
            Err(unreadable) => letter::unreadable_json(unreadable),
        });
    }
}

impl Act<'_> {
    pub(super) async fn run<DB: Backend>(
        &self,
        pool: Pool<DB>,
        global: &Global,
    ) -> Result<ExitCode, Failure> {
        match self.which.one() {
            Some((source, id)) => self.one(pool, global, source, id).await,
            None => self.all(pool, global).await,
        }
    }

    async fn one<DB: Backend>(
        &self,
        pool: Pool<DB>,
        global: &Global,
        source: &str,
        id: &str,
    ) -> Result<ExitCode, Failure> {
        let dry_run = self.many.confirmation.dry_run;
        let office = Office::to_act(pool, global, dry_run, vec![self.first.of(source)]).await?;
        let operator = &office.operator;
        let story = letter::found(operator.inspect(source, id).await?, source, id)?;
        if dry_run {
            // What waits can be discarded, too.
            let matches = match (story.letter.state, self.verb) {
                (State::Dead, _) => true,
                (State::Parked | State::Fenced, verb) => verb == Verb::Discard,
                _ => false,
            };
            let mut found = Found {
                matched: u64::from(matches),
                ..Found::default()
            };
            found.name(&Ok(story.letter), Timestamp::now());
            self.shown(&found).print(global.json);
            return Ok(ExitCode::SUCCESS);
        }
        let reason = self.many.why.given()?;
        let done = match self.verb {
            Verb::Replay if self.out_of_order => {
                let what = format!(
                    "event {} of {} is to be applied after events that should have come after it",
                    safe(id),
                    safe(source)
                );
                self.many.confirmation.ask(&what)?;
                operator.replay_out_of_order(source, id, reason).await?
            }
            Verb::Replay => operator.replay(source, id, reason).await?,
            Verb::Discard => {
                let what = format!(
                    "event {} of {} is never to be applied",
                    safe(id),
                    safe(source)
                );
                self.many.confirmation.ask(&what)?;
                operator.discard(source, id, reason).await?
            }
        };
        let status = match self.verb {
            Verb::Replay => outlook::tell(&office, source, id, done, self.wait, global).await?,
            Verb::Discard => {
                changed(done, "discarded").print(global.json);
                ExitCode::SUCCESS
            }
        };
        office.close().await;
        Ok(status)
    }

    async fn all<DB: Backend>(&self, pool: Pool<DB>, global: &Global) -> Result<ExitCode, Failure> {
        let dry_run = self.many.confirmation.dry_run;
        let looking = Office::open(pool.clone(), global).await?;
        let found = self.find(&looking.operator).await?;
        looking.inbox.shutdown().await;
        if dry_run || found.matched == 0 {
            self.shown(&found).print(global.json);
            return Ok(ExitCode::SUCCESS);
        }
        let (what, done) = (found.what(), self.verb.done());
        let so = match self.verb {
            Verb::Replay => "a receiver applies each when its turn is there",
            Verb::Discard => {
                "none of them is ever applied, their requests are removed, and their sequences skipped"
            }
        };
        let what = format!("{what} to be {done}: {so}");
        self.many.confirmation.ask(&what)?;
        // With the sources known, so that a stream of which nothing was ever applied is opened.
        let sources = found.sources.iter().map(|name| self.first.of(name));
        let sources: Vec<Source> = sources.collect();
        let office = Office::of_actor(pool, global, sources).await?;
        let reason = self.many.why.given()?;
        let options = BulkOptions::default().per_second(self.many.per_second);
        let (mut progress, interrupt) = (
            Progress::new(self.verb.done(), Some(found.matched)),
            Interrupt::listen(),
        );
        let told = |report: &BulkReport| {
            progress.at(report.matched);
            match interrupt.is_asked() {
                true => ControlFlow::Break(()),
                false => ControlFlow::Continue(()),
            }
        };
        // Not what has become a dead letter since it was asked about.
        let filter = match found.latest {
            Some(latest) => self.filter.clone().until(latest),
            None => self.filter.clone(),
        };
        let operator = &office.operator;
        let report = match self.verb {
            Verb::Replay => {
                operator
                    .replay_where_telling(&filter, reason, options, told)
                    .await?
            }
            Verb::Discard => {
                operator
                    .discard_where_telling(&filter, reason, options, told)
                    .await?
            }
        };
        drop(progress);
        let ended = self.tell(report, &found, interrupt.is_asked(), global);
        office.close().await;
        ended
    }

    /// Goes through all that match.
    async fn find<DB: Backend>(&self, operator: &Operator<DB>) -> Result<Found, Failure> {
        let (mut found, now) = (Found::default(), Timestamp::now());
        let mut after = None;
        loop {
            let page = operator
                .dead_letters(&self.filter, after.as_ref(), PAGE)
                .await?;
            for letter in &page.letters {
                found.matched += 1;
                if let Ok(letter) = letter {
                    found.latest = found.latest.max(Some(letter.decided_at));
                    *found.kinds.entry(letter::kind(letter)).or_default() += 1;
                    if !found.sources.contains(&letter.source) {
                        found.sources.insert(letter.source.clone());
                    }
                }
                found.name(letter, now);
            }
            after = page.next;
            if after.is_none() {
                return Ok(found);
            }
        }
    }

    fn shown(&self, found: &Found) -> Shown {
        let mut text = found
            .named
            .as_ref()
            .map(Letters::render)
            .unwrap_or_default();
        let more = found.matched.saturating_sub(found.json.len() as u64);
        if more > 0 {
            text.push_str(&format!("and {more} more\n"));
        }
        let (what, done) = (found.what(), self.verb.done());
        text.push_str(&format!("{what} would be {done}\n"));
        Shown {
            json: json!({"dry_run": true, "matched": found.matched, "letters": found.json}),
            text,
        }
    }

    fn tell(
        &self,
        report: BulkReport,
        found: &Found,
        interrupted: bool,
        global: &Global,
    ) -> Result<ExitCode, Failure> {
        // At the last one it was too late.
        let interrupted = interrupted && report.matched < found.matched;
        let stopped = match &report.stopped {
            Some(error) => Some(error.to_string()),
            None => interrupted.then(|| "interrupted".to_owned()),
        };
        let refusals = report.refusals.iter().map(|refusal| {
            let key = refusal.key.as_ref();
            json!({
                "source": key.map(|key| &key.source),
                "event_id": key.map(|key| &key.event_id),
                "why": refusal.why,
            })
        });
        let json = json!({
            "matched": report.matched,
            "done": report.done,
            "left": report.left,
            "refusals": refusals.collect::<Value>(),
            "stopped": stopped,
        });
        let done = self.verb.done();
        let all = found.matched.max(report.matched);
        let mut text = format!("{done} {} of {all}\n", report.done);
        if stopped.is_some() {
            let rest = all - report.matched;
            text.push_str(&format!("{rest} not come to; begin again to go on\n"));
        }
        for refusal in &report.refusals {
            let id = refusal.key.as_ref().map_or("?", |key| &key.event_id);
            text.push_str(&format!("not {}: {}\n", safe(id), safe(&refusal.why)));
        }
        Shown { json, text }.print(global.json);
        if let Some(stopped) = report.stopped {
            return Err(stopped.into());
        }
        if interrupted {
            return Ok(Interrupt::status());
        }
        // What was so already is left too, and is no fault.
        let refused = !report.refusals.is_empty();
        Ok(ExitCode::from(u8::from(refused)))
    }
}
