//! The database's own limit: the same four statements, prepared, by PostgreSQL's bench.

use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use crate::load::Slice;
use crate::place::folder;
use crate::process::Meter;

const SCRIPT: &str = "\\set id random(1, 9223372036854775807)
BEGIN;
INSERT INTO inbox (source, event_id) VALUES ('crm', 'evt_' || :id) ON CONFLICT DO NOTHING;
INSERT INTO effect (event_id, account, amount) VALUES ('evt_' || :id, 'acct-7', 250);
COMMIT;
";

/// It, if it is installed.
pub(crate) fn find() -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let installed = std::fs::read_dir("/usr/lib/postgresql")
        .into_iter()
        .flatten()
        .filter_map(|version| Some(version.ok()?.path().join("bin")));
    let mut folders: Vec<PathBuf> = installed.collect();
    folders.sort();
    folders
        .into_iter()
        .rev()
        .chain(std::env::split_paths(&path))
        .map(|folder| folder.join("pgbench"))
        .find(|program| program.is_file())
}

/// Runs it for about as long. It is not asked for the time of a single transaction.
pub(crate) fn run(
    program: &PathBuf,
    url: &str,
    connections: usize,
    took: Duration,
    meters: &[Meter],
) -> Result<Slice, String> {
    let script = folder("tower_inbox_bench.pgbench");
    std::fs::write(&script, SCRIPT).map_err(|error| error.to_string())?;
    let before: Vec<f64> = meters.iter().map(Meter::seconds).collect();
    let from = Instant::now();
    let output = Command::new(program)
        .args(["--no-vacuum", "--protocol=prepared", "--file"])
        .arg(&script)
        .args(["--client", &connections.to_string()])
        .args(["--jobs", &connections.min(2).to_string()])
        .args(["--time", &took.as_secs().max(1).to_string()])
        .arg(url)
        .output()
        .map_err(|error| error.to_string())?;
    let (took, said) = (from.elapsed(), String::from_utf8_lossy(&output.stdout));
    let number = |line: &str| {
        let (_, after) = said.split_once(line)?;
        after.split_whitespace().next()?.parse::<f64>().ok()
    };
    let done = number("transactions actually processed: ");
    let (Some(done), Some(rate), true) = (done, number("tps = "), output.status.success()) else {
        let why = String::from_utf8_lossy(&output.stderr);
        return Err(format!("pgbench: {said}{why}"));
    };
    let cpu = meters.iter().zip(before);
    Ok(Slice {
        done: done as u64,
        // Without the time that connecting took.
        took: Duration::from_secs_f64((done / rate).min(took.as_secs_f64())),
        early: 0,
        cpu: cpu
            .map(|(meter, before)| meter.seconds() - before)
            .collect(),
        latencies: Vec::new(),
        sent: done as u64,
        logged: None,
    })
}
