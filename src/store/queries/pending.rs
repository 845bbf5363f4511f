//! Queries: what is stored.

macro_rules! statements_of_pending {
    () => {
        async fn insert_pending(
            conn: &mut Self::Connection,
            sql: &Sql,
            pending: &NewPending<'_>,
        ) -> Result<()> {
            $crate::fail::point!(sql, "store.insert_pending");
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
            $crate::fail::point!(sql, "store.delete_pending");
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

        async fn postpone(
            conn: &mut Self::Connection,
            sql: &Sql,
            key: Key<'_>,
            attempt: &Attempt<'_>,
        ) -> Result<bool> {
            $crate::fail::point!(sql, "store.postpone");
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
            $crate::fail::point!(sql, "store.record_attempt");
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

        async fn release_pending(
            conn: &mut Self::Connection,
            sql: &Sql,
            key: Key<'_>,
            out_of_order: bool,
            at: Timestamp,
        ) -> Result<bool> {
            $crate::fail::point!(sql, "store.release_pending");
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
            $crate::fail::point!(sql, "store.keep_body");
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

        async fn hasten(
            conn: &mut Self::Connection,
            sql: &Sql,
            key: Key<'_>,
            now: Timestamp,
        ) -> Result<bool> {
            $crate::fail::point!(sql, "store.hasten");
            let done = sqlx::query(sql.hasten.clone())
                .persistent(sql.named)
                .bind(AT_ONCE.as_micros())
                .bind(key.source)
                .bind(key.event_id)
                .bind(now.as_micros())
                .execute(conn)
                .await?;
            Ok(done.rows_affected() == 1)
        }

        async fn requeue(
            conn: &mut Self::Connection,
            sql: &Sql,
            key: Key<'_>,
            at: Timestamp,
        ) -> Result<()> {
            $crate::fail::point!(sql, "store.requeue");
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
            $crate::fail::point!(sql, "store.put_off");
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

        async fn expired(
            conn: &mut Self::Connection,
            sql: &Sql,
            source: &str,
            parked_before: Timestamp,
            after: &str,
            limit: i64,
        ) -> Result<Vec<Expired>> {
            $crate::fail::point!(sql, "store.expired");
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
            $crate::fail::point!(sql, "store.stream_is_used");
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
            $crate::fail::point!(sql, "store.pending_of_stream");
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
            $crate::fail::point!(sql, "store.pending_counts");
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

        async fn erase_pending(
            conn: &mut Self::Connection,
            sql: &Sql,
            source: &str,
            which: &ErasureFilter<'_>,
        ) -> Result<u64> {
            $crate::fail::point!(sql, "store.erase_pending");
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

        async fn count_waiting(
            conn: &mut Self::Connection,
            sql: &Sql,
            source: &str,
            which: &ErasureFilter<'_>,
        ) -> Result<u64> {
            $crate::fail::point!(sql, "store.count_waiting");
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
    };
}

pub(crate) use statements_of_pending;
