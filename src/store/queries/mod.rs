//! The query code, once, for every driver.
//!
//! Code generic over `Database` needs half a dozen where-clauses a function; a macro that each back end
//! instantiates with its own types needs none, and the compiler checks every instance.

pub(crate) mod batch;
pub(crate) mod bursts;
pub(crate) mod events;
pub(crate) mod keeping;
pub(crate) mod outside;
pub(crate) mod pending;
pub(crate) mod plain;
pub(crate) mod reconcile;
pub(crate) mod statistics;
pub(crate) mod streams;
pub(crate) mod waiting;
pub(crate) mod work;

use sqlx::Row;

/// The methods of [`Backend`](super::Backend) that only run a statement.
macro_rules! statements_of_backend {
    () => {
        $crate::store::queries::events::statements_of_events!();
        $crate::store::queries::streams::statements_of_streams!();
        $crate::store::queries::pending::statements_of_pending!();
        $crate::store::queries::work::statements_of_work!();
        $crate::store::queries::batch::statements_of_batch!();
        $crate::store::queries::keeping::statements_of_keeping!();
        $crate::store::queries::bursts::statements_of_bursts!();
        $crate::store::queries::reconcile::statements_of_reconcile!();
        $crate::store::queries::outside::statements_of_outside!();
        $crate::store::queries::waiting::statements_of_waiting!();
        $crate::store::queries::statistics::statements_of_statistics!();
        $crate::store::queries::plain::statements_of_plain!();
    };
}

pub(crate) use statements_of_backend;

/// Parameters that several statements have. A macro's, since what a driver's query takes cannot be said in general.
macro_rules! parameters {
    ($database:ty) => {
        type Query<'q> =
            sqlx::query::Query<'q, $database, <$database as sqlx::Database>::Arguments>;

        /// A statement whose first parameters are a new event's columns.
        fn new_event<'q>(statement: SqlStr, event: &'q NewEvent<'_>, state: State) -> Query<'q> {
            sqlx::query(statement)
                .bind(event.key.source)
                .bind(event.key.event_id)
                .bind(state as i64)
                .bind(event.fingerprint)
                .bind(event.event_type)
                .bind(event.correlation_id)
                .bind(event.generation)
                .bind(event.sequence)
                .bind(event.sequence)
                .bind(event.version)
                .bind(event.at.as_micros())
                .bind(event.at.as_micros())
        }

        /// The next parameters are those of a cursor's step.
        fn step<'q>(query: Query<'q>, place: &'q Place<'_>, at: Timestamp) -> Query<'q> {
            query
                .bind(next_of(place))
                .bind(at.as_micros())
                .bind(place.stream.source)
                .bind(place.stream.correlation_id)
                .bind(place.generation)
                .bind(place.sequence)
                .bind(place.sequence + 1)
        }

        /// Changes a row, or puts it in if there is none that is to be changed. False: somebody else's is there.
        async fn update_or_insert(
            conn: &mut <$database as sqlx::Database>::Connection,
            update: Query<'_>,
            insert: Query<'_>,
        ) -> Result<bool> {
            if update.execute(&mut *conn).await?.rows_affected() > 0 {
                return Ok(true);
            }
            let done = insert.execute(conn).await;
            inserted(done.map(|done| done.rows_affected()))
        }
    };
}

pub(crate) use parameters;

/// Rows that several statements have. A macro's for the same reason.
macro_rules! pending_row {
    ($row:ty) => {
        /// A name, and when something was last so of it.
        fn named_time(row: &$row) -> Result<(String, Timestamp)> {
            let at = Timestamp::from_micros(row.try_get(1)?);
            Ok((required(text(row, 0)?)?, at))
        }

        /// Three columns from `at` on, as the statements with answers have them.
        fn kept_answer(row: &$row, at: usize) -> Result<Option<Arc<Kept>>> {
            let Some(status) = row.try_get::<Option<i64>, _>(at)? else {
                return Ok(None);
            };
            let status = u16::try_from(status)
                .map_err(|_| sqlx::Error::Decode("a status is out of range".into()))?;
            Ok(Some(Arc::new(Kept {
                status,
                headers: row.try_get::<Vec<u8>, _>(at + 1)?.into(),
                body: row.try_get::<Option<Vec<u8>>, _>(at + 2)?.map(Into::into),
            })))
        }

        /// Of `lock_cursor` and `cursor`.
        fn cursor(row: &$row) -> Result<Cursor> {
            Ok(Cursor {
                next: row.try_get(0)?,
                generation: row.try_get(1)?,
                next_range: row.try_get(2)?,
            })
        }

        /// Of `due_head` and `due_event`.
        fn pending(row: &$row) -> Result<Pending> {
            Ok(Pending {
                event_id: required(text(row, 0)?)?,
                event_type: text(row, 1)?,
                fingerprint: row.try_get(2)?,
                correlation_id: text(row, 3)?,
                sequence: row.try_get(4)?,
                reason: Reason::from_column(row.try_get(5)?)?,
                attempts: row.try_get(6)?,
                not_before: Timestamp::from_micros(row.try_get(7)?),
                parked_at: Timestamp::from_micros(row.try_get(8)?),
                request: StoredRequest {
                    method: required(text(row, 9)?)?,
                    uri: required(text(row, 10)?)?,
                    headers: row.try_get::<Vec<u8>, _>(11)?.into(),
                    body: row.try_get::<Vec<u8>, _>(12)?.into(),
                },
                version: row.try_get(13)?,
                lease: Lease::from_column(row.try_get(14)?),
                lease_owner: text(row, 15)?,
                lease_until: Timestamp::from_micros(row.try_get(16)?),
                unfinished: row.try_get(17)?,
            })
        }
    };
}

pub(crate) use pending_row;

/// A text column. Not checked against the column's type: MySQL keeps identifiers as VARBINARY, so that they compare byte
/// for byte, and its driver would hand those out as bytes only.
pub(crate) fn text<R>(row: &R, index: usize) -> super::Result<Option<String>>
where
    R: Row,
    usize: sqlx::ColumnIndex<R>,
    for<'r> Option<String>: sqlx::Decode<'r, R::Database>,
{
    row.try_get_unchecked(index)
}

/// The two texts that a row of a page is known by; both empty if they cannot be read, so that one bad row hides none of the
/// others. The log says so.
pub(crate) fn page_key<R>(row: &R) -> (String, String)
where
    R: Row,
    usize: sqlx::ColumnIndex<R>,
    for<'r> Option<String>: sqlx::Decode<'r, R::Database>,
{
    let key = || Ok((required(text(row, 0)?)?, required(text(row, 1)?)?));
    key().unwrap_or_else(|error: sqlx::Error| {
        tracing::error!(%error, "a row's key cannot be read; it is left alone");
        Default::default()
    })
}

/// A column that is NOT NULL by the schema.
pub(crate) fn required<T>(value: Option<T>) -> super::Result<T> {
    value.ok_or_else(|| sqlx::Error::Decode("a NULL where the schema allows none".into()))
}

/// Whether an INSERT put its row in. A taken key is not an error: it is the answer.
pub(crate) fn inserted(done: super::Result<u64>) -> super::Result<bool> {
    Ok(counted(done)? == 1)
}

/// How many rows were written, none where a key is taken.
pub(crate) fn counted(done: super::Result<u64>) -> super::Result<u64> {
    match done {
        // Where a database has no way to skip a taken key that reports the truth, it reports the violation.
        Err(sqlx::Error::Database(error)) if error.is_unique_violation() => Ok(0),
        done => done,
    }
}
