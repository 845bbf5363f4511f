//! Queries: where streams stand.

macro_rules! statements_of_streams {
    () => {
        async fn advance_cursor(
            conn: &mut Self::Connection,
            sql: &Sql,
            place: &Place<'_>,
            at: Timestamp,
        ) -> Result<bool> {
            $crate::fail::point!(sql, "store.advance_cursor");
            let advance = sqlx::query(sql.advance_cursor.clone()).persistent(sql.named);
            let done = step(advance, place, at).execute(conn).await?;
            Ok(done.rows_affected() == 1)
        }

        async fn open_cursor(
            conn: &mut Self::Connection,
            sql: &Sql,
            stream: Stream<'_>,
            start: Start,
            at: Timestamp,
        ) -> Result<bool> {
            $crate::fail::point!(sql, "store.open_cursor");
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

        async fn lock_cursor(
            conn: &mut Self::Connection,
            sql: &Sql,
            stream: Stream<'_>,
        ) -> Result<Option<Cursor>> {
            $crate::fail::point!(sql, "store.lock_cursor");
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
            $crate::fail::point!(sql, "store.touch_settling");
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
            $crate::fail::point!(sql, "store.lock_settling");
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
            $crate::fail::point!(sql, "store.lowest_parked");
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
            $crate::fail::point!(sql, "store.settle_cursor");
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
            $crate::fail::point!(sql, "store.settled_streams");
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
    };
}

pub(crate) use statements_of_streams;
