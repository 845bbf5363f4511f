//! The test kit: tests of one's own handlers.

pub mod schedule;
