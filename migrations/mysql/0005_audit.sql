-- Version 5: the audit table by stream and by actor. Earlier versions of the crate go on working beside it: what they write has
-- no correlation id, as lines that are older than this have none.
-- One statement, which is done or not: MySQL commits each by itself.
ALTER TABLE tower_inbox_audit
    ADD COLUMN correlation_id VARBINARY(255), -- of the event or the stream that it is about, if it has one
    ADD INDEX tower_inbox_audit_stream (source, correlation_id, id),
    ADD INDEX tower_inbox_audit_actor (actor, id);
