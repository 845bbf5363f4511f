//! Queries: replay bursts.

macro_rules! statements_of_bursts {
    () => {
        async fn start_burst(
            conn: &mut Self::Connection,
            sql: &Sql,
            start: &BurstStart<'_>,
        ) -> Result<bool> {
            $crate::fail::point!(sql, "store.start_burst");
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
            $crate::fail::point!(sql, "store.orphan_burst");
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
            $crate::fail::point!(sql, "store.adopt_burst");
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
            $crate::fail::point!(sql, "store.burst_ended_by");
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
            $crate::fail::point!(sql, "store.running_burst");
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
            $crate::fail::point!(sql, "store.end_burst");
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
            $crate::fail::point!(sql, "store.end_unknown_burst");
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
            $crate::fail::point!(sql, "store.count_burst");
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
            $crate::fail::point!(sql, "store.report_burst");
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
            $crate::fail::point!(sql, "store.bursts");
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
    };
}

pub(crate) use statements_of_bursts;
