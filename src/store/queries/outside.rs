//! Queries: what is looked at from outside of the processes that deliver.

macro_rules! statements_of_outside {
    () => {
        async fn workers(
            conn: &mut Self::Connection,
            sql: &Sql,
        ) -> Result<Vec<(String, Timestamp)>> {
            $crate::fail::point!(sql, "store.workers");
            let rows = sqlx::query(sql.workers.clone())
                .persistent(sql.named)
                .fetch_all(conn)
                .await?;
            rows.iter().map(named_time).collect()
        }

        async fn reconciliations(conn: &mut Self::Connection, sql: &Sql) -> Result<Vec<ListRow>> {
            $crate::fail::point!(sql, "store.reconciliations");
            let rows = sqlx::query(sql.reconciliations.clone())
                .persistent(sql.named)
                .fetch_all(conn)
                .await?;
            rows.iter()
                .map(|row| {
                    let time = |index: usize| {
                        let micros: Option<i64> = row.try_get(index)?;
                        Ok::<_, sqlx::Error>(micros.map(Timestamp::from_micros))
                    };
                    Ok(ListRow {
                        source: required(text(row, 0)?)?,
                        kind: row.try_get(1)?,
                        through: time(2)?,
                        next_page: text(row, 3)?,
                        held_back: time(4)?,
                        finished_at: time(5)?,
                        lease_until: required(time(6)?)?,
                    })
                })
                .collect()
        }

        async fn count_stale(
            conn: &mut Self::Connection,
            sql: &Sql,
            source: &str,
            before: Timestamp,
        ) -> Result<u64> {
            $crate::fail::point!(sql, "store.count_stale");
            let row = sqlx::query(sql.count_stale.clone())
                .persistent(sql.named)
                .bind(source)
                .bind(before.as_micros())
                .bind(source)
                .bind(before.as_micros())
                .fetch_one(conn)
                .await?;
            let rows: i64 = row.try_get(0)?;
            Ok(rows.unsigned_abs())
        }
    };
}

pub(crate) use statements_of_outside;
