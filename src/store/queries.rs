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
            kept: bool,
        ) -> Result<Option<Known>> {
            let statement = if kept { &sql.known_kept } else { &sql.known };
            let row = sqlx::query(statement.clone())
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
                    version: row.try_get(7)?,
                    generation: row.try_get(8)?,
                    kept: if kept { kept_answer(&row, 9)? } else { None },
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
                kept: None,
                version: row.try_get(5)?,
                generation: row.try_get(6)?,
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
                .bind(event.version)
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
            start: Start,
            at: Timestamp,
        ) -> Result<bool> {
            let done = sqlx::query(sql.open_cursor.clone())
                .persistent(sql.named)
                .bind(stream.source)
                .bind(stream.correlation_id)
                .bind(start.next)
                .bind(start.settles_at.map(Timestamp::as_micros))
                .bind(at.as_micros())
                .execute(conn)
                .await;
            inserted(done.map(|done| done.rows_affected()))
        }

        async fn raise_version(
            conn: &mut Self::Connection,
            sql: &Sql,
            stream: Stream<'_>,
            raise: &Raise,
        ) -> Result<bool> {
            sqlx::query(sql.ensure_cursor.clone())
                .persistent(sql.named)
                .bind(stream.source)
                .bind(stream.correlation_id)
                .bind(raise.first)
                .bind(raise.at.as_micros())
                .execute(&mut *conn)
                .await?;
            let done = sqlx::query(sql.raise_version.clone())
                .persistent(sql.named)
                .bind(raise.to)
                .bind(raise.at.as_micros())
                .bind(stream.source)
                .bind(stream.correlation_id)
                .bind(raise.to)
                .bind(raise.or_equal.then_some(raise.to))
                .execute(conn)
                .await?;
            Ok(done.rows_affected() == 1)
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

        async fn touch_settling(
            conn: &mut Self::Connection,
            sql: &Sql,
            stream: Stream<'_>,
            at: Timestamp,
        ) -> Result<bool> {
            let done = sqlx::query(sql.touch_settling.clone())
                .persistent(sql.named)
                .bind(at.as_micros())
                .bind(stream.source)
                .bind(stream.correlation_id)
                .execute(conn)
                .await?;
            Ok(done.rows_affected() == 1)
        }

        async fn lock_settling(
            conn: &mut Self::Connection,
            sql: &Sql,
            stream: Stream<'_>,
        ) -> Result<Option<Settling>> {
            let row = sqlx::query(sql.lock_settling.clone())
                .persistent(sql.named)
                .bind(stream.source)
                .bind(stream.correlation_id)
                .fetch_optional(conn)
                .await?;
            row.map(|row| {
                Ok(Settling {
                    settles_at: Timestamp::from_micros(
                        row.try_get::<Option<i64>, _>(0)?.unwrap_or_default(),
                    ),
                    generation: row.try_get(1)?,
                })
            })
            .transpose()
        }

        async fn lowest_parked(
            conn: &mut Self::Connection,
            sql: &Sql,
            stream: Stream<'_>,
            generation: i64,
        ) -> Result<Option<i64>> {
            let row = sqlx::query(sql.lowest_parked.clone())
                .persistent(sql.named)
                .bind(stream.source)
                .bind(stream.correlation_id)
                .bind(generation)
                .fetch_one(conn)
                .await?;
            row.try_get(0)
        }

        async fn settle_cursor(
            conn: &mut Self::Connection,
            sql: &Sql,
            stream: Stream<'_>,
            start: Start,
            at: Timestamp,
        ) -> Result<bool> {
            let done = sqlx::query(sql.settle_cursor.clone())
                .persistent(sql.named)
                .bind(start.next)
                .bind(start.settles_at.map(Timestamp::as_micros))
                .bind(at.as_micros())
                .bind(stream.source)
                .bind(stream.correlation_id)
                .execute(conn)
                .await?;
            Ok(done.rows_affected() == 1)
        }

        async fn settled_streams(
            conn: &mut Self::Connection,
            sql: &Sql,
            after: Stream<'_>,
            now: Timestamp,
            limit: i64,
        ) -> Result<Vec<(String, String)>> {
            let rows = sqlx::query(sql.settled_streams.clone())
                .persistent(sql.named)
                .bind(now.as_micros())
                .bind(after.source)
                .bind(after.source)
                .bind(after.correlation_id)
                .bind(limit)
                .fetch_all(conn)
                .await?;
            Ok(rows.iter().map(|row| page_key(row)).collect())
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
                .bind(pending.not_before.as_micros())
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
            lease: Lease,
        ) -> Result<bool> {
            let done = sqlx::query(sql.delete_pending.clone())
                .persistent(sql.named)
                .bind(key.source)
                .bind(key.event_id)
                .bind(lease.token())
                .bind(lease.token())
                .execute(conn)
                .await?;
            Ok(done.rows_affected() == 1)
        }

        async fn claim(
            conn: &mut Self::Connection,
            sql: &Sql,
            key: Key<'_>,
            claim: &Claim<'_>,
        ) -> Result<bool> {
            let done = sqlx::query(sql.claim.clone())
                .persistent(sql.named)
                .bind(key.source)
                .bind(key.event_id)
                .bind(claim.from.token())
                .bind(claim.to.token())
                .bind(claim.owner)
                .bind(claim.until.as_micros())
                .bind(claim.at.as_micros())
                .bind(claim.not_before.as_micros())
                .execute(conn)
                .await?;
            Ok(done.rows_affected() == 1)
        }

        async fn hand_back(
            conn: &mut Self::Connection,
            sql: &Sql,
            key: Key<'_>,
            lease: Lease,
            not_before: Timestamp,
        ) -> Result<bool> {
            let done = sqlx::query(sql.hand_back.clone())
                .persistent(sql.named)
                .bind(not_before.as_micros())
                .bind(key.source)
                .bind(key.event_id)
                .bind(lease.token())
                .execute(conn)
                .await?;
            Ok(done.rows_affected() == 1)
        }

        async fn hand_back_all(conn: &mut Self::Connection, sql: &Sql, owner: &str) -> Result<u64> {
            let done = sqlx::query(sql.hand_back_all.clone())
                .persistent(sql.named)
                .bind(AT_ONCE.as_micros())
                .bind(owner)
                .execute(conn)
                .await?;
            Ok(done.rows_affected())
        }

        async fn beat(
            conn: &mut Self::Connection,
            sql: &Sql,
            owner: &str,
            beat: i64,
            at: Timestamp,
        ) -> Result<Vec<(String, i64)>> {
            let done = sqlx::query(sql.beat.clone())
                .persistent(sql.named)
                .bind(beat)
                .bind(at.as_micros())
                .bind(owner)
                .execute(&mut *conn)
                .await?;
            if done.rows_affected() == 0 {
                let done = sqlx::query(sql.first_beat.clone())
                    .persistent(sql.named)
                    .bind(owner)
                    .bind(beat)
                    .bind(at.as_micros())
                    .execute(&mut *conn)
                    .await;
                inserted(done.map(|done| done.rows_affected()))?;
            }
            let rows = sqlx::query(sql.beats.clone())
                .persistent(sql.named)
                .fetch_all(conn)
                .await?;
            rows.iter()
                .map(|row| Ok((required(text(row, 0)?)?, row.try_get(1)?)))
                .collect()
        }

        async fn retire(
            conn: &mut Self::Connection,
            sql: &Sql,
            owner: &str,
            before: Timestamp,
        ) -> Result<u64> {
            let done = sqlx::query(sql.retire.clone())
                .persistent(sql.named)
                .bind(owner)
                .bind(before.as_micros())
                .execute(conn)
                .await?;
            Ok(done.rows_affected())
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
                .bind(attempt.lease.token())
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
            // The handler never ran for what was given up for a gap, set aside, or held by the fence; and an attempt under a
            // lease was counted when it began.
            let by_its_place = matches!(
                attempt.reason,
                Some(Reason::Gap | Reason::Skipped | Reason::BeforeStart)
            );
            let ran = !by_its_place
                && attempt.reason != Some(Reason::Fenced)
                && attempt.lease == Lease::NONE;
            let done = sqlx::query(sql.record_attempt.clone())
                .persistent(sql.named)
                .bind(i64::from(ran))
                .bind(attempt.reason.map(|reason| reason as i64))
                .bind(attempt.not_before.as_micros())
                .bind(attempt.status)
                .bind(attempt.error)
                .bind(key.source)
                .bind(key.event_id)
                .bind(attempt.lease.token())
                .bind(attempt.lease.token())
                .bind(i64::from(by_its_place))
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
            Ok(rows.iter().map(|row| page_key(row)).collect())
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
            Ok(rows.iter().map(|row| page_key(row)).collect())
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

        async fn keep_body(
            conn: &mut Self::Connection,
            sql: &Sql,
            key: Key<'_>,
            request: &StoredRequest,
        ) -> Result<()> {
            sqlx::query(sql.keep_body.clone())
                .persistent(sql.named)
                .bind(&*request.method)
                .bind(&*request.uri)
                .bind(&*request.headers)
                .bind(&*request.body)
                .bind(request.bytes())
                .bind(key.source)
                .bind(key.event_id)
                .execute(conn)
                .await?;
            Ok(())
        }

        async fn requeue(
            conn: &mut Self::Connection,
            sql: &Sql,
            key: Key<'_>,
            at: Timestamp,
        ) -> Result<()> {
            sqlx::query(sql.requeue.clone())
                .persistent(sql.named)
                .bind(AT_ONCE.as_micros())
                .bind(at.as_micros())
                .bind(key.source)
                .bind(key.event_id)
                .execute(conn)
                .await?;
            Ok(())
        }

        async fn put_off(
            conn: &mut Self::Connection,
            sql: &Sql,
            key: Key<'_>,
            put_off: &PutOff,
            lease: Lease,
        ) -> Result<bool> {
            let longest = put_off.longest_micros();
            let until = put_off.until.as_micros();
            let done = sqlx::query(sql.put_off.clone())
                .persistent(sql.named)
                .bind(longest)
                .bind(until)
                .bind(longest)
                .bind(until)
                .bind(put_off.now.as_micros())
                // Counted when it began.
                .bind(i64::from(lease != Lease::NONE))
                .bind(key.source)
                .bind(key.event_id)
                .bind(put_off.now.minus(put_off.longest).as_micros())
                .bind(lease.token())
                .bind(lease.token())
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
                    let (event_id, correlation_id) = page_key(row);
                    Ok(Expired {
                        event_id,
                        correlation_id,
                        sequence: row.try_get(2)?,
                    })
                })
                .collect()
        }

        async fn stream_is_used(
            conn: &mut Self::Connection,
            sql: &Sql,
            stream: Stream<'_>,
        ) -> Result<bool> {
            let row = sqlx::query(sql.stream_is_used.clone())
                .persistent(sql.named)
                .bind(stream.source)
                .bind(stream.correlation_id)
                .fetch_optional(conn)
                .await?;
            Ok(row.is_some())
        }

        async fn pending_of_stream(
            conn: &mut Self::Connection,
            sql: &Sql,
            stream: Stream<'_>,
        ) -> Result<Size> {
            let row = sqlx::query(sql.pending_of_stream.clone())
                .persistent(sql.named)
                .bind(stream.source)
                .bind(stream.correlation_id)
                .fetch_one(conn)
                .await?;
            Ok(Size {
                events: row.try_get(0)?,
                bytes: row.try_get(1)?,
            })
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
                    let reason = row.try_get(1)?;
                    Ok(PendingCount {
                        source: required(text(row, 0)?)?,
                        reason: Reason::from_column(reason).map_err(|_| reason.unwrap_or(0)),
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
                .bind(before.as_micros())
                .bind(source)
                .bind(now.as_micros())
                .bind(source)
                .bind(before.as_micros())
                .fetch_one(conn)
                .await?;
            let stale: i64 = row.try_get(0)?;
            Ok(stale > 0)
        }

        async fn insert_answer(
            conn: &mut Self::Connection,
            sql: &Sql,
            key: Key<'_>,
            kept: &Kept,
            at: Timestamp,
        ) -> Result<()> {
            // Twice at most: one of the same id may be left whose event has been purged.
            for _ in 0..2 {
                let done = sqlx::query(sql.insert_answer.clone())
                    .persistent(sql.named)
                    .bind(key.source)
                    .bind(key.event_id)
                    .bind(at.as_micros())
                    .bind(i64::from(kept.status))
                    .bind(&*kept.headers)
                    .bind(kept.body.as_deref())
                    .execute(&mut *conn)
                    .await;
                if inserted(done.map(|done| done.rows_affected()))? {
                    return Ok(());
                }
                sqlx::query(sql.delete_answer.clone())
                    .persistent(sql.named)
                    .bind(key.source)
                    .bind(key.event_id)
                    .execute(&mut *conn)
                    .await?;
            }
            Ok(())
        }

        async fn answer(
            conn: &mut Self::Connection,
            sql: &Sql,
            key: Key<'_>,
        ) -> Result<Option<Arc<Kept>>> {
            let row = sqlx::query(sql.answer.clone())
                .persistent(sql.named)
                .bind(key.source)
                .bind(key.event_id)
                .fetch_optional(conn)
                .await?;
            row.map_or(Ok(None), |row| kept_answer(&row, 0))
        }

        async fn purge_answers(
            conn: &mut Self::Connection,
            sql: &Sql,
            source: &str,
            before: Timestamp,
            limit: i64,
        ) -> Result<u64> {
            let done = sqlx::query(sql.purge_answers.clone())
                .persistent(sql.named)
                .bind(source)
                .bind(before.as_micros())
                .bind(limit)
                .execute(conn)
                .await?;
            Ok(done.rows_affected())
        }

        async fn purge(
            conn: &mut Self::Connection,
            sql: &Sql,
            source: &str,
            before: Timestamp,
            limit: i64,
        ) -> Result<u64> {
            let mut removed = 0;
            for statement in [
                &sql.purge_held,
                &sql.purge_fenced,
                &sql.purge_applied,
                &sql.purge_superseded,
            ] {
                let done = sqlx::query(statement.clone())
                    .persistent(sql.named)
                    .bind(source)
                    .bind(before.as_micros())
                    .bind(limit)
                    .execute(&mut *conn)
                    .await?;
                removed += done.rows_affected();
            }
            Ok(removed)
        }

        async fn guard(
            conn: &mut Self::Connection,
            sql: &Sql,
            entity: &str,
            guarding: Guarding,
            at: Timestamp,
        ) -> Result<bool> {
            let (nothing_yet, statement, to, from) = match guarding {
                Guarding::At(expected) => (0, &sql.guard_at, expected.saturating_add(1), expected),
                Guarding::Above(number) => (i64::MIN, &sql.guard_above, number, number),
            };
            sqlx::query(sql.ensure_guard.clone())
                .persistent(sql.named)
                .bind(entity)
                .bind(nothing_yet)
                .bind(at.as_micros())
                .execute(&mut *conn)
                .await?;
            let done = sqlx::query(statement.clone())
                .persistent(sql.named)
                .bind(to)
                .bind(at.as_micros())
                .bind(entity)
                .bind(from)
                .execute(conn)
                .await?;
            Ok(done.rows_affected() == 1)
        }

        async fn erase_pending(
            conn: &mut Self::Connection,
            sql: &Sql,
            source: &str,
            which: &ErasureFilter<'_>,
        ) -> Result<u64> {
            let done = sqlx::query(sql.erase_pending.clone())
                .persistent(sql.named)
                .bind(&b""[..])
                .bind(&b""[..])
                .bind(source)
                .bind(i64::from(which.event_id.is_none()))
                .bind(which.event_id.unwrap_or_default())
                .bind(i64::from(which.correlation_id.is_none()))
                .bind(which.correlation_id.unwrap_or_default())
                .bind(which.before.map_or(i64::MAX, Timestamp::as_micros))
                .execute(conn)
                .await?;
            Ok(done.rows_affected())
        }

        async fn erase_answers(
            conn: &mut Self::Connection,
            sql: &Sql,
            source: &str,
            which: &ErasureFilter<'_>,
        ) -> Result<u64> {
            let done = sqlx::query(sql.erase_answers.clone())
                .persistent(sql.named)
                .bind(&b""[..])
                .bind(source)
                .bind(i64::from(which.event_id.is_none()))
                .bind(which.event_id.unwrap_or_default())
                .bind(which.before.map_or(i64::MAX, Timestamp::as_micros))
                .bind(i64::from(which.correlation_id.is_none()))
                .bind(source)
                .bind(which.correlation_id.unwrap_or_default())
                .execute(conn)
                .await?;
            Ok(done.rows_affected())
        }

        async fn count_waiting(
            conn: &mut Self::Connection,
            sql: &Sql,
            source: &str,
            which: &ErasureFilter<'_>,
        ) -> Result<u64> {
            let row = sqlx::query(sql.count_waiting.clone())
                .persistent(sql.named)
                .bind(source)
                .bind(i64::from(which.event_id.is_none()))
                .bind(which.event_id.unwrap_or_default())
                .bind(i64::from(which.correlation_id.is_none()))
                .bind(which.correlation_id.unwrap_or_default())
                .bind(which.before.map_or(i64::MAX, Timestamp::as_micros))
                .fetch_one(conn)
                .await?;
            Ok(row.try_get::<i64, _>(0)?.unsigned_abs())
        }

        async fn gone_sources(conn: &mut Self::Connection, sql: &Sql) -> Result<Vec<String>> {
            let rows = sqlx::query(sql.gone_sources.clone())
                .persistent(sql.named)
                .fetch_all(conn)
                .await?;
            rows.iter().map(|row| required(text(row, 0)?)).collect()
        }

        async fn set_gone(
            conn: &mut Self::Connection,
            sql: &Sql,
            source: &str,
            gone: bool,
            at: Timestamp,
        ) -> Result<()> {
            // Twice at most: somebody else may have been first.
            for _ in 0..2 {
                let done = sqlx::query(sql.set_gone.clone())
                    .persistent(sql.named)
                    .bind(i64::from(gone))
                    .bind(at.as_micros())
                    .bind(source)
                    .execute(&mut *conn)
                    .await?;
                if done.rows_affected() > 0 {
                    return Ok(());
                }
                let done = sqlx::query(sql.insert_gone.clone())
                    .persistent(sql.named)
                    .bind(source)
                    .bind(i64::from(gone))
                    .bind(at.as_micros())
                    .execute(&mut *conn)
                    .await;
                if inserted(done.map(|done| done.rows_affected()))? {
                    return Ok(());
                }
            }
            Ok(())
        }

        async fn now(conn: &mut Self::Connection, sql: &Sql) -> Result<Timestamp> {
            let row = sqlx::query(sql.now.clone())
                .persistent(sql.named)
                .fetch_one(conn)
                .await?;
            Ok(Timestamp::from_micros(row.try_get(0)?))
        }

        async fn stale_audit(
            conn: &mut Self::Connection,
            sql: &Sql,
            before: Timestamp,
        ) -> Result<bool> {
            let row = sqlx::query(sql.stale_audit.clone())
                .persistent(sql.named)
                .bind(before.as_micros())
                .fetch_one(conn)
                .await?;
            Ok(row.try_get::<i64, _>(0)? > 0)
        }

        async fn purge_audit(
            conn: &mut Self::Connection,
            sql: &Sql,
            before: Timestamp,
            limit: i64,
        ) -> Result<u64> {
            let done = sqlx::query(sql.purge_audit.clone())
                .persistent(sql.named)
                .bind(limit)
                .bind(before.as_micros())
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

        async fn start_burst(
            conn: &mut Self::Connection,
            sql: &Sql,
            start: &BurstStart<'_>,
        ) -> Result<bool> {
            let done = sqlx::query(sql.start_burst.clone())
                .persistent(sql.named)
                .bind(start.key.source)
                .bind(start.key.event_id)
                .bind(start.event_type)
                .bind(start.since.map(Timestamp::as_micros))
                .bind(start.until.map(Timestamp::as_micros))
                .bind(start.at.as_micros())
                .execute(conn)
                .await;
            inserted(done.map(|done| done.rows_affected()))
        }

        async fn orphan_burst(
            conn: &mut Self::Connection,
            sql: &Sql,
            source: &str,
            since: Timestamp,
        ) -> Result<Option<String>> {
            let row = sqlx::query(sql.orphan_burst.clone())
                .persistent(sql.named)
                .bind(source)
                .bind(since.as_micros())
                .fetch_optional(conn)
                .await?;
            row.map(|row| required(text(&row, 0)?)).transpose()
        }

        async fn adopt_burst(
            conn: &mut Self::Connection,
            sql: &Sql,
            burst_id: &str,
            start: &BurstStart<'_>,
        ) -> Result<bool> {
            let done = sqlx::query(sql.adopt_burst.clone())
                .persistent(sql.named)
                .bind(start.key.event_id)
                .bind(start.event_type)
                .bind(start.since.map(Timestamp::as_micros))
                .bind(start.until.map(Timestamp::as_micros))
                .bind(start.at.as_micros())
                .bind(start.key.source)
                .bind(burst_id)
                .execute(conn)
                .await;
            // A start that is known already has a row of its own.
            inserted(done.map(|done| done.rows_affected()))
        }

        async fn burst_ended_by(
            conn: &mut Self::Connection,
            sql: &Sql,
            key: Key<'_>,
        ) -> Result<bool> {
            let row = sqlx::query(sql.burst_ended_by.clone())
                .persistent(sql.named)
                .bind(key.source)
                .bind(key.event_id)
                .fetch_one(conn)
                .await?;
            let ended: i64 = row.try_get(0)?;
            Ok(ended > 0)
        }

        async fn running_burst(
            conn: &mut Self::Connection,
            sql: &Sql,
            source: &str,
        ) -> Result<Option<String>> {
            let row = sqlx::query(sql.running_burst.clone())
                .persistent(sql.named)
                .bind(source)
                .fetch_optional(conn)
                .await?;
            row.map(|row| required(text(&row, 0)?)).transpose()
        }

        async fn end_burst(
            conn: &mut Self::Connection,
            sql: &Sql,
            burst_id: &str,
            end: &BurstEnd<'_>,
            completed: bool,
        ) -> Result<bool> {
            let done = sqlx::query(sql.end_burst.clone())
                .persistent(sql.named)
                .bind(end.at.as_micros())
                .bind(completed.then_some(end.key.event_id))
                .bind(end.announced)
                .bind(end.key.source)
                .bind(burst_id)
                .execute(conn)
                .await;
            // One end ends one burst: another process was told too.
            inserted(done.map(|done| done.rows_affected()))
        }

        async fn end_unknown_burst(
            conn: &mut Self::Connection,
            sql: &Sql,
            end: &BurstEnd<'_>,
        ) -> Result<bool> {
            let done = sqlx::query(sql.end_unknown_burst.clone())
                .persistent(sql.named)
                .bind(end.key.source)
                .bind(end.key.event_id)
                .bind(end.at.as_micros())
                .bind(end.key.event_id)
                .bind(end.announced)
                .execute(conn)
                .await;
            inserted(done.map(|done| done.rows_affected()))
        }

        async fn count_burst(
            conn: &mut Self::Connection,
            sql: &Sql,
            key: Key<'_>,
            more: Arrived,
        ) -> Result<bool> {
            let done = sqlx::query(sql.count_burst.clone())
                .persistent(sql.named)
                .bind(more.applied)
                .bind(more.duplicates)
                .bind(more.parked)
                .bind(more.others)
                .bind(key.source)
                .bind(key.event_id)
                .execute(conn)
                .await?;
            Ok(done.rows_affected() == 1)
        }

        async fn report_burst(
            conn: &mut Self::Connection,
            sql: &Sql,
            key: Key<'_>,
        ) -> Result<bool> {
            let done = sqlx::query(sql.report_burst.clone())
                .persistent(sql.named)
                .bind(key.source)
                .bind(key.event_id)
                .execute(conn)
                .await?;
            Ok(done.rows_affected() == 1)
        }

        async fn bursts(
            conn: &mut Self::Connection,
            sql: &Sql,
            of: Option<(&str, i64)>,
        ) -> Result<Vec<BurstRow>> {
            let rows = match of {
                None => {
                    sqlx::query(sql.open_bursts.clone())
                        .persistent(sql.named)
                        .fetch_all(conn)
                        .await?
                }
                Some((source, limit)) => {
                    sqlx::query(sql.bursts.clone())
                        .persistent(sql.named)
                        .bind(source)
                        .bind(limit)
                        .fetch_all(conn)
                        .await?
                }
            };
            rows.iter()
                .map(|row| {
                    let time = |index: usize| {
                        let micros: Option<i64> = row.try_get(index)?;
                        Ok::<_, sqlx::Error>(micros.map(Timestamp::from_micros))
                    };
                    Ok(BurstRow {
                        source: required(text(row, 0)?)?,
                        burst_id: required(text(row, 1)?)?,
                        event_type: text(row, 2)?,
                        since: time(3)?,
                        until: time(4)?,
                        started_at: time(5)?,
                        ended_at: time(6)?,
                        completed_by: text(row, 7)?,
                        announced: row.try_get(8)?,
                        arrived: Arrived {
                            applied: row.try_get(9)?,
                            duplicates: row.try_get(10)?,
                            parked: row.try_get(11)?,
                            others: row.try_get(12)?,
                        },
                    })
                })
                .collect()
        }

        async fn alive(conn: &mut Self::Connection, sql: &Sql) -> Result<Vec<Alive>> {
            let rows = sqlx::query(sql.alive.clone())
                .persistent(sql.named)
                .fetch_all(conn)
                .await?;
            rows.iter()
                .map(|row| {
                    Ok(Alive {
                        incarnation: required(text(row, 0)?)?,
                        at: Timestamp::from_micros(row.try_get(1)?),
                    })
                })
                .collect()
        }

        async fn stay_alive(
            conn: &mut Self::Connection,
            sql: &Sql,
            from: Option<Timestamp>,
            to: &Alive,
        ) -> Result<bool> {
            let done = match from {
                None => {
                    sqlx::query(sql.first_alive.clone())
                        .persistent(sql.named)
                        .bind(&*to.incarnation)
                        .bind(to.at.as_micros())
                        .execute(conn)
                        .await
                }
                Some(from) => {
                    sqlx::query(sql.stay_alive.clone())
                        .persistent(sql.named)
                        .bind(to.at.as_micros())
                        .bind(&*to.incarnation)
                        .bind(from.as_micros())
                        .execute(conn)
                        .await
                }
            };
            inserted(done.map(|done| done.rows_affected()))
        }

        async fn add_incident(
            conn: &mut Self::Connection,
            sql: &Sql,
            found_at: Timestamp,
            since: Timestamp,
            incarnation: &str,
        ) -> Result<bool> {
            let done = sqlx::query(sql.add_incident.clone())
                .persistent(sql.named)
                .bind(found_at.as_micros())
                .bind(since.as_micros())
                .bind(incarnation)
                .execute(conn)
                .await;
            inserted(done.map(|done| done.rows_affected()))
        }

        async fn incidents(
            conn: &mut Self::Connection,
            sql: &Sql,
            after: Timestamp,
        ) -> Result<Vec<(Timestamp, Timestamp)>> {
            let rows = sqlx::query(sql.incidents.clone())
                .persistent(sql.named)
                .bind(after.as_micros())
                .fetch_all(conn)
                .await?;
            rows.iter()
                .map(|row| {
                    Ok((
                        Timestamp::from_micros(row.try_get(0)?),
                        Timestamp::from_micros(row.try_get(1)?),
                    ))
                })
                .collect()
        }

        async fn open_reconcile(
            conn: &mut Self::Connection,
            sql: &Sql,
            list: ListKey<'_>,
        ) -> Result<bool> {
            let done = sqlx::query(sql.open_reconcile.clone())
                .persistent(sql.named)
                .bind(list.source)
                .bind(list.kind)
                .execute(conn)
                .await;
            inserted(done.map(|done| done.rows_affected()))
        }

        async fn take_reconcile(
            conn: &mut Self::Connection,
            sql: &Sql,
            list: ListKey<'_>,
            owner: &str,
            now: Timestamp,
            until: Timestamp,
        ) -> Result<bool> {
            let done = sqlx::query(sql.take_reconcile.clone())
                .persistent(sql.named)
                .bind(owner)
                .bind(until.as_micros())
                .bind(list.source)
                .bind(list.kind)
                .bind(owner)
                .bind(now.as_micros())
                .execute(conn)
                .await?;
            Ok(done.rows_affected() == 1)
        }

        async fn reconcile_state(
            conn: &mut Self::Connection,
            sql: &Sql,
            list: ListKey<'_>,
        ) -> Result<Option<Progress>> {
            let row = sqlx::query(sql.reconcile_state.clone())
                .persistent(sql.named)
                .bind(list.source)
                .bind(list.kind)
                .fetch_optional(conn)
                .await?;
            let Some(row) = row else { return Ok(None) };
            let time = |index: usize| {
                let micros: Option<i64> = row.try_get(index)?;
                Ok::<_, sqlx::Error>(micros.map(Timestamp::from_micros))
            };
            Ok(Some(Progress {
                through: time(0)?,
                run_since: time(1)?,
                next_page: text(&row, 2)?,
                highest: time(3)?,
                held_back: time(4)?,
                settled: required(time(5)?)?,
                finished_at: time(6)?,
            }))
        }

        async fn save_reconcile(
            conn: &mut Self::Connection,
            sql: &Sql,
            list: ListKey<'_>,
            progress: &Progress,
            owner: &str,
            until: Timestamp,
        ) -> Result<bool> {
            let done = sqlx::query(sql.save_reconcile.clone())
                .persistent(sql.named)
                .bind(progress.through.map(Timestamp::as_micros))
                .bind(progress.run_since.map(Timestamp::as_micros))
                .bind(progress.next_page.as_deref())
                .bind(progress.highest.map(Timestamp::as_micros))
                .bind(progress.held_back.map(Timestamp::as_micros))
                .bind(progress.settled.as_micros())
                .bind(progress.finished_at.map(Timestamp::as_micros))
                .bind(until.as_micros())
                .bind(list.source)
                .bind(list.kind)
                .bind(owner)
                .execute(conn)
                .await?;
            Ok(done.rows_affected() == 1)
        }

        async fn gaps(
            conn: &mut Self::Connection,
            sql: &Sql,
            after: Stream<'_>,
            limit: i64,
        ) -> Result<Vec<Gap>> {
            let rows = sqlx::query(sql.gaps.clone())
                .persistent(sql.named)
                .bind(after.source)
                .bind(after.correlation_id)
                .bind(limit)
                .fetch_all(conn)
                .await?;
            rows.iter()
                .map(|row| {
                    Ok(Gap {
                        correlation_id: required(text(row, 0)?)?,
                        missing: row.try_get(1)?,
                        parked: row.try_get(2)?,
                    })
                })
                .collect()
        }
    };
}

pub(crate) use statements_of_backend;

/// Rows that several statements have. A macro's, since what a driver's row decodes to cannot be said in general.
macro_rules! pending_row {
    ($row:ty) => {
        /// Three columns from `at` on, as the statements with answers have them.
        fn kept_answer(row: &$row, at: usize) -> Result<Option<Arc<Kept>>> {
            let Some(status) = row.try_get::<Option<i64>, _>(at)? else {
                return Ok(None);
            };
            let status = u16::try_from(status)
                .map_err(|_| sqlx::Error::Decode("a status is out of range".into()))?;
            Ok(Some(Arc::new(Kept {
                status,
                headers: row.try_get::<Vec<u8>, _>(at + 1)?.into(),
                body: row.try_get::<Option<Vec<u8>>, _>(at + 2)?.map(Into::into),
            })))
        }

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
                version: row.try_get(13)?,
                lease: Lease::from_column(row.try_get(14)?),
                lease_owner: text(row, 15)?,
                lease_until: Timestamp::from_micros(row.try_get(16)?),
                unfinished: row.try_get(17)?,
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

/// The two texts that a row of a page is known by; both empty if they cannot be read, so that one bad row hides none of the
/// others. The log says so.
pub(crate) fn page_key<R>(row: &R) -> (String, String)
where
    R: Row,
    usize: sqlx::ColumnIndex<R>,
    for<'r> Option<String>: sqlx::Decode<'r, R::Database>,
{
    let key = || Ok((required(text(row, 0)?)?, required(text(row, 1)?)?));
    key().unwrap_or_else(|error: sqlx::Error| {
        tracing::error!(%error, "a row's key cannot be read; it is left alone");
        Default::default()
    })
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
