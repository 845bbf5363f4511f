//! What is in an app's tables, and what differs.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::time::Duration;

use sqlx::Pool;

use super::super::database::TestBackend;
use super::look::Column;
use crate::clock::Timestamp;

/// A time that is nearer to now than this was taken from a clock in the run.
const RECENT: Duration = Duration::from_secs(86_400);
/// So many lines of a difference are told.
const LINES: usize = 12;

/// All rows of some tables, as texts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Snapshot(BTreeMap<String, Vec<Row>>);

type Row = Vec<Cell>;

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Cell {
    /// In another run this may be something else, rightly.
    varies: bool,
    text: String,
}

/// Which tables and columns are looked at.
pub(super) struct View<'a> {
    pub(super) prefix: &'a str,
    /// Tables, and columns as `table.column`.
    pub(super) ignored: &'a [String],
}

impl View<'_> {
    fn shows(&self, column: &Column) -> bool {
        let whole = format!("{}.{}", column.table, column.name);
        let name = column.table.rsplit('.').next().unwrap_or(&column.table);
        // What brings the app's tables up to date is no effect of an event.
        !name.starts_with(self.prefix)
            && name != "_sqlx_migrations"
            && !self
                .ignored
                .iter()
                .any(|ignored| *ignored == column.table || *ignored == whole)
    }

    /// The columns of each table.
    pub(super) async fn tables<DB: TestBackend>(
        &self,
        pool: &Pool<DB>,
    ) -> Result<BTreeMap<String, Vec<Column>>, sqlx::Error> {
        let mut tables: BTreeMap<String, Vec<Column>> = BTreeMap::new();
        for column in DB::columns(pool).await? {
            if self.shows(&column) {
                tables.entry(column.table.clone()).or_default().push(column);
            }
        }
        Ok(tables)
    }

    pub(super) async fn snapshot<DB: TestBackend>(
        &self,
        pool: &Pool<DB>,
    ) -> Result<Snapshot, sqlx::Error> {
        let mut all = BTreeMap::new();
        for (table, columns) in self.tables(pool).await? {
            let texts: Vec<_> = columns.iter().map(|column| column.text.as_str()).collect();
            let sql = format!("SELECT {} FROM {}", texts.join(", "), columns[0].from);
            let found = DB::texts(pool, sql, columns.len()).await?;
            let mut rows: Vec<Row> = found.into_iter().map(|row| cells(&columns, row)).collect();
            rows.sort();
            all.insert(table, rows);
        }
        Ok(Snapshot(all))
    }
}

fn cells(columns: &[Column], row: Vec<Option<String>>) -> Row {
    let cell = |(column, text): (&Column, Option<String>)| {
        let text = text.unwrap_or_else(|| "NULL".into());
        Cell {
            varies: column.drawn || varies(text.trim_matches('\'')),
            text,
        }
    };
    columns.iter().zip(row).map(cell).collect()
}

impl Snapshot {
    /// A number that is no table's.
    pub(super) fn add(&mut self, name: &str, number: i64) {
        let cell = Cell {
            varies: false,
            text: number.to_string(),
        };
        self.0.insert(name.to_owned(), vec![vec![cell]]);
    }

    /// As it can be compared with that of another run: without what is drawn or read from a clock each time.
    pub(super) fn comparable(mut self) -> Self {
        for rows in self.0.values_mut() {
            for cell in rows.iter_mut().flatten().filter(|cell| cell.varies) {
                cell.text = "…".into();
            }
            rows.sort();
        }
        self
    }

    /// What another one has more, and less. Nothing if they are the same.
    pub(super) fn difference(&self, other: &Self) -> Option<Difference> {
        if self == other {
            return None;
        }
        let none = Vec::new();
        let mut lines = Vec::new();
        let tables: BTreeSet<_> = self.0.keys().chain(other.0.keys()).collect();
        for table in tables {
            let before = self.0.get(table).unwrap_or(&none);
            let after = other.0.get(table).unwrap_or(&none);
            let told = |mark, rows: Vec<String>| {
                let line = move |row| format!("{mark} {table} {row}");
                rows.into_iter().map(line)
            };
            lines.extend(told('-', beyond(before, after)));
            lines.extend(told('+', beyond(after, before)));
        }
        Some(Difference(lines))
    }
}

/// The rows of the first that the second does not have, as often as it does not.
fn beyond(rows: &[Row], others: &[Row]) -> Vec<String> {
    let mut others: Vec<_> = others.iter().collect();
    let mut missing = Vec::new();
    for row in rows {
        if let Some(at) = others.iter().position(|other| *other == row) {
            others.swap_remove(at);
            continue;
        }
        let texts: Vec<_> = row.iter().map(|cell| cell.text.as_str()).collect();
        missing.push(format!("({})", texts.join(", ")));
    }
    missing
}

/// Lines of rows that are there in addition, or are gone.
pub(super) struct Difference(Vec<String>);

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for line in self.0.iter().take(LINES) {
            write!(f, "\n    {line}")?;
        }
        if self.0.len() > LINES {
            write!(f, "\n    and {} more", self.0.len() - LINES)?;
        }
        Ok(())
    }
}

/// Whether a text looks like a time of just now, or like a UUID.
fn varies(text: &str) -> bool {
    is_uuid(text) || is_recent_number(text) || is_time(text)
}

fn is_uuid(text: &str) -> bool {
    let hex = |byte: u8| byte.is_ascii_hexdigit();
    text.len() == 36
        && text.bytes().enumerate().all(|(at, byte)| match at {
            8 | 13 | 18 | 23 => byte == b'-',
            _ => hex(byte),
        })
}

/// Seconds, milliseconds or microseconds since 1970.
fn is_recent_number(text: &str) -> bool {
    let Ok(number) = text.parse::<i64>() else {
        return false;
    };
    let micros = match text.len() {
        10 => number.checked_mul(1_000_000),
        13 => number.checked_mul(1_000),
        16 => Some(number),
        _ => None,
    };
    micros.is_some_and(|micros| {
        let (time, now) = (Timestamp::from_micros(micros), Timestamp::now());
        time.since(now).max(now.since(time)) < RECENT
    })
}

/// `2026-01-31 12:00`, with whatever follows.
fn is_time(text: &str) -> bool {
    const FORM: &[u8] = b"0000-00-00 00:00";
    let bytes = text.as_bytes();
    bytes.len() >= FORM.len()
        && FORM.iter().zip(bytes).all(|(form, byte)| match form {
            b'0' => byte.is_ascii_digit(),
            b' ' => matches!(byte, b' ' | b'T'),
            _ => form == byte,
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_clock_or_a_dice_says_is_not_compared() {
        let now = Timestamp::now();
        for text in [
            "2026-01-31 12:00:00",
            "2026-01-31T12:00:00.5+00:00",
            "0123abcd-0123-4abc-8abc-0123456789ab",
            &now.as_secs().to_string(),
            &now.as_micros().to_string(),
        ] {
            assert!(varies(text), "{text}");
        }
        for text in [
            "5",
            "acct",
            "2026-01-31",
            "1234567890",
            "",
            "NULL",
            "ü0123abcd",
        ] {
            assert!(!varies(text), "{text}");
        }
    }

    #[test]
    fn a_difference_counts_equal_rows() {
        let row = |text: &str| {
            vec![Cell {
                varies: false,
                text: text.into(),
            }]
        };
        let snapshot = |rows: &[&str]| {
            let rows = rows.iter().map(|text| row(text)).collect();
            Snapshot([("t".to_owned(), rows)].into())
        };
        let (one, two) = (snapshot(&["a", "b"]), snapshot(&["a", "a"]));
        let text = one.difference(&two).map(|it| it.to_string());
        assert_eq!(text.as_deref(), Some("\n    - t (b)\n    + t (a)"));
        assert!(one.difference(&one.clone()).is_none());
    }
}
