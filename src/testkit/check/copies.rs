//! Copies at the same time, and a producer that goes away.

use super::super::database::TestBackend;
use super::super::network::{Network, Point};
use super::{Check, Checking, Report, Sample, Undisturbed};

/// More than most producers ever send at once, and more than the pool has connections.
const CROWD: usize = 10;

impl<DB: TestBackend> Checking<DB> {
    pub(super) async fn at_once(
        &self,
        sample: &Sample,
        undisturbed: &Undisturbed,
        report: &mut Report,
    ) {
        let stage = self.stage().await;
        let crowd = std::array::from_fn::<_, CROWD, _>(|_| Box::pin(stage.send(&sample.event)));
        join_all(crowd).await;
        // Whoever was told to come again does.
        let story = stage.send(&sample.event).await;
        let terminal = story
            .statuses()
            .into_iter()
            .find(|status| !matches!(status, 200..=299 | 408 | 425 | 429 | 500..));
        let differs = stage.differs_from(undisturbed).await;
        let what = match (terminal, differs) {
            (Some(status), _) => {
                format!("one of {CROWD} copies at the same time was answered {status}")
            }
            (None, Some(rows)) => {
                format!("{CROWD} copies at the same time did not do what one delivery does:{rows}")
            }
            (None, None) => {
                stage.end().await;
                return;
            }
        };
        report.found(Check::AtOnce, &sample.name, what, story.to_string());
        stage.end().await;
    }

    pub(super) async fn disconnect(
        &self,
        sample: &Sample,
        undisturbed: &Undisturbed,
        report: &mut Report,
    ) {
        let Some((preset, secret)) = &self.producer else {
            return;
        };
        let stage = self.stage().await;
        let network = Network::perfect().disconnect_at(Point::BeforeAnswer);
        let mut producer = stage.kit.producer(*preset, secret).network(network);
        if let Some(path) = &self.path {
            producer = producer.to(path);
        }
        if let Some(url) = &self.url {
            producer = producer.signed_url(url);
        }
        let story = producer.deliver(&sample.event).await;
        if let Some(rows) = stage.differs_from(undisturbed).await {
            let what = format!(
                "the producer went away while the handler was running, and came again; that did not do what one delivery \
                 does:{rows}"
            );
            report.found(Check::Disconnect, &sample.name, what, story.to_string());
        }
        stage.end().await;
    }
}

/// Polls all of them until all are done.
async fn join_all<F: Future + Unpin>(futures: impl IntoIterator<Item = F>) {
    let mut running: Vec<F> = futures.into_iter().collect();
    std::future::poll_fn(|context| {
        running.retain_mut(|future| std::pin::Pin::new(future).poll(context).is_pending());
        if running.is_empty() {
            std::task::Poll::Ready(())
        } else {
            std::task::Poll::Pending
        }
    })
    .await;
}
