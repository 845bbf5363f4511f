-- tower-inbox, SQLite, version 1.
-- Times are microseconds since the Unix epoch, UTC. Identifiers compare byte for byte (BINARY, SQLite's default).

-- One narrow row an event. It is what makes an event happen once: inserted as applied, inside the handler's
-- transaction, before the handler runs.
CREATE TABLE tower_inbox_event (
    source         TEXT    NOT NULL,
    event_id       TEXT    NOT NULL,
    state          INTEGER NOT NULL,                  -- 1 applied, 2 parked, 3 dead, 4 fenced
    fingerprint    BLOB    NOT NULL,                  -- of the content, 16 bytes; what it covers is the source's policy
    event_type     TEXT,
    correlation_id TEXT,
    generation     INTEGER NOT NULL DEFAULT 0,        -- of the stream
    sequence       INTEGER,                           -- as the producer sent it
    slot           INTEGER,                           -- the sequence while this event holds that place, else NULL
    yielded_to     TEXT,                              -- the event id that took the place over
    received_at    INTEGER NOT NULL,
    decided_at     INTEGER NOT NULL,                  -- when `state` last changed
    PRIMARY KEY (source, event_id)
) STRICT, WITHOUT ROWID;

-- A place in a stream is held by one event.
CREATE UNIQUE INDEX tower_inbox_event_slot
    ON tower_inbox_event (source, correlation_id, generation, slot) WHERE slot IS NOT NULL;

-- Retention finds its rows by this.
CREATE INDEX tower_inbox_event_decided ON tower_inbox_event (source, decided_at) WHERE state = 1;

-- Per stream: the next sequence that may be applied. Never removed.
CREATE TABLE tower_inbox_cursor (
    source         TEXT    NOT NULL,
    correlation_id TEXT    NOT NULL,
    generation     INTEGER NOT NULL DEFAULT 0,
    next_sequence  INTEGER NOT NULL,
    updated_at     INTEGER NOT NULL,
    PRIMARY KEY (source, correlation_id)
) STRICT, WITHOUT ROWID;

-- Parked events and dead letters, each with its whole request. *Due* is computed, never stored:
-- parked (or dead for a gap) and sequence = next_sequence.
CREATE TABLE tower_inbox_pending (
    source         TEXT    NOT NULL,
    event_id       TEXT    NOT NULL,
    correlation_id TEXT,
    generation     INTEGER NOT NULL DEFAULT 0,
    sequence       INTEGER,
    reason         INTEGER,                           -- NULL: parked. Dead: 1 gap, 2 handler, 3 rejected. 7 fenced
    attempts       INTEGER NOT NULL DEFAULT 0,
    not_before     INTEGER NOT NULL,                  -- the next attempt of the worker, not earlier
    parked_at      INTEGER NOT NULL,
    last_status    INTEGER,
    last_error     TEXT,
    bytes          INTEGER NOT NULL,                  -- size of headers and body
    method         TEXT    NOT NULL,
    uri            TEXT    NOT NULL,
    headers        BLOB    NOT NULL,                  -- `name: value` lines, CRLF; credentials and signatures removed
    body           BLOB    NOT NULL,                  -- raw, as received
    PRIMARY KEY (source, event_id)
) STRICT;

CREATE INDEX tower_inbox_pending_stream
    ON tower_inbox_pending (source, correlation_id, generation, sequence);

-- Sources whose event id is not signed: what was signed, so that a captured delivery under a new id is caught.
CREATE TABLE tower_inbox_fence (
    source     TEXT    NOT NULL,
    digest     BLOB    NOT NULL, -- SHA-256 of the signed message, or of event type and body
    event_id   TEXT    NOT NULL, -- under which it came first
    expires_at INTEGER NOT NULL,
    PRIMARY KEY (source, digest)
) STRICT, WITHOUT ROWID;

CREATE INDEX tower_inbox_fence_expires ON tower_inbox_fence (source, expires_at);

-- What the inbox refused, and what operators did.
CREATE TABLE tower_inbox_audit (
    id       INTEGER PRIMARY KEY,
    at       INTEGER NOT NULL,
    source   TEXT    NOT NULL,
    event_id TEXT,
    action   TEXT    NOT NULL,
    actor    TEXT    NOT NULL,
    detail   TEXT    NOT NULL
) STRICT;
