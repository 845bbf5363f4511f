//! Events in an order, and out of it.

use super::super::database::TestBackend;
use super::super::event::{Content, Event};
use super::{Check, Checking, Report, Undisturbed};

/// A gap, what fills it, and something behind both.
const AT_LEAST: usize = 3;
/// The correlation id of the check's own stream.
const STREAM: &str = "testkit-stream";

impl<DB: TestBackend> Checking<DB> {
    pub(super) async fn streams(&self, report: &mut Report) {
        let Some(events) = self.stream() else {
            report.left_out(Check::Drained, "the producer has no order");
            return;
        };
        if report.has_errors() {
            report.left_out(Check::Drained, "there are other errors");
            return;
        }
        let stage = self.stage().await;
        let before = stage.snapshot().await;
        let mut in_order = true;
        for (event, _) in &events {
            in_order &= stage.send(event).await.last_is("applied");
        }
        let after = stage.snapshot().await;
        stage.end().await;
        if !in_order {
            report.left_out(
                Check::Drained,
                "the samples cannot be applied as a stream from 1 on",
            );
            return;
        }
        let undisturbed = Undisturbed { before, after };
        self.reversed(&events, &undisturbed, report).await;
    }

    /// The samples as a stream, as often as it takes; with the names of theirs.
    fn stream(&self) -> Option<Vec<(Event, &str)>> {
        let (preset, _) = self.producer.as_ref()?;
        preset.mapping().places().sequence?;
        let is_raw = |sample: &&super::Sample| matches!(sample.event.content, Content::Raw(_));
        let samples: Vec<_> = self.samples.iter().filter(|it| !is_raw(it)).collect();
        if samples.is_empty() {
            return None;
        }
        let events = (0..samples.len().max(AT_LEAST)).map(|at| {
            let sample = samples[at % samples.len()];
            let event = Event {
                id: format!("check-stream-{}", at + 1),
                ..sample.event.clone()
            };
            (event.stream(STREAM, at as i64 + 1), sample.name.as_str())
        });
        Some(events.collect())
    }

    /// All of it arrives in the wrong order, the first one last.
    async fn reversed(
        &self,
        events: &[(Event, &str)],
        undisturbed: &Undisturbed,
        report: &mut Report,
    ) {
        let stage = self.stage().await;
        for (number, (event, _)) in events.iter().rev().enumerate() {
            let story = stage.send(event).await;
            if number == 0 && !story.last_is("parked") {
                report.left_out(Check::Drained, "the source takes its events in any order");
                stage.end().await;
                return;
            }
        }
        stage.kit.settled().await;
        for (event, name) in events {
            let story = stage.kit.story(event.id()).await;
            if story.times_applied() != 1 {
                let what = "applied when it came in its turn, and not when it was parked before";
                report.found(Check::Drained, name, what.into(), story.to_string());
                stage.end().await;
                return;
            }
        }
        if let Some(rows) = stage.differs_from(undisturbed).await {
            let (event, name) = &events[events.len() - 1];
            let story = stage.kit.story(event.id()).await;
            let what = format!("what was parked did not do what it does in its turn:{rows}");
            report.found(Check::Drained, name, what, story.to_string());
        }
        stage.end().await;
    }
}
