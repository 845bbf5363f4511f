//! Every statement's text, once.
//!
//! `{p}` is the table prefix; `?` is a parameter, each used once and in order, so that one text can be rendered
//! with `?` or `$n`. A place where databases differ is a named piece of the [`Dialect`].

use sqlx::{AssertSqlSafe, SqlSafeStr, SqlStr};

/// Where databases differ, and only there.
pub(crate) struct Dialect {
    /// `$1` instead of `?`.
    pub(crate) numbered: bool,
    /// Skips a row whose key is taken. Empty where an INSERT reports the violation instead.
    pub(crate) on_conflict: &'static str,
    /// The name that CAST knows a 64-bit integer by.
    pub(crate) bigint: &'static str,
    /// Locks the rows of a SELECT. Empty where a transaction holds the whole database.
    pub(crate) for_update: &'static str,
    /// How a batch of rows that a subquery finds is deleted.
    pub(crate) delete_batch: DeleteBatch,
    /// How the one row that a subquery finds, called `claim`, is changed.
    pub(crate) update_claimed: UpdateClaimed,
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
        pub struct Sql {
            /// Statements are prepared under names of their own, which stay with the connection.
            pub(crate) named: bool,
            $($(#[$doc])* pub(crate) $name: SqlStr,)*
        }

        impl Sql {
            pub(crate) fn render(dialect: &Dialect, prefix: &str) -> Self {
                Self { named: true, $($name: render(dialect, prefix, $text),)* }
            }
        }
    };
}

statements! {
    // Outside any transaction: all that is known, in one statement.
    known = "SELECT CAST(e.state AS {bigint}), e.fingerprint, e.correlation_id, e.sequence,
            CAST(p.reason AS {bigint}), c.next_sequence, e.yielded_to
        FROM {p}event e
        LEFT JOIN {p}pending p ON p.source = e.source AND p.event_id = e.event_id
        LEFT JOIN {p}cursor c ON c.source = e.source AND c.correlation_id = e.correlation_id
        WHERE e.source = ? AND e.event_id = ?";
    // Inside one: the event's row is locked first. A plain SELECT here would fix MySQL's snapshot before the cursor is
    // locked, and the handler would read its predecessor's old values (§4.7).
    lock_event = "SELECT CAST(state AS {bigint}), fingerprint, correlation_id, sequence, yielded_to FROM {p}event
        WHERE source = ? AND event_id = ?{for_update}";
    pending_reason = "SELECT CAST(reason AS {bigint}) FROM {p}pending
        WHERE source = ? AND event_id = ?{for_update}";
    insert_event = "INSERT INTO {p}event
        (source, event_id, state, fingerprint, event_type, correlation_id, sequence, slot, received_at, decided_at)
        VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?){on_conflict}";
    swap_state = "UPDATE {p}event SET state = ?, decided_at = ?
        WHERE source = ? AND event_id = ? AND state = ?";
    slot_holder = "SELECT event_id, CAST(state AS {bigint}) FROM {p}event
        WHERE source = ? AND correlation_id = ? AND generation = 0 AND slot = ?{for_update}";
    yield_slot = "UPDATE {p}event SET slot = NULL, yielded_to = ?
        WHERE source = ? AND event_id = ? AND state = 3";
    advance_cursor = "UPDATE {p}cursor SET next_sequence = ?, updated_at = ?
        WHERE source = ? AND correlation_id = ? AND next_sequence = ?";
    open_cursor = "INSERT INTO {p}cursor (source, correlation_id, next_sequence, updated_at)
        VALUES (?, ?, ?, ?){on_conflict}";
    lock_cursor = "SELECT next_sequence FROM {p}cursor
        WHERE source = ? AND correlation_id = ?{for_update}";
    insert_pending = "INSERT INTO {p}pending
        (source, event_id, correlation_id, sequence, reason, attempts, not_before, parked_at, last_status,
         bytes, method, uri, headers, body)
        VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)";
    // A lease of 0 is no lease, and demands none: a delivery that its producer sent again needs nobody's.
    delete_pending = "DELETE FROM {p}pending WHERE source = ? AND event_id = ? AND (? = 0 OR lease_token = ?)";
    record_attempt = "UPDATE {p}pending
        SET attempts = attempts + ?, reason = ?, not_before = ?, last_status = ?, last_error = ?,
            lease_token = 0, lease_owner = NULL, unfinished = 0
        WHERE source = ? AND event_id = ? AND (? = 0 OR lease_token = ?)";
    // Only with the lease that it was tried under: a verdict that was given meanwhile stays.
    postpone = "UPDATE {p}pending
        SET not_before = ?, last_status = ?, last_error = ?, lease_token = 0, lease_owner = NULL, unfinished = 0
        WHERE source = ? AND event_id = ? AND lease_token = ?";
    // The attempt is counted here, before the handler runs. Who holds the row's lock is at work on it: stepped over.
    claim = "{claim_before} (
            SELECT source, event_id FROM {p}pending
            WHERE source = ? AND event_id = ? AND lease_token = ? LIMIT 1{claim_skip_locked}) {claim_between}
        SET lease_token = ?, lease_owner = ?, lease_until = ?, tried_at = ?, not_before = ?,
            attempts = attempts + 1, unfinished = unfinished + 1
        {claim_behind}";
    // As if it had never been claimed.
    hand_back = "UPDATE {p}pending
        SET lease_token = 0, lease_owner = NULL, not_before = ?, attempts = attempts - 1, unfinished = unfinished - 1
        WHERE source = ? AND event_id = ? AND lease_token = ?";
    hand_back_all = "UPDATE {p}pending
        SET lease_token = 0, lease_owner = NULL, not_before = ?, attempts = attempts - 1, unfinished = unfinished - 1
        WHERE lease_owner = ? AND lease_token <> 0";
    beat = "UPDATE {p}worker SET beat = ?, beat_at = ? WHERE owner = ?";
    first_beat = "INSERT INTO {p}worker (owner, beat, beat_at) VALUES (?, ?, ?){on_conflict}";
    beats = "SELECT owner, beat FROM {p}worker";
    retire = "DELETE FROM {p}worker WHERE owner = ? OR beat_at < ?";
    // Over the bound on parking the body is not kept; a handler must not be run without it.
    release = "UPDATE {p}pending SET reason = NULL, not_before = ?, attempts = 0
        WHERE source = ? AND event_id = ? AND LENGTH(body) > 0";
    insert_fence = "INSERT INTO {p}fence (source, digest, event_id, expires_at)
        VALUES (?, ?, ?, ?){on_conflict}";
    fence_holder = "SELECT event_id FROM {p}fence WHERE source = ? AND digest = ?{for_update}";
    purge_fences = "{delete_fences} (
            SELECT source, digest FROM {p}fence WHERE source = ? AND expires_at < ?
            ORDER BY expires_at LIMIT ?{skip_locked}) AS batch{batch_of_fences}";
    audit = "INSERT INTO {p}audit (at, source, event_id, action, actor, detail) VALUES (?, ?, ?, ?, ?, ?)";
    // A dead letter for a gap (1) comes back by itself when the gap fills; the others wait for somebody.
    due_streams = "SELECT p.source, p.correlation_id
        FROM {p}pending p
        JOIN {p}cursor c ON c.source = p.source AND c.correlation_id = p.correlation_id
            AND c.next_sequence = p.sequence
        WHERE (p.reason IS NULL OR p.reason = 1) AND p.not_before <= ?
            AND (p.source > ? OR (p.source = ? AND p.correlation_id > ?))
        ORDER BY p.source, p.correlation_id LIMIT ?";
    // What has no place in a stream and waits all the same: it was released by an operator.
    due_events = "SELECT source, event_id FROM {p}pending
        WHERE sequence IS NULL AND reason IS NULL AND not_before <= ?
            AND (source > ? OR (source = ? AND event_id > ?))
        ORDER BY source, event_id LIMIT ?";
    due_event = "SELECT p.event_id, e.event_type, e.fingerprint, p.correlation_id, p.sequence, CAST(p.reason AS {bigint}),
            CAST(p.attempts AS {bigint}), p.not_before, p.parked_at, p.method, p.uri, p.headers, p.body,
            p.lease_token, p.lease_owner, p.lease_until, CAST(p.unfinished AS {bigint})
        FROM {p}pending p
        JOIN {p}event e ON e.source = p.source AND e.event_id = p.event_id
        WHERE p.source = ? AND p.event_id = ? AND p.sequence IS NULL AND p.reason IS NULL";
    due_head = "SELECT p.event_id, e.event_type, e.fingerprint, p.correlation_id, p.sequence, CAST(p.reason AS {bigint}),
            CAST(p.attempts AS {bigint}), p.not_before,
            p.parked_at, p.method, p.uri, p.headers, p.body,
            p.lease_token, p.lease_owner, p.lease_until, CAST(p.unfinished AS {bigint})
        FROM {p}cursor c
        JOIN {p}pending p ON p.source = c.source AND p.correlation_id = c.correlation_id
            AND p.generation = c.generation AND p.sequence = c.next_sequence
        JOIN {p}event e ON e.source = p.source AND e.event_id = p.event_id
        WHERE c.source = ? AND c.correlation_id = ? AND (p.reason IS NULL OR p.reason = 1)
            AND e.slot IS NOT NULL";
    expired = "SELECT p.event_id, p.correlation_id, p.sequence
        FROM {p}pending p
        WHERE p.source = ? AND p.event_id > ? AND p.reason IS NULL AND p.parked_at <= ?
            AND p.correlation_id IS NOT NULL AND p.sequence IS NOT NULL
        ORDER BY p.event_id LIMIT ?";
    pending_counts = "SELECT source, CAST(reason AS {bigint}), COUNT(*), CAST(SUM(bytes) AS {bigint}), MIN(parked_at)
        FROM {p}pending GROUP BY source, reason";
    // Looked at first: a DELETE that finds nothing would take SQLite's write lock all the same.
    stale = "SELECT
        (SELECT COUNT(*) FROM (SELECT 1 AS one FROM {p}event
            WHERE source = ? AND state = 1 AND decided_at < ? LIMIT 1) AS stale_rows) +
        (SELECT COUNT(*) FROM (SELECT 1 AS one FROM {p}fence
            WHERE source = ? AND expires_at < ? LIMIT 1) AS stale_fences)";
    // Applied and fenced rows only. The nesting is what makes one text do for every database, but for the verb.
    purge = "{delete_events} (
            SELECT source, event_id FROM {p}event WHERE source = ? AND state = 1 AND decided_at < ?
            ORDER BY decided_at LIMIT ?{skip_locked}) AS batch{batch_of_events}";
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
    save_reconcile = "UPDATE {p}reconcile
        SET through = ?, run_since = ?, next_page = ?, highest = ?, held_back = ?, settled = ?, finished_at = ?,
            lease_until = ?
        WHERE source = ? AND kind = ? AND owner = ?";
    // What parked events wait for: the lowest missing sequence of each stream.
    gaps = "SELECT p.correlation_id, c.next_sequence, MIN(p.sequence)
        FROM {p}pending p
        JOIN {p}cursor c ON c.source = p.source AND c.correlation_id = p.correlation_id
            AND c.next_sequence < p.sequence
        WHERE p.source = ? AND p.correlation_id > ? AND (p.reason IS NULL OR p.reason = 1)
        GROUP BY p.correlation_id, c.next_sequence ORDER BY p.correlation_id LIMIT ?";
    ping = "SELECT 1 FROM {p}cursor WHERE source = '' AND correlation_id = ''";
}

fn render(dialect: &Dialect, prefix: &str, text: &str) -> SqlStr {
    let batch = &dialect.delete_batch;
    let events = |text: &str| {
        text.replace("{table}", "{p}event")
            .replace("{key}", "event_id")
    };
    let fences = |text: &str| {
        text.replace("{table}", "{p}fence")
            .replace("{key}", "digest")
    };
    let text = text
        .replace("{delete_events}", &events(batch.before))
        .replace("{batch_of_events}", &events(batch.behind))
        .replace("{delete_fences}", &fences(batch.before))
        .replace("{batch_of_fences}", &fences(batch.behind))
        .replace("{skip_locked}", batch.skip_locked)
        .replace("{claim_before}", dialect.update_claimed.before)
        .replace("{claim_skip_locked}", dialect.update_claimed.skip_locked)
        .replace("{claim_between}", dialect.update_claimed.between)
        .replace("{claim_behind}", dialect.update_claimed.behind)
        .replace("{p}", prefix)
        .replace("{on_conflict}", dialect.on_conflict)
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

    #[test]
    fn parameters_are_numbered_in_order_where_a_database_wants_it() {
        let dialect = Dialect {
            numbered: true,
            on_conflict: " ON CONFLICT DO NOTHING",
            bigint: "BIGINT",
            for_update: "",
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
                .ends_with("VALUES ($1, $2, $3, $4) ON CONFLICT DO NOTHING")
        );
    }
}
