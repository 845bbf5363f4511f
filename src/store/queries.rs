//! The query code, once, for every driver.
//!
//! Code generic over `Database` needs half a dozen where-clauses a function; a macro that each back end
//! instantiates with its own types needs none, and the compiler checks every instance.

use sqlx::Row;

/// The methods of [`Backend`](super::Backend) that only run a statement.
macro_rules! statements_of_backend {
    () => {
        async fn run(conn: &mut Self::Connection, statement: SqlStr) -> Result<()> {
            sqlx::raw_sql(statement).execute(conn).await?;
            Ok(())
        }

        async fn rollback_to(conn: &mut Self::Connection) -> Result<()> {
            Self::run(
                conn,
                SqlStr::from_static("ROLLBACK TO SAVEPOINT tower_inbox"),
            )
            .await
        }

        async fn known(
            conn: &mut Self::Connection,
            sql: &Sql,
            key: Key<'_>,
        ) -> Result<Option<Known>> {
            let row = sqlx::query(sql.known.clone())
                .persistent(sql.named)
                .bind(key.source)
                .bind(key.event_id)
                .fetch_optional(conn)
                .await?;
            row.map(|row| {
                Ok(Known {
                    state: State::from_column(row.try_get(0)?)?,
                    fingerprint: row.try_get(1)?,
                    correlation_id: text(&row, 2)?,
                    sequence: row.try_get(3)?,
                    reason: Reason::from_column(row.try_get(4)?)?,
                    next_sequence: row.try_get(5)?,
                    has_yielded: text(&row, 6)?.is_some(),
                    generation: row.try_get(7)?,
                })
            })
            .transpose()
        }

        async fn lock_event(
            conn: &mut Self::Connection,
            sql: &Sql,
            key: Key<'_>,
        ) -> Result<Option<Known>> {
            let row = sqlx::query(sql.lock_event.clone())
                .persistent(sql.named)
                .bind(key.source)
                .bind(key.event_id)
                .fetch_optional(&mut *conn)
                .await?;
            let Some(row) = row else { return Ok(None) };
            let mut known = Known {
                state: State::from_column(row.try_get(0)?)?,
                fingerprint: row.try_get(1)?,
                correlation_id: text(&row, 2)?,
                sequence: row.try_get(3)?,
                reason: None,
                next_sequence: None,
                has_yielded: text(&row, 4)?.is_some(),
                generation: row.try_get(5)?,
            };
            if known.state == State::Dead {
                let row = sqlx::query(sql.pending_reason.clone())
                    .persistent(sql.named)
                    .bind(key.source)
                    .bind(key.event_id)
                    .fetch_optional(conn)
                    .await?;
                if let Some(row) = row {
                    known.reason = Reason::from_column(row.try_get(0)?)?;
                }
            }
            Ok(Some(known))
        }

        async fn insert_event(
            conn: &mut Self::Connection,
            sql: &Sql,
            event: &NewEvent<'_>,
            state: State,
        ) -> Result<bool> {
            let done = sqlx::query(sql.insert_event.clone())
                .persistent(sql.named)
                .bind(event.key.source)
                .bind(event.key.event_id)
                .bind(state as i64)
                .bind(event.fingerprint)
                .bind(event.event_type)
                .bind(event.correlation_id)
                .bind(event.generation)
                .bind(event.sequence)
                .bind(event.sequence)
                .bind(event.at.as_micros())
                .bind(event.at.as_micros())
                .execute(conn)
                .await;
            inserted(done.map(|done| done.rows_affected()))
        }

        async fn swap_state(
            conn: &mut Self::Connection,
            sql: &Sql,
            key: Key<'_>,
            from: State,
            to: State,
            at: Timestamp,
        ) -> Result<bool> {
            let done = sqlx::query(sql.swap_state.clone())
                .persistent(sql.named)
                .bind(to as i64)
                .bind(at.as_micros())
                .bind(key.source)
                .bind(key.event_id)
                .bind(from as i64)
                .execute(conn)
                .await?;
            Ok(done.rows_affected() == 1)
        }

        async fn slot_holder(
            conn: &mut Self::Connection,
            sql: &Sql,
            place: &Place<'_>,
        ) -> Result<Option<Holder>> {
            let row = sqlx::query(sql.slot_holder.clone())
                .persistent(sql.named)
                .bind(place.stream.source)
                .bind(place.stream.correlation_id)
                .bind(place.generation)
                .bind(place.sequence)
                .fetch_optional(conn)
                .await?;
            row.map(|row| {
                Ok(Holder {
                    event_id: required(text(&row, 0)?)?,
                    state: State::from_column(row.try_get(1)?)?,
                })
            })
            .transpose()
        }

        async fn yield_slot(
            conn: &mut Self::Connection,
            sql: &Sql,
            key: Key<'_>,
            to: &str,
        ) -> Result<bool> {
            let done = sqlx::query(sql.yield_slot.clone())
                .persistent(sql.named)
                .bind(to)
                .bind(key.source)
                .bind(key.event_id)
                .execute(conn)
                .await?;
            Ok(done.rows_affected() == 1)
        }

        async fn advance_cursor(
            conn: &mut Self::Connection,
            sql: &Sql,
            place: &Place<'_>,
            at: Timestamp,
        ) -> Result<bool> {
            let done = sqlx::query(sql.advance_cursor.clone())
                .persistent(sql.named)
                .bind(place.sequence + 1)
                .bind(at.as_micros())
                .bind(place.stream.source)
                .bind(place.stream.correlation_id)
                .bind(place.generation)
                .bind(place.sequence)
                .bind(place.sequence + 1)
                .execute(conn)
                .await?;
            Ok(done.rows_affected() == 1)
        }

        async fn open_cursor(
            conn: &mut Self::Connection,
            sql: &Sql,
            stream: Stream<'_>,
            next: i64,
            at: Timestamp,
        ) -> Result<bool> {
            let done = sqlx::query(sql.open_cursor.clone())
                .persistent(sql.named)
                .bind(stream.source)
                .bind(stream.correlation_id)
                .bind(next)
                .bind(at.as_micros())
                .execute(conn)
                .await;
            inserted(done.map(|done| done.rows_affected()))
        }

        async fn lock_cursor(
            conn: &mut Self::Connection,
            sql: &Sql,
            stream: Stream<'_>,
        ) -> Result<Option<Cursor>> {
            let row = sqlx::query(sql.lock_cursor.clone())
                .persistent(sql.named)
                .bind(stream.source)
                .bind(stream.correlation_id)
                .fetch_optional(conn)
                .await?;
            row.map(|row| cursor(&row)).transpose()
        }

        async fn insert_pending(
            conn: &mut Self::Connection,
            sql: &Sql,
            pending: &NewPending<'_>,
        ) -> Result<()> {
            let request = pending.request;
            sqlx::query(sql.insert_pending.clone())
                .persistent(sql.named)
                .bind(pending.key.source)
                .bind(pending.key.event_id)
                .bind(pending.correlation_id)
                .bind(pending.generation)
                .bind(pending.sequence)
                .bind(pending.reason.map(|reason| reason as i64))
                .bind(pending.attempts)
                .bind(AT_ONCE.as_micros())
                .bind(pending.at.as_micros())
                .bind(pending.last_status)
                .bind(pending.last_error)
                .bind(request.bytes())
                .bind(&*request.method)
                .bind(&*request.uri)
                .bind(&*request.headers)
                .bind(&*request.body)
                .execute(conn)
                .await?;
            Ok(())
        }

        async fn delete_pending(
            conn: &mut Self::Connection,
            sql: &Sql,
            key: Key<'_>,
        ) -> Result<bool> {
            let done = sqlx::query(sql.delete_pending.clone())
                .persistent(sql.named)
                .bind(key.source)
                .bind(key.event_id)
                .execute(conn)
                .await?;
            Ok(done.rows_affected() == 1)
        }

        async fn postpone(
            conn: &mut Self::Connection,
            sql: &Sql,
            key: Key<'_>,
            attempt: &Attempt<'_>,
        ) -> Result<bool> {
            let done = sqlx::query(sql.postpone.clone())
                .persistent(sql.named)
                .bind(attempt.not_before.as_micros())
                .bind(attempt.status)
                .bind(attempt.error)
                .bind(key.source)
                .bind(key.event_id)
                .execute(conn)
                .await?;
            Ok(done.rows_affected() == 1)
        }

        async fn record_attempt(
            conn: &mut Self::Connection,
            sql: &Sql,
            key: Key<'_>,
            attempt: &Attempt<'_>,
        ) -> Result<bool> {
            // The handler never ran for what was given up for a gap, set aside, or held by the fence.
            let ran = !matches!(
                attempt.reason,
                Some(Reason::Gap | Reason::Skipped | Reason::BeforeStart | Reason::Fenced)
            );
            let done = sqlx::query(sql.record_attempt.clone())
                .persistent(sql.named)
                .bind(i64::from(ran))
                .bind(attempt.reason.map(|reason| reason as i64))
                .bind(attempt.not_before.as_micros())
                .bind(attempt.status)
                .bind(attempt.error)
                .bind(key.source)
                .bind(key.event_id)
                .execute(conn)
                .await?;
            Ok(done.rows_affected() == 1)
        }

        async fn audit(conn: &mut Self::Connection, sql: &Sql, entry: &Audit<'_>) -> Result<()> {
            sqlx::query(sql.audit.clone())
                .persistent(sql.named)
                .bind(entry.at.as_micros())
                .bind(entry.key.source)
                .bind((!entry.key.event_id.is_empty()).then_some(entry.key.event_id))
                .bind(entry.action)
                .bind(entry.actor)
                .bind(entry.detail)
                .execute(conn)
                .await?;
            Ok(())
        }

        async fn due_streams(
            conn: &mut Self::Connection,
            sql: &Sql,
            after: Stream<'_>,
            now: Timestamp,
            limit: i64,
        ) -> Result<Vec<(String, String)>> {
            let rows = sqlx::query(sql.due_streams.clone())
                .persistent(sql.named)
                .bind(now.as_micros())
                .bind(after.source)
                .bind(after.source)
                .bind(after.correlation_id)
                .bind(limit)
                .fetch_all(conn)
                .await?;
            rows.iter()
                .map(|row| Ok((required(text(row, 0)?)?, required(text(row, 1)?)?)))
                .collect()
        }

        async fn due_head(
            conn: &mut Self::Connection,
            sql: &Sql,
            stream: Stream<'_>,
        ) -> Result<Option<Pending>> {
            let row = sqlx::query(sql.due_head.clone())
                .persistent(sql.named)
                .bind(stream.source)
                .bind(stream.correlation_id)
                .fetch_optional(conn)
                .await?;
            row.map(|row| pending(&row)).transpose()
        }

        async fn due_events(
            conn: &mut Self::Connection,
            sql: &Sql,
            after: Key<'_>,
            now: Timestamp,
            limit: i64,
        ) -> Result<Vec<(String, String)>> {
            let rows = sqlx::query(sql.due_events.clone())
                .persistent(sql.named)
                .bind(now.as_micros())
                .bind(after.source)
                .bind(after.source)
                .bind(after.event_id)
                .bind(limit)
                .fetch_all(conn)
                .await?;
            rows.iter()
                .map(|row| Ok((required(text(row, 0)?)?, required(text(row, 1)?)?)))
                .collect()
        }

        async fn due_event(
            conn: &mut Self::Connection,
            sql: &Sql,
            key: Key<'_>,
        ) -> Result<Option<Pending>> {
            let row = sqlx::query(sql.due_event.clone())
                .persistent(sql.named)
                .bind(key.source)
                .bind(key.event_id)
                .fetch_optional(conn)
                .await?;
            row.map(|row| pending(&row)).transpose()
        }

        async fn release_pending(
            conn: &mut Self::Connection,
            sql: &Sql,
            key: Key<'_>,
            out_of_order: bool,
            at: Timestamp,
        ) -> Result<bool> {
            let done = sqlx::query(sql.release.clone())
                .persistent(sql.named)
                .bind(AT_ONCE.as_micros())
                .bind(at.as_micros())
                .bind(i64::from(out_of_order))
                .bind(key.source)
                .bind(key.event_id)
                .execute(conn)
                .await?;
            Ok(done.rows_affected() == 1)
        }

        async fn insert_fence(
            conn: &mut Self::Connection,
            sql: &Sql,
            key: Key<'_>,
            fence: &Fence,
        ) -> Result<bool> {
            let done = sqlx::query(sql.insert_fence.clone())
                .persistent(sql.named)
                .bind(key.source)
                .bind(&fence.digest[..])
                .bind(key.event_id)
                .bind(fence.expires_at.as_micros())
                .execute(conn)
                .await;
            inserted(done.map(|done| done.rows_affected()))
        }

        async fn fence_holder(
            conn: &mut Self::Connection,
            sql: &Sql,
            source: &str,
            fence: &Fence,
        ) -> Result<Option<String>> {
            let row = sqlx::query(sql.fence_holder.clone())
                .persistent(sql.named)
                .bind(source)
                .bind(&fence.digest[..])
                .fetch_optional(conn)
                .await?;
            row.map(|row| required(text(&row, 0)?)).transpose()
        }

        async fn purge_fences(
            conn: &mut Self::Connection,
            sql: &Sql,
            source: &str,
            before: Timestamp,
            limit: i64,
        ) -> Result<u64> {
            let done = sqlx::query(sql.purge_fences.clone())
                .persistent(sql.named)
                .bind(source)
                .bind(before.as_micros())
                .bind(limit)
                .execute(conn)
                .await?;
            Ok(done.rows_affected())
        }

        async fn expired(
            conn: &mut Self::Connection,
            sql: &Sql,
            source: &str,
            parked_before: Timestamp,
            after: &str,
            limit: i64,
        ) -> Result<Vec<Expired>> {
            let rows = sqlx::query(sql.expired.clone())
                .persistent(sql.named)
                .bind(source)
                .bind(after)
                .bind(parked_before.as_micros())
                .bind(limit)
                .fetch_all(conn)
                .await?;
            rows.iter()
                .map(|row| {
                    Ok(Expired {
                        event_id: required(text(row, 0)?)?,
                        correlation_id: required(text(row, 1)?)?,
                        sequence: row.try_get(2)?,
                    })
                })
                .collect()
        }

        async fn pending_counts(
            conn: &mut Self::Connection,
            sql: &Sql,
        ) -> Result<Vec<PendingCount>> {
            let rows = sqlx::query(sql.pending_counts.clone())
                .persistent(sql.named)
                .fetch_all(conn)
                .await?;
            rows.iter()
                .map(|row| {
                    Ok(PendingCount {
                        source: required(text(row, 0)?)?,
                        reason: Reason::from_column(row.try_get(1)?)?,
                        events: row.try_get(2)?,
                        bytes: row.try_get(3)?,
                        oldest: Timestamp::from_micros(row.try_get(4)?),
                    })
                })
                .collect()
        }

        async fn stale(
            conn: &mut Self::Connection,
            sql: &Sql,
            source: &str,
            before: Timestamp,
            now: Timestamp,
        ) -> Result<bool> {
            let row = sqlx::query(sql.stale.clone())
                .persistent(sql.named)
                .bind(source)
                .bind(before.as_micros())
                .bind(source)
                .bind(now.as_micros())
                .fetch_one(conn)
                .await?;
            let stale: i64 = row.try_get(0)?;
            Ok(stale > 0)
        }

        async fn purge(
            conn: &mut Self::Connection,
            sql: &Sql,
            source: &str,
            before: Timestamp,
            limit: i64,
        ) -> Result<u64> {
            let done = sqlx::query(sql.purge.clone())
                .persistent(sql.named)
                .bind(source)
                .bind(before.as_micros())
                .bind(limit)
                .execute(conn)
                .await?;
            Ok(done.rows_affected())
        }

        async fn ping(conn: &mut Self::Connection, sql: &Sql) -> Result<()> {
            sqlx::query(sql.ping.clone())
                .persistent(sql.named)
                .fetch_optional(conn)
                .await?;
            Ok(())
        }
    };
}

pub(crate) use statements_of_backend;

/// Rows that several statements have. A macro's, since what a driver's row decodes to cannot be said in general.
macro_rules! pending_row {
    ($row:ty) => {
        /// Of `lock_cursor` and `cursor`.
        fn cursor(row: &$row) -> Result<Cursor> {
            Ok(Cursor {
                next: row.try_get(0)?,
                generation: row.try_get(1)?,
                next_range: row.try_get(2)?,
            })
        }

        /// Of `due_head` and `due_event`.
        fn pending(row: &$row) -> Result<Pending> {
            Ok(Pending {
                event_id: required(text(row, 0)?)?,
                event_type: text(row, 1)?,
                fingerprint: row.try_get(2)?,
                correlation_id: text(row, 3)?,
                sequence: row.try_get(4)?,
                reason: Reason::from_column(row.try_get(5)?)?,
                attempts: row.try_get(6)?,
                not_before: Timestamp::from_micros(row.try_get(7)?),
                parked_at: Timestamp::from_micros(row.try_get(8)?),
                request: StoredRequest {
                    method: required(text(row, 9)?)?,
                    uri: required(text(row, 10)?)?,
                    headers: row.try_get::<Vec<u8>, _>(11)?.into(),
                    body: row.try_get::<Vec<u8>, _>(12)?.into(),
                },
            })
        }
    };
}

pub(crate) use pending_row;

/// A text column. Not checked against the column's type: MySQL keeps identifiers as VARBINARY, so that they compare byte
/// for byte, and its driver would hand those out as bytes only.
pub(crate) fn text<R>(row: &R, index: usize) -> super::Result<Option<String>>
where
    R: Row,
    usize: sqlx::ColumnIndex<R>,
    for<'r> Option<String>: sqlx::Decode<'r, R::Database>,
{
    row.try_get_unchecked(index)
}

/// A column that is NOT NULL by the schema.
pub(crate) fn required<T>(value: Option<T>) -> super::Result<T> {
    value.ok_or_else(|| sqlx::Error::Decode("a NULL where the schema allows none".into()))
}

/// Whether an INSERT put its row in. A taken key is not an error: it is the answer.
pub(crate) fn inserted(done: super::Result<u64>) -> super::Result<bool> {
    match done {
        Ok(rows) => Ok(rows == 1),
        // Where a database has no way to skip a taken key that reports the truth, it reports the violation.
        Err(sqlx::Error::Database(error)) if error.is_unique_violation() => Ok(false),
        Err(error) => Err(error),
    }
}
