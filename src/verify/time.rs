//! Signed times: their units, their parsing, and the two limits.

use std::time::Duration;

use super::refusal::{Refusal, RefusalKind};
use crate::broken::{self, Variant};
use crate::clock::Timestamp;

/// In which unit a scheme writes its timestamp. Never guessed (§6.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Unit {
    /// Seconds since the Unix epoch, decimal digits.
    Seconds,
    /// Milliseconds since the Unix epoch, decimal digits.
    Millis,
    /// RFC 3339, such as `2026-05-30T08:42:11Z`.
    Rfc3339,
}

impl Unit {
    /// Reads a time that is written in this unit; `None` for anything else.
    pub fn parse(self, text: &str) -> Option<Timestamp> {
        SignedTime::parse(self, text).ok().map(|time| time.at)
    }
}

/// How far a signed time may be from now. The boundary itself is accepted (§6.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Tolerance {
    /// How old a delivery may be: the time in which a captured one could be sent again. Default 5 minutes.
    pub max_age: Duration,
    /// How far ahead the producer's clock may be. Default 5 minutes.
    pub max_skew: Duration,
}

impl Tolerance {
    /// Both limits, each for itself: zero means zero, not off.
    pub const fn new(max_age: Duration, max_skew: Duration) -> Self {
        Self { max_age, max_skew }
    }

    /// No limit: any signed time passes, so that a captured delivery can be sent again at any time.
    pub const fn insecure_unlimited() -> Self {
        Self::new(Duration::MAX, Duration::MAX)
    }

    /// Both limits together: for how long one signed time can be accepted.
    pub const fn span(self) -> Duration {
        self.max_age.saturating_add(self.max_skew)
    }
}

impl Default for Tolerance {
    fn default() -> Self {
        // Five minutes, as Standard Webhooks, Stripe and Slack have it.
        Self::new(Duration::from_secs(300), Duration::from_secs(300))
    }
}

/// A signed time, with the unit to which now is truncated before the two are compared.
#[derive(Clone, Copy, Debug)]
pub(super) struct SignedTime {
    pub(super) at: Timestamp,
    unit: i64,
}

impl SignedTime {
    /// Reads the timestamp as received.
    pub(super) fn parse(unit: Unit, text: &str) -> Result<Self, Refusal> {
        let time = match unit {
            Unit::Seconds => digits(text, 1_000_000),
            Unit::Millis => digits(text, 1_000),
            Unit::Rfc3339 => rfc3339(text).map(|(at, whole)| Self {
                at,
                unit: if whole { 1_000_000 } else { 1 },
            }),
        };
        time.ok_or_else(|| {
            let form = match unit {
                Unit::Seconds => "seconds since the epoch as decimal digits",
                Unit::Millis => "milliseconds since the epoch as decimal digits",
                Unit::Rfc3339 => "an RFC 3339 date and time",
            };
            Refusal::new(
                RefusalKind::MalformedTimestamp,
                format!("timestamp {:?} is not {form}", clip(text)),
            )
        })
    }

    /// Compares with now, truncated to the unit.
    pub(super) fn check(self, now: Timestamp, tolerance: &Tolerance) -> Result<(), Refusal> {
        let now = Timestamp::from_micros(
            now.as_micros()
                .div_euclid(self.unit)
                .saturating_mul(self.unit),
        );
        if now > self.at.plus(tolerance.max_age) && !broken::is(Variant::OldPasses) {
            let detail = format!(
                "signed at {:?}, {} s ago by our clock; at most {} s are allowed",
                self.at,
                now.since(self.at).as_secs(),
                tolerance.max_age.as_secs()
            );
            return Err(Refusal::new(RefusalKind::TooOld, detail));
        }
        let skew = if broken::is(Variant::FutureAsPast) {
            tolerance.max_age
        } else {
            tolerance.max_skew
        };
        if self.at > now.plus(skew) {
            let detail = format!(
                "signed at {:?}, {} s ahead of our clock; at most {} s are allowed",
                self.at,
                self.at.since(now).as_secs(),
                tolerance.max_skew.as_secs()
            );
            return Err(Refusal::new(RefusalKind::TooFarAhead, detail));
        }
        Ok(())
    }
}

/// Writes a time in a scheme's unit.
pub(crate) fn format(unit: Unit, at: Timestamp) -> String {
    match unit {
        Unit::Seconds => at.as_secs().to_string(),
        Unit::Millis => at.as_micros().div_euclid(1_000).to_string(),
        Unit::Rfc3339 => {
            let (days, second) = (
                at.as_secs().div_euclid(86_400),
                at.as_secs().rem_euclid(86_400),
            );
            let (year, month, day) = date(days);
            let (hour, minute, second) = (second / 3_600, second / 60 % 60, second % 60);
            format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z")
        }
    }
}

/// For an error text: enough to see what is wrong, never a whole header.
pub(super) fn clip(text: &str) -> &str {
    let end = (0..=text.len().min(40))
        .rev()
        .find(|&end| text.is_char_boundary(end));
    &text[..end.unwrap_or(0)]
}

fn digits(text: &str, unit: i64) -> Option<SignedTime> {
    // Neither sign nor fraction nor exponent, and nothing that `parse` alone would let through ("+5").
    if text.is_empty() || !text.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let at = Timestamp::from_micros(text.parse::<i64>().ok()?.checked_mul(unit)?);
    Some(SignedTime { at, unit })
}

/// Parses RFC 3339; also says whether the time was given in whole seconds.
pub(crate) fn rfc3339(text: &str) -> Option<(Timestamp, bool)> {
    let bytes = text.as_bytes();
    let number = |from: usize, to: usize| -> Option<i64> {
        let part = bytes.get(from..to)?;
        part.iter().all(u8::is_ascii_digit).then(|| {
            part.iter()
                .fold(0, |n, byte| n * 10 + i64::from(byte - b'0'))
        })
    };
    let is = |at: usize, wanted: &[u8]| bytes.get(at).is_some_and(|byte| wanted.contains(byte));
    let (year, month, day) = (number(0, 4)?, number(5, 7)?, number(8, 10)?);
    let (hour, minute, second) = (number(11, 13)?, number(14, 16)?, number(17, 19)?);
    let separated = is(4, b"-") && is(7, b"-") && is(10, b"Tt ") && is(13, b":") && is(16, b":");
    // 60: a leap second, read as the first of the next minute.
    if !separated
        || hour > 23
        || minute > 59
        || second > 60
        || !(1..=days_in(year, month)?).contains(&day)
    {
        return None;
    }
    let mut at = 19;
    let mut micros = 0;
    if is(at, b".") {
        let end = (at + 1..bytes.len()).find(|&end| !bytes[end].is_ascii_digit())?;
        if end == at + 1 {
            return None;
        }
        // Finer than microseconds: cut off.
        for index in 0..6 {
            let digit = bytes.get(at + 1 + index).filter(|_| at + 1 + index < end);
            micros = micros * 10 + digit.map_or(0, |byte| i64::from(byte - b'0'));
        }
        at = end;
    }
    let whole = at == 19;
    let offset = match bytes.get(at)? {
        b'Z' | b'z' if bytes.len() == at + 1 => 0,
        sign @ (b'+' | b'-') if bytes.len() == at + 6 && is(at + 3, b":") => {
            let (hours, minutes) = (number(at + 1, at + 3)?, number(at + 4, at + 6)?);
            if hours > 23 || minutes > 59 {
                return None;
            }
            let seconds = hours * 3_600 + minutes * 60;
            if *sign == b'+' { seconds } else { -seconds }
        }
        _ => return None,
    };
    let seconds = days(year, month, day) * 86_400 + hour * 3_600 + minute * 60 + second - offset;
    Some((Timestamp::from_micros(seconds * 1_000_000 + micros), whole))
}

fn days_in(year: i64, month: i64) -> Option<i64> {
    let leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
    match month {
        1 | 3 | 5 | 7 | 8 | 10 | 12 => Some(31),
        4 | 6 | 9 | 11 => Some(30),
        2 => Some(if leap { 29 } else { 28 }),
        _ => None,
    }
}

/// Days from the Unix epoch to a date of the proleptic Gregorian calendar. Years begin in March, so that the leap day
/// is the last one of its year, and are counted in cycles of 400.
fn days(year: i64, month: i64, day: i64) -> i64 {
    let year = if month > 2 { year } else { year - 1 };
    let (cycle, year) = (year.div_euclid(400), year.rem_euclid(400));
    let since_march = (month + 9) % 12;
    let day_of_year = (153 * since_march + 2) / 5 + day - 1;
    cycle * 146_097 + year * 365 + year / 4 - year / 100 + day_of_year - 719_468
}

/// The inverse of [`days`].
fn date(days: i64) -> (i64, i64, i64) {
    let days = days + 719_468;
    let (cycle, day) = (days.div_euclid(146_097), days.rem_euclid(146_097));
    let year = (day - day / 1_460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (year * 365 + year / 4 - year / 100);
    let since_march = (5 * day + 2) / 153;
    let month = if since_march < 10 {
        since_march + 3
    } else {
        since_march - 9
    };
    let year = cycle * 400 + year + i64::from(month <= 2);
    (year, month, day - (153 * since_march + 2) / 5 + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// §6.3: the two limits are apart, the boundary is accepted, and now is truncated to the unit.
    #[test]
    fn limits() {
        let tolerance = Tolerance::new(Duration::from_secs(10), Duration::from_secs(3));
        let check = |now_micros: i64| {
            let time = SignedTime::parse(Unit::Seconds, "1000").unwrap();
            time.check(Timestamp::from_micros(now_micros), &tolerance)
                .map_err(|refusal| refusal.kind())
        };
        assert_eq!(check(1_010_999_999), Ok(()));
        assert_eq!(check(1_011_000_000), Err(RefusalKind::TooOld));
        assert_eq!(check(997_000_000), Ok(()));
        assert_eq!(check(996_999_999), Err(RefusalKind::TooFarAhead));
    }

    /// §6.3. A limit of zero is a limit.
    #[test]
    fn zero_is_not_off() {
        let time = SignedTime::parse(Unit::Millis, "1000").unwrap();
        let zero = Tolerance::new(Duration::ZERO, Duration::ZERO);
        assert!(time.check(Timestamp::from_micros(1_000_999), &zero).is_ok());
        assert!(
            time.check(Timestamp::from_micros(1_001_000), &zero)
                .is_err()
        );
        assert!(
            time.check(
                Timestamp::from_micros(i64::MAX),
                &Tolerance::insecure_unlimited()
            )
            .is_ok()
        );
        assert!(
            time.check(Timestamp::from_micros(0), &Tolerance::insecure_unlimited())
                .is_ok()
        );
    }

    /// §6.3
    #[test]
    fn only_digits() {
        for text in [
            "",
            "-1",
            "+1",
            "1.0",
            "1e3",
            " 1",
            "1 ",
            "0x1",
            "NaN",
            "99999999999999999999",
            "9223372036854775807",
            "١",
        ] {
            assert!(SignedTime::parse(Unit::Seconds, text).is_err(), "{text}");
        }
    }

    /// §6.3
    #[test]
    fn dates() {
        let micros = |text| rfc3339(text).map(|(at, _)| at.as_micros());
        assert_eq!(micros("1970-01-01T00:00:00Z"), Some(0));
        assert_eq!(micros("2023-11-14T22:13:20Z"), Some(1_700_000_000_000_000));
        assert_eq!(
            micros("2023-11-14T15:13:20.1234567-07:00"),
            Some(1_700_000_000_123_456)
        );
        assert_eq!(
            micros("2024-02-29T00:00:00.5z"),
            Some(1_709_164_800_500_000)
        );
        for wrong in [
            "",
            "2023",
            "2023-11-14",
            "2023-11-14T22:13:20",
            "2023-11-14T22:13:20.Z",
            "2023-02-29T00:00:00Z",
            "2023-13-01T00:00:00Z",
            "2023-00-01T00:00:00Z",
            "2023-01-00T00:00:00Z",
            "2023-01-01T24:00:00Z",
            "2023-01-01T00:00:00ZZ",
            "2023-01-01T00:00:00+1:00",
            "2023-01-01T00:00:00+24:00",
            "2023-1-01T00:00:00Z",
            "2023-01-01T00:00:00.1",
            "é023-01-01T00:00:00Z",
        ] {
            assert_eq!(micros(wrong), None, "{wrong}");
        }
    }

    /// §6.3
    #[test]
    fn dates_there_and_back() {
        for seconds in (0..4_102_444_800_i64).step_by(86_400 * 13 + 4_321) {
            let text = format(Unit::Rfc3339, Timestamp::from_secs(seconds));
            assert_eq!(
                rfc3339(&text),
                Some((Timestamp::from_secs(seconds), true)),
                "{text}"
            );
        }
    }
}
