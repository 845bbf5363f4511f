//! Broken variants of the crate: a suite that misses one shows less than it says.
//!
//! `docs/broken.md` lists the variants, each with tests that notice it. Every such test is run here once more, in a process
//! of its own with the crate broken, and must fail.

use std::collections::BTreeSet;
use std::env;
use std::path::Path;
use std::process::{Command, Stdio};

/// What the test that is run here finds its variant in.
const VARIABLE: &str = "TOWER_INBOX_TEST_BROKEN";

/// Breaks the crate in this process, if that is what it was started for.
pub(crate) fn choose() {
    if let Ok(name) = env::var(VARIABLE) {
        assert!(tower_inbox::broken::choose(&name), "no variant {name:?}");
    }
}

/// A row of the page: a variant, and a test that notices it.
struct Row {
    variant: String,
    test: String,
}

fn page() -> Vec<Row> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/broken.md");
    let text = std::fs::read_to_string(path).expect("the page is there");
    let mut rows = Vec::new();
    for line in text.lines().filter(|line| line.starts_with("| `")) {
        let cells: Vec<_> = line.trim_matches('|').split('|').map(str::trim).collect();
        let [variant, _, tests] = cells[..] else {
            panic!("three cells: {line}");
        };
        let named: Vec<_> = tests.split('`').skip(1).step_by(2).collect();
        assert!(!named.is_empty(), "no test: {line}");
        rows.extend(named.into_iter().map(|test| Row {
            variant: variant.trim_matches('`').to_owned(),
            test: test.to_owned(),
        }));
    }
    rows
}

/// Whether the databases that are to be tested have the one that a test is for.
fn is_tested(test: &str) -> bool {
    let listed = env::var("TOWER_INBOX_TEST_DATABASES").unwrap_or("sqlite".to_owned());
    let is_listed = |name: &str| listed.split(',').any(|listed| listed.trim() == name);
    let named = ["sqlite", "postgres", "mysql"].into_iter().find(|name| {
        let of = |part: &str| part == *name || part.strip_prefix("behind_") == Some(name);
        test.split("::").any(of)
    });
    // A test that names none is about SQLite.
    is_listed(named.unwrap_or("sqlite"))
}

/// Runs one test with the crate broken. What it printed, if it failed as it should.
fn caught(row: &Row) -> Result<(), String> {
    let ran = Command::new(env::current_exe().expect("this program"))
        .args(["--exact", &row.test, "--nocapture", "--test-threads=1"])
        .env(VARIABLE, &row.variant)
        .env_remove("TOWER_INBOX_TEST_ALL")
        .stdin(Stdio::null())
        .output()
        .expect("it is started");
    let said = String::from_utf8_lossy(&ran.stdout);
    let what = format!("{} by {}", row.variant, row.test);
    if said.contains("test result: ok. 1 passed") {
        return Err(format!("not caught: {what}"));
    }
    // Not by a test that is not there, or that could not begin.
    let failed = said.contains("0 passed; 1 failed");
    let named = !String::from_utf8_lossy(&ran.stderr).contains("cannot be:");
    if failed && named {
        Ok(())
    } else {
        Err(format!("not run: {what}: {said}"))
    }
}

fn each_is_caught(share: usize, of: usize) {
    let rows = page().into_iter().filter(|row| is_tested(&row.test));
    let missed: Vec<_> = rows
        .skip(share)
        .step_by(of)
        .filter_map(|row| caught(&row).err())
        .collect();
    assert!(missed.is_empty(), "{missed:#?}");
}

/// §4.1, and every rule that a row of the page is about: a suite that cannot fail shows nothing. In parts, so that a test
/// runner has something to spread.
macro_rules! parts {
    ($($name:ident: $share:literal;)*) => {
        const PARTS: usize = [$($share),*].len();
        $(
            #[test]
            fn $name() {
                each_is_caught($share, PARTS);
            }
        )*
    };
}

parts! {
    broken_variants_are_caught_1: 0;
    broken_variants_are_caught_2: 1;
    broken_variants_are_caught_3: 2;
    broken_variants_are_caught_4: 3;
    broken_variants_are_caught_5: 4;
    broken_variants_are_caught_6: 5;
    broken_variants_are_caught_7: 6;
    broken_variants_are_caught_8: 7;
}

/// §4.1: the page is the list, and the list the page.
#[test]
fn every_broken_variant_is_on_the_page() {
    let on_page: BTreeSet<_> = page().into_iter().map(|row| row.variant).collect();
    let known: BTreeSet<_> = tower_inbox::broken::names().map(str::to_owned).collect();
    assert_eq!(on_page, known);
    assert!(known.len() >= 20, "{}", known.len());
    // Every row is about a test that is run with one of the databases.
    for row in page() {
        let runs = ["sqlite", "postgres", "mysql"].map(|name| row.test.contains(name));
        assert!(
            runs.contains(&true) || row.test.starts_with("restore::"),
            "{}",
            row.test
        );
    }
}
