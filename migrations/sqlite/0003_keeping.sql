-- tower-inbox, SQLite, version 3: stored answers, deregistered sources, replay bursts, reconciliation.

-- Apart from the events' rows, which stay narrow. Of sources that answer duplicates with the first answer; removed with
-- the event's row, or after it.
CREATE TABLE tower_inbox_answer (
    source   TEXT NOT NULL,
    event_id TEXT NOT NULL,
    at       INTEGER NOT NULL,
    status   INTEGER NOT NULL,
    headers  BLOB NOT NULL, -- `name: value` lines, CRLF
    body     BLOB,          -- NULL: too large to be kept, or erased
    PRIMARY KEY (source, event_id)
) STRICT, WITHOUT ROWID;

-- Retention finds its rows by this.
CREATE INDEX tower_inbox_answer_at ON tower_inbox_answer (source, at);

-- Sources that their owner has deregistered at some time.
CREATE TABLE tower_inbox_source (
    source     TEXT    NOT NULL PRIMARY KEY,
    gone       INTEGER NOT NULL, -- 1: verified deliveries get 410
    changed_at INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

-- What a producer sends again on demand, between two control events (§7.4).
CREATE TABLE tower_inbox_burst (
    source       TEXT    NOT NULL,
    burst_id     TEXT    NOT NULL,                     -- the event id of its start; of its end, as long as the start has not come
    event_type   TEXT,                                 -- the only one that it sends again, if the producer said so
    since_at     INTEGER,                              -- from the times of events, as the producer said
    until_at     INTEGER,
    started_at   INTEGER,                              -- NULL: the start has not come
    ended_at     INTEGER,                              -- NULL: running
    completed_by TEXT,                                 -- the event id of its end; NULL with ended_at: the end never came
    announced    INTEGER,                              -- events, by the producer's own count at the end
    applied      INTEGER NOT NULL DEFAULT 0,           -- deliveries that arrived meanwhile, by outcome
    duplicates   INTEGER NOT NULL DEFAULT 0,
    parked       INTEGER NOT NULL DEFAULT 0,
    others       INTEGER NOT NULL DEFAULT 0,           -- rejected and failed
    reported     INTEGER NOT NULL DEFAULT 0,           -- 1: somebody has told about its end
    PRIMARY KEY (source, burst_id)
) STRICT, WITHOUT ROWID;

-- One end ends one burst.
CREATE UNIQUE INDEX tower_inbox_burst_end ON tower_inbox_burst (source, completed_by);
CREATE INDEX tower_inbox_burst_open ON tower_inbox_burst (reported, source);

-- When a process last worked with it, by which database it was then (§1). A copy that is put back still says when it
-- was taken. Several, where processes see several servers at the same time.
CREATE TABLE tower_inbox_alive (
    incarnation TEXT    NOT NULL PRIMARY KEY,
    at          INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

-- The database was another one than before, or an older copy of itself: commits may be lost (§4.1a).
CREATE TABLE tower_inbox_incident (
    found_at    INTEGER NOT NULL PRIMARY KEY,
    since       INTEGER NOT NULL,                      -- what was committed after it may be lost; 0: not known
    incarnation TEXT    NOT NULL                       -- the new one
) STRICT, WITHOUT ROWID;

-- How far the lists of a producer have been dealt with (§7.5).
CREATE TABLE tower_inbox_reconcile (
    source      TEXT    NOT NULL,
    kind        INTEGER NOT NULL,                      -- 1 exhausted, 2 delivered
    through     INTEGER,                               -- the producer's time up to which everything listed was dealt with
    run_since   INTEGER,                               -- where the run that is under way began; its next page, highest time and lowest time that failed
    next_page   TEXT,
    highest     INTEGER,
    held_back   INTEGER,
    settled     INTEGER NOT NULL DEFAULT 0,            -- incidents found up to then are settled
    finished_at INTEGER,                               -- when a run last ended well
    owner       TEXT    NOT NULL DEFAULT '',           -- the process that is at it
    lease_until INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (source, kind)
) STRICT, WITHOUT ROWID;
