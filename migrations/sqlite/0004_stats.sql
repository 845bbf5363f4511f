-- tower-inbox, SQLite, version 4: statistics of the last 24 hours, secrets' use, counts of rows.
-- Earlier versions of the crate go on working beside it: they know nothing of these tables.

-- Counts by source, event type and hour. Every process adds its own; hours that are over are removed.
CREATE TABLE tower_inbox_stats (
    source     TEXT    NOT NULL,
    event_type TEXT    NOT NULL, -- empty: none. `other`: beyond the types that are told apart
    slot       INTEGER NOT NULL, -- when the hour began
    total      INTEGER NOT NULL DEFAULT 0, -- deliveries of events
    delivered  INTEGER NOT NULL DEFAULT 0, -- applied, by a delivery, the worker or a reconciliation
    duplicates INTEGER NOT NULL DEFAULT 0,
    parked     INTEGER NOT NULL DEFAULT 0, -- stored for later
    discarded  INTEGER NOT NULL DEFAULT 0, -- terminal verdicts: the handler's, or the inbox's own
    failed     INTEGER NOT NULL DEFAULT 0,
    refused    INTEGER NOT NULL DEFAULT 0, -- deliveries that were not verified; in the row without a type
    last_5xx   INTEGER NOT NULL DEFAULT 0, -- 0: none
    -- Runs of the handler by how long they took: at most 1 ms, and each next one 1.41 times as long; the last one the rest.
    b00        INTEGER NOT NULL DEFAULT 0,
    b01        INTEGER NOT NULL DEFAULT 0,
    b02        INTEGER NOT NULL DEFAULT 0,
    b03        INTEGER NOT NULL DEFAULT 0,
    b04        INTEGER NOT NULL DEFAULT 0,
    b05        INTEGER NOT NULL DEFAULT 0,
    b06        INTEGER NOT NULL DEFAULT 0,
    b07        INTEGER NOT NULL DEFAULT 0,
    b08        INTEGER NOT NULL DEFAULT 0,
    b09        INTEGER NOT NULL DEFAULT 0,
    b10        INTEGER NOT NULL DEFAULT 0,
    b11        INTEGER NOT NULL DEFAULT 0,
    b12        INTEGER NOT NULL DEFAULT 0,
    b13        INTEGER NOT NULL DEFAULT 0,
    b14        INTEGER NOT NULL DEFAULT 0,
    b15        INTEGER NOT NULL DEFAULT 0,
    b16        INTEGER NOT NULL DEFAULT 0,
    b17        INTEGER NOT NULL DEFAULT 0,
    b18        INTEGER NOT NULL DEFAULT 0,
    b19        INTEGER NOT NULL DEFAULT 0,
    b20        INTEGER NOT NULL DEFAULT 0,
    b21        INTEGER NOT NULL DEFAULT 0,
    b22        INTEGER NOT NULL DEFAULT 0,
    b23        INTEGER NOT NULL DEFAULT 0,
    b24        INTEGER NOT NULL DEFAULT 0,
    b25        INTEGER NOT NULL DEFAULT 0,
    b26        INTEGER NOT NULL DEFAULT 0,
    b27        INTEGER NOT NULL DEFAULT 0,
    b28        INTEGER NOT NULL DEFAULT 0,
    b29        INTEGER NOT NULL DEFAULT 0,
    b30        INTEGER NOT NULL DEFAULT 0,
    b31        INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (source, event_type, slot)
) STRICT, WITHOUT ROWID;

-- Hours that are over are found by this.
CREATE INDEX tower_inbox_stats_slot ON tower_inbox_stats (slot, source);

-- The last batch of counts that a process has added: one whose commit nobody saw is not added twice.
CREATE TABLE tower_inbox_flush (
    owner      TEXT    NOT NULL PRIMARY KEY, -- unique per start of a process
    batch      INTEGER NOT NULL,
    flushed_at INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

-- When a delivery was last verified by a secret, by the secret's label.
CREATE TABLE tower_inbox_secret_use (
    source        TEXT    NOT NULL,
    label         TEXT    NOT NULL,
    last_verified INTEGER NOT NULL,
    PRIMARY KEY (source, label)
) STRICT, WITHOUT ROWID;

-- How many rows of events a source has, as it was counted last. The row without a source is the lease of whoever counts.
CREATE TABLE tower_inbox_row_count (
    source      TEXT    NOT NULL PRIMARY KEY,
    counted     INTEGER NOT NULL DEFAULT 0,
    counted_at  INTEGER NOT NULL DEFAULT 0,
    owner       TEXT    NOT NULL DEFAULT '',
    lease_until INTEGER NOT NULL DEFAULT 0
) STRICT, WITHOUT ROWID;

-- An event's entries, and a source's: the table is kept for more than a year.
CREATE INDEX tower_inbox_audit_event ON tower_inbox_audit (source, event_id, id);
CREATE INDEX tower_inbox_audit_source ON tower_inbox_audit (source, id);
