//! The pages of the seeds name tests. A name that is no test's would be a promise that nobody keeps.

#[path = "../../support/sources.rs"]
mod sources;

use std::collections::BTreeSet;

use sources::{assert_all_exist, named_on, page, tests_under};

const PAGES: [&str; 4] = ["clauses", "brief", "consistency", "kudos"];

/// `(file, test)` for each `file::test` on a page.
fn named() -> BTreeSet<(String, String)> {
    PAGES
        .iter()
        .flat_map(|name| named_on(&page(name)))
        .collect()
}

#[test]
fn each_test_that_a_page_names_exists() {
    let named = named();
    assert!(named.len() > 50, "{named:?}");
    assert_all_exist(&named, &tests_under("tests"));
}

#[test]
fn each_test_of_the_seeds_is_on_a_page() {
    let named = named();
    let mut seen = 0;
    // The macros that make tests of them are the suite's.
    for test in tests_under("tests/conformance") {
        if test.file == "pages" || !test.path.starts_with("tests/conformance/seeds") {
            continue;
        }
        seen += 1;
        let name = (test.file, test.name);
        assert!(named.contains(&name), "{name:?} is on no page");
    }
    assert!(seen > 40, "{seen}");
}

/// Every clause of a table says in its last cell which test shows it, or in brackets what it waits for.
#[test]
fn each_clause_has_a_test() {
    for name in &PAGES[1..] {
        let text = page(name);
        let rows = sources::rows(&text, None);
        for row in &rows {
            let last = row.last().expect("a cell");
            let shown = last.starts_with('(') || last.contains("::");
            assert!(shown, "{name}: {row:?}");
        }
        assert!(rows.len() > 10, "{name}: {}", rows.len());
    }
}
