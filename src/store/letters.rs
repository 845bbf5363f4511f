//! The query code for operators and for what they decide: ranges, dead letters. Once, for every driver, as in
//! [`queries`](super::queries).

/// The methods of [`Backend`](super::Backend) that are about ranges and stored events.
macro_rules! statements_for_operators {
    () => {
        async fn move_cursor(
            conn: &mut Self::Connection,
            sql: &Sql,
            stream: Stream<'_>,
            to: Cursor,
            at: Timestamp,
        ) -> Result<()> {
            $crate::fail::point!(sql, "store.move_cursor");
            sqlx::query(sql.move_cursor.clone())
                .persistent(sql.named)
                .bind(to.generation)
                .bind(to.next)
                .bind(to.next_range)
                .bind(at.as_micros())
                .bind(stream.source)
                .bind(stream.correlation_id)
                .execute(conn)
                .await?;
            Ok(())
        }

        async fn renew_cursor(
            conn: &mut Self::Connection,
            sql: &Sql,
            stream: Stream<'_>,
        ) -> Result<()> {
            $crate::fail::point!(sql, "store.renew_cursor");
            sqlx::query(sql.renew_cursor.clone())
                .persistent(sql.named)
                .bind(stream.source)
                .bind(stream.correlation_id)
                .execute(conn)
                .await?;
            Ok(())
        }

        async fn range_at(
            conn: &mut Self::Connection,
            sql: &Sql,
            place: &Place<'_>,
        ) -> Result<Option<Range>> {
            $crate::fail::point!(sql, "store.range_at");
            let row = sqlx::query(sql.range_at.clone())
                .persistent(sql.named)
                .bind(place.stream.source)
                .bind(place.stream.correlation_id)
                .bind(place.generation)
                .bind(place.sequence)
                .fetch_optional(conn)
                .await?;
            let range = row.map(|row| range(&row)).transpose()?;
            Ok(range.filter(|range| place.sequence <= range.last))
        }

        async fn ranges_after(
            conn: &mut Self::Connection,
            sql: &Sql,
            place: &Place<'_>,
            limit: i64,
        ) -> Result<Vec<Range>> {
            $crate::fail::point!(sql, "store.ranges_after");
            let rows = sqlx::query(sql.ranges_after.clone())
                .persistent(sql.named)
                .bind(place.stream.source)
                .bind(place.stream.correlation_id)
                .bind(place.generation)
                .bind(place.sequence)
                .bind(limit)
                .fetch_all(conn)
                .await?;
            rows.iter().map(range).collect()
        }

        async fn insert_range(
            conn: &mut Self::Connection,
            sql: &Sql,
            stream: Stream<'_>,
            generation: i64,
            range: Range,
            at: Timestamp,
        ) -> Result<()> {
            $crate::fail::point!(sql, "store.insert_range");
            sqlx::query(sql.insert_range.clone())
                .persistent(sql.named)
                .bind(stream.source)
                .bind(stream.correlation_id)
                .bind(generation)
                .bind(range.first)
                .bind(range.last)
                .bind(range.kind as i64)
                .bind(at.as_micros())
                .execute(conn)
                .await?;
            Ok(())
        }

        async fn set_aside(
            conn: &mut Self::Connection,
            sql: &Sql,
            stream: Stream<'_>,
            generation: i64,
            range: Range,
            at: Timestamp,
        ) -> Result<u64> {
            $crate::fail::point!(sql, "store.set_aside");
            sqlx::query(sql.aside_events.clone())
                .persistent(sql.named)
                .bind(at.as_micros())
                .bind(stream.source)
                .bind(stream.correlation_id)
                .bind(generation)
                .bind(range.first)
                .bind(range.last)
                .execute(&mut *conn)
                .await?;
            let done = sqlx::query(sql.aside_pending.clone())
                .persistent(sql.named)
                .bind(range.kind.reason() as i64)
                .bind(stream.source)
                .bind(stream.correlation_id)
                .bind(generation)
                .bind(range.first)
                .bind(range.last)
                .execute(conn)
                .await?;
            Ok(done.rows_affected())
        }

        async fn unplaced(
            conn: &mut Self::Connection,
            sql: &Sql,
            stream: Stream<'_>,
            after: &str,
            limit: i64,
        ) -> Result<Vec<String>> {
            $crate::fail::point!(sql, "store.unplaced");
            let rows = sqlx::query(sql.unplaced.clone())
                .persistent(sql.named)
                .bind(stream.source)
                .bind(stream.correlation_id)
                .bind(after)
                .bind(limit)
                .fetch_all(conn)
                .await?;
            rows.iter().map(|row| required(text(row, 0)?)).collect()
        }

        async fn strayed(
            conn: &mut Self::Connection,
            sql: &Sql,
            source: &str,
            limit: i64,
        ) -> Result<Vec<String>> {
            $crate::fail::point!(sql, "store.strayed");
            let rows = sqlx::query(sql.strayed.clone())
                .persistent(sql.named)
                .bind(source)
                .bind(limit)
                .fetch_all(conn)
                .await?;
            rows.iter().map(|row| required(text(row, 1)?)).collect()
        }

        async fn discard_event(
            conn: &mut Self::Connection,
            sql: &Sql,
            key: Key<'_>,
            at: Timestamp,
        ) -> Result<bool> {
            $crate::fail::point!(sql, "store.discard_event");
            let done = sqlx::query(sql.discard_event.clone())
                .persistent(sql.named)
                .bind(at.as_micros())
                .bind(key.source)
                .bind(key.event_id)
                .execute(conn)
                .await?;
            Ok(done.rows_affected() == 1)
        }

        async fn cursor(
            conn: &mut Self::Connection,
            sql: &Sql,
            stream: Stream<'_>,
        ) -> Result<Option<Cursor>> {
            $crate::fail::point!(sql, "store.cursor");
            let row = sqlx::query(sql.cursor.clone())
                .persistent(sql.named)
                .bind(stream.source)
                .bind(stream.correlation_id)
                .fetch_optional(conn)
                .await?;
            row.map(|row| cursor(&row)).transpose()
        }

        async fn letters(
            conn: &mut Self::Connection,
            sql: &Sql,
            filter: &LetterFilter<'_>,
            after: Key<'_>,
            limit: i64,
        ) -> Result<Vec<FoundLetter>> {
            $crate::fail::point!(sql, "store.letters");
            let ((source, event_id), until) = span(filter.source, (after.source, after.event_id));
            let mut query = sqlx::query(sql.letters.clone())
                .persistent(sql.named)
                .bind(source)
                .bind(source)
                .bind(event_id)
                .bind(until);
            for value in [filter.event_type, filter.correlation_id] {
                query = query
                    .bind(i64::from(value.is_none()))
                    .bind(value.unwrap_or(""));
            }
            query = query
                .bind(filter.since.as_micros())
                .bind(filter.until.as_micros());
            for reason in filter.reasons {
                query = query.bind(reason);
            }
            let rows = query.bind(limit).fetch_all(conn).await?;
            let key = |row| Ok((required(text(row, 0)?)?, required(text(row, 1)?)?));
            Ok(rows.iter().map(|row| (key(row), letter(row))).collect())
        }

        async fn story(
            conn: &mut Self::Connection,
            sql: &Sql,
            key: Key<'_>,
        ) -> Result<Option<(LetterRow, Option<StoredRequest>)>> {
            $crate::fail::point!(sql, "store.story");
            let row = sqlx::query(sql.story.clone())
                .persistent(sql.named)
                .bind(key.source)
                .bind(key.event_id)
                .fetch_optional(conn)
                .await?;
            let Some(row) = row else { return Ok(None) };
            let request = match text(&row, 19)? {
                None => None,
                Some(method) => Some(StoredRequest {
                    method,
                    uri: required(text(&row, 20)?)?,
                    headers: row.try_get::<Vec<u8>, _>(21)?.into(),
                    body: row.try_get::<Vec<u8>, _>(22)?.into(),
                }),
            };
            Ok(Some((letter(&row)?, request)))
        }

        async fn neighbours(
            conn: &mut Self::Connection,
            sql: &Sql,
            place: &Place<'_>,
            limit: i64,
        ) -> Result<Vec<(String, i64, Option<Reason>)>> {
            $crate::fail::point!(sql, "store.neighbours");
            let mut found = Vec::new();
            for statement in [&sql.below, &sql.above] {
                let rows = sqlx::query(statement.clone())
                    .persistent(sql.named)
                    .bind(place.stream.source)
                    .bind(place.stream.correlation_id)
                    .bind(place.generation)
                    .bind(place.sequence)
                    .bind(limit)
                    .fetch_all(&mut *conn)
                    .await?;
                for row in &rows {
                    found.push((
                        required(text(row, 0)?)?,
                        row.try_get(1)?,
                        Reason::from_column(row.try_get(2)?)?,
                    ));
                }
            }
            found.sort_by_key(|(_, sequence, _)| *sequence);
            Ok(found)
        }

        async fn waiting_streams(
            conn: &mut Self::Connection,
            sql: &Sql,
            source: Option<&str>,
            after: Stream<'_>,
            limit: i64,
        ) -> Result<Vec<StreamRow>> {
            $crate::fail::point!(sql, "store.waiting_streams");
            let ((source, correlation_id), until) =
                span(source, (after.source, after.correlation_id));
            let rows = sqlx::query(sql.waiting_streams.clone())
                .persistent(sql.named)
                .bind(source)
                .bind(source)
                .bind(correlation_id)
                .bind(until)
                .bind(limit)
                .fetch_all(conn)
                .await?;
            rows.iter().map(waiting_stream).collect()
        }

        async fn urgent_streams(
            conn: &mut Self::Connection,
            sql: &Sql,
            limit: i64,
        ) -> Result<UrgentRows> {
            $crate::fail::point!(sql, "store.urgent_streams");
            let rows = sqlx::query(sql.urgent_streams.clone())
                .persistent(sql.named)
                .bind(limit)
                .fetch_all(conn)
                .await?;
            let mut urgent = UrgentRows::default();
            if let Some(row) = rows.first() {
                urgent.all = row.try_get(13)?;
                urgent.held_up = row.try_get(14)?;
                urgent.failing = row.try_get(15)?;
            }
            urgent.streams = rows.iter().map(waiting_stream).collect::<Result<_>>()?;
            Ok(urgent)
        }

        async fn stream_events(
            conn: &mut Self::Connection,
            sql: &Sql,
            from: &Place<'_>,
            limit: i64,
        ) -> Result<Vec<StreamEventRow>> {
            $crate::fail::point!(sql, "store.stream_events");
            let rows = sqlx::query(sql.stream_events.clone())
                .persistent(sql.named)
                .bind(from.stream.source)
                .bind(from.stream.correlation_id)
                .bind(from.generation)
                .bind(from.sequence)
                .bind(limit)
                .fetch_all(conn)
                .await?;
            rows.iter().map(stream_event).collect()
        }

        async fn audit_lines(
            conn: &mut Self::Connection,
            sql: &Sql,
            which: AuditRows<'_>,
            before: i64,
            limit: i64,
        ) -> Result<Vec<AuditRow>> {
            $crate::fail::point!(sql, "store.audit_lines");
            let mut query = match (which.source, which.about, which.actor) {
                (Some(source), about, actor) => {
                    let query = match about {
                        About::All => sqlx::query(sql.audit_of_source.clone()).bind(source),
                        About::Event(id) => sqlx::query(sql.audit_of_event.clone())
                            .bind(source)
                            .bind(id),
                        About::Stream(id) => sqlx::query(sql.audit_of_stream.clone())
                            .bind(source)
                            .bind(id),
                    };
                    query
                        .bind(i64::from(actor.is_none()))
                        .bind(actor.unwrap_or_default())
                }
                (None, _, Some(actor)) => sqlx::query(sql.audit_of_actor.clone()).bind(actor),
                (None, _, None) => sqlx::query(sql.audit_lines.clone()),
            };
            query = query.persistent(sql.named).bind(before).bind(limit);
            let rows = query.fetch_all(conn).await?;
            rows.iter().map(audit_line).collect()
        }
    };
}

pub(crate) use statements_for_operators;

/// Behind every source, byte by byte.
const LAST: &str = "\u{10FFFF}";

/// Where a page of one source, or of all, begins, and the last source of it: the index has the source first, so that no
/// other source's rows are read.
pub(crate) fn span<'a>(
    source: Option<&'a str>,
    after: (&'a str, &'a str),
) -> ((&'a str, &'a str), &'a str) {
    match source {
        None => (after, LAST),
        Some(source) => (after.max((source, "")), source),
    }
}

/// Rows about ranges and stored events.
macro_rules! letter_row {
    ($row:ty) => {
        /// Of `range_at` and `ranges_after`.
        fn range(row: &$row) -> Result<Range> {
            Ok(Range {
                first: row.try_get(0)?,
                last: row.try_get(1)?,
                kind: RangeKind::from_column(row.try_get(2)?)?,
            })
        }

        /// Of `waiting_streams` and `urgent_streams`.
        fn waiting_stream(row: &$row) -> Result<StreamRow> {
            Ok(StreamRow {
                source: required(text(row, 0)?)?,
                correlation_id: required(text(row, 1)?)?,
                generation: row.try_get(2)?,
                next: row.try_get(3)?,
                lowest: row.try_get(4)?,
                highest: row.try_get(5)?,
                parked: row.try_get(6)?,
                dead: row.try_get(7)?,
                oldest: Timestamp::from_micros(row.try_get(8)?),
                head: match row.try_get::<Option<i64>, _>(9)? {
                    None => None,
                    Some(reason) => Some(HeadRow {
                        reason: Reason::from_column((reason != 0).then_some(reason))?,
                        attempts: row.try_get(10)?,
                        last_status: row.try_get(11)?,
                        not_before: Timestamp::from_micros(row.try_get(12)?),
                    }),
                },
            })
        }

        fn stream_event(row: &$row) -> Result<StreamEventRow> {
            Ok(StreamEventRow {
                event_id: required(text(row, 0)?)?,
                sequence: row.try_get(1)?,
                reason: Reason::from_column(row.try_get(2)?)?,
                parked_at: Timestamp::from_micros(row.try_get(3)?),
                not_before: Timestamp::from_micros(row.try_get(4)?),
                attempts: row.try_get(5)?,
                last_status: row.try_get(6)?,
                last_error: text(row, 7)?,
                lease: Lease::from_column(row.try_get(8)?),
            })
        }

        fn audit_line(row: &$row) -> Result<AuditRow> {
            Ok(AuditRow {
                id: row.try_get(0)?,
                at: Timestamp::from_micros(row.try_get(1)?),
                source: required(text(row, 2)?)?,
                event_id: text(row, 3)?,
                action: required(text(row, 4)?)?,
                actor: required(text(row, 5)?)?,
                detail: required(text(row, 6)?)?,
                correlation_id: text(row, 7)?,
            })
        }

        /// Of `letters` and `story`: what follows the key.
        fn letter(row: &$row) -> Result<LetterRow> {
            Ok(LetterRow {
                state: State::from_column(row.try_get(2)?)?,
                reason: Reason::from_column(row.try_get(3)?)?,
                event_type: text(row, 4)?,
                correlation_id: text(row, 5)?,
                generation: row.try_get(6)?,
                sequence: row.try_get(7)?,
                yielded_to: text(row, 8)?,
                received_at: Timestamp::from_micros(row.try_get(9)?),
                decided_at: Timestamp::from_micros(row.try_get(10)?),
                attempts: row.try_get(11)?,
                last_status: row.try_get(12)?,
                last_error: text(row, 13)?,
                tried_at: row
                    .try_get::<Option<i64>, _>(14)?
                    .map(Timestamp::from_micros),
                body_bytes: row.try_get(15)?,
                out_of_order: row.try_get(16)?,
                not_before: row.try_get(17)?,
                lease: row
                    .try_get::<Option<i64>, _>(18)?
                    .map_or(Lease::NONE, Lease::from_column),
            })
        }
    };
}

pub(crate) use letter_row;
