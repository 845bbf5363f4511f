-- tower-inbox, PostgreSQL, version 3: stored answers, deregistered sources.

-- Apart from the events' rows, which stay narrow. Of sources that answer duplicates with the first answer; removed with
-- the event's row, or after it.
CREATE TABLE tower_inbox_answer (
    source   TEXT COLLATE "C" NOT NULL,
    event_id TEXT COLLATE "C" NOT NULL,
    at       BIGINT NOT NULL,
    status   SMALLINT NOT NULL,
    headers  BYTEA NOT NULL, -- `name: value` lines, CRLF
    body     BYTEA,          -- NULL: too large to be kept, or erased
    PRIMARY KEY (source, event_id)
);

-- Retention finds its rows by this.
CREATE INDEX tower_inbox_answer_at ON tower_inbox_answer (source, at);

-- Sources that their owner has deregistered at some time.
CREATE TABLE tower_inbox_source (
    source     TEXT COLLATE "C" NOT NULL PRIMARY KEY,
    gone       SMALLINT         NOT NULL, -- 1: verified deliveries get 410
    changed_at BIGINT           NOT NULL
);
