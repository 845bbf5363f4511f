//! PostgreSQL: statements that SQL prepares, so that they can be executed in one message with a BEGIN, which the driver's
//! own cannot.
//!
//! They stay with the server's session, as the driver's do. Where a pooler hands out sessions by transaction, the first
//! EXECUTE that does not find its statement ends this for good.

use std::hash::{DefaultHasher, Hash, Hasher};

use sqlx::{AssertSqlSafe, SqlSafeStr, SqlStr};

use super::literal::{Filled, Style, push_hex};
use super::{First, Sql, Turn, next_of};

const OF_EVENT: &str =
    "text, text, bigint, bytea, text, text, bigint, bigint, bigint, bigint, bigint, bigint";

/// What executes each of them, and what prepares them.
pub(super) struct Prepared {
    event: String,
    first: String,
    next: String,
    prepare: String,
}

impl Prepared {
    pub(super) fn new(sql: &Sql) -> Self {
        let mut prepare = String::from("DO $tower_inbox$ BEGIN ");
        let mut add = |types: &str, statement: &str| {
            let name = name(&sql.prefix, statement);
            // No PREPARE says IF NOT EXISTS, and one whose name is taken fails.
            prepare.push_str(&format!(
                "IF NOT EXISTS (SELECT FROM pg_catalog.pg_prepared_statements WHERE name = '{name}') THEN \
                 EXECUTE $prepare$PREPARE {name} ({OF_EVENT}{types}) AS {statement}$prepare$; END IF; "
            ));
            let values = vec!["?"; format!("{OF_EVENT}{types}").split(',').count()];
            format!("EXECUTE {name} ({})", values.join(", "))
        };
        let event = add("", sql.insert_event.as_str());
        let first = add(", text, text, bigint, bigint", sql.insert_first.as_str());
        let next = add(
            ", bigint, bigint, text, text, bigint, bigint, bigint",
            sql.insert_next.as_str(),
        );
        prepare.push_str("END $tower_inbox$");
        Self {
            event,
            first,
            next,
            prepare,
        }
    }

    /// What prepares those that are not there yet.
    pub(super) fn statement(&self) -> SqlStr {
        AssertSqlSafe(self.prepare.as_str()).into_sql_str()
    }

    /// The EXECUTE that inserts it. Nothing where a text cannot be part of a message, whose end is a NUL.
    pub(super) fn execute(&self, first: &First<'_>) -> Option<String> {
        let (execute, turn) = match &first.turn {
            None => (&self.event, None),
            Some(turn) if turn.opens => (&self.first, Some(turn)),
            turn => (&self.next, turn.as_ref()),
        };
        let mut filled = Filled::new(execute, Style { text, bytes });
        filled.event(first);
        match turn {
            Some(Turn { place, opens: true }) => {
                filled.text(place.stream.source);
                filled.text(place.stream.correlation_id);
                filled.number(next_of(place));
                filled.number(first.event.at.as_micros());
            }
            Some(turn) => filled.turn(&turn.place, first.event.at),
            None => {}
        }
        let execute = filled.finish();
        (!execute.contains('\0')).then_some(execute)
    }
}

/// By its text: another version of this crate may have another statement, and a session that outlives both. With the
/// prefix, which a server's statistics know an inbox by.
fn name(prefix: &str, statement: &str) -> String {
    let mut hasher = DefaultHasher::new();
    statement.hash(&mut hasher);
    format!("{prefix}{:016x}", hasher.finish())
}

/// Whether the statement was not there.
pub(super) fn is_missing(error: &sqlx::Error) -> bool {
    let code = error.as_database_error().and_then(|error| error.code());
    // invalid_sql_statement_name
    code.as_deref() == Some("26000")
}

/// Whatever `standard_conforming_strings` says, and in any encoding that agrees with ASCII below 128 alone, which the
/// driver's UTF-8 does.
fn text(to: &mut String, value: &str) {
    to.push_str("E'");
    for char in value.chars() {
        if matches!(char, '\'' | '\\') {
            to.push(char);
        }
        to.push(char);
    }
    to.push('\'');
}

fn bytes(to: &mut String, value: &[u8]) {
    to.push_str("E'\\\\x");
    push_hex(to, value);
    to.push('\'');
}

#[cfg(test)]
mod tests {
    use super::*;

    /// §4.12: whatever a producer has put in an id.
    #[test]
    fn a_text_ends_where_it_ends() {
        let mut literal = String::new();
        text(&mut literal, r"it's \'; DROP TABLE event; --");
        assert_eq!(literal, r"E'it''s \\''; DROP TABLE event; --'");
    }
}
