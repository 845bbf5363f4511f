//! Queries: reconciliation, and signs of life.

macro_rules! statements_of_reconcile {
    () => {
        async fn alive(conn: &mut Self::Connection, sql: &Sql) -> Result<Vec<Alive>> {
            $crate::fail::point!(sql, "store.alive");
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
            $crate::fail::point!(sql, "store.stay_alive");
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
            $crate::fail::point!(sql, "store.add_incident");
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
            $crate::fail::point!(sql, "store.incidents");
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
            $crate::fail::point!(sql, "store.open_reconcile");
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
            $crate::fail::point!(sql, "store.take_reconcile");
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
            $crate::fail::point!(sql, "store.reconcile_state");
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
            $crate::fail::point!(sql, "store.save_reconcile");
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
            $crate::fail::point!(sql, "store.gaps");
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

pub(crate) use statements_of_reconcile;
