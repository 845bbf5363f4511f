//! One walk after the other over one database, several databases at a time.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::crash::crash;
use super::hook::{Act, Hook, Kind};
use super::place::Walked;
use super::play::{Play, Stage};
use super::scenes::Scene;
use crate::db::TestDb;
use crate::kit::{BoxFuture, Setup, World, eventually, within};

/// Databases that are walked at the same time: mostly they wait for a worker's next try.
const LANES: usize = 4;
/// For one run, its restart and its checks.
const LIMIT: Duration = Duration::from_secs(60);
/// How long something is held up, if what comes meanwhile does not come to an end by then.
const MOMENT: Duration = Duration::from_millis(40);

/// What the background passes again by itself, soon, whatever happened there.
const COMES_AGAIN: &[&str] = &[
    "store.due_events",
    "store.due_streams",
    "store.listen",
    "store.settled_streams",
    "watch.look",
];

/// Passed by the shutdown alone.
const AT_THE_END: &[&str] = &["store.hand_back_all", "store.retire"];
/// More than a poll's pause.
const LAST_LOOK: Duration = Duration::from_secs(5);

/// One of so many parts of a walk, from 1.
#[derive(Clone, Copy)]
pub(crate) struct Part {
    pub(crate) nth: usize,
    pub(crate) of: usize,
}

const TABLES: [&str; 16] = [
    "{p}event",
    "{p}cursor",
    "{p}pending",
    "{p}fence",
    "{p}audit",
    "{p}range",
    "{p}worker",
    "{p}guard",
    "{p}answer",
    "{p}source",
    "{p}burst",
    "{p}alive",
    "{p}incident",
    "{p}reconcile",
    "ledger",
    "mark",
];

/// A world of this scene on a database with its tables.
pub(super) async fn world<D: Walked>(
    scene: &Scene<D>,
    db: &D,
    stage: &Stage,
    hook: Option<&Arc<Hook>>,
) -> World<D> {
    // A scene that is about batches asks for them itself.
    let mut setup = (scene.setup)(World::<D>::over(db).one_by_one(), stage)
        .connections(3)
        // Some points are passed on a connection that has stayed alone.
        .keeping_connections()
        .inbox(|inbox| inbox.poll_every(Duration::from_millis(100)));
    if let Some(hook) = hook {
        let points = hook.points();
        setup = setup.inbox(move |inbox| inbox.fail_points(points));
    }
    setup.start().await
}

pub(super) fn hook<D: Walked>(scene: &Scene<D>, db: &D, act: Option<Act>) -> Arc<Hook> {
    let db = db.clone();
    let faults = move |kind| -> BoxFuture<_> {
        let db = db.clone();
        Box::pin(async move { db.fault(kind).await })
    };
    Hook::new(act, scene.besides, Box::new(faults))
}

/// As it was when it was made.
async fn clean<D: Walked>(scene: &Scene<D>, db: &D) {
    let eyes = db
        .pool(sqlx::pool::PoolOptions::new().max_connections(1))
        .await;
    let mut conn = eyes.acquire().await.expect("a connection");
    let mut run = async |sql: &str| {
        let sql = sql.replace("{p}", db.prefix());
        D::execute(&mut conn, &sql)
            .await
            .unwrap_or_else(|error| panic!("{sql}: {error}"));
    };
    run("BEGIN").await;
    for table in TABLES {
        run(&format!("DELETE FROM {table}")).await;
    }
    for sql in scene.before {
        run(sql).await;
    }
    run("COMMIT").await;
    drop(conn);
    eyes.close().await;
}

/// A database with the tables of the inbox.
async fn made<D: Walked>(scene: &Scene<D>) -> D {
    let db = D::create().await.unwrap_or_else(|error| panic!("{error}"));
    world(scene, &db, &Stage::new(), None).await.stop().await;
    db
}

/// Plays the scene with this act, and again what a producer and an operator would do after a crash; then a restart, and
/// the contract. How often each point was passed.
async fn run<D: Walked>(
    scene: &Scene<D>,
    db: &D,
    act: Option<Act>,
) -> BTreeMap<&'static str, usize> {
    clean(scene, db).await;
    let stage = Stage::new();
    let mut before = BTreeSet::new();
    if let Some(act) = act
        && act.kind == Kind::Crash
    {
        match crash(scene, db, act).await {
            Some(told) => before = told,
            None => return BTreeMap::new(),
        }
    }
    let act = act.filter(|act| act.kind != Kind::Crash);
    let hook = hook(scene, db, act);
    let first = world(scene, db, &stage, Some(&hook)).await;
    let play = Arc::new(Play::new(
        first.clone(),
        stage.clone(),
        before.clone(),
        false,
    ));
    if !before.is_empty() {
        play.keeps_what_it_acknowledged().await;
    }
    let over = Arc::new(AtomicBool::new(false));
    let meanwhile = match act {
        Some(act) if act.kind == Kind::Held => {
            let other = (scene.setup)(World::<D>::over(db).one_by_one(), &stage);
            Some(tokio::spawn(hold(
                Arc::clone(&play),
                other,
                Arc::clone(&hook),
                Arc::clone(&over),
            )))
        }
        _ => None,
    };
    (scene.play)(Arc::clone(&play)).await;
    comes_by(scene, &hook, act).await;
    if let Some(act) = act
        && act.kind != Kind::Held
        && COMES_AGAIN.contains(&act.point)
        && hook.was_hit()
    {
        let times = || hook.passed().get(act.point).copied().unwrap_or(0);
        eventually("the background goes on", async || times() > act.nth).await;
    }
    // The shutdown has its points too.
    first.inbox.shutdown().await;
    over.store(true, Ordering::Release);
    if let Some(meanwhile) = meanwhile {
        let other = meanwhile.await.expect("what came meanwhile is answered");
        other.inbox.shutdown().await;
        other.pool_is_whole().await;
        other.stop().await;
    }
    hook.gate.open();
    first.pool_is_whole().await;
    let restarted = world(scene, db, &stage, None).await;
    let play = Arc::new(Play::new(restarted.clone(), stage, BTreeSet::new(), false));
    play.is_exact(&scene.expected).await;
    first.stop().await;
    restarted.stop().await;
    if let Some(act) = act {
        assert!(
            hook.was_hit() || !is_certain(scene, act),
            "the point was not passed"
        );
    }
    hook.passed()
}

/// The last look of a worker may come behind the end of a play: a moment for it, before the shutdown.
pub(super) async fn comes_by<D: TestDb>(scene: &Scene<D>, hook: &Hook, act: Option<Act>) {
    let has_come = || match act {
        None => {
            let passed = hook.passed();
            let mut points = scene.points().filter(|point| !AT_THE_END.contains(point));
            points.all(|point| passed.contains_key(point))
        }
        Some(act) => hook.was_hit() || !is_certain(scene, act) || AT_THE_END.contains(&act.point),
    };
    let start = Instant::now();
    while !has_come() && start.elapsed() < LAST_LOOK {
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

/// Whether it comes to that each time: the points that a scene is walked for, the first time. Others depend on how its
/// tasks happen to take turns.
pub(super) fn is_certain<D: TestDb>(scene: &Scene<D>, act: Act) -> bool {
    act.nth == 1 && scene.points().any(|point| point == act.point)
}

/// When the point is reached, the same event comes, here and to another receiver; then it goes on.
async fn hold<D: Walked>(
    play: Arc<Play<D>>,
    other: Setup<D>,
    hook: Arc<Hook>,
    over: Arc<AtomicBool>,
) -> World<D> {
    while !hook.was_hit() && !over.load(Ordering::Acquire) {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let other = other.inbox(|inbox| inbox.migrate(false)).start().await;
    let again = [play.world.clone(), other.clone()].map(|through| {
        let play = Arc::clone(&play);
        tokio::spawn(async move { play.duplicate(&through).await })
    });
    let all = async {
        for one in again {
            one.await.expect("it is answered, and truly");
        }
    };
    let mut all = std::pin::pin!(all);
    let early = tokio::time::timeout(MOMENT, &mut all).await;
    hook.gate.open();
    if early.is_err() {
        all.await;
    }
    other
}

/// What is walked at a point that was passed so many times. `first`: no other scene walks it before this one.
fn acts<D: TestDb>(point: &'static str, times: usize, first: bool, whole: bool) -> Vec<Act> {
    let every = [
        Kind::Gone,
        Kind::Transient,
        Kind::Refused,
        Kind::Held,
        Kind::Crash,
    ];
    let kinds: &[Kind] = match (D::SINGLE_WRITER, first) {
        _ if whole => &every,
        (true, true) => &every,
        (true, false) => &[Kind::Gone, Kind::Held],
        (false, true) => &[Kind::Gone, Kind::Crash],
        (false, false) => &[],
    };
    let mut acts: Vec<_> = kinds
        .iter()
        .map(|kind| Act {
            point,
            nth: 1,
            kind: *kind,
        })
        .collect();
    if times > 1 {
        // And later.
        let again = kinds
            .iter()
            .filter(|kind| whole || D::SINGLE_WRITER && **kind == Kind::Gone);
        acts.extend(again.map(|kind| Act {
            point,
            nth: 2,
            kind: *kind,
        }));
    }
    acts
}

/// Plays a scene as it is, and then with something happening at each of its points, as far as they are in this part.
/// `before`: what other scenes are walked for.
pub(crate) async fn walk<D: Walked>(
    db: D,
    scene: Scene<D>,
    part: Part,
    before: &BTreeSet<&'static str>,
) {
    let scene = Arc::new(scene);
    world(&scene, &db, &Stage::new(), None).await.stop().await;
    let passed = within(LIMIT, run(&scene, &db, None)).await;
    let missed: Vec<_> = scene
        .points()
        .filter(|point| !passed.contains_key(point))
        .collect();
    assert!(
        missed.is_empty(),
        "{} does not come by {missed:?}, but by {passed:?}",
        scene.name
    );
    let wanted = std::env::var("TOWER_INBOX_WALK_POINT").ok();
    let wanted: Option<Vec<_>> = wanted.as_ref().map(|names| names.split(',').collect());
    let whole = std::env::var_os("TOWER_INBOX_TEST_ALL").is_some() || wanted.is_some();
    let jobs: VecDeque<_> = passed
        .iter()
        .filter(|(point, _)| match &wanted {
            Some(wanted) => wanted.contains(*point),
            None => whole || scene.points().any(|own| own == **point),
        })
        .enumerate()
        .filter(|(n, _)| n % part.of == part.nth - 1)
        .flat_map(|(_, (point, times))| acts::<D>(point, *times, !before.contains(point), whole))
        .collect();
    let many = jobs.len();
    let jobs = Arc::new(Mutex::new(jobs));
    let lanes: Vec<_> = (0..LANES.min(many))
        .map(|n| {
            let (scene, jobs) = (Arc::clone(&scene), Arc::clone(&jobs));
            let db = (n == 0).then(|| db.clone());
            tokio::task::spawn_blocking(move || lane(&scene, db, &jobs))
        })
        .collect();
    let mut failed = Vec::new();
    for lane in lanes {
        failed.extend(lane.await.expect("what fails is told"));
    }
    assert!(
        failed.is_empty(),
        "{} of {many} walks failed:\n{}",
        failed.len(),
        failed.join("\n")
    );
}

/// Walks as long as there is something to walk, over this database or one of its own. What failed.
fn lane<D: Walked>(scene: &Scene<D>, given: Option<D>, jobs: &Mutex<VecDeque<Act>>) -> Vec<String> {
    let mut is_own = given.is_none();
    let mut db = given.unwrap_or_else(|| alone(made(scene)).expect("a database"));
    let mut failed = Vec::new();
    let remove = |db: D| alone(db.destroy()).expect("it is removed");
    while let Some(act) = next(jobs) {
        let ended = alone(within(LIMIT, run(scene, &db, Some(act))));
        if let Err(why) = ended {
            failed.push(format!("{} with {act:?}: {why}", scene.name));
            // Whatever it left behind is in nobody's way.
            let fresh = alone(made(scene)).expect("a database");
            let left = std::mem::replace(&mut db, fresh);
            if std::mem::replace(&mut is_own, true) {
                remove(left);
            }
        }
    }
    if is_own {
        remove(db);
    }
    failed
}

/// In a runtime of its own: nothing that it leaves behind runs on. Why it failed, if it did.
fn alone<T>(work: impl Future<Output = T>) -> Result<T, String> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    let runtime = runtime.expect("a runtime");
    let ended = catch_unwind(AssertUnwindSafe(|| runtime.block_on(work)));
    runtime.shutdown_background();
    ended.map_err(|panic| {
        let text = panic.downcast_ref::<String>().cloned();
        text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()))
            .unwrap_or_default()
    })
}

fn next(jobs: &Mutex<VecDeque<Act>>) -> Option<Act> {
    jobs.lock()
        .unwrap_or_else(PoisonError::into_inner)
        .pop_front()
}
