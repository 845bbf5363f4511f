//! A stream's cursor under its lock, and the ranges of sequences that it jumps over (§4.3, §5.1).
//!
//! Ranges of one generation do not overlap, and are looked at and added under the cursor's lock only. The cursor never
//! stands inside of one; its `next_range` says where the lowest one ahead begins, so that a delivery that is in turn
//! need not look for it.

use crate::clock::Timestamp;
use crate::store::{Backend, Cursor, Place, Range, Result, Sql, Stream};

/// Locks the cursor. Where version 1 of the crate has put it inside of a range, it goes on from there.
pub(super) async fn lock<DB: Backend>(
    conn: &mut DB::Connection,
    sql: &Sql,
    stream: Stream<'_>,
    at: Timestamp,
) -> Result<Option<Cursor>> {
    let Some(cursor) = DB::lock_cursor(conn, sql, stream).await? else {
        return Ok(None);
    };
    if cursor.next_range.is_none_or(|first| first > cursor.next) {
        return Ok(Some(cursor));
    }
    let landed = land::<DB>(conn, sql, stream, cursor).await?;
    DB::move_cursor(conn, sql, stream, landed, at).await?;
    Ok(Some(landed))
}

/// Moves a locked cursor from the place that it stands at to the next one that may be applied.
pub(super) async fn pass<DB: Backend>(
    conn: &mut DB::Connection,
    sql: &Sql,
    stream: Stream<'_>,
    mut cursor: Cursor,
    at: Timestamp,
) -> Result<()> {
    cursor.next += 1;
    if cursor.next_range.is_some_and(|first| first <= cursor.next) {
        cursor = land::<DB>(conn, sql, stream, cursor).await?;
    }
    DB::move_cursor(conn, sql, stream, cursor, at).await
}

/// The first place from where the cursor stands that is in no range, and where the lowest range after it begins.
async fn land<DB: Backend>(
    conn: &mut DB::Connection,
    sql: &Sql,
    stream: Stream<'_>,
    cursor: Cursor,
) -> Result<Cursor> {
    let mut place = place(stream, &cursor);
    while let Some(range) = DB::range_at(conn, sql, &place).await? {
        place.sequence = range.last + 1;
    }
    let ahead = DB::ranges_after(conn, sql, &place, 1).await?;
    Ok(Cursor {
        next: place.sequence,
        next_range: ahead.first().map(|range| range.first),
        ..cursor
    })
}

/// Adds a range of a locked cursor's stream, and moves the cursor if it stands in it. False, and nothing done, if all of it
/// is in ranges already. What is stored in it is the caller's to set aside.
pub(super) async fn add<DB: Backend>(
    conn: &mut DB::Connection,
    sql: &Sql,
    stream: Stream<'_>,
    cursor: &mut Cursor,
    range: Range,
    at: Timestamp,
) -> Result<bool> {
    let mut place = place(stream, cursor);
    place.sequence = range.first;
    let mut added = false;
    while place.sequence <= range.last {
        if let Some(there) = DB::range_at(conn, sql, &place).await? {
            place.sequence = there.last + 1;
            continue;
        }
        let after = DB::ranges_after(conn, sql, &place, 1).await?;
        let piece = Range {
            first: place.sequence,
            last: after
                .first()
                .map_or(range.last, |after| range.last.min(after.first - 1)),
            kind: range.kind,
        };
        DB::insert_range(conn, sql, stream, cursor.generation, piece, at).await?;
        place.sequence = piece.last + 1;
        added = true;
    }
    if added {
        *cursor = land::<DB>(conn, sql, stream, *cursor).await?;
        DB::move_cursor(conn, sql, stream, *cursor, at).await?;
    }
    Ok(added)
}

fn place<'a>(stream: Stream<'a>, cursor: &Cursor) -> Place<'a> {
    Place {
        stream,
        generation: cursor.generation,
        sequence: cursor.next,
    }
}
