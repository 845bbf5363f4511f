-- tower-inbox, MySQL 8 and MariaDB, version 2: leases, skipped ranges, generations, versions, guards.
-- Version 1 of the crate goes on working beside it: every new column has a default.

ALTER TABLE tower_inbox_event
    ADD COLUMN version BIGINT;                        -- newer-than order: an integer, or an instant in µs

ALTER TABLE tower_inbox_cursor
    ADD COLUMN version    BIGINT,                     -- newer-than order: the one that was applied last
    ADD COLUMN settles_at BIGINT,                     -- a stream that adopts its first sequence begins then; next_sequence is -1 so far
    ADD COLUMN next_range BIGINT;                     -- where the lowest skipped range ahead begins, if there is one

-- Streams that have not begun: few at any time.
CREATE INDEX tower_inbox_cursor_settles ON tower_inbox_cursor (settles_at);

-- state of an event, besides: 5 superseded, 6 discarded. reason of a dead letter, besides: 4 crash, 5 skipped, 6 before_start
ALTER TABLE tower_inbox_pending
    ADD COLUMN lease_token  BIGINT        NOT NULL DEFAULT 0, -- 0: nobody's; else the fencing token of one attempt
    ADD COLUMN lease_owner  VARBINARY(64),                    -- a worker, unique per start of a process
    ADD COLUMN lease_until  BIGINT        NOT NULL DEFAULT 0,
    ADD COLUMN unfinished   INT           NOT NULL DEFAULT 0, -- attempts in a row that ended without a word: crashes
    ADD COLUMN tried_at     BIGINT,                           -- when the last attempt began
    ADD COLUMN out_of_order SMALLINT      NOT NULL DEFAULT 0; -- 1: an operator wants it applied whatever the cursor says

-- Sequences of a stream that are never waited for. Kept as long as the cursor.
CREATE TABLE tower_inbox_range (
    source         VARBINARY(64)  NOT NULL,
    correlation_id VARBINARY(255) NOT NULL,
    generation     INT            NOT NULL,
    first_sequence BIGINT         NOT NULL,
    last_sequence  BIGINT         NOT NULL,           -- inclusive
    kind           SMALLINT       NOT NULL,           -- 1 skipped, 2 fast_forward, 3 before_start
    at             BIGINT         NOT NULL,
    PRIMARY KEY (source, correlation_id, generation, first_sequence)
) ENGINE = InnoDB;

-- Workers that hold leases. One whose beat stands still is dead, whatever the clocks say.
CREATE TABLE tower_inbox_worker (
    owner   VARBINARY(64) NOT NULL PRIMARY KEY,
    beat    BIGINT        NOT NULL,
    beat_at BIGINT        NOT NULL                    -- by the worker's own clock, for people
) ENGINE = InnoDB;

-- Versions of the handlers' own entities, for conditional writes (`Tx::guard`).
CREATE TABLE tower_inbox_guard (
    entity     VARBINARY(255) NOT NULL PRIMARY KEY,
    version    BIGINT         NOT NULL,
    updated_at BIGINT         NOT NULL
) ENGINE = InnoDB;
