//! Queries: what a worker does, and who does it.

macro_rules! statements_of_work {
    () => {
        async fn claim(
            conn: &mut Self::Connection,
            sql: &Sql,
            key: Key<'_>,
            claim: &Claim<'_>,
        ) -> Result<bool> {
            $crate::fail::point!(sql, "store.claim");
            let done = sqlx::query(sql.claim.clone())
                .persistent(sql.named)
                .bind(key.source)
                .bind(key.event_id)
                .bind(claim.from.lease.token())
                .bind(claim.from.attempts)
                .bind(claim.from.not_before.as_micros())
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
            $crate::fail::point!(sql, "store.hand_back");
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
            $crate::fail::point!(sql, "store.hand_back_all");
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
            $crate::fail::point!(sql, "store.beat");
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
            $crate::fail::point!(sql, "store.retire");
            let done = sqlx::query(sql.retire.clone())
                .persistent(sql.named)
                .bind(owner)
                .bind(before.as_micros())
                .execute(conn)
                .await?;
            Ok(done.rows_affected())
        }

        async fn due_streams(
            conn: &mut Self::Connection,
            sql: &Sql,
            after: Stream<'_>,
            now: Timestamp,
            limit: i64,
        ) -> Result<Vec<(String, String)>> {
            $crate::fail::point!(sql, "store.due_streams");
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
            $crate::fail::point!(sql, "store.due_head");
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
            $crate::fail::point!(sql, "store.due_events");
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

        #[cfg(feature = "testkit")]
        async fn next_due(
            conn: &mut Self::Connection,
            sql: &Sql,
            now: Timestamp,
            source: &str,
            window: Duration,
        ) -> Result<Option<Timestamp>> {
            // Added to any time of now it is a number still.
            const LONGEST: i64 = i64::MAX / 2;
            $crate::fail::point!(sql, "store.next_due");
            let row = sqlx::query(sql.next_due.clone())
                .persistent(sql.named)
                .bind(now.as_micros())
                .bind(now.as_micros())
                .bind(
                    i64::try_from(window.as_micros())
                        .unwrap_or(LONGEST)
                        .min(LONGEST),
                )
                .bind(source)
                .bind(now.minus(window).as_micros())
                .fetch_one(conn)
                .await?;
            let micros: Option<i64> = row.try_get(0)?;
            Ok(micros.map(Timestamp::from_micros))
        }

        async fn due_event(
            conn: &mut Self::Connection,
            sql: &Sql,
            key: Key<'_>,
        ) -> Result<Option<Pending>> {
            $crate::fail::point!(sql, "store.due_event");
            let row = sqlx::query(sql.due_event.clone())
                .persistent(sql.named)
                .bind(key.source)
                .bind(key.event_id)
                .fetch_optional(conn)
                .await?;
            row.map(|row| pending(&row)).transpose()
        }
    };
}

pub(crate) use statements_of_work;
