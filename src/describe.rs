//! What the metrics mean, for recorders that show it.

use metrics::{describe_counter, describe_gauge};

/// Names, types and meanings, as the README has them.
pub(crate) fn metrics() {
    describe_counter!(
        "inbox_deliveries_total",
        "Deliveries by source, event type and outcome."
    );
    describe_counter!(
        "inbox_drained_total",
        "Parked events that the worker tried, by source and outcome."
    );
    describe_counter!(
        "inbox_fenced_total",
        "Deliveries that the fence caught, by source."
    );
    describe_counter!(
        "inbox_other_content_total",
        "Known events that came with other content, and were only noted."
    );
    describe_counter!(
        "inbox_purged_rows_total",
        "Rows of events that retention removed, by source."
    );
    describe_counter!(
        "inbox_bursts_total",
        "Replay bursts that have ended, by source and end: complete, short, abandoned or uncounted."
    );
    describe_counter!(
        "inbox_bursts_missing_total",
        "Events that a replay burst announced and that did not arrive, by source."
    );
    describe_counter!(
        "inbox_reconciled_total",
        "Events on producers' lists, by source and outcome of their reconciliation."
    );
    describe_counter!(
        "inbox_superseded_total",
        "Events that came after a later version of theirs, by source."
    );
    describe_counter!(
        "inbox_verified_total",
        "Verified deliveries by source and label of the secret."
    );
    describe_gauge!(
        "inbox_parked",
        "Events that wait for a lower sequence or for the worker, by source."
    );
    describe_gauge!(
        "inbox_dead_letters",
        "Stored events that are not tried again by themselves, by source and reason."
    );
    describe_gauge!(
        "inbox_worker_last_look_timestamp_seconds",
        "When this process's worker last looked for what is due and the database answered, in seconds since 1970."
    );
    describe_gauge!(
        "inbox_worker_last_applied_timestamp_seconds",
        "When this process's worker last applied a stored event, in seconds since 1970."
    );
    describe_gauge!("inbox_fenced", "Events that the fence holds, by source.");
}
