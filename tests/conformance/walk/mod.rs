//! A walk over all fail points (§9): scenes that between them come by every one, played again and again while at one
//! point the database fails, something is held up, or the process ends; and after each the contract.
//!
//! `TOWER_INBOX_WALK_POINT` (comma-separated names) walks these alone, in every way; `TOWER_INBOX_TEST_ALL` walks all
//! points in every scene.

mod crash;
mod hook;
mod lane;
mod place;
mod play;
mod scenes;

use std::collections::BTreeSet;

use tower_inbox::FailPoints;

use self::crash::{CHILD, child};
use self::lane::Part;
use self::place::Walked;
use self::scenes::{NOT_WALKED, Scene};

/// One test for each scene and database, or several where there is much to walk.
macro_rules! walks {
    ($($scene:ident: $($test:ident)+;)+) => {
        suite![$($($test),+),+];

        $(walks!(@ $scene 1 $($test)+);)+

        fn all<D: Walked>() -> Vec<Scene<D>> {
            vec![$(scenes::$scene()),+]
        }
    };
    (@ $scene:ident 1 $one:ident) => { walks!(@ $scene $one 1 1); };
    (@ $scene:ident 1 $one:ident $two:ident) => {
        walks!(@ $scene $one 1 2);
        walks!(@ $scene $two 2 2);
    };
    (@ $scene:ident $test:ident $nth:literal $of:literal) => {
        async fn $test<D: Walked>(db: D) {
            let part = Part { nth: $nth, of: $of };
            let scene = scenes::$scene::<D>();
            let before = all::<D>();
            let before = before.iter().take_while(|other| other.name != scene.name);
            let before = before.flat_map(Scene::points).collect();
            lane::walk(db, scene, part, &before).await;
        }
    };
}

walks! {
    live: live live_too;
    deferred: deferred;
    stream: stream stream_too;
    batch: batch;
    shared: shared;
    hot: hot;
    handed_back: handed_back;
    beats: beats;
    expiry: expiry;
    operators: operators operators_too;
    fenced: fenced;
    newer: newer;
    adopting: adopting;
    forgetting: forgetting;
    bursts: bursts;
    reconciling: reconciling;
    group: group;
}

/// §9: every point is walked in a scene, or there is a reason why it is not.
#[test]
fn every_fail_point_is_walked_or_has_a_reason() {
    let scenes = all::<crate::db::sqlite::SqliteFile>();
    let walked = scenes.iter().flat_map(|scene| {
        let on_one = scene.on.iter().map(|(_, point)| point);
        scene.points.iter().chain(on_one)
    });
    let excepted = NOT_WALKED.iter().map(|(point, _)| point);
    let known: BTreeSet<_> = walked.chain(excepted).copied().collect();
    let every: BTreeSet<_> = FailPoints::ALL.iter().copied().collect();
    assert_eq!(known, every);
}

/// §9: kill -9 at a fail point.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "only as a process that a walk starts, and a fail point ends"]
async fn the_process_of_a_crash() {
    let Ok(what) = std::env::var(CHILD) else {
        return;
    };
    let [database, handle, scene, point, nth] = what.split('|').collect::<Vec<_>>()[..] else {
        panic!("{what}")
    };
    let nth = nth.parse().expect("a number");
    match database {
        "sqlite" => of::<crate::db::sqlite::SqliteFile>(handle, scene, point, nth).await,
        #[cfg(feature = "postgres")]
        "postgres" => of::<crate::db::postgres::PostgresDb>(handle, scene, point, nth).await,
        #[cfg(feature = "mysql")]
        "mysql" => of::<crate::db::mysql::MySqlDb>(handle, scene, point, nth).await,
        other => panic!("{other}"),
    }
}

async fn of<D: Walked>(handle: &str, scene: &str, point: &str, nth: usize) {
    let scene = all::<D>()
        .into_iter()
        .find(|one| one.name == scene)
        .expect("a scene");
    child(&scene, handle, point, nth).await;
}
