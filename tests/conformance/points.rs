//! The fail points against the sources: every statement has its own, and so has every commit.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use tower_inbox::FailPoints;

/// What runs statements and is not given the fail points: whoever calls it passes one just before, but at start-up.
const AT_THE_CALL: &[(&str, &str)] = &[
    ("acquire", "store.acquire"),
    ("begin", "store.begin"),
    ("begin_with_first", "store.begin"),
    ("release", "store.release"),
    ("rollback_to", "store.rollback_to"),
    ("rollback", "store.rollback"),
    ("commit", "store.commit"),
    ("incarnation", "watch.look"),
    ("server", "watch.look"),
];
/// Plain statements: by the name of the function that runs them. What is not listed has a point of its own.
const PLAIN: &[(&str, &str)] = &[
    // Around the statement of a beat, on a connection of its own: what goes wrong there is the beat's failure.
    ("beat", ""),
    ("bracket", "store.bracket"),
    ("done", "store.done"),
    ("restore", "store.restore"),
    ("checkpoint", "store.checkpoint"),
    ("kill", "watch.kill"),
];
/// Functions of the drivers that only `build` calls, or `schema`: no event is on its way.
const AT_START: &[&str] = &[
    "ask",
    "check",
    "check_prepared",
    "compare",
    "incarnation",
    "migrate",
    "setting",
    "variables",
    "versions",
];

/// The files under `src/`, by their paths there, and what is in them, comments left out.
fn sources() -> BTreeMap<String, String> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut found = BTreeMap::new();
    let mut folders = vec![root.clone()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).expect("the sources are here") {
            let path: PathBuf = entry.expect("an entry").path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|end| end == "rs") {
                let text = fs::read_to_string(&path).expect("a text");
                let code: Vec<_> = text
                    .lines()
                    .filter(|line| !line.trim_start().starts_with("//"))
                    .collect();
                let name = path.strip_prefix(&root).expect("it is in there");
                found.insert(name.display().to_string(), code.join("\n"));
            }
        }
    }
    found
}

/// Names and bodies of the asynchronous functions in a file.
fn functions(text: &str) -> Vec<(String, &str)> {
    let starts: Vec<_> = text.match_indices("async fn ").map(|(at, _)| at).collect();
    let ends = starts.iter().skip(1).copied().chain([text.len()]);
    starts
        .iter()
        .zip(ends)
        .map(|(start, end)| {
            let text = &text[start + "async fn ".len()..end];
            let name = text.split(['(', '<']).next().expect("a name");
            (name.to_owned(), text)
        })
        .collect()
}

/// Where a function talks to the database.
fn first_statement(body: &str) -> Option<usize> {
    [
        "sqlx::query",
        "sqlx::raw_sql",
        "Self::run(",
        "begin_with::<",
        "PgListener::",
        "connect_with(",
    ]
    .iter()
    .filter_map(|text| body.find(text))
    .min()
}

/// §9: every function with a statement in it passes the point of its name before the first one, or is called behind one.
#[test]
fn every_statement_has_a_fail_point_of_its_own() {
    let sources = sources();
    let mut statements = 0;
    for (file, text) in &sources {
        if !file.starts_with("store/") || file.ends_with("migrate.rs") {
            continue;
        }
        for (name, body) in functions(text) {
            let Some(first) = first_statement(body) else {
                continue;
            };
            let called = AT_THE_CALL.iter().any(|(call, _)| *call == name) || name == "run";
            let at_start = file.matches('/').count() == 1 && AT_START.contains(&&*name);
            if called || at_start || file == "store/sqlite.rs" && name.starts_with("connect") {
                continue;
            }
            statements += 1;
            let point = format!("::fail::point!(sql, \"store.{name}\");");
            let at = body.find(&point);
            assert!(
                at.is_some_and(|at| at < first),
                "{file}: `{name}` runs a statement, and does not begin with `{point}`"
            );
        }
    }
    assert!(
        statements >= 89,
        "the statements were not found: {statements}"
    );
}

/// §9: what runs a statement without knowing the fail points is called right behind one.
#[test]
fn what_has_no_fail_point_inside_is_called_behind_one() {
    let mut calls = BTreeSet::new();
    for (file, text) in &sources() {
        // The test kit is no part of an event's path.
        let besides = ["store/", "bin/", "testkit/"];
        if besides.iter().any(|folder| file.starts_with(folder)) {
            continue;
        }
        for (function, body) in functions(text) {
            // `build`: no event is on its way.
            if file == "inbox.rs" && ["build", "check_schema"].contains(&&*function) {
                continue;
            }
            for (call, point) in AT_THE_CALL {
                let text = match *call {
                    "acquire" => "pool.acquire()".to_owned(),
                    call => format!("DB::{call}("),
                };
                is_behind(file, &function, body, &text, point);
                if body.contains(&text) {
                    calls.insert(*call);
                }
            }
            let point = PLAIN.iter().find(|(name, _)| *name == function);
            match point {
                Some((_, "")) => {}
                Some((_, point)) => is_behind(file, &function, body, "DB::run(", point),
                None => assert!(
                    !body.contains("DB::run("),
                    "{file}: `{function}` runs a plain statement without a fail point"
                ),
            }
        }
    }
    let all: BTreeSet<_> = AT_THE_CALL.iter().map(|(call, _)| *call).collect();
    assert_eq!(
        calls, all,
        "some are called nowhere: the test is out of date"
    );
}

/// Demands that each `call` in `body` has its point in the lines just before it.
fn is_behind(file: &str, function: &str, body: &str, call: &str, point: &str) {
    let lines: Vec<_> = body.lines().collect();
    for (n, _) in lines
        .iter()
        .enumerate()
        .filter(|(_, line)| line.contains(call))
    {
        let before = &lines[n.saturating_sub(8)..=n];
        assert!(
            before
                .iter()
                .any(|line| line.contains(&format!("\"{point}\""))),
            "{file}: `{call}…)` in `{function}` is not behind the fail point {point:?}"
        );
    }
}

/// §4.1: one place commits, with a fail point on either side; and whatever ends a transaction goes through it.
#[test]
fn the_one_commit_is_between_two_fail_points() {
    let sources = sources();
    let mut commits = Vec::new();
    for (file, text) in &sources {
        if file.starts_with("store/") || file.starts_with("bin/") {
            continue;
        }
        for (at, _) in text.match_indices("DB::commit(") {
            commits.push((file, &text[at.saturating_sub(120)..at + 160]));
        }
        assert!(!text.contains("tx.commit("), "{file} commits by itself");
    }
    let [(file, text)] = commits[..] else {
        panic!("more than one place commits: {commits:?}")
    };
    assert_eq!(file, "dispatch/open.rs");
    let (before, after) = text.split_once("DB::commit(").expect("it is there");
    assert!(
        before.contains("\"store.commit\"") && after.contains("\"store.committed\""),
        "{text}"
    );
    // A handler's work is released apart from its commit, so that its answer is stored in between.
    let settle = &sources["dispatch/settle.rs"];
    let place = |text: &str| settle.find(text).unwrap_or_else(|| panic!("no {text}"));
    let order = [
        "open.release(apart)",
        "at::RELEASED",
        "open.send_commit()",
        "at::COMMITTED",
    ];
    assert!(order.map(place).is_sorted(), "{order:?}");
}

/// §9: the list of all fail points says what is in the sources, each once.
#[test]
fn the_list_of_fail_points_is_complete_and_without_duplicates() {
    let sources = sources();
    let mut found = BTreeSet::new();
    for (file, text) in &sources {
        if file == "fail.rs" {
            let consts = text
                .lines()
                .filter(|line| line.contains("const") && line.contains(": &str = "));
            found.extend(consts.map(|line| line.split('"').nth(1).expect("a name")));
            continue;
        }
        let spaced: &str = text;
        for opening in ["point!(", ".reached("] {
            for (at, _) in spaced.match_indices(opening) {
                let inside = spaced[at..].split(')').next().expect("some text");
                found.extend(inside.split('"').nth(1));
            }
        }
    }
    let listed: BTreeSet<_> = FailPoints::ALL.iter().copied().collect();
    assert_eq!(found, listed);
    assert_eq!(
        listed.len(),
        FailPoints::ALL.len(),
        "a name is listed twice"
    );
    for name in listed.iter().filter(|name| !name.contains('.')) {
        let constant = format!("at::{}", name.to_uppercase());
        assert!(
            sources
                .iter()
                .any(|(file, text)| file != "fail.rs" && text.contains(&constant)),
            "nothing passes {name:?}"
        );
    }
}
