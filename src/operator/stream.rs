//! Where a stream stands.

use std::fmt;

use crate::shared::Shared;
use crate::store::{Backend, Cursor, Place, Range, Stream};

/// Ranges that are told of one stream.
const RANGES: i64 = 100;

/// Where somebody saw a stream's cursor. What is decided by it is done only if it is there still.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Seen {
    /// How often the stream was reset.
    pub generation: i64,
    /// The next sequence that may be applied.
    pub next: i64,
}

impl fmt::Display for Seen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} in generation {}", self.next, self.generation)
    }
}

impl From<Cursor> for Seen {
    fn from(cursor: Cursor) -> Self {
        Self {
            generation: cursor.generation,
            next: cursor.next,
        }
    }
}

/// Where a stream stands.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct StreamInfo {
    /// The next sequence that may be applied: what the stream waits for.
    pub next: i64,
    /// How often it was reset.
    pub generation: i64,
    /// Sequences ahead that are never waited for, lowest first; the first hundred ranges.
    pub ranges: Vec<Range>,
}

impl StreamInfo {
    /// What an action on the stream is decided by.
    pub fn seen(&self) -> Seen {
        Seen {
            generation: self.generation,
            next: self.next,
        }
    }
}

/// What an action on a stream came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Moved {
    /// False: it was so already, and nothing was done.
    pub changed: bool,
    /// Where the stream stands now.
    pub cursor: Seen,
}

pub(super) async fn info<DB: Backend>(
    shared: &Shared<DB>,
    conn: &mut DB::Connection,
    stream: Stream<'_>,
) -> Result<Option<StreamInfo>, sqlx::Error> {
    let Some(cursor) = DB::cursor(conn, &shared.sql, stream).await? else {
        return Ok(None);
    };
    let place = Place {
        stream,
        generation: cursor.generation,
        sequence: cursor.next,
    };
    Ok(Some(StreamInfo {
        next: cursor.next,
        generation: cursor.generation,
        ranges: DB::ranges_after(conn, &shared.sql, &place, RANGES).await?,
    }))
}
