//! A database that fails under the handler, and a commit that fails after it.

use super::super::database::TestBackend;
use super::super::story::Story;
use super::snapshot::Snapshot;
use super::stage::Stage;
use super::{Check, Checking, Report, Sample, Undisturbed};
use crate::probe::Happened;

/// What is wrong, and whether it is the last thing that can be said.
type Wrong = (Check, String, Story);

impl<DB: TestBackend> Checking<DB> {
    pub(super) async fn trouble(
        &self,
        sample: &Sample,
        undisturbed: &Undisturbed,
        report: &mut Report,
    ) {
        let stage = self.stage().await;
        let before = stage.snapshot().await;
        let mut wrong = None;
        if undisturbed.has_effects() {
            match fault(&stage, sample, &before).await {
                Ok(found) => wrong = found,
                Err(why) => report.left_out(Check::Fault, why),
            }
        }
        if wrong.is_none() {
            wrong = refused_commit(&stage, sample, &before).await;
        }
        if wrong.is_none() {
            wrong = retry(&stage, sample, undisturbed).await;
        }
        if let Some((check, what, story)) = wrong {
            report.found(check, &sample.name, what, story.to_string());
        }
        stage.end().await;
    }
}

async fn fault<DB: TestBackend>(
    stage: &Stage<'_, DB>,
    sample: &Sample,
    before: &Snapshot,
) -> Result<Option<Wrong>, &'static str> {
    let broken = stage.break_writes().await;
    let story = if broken {
        Some(stage.send(&sample.event).await)
    } else {
        None
    };
    stage.mend_writes().await;
    let Some(story) = story else {
        return Err("writes of a table cannot be made to fail here");
    };
    let stays = before.difference(&stage.snapshot().await);
    let said = story.said();
    let (check, what) = if story.last_is("applied") || story.last_loss().is_some() {
        let what = "the handler answered 2xx although the database had refused its writes";
        (Check::Swallowed, format!("{what}: {said}"))
    } else if story.last_is("rejected") {
        let what = "the database refused a write, and that became a verdict on the event";
        (Check::Fault, format!("{what}: {said}, and a dead letter"))
    } else if let Some(stays) = stays {
        let what = "the handler failed, and what it had done stays";
        (Check::Outside, format!("{what}{}:{stays}", story.untaken()))
    } else {
        return Ok(None);
    };
    Ok(Some((check, what, story)))
}

async fn refused_commit<DB: TestBackend>(
    stage: &Stage<'_, DB>,
    sample: &Sample,
    before: &Snapshot,
) -> Option<Wrong> {
    stage.kit.probe(sample.event.id()).fail_commit();
    let story = stage.send(&sample.event).await;
    let mut last = story.last_attempt();
    if !last.any(|it| *it == Happened::CommitRefused) {
        drop(last);
        let what = format!("a redelivery after a fault was {}", story.said());
        return Some((Check::Retry, what, story));
    }
    drop(last);
    let stays = before.difference(&stage.snapshot().await)?;
    let what = format!(
        "its commit failed, and what the handler had done stays{}:{stays}",
        story.untaken()
    );
    Some((Check::Outside, what, story))
}

async fn retry<DB: TestBackend>(
    stage: &Stage<'_, DB>,
    sample: &Sample,
    undisturbed: &Undisturbed,
) -> Option<Wrong> {
    let story = stage.send(&sample.event).await;
    let differs = stage.differs_from(undisturbed).await;
    let what = match differs {
        _ if !story.last_is("applied") => {
            format!("the redelivery after a failed commit was {}", story.said())
        }
        Some(rows) => {
            format!(
                "after a failed commit the redelivery did not do what a first delivery does:{rows}"
            )
        }
        None => return None,
    };
    Some((Check::Retry, what, story))
}
