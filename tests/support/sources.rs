//! What the sources and the pages say about tests: which there are, what stands above each, and which a page names.
//!
//! It reads text, and knows of Rust only as much as rustfmt leaves of it.
#![allow(dead_code, reason = "no test file uses all of it")]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// A test, as its source has it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Test {
    /// The file's name without its ending, as pages name it.
    pub(crate) file: String,
    pub(crate) name: String,
    /// The doc comment above it, in one line.
    pub(crate) doc: String,
    /// Its file, from the crate's root.
    pub(crate) path: PathBuf,
}

/// All tests of the Rust files in a directory of the crate and in those below it.
pub(crate) fn tests_under(directory: &str) -> Vec<Test> {
    let mut files = Vec::new();
    rust_files(&root().join(directory), &mut files);
    let sources: Vec<_> = files.iter().map(|path| read(path)).collect();
    let makers: BTreeSet<_> = sources.iter().flat_map(|source| makers(source)).collect();
    let mut tests = Vec::new();
    for (path, source) in files.iter().zip(&sources) {
        let file = path.file_stem().and_then(|stem| stem.to_str());
        let found = tests_in(source, &makers);
        tests.extend(found.into_iter().map(|(name, doc)| Test {
            file: file.expect("a name").to_owned(),
            name: name.to_owned(),
            doc,
            path: path.strip_prefix(root()).expect("below it").to_owned(),
        }));
    }
    tests
}

/// The tests of a source with what stands above each: functions with an attribute, and those that one of these macros
/// makes tests of.
pub(crate) fn tests_in<'a>(
    source: &'a str,
    makers: &BTreeSet<String>,
) -> BTreeMap<&'a str, String> {
    let mut functions = BTreeMap::new();
    let mut tests = BTreeSet::new();
    let (mut doc, mut marked, mut in_attribute) = (Vec::new(), false, false);
    for line in source.lines().map(str::trim) {
        if in_attribute {
            in_attribute = !line.ends_with(']');
        } else if let Some(text) = line.strip_prefix("///") {
            doc.push(text.trim());
        } else if line.starts_with("#[") {
            marked |= line == "#[test]" || line.starts_with("#[tokio::test");
            in_attribute = !line.ends_with(']');
        } else if !line.starts_with("//") {
            if let Some(name) = function(line) {
                let text = doc.join(" ");
                if marked {
                    tests.insert(name);
                }
                // A function of the same name elsewhere in the file is some helper's.
                let known = functions.entry(name).or_insert_with(String::new);
                if marked || known.is_empty() {
                    *known = text;
                }
            }
            doc.clear();
            marked = false;
        }
    }
    tests.extend(listed(source, makers));
    let above = |name| functions.get(name).cloned().unwrap_or_default();
    tests.into_iter().map(|name| (name, above(name))).collect()
}

/// The name of the function that a line begins.
fn function(line: &str) -> Option<&str> {
    let (before, rest) = line.split_once("fn ")?;
    let allowed = |word: &str| matches!(word, "async" | "const") || word.starts_with("pub");
    if !before.split_whitespace().all(allowed) {
        return None;
    }
    let name = rest.split(['(', '<']).next()?;
    // In a macro it may be `$test`.
    (!name.is_empty() && name.chars().all(is_of_name)).then_some(name)
}

/// What stands in the calls of these macros.
fn listed<'a>(source: &'a str, makers: &BTreeSet<String>) -> BTreeSet<&'a str> {
    let mut names = BTreeSet::new();
    for (at, _) in source.match_indices('!') {
        let (before, after) = (&source[..at], &source[at + 1..]);
        let start = before.rfind(|c: char| !is_of_name(c)).map_or(0, |n| n + 1);
        let list = after.trim_start().strip_prefix(['[', '(']);
        let list = list.and_then(|list| list.split([']', ')']).next());
        let Some(list) = list.filter(|_| makers.contains(&before[start..])) else {
            continue;
        };
        let words = list
            .split(',')
            .map(str::trim)
            .filter(|word| !word.is_empty());
        if words.clone().all(|word| word.chars().all(is_of_name)) {
            names.extend(words);
        }
    }
    names
}

/// The macros of a source that make tests: `fn $test()` is in them.
pub(crate) fn makers(source: &str) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    for text in source.split("macro_rules!").skip(1) {
        let (name, body) = text.split_once('{').unwrap_or_default();
        let line = source.lines().find(|line| {
            line.split_once("macro_rules!").is_some_and(|(_, rest)| {
                rest.trim_end().trim_end_matches('{').trim() == name.trim()
            })
        });
        let line = line.unwrap_or_default();
        let indent = &line[..line.len() - line.trim_start().len()];
        let body = body
            .split(&format!("\n{indent}}}\n"))
            .next()
            .unwrap_or_default();
        if body.contains("fn $test()") {
            names.insert(name.trim().to_owned());
        }
    }
    names
}

fn is_of_name(c: char) -> bool {
    c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_'
}

/// `(file, test)` for each `file::test` of a page.
pub(crate) fn named_on(page: &str) -> BTreeSet<(String, String)> {
    let is_name = |text: &str| !text.is_empty() && text.chars().all(is_of_name);
    let codes = page.split('`').skip(1).step_by(2);
    codes
        .filter_map(|code| code.split_once("::"))
        .filter(|(file, test)| is_name(file) && is_name(test) && (*file, *test) != ("file", "test"))
        .map(|(file, test)| (file.to_owned(), test.to_owned()))
        .collect()
}

/// The rules that a text names: `4.5` for `§4.5`.
pub(crate) fn rules_in(text: &str) -> BTreeSet<String> {
    let after = text.split('§').skip(1);
    after.filter_map(rule_at).map(str::to_owned).collect()
}

/// `4`, `4.5` or `4.1a` at the start of a text.
fn rule_at(text: &str) -> Option<&str> {
    let digits = |text: &str| text.bytes().take_while(u8::is_ascii_digit).count();
    let mut end = digits(text);
    if end == 0 {
        return None;
    }
    if let Some(rest) = text[end..].strip_prefix('.')
        && digits(rest) > 0
    {
        end += 1 + digits(rest);
        let letter = text[end..].strip_prefix('a');
        if letter.is_some_and(|rest| !rest.starts_with(char::is_alphanumeric)) {
            end += 1;
        }
    }
    Some(&text[..end])
}

/// The cells of each row of the tables under a heading, or of the whole page, without the tables' own heads.
pub(crate) fn rows<'a>(page: &'a str, heading: Option<&str>) -> Vec<Vec<&'a str>> {
    let mut inside = heading.is_none();
    let mut rows = Vec::new();
    let mut lines = page.lines().peekable();
    while let Some(line) = lines.next() {
        if let Some(text) = line.strip_prefix("## ") {
            inside = heading.is_none_or(|wanted| text.starts_with(wanted));
        }
        let head = lines.peek().is_some_and(|next| next.starts_with("|--"));
        if inside && line.starts_with("| ") && !head {
            let line = line.trim_start_matches('|').trim_end_matches('|');
            rows.push(line.split(" | ").map(str::trim).collect());
        }
    }
    rows
}

/// Fails where a page names what is no test.
#[track_caller]
pub(crate) fn assert_all_exist(named: &BTreeSet<(String, String)>, tests: &[Test]) {
    for (file, name) in named {
        let exists = tests
            .iter()
            .any(|test| test.file == *file && test.name == *name);
        assert!(exists, "{file}::{name} is on a page and is no test");
    }
}

/// A page of `docs/`.
pub(crate) fn page(name: &str) -> String {
    read(&root().join("docs").join(name).with_extension("md"))
}

pub(crate) fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

pub(crate) fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// All Rust files of a directory and of those below it, in the order of their names.
pub(crate) fn rust_files(directory: &Path, found: &mut Vec<PathBuf>) {
    let entries = fs::read_dir(directory).expect("a directory");
    let mut paths: Vec<_> = entries
        .map(|entry| entry.expect("an entry").path())
        .collect();
    paths.sort();
    for path in paths {
        if path.is_dir() {
            rust_files(&path, found);
        } else if path.extension().is_some_and(|ending| ending == "rs") {
            found.push(path);
        }
    }
}
