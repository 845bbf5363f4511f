//! Probes that come at the same time.

use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::Poll;
use std::time::Duration;

use tower_inbox::{FailPoints, Readiness};

use crate::db::TestDb;
use crate::kit::{Gate, World, eventually};

suite![
    probes_that_come_while_one_is_answered_share_its_look,
    a_probe_without_patience_speaks_for_itself_alone,
];

const PATIENCE: Duration = Duration::from_secs(10);

/// What becomes of all of them, each of which is begun before any is asked again.
async fn together<T>(begun: impl Iterator<Item = impl Future<Output = T>>) -> Vec<T> {
    let mut running: Vec<_> = begun.map(Box::pin).collect();
    let mut ended = Vec::new();
    poll_fn(|context| {
        running.retain_mut(|future| match future.as_mut().poll(context) {
            Poll::Ready(output) => {
                ended.push(output);
                false
            }
            Poll::Pending => true,
        });
        if running.is_empty() {
            Poll::Ready(())
        } else {
            Poll::Pending
        }
    })
    .await;
    ended
}

/// (health): a storm of probes is one question to the database.
async fn probes_that_come_while_one_is_answered_share_its_look<D: TestDb>(db: D) {
    let (looks, gate) = (Arc::new(AtomicUsize::new(0)), Gate::shut());
    let (counted, held) = (Arc::clone(&looks), gate.clone());
    let fail = FailPoints::new(move |name| {
        let (counted, held) = (Arc::clone(&counted), held.clone());
        async move {
            if name == "store.schema" {
                counted.fetch_add(1, Ordering::Relaxed);
                held.pass().await;
            }
            Ok(())
        }
    });
    let world = World::<D>::over(&db)
        .inbox(|inbox| inbox.fail_points(fail))
        .start()
        .await;
    eventually("the worker has looked", async || {
        world.inbox.worker_status().last_look.is_some()
    })
    .await;
    let opened = async {
        gate.reached_by(1).await;
        gate.open();
    };
    let probes = together((0..200).map(|_| world.inbox.readiness(PATIENCE)));
    let (readiness, ()) = tokio::join!(probes, opened);
    assert!(readiness.iter().all(Readiness::is_ready), "{readiness:?}");
    assert_eq!(looks.load(Ordering::Relaxed), 1);
    // The next one does not go by what was seen before it came.
    assert!(world.inbox.readiness(PATIENCE).await.is_ready());
    assert_eq!(looks.load(Ordering::Relaxed), 2);
}

/// (health): what one has no time to see has not been seen, and is not what others are told.
async fn a_probe_without_patience_speaks_for_itself_alone<D: TestDb>(db: D) {
    let gate = Gate::shut();
    let held = gate.clone();
    let fail = FailPoints::new(move |name| {
        let held = held.clone();
        async move {
            if name == "store.schema" {
                held.pass().await;
            }
            Ok(())
        }
    });
    let world = World::<D>::over(&db)
        .inbox(|inbox| inbox.fail_points(fail))
        .start()
        .await;
    eventually("the worker has looked", async || {
        world.inbox.worker_status().last_look.is_some()
    })
    .await;
    let hasty = async {
        let readiness = world.inbox.readiness(Duration::from_millis(500)).await;
        gate.open();
        readiness
    };
    let patient = async {
        gate.reached_by(1).await;
        world.inbox.readiness(PATIENCE).await
    };
    let (hasty, patient) = tokio::join!(hasty, patient);
    assert!(!hasty.is_ready(), "it was held up: {hasty:?}");
    assert!(patient.is_ready(), "{patient:?}");
}
