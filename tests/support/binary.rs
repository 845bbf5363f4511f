//! Where the built examples are; built first if they are missing or older than the code.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::SystemTime;

/// The executable of an example, beside those of the tests.
pub(crate) fn example(name: &str) -> PathBuf {
    let test = std::env::current_exe().expect("the test's own path");
    let profile = test
        .parent()
        .and_then(Path::parent)
        .expect("target/<profile>/deps");
    let path = profile
        .join("examples")
        .join(format!("{name}{}", std::env::consts::EXE_SUFFIX));
    // Cargo builds the examples before it runs all tests, but not before it runs one file of them. The stamp says when
    // this was last seen to: what cargo finds unchanged keeps its age.
    let stamp = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}.built"));
    let newest = newest_source();
    if modified(&path) < newest && (modified(&stamp) < newest || !path.exists()) {
        build(name, profile);
        std::fs::write(&stamp, "").expect("a stamp");
    }
    path
}

fn build(name: &str, profile: &Path) {
    let target = profile.parent().expect("target");
    let profile = match profile.file_name().and_then(|name| name.to_str()) {
        Some("debug") | None => "dev",
        Some(other) => other,
    };
    let status = Command::new(env!("CARGO"))
        .args([
            "build",
            "--quiet",
            "--all-features",
            "--example",
            name,
            "--profile",
            profile,
            "--target-dir",
        ])
        .arg(target)
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .status()
        .expect("cargo runs");
    assert!(status.success(), "the example {name} does not build");
}

fn newest_source() -> SystemTime {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let folders = ["src", "examples", "migrations"].map(|name| newest_in(&root.join(name)));
    folders
        .into_iter()
        .max()
        .expect("three folders")
        .max(modified(&root.join("Cargo.toml")))
}

fn newest_in(folder: &Path) -> SystemTime {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let times = entries.map(|entry| match entry.file_type() {
        Ok(kind) if kind.is_dir() => newest_in(&entry.path()),
        _ => modified(&entry.path()),
    });
    times.max().unwrap_or(SystemTime::UNIX_EPOCH)
}

/// The beginning of time if there is no such file.
fn modified(path: &Path) -> SystemTime {
    let modified = std::fs::metadata(path).and_then(|meta| meta.modified());
    modified.unwrap_or(SystemTime::UNIX_EPOCH)
}
