//! The short table at the end.

use std::fmt;

/// Rows of a name, a value and what it means.
#[derive(Default)]
pub(crate) struct Table(Vec<(&'static str, String, String)>);

impl Table {
    pub(crate) fn row(
        &mut self,
        name: &'static str,
        value: impl fmt::Display,
        meaning: impl Into<String>,
    ) {
        self.0.push((name, value.to_string(), meaning.into()));
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (name, value, meaning) in &self.0 {
            writeln!(f, "  {name:<18} {value:>8}   {meaning}")?;
        }
        Ok(())
    }
}

/// `1234567` as `1,234,567`.
pub(crate) fn count(number: impl TryInto<u64>) -> String {
    let digits = number.try_into().unwrap_or(u64::MAX).to_string();
    let mut text = String::new();
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}
