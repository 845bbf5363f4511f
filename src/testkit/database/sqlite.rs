use std::path::{Path, PathBuf};
use std::time::Duration;

use sqlx::sqlite::SqlitePoolOptions;
use sqlx::{AssertSqlSafe, Pool, Sqlite};

use super::{
    CONNECTIONS, Cell, Place, TestBackend, TestDatabase, fresh_name, is_first_look, is_left_over,
    not_made, refuse_paused_clock,
};
use crate::store::sqlite;

impl TestDatabase<Sqlite> {
    pub(in crate::testkit) async fn file() -> Self {
        refuse_paused_clock();
        let temporary = std::env::temp_dir();
        if is_first_look("sqlite") {
            remove_left_overs(&temporary);
        }
        let directory = temporary.join(fresh_name());
        if let Err(error) = std::fs::create_dir_all(&directory) {
            panic!("no directory {}: {error}", directory.display());
        }
        let url = url(&directory.join("test.db"));
        let made = sqlite::connect(&url, CONNECTIONS).await;
        if made.is_err() {
            // Whatever cannot be removed is a left-over, for a later run.
            let _ = std::fs::remove_dir_all(&directory);
        }
        let pool = not_made("no SQLite database could be made", made);
        Self::new(pool, url, Place::Directory(directory))
    }

    pub(in crate::testkit) async fn memory() -> Self {
        refuse_paused_clock();
        let url = "sqlite::memory:".to_owned();
        // One connection that is kept: another one would have another database.
        let options = SqlitePoolOptions::new()
            .max_connections(1)
            .max_lifetime(None)
            .idle_timeout(None);
        let pool = not_made(
            "no SQLite database could be made in memory",
            options.connect(&url).await,
        );
        Self::new(pool, url, Place::Memory)
    }
}

impl TestBackend for Sqlite {
    const WRITER_WAITS: Option<Duration> = Some(sqlite::BUSY_TIMEOUT);

    async fn remove(_: &str, _: &str) -> Result<(), sqlx::Error> {
        // Its directory is all that there is.
        Ok(())
    }

    async fn cells(pool: &Pool<Self>, sql: &str) -> Result<Vec<Vec<Cell>>, sqlx::Error> {
        let rows = sqlx::raw_sql(AssertSqlSafe(sql)).fetch_all(pool).await?;
        rows.iter().map(Cell::all).collect()
    }
}

fn url(file: &Path) -> String {
    let path = file.display().to_string();
    let path = path
        .replace('%', "%25")
        .replace('?', "%3F")
        .replace('#', "%23");
    format!("sqlite://{path}?mode=rwc")
}

/// Whatever cannot be removed is not ours, or is looked at again by the next run.
fn remove_left_overs(temporary: &Path) {
    let entries = std::fs::read_dir(temporary).into_iter().flatten().flatten();
    let left_over: Vec<PathBuf> = entries
        .filter(|entry| entry.file_name().to_str().is_some_and(is_left_over))
        .map(|entry| entry.path())
        .collect();
    for directory in left_over {
        let _ = std::fs::remove_dir_all(directory);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::Timestamp;

    #[test]
    fn what_is_older_than_a_day_is_removed_and_nothing_else() {
        let temporary = std::env::temp_dir().join(fresh_name());
        let old = Timestamp::now().as_secs() - 24 * 3_600 - 60;
        let names = [
            (format!("{}{old:x}_0123", super::super::PREFIX), false),
            (fresh_name(), true),
            ("something else".to_owned(), true),
        ];
        for (name, _) in &names {
            let directory = temporary.join(name);
            std::fs::create_dir_all(&directory).expect("a directory");
            std::fs::write(directory.join("test.db"), b"x").expect("a file");
        }
        remove_left_overs(&temporary);
        for (name, stays) in &names {
            assert_eq!(temporary.join(name).exists(), *stays, "{name}");
        }
        std::fs::remove_dir_all(&temporary).expect("it is ours");
    }

    #[test]
    fn a_path_with_signs_of_a_url_is_one_path() {
        let url = url(Path::new("/tmp/a b?c#d%e/test.db"));
        let options = sqlite::connect_options(&url).expect("a URL");
        let file = options.get_filename().to_str().expect("text");
        assert_eq!(file, "/tmp/a b?c#d%e/test.db");
    }
}
