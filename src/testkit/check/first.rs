//! What nothing disturbs, and what comes again after it.

use super::super::database::TestBackend;
use super::super::event::Event;
use super::super::story::Story;
use super::stage::Stage;
use super::{Check, Checking, Report, Sample, Undisturbed};
use crate::probe::Loss;
use crate::verify::{Secret, Signer};

impl<DB: TestBackend> Checking<DB> {
    /// Nothing if there is no point in looking further.
    pub(super) async fn first(&self, sample: &Sample, report: &mut Report) -> Option<Undisturbed> {
        let stage = self.stage().await;
        let before = stage.snapshot().await;
        let story = stage.send(&sample.event).await;
        if let Some((check, what)) = self.is_wrong(&stage, &story) {
            report.found(check, &sample.name, what, story.to_string());
            report.mend(remedy::<DB>(check, &story));
            stage.end().await;
            return None;
        }
        self.is_quick(&stage, sample, &story, report);
        let after = stage.snapshot().await;
        let undisturbed = Undisturbed { before, after };
        again(&stage, sample, &undisturbed, report).await;
        if !report.has(Check::Again, &sample.name) {
            restart(&stage, sample, &undisturbed, report).await;
        }
        self.rotation(&stage, sample, report).await;
        self.poison(&stage, sample, report).await;
        stage.end().await;
        Some(undisturbed)
    }

    fn is_wrong(&self, stage: &Stage<'_, DB>, story: &Story) -> Option<(Check, String)> {
        let Some(reply) = story.last_reply() else {
            let what = format!("no answer within {:?}", self.patience());
            return Some((Check::Slow, what));
        };
        if reply.outcome().is_empty() {
            let what = format!("answered {}, and not by an inbox", reply.status);
            return Some((Check::Inbox, what));
        }
        if story.took_too_long() {
            let budget = stage.budget(story);
            let what = format!("the handler takes longer than the {budget:?} that a delivery has");
            return Some((Check::Slow, what));
        }
        match story.last_loss() {
            Some(Loss::Kept) => {
                let what = "the handler kept its transaction beyond its answer";
                return Some((Check::Kept, what.into()));
            }
            Some(Loss::Aborted) => {
                let what = "answered 2xx although a statement of its transaction had failed";
                return Some((Check::Swallowed, what.into()));
            }
            Some(Loss::Ended) => {
                let what = "the handler's transaction was ended under it: by a COMMIT, a ROLLBACK or a DDL statement of \
                            its own, or by the server after a failure that it swallowed";
                return Some((Check::Ended, what.into()));
            }
            None => {}
        }
        if reply.outcome() == "accepted" && reply.status == 202 {
            let what = "its source defers: make the app without `Source::deferred` for this check";
            return Some((Check::First, what.into()));
        }
        if reply.outcome() != "applied" {
            let what = format!("{}, and not applied{}", story.said(), story.untaken());
            return Some((Check::First, what));
        }
        None
    }

    fn is_quick(&self, stage: &Stage<'_, DB>, sample: &Sample, story: &Story, report: &mut Report) {
        let budget = stage.budget(story);
        let Some(took) = story.first_run().filter(|took| *took > budget / 2) else {
            return;
        };
        let what = format!("the handler took {took:?} of the {budget:?} that a delivery has");
        report.found(Check::Slow, &sample.name, what, story.to_string());
    }

    async fn rotation(&self, stage: &Stage<'_, DB>, sample: &Sample, report: &mut Report) {
        let (Some((preset, old)), Some(new)) = (&self.producer, &self.next_secret) else {
            report.left_out(Check::Rotation, "no secret to rotate to was given");
            return;
        };
        // It says nothing about one event more than about another.
        if report.has_any(Check::Rotation) {
            return;
        }
        let both = [new.as_str(), old.as_str()];
        let secret = |text: &str| Secret::decode(preset.key, text).ok();
        let decoded = both.iter().filter_map(|text| secret(text));
        let signs_twice = Signer::new(&preset.scheme(), decoded).is_ok();
        let during = if signs_twice { &both[..] } else { &both[..1] };
        for secrets in [&both[1..], during, &both[..1]] {
            let story = stage.send_signed(&sample.event, secrets).await;
            if story.last_reply().is_none_or(|reply| reply.status == 401) {
                let by = match secrets {
                    [_, _] => "both secrets",
                    [one] if *one == new => "the new secret",
                    _ => "the old secret",
                };
                let what = format!("{}, although it is signed by {by}", story.said());
                report.found(Check::Rotation, &sample.name, what, story.to_string());
                return;
            }
        }
    }

    /// What cannot be read may be refused or ignored, and must not be asked for again for ever.
    async fn poison(&self, stage: &Stage<'_, DB>, sample: &Sample, report: &mut Report) {
        let with_id = |event: Event, what: &str| Event {
            id: format!("{}-{what}", event.id),
            ..event
        };
        let unknown = with_id(sample.event.clone(), "unknown").kind("testkit.unknown");
        let bare = sample.bare().map(|event| with_id(event, "bare"));
        let is_first = self
            .samples
            .first()
            .is_some_and(|first| first.name == sample.name);
        let unknown = (is_first && bare.is_some()).then_some(unknown);
        let tried = [(Check::UnknownType, unknown), (Check::MissingFields, bare)];
        for (check, event) in tried {
            let Some(event) = event else {
                continue;
            };
            stage.send(&event).await;
            let story = stage.send(&event).await;
            let fails = story.last_reply().is_none_or(|reply| reply.status >= 500);
            if fails {
                let how = if story.last_panicked() {
                    "the handler panicked".into()
                } else {
                    story.said()
                };
                let what = format!("{how}, and again at each attempt");
                report.found(check, &sample.name, what, story.to_string());
            }
        }
    }
}

/// What to do about a first delivery that is not applied, by what is known of it.
fn remedy<DB: TestBackend>(check: Check, story: &Story) -> Option<String> {
    let status = story.last_reply().map(|reply| reply.status);
    let failed = status.is_some_and(|status| status >= 500);
    let waited = DB::WRITER_WAITS.is_some_and(|limit| {
        let took = story.first_run();
        let untaken = !story.untaken().is_empty();
        failed && (untaken || took.is_some_and(|took| took >= limit.mul_f64(0.9)))
    });
    match (check, status?) {
        (Check::First | Check::Slow, _) if waited => Some(
            "SQLite has one writer, and a write through the pool waits for this transaction: write by `Tx`."
                .into(),
        ),
        (Check::Slow, _) if DB::WRITER_WAITS.is_some() && story.took_too_long() => Some(format!(
            "{} Or does it write through the pool? SQLite has one writer, and such a write waits for this transaction: \
             write by `Tx`.",
            check.remedy()
        )),
        (Check::First, 401) => {
            Some("The secret here is not the source's: `.producer(preset, secret)` has to have one of its.".into())
        }
        (Check::First, 400..=499) => Some(
            "The sample must be one that the handler applies: the answer's body, in the story, may say what is wrong \
             with it."
                .into(),
        ),
        (Check::First, 500..) => Some(
            "The handler failed, see the story: does `.schema(…)`, or the app's start, make the tables that it writes?"
                .into(),
        ),
        _ => None,
    }
}

async fn again<DB: TestBackend>(
    stage: &Stage<'_, DB>,
    sample: &Sample,
    undisturbed: &Undisturbed,
    report: &mut Report,
) {
    let story = stage.send(&sample.event).await;
    let what = match undisturbed.after.difference(&stage.snapshot().await) {
        _ if !story.last_is("duplicate") => format!("a redelivery was {}", story.said()),
        Some(changed) => format!("a redelivery changed the app's tables:{changed}"),
        None => return,
    };
    report.found(Check::Again, &sample.name, what, story.to_string());
}

async fn restart<DB: TestBackend>(
    stage: &Stage<'_, DB>,
    sample: &Sample,
    undisturbed: &Undisturbed,
    report: &mut Report,
) {
    stage.kit.restart().await;
    let started = undisturbed.after.difference(&stage.snapshot().await);
    let story = stage.send(&sample.event).await;
    let what = match started {
        Some(changed) => format!("starting the app again changed its tables:{changed}"),
        None if !story.last_is("duplicate") => {
            format!("after a restart a redelivery was {}", story.said())
        }
        None => return,
    };
    report.found(Check::Restart, &sample.name, what, story.to_string());
}
