//! Queries: what is kept, and for how long.

macro_rules! statements_of_keeping {
    () => {
        async fn audit(conn: &mut Self::Connection, sql: &Sql, entry: &Audit<'_>) -> Result<()> {
            $crate::fail::point!(sql, "store.audit");
            sqlx::query(sql.audit.clone())
                .persistent(sql.named)
                .bind(entry.at.as_micros())
                .bind(entry.key.source)
                .bind((!entry.key.event_id.is_empty()).then_some(entry.key.event_id))
                .bind(entry.action)
                .bind(entry.actor)
                .bind(entry.detail)
                .bind(entry.correlation_id)
                .execute(conn)
                .await?;
            Ok(())
        }

        async fn purge_fences(
            conn: &mut Self::Connection,
            sql: &Sql,
            source: &str,
            before: Timestamp,
            limit: i64,
        ) -> Result<u64> {
            $crate::fail::point!(sql, "store.purge_fences");
            let done = sqlx::query(sql.purge_fences.clone())
                .persistent(sql.named)
                .bind(source)
                .bind(before.as_micros())
                .bind(limit)
                .execute(conn)
                .await?;
            Ok(done.rows_affected())
        }

        async fn stale(
            conn: &mut Self::Connection,
            sql: &Sql,
            source: &str,
            before: Timestamp,
            now: Timestamp,
        ) -> Result<bool> {
            $crate::fail::point!(sql, "store.stale");
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
            $crate::fail::point!(sql, "store.insert_answer");
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
            $crate::fail::point!(sql, "store.answer");
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
            $crate::fail::point!(sql, "store.purge_answers");
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
            $crate::fail::point!(sql, "store.purge");
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

        async fn stale_letters(
            conn: &mut Self::Connection,
            sql: &Sql,
            source: &str,
            before: Timestamp,
            after: &str,
            limit: i64,
        ) -> Result<Vec<String>> {
            $crate::fail::point!(sql, "store.stale_letters");
            let rows = sqlx::query(sql.stale_letters.clone())
                .persistent(sql.named)
                .bind(source)
                .bind(after)
                .bind(before.as_micros())
                .bind(limit)
                .fetch_all(conn)
                .await?;
            // Empty if it cannot be read, so that one bad row hides none of the others.
            let id = |row| text(row, 0).ok().flatten().unwrap_or_default();
            Ok(rows.iter().map(id).collect())
        }

        async fn forget_letter(
            conn: &mut Self::Connection,
            sql: &Sql,
            key: Key<'_>,
            before: Timestamp,
        ) -> Result<bool> {
            $crate::fail::point!(sql, "store.forget_letter");
            let pending = sqlx::query(sql.forget_pending.clone())
                .persistent(sql.named)
                .bind(key.source)
                .bind(key.event_id)
                .execute(&mut *conn)
                .await?;
            if pending.rows_affected() == 0 {
                return Ok(false);
            }
            let event = sqlx::query(sql.forget_event.clone())
                .persistent(sql.named)
                .bind(key.source)
                .bind(key.event_id)
                .bind(before.as_micros())
                .execute(conn)
                .await?;
            Ok(event.rows_affected() > 0)
        }

        async fn erase_answers(
            conn: &mut Self::Connection,
            sql: &Sql,
            source: &str,
            which: &ErasureFilter<'_>,
        ) -> Result<u64> {
            $crate::fail::point!(sql, "store.erase_answers");
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

        async fn gone_sources(conn: &mut Self::Connection, sql: &Sql) -> Result<Vec<String>> {
            $crate::fail::point!(sql, "store.gone_sources");
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
            $crate::fail::point!(sql, "store.set_gone");
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

        async fn stale_audit(
            conn: &mut Self::Connection,
            sql: &Sql,
            before: Timestamp,
        ) -> Result<bool> {
            $crate::fail::point!(sql, "store.stale_audit");
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
            $crate::fail::point!(sql, "store.purge_audit");
            let done = sqlx::query(sql.purge_audit.clone())
                .persistent(sql.named)
                .bind(limit)
                .bind(before.as_micros())
                .execute(conn)
                .await?;
            Ok(done.rows_affected())
        }
    };
}

pub(crate) use statements_of_keeping;
