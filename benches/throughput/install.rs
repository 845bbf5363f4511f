//! The peers in other languages, installed below `target/peers` by the versions that are written down.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

const PEERS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/benches/peers");

/// The command that starts fastify, up to its arguments.
///
/// # Errors
/// Why it cannot be started.
pub(crate) fn node() -> Result<Command, String> {
    let home = copy("node", &["package.json", "package-lock.json", "server.js"])?;
    installed(&home, "package-lock.json", || {
        run(Command::new("npm")
            .args(["ci", "--no-audit", "--no-fund", "--ignore-scripts"])
            .current_dir(&home))
    })?;
    let mut command = Command::new("node");
    command.arg(home.join("server.js"));
    Ok(command)
}

/// The command that starts FastAPI, up to its arguments.
///
/// # Errors
/// Why it cannot be started.
pub(crate) fn python() -> Result<Command, String> {
    let home = copy("python", &["requirements.txt", "server.py"])?;
    let program = home.join("venv/bin/python");
    installed(&home, "requirements.txt", || {
        run(Command::new("python3")
            .args(["-m", "venv", "--clear"])
            .arg(home.join("venv")))?;
        run(Command::new(&program)
            .args(["-m", "pip", "install", "--quiet", "--no-deps", "-r"])
            .arg(home.join("requirements.txt")))
    })?;
    let mut command = Command::new(program);
    command.arg(home.join("server.py"));
    Ok(command)
}

/// `target/peers/<name>`, where the files are brought up to date.
fn copy(name: &str, files: &[&str]) -> Result<PathBuf, String> {
    // CARGO_TARGET_TMPDIR is `target/tmp`.
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).parent();
    let home = target.expect("a folder").join("peers").join(name);
    std::fs::create_dir_all(&home).map_err(|error| error.to_string())?;
    for file in files {
        let from = Path::new(PEERS).join(name).join(file);
        std::fs::copy(&from, home.join(file)).map_err(|error| format!("{file}: {error}"))?;
    }
    Ok(home)
}

/// Installs, unless that was done for the versions in this file.
fn installed(
    home: &Path,
    versions: &str,
    install: impl FnOnce() -> Result<(), String>,
) -> Result<(), String> {
    let (wanted, done) = (home.join(versions), home.join("installed"));
    let wanted = std::fs::read(wanted).map_err(|error| error.to_string())?;
    if std::fs::read(&done).is_ok_and(|done| done == wanted) {
        return Ok(());
    }
    install()?;
    std::fs::write(done, wanted).map_err(|error| error.to_string())
}

fn run(command: &mut Command) -> Result<(), String> {
    let output = command
        .stdin(Stdio::null())
        .output()
        .map_err(|error| format!("{:?}: {error}", command.get_program()))?;
    if output.status.success() {
        return Ok(());
    }
    let why = String::from_utf8_lossy(&output.stderr);
    Err(format!("{command:?}: {}", why.trim()))
}
