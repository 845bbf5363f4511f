//! A process that plays a scene and ends at one of its points.

use std::collections::BTreeSet;
use std::process::Stdio;
use std::sync::Arc;

use tower_inbox::FailPoints;

use super::hook::{Act, Kind};
use super::lane::{comes_by, hook, is_certain, world};
use super::place::Walked;
use super::play::{Play, Stage};
use super::scenes::Scene;

/// What the process of a crash is to do: database, scene, point, how often it is passed before.
pub(crate) const CHILD: &str = "TOWER_INBOX_WALK";

/// Plays it in a process of its own, which ends at the point. What it had acknowledged; nothing if it came to its end.
pub(super) async fn crash<D: Walked>(
    scene: &Scene<D>,
    db: &D,
    act: Act,
) -> Option<BTreeSet<String>> {
    let what = format!(
        "{}|{}|{}|{}|{}",
        D::NAME,
        db.handle(),
        scene.name,
        act.point,
        act.nth
    );
    let child =
        tokio::process::Command::new(std::env::current_exe().expect("the path of this test"))
            .args([
                "--exact",
                "walk::the_process_of_a_crash",
                "--ignored",
                "--nocapture",
            ])
            .env(CHILD, what)
            .stdin(Stdio::null())
            .kill_on_drop(true)
            .output();
    let ended = child.await.expect("it runs");
    let (out, err) = (
        String::from_utf8_lossy(&ended.stdout),
        String::from_utf8_lossy(&ended.stderr),
    );
    if ended.status.success() {
        assert!(
            !is_certain(scene, act),
            "the process did not come by the point: {out}{err}"
        );
        return None;
    }
    assert_eq!(
        ended.status.code(),
        None,
        "it failed, and did not crash: {out}{err}"
    );
    Some(
        out.lines()
            .filter_map(|line| line.strip_prefix("ACK "))
            .map(str::to_owned)
            .collect(),
    )
}

/// The process that a crash ends.
pub(crate) async fn child<D: Walked>(scene: &Scene<D>, handle: &str, point: &str, nth: usize) {
    let point = FailPoints::ALL
        .iter()
        .find(|name| **name == point)
        .expect("a point");
    let db = D::reopen(handle);
    let stage = Stage::new();
    let act = Act {
        point,
        nth,
        kind: Kind::Crash,
    };
    let hook = hook(scene, &db, Some(act));
    let world = world(scene, &db, &stage, Some(&hook)).await;
    let play = Arc::new(Play::new(world.clone(), stage, BTreeSet::new(), true));
    (scene.play)(play).await;
    comes_by(scene, &hook, Some(act)).await;
    world.inbox.shutdown().await;
}
