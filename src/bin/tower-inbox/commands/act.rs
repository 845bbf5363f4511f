//! `dead replay`, `dead discard` and `events try-now`: one, or all that match as of a look.

use std::ops::ControlFlow;
use std::process::ExitCode;
use std::time::Duration;

use serde_json::{Value, json};
use sqlx::Pool;
use tower_inbox::clock::Timestamp;
use tower_inbox::operator::{
    AfterDiscard, BulkOptions, BulkReport, Filter, Operator, Page, PageKey, Story, Waiting,
};
use tower_inbox::{Backend, OperatorError, Source};

use super::ahead::{self, REHEARSED};
use super::dead::{Many, changed};
use super::found::Found;
use super::{First, Office, known, outlook};
use crate::cli::Global;
use crate::failure::Failure;
use crate::interrupt::Interrupt;
use crate::show::{Progress, Shown, safe};

/// Events of one page.
const PAGE: usize = 500;

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Verb {
    Replay,
    Discard,
    TryNow,
}

impl Verb {
    pub(super) fn done(self) -> &'static str {
        match self {
            Self::Replay => "replayed",
            Self::Discard => "discarded",
            Self::TryNow => "tried now",
        }
    }
}

/// Which events.
pub(super) enum Among {
    /// Of a source, by its event id.
    One(String, String),
    Stored(Filter),
    /// Of which those are meant that are tried later.
    Waiting(Waiting),
}

/// Replaying, discarding, or trying without a wait.
pub(super) struct Act<'a> {
    pub(super) verb: Verb,
    pub(super) among: Among,
    /// The source that was named to choose by.
    pub(super) source: Option<&'a str>,
    pub(super) out_of_order: bool,
    /// For how long it is waited for that it is applied.
    pub(super) wait: Option<Duration>,
    pub(super) first: First,
    pub(super) many: &'a Many,
}

impl Act<'_> {
    pub(super) async fn run<DB: Backend>(
        &self,
        pool: Pool<DB>,
        global: &Global,
    ) -> Result<ExitCode, Failure> {
        match &self.among {
            Among::One(source, id) => self.one(pool, global, source, id).await,
            Among::Stored(_) | Among::Waiting(_) => self.all(pool, global).await,
        }
    }

    /// Does it to one event.
    async fn decide<DB: Backend>(
        &self,
        operator: &Operator<DB>,
        source: &str,
        id: &str,
        reason: &str,
    ) -> Result<bool, OperatorError> {
        match self.verb {
            Verb::Replay if self.out_of_order => {
                operator.replay_out_of_order(source, id, reason).await
            }
            Verb::Replay => operator.replay(source, id, reason).await,
            Verb::Discard => operator.discard(source, id, reason).await,
            Verb::TryNow => operator.try_now(source, id, reason).await,
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
        let story = known::event(operator, operator.inspect(source, id).await?, source, id).await?;
        if dry_run {
            return self.rehearse(operator, story, global).await;
        }
        let reason = self.many.why.given()?;
        let (event, of) = (safe(id), safe(source));
        match self.verb {
            Verb::Replay if self.out_of_order => self.many.confirmation.ask(&format!(
                "event {event} of {of} is to be applied after events that should have come after it"
            ))?,
            Verb::Discard => self.many.confirmation.ask(&format!(
                "event {event} of {of} is never to be applied{}",
                then_of(operator, &story).await?
            ))?,
            Verb::Replay | Verb::TryNow => {}
        }
        let done = self.decide(operator, source, id, reason).await?;
        let status = match self.verb {
            Verb::Replay | Verb::TryNow => {
                outlook::tell(&office, source, id, done, self.wait, global).await?
            }
            Verb::Discard => {
                changed(done, "discarded").print(global.json);
                ExitCode::SUCCESS
            }
        };
        office.close().await;
        Ok(status)
    }

    /// What would come of it, found out by doing it and taking it back.
    async fn rehearse<DB: Backend>(
        &self,
        operator: &Operator<DB>,
        story: Story,
        global: &Global,
    ) -> Result<ExitCode, Failure> {
        let (source, id) = (&story.letter.source, &story.letter.event_id);
        let rehearsal = operator.rehearsal();
        let rehearsed = self.decide(&rehearsal, source, id, REHEARSED).await;
        let (done, objection) = ahead::would(rehearsed)?;
        let changes = done == Some(true);
        let then = match self.verb {
            Verb::Discard if changes => then_of(operator, &story).await?,
            _ => String::new(),
        };
        let mut found = Found::new(self.verb);
        found.name(&Ok(story.letter), Timestamp::now());
        let shown = found.shown_of_one(changes, objection.as_deref(), &then);
        shown.print(global.json);
        Ok(ExitCode::from(u8::from(objection.is_some())))
    }

    async fn all<DB: Backend>(&self, pool: Pool<DB>, global: &Global) -> Result<ExitCode, Failure> {
        let dry_run = self.many.confirmation.dry_run;
        let looking = Office::open(pool.clone(), global).await?;
        let mut found = self.find(&looking.operator).await?;
        if found.matched == 0 {
            known::source(&looking.operator, self.source).await?;
        }
        looking.inbox.shutdown().await;
        // With the sources known, so that a stream of which nothing was ever applied is opened.
        let sources = found.sources.iter().map(|name| self.first.of(name));
        let sources: Vec<Source> = sources.collect();
        if dry_run {
            let office = Office::to_act(pool, global, true, sources).await?;
            self.rehearse_named(&office.operator, &mut found).await?;
            found.shown().print(global.json);
            return Ok(ExitCode::from(u8::from(!found.refused.is_empty())));
        }
        if found.matched == 0 {
            let none = BulkReport::default();
            return self.tell(none, &found, false, global);
        }
        let (what, done) = (found.what(), self.verb.done());
        let so = match self.verb {
            Verb::Replay => "a receiver applies each when its turn is there",
            Verb::Discard => {
                "none of them is ever applied, their requests are removed, and their sequences skipped"
            }
            Verb::TryNow => "a receiver tries each as soon as its turn is there",
        };
        let what = format!("{what} to be {done}: {so}");
        self.many.confirmation.ask(&what)?;
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
        let operator = &office.operator;
        let report = match (&self.among, self.verb) {
            (Among::Waiting(which), _) => {
                operator
                    .try_now_where_telling(which, reason, options, told)
                    .await?
            }
            (Among::Stored(filter), verb) => {
                // Not what has become a dead letter since it was asked about.
                let filter = match found.latest {
                    Some(latest) => filter.clone().until(latest),
                    None => filter.clone(),
                };
                match verb {
                    Verb::Discard => {
                        operator
                            .discard_where_telling(&filter, reason, options, told)
                            .await?
                    }
                    _ => {
                        operator
                            .replay_where_telling(&filter, reason, options, told)
                            .await?
                    }
                }
            }
            (Among::One(..), _) => BulkReport::default(),
        };
        drop(progress);
        let ended = self.tell(report, &found, interrupt.is_asked(), global);
        office.close().await;
        ended
    }

    /// Goes through all that match.
    async fn find<DB: Backend>(&self, operator: &Operator<DB>) -> Result<Found, Failure> {
        let (mut found, now) = (Found::new(self.verb), Timestamp::now());
        let mut after = None;
        loop {
            let page = self.page(operator, after.as_ref()).await?;
            for letter in &page.letters {
                found.add(letter, now);
            }
            after = page.next;
            if after.is_none() {
                return Ok(found);
            }
        }
    }

    async fn page<DB: Backend>(
        &self,
        operator: &Operator<DB>,
        after: Option<&PageKey>,
    ) -> Result<Page, OperatorError> {
        match &self.among {
            Among::Waiting(which) => {
                let which = which.clone().tried_later();
                operator.waiting(&which, after, PAGE).await
            }
            Among::Stored(filter) => operator.dead_letters(filter, after, PAGE).await,
            Among::One(source, id) => {
                let filter = Filter::new().source(source);
                let before = PageKey::new(source, id);
                operator.dead_letters(&filter, Some(&before), PAGE).await
            }
        }
    }

    /// Whether those that are named would be refused.
    async fn rehearse_named<DB: Backend>(
        &self,
        operator: &Operator<DB>,
        found: &mut Found,
    ) -> Result<(), Failure> {
        let rehearsal = operator.rehearsal();
        for (source, id) in &found.named {
            let rehearsed = self.decide(&rehearsal, source, id, REHEARSED).await;
            if let (_, Some(why)) = ahead::would(rehearsed)? {
                found.refused.push((id.clone(), why));
            }
        }
        Ok(())
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
        let mut text = match all {
            0 => "nothing matches; nothing was done\n".to_owned(),
            _ => format!("{done} {} of {all}\n", report.done),
        };
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

/// A line about what becomes of the stream of an event that is discarded.
async fn then_of<DB: Backend>(operator: &Operator<DB>, story: &Story) -> Result<String, Failure> {
    let skips = story.letter.sequence.unwrap_or_default();
    Ok(match operator.foresee_discard(story).await? {
        AfterDiscard::Skips(ahead) => {
            let stands = story.stream.as_ref().map_or(skips, |info| info.next);
            let words = ahead::words(stands, &ahead);
            format!("\nits sequence {skips} is skipped with it: {words}")
        }
        AfterDiscard::NotBegun => format!("\nits sequence {skips} is skipped with it"),
        AfterDiscard::Passed => {
            "\nits place in its stream is passed: nothing else changes".to_owned()
        }
        _ => "\nit holds no place in a stream: nothing else changes".to_owned(),
    })
}
