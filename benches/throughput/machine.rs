//! What it was measured on.

use std::path::Path;

use sqlx::{ConnectOptions, Connection};

use crate::place::folder;
use crate::servers::Servers;

/// Cores, processor, memory, kernel, and where files go.
pub(crate) fn describe() -> Vec<String> {
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    let processor = field("/proc/cpuinfo", "model name").unwrap_or_else(|| "unknown".into());
    let memory = field("/proc/meminfo", "MemTotal")
        .and_then(|total| total.split_whitespace().next()?.parse::<f64>().ok())
        .map_or(0.0, |kib| kib / 1_048_576.0);
    let kernel = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let mut lines = vec![format!(
        "{cores} cores ({processor}), {memory:.0} GiB, Linux {}; load, receiver and database share them",
        kernel.trim()
    )];
    for (what, folder) in [
        ("SQLite's files", folder("")),
        ("the servers' files", std::env::temp_dir()),
    ] {
        let kind = filesystem(&folder);
        let warning = if kind == "tmpfs" {
            ": IN MEMORY, where a flush costs nothing; set TMPDIR"
        } else {
            ""
        };
        lines.push(format!("{what} on {kind}{warning}"));
    }
    if cfg!(feature = "failpoints") {
        lines.push(
            "built with `failpoints`, which asks at each place whether to fail: `--no-default-features --features \
             axum,sqlite,postgres,mysql` leaves it out"
                .into(),
        );
    }
    lines
}

/// The servers that were used, and how durable they are.
pub(crate) async fn servers(servers: &Servers) -> Vec<String> {
    let mut lines = Vec::new();
    if let Some(url) = servers.started_postgres() {
        let options: sqlx::postgres::PgConnectOptions = url.parse().expect("a URL");
        let mut conn = options.connect().await.expect("the server answers");
        let said: String = sqlx::query_scalar(
            "SELECT 'PostgreSQL ' || split_part(current_setting('server_version'), ' ', 1) || ': ' || string_agg(name || ' ' ||
                current_setting(name), ', ' ORDER BY name)
             FROM pg_settings WHERE name IN ('fsync', 'synchronous_commit', 'full_page_writes', 'shared_buffers', 'max_wal_size')",
        )
        .fetch_one(&mut conn)
        .await
        .expect("its settings");
        let _ = conn.close().await;
        lines.push(said);
    }
    if let Some(url) = servers.started_mysql() {
        let options: sqlx::mysql::MySqlConnectOptions = url.parse().expect("a URL");
        let mut conn = options.connect().await.expect("the server answers");
        let said: String = sqlx::query_scalar(
            "SELECT concat(version(), ': innodb_flush_log_at_trx_commit ', @@innodb_flush_log_at_trx_commit, ', innodb_doublewrite ',
                @@innodb_doublewrite, ', log_bin ', @@log_bin, ', innodb_buffer_pool_size ', @@innodb_buffer_pool_size DIV 1048576, ' MiB')",
        )
        .fetch_one(&mut conn)
        .await
        .expect("its settings");
        let _ = conn.close().await;
        lines.push(said);
    }
    lines
}

fn field(file: &str, name: &str) -> Option<String> {
    let text = std::fs::read_to_string(file).ok()?;
    let line = text.lines().find(|line| line.starts_with(name))?;
    Some(line.split_once(':')?.1.trim().to_owned())
}

/// Of the longest mount point that the folder is below.
fn filesystem(folder: &Path) -> String {
    let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    mounts
        .lines()
        .filter_map(|line| {
            let mut fields = line.split_whitespace().skip(1);
            Some((fields.next()?, fields.next()?))
        })
        .filter(|(at, _)| folder.starts_with(at))
        .max_by_key(|(at, _)| at.len())
        .map_or_else(|| "unknown".into(), |(_, kind)| kind.to_owned())
}
