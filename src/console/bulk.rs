//! Many stored events at once: counted first, then confirmed by the number that was seen, then done in the background.

use std::future::Future;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use http::StatusCode;
use maud::{Markup, html};

use super::asked::{Answer, Fault, Page, words_of};
use super::caller::Caller;
use super::confirm::NAMED;
use super::letters::{self, Chosen, SEEN_AT};
use super::session::Flash;
use super::show;
use crate::clock::Timestamp;
use crate::error::OperatorError;
use crate::operator::{BulkOptions, BulkReport, Filter, Operator, REPLAYED};
use crate::store::Backend;

/// How long the answer waits for the end of a small one.
const PATIENCE: Duration = Duration::from_secs(3);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verb {
    Replay,
    Discard,
}

/// What is done, as people are told of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Work {
    Letters(Verb),
    /// To what is parked.
    TryNow,
}

impl Work {
    fn word(self) -> &'static str {
        match self {
            Self::Letters(verb) => verb.word(),
            Self::TryNow => "try",
        }
    }

    /// So many of what it is done to.
    fn of(self, events: u64) -> String {
        match self {
            Self::Letters(_) => show::counted(events, "dead letter", "dead letters"),
            Self::TryNow => show::counted(events, "parked event", "parked events"),
        }
    }

    fn done(self, events: u64) -> String {
        let of = self.of(events);
        match self {
            Self::Letters(Verb::Replay) => format!("Replayed {of}"),
            Self::Letters(Verb::Discard) => format!("Discarded {of}"),
            Self::TryNow => format!("Made due {of}"),
        }
    }
}

impl Verb {
    /// Of dead letters.
    fn asked<DB: Backend>(caller: &Caller<DB>) -> Result<Self, Fault> {
        match caller.field("verb")? {
            "replay" => Ok(Self::Replay),
            "discard" => Ok(Self::Discard),
            other => Err(Fault::Invalid(format!("There is no verb {other:?}."))),
        }
    }

    fn word(self) -> &'static str {
        match self {
            Self::Replay => "replay",
            Self::Discard => "discard",
        }
    }

    /// Counted is what it would do, and nothing that it would leave as it is.
    fn narrow(self, chosen: &mut Chosen) -> Result<(), Fault> {
        match self {
            Self::Replay if !chosen.only(&REPLAYED) => Err(Fault::Invalid(
                "What is skipped, lies before the start or is held by the fence has no turn to come: replay it out of its \
                 order, or release it, one by one."
                    .into(),
            )),
            Self::Replay | Self::Discard => Ok(()),
        }
    }

    async fn run<DB: Backend>(
        self,
        operator: &Operator<DB>,
        filter: &Filter,
        reason: &str,
        options: BulkOptions,
    ) -> Result<BulkReport, OperatorError> {
        match self {
            Self::Replay => operator.replay_where(filter, reason, options).await,
            Self::Discard => operator.discard_where(filter, reason, options).await,
        }
    }
}

/// The one that runs in this process, or ran last.
#[derive(Clone, Default)]
pub(super) struct Bulk(Arc<Mutex<Option<Job>>>);

#[derive(Clone)]
struct Job {
    work: Work,
    events: u64,
    actor: String,
    since: Timestamp,
    /// What came of it, when it has ended.
    came: Option<(bool, String)>,
}

impl Bulk {
    /// What runs, or ran last.
    pub(super) fn said(&self, now: Timestamp) -> Markup {
        let job = self
            .0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone();
        html! {
            @if let Some(job) = job {
                p.alert.(if job.came.as_ref().is_some_and(|(good, _)| !good) { "bad" } else { "note" }) role="status" {
                    (show::text(&job.actor)) " began " (show::ago(now, job.since)) " to " (job.work.word()) " "
                    (job.work.of(job.events)) ". "
                    @match &job.came {
                        Some((_, came)) => { (came) }
                        None => { "Still under way: load this page again to see what comes of it." }
                    }
                }
            }
        }
    }

    fn begin(&self, job: Job) -> Result<(), Fault> {
        let mut place = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if place.as_ref().is_some_and(|job| job.came.is_none()) {
            let why = "Another bulk action is still under way in this process.";
            return Err(Fault::Refused(why.into()));
        }
        *place = Some(job);
        Ok(())
    }

    fn ended(&self, came: (bool, String)) {
        let mut place = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(job) = place.as_mut() {
            job.came = Some(came);
        }
    }
}

/// Whatever becomes of the task, the next one can begin.
struct Running {
    bulk: Bulk,
    came: Option<(bool, String)>,
}

impl Drop for Running {
    fn drop(&mut self) {
        let broken = || {
            (
                false,
                "It was broken off: the audit log has what was done.".to_owned(),
            )
        };
        self.bulk.ended(self.came.take().unwrap_or_else(broken));
    }
}

async fn matched<DB: Backend>(
    caller: &Caller<DB>,
    verb: Verb,
    filter: &Filter,
) -> Result<u64, Fault> {
    let options = BulkOptions::default().dry_run(true);
    let report = verb
        .run(&caller.operator, filter, "a dry run", options)
        .await?;
    match report.stopped {
        None => Ok(report.matched),
        Some(error) => Err(error.into()),
    }
}

/// How many it would be. Nothing is changed.
pub(super) async fn dry_run<DB: Backend>(caller: Caller<DB>) -> Result<Answer, Fault> {
    let verb = Verb::asked(&caller)?;
    let mut chosen = Chosen::of(&caller.asked.form);
    let back = caller.link("/dead", &chosen.fixed());
    verb.narrow(&mut chosen)?;
    let now = caller.now.as_micros().to_string();
    let chosen = chosen.seen_at(Some(&now));
    let filter = chosen.filter()?;
    let count = matched(&caller, verb, &filter).await?;
    let named = caller
        .operator
        .dead_letters(&filter, None, NAMED)
        .await?
        .letters;
    let seen = count.to_string();
    let mut fixed = chosen.fixed();
    fixed.extend([("verb", verb.word()), ("seen", &seen)]);
    let button = format!("{} {}", capital(verb.word()), Work::Letters(verb).of(count));
    let content = html! {
        p.verdict {
            "This would " b { (verb.word()) } " " b #matched { (show::count(count)) }
            @if count == 1 { " dead letter " } @else { " dead letters " }
            (chosen.words()) ". Nothing has been changed yet."
        }
        @match verb {
            Verb::Replay => { p { "Each goes back into its turn, as new, and is applied by the worker in its order." } }
            Verb::Discard => { p { "None of them is ever applied, and their requests are removed. It cannot be undone." } }
        }
        @if count > 0 {
            (caller.act("/dead/bulk", &fixed, &Markup::default(), &button, verb == Verb::Discard))
        }
        @if !named.is_empty() {
            (letters::list(&caller, &named, "Dead letters that it would be done to, by source and event id"))
            @let left = count.saturating_sub(named.len() as u64);
            @if left > 0 { p.quiet #more { "and " (show::count(left)) " more" } }
        }
        p.more { a href=(back) { "← Back, and change nothing" } }
    };
    Ok(Page::new("Dry run", content).into())
}

pub(super) async fn run<DB: Backend>(caller: Caller<DB>) -> Result<Answer, Fault> {
    let verb = Verb::asked(&caller)?;
    let seen = caller.number("seen")?.unsigned_abs();
    let reason = caller.reason()?.to_owned();
    let form = &caller.asked.form;
    let mut chosen = Chosen::of(form).seen_at(form.get(SEEN_AT));
    verb.narrow(&mut chosen)?;
    let filter = chosen.filter()?;
    let count = matched(&caller, verb, &filter).await?;
    if count != seen {
        return Err(Fault::Refused(format!(
            "{} match now, and {} were seen: look again, and decide again. Nothing was changed.",
            show::count(count),
            show::count(seen),
        )));
    }
    let operator = caller.operator.clone();
    let to = caller.link(
        "/dead",
        &[("source", chosen.get("source").unwrap_or_default())],
    );
    begin(&caller, Work::Letters(verb), count, to, async move {
        let options = BulkOptions::default();
        verb.run(&operator, &filter, &reason, options).await
    })
    .await
}

/// Has it done, and waits for a moment for what comes of it, which is told on the page `to`.
pub(super) async fn begin<DB: Backend>(
    caller: &Caller<DB>,
    work: Work,
    events: u64,
    to: String,
    done: impl Future<Output = Result<BulkReport, OperatorError>> + Send + 'static,
) -> Result<Answer, Fault> {
    caller.bulk().begin(Job {
        work,
        events,
        actor: caller.actor.name().to_owned(),
        since: caller.now,
        came: None,
    })?;
    let mut running = Running {
        bulk: caller.bulk().clone(),
        came: None,
    };
    // In a task of its own: it goes on when the browser has gone.
    let task = tokio::spawn(async move {
        running.came = Some(told(work, done.await));
        running.came.clone()
    });
    let ended = tokio::time::timeout(PATIENCE, task).await;
    let (good, text) = match ended {
        Ok(Ok(Some(came))) => came,
        Ok(_) => (
            false,
            "It was broken off: the audit log has what was done.".into(),
        ),
        Err(_) => {
            let text = format!("Under way: {} {}.", work.word(), work.of(events));
            (true, text)
        }
    };
    let status = if good {
        StatusCode::OK
    } else {
        StatusCode::CONFLICT
    };
    let flash = Flash { good, text };
    Ok(Answer::Done { to, flash, status })
}

fn told(work: Work, came: Result<BulkReport, OperatorError>) -> (bool, String) {
    let report = match came {
        Ok(report) => report,
        Err(error) => return (false, words_of(&error)),
    };
    let mut text = work.done(report.done);
    if report.left > 0 {
        text.push_str(&format!(", left {} as they were", show::count(report.left)));
    }
    if let Some(refusal) = report.refusals.first() {
        let id = refusal.key.as_ref().map_or("?", |key| &key.event_id);
        text.push_str(&format!(" ({id:?}: {})", refusal.why));
    }
    text.push('.');
    if let Some(error) = &report.stopped {
        text.push_str(&format!(" It stopped before the end: {}", words_of(error)));
    }
    (report.stopped.is_none() && report.refusals.is_empty(), text)
}

fn capital(word: &str) -> String {
    let mut chars = word.chars();
    let first = chars.next().into_iter().flat_map(char::to_uppercase);
    first.chain(chars).collect()
}
