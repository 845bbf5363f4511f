-- Version 5: the audit table by stream and by actor. Earlier versions of the crate go on working beside it: what they write has
-- no correlation id, as lines that are older than this have none.
ALTER TABLE tower_inbox_audit ADD COLUMN correlation_id TEXT COLLATE "C"; -- of the event or the stream that it is about, if it has one

CREATE INDEX tower_inbox_audit_stream ON tower_inbox_audit (source, correlation_id, id);
CREATE INDEX tower_inbox_audit_actor ON tower_inbox_audit (actor, id);
