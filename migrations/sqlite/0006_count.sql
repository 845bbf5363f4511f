-- tower-inbox, SQLite, version 6: what is stored can be counted by stream without reading it.
-- Earlier versions of the crate go on working beside it.

-- The gaps are counted every few seconds, and requests are big: by an index that has all that is asked for, 300,000 stored events in
-- 100,000 streams take half the time.
DROP INDEX tower_inbox_pending_stream;
CREATE INDEX tower_inbox_pending_stream
    ON tower_inbox_pending (source, correlation_id, generation, sequence, reason, out_of_order);
