//! The suite as documentation: every rule of `docs/rules.md` has a test, and every test of the conformance suite says
//! which rule it shows. No database, and nothing of the crate: it reads the pages and the sources.
//!
//! `tests/run --list-rules` prints each rule with its tests.

#[path = "support/sources.rs"]
mod sources;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::Path;

use sources::{Test, assert_all_exist, named_on, page, read, root, rows, rules_in, tests_under};

/// The sections of the page that number rules are headed by them; these two are not.
const RACES: &str = "Races and crashes";
const BEYOND: &str = "What the contract does not number";
/// A rule that no test can show ends with the reason, in these brackets.
const UNTESTED: &str = "(not tested: ";

struct Rule {
    /// `4.5`, or a tag such as `(schema)`.
    name: String,
    sentence: String,
}

impl Rule {
    fn of(row: &[&str]) -> Self {
        let [name, sentence] = row else {
            panic!("a rule and its sentence: {row:?}");
        };
        Self {
            name: name.trim_start_matches('§').to_owned(),
            sentence: (*sentence).to_owned(),
        }
    }

    /// As it stands in a doc comment.
    fn mark(&self) -> String {
        match self.name.starts_with('(') {
            true => self.name.clone(),
            false => format!("§{}", self.name),
        }
    }

    fn is_untested(&self) -> bool {
        self.sentence.contains(UNTESTED)
    }

    fn is_named_by(&self, test: &Test) -> bool {
        match self.name.starts_with('(') {
            true => test.doc.contains(&self.name),
            false => rules_in(&test.doc).contains(&self.name),
        }
    }
}

/// The rules of the page, and the tags of what is in none.
fn rules() -> Vec<Rule> {
    let text = page("rules");
    let of = |heading| {
        rows(&text, Some(heading))
            .into_iter()
            .map(|row| Rule::of(&row))
    };
    of("§").chain(of(BEYOND)).collect()
}

fn names() -> BTreeSet<String> {
    rules().into_iter().map(|rule| rule.name).collect()
}

/// Without those of this file: there is one in an example of a source below.
fn all_tests() -> Vec<Test> {
    let mut tests = [tests_under("tests"), tests_under("src")].concat();
    tests.retain(|test| test.path != Path::new(file!()));
    tests
}

/// In the contract's order, which is that of the numbers: 4.1, 4.1a, 4.2, 4.10.
#[test]
fn the_rules_are_in_order_and_each_is_there_once() {
    let rules = rules();
    assert!(rules.len() > 60, "{}", rules.len());
    let place = |rule: &Rule| {
        let digits = rule.name.trim_end_matches('a');
        let (section, number) = digits.split_once('.').unwrap_or((digits, "0"));
        match (section.parse(), number.parse()) {
            (Ok(section), Ok(number)) => (section, number, rule.name.clone()),
            _ => (u32::MAX, u32::MAX, rule.name.clone()),
        }
    };
    let places: Vec<_> = rules.iter().map(place).collect();
    for pair in places.windows(2) {
        assert!(pair[0] < pair[1], "{pair:?}");
    }
}

#[test]
fn every_rule_is_named_by_a_test() {
    let tests = all_tests();
    for rule in rules() {
        let named = tests.iter().any(|test| rule.is_named_by(test));
        let mark = rule.mark();
        match rule.is_untested() {
            true => assert!(!named, "{mark} has a test now: take the brackets away"),
            false => assert!(named, "no test names {mark}: {}", rule.sentence),
        }
    }
}

#[test]
fn no_test_names_a_rule_that_there_is_not() {
    let known = names();
    let mut named = 0;
    for test in all_tests() {
        let rules = rules_in(&test.doc);
        named += rules.len();
        for rule in rules {
            let what = (&test.path, &test.name);
            assert!(known.contains(&rule), "{what:?} names §{rule}");
        }
        let tag = test.doc.split_inclusive(')').next().unwrap_or_default();
        assert!(
            !tag.starts_with('(') || known.contains(tag),
            "{:?} begins with {tag}",
            test.name
        );
    }
    assert!(named > 500, "{named}");
}

/// Comments, documentation and pages name rules too. A number without a point is a whole section there.
#[test]
fn no_page_and_no_comment_names_a_rule_that_there_is_not() {
    let mut known = names();
    let sections: Vec<_> = known
        .iter()
        .filter_map(|name| name.split_once('.'))
        .map(|(section, _)| section.to_owned())
        .collect();
    known.extend(sections);
    let mut files = vec![root().join("README.md"), root().join("CHANGELOG.md")];
    for directory in ["src", "tests", "examples", "benches"] {
        sources::rust_files(&root().join(directory), &mut files);
    }
    let pages = std::fs::read_dir(root().join("docs")).expect("the pages");
    let pages = pages.map(|entry| entry.expect("an entry").path());
    // There are pictures too.
    files.extend(pages.filter(|path| path.extension().is_some_and(|ending| ending == "md")));
    assert!(files.len() > 200, "{}", files.len());
    for path in files {
        let unknown: Vec<_> = rules_in(&read(&path)).difference(&known).cloned().collect();
        assert!(unknown.is_empty(), "{}: §{unknown:?}", path.display());
    }
}

/// What the seeds demand is on pages of its own, with the tests of each clause, and `seeds/pages.rs` looks after it.
#[test]
fn every_test_of_the_conformance_suite_names_what_it_shows() {
    let rules = rules();
    let mut seen = 0;
    for test in tests_under("tests/conformance") {
        seen += 1;
        let Test { name, path, .. } = &test;
        let words = name.split('_').filter(|word| !word.is_empty()).count();
        assert!(words >= 3, "{path:?}: {name} is no sentence");
        let of_a_seed = path.starts_with("tests/conformance/seeds");
        let shown = rules.iter().any(|rule| rule.is_named_by(&test));
        assert!(shown || of_a_seed, "{path:?}: {name} names no rule");
    }
    assert!(seen > 350, "{seen}");
}

#[test]
fn every_race_and_crash_of_the_contract_has_a_test() {
    let text = page("rules");
    let races = rows(&text, Some(RACES));
    assert!(races.len() > 15, "{}", races.len());
    for race in races {
        let shown = race.last().is_some_and(|cell| cell.contains("::"));
        assert!(shown, "{race:?}");
    }
    let named = named_on(&text);
    assert!(named.len() > 25, "{}", named.len());
    assert_all_exist(&named, &all_tests());
}

/// The last cell of each row says which test shows it, or in brackets why it cannot happen here.
#[test]
fn every_trap_is_shown_by_a_test_or_cannot_happen() {
    let text = page("traps");
    let traps = rows(&text, None);
    assert!(traps.len() > 50, "{}", traps.len());
    for trap in traps {
        let last = trap.last().expect("a cell");
        assert!(last.contains("::") || last.starts_with('('), "{trap:?}");
    }
    let named = named_on(&text);
    assert!(named.len() > 60, "{}", named.len());
    assert_all_exist(&named, &all_tests());
}

/// `rule: sentence`, and below it the tests that name it.
#[test]
#[allow(clippy::print_stdout, reason = "the list is what was asked for")]
fn the_rules_can_be_listed_with_their_tests() {
    let tests = all_tests();
    let mut list = String::new();
    for rule in rules() {
        let mark = rule.mark();
        writeln!(list, "{mark}  {}", rule.sentence).expect("a string takes it");
        for test in tests.iter().filter(|test| rule.is_named_by(test)) {
            writeln!(list, "  {}::{}", test.path.display(), test.name).expect("the same");
        }
    }
    let example = "  tests/conformance/keeping.rs::nothing_is_forgotten_while_clocks_are_apart";
    assert!(list.lines().any(|line| line == example), "{list}");
    if std::env::var_os("TOWER_INBOX_LIST_RULES").is_some_and(|wanted| wanted == "1") {
        // The harness may have begun a line of its own.
        println!("\n{list}");
    }
}

/// A parser that finds nothing would make every test above pass or fail for the wrong reason.
mod parsers {
    use super::*;

    const SOURCE: &str = r#"
macro_rules! of_two {
    ($($test:ident),+ $(,)?) => {
        $(#[test] fn $test() { super::$test(2) })+
    };
}
macro_rules! of_none {
    ($($test:ident),+ $(,)?) => { $(drop($test);)+ };
}

of_two![
    first_of_the_list,
    second_of_the_list,
];
crate::elsewhere::of_two!(last_of_the_list);
of_none!(no_test_at_all);

/// Above it: §4.5.
/// And more of §5.10, §4.1a.
#[allow(
    dead_code,
    reason = "a reason"
)]
#[tokio::test(flavor = "current_thread")]
async fn marked() {}

/// A helper's.
fn no_test_at_all() {}

/// (schema)
pub(crate) async fn first_of_the_list<D: Db>(db: D) {}
// No doc comment.
fn second_of_the_list() {}
fn last_of_the_list() {}
"#;

    #[test]
    fn tests_are_found_with_what_stands_above_them() {
        let makers = sources::makers(SOURCE);
        assert_eq!(makers, BTreeSet::from(["of_two".to_owned()]));
        let expected = [
            ("first_of_the_list", "(schema)"),
            ("last_of_the_list", ""),
            ("marked", "Above it: §4.5. And more of §5.10, §4.1a."),
            ("second_of_the_list", ""),
        ];
        let expected = BTreeMap::from(expected.map(|(name, doc)| (name, doc.to_owned())));
        assert_eq!(sources::tests_in(SOURCE, &makers), expected);
    }

    #[test]
    fn the_macros_of_the_suites_are_known_to_make_tests() {
        let tests = tests_under("tests");
        let has = |path: &str, name: &str| {
            let is = |test: &Test| test.path.ends_with(path) && test.name == name;
            assert!(tests.iter().any(is), "{path}: {name}");
        };
        has("conformance/order.rs", "a_stream_may_begin_at_0");
        has(
            "conformance/outage.rs",
            "settings_that_may_lose_a_commit_are_warned_about",
        );
        has(
            "conformance/outage.rs",
            "looks_that_are_lost_leave_the_pool_whole",
        );
        has(
            "receiver/pool.rs",
            "clients_that_disconnect_leave_the_pool_whole",
        );
        has(
            "crash.rs",
            "a_frozen_receiver_blocks_others_no_longer_than_its_budget",
        );
    }

    #[test]
    fn rules_are_read_off_a_text() {
        let rules = rules_in("§4.1a, §5.10: of §3. Not 7.1, nor §x; §6.7's, and §4.1apart");
        let expected = ["3", "4.1", "4.1a", "5.10", "6.7"].map(str::to_owned);
        assert_eq!(rules, BTreeSet::from(expected));
    }

    #[test]
    fn rows_and_names_are_read_off_a_page() {
        let text = "# Page\n\n## One\n\n| a | b |\n|---|---|\n| x | `file::test`, `order::one_two` |\n\n## Two\n\n\
                    | c |\n|---|\n| y `mod` |\n";
        let first = ["x", "`file::test`, `order::one_two`"];
        assert_eq!(rows(text, Some("One")), [first.to_vec()]);
        assert_eq!(rows(text, None), [first.to_vec(), vec!["y `mod`"]]);
        let named = BTreeSet::from([("order".to_owned(), "one_two".to_owned())]);
        assert_eq!(named_on(text), named);
    }
}
