//! Queries: what says that an event happened once.

macro_rules! statements_of_events {
    () => {
        async fn known(
            conn: &mut Self::Connection,
            sql: &Sql,
            key: Key<'_>,
            kept: bool,
        ) -> Result<Option<Known>> {
            $crate::fail::point!(sql, "store.known");
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
            $crate::fail::point!(sql, "store.lock_event");
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
            $crate::fail::point!(sql, "store.insert_event");
            let done = new_event(sql.insert_event.clone(), event, state)
                .persistent(sql.named)
                .execute(conn)
                .await;
            let inserted = inserted(done.map(|done| done.rows_affected()))?;
            Ok(inserted || broken::is(Variant::InsertAlwaysWins))
        }

        async fn swap_state(
            conn: &mut Self::Connection,
            sql: &Sql,
            key: Key<'_>,
            from: State,
            to: State,
            at: Timestamp,
        ) -> Result<bool> {
            $crate::fail::point!(sql, "store.swap_state");
            let done = sqlx::query(sql.swap_state.clone())
                .persistent(sql.named)
                .bind(to as i64)
                .bind(at.as_micros())
                .bind(key.source)
                .bind(key.event_id)
                .bind(from as i64)
                .execute(conn)
                .await?;
            Ok(done.rows_affected() == 1 || broken::is(Variant::IgnoreRows))
        }

        async fn slot_holder(
            conn: &mut Self::Connection,
            sql: &Sql,
            place: &Place<'_>,
        ) -> Result<Option<Holder>> {
            $crate::fail::point!(sql, "store.slot_holder");
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
            $crate::fail::point!(sql, "store.yield_slot");
            let done = sqlx::query(sql.yield_slot.clone())
                .persistent(sql.named)
                .bind(to)
                .bind(key.source)
                .bind(key.event_id)
                .execute(conn)
                .await?;
            Ok(done.rows_affected() == 1)
        }

        async fn raise_version(
            conn: &mut Self::Connection,
            sql: &Sql,
            stream: Stream<'_>,
            raise: &Raise,
        ) -> Result<bool> {
            $crate::fail::point!(sql, "store.raise_version");
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

        async fn insert_fence(
            conn: &mut Self::Connection,
            sql: &Sql,
            key: Key<'_>,
            fence: &Fence,
        ) -> Result<bool> {
            $crate::fail::point!(sql, "store.insert_fence");
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
            $crate::fail::point!(sql, "store.fence_holder");
            let row = sqlx::query(sql.fence_holder.clone())
                .persistent(sql.named)
                .bind(source)
                .bind(&fence.digest[..])
                .fetch_optional(conn)
                .await?;
            row.map(|row| required(text(&row, 0)?)).transpose()
        }

        async fn guard(
            conn: &mut Self::Connection,
            sql: &Sql,
            entity: &str,
            guarding: Guarding,
            at: Timestamp,
        ) -> Result<bool> {
            $crate::fail::point!(sql, "store.guard");
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
    };
}

pub(crate) use statements_of_events;
