//! A statement's values as a text, for messages of several statements, which have no parameters.

use std::fmt::Write;

use super::{First, Place, next_of};
use crate::clock::Timestamp;

/// How a database writes what is no number.
#[derive(Clone, Copy)]
pub(super) struct Style {
    pub(super) text: fn(&mut String, &str),
    pub(super) bytes: fn(&mut String, &[u8]),
}

/// A statement whose parameters become literals, in order.
pub(super) struct Filled<'a> {
    style: Style,
    text: String,
    left: &'a str,
}

impl<'a> Filled<'a> {
    /// `statement`: each `?` in it is a parameter.
    pub(super) fn new(statement: &'a str, style: Style) -> Self {
        Self {
            style,
            text: String::with_capacity(statement.len() + 256),
            left: statement,
        }
    }

    /// # Panics
    /// If a parameter has no value.
    pub(super) fn finish(mut self) -> String {
        assert!(!self.left.contains('?'), "a parameter without a value");
        self.text.push_str(self.left);
        self.text
    }

    /// Where the next value goes.
    fn next(&mut self) -> &mut String {
        let (before, left) = self
            .left
            .split_once('?')
            .expect("a value without a parameter");
        self.text.push_str(before);
        self.left = left;
        &mut self.text
    }

    pub(super) fn number(&mut self, value: i64) {
        let _ = write!(self.next(), "{value}");
    }

    pub(super) fn number_or_null(&mut self, value: Option<i64>) {
        match value {
            Some(value) => self.number(value),
            None => self.next().push_str("NULL"),
        }
    }

    pub(super) fn text(&mut self, value: &str) {
        let text = self.style.text;
        text(self.next(), value);
    }

    pub(super) fn text_or_null(&mut self, value: Option<&str>) {
        match value {
            Some(value) => self.text(value),
            None => self.next().push_str("NULL"),
        }
    }

    pub(super) fn bytes(&mut self, value: &[u8]) {
        let bytes = self.style.bytes;
        bytes(self.next(), value);
    }

    /// A new event's columns, in the order of the statements that insert one.
    pub(super) fn event(&mut self, first: &First<'_>) {
        let event = &first.event;
        self.text(event.key.source);
        self.text(event.key.event_id);
        self.number(first.state as i64);
        self.bytes(event.fingerprint);
        self.text_or_null(event.event_type);
        self.text_or_null(event.correlation_id);
        self.number(event.generation);
        self.number_or_null(event.sequence);
        self.number_or_null(event.sequence);
        self.number_or_null(event.version);
        self.number(event.at.as_micros());
        self.number(event.at.as_micros());
    }

    /// The step of a cursor, as the statement that moves one has it.
    pub(super) fn turn(&mut self, place: &Place<'_>, at: Timestamp) {
        self.number(next_of(place));
        self.number(at.as_micros());
        self.text(place.stream.source);
        self.text(place.stream.correlation_id);
        self.number(place.generation);
        self.number(place.sequence);
        self.number(place.sequence + 1);
    }
}

/// Two digits a byte, in lower case.
pub(super) fn push_hex(to: &mut String, bytes: &[u8]) {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    for byte in bytes {
        to.push(char::from(DIGITS[usize::from(byte >> 4)]));
        to.push(char::from(DIGITS[usize::from(byte & 15)]));
    }
}
