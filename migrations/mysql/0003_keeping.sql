-- tower-inbox, MySQL 8 and MariaDB, version 3: stored answers, deregistered sources, replay bursts, reconciliation.

-- Apart from the events' rows, which stay narrow. Of sources that answer duplicates with the first answer; removed with
-- the event's row, or after it.
CREATE TABLE tower_inbox_answer (
    source   VARBINARY(64)  NOT NULL,
    event_id VARBINARY(255) NOT NULL,
    at       BIGINT         NOT NULL,
    status   SMALLINT       NOT NULL,
    headers  MEDIUMBLOB     NOT NULL, -- `name: value` lines, CRLF
    body     LONGBLOB,              -- NULL: too large to be kept, or erased
    PRIMARY KEY (source, event_id)
) ENGINE = InnoDB;

-- Retention finds its rows by this.
CREATE INDEX tower_inbox_answer_at ON tower_inbox_answer (source, at);

-- Sources that their owner has deregistered at some time.
CREATE TABLE tower_inbox_source (
    source     VARBINARY(64) NOT NULL PRIMARY KEY,
    gone       SMALLINT      NOT NULL, -- 1: verified deliveries get 410
    changed_at BIGINT        NOT NULL
) ENGINE = InnoDB;

-- What a producer sends again on demand, between two control events (§7.4).
CREATE TABLE tower_inbox_burst (
    source       VARBINARY(64)  NOT NULL,
    burst_id     VARBINARY(255) NOT NULL,              -- the event id of its start; of its end, as long as the start has not come
    event_type   VARBINARY(255),                       -- the only one that it sends again, if the producer said so
    since_at     BIGINT,                               -- from the times of events, as the producer said
    until_at     BIGINT,
    started_at   BIGINT,                               -- NULL: the start has not come
    ended_at     BIGINT,                               -- NULL: running
    completed_by VARBINARY(255),                       -- the event id of its end; NULL with ended_at: the end never came
    announced    BIGINT,                               -- events, by the producer's own count at the end
    applied      BIGINT         NOT NULL DEFAULT 0,    -- deliveries that arrived meanwhile, by outcome
    duplicates   BIGINT         NOT NULL DEFAULT 0,
    parked       BIGINT         NOT NULL DEFAULT 0,
    others       BIGINT         NOT NULL DEFAULT 0,    -- rejected and failed
    reported     SMALLINT       NOT NULL DEFAULT 0,    -- 1: somebody has told about its end
    PRIMARY KEY (source, burst_id)
) ENGINE = InnoDB;

-- One end ends one burst.
CREATE UNIQUE INDEX tower_inbox_burst_end ON tower_inbox_burst (source, completed_by);
CREATE INDEX tower_inbox_burst_open ON tower_inbox_burst (reported, source);

-- When a process last worked with it, by which database it was then (§1). A copy that is put back still says when it
-- was taken. Several, where processes see several servers at the same time.
CREATE TABLE tower_inbox_alive (
    incarnation VARBINARY(255) NOT NULL PRIMARY KEY,
    at          BIGINT         NOT NULL
) ENGINE = InnoDB;

-- The database was another one than before, or an older copy of itself: commits may be lost (§4.1a).
CREATE TABLE tower_inbox_incident (
    found_at    BIGINT         NOT NULL PRIMARY KEY,
    since       BIGINT         NOT NULL,               -- what was committed after it may be lost; 0: not known
    incarnation VARBINARY(255) NOT NULL                -- the new one
) ENGINE = InnoDB;

-- How far the lists of a producer have been dealt with (§7.5).
CREATE TABLE tower_inbox_reconcile (
    source      VARBINARY(64)   NOT NULL,
    kind        SMALLINT        NOT NULL,              -- 1 exhausted, 2 delivered
    through     BIGINT,                                -- the producer's time up to which everything listed was dealt with
    run_since   BIGINT,                                -- where the run that is under way began; its next page, highest time and lowest time that failed
    next_page   VARBINARY(1024),
    highest     BIGINT,
    held_back   BIGINT,
    settled     BIGINT          NOT NULL DEFAULT 0,    -- incidents found up to then are settled
    finished_at BIGINT,                                -- when a run last ended well
    owner       VARBINARY(255)  NOT NULL DEFAULT '',   -- the process that is at it
    lease_until BIGINT          NOT NULL DEFAULT 0,
    PRIMARY KEY (source, kind)
) ENGINE = InnoDB;
