//! The pages of the seeds name tests. A name that is no test's would be a promise that nobody keeps.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

const PAGES: [&str; 4] = ["clauses", "brief", "consistency", "kudos"];

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// All Rust files of a directory and of those below it.
fn sources(directory: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(directory).expect("a directory") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            sources(&path, found);
        } else if path.extension().is_some_and(|ending| ending == "rs") {
            found.push(path);
        }
    }
}

/// `(file, test)` for each `file::test` on a page.
fn named() -> BTreeSet<(String, String)> {
    let is_name = |text: &str| {
        let allowed = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_';
        !text.is_empty() && text.bytes().all(allowed)
    };
    let mut named = BTreeSet::new();
    for page in PAGES {
        let text = read(&root().join("docs").join(page).with_extension("md"));
        for code in text.split('`').skip(1).step_by(2) {
            if let Some((file, test)) = code.split_once("::")
                && is_name(file)
                && is_name(test)
                && (file, test) != ("file", "test")
            {
                named.insert((file.to_owned(), test.to_owned()));
            }
        }
    }
    named
}

/// The names of the tests in a source: those with an attribute, and those that a macro makes tests of.
fn tests(source: &str) -> BTreeSet<&str> {
    let mut attribute = false;
    let mut functions = BTreeSet::new();
    let mut tests = BTreeSet::new();
    for line in source.lines().map(str::trim) {
        if line.starts_with("#[") {
            attribute |= line == "#[test]" || line.starts_with("#[tokio::test");
        } else if let Some(rest) = line.strip_prefix("async fn ").or(line.strip_prefix("fn ")) {
            let name = rest.split(['(', '<']).next().unwrap_or_default();
            functions.insert(name);
            if std::mem::take(&mut attribute) {
                tests.insert(name);
            }
        } else if !line.starts_with("//") {
            attribute = false;
        }
    }
    // `name,` in the list of `suite!`, and `name` alone where other files have their own macro.
    let listed = source.lines().map(|line| line.trim().trim_end_matches(','));
    tests.extend(listed.filter(|name| functions.contains(name)));
    tests
}

#[test]
fn each_test_that_a_page_names_exists() {
    let mut files = Vec::new();
    sources(&root().join("tests"), &mut files);
    let named = named();
    assert!(named.len() > 50, "{named:?}");
    for (file, test) in &named {
        let of_that_name = files
            .iter()
            .filter(|path| path.file_stem().is_some_and(|stem| stem == file.as_str()));
        let found = of_that_name.map(|path| read(path));
        let exists = found
            .into_iter()
            .any(|source| tests(&source).contains(test.as_str()));
        assert!(exists, "{file}::{test} is on a page and is no test");
    }
}

#[test]
fn each_test_of_the_seeds_is_on_a_page() {
    let named = named();
    let mut files = Vec::new();
    sources(&root().join("tests/conformance/seeds"), &mut files);
    let mut seen = 0;
    for path in files {
        let file = path
            .file_stem()
            .and_then(|stem| stem.to_str())
            .expect("a name")
            .to_owned();
        if file == "pages" {
            continue;
        }
        for test in tests(&read(&path)) {
            seen += 1;
            let name = (file.clone(), test.to_owned());
            assert!(named.contains(&name), "{file}::{test} is on no page");
        }
    }
    assert!(seen > 40, "{seen}");
}

/// Every clause of a table says in its last cell which test shows it, or in brackets what it waits for.
#[test]
fn each_clause_has_a_test() {
    for page in &PAGES[1..] {
        let text = read(&root().join("docs").join(page).with_extension("md"));
        let rows = text.lines().filter(|line| line.starts_with("| "));
        let mut clauses = 0;
        for row in rows {
            let last = row
                .trim_end_matches('|')
                .rsplit('|')
                .next()
                .unwrap_or_default()
                .trim();
            clauses += 1;
            let shown = last == "test" || last.starts_with('(') || last.contains("::");
            assert!(shown, "{page}: {row}");
        }
        assert!(clauses > 10, "{page}: {clauses}");
    }
}
