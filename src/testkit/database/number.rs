//! The one number that a query finds, and nothing that merely looks like one.

use std::fmt;
use std::panic::Location;

use sqlx::{ColumnIndex, Decode, Pool, Row, TypeInfo as _, ValueRef as _};

use super::TestBackend;

/// What one column of a row has, as text.
pub struct Cell {
    kind: String,
    text: Option<String>,
}

impl Cell {
    /// The columns of a row. Its statement was not prepared: servers then send all values as text.
    pub(super) fn all<R>(row: &R) -> Result<Vec<Self>, sqlx::Error>
    where
        R: Row,
        usize: ColumnIndex<R>,
        String: for<'r> Decode<'r, R::Database>,
    {
        let cell = |index| {
            let value = row.try_get_raw(index)?;
            let kind = value.type_info().name().to_owned();
            let text = if value.is_null() {
                None
            } else {
                // Bytes that are no text are no number either.
                let text: Result<String, _> = Decode::decode(value);
                Some(text.unwrap_or_else(|_| "bytes".into()))
            };
            Ok(Self { kind, text })
        };
        (0..row.len()).map(cell).collect()
    }

    /// Nothing if it is no whole number. Sums are decimals on some databases.
    fn number(&self) -> Option<i64> {
        let Some(text) = &self.text else {
            return Some(0);
        };
        let kind = self.kind.to_ascii_uppercase();
        let is_numeric = ["INT", "DEC", "NUM", "REAL", "FLOAT", "DOUBLE", "BOOLEAN"]
            .iter()
            .any(|part| kind.contains(part));
        let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
        let is_whole = fraction.bytes().all(|digit| digit == b'0');
        (is_numeric && is_whole).then(|| whole.parse().ok())?
    }
}

impl fmt::Display for Cell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.text {
            Some(text) => write!(f, "{text:?} ({})", self.kind),
            None => f.write_str("NULL"),
        }
    }
}

/// The number that a query finds.
///
/// # Panics
/// If it finds anything else than one row with one whole number, or NULL, which counts as 0.
pub(in crate::testkit) async fn number<DB: TestBackend>(
    pool: &Pool<DB>,
    sql: &str,
    caller: &Location<'_>,
) -> i64 {
    let rows = match DB::cells(pool, sql).await {
        Ok(rows) => rows,
        Err(error) => panic!("{error} ({caller}): {sql}"),
    };
    let found = match rows.as_slice() {
        [row] => match row.as_slice() {
            [cell] => match cell.number() {
                Some(number) => return number,
                None => cell.to_string(),
            },
            cells => format!("{} columns", cells.len()),
        },
        [] => "no row".into(),
        [first, ..] => {
            let first: Vec<_> = first.iter().map(Cell::to_string).collect();
            format!(
                "{} rows, the first one with {}",
                rows.len(),
                first.join(", ")
            )
        }
    };
    panic!(
        "one whole number is wanted, a count or a sum, and this finds {found} ({caller}): {sql}"
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_whole_numbers_are_numbers() {
        let cell = |kind: &str, text: &str| Cell {
            kind: kind.to_owned(),
            text: Some(text.to_owned()),
        };
        for (kind, text, number) in [
            ("BIGINT", "5", Some(5)),
            ("NUMERIC", "-5", Some(-5)),
            ("DECIMAL", "5.0000", Some(5)),
            ("REAL", "5.0", Some(5)),
            ("REAL", "2.5", None),
            ("NUMERIC", "NaN", None),
            ("NUMERIC", "1e3", None),
            ("NUMERIC", "99999999999999999999", None),
            ("TEXT", "5", None),
            ("VARCHAR", "5", None),
            ("INTEGER", "", None),
        ] {
            assert_eq!(cell(kind, text).number(), number, "{kind} {text}");
        }
        let null = Cell {
            kind: "TEXT".into(),
            text: None,
        };
        assert_eq!(null.number(), Some(0));
    }
}
