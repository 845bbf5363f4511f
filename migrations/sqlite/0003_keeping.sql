-- tower-inbox, SQLite, version 3: stored answers, deregistered sources.

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
