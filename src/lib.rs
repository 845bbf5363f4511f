//! A tower layer in front of webhook handlers: every event applied exactly once, and in order.
pub mod clock;
pub mod envelope;
pub mod preset;
pub mod verify;
