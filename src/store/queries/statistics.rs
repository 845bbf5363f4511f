//! Queries: the statistics, and what is stored in numbers.

macro_rules! statements_of_statistics {
    () => {
        async fn claim_flush(
            conn: &mut Self::Connection,
            sql: &Sql,
            owner: &str,
            batch: i64,
            at: Timestamp,
        ) -> Result<bool> {
            $crate::fail::point!(sql, "store.claim_flush");
            let update = sqlx::query(sql.claim_flush.clone())
                .persistent(sql.named)
                .bind(batch)
                .bind(at.as_micros())
                .bind(owner)
                .bind(batch);
            let insert = sqlx::query(sql.first_flush.clone())
                .persistent(sql.named)
                .bind(owner)
                .bind(batch)
                .bind(at.as_micros());
            update_or_insert(conn, update, insert).await
        }

        async fn add_stats(
            conn: &mut Self::Connection,
            sql: &Sql,
            key: StatKey<'_>,
            more: &StatCounts,
        ) -> Result<()> {
            $crate::fail::point!(sql, "store.add_stats");
            // Twice at most: another process may begin the hour at the same time.
            for _ in 0..2 {
                let mut add = sqlx::query(sql.add_stats.clone())
                    .persistent(sql.named)
                    .bind(more.total)
                    .bind(more.delivered)
                    .bind(more.duplicates)
                    .bind(more.parked)
                    .bind(more.discarded)
                    .bind(more.failed)
                    .bind(more.refused)
                    .bind(more.last_5xx)
                    .bind(more.last_5xx);
                for bucket in more.handler {
                    add = add.bind(bucket);
                }
                let add = add
                    .bind(key.source)
                    .bind(key.event_type)
                    .bind(key.slot.as_micros());
                let mut insert = sqlx::query(sql.insert_stats.clone())
                    .persistent(sql.named)
                    .bind(key.source)
                    .bind(key.event_type)
                    .bind(key.slot.as_micros())
                    .bind(more.total)
                    .bind(more.delivered)
                    .bind(more.duplicates)
                    .bind(more.parked)
                    .bind(more.discarded)
                    .bind(more.failed)
                    .bind(more.refused)
                    .bind(more.last_5xx);
                for bucket in more.handler {
                    insert = insert.bind(bucket);
                }
                if update_or_insert(conn, add, insert).await? {
                    return Ok(());
                }
            }
            // Removed between two statements of one transaction: its hour is long over.
            Ok(())
        }

        async fn stats(
            conn: &mut Self::Connection,
            sql: &Sql,
            from: Timestamp,
            to: Timestamp,
        ) -> Result<(Vec<StatOfType>, Vec<StatOfSlot>)> {
            $crate::fail::point!(sql, "store.stats");
            let types = sqlx::query(sql.stats_by_type.clone())
                .persistent(sql.named)
                .bind(from.as_micros())
                .bind(to.as_micros())
                .fetch_all(&mut *conn)
                .await?;
            let types = types.iter().map(|row| {
                let mut handler = [0; BUCKETS];
                for (index, bucket) in handler.iter_mut().enumerate() {
                    *bucket = row.try_get(10 + index)?;
                }
                let counts = StatCounts {
                    total: row.try_get(2)?,
                    delivered: row.try_get(3)?,
                    duplicates: row.try_get(4)?,
                    parked: row.try_get(5)?,
                    discarded: row.try_get(6)?,
                    failed: row.try_get(7)?,
                    refused: row.try_get(8)?,
                    last_5xx: row.try_get(9)?,
                    handler,
                };
                Ok(StatOfType {
                    source: required(text(row, 0)?)?,
                    event_type: required(text(row, 1)?)?,
                    counts,
                })
            });
            let types = types.collect::<Result<_>>()?;
            let slots = sqlx::query(sql.stats_by_slot.clone())
                .persistent(sql.named)
                .bind(from.as_micros())
                .bind(to.as_micros())
                .fetch_all(conn)
                .await?;
            let slots = slots.iter().map(|row| {
                Ok(StatOfSlot {
                    source: required(text(row, 0)?)?,
                    slot: Timestamp::from_micros(row.try_get(1)?),
                    total: row.try_get(2)?,
                    failed: row.try_get(3)?,
                })
            });
            Ok((types, slots.collect::<Result<_>>()?))
        }

        async fn stale_stats(
            conn: &mut Self::Connection,
            sql: &Sql,
            before: Timestamp,
            limit: i64,
        ) -> Result<Vec<String>> {
            $crate::fail::point!(sql, "store.stale_stats");
            let rows = sqlx::query(sql.stale_stats.clone())
                .persistent(sql.named)
                .bind(before.as_micros())
                .bind(limit)
                .fetch_all(conn)
                .await?;
            rows.iter().map(|row| required(text(row, 0)?)).collect()
        }

        async fn purge_stats(
            conn: &mut Self::Connection,
            sql: &Sql,
            source: &str,
            before: Timestamp,
        ) -> Result<u64> {
            $crate::fail::point!(sql, "store.purge_stats");
            let done = sqlx::query(sql.purge_stats.clone())
                .persistent(sql.named)
                .bind(source)
                .bind(before.as_micros())
                .execute(conn)
                .await?;
            Ok(done.rows_affected())
        }

        async fn purge_notes(
            conn: &mut Self::Connection,
            sql: &Sql,
            flushes: Timestamp,
            secrets: Timestamp,
        ) -> Result<()> {
            $crate::fail::point!(sql, "store.purge_notes");
            for (statement, before) in [
                (&sql.purge_flushes, flushes),
                (&sql.purge_secret_uses, secrets),
                (&sql.purge_row_counts, secrets),
            ] {
                sqlx::query(statement.clone())
                    .persistent(sql.named)
                    .bind(before.as_micros())
                    .execute(&mut *conn)
                    .await?;
            }
            Ok(())
        }

        async fn use_secret(
            conn: &mut Self::Connection,
            sql: &Sql,
            source: &str,
            label: &str,
            at: Timestamp,
        ) -> Result<()> {
            $crate::fail::point!(sql, "store.use_secret");
            let update = sqlx::query(sql.use_secret.clone())
                .persistent(sql.named)
                .bind(at.as_micros())
                .bind(source)
                .bind(label)
                .bind(at.as_micros());
            // It is not known yet, or another process has seen a later one.
            let insert = sqlx::query(sql.first_use.clone())
                .persistent(sql.named)
                .bind(source)
                .bind(label)
                .bind(at.as_micros());
            update_or_insert(conn, update, insert).await.map(drop)
        }

        async fn secret_uses(conn: &mut Self::Connection, sql: &Sql) -> Result<Vec<SecretUsed>> {
            $crate::fail::point!(sql, "store.secret_uses");
            let rows = sqlx::query(sql.secret_uses.clone())
                .persistent(sql.named)
                .fetch_all(conn)
                .await?;
            rows.iter()
                .map(|row| {
                    Ok(SecretUsed {
                        source: required(text(row, 0)?)?,
                        label: required(text(row, 1)?)?,
                        at: Timestamp::from_micros(row.try_get(2)?),
                    })
                })
                .collect()
        }

        async fn stored_now(
            conn: &mut Self::Connection,
            sql: &Sql,
            now: Timestamp,
        ) -> Result<StoredNow> {
            $crate::fail::point!(sql, "store.stored_now");
            let mut stored = StoredNow::default();
            let gaps = sqlx::query(sql.count_gaps.clone())
                .persistent(sql.named)
                .fetch_all(&mut *conn)
                .await?;
            for row in &gaps {
                stored.gaps.push(Gaps {
                    source: required(text(row, 0)?)?,
                    lowest: row.try_get(1)?,
                    streams: row.try_get(2)?,
                });
            }
            for statement in [&sql.due_since, &sql.due_events_since] {
                let due = sqlx::query(statement.clone())
                    .persistent(sql.named)
                    .bind(now.as_micros())
                    .fetch_all(&mut *conn)
                    .await?;
                for row in &due {
                    stored.due.push(DueSince {
                        source: required(text(row, 0)?)?,
                        is_dead: row.try_get::<i64, _>(1)? != 0,
                        since: Timestamp::from_micros(row.try_get(2)?),
                    });
                }
            }
            let leases = sqlx::query(sql.count_leases.clone())
                .persistent(sql.named)
                .bind(now.as_micros())
                .fetch_all(conn)
                .await?;
            for row in &leases {
                stored
                    .leases
                    .push((required(text(row, 0)?)?, row.try_get(1)?));
            }
            Ok(stored)
        }

        async fn reconciled(
            conn: &mut Self::Connection,
            sql: &Sql,
        ) -> Result<Vec<(String, Timestamp)>> {
            $crate::fail::point!(sql, "store.reconciled");
            let rows = sqlx::query(sql.reconciled.clone())
                .persistent(sql.named)
                .fetch_all(conn)
                .await?;
            rows.iter().map(named_time).collect()
        }

        async fn take_row_count(
            conn: &mut Self::Connection,
            sql: &Sql,
            owner: &str,
            now: Timestamp,
            until: Timestamp,
        ) -> Result<bool> {
            $crate::fail::point!(sql, "store.take_row_count");
            let update = sqlx::query(sql.take_row_count.clone())
                .persistent(sql.named)
                .bind(owner)
                .bind(until.as_micros())
                .bind(owner)
                .bind(now.as_micros());
            let insert = sqlx::query(sql.open_row_count.clone())
                .persistent(sql.named)
                .bind("")
                .bind(owner)
                .bind(until.as_micros());
            update_or_insert(conn, update, insert).await
        }

        async fn count_rows(
            conn: &mut Self::Connection,
            sql: &Sql,
            after: Key<'_>,
            limit: i64,
        ) -> Result<(i64, Option<String>)> {
            $crate::fail::point!(sql, "store.count_rows");
            let row = sqlx::query(sql.count_rows.clone())
                .persistent(sql.named)
                .bind(after.source)
                .bind(after.event_id)
                .bind(limit)
                .fetch_one(conn)
                .await?;
            Ok((row.try_get(0)?, text(&row, 1)?))
        }

        async fn save_row_count(
            conn: &mut Self::Connection,
            sql: &Sql,
            source: &str,
            rows: i64,
            at: Timestamp,
        ) -> Result<()> {
            $crate::fail::point!(sql, "store.save_row_count");
            let update = sqlx::query(sql.save_row_count.clone())
                .persistent(sql.named)
                .bind(rows)
                .bind(at.as_micros())
                .bind(source);
            let insert = sqlx::query(sql.first_row_count.clone())
                .persistent(sql.named)
                .bind(source)
                .bind(rows)
                .bind(at.as_micros());
            update_or_insert(conn, update, insert).await.map(drop)
        }

        async fn row_counts(conn: &mut Self::Connection, sql: &Sql) -> Result<Vec<RowCount>> {
            $crate::fail::point!(sql, "store.row_counts");
            let rows = sqlx::query(sql.row_counts.clone())
                .persistent(sql.named)
                .fetch_all(conn)
                .await?;
            rows.iter()
                .map(|row| {
                    Ok(RowCount {
                        source: required(text(row, 0)?)?,
                        rows: row.try_get(1)?,
                        at: Timestamp::from_micros(row.try_get(2)?),
                    })
                })
                .collect()
        }
    };
}

pub(crate) use statements_of_statistics;
