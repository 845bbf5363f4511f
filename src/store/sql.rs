//! Every statement's text, once.
//!
//! `{p}` is the table prefix; `?` is a parameter, each used once and in order, so that one text can be rendered
//! with `?` or `$n`. A place where databases differ is a named piece of the [`Dialect`].

use sqlx::{AssertSqlSafe, SqlSafeStr, SqlStr};

use super::BUCKETS;
use crate::fail::FailPoints;

/// Where databases differ, and only there.
pub(crate) struct Dialect {
    /// `$1` instead of `?`.
    pub(crate) numbered: bool,
    /// Skips a row whose key is taken. Empty where an INSERT reports the violation instead.
    pub(crate) on_conflict: &'static str,
    /// Leaves the row of a taken key as it is, whatever the count of rows then says. `{key}` is a column of that key.
    pub(crate) or_leave: &'static str,
    /// The name that CAST knows a 64-bit integer by.
    pub(crate) bigint: &'static str,
    /// The database's own clock, in microseconds since the epoch, as a 64-bit integer.
    pub(crate) now: &'static str,
    /// Locks the rows of a SELECT. Empty where a transaction holds the whole database.
    pub(crate) for_update: &'static str,
    /// Has the index by stream used where nothing but its columns decides about most rows, and a planner does not see that.
    pub(crate) by_stream: &'static str,
    /// What comes after a source (twice) and a key of it, so that an index is read from there on.
    pub(crate) after: After,
    /// How a batch of rows that a subquery finds is deleted.
    pub(crate) delete_batch: DeleteBatch,
    /// How the one row that a subquery finds, called `claim`, is changed.
    pub(crate) update_claimed: UpdateClaimed,
}

/// `{t}` is the table's alias with its dot, or nothing; `{key}` is the column behind its source in the index.
pub(crate) struct After(pub(crate) &'static str);

impl After {
    /// A comparison of rows, as SQL has it.
    #[allow(dead_code, reason = "not by every set of features")]
    pub(crate) const PLAIN: Self = Self("({t}source >= ? AND ({t}source, {t}{key}) > (?, ?))");

    fn of(&self, table: &str, key: &str) -> String {
        self.0.replace("{t}", table).replace("{key}", key)
    }
}

/// What stands before the subquery, in it at its end, between it and the changes, and behind them. The table has a
/// primary key of source and event id.
pub(crate) struct UpdateClaimed {
    pub(crate) before: &'static str,
    pub(crate) skip_locked: &'static str,
    pub(crate) between: &'static str,
    pub(crate) behind: &'static str,
}

impl UpdateClaimed {
    /// Plain SQL.
    #[allow(dead_code, reason = "not by every set of features")]
    pub(crate) const PLAIN: Self = Self {
        before: "WITH claim AS",
        skip_locked: "",
        between: "UPDATE {p}pending",
        behind: "WHERE (source, event_id) IN (SELECT source, event_id FROM claim)",
    };
}

/// What stands before and behind the subquery, and at its end. `{table}` has a primary key of source and `{key}`.
pub(crate) struct DeleteBatch {
    pub(crate) before: &'static str,
    pub(crate) skip_locked: &'static str,
    pub(crate) behind: &'static str,
}

impl DeleteBatch {
    /// Plain SQL.
    #[allow(dead_code, reason = "not by every set of features")]
    pub(crate) const PLAIN: Self = Self {
        before: "DELETE FROM {table} WHERE (source, {key}) IN (SELECT source, {key} FROM",
        skip_locked: "",
        behind: ")",
    };
}

macro_rules! statements {
    ($($(#[$doc:meta])* $name:ident = $text:expr;)*) => {
        /// The statements, rendered for one database and one table prefix.
        #[doc(hidden)]
        #[derive(Clone)]
        pub struct Sql {
            /// What the names of the tables begin with.
            #[allow(dead_code, reason = "PostgreSQL's channel is named by it")]
            pub(crate) prefix: String,
            /// Statements are prepared under names of their own, which stay with the connection.
            pub(crate) named: bool,
            /// Each statement is a fail point.
            #[cfg_attr(not(feature = "failpoints"), allow(dead_code, reason = "nothing without the feature"))]
            pub(crate) fail: FailPoints,
            $($(#[$doc])* pub(crate) $name: SqlStr,)*
        }

        impl Sql {
            pub(crate) fn render(dialect: &Dialect, prefix: &str) -> Self {
                Self { prefix: prefix.to_owned(), named: true, fail: FailPoints::default(), $($name: render(dialect, prefix, crate::broken::text(stringify!($name), $text).as_ref()),)* }
            }
        }
    };
}

/// The rows of events that are forgotten, by a condition that an index holds as it stands here. The nesting is what makes
/// one text do for every database, but for the verb.
macro_rules! purge {
    ($condition:literal) => {
        concat!(
            "{delete_events} (
            SELECT source, event_id FROM {p}event WHERE source = ? AND ",
            $condition,
            " AND decided_at < ?
            ORDER BY decided_at LIMIT ?{skip_locked}) AS batch{batch_of_events}"
        )
    };
}

macro_rules! insert_event {
    () => {
        "INSERT INTO {p}event
        (source, event_id, state, fingerprint, event_type, correlation_id, generation, sequence, slot, version,
         received_at, decided_at)
        VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?){on_conflict}"
    };
}

macro_rules! advance_cursor {
    () => {
        "UPDATE {p}cursor SET next_sequence = ?, updated_at = ?
        WHERE source = ? AND correlation_id = ? AND generation = ? AND next_sequence = ?
            AND (next_range IS NULL OR next_range > ?)"
    };
}

statements! {
    // Outside any transaction: all that is known, in one statement.
    known = "SELECT CAST(e.state AS {bigint}), e.fingerprint, e.correlation_id, e.sequence,
            CAST(p.reason AS {bigint}), c.next_sequence, e.yielded_to, e.version, CAST(e.generation AS {bigint})
        FROM {p}event e
        LEFT JOIN {p}pending p ON p.source = e.source AND p.event_id = e.event_id
        LEFT JOIN {p}cursor c ON c.source = e.source AND c.correlation_id = e.correlation_id
            AND c.generation = e.generation
        WHERE e.source = ? AND e.event_id = ?";
    known_kept = "SELECT CAST(e.state AS {bigint}), e.fingerprint, e.correlation_id, e.sequence,
            CAST(p.reason AS {bigint}), c.next_sequence, e.yielded_to, e.version, CAST(e.generation AS {bigint}),
            CAST(a.status AS {bigint}), a.headers, a.body
        FROM {p}event e
        LEFT JOIN {p}pending p ON p.source = e.source AND p.event_id = e.event_id
        LEFT JOIN {p}cursor c ON c.source = e.source AND c.correlation_id = e.correlation_id
            AND c.generation = e.generation
        LEFT JOIN {p}answer a ON a.source = e.source AND a.event_id = e.event_id
        WHERE e.source = ? AND e.event_id = ?";
    insert_answer = "INSERT INTO {p}answer (source, event_id, at, status, headers, body)
        VALUES (?, ?, ?, ?, ?, ?){on_conflict}";
    delete_answer = "DELETE FROM {p}answer WHERE source = ? AND event_id = ?";
    answer = "SELECT CAST(status AS {bigint}), headers, body FROM {p}answer WHERE source = ? AND event_id = ?";
    purge_answers = "{delete_answers} (
            SELECT source, event_id FROM {p}answer WHERE source = ? AND at < ?
            ORDER BY at LIMIT ?{skip_locked}) AS batch{batch_of_answers}";
    // Inside one: the event's row is locked first. A plain SELECT here would fix MySQL's snapshot before the cursor is
    // locked, and the handler would read its predecessor's old values (§4.7).
    lock_event = "SELECT CAST(state AS {bigint}), fingerprint, correlation_id, sequence, yielded_to, version,
            CAST(generation AS {bigint})
        FROM {p}event
        WHERE source = ? AND event_id = ?{for_update}";
    pending_reason = "SELECT CAST(reason AS {bigint}) FROM {p}pending
        WHERE source = ? AND event_id = ?{for_update}";
    insert_event = insert_event!();
    // SQLite alone, in one change of threads. A row for each row that is written; `changes()` is what the INSERT before it
    // has changed.
    #[cfg_attr(not(feature = "sqlite"), allow(dead_code, reason = "SQLite alone"))]
    begin_insert = concat!("BEGIN IMMEDIATE; SAVEPOINT tower_inbox; ", insert_event!(), " RETURNING 1");
    #[cfg_attr(not(feature = "sqlite"), allow(dead_code, reason = "SQLite alone"))]
    begin_insert_next = concat!("BEGIN IMMEDIATE; SAVEPOINT tower_inbox; ", insert_event!(), " RETURNING 1; ",
        advance_cursor!(), " AND changes() > 0 RETURNING 1");
    // SQLite alone: whether the transaction is still ours, and a savepoint for the event alone, in one change of threads.
    #[cfg_attr(not(feature = "sqlite"), allow(dead_code, reason = "SQLite alone"))]
    insert_behind = concat!("RELEASE SAVEPOINT tower_inbox; SAVEPOINT tower_inbox; ", insert_event!(), " RETURNING 1");
    // PostgreSQL alone: a new event and its turn at once, how many of each. The cursor is not looked at before the event is
    // in: `one` is asked first.
    #[cfg_attr(not(feature = "postgres"), allow(dead_code, reason = "PostgreSQL alone"))]
    insert_first = concat!("WITH one AS (", insert_event!(), " RETURNING 1), turn AS (
            INSERT INTO {p}cursor (source, correlation_id, next_sequence, updated_at)
            SELECT ?, ?, ?, ? FROM one{on_conflict} RETURNING 1)
        SELECT (SELECT COUNT(*) FROM one), (SELECT COUNT(*) FROM turn)");
    #[cfg_attr(not(feature = "postgres"), allow(dead_code, reason = "PostgreSQL alone"))]
    insert_next = concat!("WITH one AS (", insert_event!(), " RETURNING 1), turn AS (
            ", advance_cursor!(), " AND EXISTS (SELECT 1 FROM one) RETURNING 1)
        SELECT (SELECT COUNT(*) FROM one), (SELECT COUNT(*) FROM turn)");
    swap_state = "UPDATE {p}event SET state = ?, decided_at = ?
        WHERE source = ? AND event_id = ? AND state = ?";
    slot_holder = "SELECT event_id, CAST(state AS {bigint}) FROM {p}event
        WHERE source = ? AND correlation_id = ? AND generation = ? AND slot = ?{for_update}";
    yield_slot = "UPDATE {p}event SET slot = NULL, yielded_to = ?
        WHERE source = ? AND event_id = ? AND state = 3";
    advance_cursor = advance_cursor!();
    open_cursor = "INSERT INTO {p}cursor (source, correlation_id, next_sequence, settles_at, updated_at)
        VALUES (?, ?, ?, ?, ?){on_conflict}";
    move_cursor = "UPDATE {p}cursor SET generation = ?, next_sequence = ?, next_range = ?, updated_at = ?
        WHERE source = ? AND correlation_id = ?";
    lock_cursor = "SELECT next_sequence, CAST(generation AS {bigint}), next_range FROM {p}cursor
        WHERE source = ? AND correlation_id = ?{for_update}";
    // A stream that adopts its first sequence. The write is for whoever waits for the lock at an isolation level that would
    // not show what was parked under it: he is to fail and look again.
    touch_settling = "UPDATE {p}cursor SET updated_at = ?
        WHERE source = ? AND correlation_id = ? AND next_sequence = -1";
    lock_settling = "SELECT settles_at, CAST(generation AS {bigint}) FROM {p}cursor
        WHERE source = ? AND correlation_id = ? AND next_sequence = -1{for_update}";
    lowest_parked = "SELECT MIN(sequence) FROM {p}pending
        WHERE source = ? AND correlation_id = ? AND generation = ? AND (reason IS NULL OR reason = 1)";
    settle_cursor = "UPDATE {p}cursor SET next_sequence = ?, settles_at = ?, updated_at = ?
        WHERE source = ? AND correlation_id = ? AND next_sequence = -1";
    settled_streams = "SELECT source, correlation_id FROM {p}cursor
        WHERE settles_at <= ? AND {after_stream}
        ORDER BY source, correlation_id LIMIT ?";
    // Locks the row that is there on every database: what only looked at it (MySQL's duplicate key does) would deadlock
    // with another one that does the same.
    ensure_cursor = "INSERT INTO {p}cursor (source, correlation_id, next_sequence, updated_at)
        VALUES (?, ?, ?, ?){or_leave_cursor}";
    // The second version is NULL where an equal one is not newer.
    raise_version = "UPDATE {p}cursor SET version = ?, updated_at = ?
        WHERE source = ? AND correlation_id = ? AND (version IS NULL OR version < ? OR version = ?)";
    insert_pending = "INSERT INTO {p}pending
        (source, event_id, correlation_id, generation, sequence, reason, attempts, not_before, parked_at,
         last_status, last_error, bytes, method, uri, headers, body)
        VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)";
    // A lease of 0 is no lease, and demands none: a delivery that its producer sent again needs nobody's.
    delete_pending = "DELETE FROM {p}pending WHERE source = ? AND event_id = ? AND (? = 0 OR lease_token = ?)";
    // The last flag: not of what an operator wants applied out of its order.
    record_attempt = "UPDATE {p}pending
        SET attempts = attempts + ?, reason = ?, not_before = ?, last_status = ?, last_error = ?,
            lease_token = 0, lease_owner = NULL, unfinished = 0
        WHERE source = ? AND event_id = ? AND (? = 0 OR lease_token = ?) AND (? = 0 OR out_of_order = 0)";
    // Only with the lease that it was tried under: a verdict that was given meanwhile stays.
    postpone = "UPDATE {p}pending
        SET not_before = ?, last_status = ?, last_error = ?, lease_token = 0, lease_owner = NULL, unfinished = 0
        WHERE source = ? AND event_id = ? AND lease_token = ?";
    // The attempt is counted here, before the handler runs. Who holds the row's lock is at work on it: stepped over.
    claim = "{claim_before} (
            SELECT source, event_id FROM {p}pending
            WHERE source = ? AND event_id = ? AND lease_token = ? AND attempts = ? AND not_before = ?
            LIMIT 1{claim_skip_locked}) {claim_between}
        SET lease_token = ?, lease_owner = ?, lease_until = ?, tried_at = ?, not_before = ?,
            attempts = attempts + 1, unfinished = unfinished + 1
        {claim_behind}";
    // As if it had never been claimed.
    hand_back = "UPDATE {p}pending
        SET lease_token = 0, lease_owner = NULL, not_before = ?, attempts = attempts - 1, unfinished = unfinished - 1
        WHERE source = ? AND event_id = ? AND lease_token = ?";
    // The lease of a batch has counted nothing. What depends on it stands before what changes it: MySQL assigns from left
    // to right.
    hand_back_all = "UPDATE {p}pending
        SET attempts = attempts - CASE WHEN lease_token > 0 THEN 1 ELSE 0 END,
            unfinished = unfinished - CASE WHEN lease_token > 0 THEN 1 ELSE 0 END,
            lease_token = 0, lease_owner = NULL, not_before = ?
        WHERE lease_owner = ? AND lease_token <> 0";
    // Several of one stream, in one transaction. From the cursor on, as long as no sequence is missing, and no more than so
    // many bytes behind the first one.
    due_batch = "SELECT p.event_id, e.event_type, e.fingerprint, p.correlation_id, p.sequence, CAST(p.reason AS {bigint}),
            CAST(p.attempts AS {bigint}), p.not_before,
            p.parked_at, p.method, p.uri, p.headers, p.body, e.version,
            p.lease_token, p.lease_owner, p.lease_until, CAST(p.unfinished AS {bigint}),
            CAST(r.generation AS {bigint}), r.next_range
        FROM (SELECT p.source, p.event_id, p.sequence, c.next_sequence, c.generation, c.next_range,
                ROW_NUMBER() OVER (ORDER BY p.sequence) AS nth, SUM(p.bytes) OVER (ORDER BY p.sequence) AS total
            FROM {p}cursor c
            JOIN {p}pending p ON p.source = c.source AND p.correlation_id = c.correlation_id
                AND p.generation = c.generation AND p.sequence >= c.next_sequence
                AND p.sequence < CASE WHEN c.next_sequence < ? THEN c.next_sequence + ? ELSE ? END
            JOIN {p}event e ON e.source = p.source AND e.event_id = p.event_id
            WHERE c.source = ? AND c.correlation_id = ? AND (p.reason IS NULL OR p.reason = 1)
                AND e.slot IS NOT NULL) AS r
        JOIN {p}pending p ON p.source = r.source AND p.event_id = r.event_id
        JOIN {p}event e ON e.source = r.source AND e.event_id = r.event_id
        WHERE r.sequence - r.next_sequence = r.nth - 1 AND (r.nth = 1 OR r.total <= ?)
        ORDER BY r.sequence";
    // Nothing is counted: only an attempt at one event alone says something about it.
    claim_batch = "{claim_before} (
            SELECT source, event_id FROM {p}pending
            WHERE source = ? AND correlation_id = ? AND generation = ? AND sequence BETWEEN ? AND ?
                AND lease_token = 0 AND reason IS NULL AND attempts = 0 AND unfinished = 0 AND not_before <= ?
            ORDER BY sequence LIMIT ?{claim_skip_locked}) {claim_between}
        SET lease_token = ?, lease_owner = ?, lease_until = ?
        {claim_behind}";
    hand_back_batch = "UPDATE {p}pending SET lease_token = 0, lease_owner = NULL
        WHERE source = ? AND correlation_id = ? AND generation = ? AND sequence BETWEEN ? AND ? AND lease_token = ?";
    // PostgreSQL. What somebody else has locked is stepped over, and missing in the count.
    #[cfg_attr(not(feature = "postgres"), allow(dead_code, reason = "one database's own"))]
    lock_batch = "WITH locked AS (
            SELECT event_id FROM {p}event
            WHERE source = ? AND event_id = ANY(?) AND state = 2{claim_skip_locked})
        SELECT COUNT(*), pg_current_xact_id()::text::bigint FROM locked";
    #[cfg_attr(not(feature = "postgres"), allow(dead_code, reason = "one database's own"))]
    mark_member_by_transaction = "WITH moved AS (
            UPDATE {p}cursor SET next_sequence = ?, updated_at = ?
            WHERE source = ? AND correlation_id = ? AND generation = ? AND next_sequence = ?
                AND (next_range IS NULL OR next_range > ?)
                AND pg_current_xact_id_if_assigned()::text::bigint = ? RETURNING 1),
        applied AS (
            UPDATE {p}event SET state = 1, decided_at = ?
            WHERE source = ? AND event_id = ? AND state = 2 AND EXISTS (SELECT 1 FROM moved) RETURNING 1),
        taken AS (
            DELETE FROM {p}pending
            WHERE source = ? AND event_id = ? AND lease_token = ? AND reason IS NULL
                AND EXISTS (SELECT 1 FROM applied) RETURNING 1)
        SELECT COUNT(*) FROM taken";
    // SQLite. A row for each change.
    #[cfg_attr(not(feature = "sqlite"), allow(dead_code, reason = "one database's own"))]
    mark_member_by_savepoint = "RELEASE SAVEPOINT tower_inbox; SAVEPOINT tower_inbox;
        UPDATE {p}cursor SET next_sequence = ?, updated_at = ?
            WHERE source = ? AND correlation_id = ? AND generation = ? AND next_sequence = ?
                AND (next_range IS NULL OR next_range > ?) RETURNING 1;
        UPDATE {p}event SET state = 1, decided_at = ?
            WHERE source = ? AND event_id = ? AND state = 2 RETURNING 1;
        DELETE FROM {p}pending
            WHERE source = ? AND event_id = ? AND lease_token = ? AND reason IS NULL RETURNING 1";
    beat = "UPDATE {p}worker SET beat = ?, beat_at = ? WHERE owner = ?";
    first_beat = "INSERT INTO {p}worker (owner, beat, beat_at) VALUES (?, ?, ?){on_conflict}";
    beats = "SELECT owner, beat FROM {p}worker";
    workers = "SELECT owner, beat_at FROM {p}worker ORDER BY owner";
    retire = "DELETE FROM {p}worker WHERE owner = ? OR beat_at < ?";
    // Over the bound on parking the body is not kept; a handler must not be run without it.
    release = "UPDATE {p}pending
        SET reason = NULL, not_before = ?, attempts = 0, unfinished = 0, parked_at = ?, out_of_order = ?,
            lease_token = 0, lease_owner = NULL
        WHERE source = ? AND event_id = ? AND LENGTH(body) > 0";
    // Over the bound on parking the body was not kept, and of what was erased nothing is: whoever sends the event again
    // brings it.
    keep_body = "UPDATE {p}pending SET method = ?, uri = ?, headers = ?, body = ?, bytes = ?
        WHERE source = ? AND event_id = ? AND LENGTH(body) = 0";
    // What it waits for is its backoff, or what its handler asked for. An attempt that is under way has none.
    hasten = "UPDATE {p}pending SET not_before = ?
        WHERE source = ? AND event_id = ? AND reason IS NULL AND not_before > ?";
    requeue = "UPDATE {p}pending SET reason = NULL, not_before = ?, parked_at = ?, attempts = 0, unfinished = 0,
            lease_token = 0, lease_owner = NULL
        WHERE source = ? AND event_id = ?";
    // No attempt is counted. Not for longer than the source allows, since it was parked; for a dead letter that begins
    // anew. What depends on a column stands before what changes it: MySQL assigns from left to right.
    put_off = "UPDATE {p}pending
        SET not_before = CASE WHEN reason IS NULL AND parked_at + ? < ? THEN parked_at + ? ELSE ? END,
            parked_at = CASE WHEN reason IS NULL THEN parked_at ELSE ? END,
            attempts = CASE WHEN reason IS NULL THEN attempts - ? ELSE 0 END,
            last_status = NULL, last_error = NULL, unfinished = 0, lease_token = 0, lease_owner = NULL, reason = NULL
        WHERE source = ? AND event_id = ? AND (reason IS NOT NULL OR parked_at > ?) AND (? = 0 OR lease_token = ?)";
    insert_fence = "INSERT INTO {p}fence (source, digest, event_id, expires_at)
        VALUES (?, ?, ?, ?){on_conflict}";
    fence_holder = "SELECT event_id FROM {p}fence WHERE source = ? AND digest = ?{for_update}";
    purge_fences = "{delete_fences} (
            SELECT source, digest FROM {p}fence WHERE source = ? AND expires_at < ?
            ORDER BY expires_at LIMIT ?{skip_locked}) AS batch{batch_of_fences}";
    audit = "INSERT INTO {p}audit (at, source, event_id, action, actor, detail, correlation_id)
        VALUES (?, ?, ?, ?, ?, ?, ?)";
    // A dead letter for a gap (1) comes back by itself when the gap fills; the others wait for somebody.
    due_streams = "SELECT p.source, p.correlation_id
        FROM {p}pending p
        JOIN {p}cursor c ON c.source = p.source AND c.correlation_id = p.correlation_id
            AND c.generation = p.generation AND c.next_sequence = p.sequence
        WHERE (p.reason IS NULL OR p.reason = 1) AND p.not_before <= ?
            AND {after_stream_of_p}
        ORDER BY p.source, p.correlation_id LIMIT ?";
    // What waits for no turn: it has no place in a stream, or an operator wants it applied out of its order.
    due_events = "SELECT source, event_id FROM {p}pending
        WHERE (sequence IS NULL OR out_of_order = 1) AND reason IS NULL AND not_before <= ?
            AND {after_event}
        ORDER BY source, event_id LIMIT ?";
    due_event = "SELECT p.event_id, e.event_type, e.fingerprint, p.correlation_id, p.sequence, CAST(p.reason AS {bigint}),
            CAST(p.attempts AS {bigint}), p.not_before, p.parked_at, p.method, p.uri, p.headers, p.body, e.version,
            p.lease_token, p.lease_owner, p.lease_until, CAST(p.unfinished AS {bigint})
        FROM {p}pending p
        JOIN {p}event e ON e.source = p.source AND e.event_id = p.event_id
        WHERE p.source = ? AND p.event_id = ?
            AND (p.sequence IS NULL OR p.out_of_order = 1) AND p.reason IS NULL";
    due_head = "SELECT p.event_id, e.event_type, e.fingerprint, p.correlation_id, p.sequence, CAST(p.reason AS {bigint}),
            CAST(p.attempts AS {bigint}), p.not_before,
            p.parked_at, p.method, p.uri, p.headers, p.body, e.version,
            p.lease_token, p.lease_owner, p.lease_until, CAST(p.unfinished AS {bigint})
        FROM {p}cursor c
        JOIN {p}pending p ON p.source = c.source AND p.correlation_id = c.correlation_id
            AND p.generation = c.generation AND p.sequence = c.next_sequence
        JOIN {p}event e ON e.source = p.source AND e.event_id = p.event_id
        WHERE c.source = ? AND c.correlation_id = ? AND (p.reason IS NULL OR p.reason = 1)
            AND e.slot IS NOT NULL";
    // Where the stream's head is here and waits for a worker or its handler, there is no gap to give up for.
    expired = "SELECT p.event_id, p.correlation_id, p.sequence
        FROM {p}pending p
        WHERE p.source = ? AND p.event_id > ? AND p.reason IS NULL AND p.parked_at <= ?
            AND p.correlation_id IS NOT NULL AND p.sequence IS NOT NULL AND p.out_of_order = 0
            AND NOT EXISTS (SELECT 1 FROM {p}cursor c
                JOIN {p}pending h ON h.source = c.source AND h.correlation_id = c.correlation_id
                    AND h.generation = c.generation AND h.sequence = c.next_sequence AND h.reason IS NULL
                WHERE c.source = p.source AND c.correlation_id = p.correlation_id)
        ORDER BY p.event_id LIMIT ?";
    // The first instant after now at which time alone gives a worker something to do: a wait is over, a start has settled,
    // the window of a gap ends. Of all sources but for the last one, whose window is the source's own.
    #[cfg_attr(not(feature = "testkit"), allow(dead_code, reason = "for the test kit's clock"))]
    next_due = "SELECT CAST(MIN(due_at) AS {bigint}) FROM (
            SELECT MIN(not_before) AS due_at FROM {p}pending
                WHERE (reason IS NULL OR reason = 1) AND not_before > ?
            UNION ALL SELECT MIN(settles_at) FROM {p}cursor WHERE settles_at > ?
            UNION ALL SELECT MIN(parked_at) + ? FROM {p}pending
                WHERE source = ? AND parked_at > ? AND reason IS NULL AND sequence IS NOT NULL AND out_of_order = 0
        ) AS instants";
    stream_is_used = "SELECT 1 FROM {p}pending WHERE source = ? AND correlation_id = ? LIMIT 1";
    pending_of_stream = "SELECT COUNT(*), CAST(COALESCE(SUM(bytes), 0) AS {bigint}) FROM {p}pending
        WHERE source = ? AND correlation_id = ?";
    pending_counts = "SELECT source, CAST(reason AS {bigint}), COUNT(*), CAST(SUM(bytes) AS {bigint}), MIN(parked_at)
        FROM {p}pending GROUP BY source, reason";
    // Looked at first: a DELETE that finds nothing would take SQLite's write lock all the same.
    stale = "SELECT
        (SELECT COUNT(*) FROM (SELECT 1 AS one FROM {p}event
            WHERE source = ? AND state = 1 AND decided_at < ? LIMIT 1) AS stale_rows) +
        (SELECT COUNT(*) FROM (SELECT 1 AS one FROM {p}event
            WHERE source = ? AND state IN (4, 5) AND state > 3 AND decided_at < ? LIMIT 1) AS stale_others) +
        (SELECT COUNT(*) FROM (SELECT 1 AS one FROM {p}fence
            WHERE source = ? AND expires_at < ? LIMIT 1) AS stale_fences) +
        (SELECT COUNT(*) FROM (SELECT 1 AS one FROM {p}answer
            WHERE source = ? AND at < ? LIMIT 1) AS stale_answers)";
    count_stale = "SELECT
        (SELECT COUNT(*) FROM {p}event WHERE source = ? AND state = 1 AND decided_at < ?) +
        (SELECT COUNT(*) FROM {p}event WHERE source = ? AND state IN (4, 5) AND state > 3 AND decided_at < ?)";
    now = "SELECT {now}";
    stale_audit = "SELECT COUNT(*) FROM (SELECT at FROM {p}audit ORDER BY id LIMIT 1) AS oldest WHERE at < ?";
    // By id, which is by age: the oldest are looked at, and no others.
    purge_audit = "DELETE FROM {p}audit WHERE id IN (SELECT id FROM (
            SELECT id, at FROM {p}audit ORDER BY id LIMIT ?) AS oldest WHERE at < ?)";
    // Not of what waits: it could not be applied without them. A flag before each value says whether any will do.
    erase_pending = "UPDATE {p}pending SET headers = ?, body = ?, uri = '/', bytes = 0, last_error = NULL
        WHERE source = ? AND (? = 1 OR event_id = ?) AND (? = 1 OR correlation_id = ?) AND parked_at < ?
            AND reason > 1 AND (LENGTH(body) + LENGTH(headers) > 0 OR last_error IS NOT NULL)";
    erase_answers = "UPDATE {p}answer SET headers = ?, body = NULL
        WHERE source = ? AND (? = 1 OR event_id = ?) AND at < ? AND (body IS NOT NULL OR LENGTH(headers) > 0)
            AND (? = 1 OR event_id IN (SELECT event_id FROM {p}event WHERE source = ? AND correlation_id = ?))";
    count_waiting = "SELECT COUNT(*) FROM {p}pending
        WHERE source = ? AND (? = 1 OR event_id = ?) AND (? = 1 OR correlation_id = ?) AND parked_at < ?
            AND (reason IS NULL OR reason = 1)";
    gone_sources = "SELECT source FROM {p}source WHERE gone = 1";
    set_gone = "UPDATE {p}source SET gone = ?, changed_at = ? WHERE source = ?";
    insert_gone = "INSERT INTO {p}source (source, gone, changed_at) VALUES (?, ?, ?){on_conflict}";
    // By what is stored, of which there is a bound, since no index has the dead ones among all events.
    stale_letters = "SELECT p.event_id
        FROM {p}pending p
        JOIN {p}event e ON e.source = p.source AND e.event_id = p.event_id
        WHERE p.source = ? AND p.event_id > ? AND p.reason BETWEEN 1 AND 6 AND e.state = 3 AND e.decided_at < ?
        ORDER BY p.event_id LIMIT ?";
    // Not what a worker has claimed: it came back by itself, and is being applied.
    forget_pending = "DELETE FROM {p}pending
        WHERE source = ? AND event_id = ? AND reason BETWEEN 1 AND 6 AND lease_token = 0";
    forget_event = "DELETE FROM {p}event WHERE source = ? AND event_id = ? AND state = 3 AND decided_at < ?";
    purge_applied = purge!("state = 1");
    purge_superseded = purge!("state = 5 AND state > 3");
    // What the fence held goes with its request, which goes first: nobody can release it then. What was released
    // meanwhile is no more than that.
    purge_held = "{delete_pending} (
            SELECT source, event_id FROM {p}event WHERE source = ? AND state = 4 AND state > 3 AND decided_at < ?
            ORDER BY decided_at LIMIT ?{skip_locked}) AS batch{batch_of_pending} AND reason = 7";
    purge_fenced = purge!(
        "state = 4 AND state > 3 AND NOT EXISTS (SELECT 1 FROM {p}pending h
                WHERE h.source = {p}event.source AND h.event_id = {p}event.event_id)"
    );
    // A number below every other one, in whose place the first guard puts its own.
    ensure_guard = "INSERT INTO {p}guard (entity, version, updated_at) VALUES (?, ?, ?){or_leave_guard}";
    guard_at = "UPDATE {p}guard SET version = ?, updated_at = ? WHERE entity = ? AND version = ?";
    guard_above = "UPDATE {p}guard SET version = ?, updated_at = ? WHERE entity = ? AND version < ?";
    // The range that a sequence may lie in: the one that begins last before it, since ranges do not overlap.
    range_at = "SELECT first_sequence, last_sequence, CAST(kind AS {bigint}) FROM {p}range
        WHERE source = ? AND correlation_id = ? AND generation = ? AND first_sequence <= ?
        ORDER BY first_sequence DESC LIMIT 1";
    ranges_after = "SELECT first_sequence, last_sequence, CAST(kind AS {bigint}) FROM {p}range
        WHERE source = ? AND correlation_id = ? AND generation = ? AND first_sequence > ?
        ORDER BY first_sequence LIMIT ?";
    insert_range = "INSERT INTO {p}range
        (source, correlation_id, generation, first_sequence, last_sequence, kind, at)
        VALUES (?, ?, ?, ?, ?, ?, ?)";
    // Cursors inside of a range: version 1 of the crate does not jump. Nothing of a stream comes before its start (3).
    strayed = "SELECT c.source, c.correlation_id
        FROM {p}range r
        JOIN {p}cursor c ON c.source = r.source AND c.correlation_id = r.correlation_id
            AND c.generation = r.generation AND c.next_sequence BETWEEN r.first_sequence AND r.last_sequence
        WHERE r.source = ? AND r.kind <> 3 LIMIT ?";
    aside_events = "UPDATE {p}event SET state = 3, decided_at = ?
        WHERE source = ? AND correlation_id = ? AND generation = ? AND slot BETWEEN ? AND ? AND state = 2";
    // What is dead already gets the operator's reason; its last status and error stay. Nobody applies it any more, so no
    // lease stays either: a worker that is late finds its token gone.
    aside_pending = "UPDATE {p}pending SET reason = ?, out_of_order = 0, lease_token = 0, lease_owner = NULL
        WHERE source = ? AND correlation_id = ? AND generation = ? AND sequence BETWEEN ? AND ?
            AND (reason IS NULL OR reason IN (1, 2, 3, 4))";
    // Of newer-than order: such an event has no place that a range could hold.
    unplaced = "SELECT p.event_id FROM {p}pending p
        JOIN {p}event e ON e.source = p.source AND e.event_id = p.event_id
        WHERE p.source = ? AND p.correlation_id = ? AND p.generation = 0 AND p.sequence IS NULL
            AND e.version IS NOT NULL AND (p.reason IS NULL OR p.reason IN (1, 2, 3, 4)) AND p.event_id > ?
        ORDER BY p.event_id LIMIT ?";
    discard_event = "UPDATE {p}event SET state = 6, slot = NULL, decided_at = ?
        WHERE source = ? AND event_id = ? AND state IN (2, 3, 4)";
    renew_cursor = "UPDATE {p}cursor SET version = NULL, settles_at = NULL
        WHERE source = ? AND correlation_id = ?";
    // For operators, outside any transaction.
    cursor = "SELECT next_sequence, CAST(generation AS {bigint}), next_range FROM {p}cursor
        WHERE source = ? AND correlation_id = ?";
    // A flag before each value says whether any will do; 0 stands for parked among the reasons.
    letters = "SELECT p.source, p.event_id, {letter}
        FROM {p}pending p
        JOIN {p}event e ON e.source = p.source AND e.event_id = p.event_id
        WHERE {after_event_of_p} AND p.source <= ?
            AND (? = 1 OR e.event_type = ?) AND (? = 1 OR p.correlation_id = ?)
            AND e.decided_at >= ? AND e.decided_at <= ?
            AND COALESCE(p.reason, 0) IN (?, ?, ?, ?, ?, ?, ?, ?)
        ORDER BY p.source, p.event_id LIMIT ?";
    // What is parked, a page of it: found among what is stored alone, and only then read with its event. The flag: whether it
    // has a place in a stream or not. By the primary key in both cases, since the index by stream does not have this order.
    waiting = "SELECT p.source, p.event_id, {letter}
        FROM (SELECT source, event_id FROM {p}pending
            WHERE {after_event} AND source <= ?
                AND reason IS NULL AND not_before > ? AND (? = 1 OR sequence IS NULL)
            ORDER BY source, event_id LIMIT ?) AS page
        JOIN {p}pending p ON p.source = page.source AND p.event_id = page.event_id
        JOIN {p}event e ON e.source = page.source AND e.event_id = page.event_id
        ORDER BY p.source, p.event_id";
    // By the index by stream: the rows have the requests, and are read of what is in no stream alone.
    count_apart = "SELECT COUNT(*) FROM (SELECT 1 AS one FROM {p}pending{by_stream}
        WHERE source >= ? AND source <= ? AND reason IS NULL AND sequence IS NULL LIMIT ?) AS apart";
    // Each by the beginning of a key.
    source_is_known = "SELECT
        (SELECT COUNT(*) FROM (SELECT 1 AS one FROM {p}event WHERE source = ? LIMIT 1) AS events) +
        (SELECT COUNT(*) FROM (SELECT 1 AS one FROM {p}cursor WHERE source = ? LIMIT 1) AS cursors) +
        (SELECT COUNT(*) FROM (SELECT 1 AS one FROM {p}stats WHERE source = ? LIMIT 1) AS counts) +
        (SELECT COUNT(*) FROM (SELECT 1 AS one FROM {p}secret_use WHERE source = ? LIMIT 1) AS uses) +
        (SELECT COUNT(*) FROM (SELECT 1 AS one FROM {p}reconcile WHERE source = ? LIMIT 1) AS lists) +
        (SELECT COUNT(*) FROM (SELECT 1 AS one FROM {p}audit WHERE source = ? LIMIT 1) AS decisions)";
    story = "SELECT e.source, e.event_id, {letter}, p.method, p.uri, p.headers, p.body
        FROM {p}event e
        LEFT JOIN {p}pending p ON p.source = e.source AND p.event_id = e.event_id
        WHERE e.source = ? AND e.event_id = ?";
    below = "SELECT event_id, sequence, CAST(reason AS {bigint}) FROM {p}pending
        WHERE source = ? AND correlation_id = ? AND generation = ? AND sequence < ?
        ORDER BY sequence DESC LIMIT ?";
    above = "SELECT event_id, sequence, CAST(reason AS {bigint}) FROM {p}pending
        WHERE source = ? AND correlation_id = ? AND generation = ? AND sequence > ?
        ORDER BY sequence LIMIT ?";
    // Streams in which something waits, or that a dead letter holds up; not what was set aside. The rows of one stream are
    // next to each other in the index by stream, so that a page reads no more than its own.
    waiting_streams = "SELECT {stream}
        FROM (SELECT {waiting}
            WHERE {after_stream_of_p} AND p.source <= ? AND {waits}
            GROUP BY p.source, p.correlation_id, p.generation
            ORDER BY p.source, p.correlation_id, p.generation LIMIT ?) AS s
        ORDER BY s.source, s.correlation_id, s.generation";
    // The same of all of them, by what they need, and how many there are: all rows are read for it. First those that a dead
    // letter holds up (0), then those whose next event fails (1), those that wait for one that has not come (2), and what
    // goes on by itself (3). Without a cursor a stream begins at 0 or 1. Where a parked event has taken the place of a dead
    // letter, it is the parked one that decides; an attempt under way has not failed yet.
    urgent_streams = "SELECT {stream},
            s.streams, s.held_up, s.failing
        FROM (SELECT t.*, COUNT(*) OVER () AS streams,
                CAST(SUM(CASE WHEN t.urgency = 0 THEN 1 ELSE 0 END) OVER () AS {bigint}) AS held_up,
                CAST(SUM(CASE WHEN t.urgency = 1 THEN 1 ELSE 0 END) OVER () AS {bigint}) AS failing
            FROM (SELECT CASE MAX(CASE
                            WHEN p.out_of_order = 1 OR c.next_sequence < 0 OR p.sequence < c.next_sequence THEN 0
                            WHEN p.sequence > COALESCE(c.next_sequence, 1) THEN 1
                            WHEN p.reason IS NOT NULL THEN 2
                            WHEN p.attempts > CASE WHEN p.lease_token > 0 THEN 1 ELSE 0 END THEN 4
                            ELSE 3 END)
                        WHEN 2 THEN 0 WHEN 4 THEN 1 WHEN 1 THEN 2 ELSE 3 END AS urgency, {waiting}
                WHERE {waits}
                GROUP BY p.source, p.correlation_id, p.generation) AS t
            ORDER BY t.urgency, t.oldest, t.source, t.correlation_id, t.generation LIMIT ?) AS s
        ORDER BY s.urgency, s.oldest, s.source, s.correlation_id, s.generation";
    stream_events = "SELECT event_id, sequence, CAST(reason AS {bigint}), parked_at, not_before,
            CAST(attempts AS {bigint}), CAST(last_status AS {bigint}), last_error, lease_token
        FROM {p}pending
        WHERE source = ? AND correlation_id = ? AND generation = ? AND sequence >= ?
        ORDER BY sequence, event_id LIMIT ?";
    audit_lines = "SELECT id, at, source, event_id, action, actor, detail, correlation_id FROM {p}audit
        WHERE id < ? ORDER BY id DESC LIMIT ?";
    // Apart, so that each has its index; of whom, within those of a source, is a flag and a name.
    audit_of_actor = "SELECT id, at, source, event_id, action, actor, detail, correlation_id FROM {p}audit
        WHERE actor = ? AND id < ? ORDER BY id DESC LIMIT ?";
    audit_of_source = "SELECT id, at, source, event_id, action, actor, detail, correlation_id FROM {p}audit
        WHERE source = ? AND (? = 1 OR actor = ?) AND id < ? ORDER BY id DESC LIMIT ?";
    audit_of_event = "SELECT id, at, source, event_id, action, actor, detail, correlation_id FROM {p}audit
        WHERE source = ? AND event_id = ? AND (? = 1 OR actor = ?) AND id < ? ORDER BY id DESC LIMIT ?";
    audit_of_stream = "SELECT id, at, source, event_id, action, actor, detail, correlation_id FROM {p}audit
        WHERE source = ? AND correlation_id = ? AND (? = 1 OR actor = ?) AND id < ? ORDER BY id DESC LIMIT ?";
    // Replay bursts.
    start_burst = "INSERT INTO {p}burst (source, burst_id, event_type, since_at, until_at, started_at)
        VALUES (?, ?, ?, ?, ?, ?){on_conflict}";
    // An end without a start, as long as that may still come.
    orphan_burst = "SELECT burst_id FROM {p}burst
        WHERE source = ? AND started_at IS NULL AND ended_at >= ? ORDER BY ended_at, burst_id LIMIT 1";
    adopt_burst = "UPDATE {p}burst SET burst_id = ?, event_type = ?, since_at = ?, until_at = ?, started_at = ?
        WHERE source = ? AND burst_id = ? AND started_at IS NULL";
    burst_ended_by = "SELECT COUNT(*) FROM {p}burst WHERE source = ? AND completed_by = ?";
    running_burst = "SELECT burst_id FROM {p}burst WHERE source = ? AND ended_at IS NULL
        ORDER BY started_at, burst_id LIMIT 1";
    end_burst = "UPDATE {p}burst SET ended_at = ?, completed_by = ?, announced = ?
        WHERE source = ? AND burst_id = ? AND ended_at IS NULL";
    end_unknown_burst = "INSERT INTO {p}burst (source, burst_id, ended_at, completed_by, announced)
        VALUES (?, ?, ?, ?, ?){on_conflict}";
    count_burst = "UPDATE {p}burst
        SET applied = applied + ?, duplicates = duplicates + ?, parked = parked + ?, others = others + ?
        WHERE source = ? AND burst_id = ?";
    report_burst = "UPDATE {p}burst SET reported = 1 WHERE source = ? AND burst_id = ? AND reported = 0";
    open_bursts = "SELECT source, burst_id, event_type, since_at, until_at, started_at, ended_at, completed_by, announced,
            applied, duplicates, parked, others
        FROM {p}burst WHERE reported = 0 ORDER BY source, burst_id LIMIT 256";
    bursts = "SELECT source, burst_id, event_type, since_at, until_at, started_at, ended_at, completed_by, announced,
            applied, duplicates, parked, others
        FROM {p}burst WHERE source = ? ORDER BY COALESCE(started_at, ended_at) DESC, burst_id LIMIT ?";
    // Signs of life, and what they showed.
    alive = "SELECT incarnation, at FROM {p}alive ORDER BY at DESC, incarnation LIMIT 64";
    first_alive = "INSERT INTO {p}alive (incarnation, at) VALUES (?, ?){on_conflict}";
    stay_alive = "UPDATE {p}alive SET at = ? WHERE incarnation = ? AND at = ?";
    add_incident = "INSERT INTO {p}incident (found_at, since, incarnation) VALUES (?, ?, ?){on_conflict}";
    incidents = "SELECT found_at, since FROM {p}incident WHERE found_at > ? ORDER BY found_at";
    // Reconciliation.
    open_reconcile = "INSERT INTO {p}reconcile (source, kind) VALUES (?, ?){on_conflict}";
    take_reconcile = "UPDATE {p}reconcile SET owner = ?, lease_until = ?
        WHERE source = ? AND kind = ? AND (owner = ? OR lease_until < ?)";
    reconcile_state = "SELECT through, run_since, next_page, highest, held_back, settled, finished_at
        FROM {p}reconcile WHERE source = ? AND kind = ?";
    reconciliations = "SELECT source, CAST(kind AS {bigint}), through, next_page, held_back, finished_at, lease_until
        FROM {p}reconcile ORDER BY source, kind";
    save_reconcile = "UPDATE {p}reconcile
        SET through = ?, run_since = ?, next_page = ?, highest = ?, held_back = ?, settled = ?, finished_at = ?,
            lease_until = ?
        WHERE source = ? AND kind = ? AND owner = ?";
    // What parked events wait for: the lowest missing sequence of each stream.
    gaps = "SELECT p.correlation_id, c.next_sequence, MIN(p.sequence)
        FROM {p}pending p
        JOIN {p}cursor c ON c.source = p.source AND c.correlation_id = p.correlation_id
            AND c.generation = p.generation AND c.next_sequence >= 0 AND c.next_sequence < p.sequence
        WHERE p.source = ? AND p.correlation_id > ? AND (p.reason IS NULL OR p.reason = 1)
        GROUP BY p.correlation_id, c.next_sequence ORDER BY p.correlation_id LIMIT ?";
    // No row is read. It fails where a table is missing, or a column that came after its table.
    schema = "SELECT 1 FROM {p}source WHERE source = '' AND (
        EXISTS (SELECT version, yielded_to FROM {p}event WHERE 1 = 0)
        OR EXISTS (SELECT version, settles_at, next_range FROM {p}cursor WHERE 1 = 0)
        OR EXISTS (SELECT lease_token, lease_owner, lease_until, unfinished, tried_at, out_of_order
            FROM {p}pending WHERE 1 = 0)
        OR EXISTS (SELECT digest FROM {p}fence WHERE 1 = 0)
        OR EXISTS (SELECT detail, correlation_id FROM {p}audit WHERE 1 = 0)
        OR EXISTS (SELECT kind FROM {p}range WHERE 1 = 0)
        OR EXISTS (SELECT beat_at FROM {p}worker WHERE 1 = 0)
        OR EXISTS (SELECT entity FROM {p}guard WHERE 1 = 0)
        OR EXISTS (SELECT headers FROM {p}answer WHERE 1 = 0)
        OR EXISTS (SELECT reported FROM {p}burst WHERE 1 = 0)
        OR EXISTS (SELECT incarnation FROM {p}alive WHERE 1 = 0)
        OR EXISTS (SELECT found_at FROM {p}incident WHERE 1 = 0)
        OR EXISTS (SELECT lease_until FROM {p}reconcile WHERE 1 = 0)
        OR EXISTS (SELECT b31 FROM {p}stats WHERE 1 = 0)
        OR EXISTS (SELECT flushed_at FROM {p}flush WHERE 1 = 0)
        OR EXISTS (SELECT last_verified FROM {p}secret_use WHERE 1 = 0)
        OR EXISTS (SELECT lease_until FROM {p}row_count WHERE 1 = 0))";
    // Statistics. The counts are added in the place of what they are; the latest 5xx stays.
    claim_flush = "UPDATE {p}flush SET batch = ?, flushed_at = ? WHERE owner = ? AND batch < ?";
    first_flush = "INSERT INTO {p}flush (owner, batch, flushed_at) VALUES (?, ?, ?){on_conflict}";
    add_stats = "UPDATE {p}stats
        SET total = total + ?, delivered = delivered + ?, duplicates = duplicates + ?, parked = parked + ?,
            discarded = discarded + ?, failed = failed + ?, refused = refused + ?,
            last_5xx = CASE WHEN last_5xx < ? THEN ? ELSE last_5xx END, {add_buckets}
        WHERE source = ? AND event_type = ? AND slot = ?";
    insert_stats = "INSERT INTO {p}stats
        (source, event_type, slot, total, delivered, duplicates, parked, discarded, failed, refused, last_5xx, {buckets})
        VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, {bucket_values}){on_conflict}";
    stats_by_type = "SELECT source, event_type, CAST(SUM(total) AS {bigint}), CAST(SUM(delivered) AS {bigint}),
            CAST(SUM(duplicates) AS {bigint}), CAST(SUM(parked) AS {bigint}), CAST(SUM(discarded) AS {bigint}),
            CAST(SUM(failed) AS {bigint}), CAST(SUM(refused) AS {bigint}), MAX(last_5xx), {sum_buckets}
        FROM {p}stats WHERE slot >= ? AND slot <= ? GROUP BY source, event_type ORDER BY source, event_type";
    stats_by_slot = "SELECT source, slot, CAST(SUM(total) AS {bigint}), CAST(SUM(failed) AS {bigint})
        FROM {p}stats WHERE slot >= ? AND slot <= ? GROUP BY source, slot ORDER BY source, slot";
    stale_stats = "SELECT DISTINCT source FROM {p}stats WHERE slot < ? ORDER BY source LIMIT ?";
    purge_stats = "DELETE FROM {p}stats WHERE source = ? AND slot < ?";
    purge_flushes = "DELETE FROM {p}flush WHERE flushed_at < ?";
    purge_secret_uses = "DELETE FROM {p}secret_use WHERE last_verified < ?";
    purge_row_counts = "DELETE FROM {p}row_count WHERE source <> '' AND counted_at < ?";
    use_secret = "UPDATE {p}secret_use SET last_verified = ? WHERE source = ? AND label = ? AND last_verified < ?";
    first_use = "INSERT INTO {p}secret_use (source, label, last_verified) VALUES (?, ?, ?){on_conflict}";
    secret_uses = "SELECT source, label, last_verified FROM {p}secret_use ORDER BY source, label";
    // Streams in which something waits, and nothing is there for the cursor: neither parked nor dead. One whose cursor has
    // no row waits for its source's first sequence, 0 or 1: its lowest one says whether that is there, and 2 stands for all
    // others. One that settles (-1) waits for no sequence.
    count_gaps = "SELECT s.source, CAST(s.lowest AS {bigint}), COUNT(*) FROM (
            SELECT p.source, p.correlation_id,
                CASE WHEN MAX(c.next_sequence) IS NOT NULL OR MIN(p.sequence) > 1 THEN 2
                    ELSE MIN(p.sequence) END AS lowest
            FROM {p}pending p
            LEFT JOIN {p}cursor c ON c.source = p.source AND c.correlation_id = p.correlation_id
            WHERE p.correlation_id IS NOT NULL AND p.sequence IS NOT NULL AND p.out_of_order = 0
                AND (c.source IS NULL
                    OR (c.generation = p.generation AND c.next_sequence >= 0 AND p.sequence >= c.next_sequence))
            GROUP BY p.source, p.correlation_id
            HAVING SUM(CASE WHEN p.reason IS NULL OR p.reason = 1 THEN 1 ELSE 0 END) > 0
                AND SUM(CASE WHEN p.sequence = c.next_sequence THEN 1 ELSE 0 END) = 0) AS s
        GROUP BY s.source, s.lowest";
    // Since the latest of: it was parked, the cursor came to it, its wait was over.
    due_since = "SELECT p.source, CAST(COALESCE(p.reason, 0) AS {bigint}),
            MIN(CASE WHEN p.parked_at >= c.updated_at AND p.parked_at >= p.not_before THEN p.parked_at
                WHEN c.updated_at >= p.not_before THEN c.updated_at ELSE p.not_before END)
        FROM {p}pending p
        JOIN {p}cursor c ON c.source = p.source AND c.correlation_id = p.correlation_id
            AND c.generation = p.generation AND c.next_sequence = p.sequence
        WHERE (p.reason IS NULL OR p.reason = 1) AND p.not_before <= ?
        GROUP BY p.source, p.reason";
    due_events_since = "SELECT source, CAST(0 AS {bigint}),
            MIN(CASE WHEN parked_at >= not_before THEN parked_at ELSE not_before END)
        FROM {p}pending
        WHERE (sequence IS NULL OR out_of_order = 1) AND reason IS NULL AND not_before <= ?
        GROUP BY source";
    count_leases = "SELECT source, COUNT(*) FROM {p}pending
        WHERE lease_token <> 0 AND lease_until > ? GROUP BY source";
    reconciled = "SELECT source, MAX(finished_at) FROM {p}reconcile
        WHERE finished_at IS NOT NULL GROUP BY source";
    // Rows of events are counted page by page. The row without a source is the lease of whoever counts.
    take_row_count = "UPDATE {p}row_count SET owner = ?, lease_until = ?
        WHERE source = '' AND (owner = ? OR lease_until < ?)";
    open_row_count = "INSERT INTO {p}row_count (source, owner, lease_until) VALUES (?, ?, ?){on_conflict}";
    count_rows = "SELECT COUNT(*), MAX(event_id) FROM (
            SELECT event_id FROM {p}event WHERE source = ? AND event_id > ? ORDER BY event_id LIMIT ?) AS page";
    save_row_count = "UPDATE {p}row_count SET counted = ?, counted_at = ? WHERE source = ?";
    first_row_count = "INSERT INTO {p}row_count (source, counted, counted_at) VALUES (?, ?, ?){on_conflict}";
    row_counts = "SELECT source, counted, counted_at FROM {p}row_count WHERE source <> '' ORDER BY source";
    ping = "SELECT 1 FROM {p}cursor WHERE source = '' AND correlation_id = ''";
}

/// What is told of a stored event.
const LETTER: &str =
    "CAST(e.state AS {bigint}), CAST(p.reason AS {bigint}), e.event_type, e.correlation_id,
            CAST(e.generation AS {bigint}), e.sequence, e.yielded_to, e.received_at, e.decided_at,
            CAST(p.attempts AS {bigint}), CAST(p.last_status AS {bigint}), p.last_error, p.tried_at,
            CAST(LENGTH(p.body) AS {bigint}), CAST(p.out_of_order AS {bigint}), p.not_before,
            p.lease_token";

/// Something for each bucket of a histogram, whose column is `{b}`.
fn of_buckets(text: &str) -> String {
    let one = |index| text.replace("{b}", &format!("b{index:02}"));
    let all: Vec<_> = (0..BUCKETS).map(one).collect();
    all.join(", ")
}

/// A stream `s` in which something waits, and what is stored where it stands.
const STREAM: &str = "s.source, s.correlation_id, s.generation, s.next_sequence, s.lowest, s.highest,
            s.parked, s.dead, s.oldest,
            (SELECT CAST(COALESCE(h.reason, 0) AS {bigint}) {head}),
            (SELECT CAST(h.attempts - CASE WHEN h.lease_token > 0 THEN 1 ELSE 0 END AS {bigint}) {head}),
            (SELECT CAST(h.last_status AS {bigint}) {head}), (SELECT h.not_before {head})";

/// Streams of which something is stored.
const WAITING: &str = "p.source, p.correlation_id, CAST(p.generation AS {bigint}) AS generation,
                MAX(c.next_sequence) AS next_sequence, MIN(p.sequence) AS lowest, MAX(p.sequence) AS highest,
                CAST(SUM(CASE WHEN p.reason IS NULL THEN 1 ELSE 0 END) AS {bigint}) AS parked,
                CAST(SUM(CASE WHEN p.reason IS NULL THEN 0 ELSE 1 END) AS {bigint}) AS dead,
                MIN(p.parked_at) AS oldest
            FROM {p}pending p
            LEFT JOIN {p}cursor c ON c.source = p.source AND c.correlation_id = p.correlation_id
                AND c.generation = p.generation";

/// What waits in a stream, or holds it up; not what was set aside.
const WAITS: &str = "p.sequence IS NOT NULL
                AND (p.reason IS NULL OR (p.reason <= 4 AND p.sequence >= COALESCE(c.next_sequence, 0)))";

/// What is stored at the cursor of a stream `s`. Its place may have been taken over: then it is the one that has it.
const HEAD: &str =
    "FROM {p}pending h WHERE h.source = s.source AND h.correlation_id = s.correlation_id
                AND h.generation = s.generation AND h.sequence = COALESCE(s.next_sequence, s.lowest)
                ORDER BY COALESCE(h.reason, 0), h.event_id LIMIT 1";

fn render(dialect: &Dialect, prefix: &str, text: &str) -> SqlStr {
    let batch = &dialect.delete_batch;
    let events = |text: &str| {
        text.replace("{table}", "{p}event")
            .replace("{key}", "event_id")
    };
    let answers = |text: &str| {
        text.replace("{table}", "{p}answer")
            .replace("{key}", "event_id")
    };
    let pending = |text: &str| {
        text.replace("{table}", "{p}pending")
            .replace("{key}", "event_id")
    };
    let fences = |text: &str| {
        text.replace("{table}", "{p}fence")
            .replace("{key}", "digest")
    };
    let text = text
        .replace("{delete_events}", &events(batch.before))
        .replace("{batch_of_events}", &events(batch.behind))
        .replace("{delete_answers}", &answers(batch.before))
        .replace("{batch_of_answers}", &answers(batch.behind))
        .replace("{delete_pending}", &pending(batch.before))
        .replace("{batch_of_pending}", &pending(batch.behind))
        .replace("{delete_fences}", &fences(batch.before))
        .replace("{batch_of_fences}", &fences(batch.behind))
        .replace("{skip_locked}", batch.skip_locked)
        .replace("{claim_before}", dialect.update_claimed.before)
        .replace("{claim_skip_locked}", dialect.update_claimed.skip_locked)
        .replace("{claim_between}", dialect.update_claimed.between)
        .replace("{claim_behind}", dialect.update_claimed.behind)
        .replace("{after_stream}", &dialect.after.of("", "correlation_id"))
        .replace(
            "{after_stream_of_p}",
            &dialect.after.of("p.", "correlation_id"),
        )
        .replace("{after_event}", &dialect.after.of("", "event_id"))
        .replace("{after_event_of_p}", &dialect.after.of("p.", "event_id"))
        .replace("{now}", dialect.now)
        .replace("{letter}", LETTER)
        .replace("{stream}", STREAM)
        .replace("{head}", HEAD)
        .replace("{waiting}", WAITING)
        .replace("{waits}", WAITS)
        .replace("{buckets}", &of_buckets("{b}"))
        .replace("{add_buckets}", &of_buckets("{b} = {b} + ?"))
        .replace("{bucket_values}", &of_buckets("?"))
        .replace("{sum_buckets}", &of_buckets("CAST(SUM({b}) AS {bigint})"))
        .replace("{by_stream}", dialect.by_stream)
        .replace("{p}", prefix)
        .replace("{on_conflict}", dialect.on_conflict)
        .replace(
            "{or_leave_cursor}",
            &dialect.or_leave.replace("{key}", "correlation_id"),
        )
        .replace(
            "{or_leave_guard}",
            &dialect.or_leave.replace("{key}", "entity"),
        )
        .replace("{for_update}", dialect.for_update)
        .replace("{bigint}", dialect.bigint);
    // No statement holds a literal with a question mark, so that every one is a parameter.
    if !dialect.numbered {
        return AssertSqlSafe(text).into_sql_str();
    }
    let mut numbered = String::with_capacity(text.len() + 16);
    for (i, piece) in text.split('?').enumerate() {
        if i > 0 {
            numbered.push_str(&format!("${i}"));
        }
        numbered.push_str(piece);
    }
    AssertSqlSafe(numbered).into_sql_str()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// (health): a table or a column that is missing is missed.
    #[test]
    fn the_look_at_the_schema_names_every_table_and_every_later_column() {
        let dialect = Dialect {
            numbered: false,
            on_conflict: "",
            or_leave: "",
            bigint: "INTEGER",
            after: After::PLAIN,
            now: "1",
            for_update: "",
            by_stream: "",
            delete_batch: DeleteBatch::PLAIN,
            update_claimed: UpdateClaimed::PLAIN,
        };
        let sql = Sql::render(&dialect, "tower_inbox_");
        let words: Vec<_> = sql
            .schema
            .as_str()
            .split(|c: char| !c.is_ascii_alphanumeric() && c != '_')
            .collect();
        let mut named = 0;
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/migrations/sqlite");
        for file in std::fs::read_dir(folder).expect("the migrations are here") {
            let file = file.expect("a file").path();
            let file = std::fs::read_to_string(file).expect("a text");
            for mark in ["CREATE TABLE ", "ADD COLUMN "] {
                for (at, _) in file.match_indices(mark) {
                    let name = file[at + mark.len()..].split([' ', '(']).next();
                    assert!(words.contains(&name.expect("a name")), "{name:?}");
                    named += 1;
                }
            }
        }
        assert!(named > 25, "the migrations were not found");
    }

    #[test]
    fn parameters_are_numbered_in_order_where_a_database_wants_it() {
        let dialect = Dialect {
            numbered: true,
            on_conflict: " ON CONFLICT DO NOTHING",
            or_leave: " ON CONFLICT DO NOTHING",
            bigint: "BIGINT",
            after: After::PLAIN,
            now: "1",
            for_update: "",
            by_stream: "",
            delete_batch: DeleteBatch::PLAIN,
            update_claimed: UpdateClaimed::PLAIN,
        };
        let sql = Sql::render(&dialect, "app_");
        assert!(
            sql.open_cursor
                .as_str()
                .starts_with("INSERT INTO app_cursor")
        );
        assert!(
            sql.open_cursor
                .as_str()
                .ends_with("VALUES ($1, $2, $3, $4, $5) ON CONFLICT DO NOTHING")
        );
    }
}
