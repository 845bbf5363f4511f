//! Spans and lines of the log, as a subscriber sees them: one span for each delivery and each attempt of a worker, with
//! everything that is logged inside; the producer's trace taken over; and never a body or a secret.
//!
//! Each test has a subscriber of its own, on a runtime that has but one thread.

mod capture;
#[cfg(feature = "opentelemetry")]
mod otel;
mod secrets;
mod spans;
mod traces;
mod world;
