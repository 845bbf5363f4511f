//! Queries: what is parked, in a stream or in none, and whose it may be.

macro_rules! statements_of_waiting {
    () => {
        async fn waiting(
            conn: &mut Self::Connection,
            sql: &Sql,
            filter: &WaitingFilter<'_>,
            after: Key<'_>,
            limit: i64,
        ) -> Result<Vec<FoundLetter>> {
            $crate::fail::point!(sql, "store.waiting");
            let ((source, event_id), until) = span(filter.source, (after.source, after.event_id));
            let rows = sqlx::query(sql.waiting.clone())
                .persistent(sql.named)
                .bind(source)
                .bind(source)
                .bind(event_id)
                .bind(until)
                .bind(filter.not_until.as_micros())
                .bind(i64::from(!filter.apart))
                .bind(limit)
                .fetch_all(conn)
                .await?;
            let key = |row| Ok((required(text(row, 0)?)?, required(text(row, 1)?)?));
            Ok(rows.iter().map(|row| (key(row), letter(row))).collect())
        }

        async fn count_apart(
            conn: &mut Self::Connection,
            sql: &Sql,
            source: Option<&str>,
            limit: i64,
        ) -> Result<i64> {
            $crate::fail::point!(sql, "store.count_apart");
            let ((first, _), last) = span(source, ("", ""));
            let row = sqlx::query(sql.count_apart.clone())
                .persistent(sql.named)
                .bind(first)
                .bind(last)
                .bind(limit)
                .fetch_one(conn)
                .await?;
            row.try_get(0)
        }

        async fn source_is_known(
            conn: &mut Self::Connection,
            sql: &Sql,
            source: &str,
        ) -> Result<bool> {
            $crate::fail::point!(sql, "store.source_is_known");
            let mut query = sqlx::query(sql.source_is_known.clone()).persistent(sql.named);
            for _ in 0..6 {
                query = query.bind(source);
            }
            let row = query.fetch_one(conn).await?;
            Ok(row.try_get::<i64, _>(0)? > 0)
        }
    };
}

pub(crate) use statements_of_waiting;
