-- tower-inbox, PostgreSQL, version 4: statistics of the last 24 hours, secrets' use, counts of rows.
-- Earlier versions of the crate go on working beside it: they know nothing of these tables.

-- Counts by source, event type and hour. Every process adds its own; hours that are over are removed.
CREATE TABLE tower_inbox_stats (
    source     TEXT COLLATE "C" NOT NULL,
    event_type TEXT COLLATE "C" NOT NULL, -- empty: none. `other`: beyond the types that are told apart
    slot       BIGINT           NOT NULL, -- when the hour began
    total      BIGINT           NOT NULL DEFAULT 0, -- deliveries of events
    delivered  BIGINT           NOT NULL DEFAULT 0, -- applied, by a delivery, the worker or a reconciliation
    duplicates BIGINT           NOT NULL DEFAULT 0,
    parked     BIGINT           NOT NULL DEFAULT 0, -- stored for later
    discarded  BIGINT           NOT NULL DEFAULT 0, -- terminal verdicts: the handler's, or the inbox's own
    failed     BIGINT           NOT NULL DEFAULT 0,
    refused    BIGINT           NOT NULL DEFAULT 0, -- deliveries that were not verified; in the row without a type
    last_5xx   BIGINT           NOT NULL DEFAULT 0, -- 0: none
    -- Runs of the handler by how long they took: at most 1 ms, and each next one 1.41 times as long; the last one the rest.
    b00        BIGINT           NOT NULL DEFAULT 0,
    b01        BIGINT           NOT NULL DEFAULT 0,
    b02        BIGINT           NOT NULL DEFAULT 0,
    b03        BIGINT           NOT NULL DEFAULT 0,
    b04        BIGINT           NOT NULL DEFAULT 0,
    b05        BIGINT           NOT NULL DEFAULT 0,
    b06        BIGINT           NOT NULL DEFAULT 0,
    b07        BIGINT           NOT NULL DEFAULT 0,
    b08        BIGINT           NOT NULL DEFAULT 0,
    b09        BIGINT           NOT NULL DEFAULT 0,
    b10        BIGINT           NOT NULL DEFAULT 0,
    b11        BIGINT           NOT NULL DEFAULT 0,
    b12        BIGINT           NOT NULL DEFAULT 0,
    b13        BIGINT           NOT NULL DEFAULT 0,
    b14        BIGINT           NOT NULL DEFAULT 0,
    b15        BIGINT           NOT NULL DEFAULT 0,
    b16        BIGINT           NOT NULL DEFAULT 0,
    b17        BIGINT           NOT NULL DEFAULT 0,
    b18        BIGINT           NOT NULL DEFAULT 0,
    b19        BIGINT           NOT NULL DEFAULT 0,
    b20        BIGINT           NOT NULL DEFAULT 0,
    b21        BIGINT           NOT NULL DEFAULT 0,
    b22        BIGINT           NOT NULL DEFAULT 0,
    b23        BIGINT           NOT NULL DEFAULT 0,
    b24        BIGINT           NOT NULL DEFAULT 0,
    b25        BIGINT           NOT NULL DEFAULT 0,
    b26        BIGINT           NOT NULL DEFAULT 0,
    b27        BIGINT           NOT NULL DEFAULT 0,
    b28        BIGINT           NOT NULL DEFAULT 0,
    b29        BIGINT           NOT NULL DEFAULT 0,
    b30        BIGINT           NOT NULL DEFAULT 0,
    b31        BIGINT           NOT NULL DEFAULT 0,
    PRIMARY KEY (source, event_type, slot)
);

-- Hours that are over are found by this.
CREATE INDEX tower_inbox_stats_slot ON tower_inbox_stats (slot, source);

-- The last batch of counts that a process has added: one whose commit nobody saw is not added twice.
CREATE TABLE tower_inbox_flush (
    owner      TEXT COLLATE "C" NOT NULL PRIMARY KEY, -- unique per start of a process
    batch      BIGINT           NOT NULL,
    flushed_at BIGINT           NOT NULL
);

-- When a delivery was last verified by a secret, by the secret's label.
CREATE TABLE tower_inbox_secret_use (
    source        TEXT COLLATE "C" NOT NULL,
    label         TEXT COLLATE "C" NOT NULL,
    last_verified BIGINT           NOT NULL,
    PRIMARY KEY (source, label)
);

-- How many rows of events a source has, as it was counted last. The row without a source is the lease of whoever counts.
CREATE TABLE tower_inbox_row_count (
    source      TEXT COLLATE "C" NOT NULL PRIMARY KEY,
    counted     BIGINT           NOT NULL DEFAULT 0,
    counted_at  BIGINT           NOT NULL DEFAULT 0,
    owner       TEXT COLLATE "C" NOT NULL DEFAULT '',
    lease_until BIGINT           NOT NULL DEFAULT 0
);

-- An event's entries, and a source's: the table is kept for more than a year.
CREATE INDEX tower_inbox_audit_event ON tower_inbox_audit (source, event_id, id);
CREATE INDEX tower_inbox_audit_source ON tower_inbox_audit (source, id);
