//! Queries: several events of one stream that a worker applies in one transaction.
//!
//! How a member is marked is each driver's own: one round trip has to find out whether the transaction is still ours,
//! and write nothing otherwise.

macro_rules! statements_of_batch {
    () => {
        async fn due_batch(
            conn: &mut Self::Connection,
            sql: &Sql,
            stream: Stream<'_>,
            limit: i64,
            bytes: i64,
        ) -> Result<Due> {
            $crate::fail::point!(sql, "store.due_batch");
            let rows = sqlx::query(sql.due_batch.clone())
                .persistent(sql.named)
                // Beyond the last sequence there is no number to compare with.
                .bind(i64::MAX - limit)
                .bind(limit)
                .bind(i64::MAX)
                .bind(stream.source)
                .bind(stream.correlation_id)
                .bind(bytes)
                .fetch_all(conn)
                .await?;
            let (generation, next_range) = match rows.first() {
                Some(row) => (row.try_get(18)?, row.try_get(19)?),
                None => (0, None),
            };
            Ok(Due {
                events: rows.iter().map(pending).collect::<Result<_>>()?,
                generation,
                next_range,
            })
        }

        async fn claim_batch(
            conn: &mut Self::Connection,
            sql: &Sql,
            batch: &Stretch<'_>,
            owner: &str,
            (at, until): (Timestamp, Timestamp),
        ) -> Result<u64> {
            $crate::fail::point!(sql, "store.claim_batch");
            let done = sqlx::query(sql.claim_batch.clone())
                .persistent(sql.named)
                .bind(batch.stream.source)
                .bind(batch.stream.correlation_id)
                .bind(batch.generation)
                .bind(batch.first)
                .bind(batch.last)
                .bind(at.as_micros())
                .bind(batch.last - batch.first + 1)
                .bind(batch.lease.token())
                .bind(owner)
                .bind(until.as_micros())
                .execute(conn)
                .await?;
            Ok(done.rows_affected())
        }

        async fn hand_back_batch(
            conn: &mut Self::Connection,
            sql: &Sql,
            batch: &Stretch<'_>,
        ) -> Result<u64> {
            $crate::fail::point!(sql, "store.hand_back_batch");
            let done = sqlx::query(sql.hand_back_batch.clone())
                .persistent(sql.named)
                .bind(batch.stream.source)
                .bind(batch.stream.correlation_id)
                .bind(batch.generation)
                .bind(batch.first)
                .bind(batch.last)
                .bind(batch.lease.token())
                .execute(conn)
                .await?;
            Ok(done.rows_affected())
        }
    };
}
pub(crate) use statements_of_batch;

/// By the transaction's own number: another one has another, and outside of any there is none. No savepoint a member, of
/// which a server keeps 64 a session where others find them quickly.
#[cfg(feature = "postgres")]
macro_rules! members_on_postgres {
    () => {
        async fn lock_batch(
            conn: &mut Self::Connection,
            sql: &Sql,
            source: &str,
            event_ids: &[&str],
        ) -> Result<Locked> {
            $crate::fail::point!(sql, "store.lock_batch");
            let row = sqlx::query(sql.lock_batch.clone())
                .persistent(sql.named)
                .bind(source)
                .bind(event_ids)
                .fetch_one(conn)
                .await?;
            let (locked, transaction): (i64, i64) = (row.try_get(0)?, row.try_get(1)?);
            Ok(Locked {
                all: usize::try_from(locked).is_ok_and(|locked| locked == event_ids.len()),
                transaction,
            })
        }

        async fn mark_member(
            conn: &mut Self::Connection,
            sql: &Sql,
            member: &Member<'_>,
        ) -> Result<bool> {
            $crate::fail::point!(sql, "store.mark_member");
            let key = member.key;
            let mark = sqlx::query(sql.mark_member_by_transaction.clone()).persistent(sql.named);
            let row = step(mark, &member.place, member.at)
                .bind(member.transaction)
                .bind(member.at.as_micros())
                .bind(key.source)
                .bind(key.event_id)
                .bind(key.source)
                .bind(key.event_id)
                .bind(member.lease.token())
                .fetch_one(conn)
                .await?;
            Ok(row.try_get::<i64, _>(0)? == 1)
        }
    };
}
#[cfg(feature = "postgres")]
pub(crate) use members_on_postgres;

/// As one text, since there is no prepared form of several statements: what comes behind a RELEASE that fails is not run.
/// Identifiers are columns of bytes, and written as such.
#[cfg(feature = "mysql")]
macro_rules! members_on_mysql {
    () => {
        async fn lock_batch(
            conn: &mut Self::Connection,
            sql: &Sql,
            source: &str,
            event_ids: &[&str],
        ) -> Result<Locked> {
            $crate::fail::point!(sql, "store.lock_batch");
            let ids: Vec<_> = event_ids.iter().copied().map(hex).collect();
            let lock = format!(
                "SELECT CAST(COUNT(*) AS SIGNED) FROM (SELECT event_id FROM {}event
                 WHERE source = {} AND event_id IN ({}) AND state = 2 FOR UPDATE SKIP LOCKED) AS locked",
                sql.prefix,
                hex(source),
                ids.join(", ")
            );
            let row = sqlx::raw_sql(AssertSqlSafe(lock)).fetch_one(conn).await?;
            let locked: i64 = row.try_get_unchecked(0)?;
            Ok(Locked {
                all: usize::try_from(locked).is_ok_and(|locked| locked == event_ids.len()),
                transaction: 0,
            })
        }

        async fn mark_member(
            conn: &mut Self::Connection,
            sql: &Sql,
            member: &Member<'_>,
        ) -> Result<bool> {
            $crate::fail::point!(sql, "store.mark_member");
            let (place, prefix) = (&member.place, &sql.prefix);
            let (source, event_id) = (hex(member.key.source), hex(member.key.event_id));
            let (at, next) = (member.at.as_micros(), place.sequence + 1);
            let check = match broken::is(Variant::BatchGoesOn) {
                true => "",
                false => "RELEASE SAVEPOINT tower_inbox; SAVEPOINT tower_inbox; ",
            };
            let mark = format!(
                "{check}UPDATE {prefix}cursor SET next_sequence = {next}, updated_at = {at}
                 WHERE source = {source} AND correlation_id = {} AND generation = {} AND next_sequence = {}
                    AND (next_range IS NULL OR next_range > {next});
                 UPDATE {prefix}event SET state = 1, decided_at = {at}
                 WHERE source = {source} AND event_id = {event_id} AND state = 2;
                 DELETE FROM {prefix}pending
                 WHERE source = {source} AND event_id = {event_id} AND lease_token = {} AND reason IS NULL",
                hex(place.stream.correlation_id),
                place.generation,
                place.sequence,
                member.lease.token()
            );
            // One row of each, by its primary key.
            let done = sqlx::raw_sql(AssertSqlSafe(mark)).execute(conn).await?;
            Ok(done.rows_affected() == 3)
        }
    };
}
#[cfg(feature = "mysql")]
pub(crate) use members_on_mysql;

/// The transaction holds the whole database: there is nothing to lock.
#[cfg(feature = "sqlite")]
macro_rules! members_on_sqlite {
    () => {
        async fn lock_batch(
            _: &mut Self::Connection,
            _: &Sql,
            _: &str,
            _: &[&str],
        ) -> Result<Locked> {
            Ok(Locked {
                all: true,
                transaction: 0,
            })
        }

        async fn mark_member(
            conn: &mut Self::Connection,
            sql: &Sql,
            member: &Member<'_>,
        ) -> Result<bool> {
            $crate::fail::point!(sql, "store.mark_member");
            let key = member.key;
            // The driver gives each statement as many values as it takes, and goes no further than one that fails.
            let mark = sqlx::query(sql.mark_member_by_savepoint.clone()).persistent(sql.named);
            let rows = step(mark, &member.place, member.at)
                .bind(member.at.as_micros())
                .bind(key.source)
                .bind(key.event_id)
                .bind(key.source)
                .bind(key.event_id)
                .bind(member.lease.token())
                .fetch_all(conn)
                .await?;
            Ok(rows.len() == 3)
        }
    };
}
#[cfg(feature = "sqlite")]
pub(crate) use members_on_sqlite;
