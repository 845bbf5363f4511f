-- tower-inbox, MySQL 8 and MariaDB, version 1.
-- Times are microseconds since the Unix epoch, UTC. Identifiers compare byte for byte: VARBINARY, since the default
-- collation folds case and utf8mb4_bin ignores trailing spaces.

-- One narrow row an event. It is what makes an event happen once: inserted as applied, inside the handler's
-- transaction, before the handler runs.
CREATE TABLE tower_inbox_event (
    source         VARBINARY(64)  NOT NULL,
    event_id       VARBINARY(255) NOT NULL,
    state          SMALLINT       NOT NULL,                  -- 1 applied, 2 parked, 3 dead, 4 fenced
    fingerprint    BINARY(16)     NOT NULL,                  -- of the content, 16 bytes; what it covers is the source's policy
    event_type     VARBINARY(255),
    correlation_id VARBINARY(255),
    generation     INT            NOT NULL DEFAULT 0,        -- of the stream
    sequence       BIGINT,                                   -- as the producer sent it
    slot           BIGINT,                                   -- the sequence while this event holds that place, else NULL
    yielded_to     VARBINARY(255),                           -- the event id that took the place over
    received_at    BIGINT         NOT NULL,
    decided_at     BIGINT         NOT NULL,                  -- when `state` last changed
    PRIMARY KEY (source, event_id)
) ENGINE = InnoDB;

-- A place in a stream is held by one event.
CREATE UNIQUE INDEX tower_inbox_event_slot
    ON tower_inbox_event (source, correlation_id, generation, slot);

-- Retention finds its rows by this.
CREATE INDEX tower_inbox_event_decided ON tower_inbox_event (source, state, decided_at);

-- Per stream: the next sequence that may be applied. Never removed.
CREATE TABLE tower_inbox_cursor (
    source         VARBINARY(64)  NOT NULL,
    correlation_id VARBINARY(255) NOT NULL,
    generation     INT            NOT NULL DEFAULT 0,
    next_sequence  BIGINT         NOT NULL,
    updated_at     BIGINT         NOT NULL,
    PRIMARY KEY (source, correlation_id)
) ENGINE = InnoDB;

-- Parked events and dead letters, each with its whole request. *Due* is computed, never stored:
-- parked (or dead for a gap) and sequence = next_sequence.
CREATE TABLE tower_inbox_pending (
    source         VARBINARY(64)              NOT NULL,
    event_id       VARBINARY(255)             NOT NULL,
    correlation_id VARBINARY(255),
    generation     INT                        NOT NULL DEFAULT 0,
    sequence       BIGINT,
    reason         SMALLINT,                                             -- NULL: parked. Dead: 1 gap, 2 handler, 3 rejected. 7 fenced
    attempts       INT                        NOT NULL DEFAULT 0,
    not_before     BIGINT                     NOT NULL,                  -- the next attempt of the worker, not earlier
    parked_at      BIGINT                     NOT NULL,
    last_status    SMALLINT,
    last_error     TEXT CHARACTER SET utf8mb4,
    bytes          BIGINT                     NOT NULL,                  -- size of headers and body
    method         VARBINARY(255)             NOT NULL,
    uri            BLOB                       NOT NULL,
    headers        MEDIUMBLOB                 NOT NULL,                  -- `name: value` lines, CRLF; credentials and signatures removed
    body           LONGBLOB                   NOT NULL,                  -- raw, as received
    PRIMARY KEY (source, event_id)
) ENGINE = InnoDB;

CREATE INDEX tower_inbox_pending_stream
    ON tower_inbox_pending (source, correlation_id, generation, sequence);

-- Sources whose event id is not signed: what was signed, so that a captured delivery under a new id is caught.
CREATE TABLE tower_inbox_fence (
    source     VARBINARY(64)  NOT NULL,
    digest     BINARY(32)     NOT NULL, -- SHA-256 of the signed message, or of event type and body
    event_id   VARBINARY(255) NOT NULL, -- under which it came first
    expires_at BIGINT         NOT NULL,
    PRIMARY KEY (source, digest)
) ENGINE = InnoDB;

CREATE INDEX tower_inbox_fence_expires ON tower_inbox_fence (source, expires_at);

-- What the inbox refused, and what operators did.
CREATE TABLE tower_inbox_audit (
    id       BIGINT                     AUTO_INCREMENT PRIMARY KEY,
    at       BIGINT                     NOT NULL,
    source   VARBINARY(64)              NOT NULL,
    event_id VARBINARY(255),
    action   VARBINARY(64)              NOT NULL,
    actor    VARBINARY(255)             NOT NULL,
    detail   TEXT CHARACTER SET utf8mb4 NOT NULL
) ENGINE = InnoDB;
