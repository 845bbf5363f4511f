//! Times that people write and read, in UTC: a stored event is compared with logs, and logs are in UTC.

use std::time::Duration;

use crate::clock::Timestamp;
use crate::verify::time::rfc3339;

/// `2026-11-30 13:05:22`.
pub(super) fn utc(at: Timestamp) -> String {
    let text = at.to_string();
    let seconds = text.split('.').next().unwrap_or(&text);
    seconds.replacen('T', " ", 1)
}

/// `3 min`: how long something takes, or is ago.
pub(super) fn span(span: Duration) -> String {
    match span.as_secs() {
        seconds @ 0..60 => format!("{seconds} s"),
        seconds @ 60..3_600 => format!("{} min", seconds / 60),
        seconds @ 3_600..172_800 => format!("{} h", seconds / 3_600),
        seconds => format!("{} d", seconds / 86_400),
    }
}

/// How long it is until something happens: not "0 s", which is now.
pub(super) fn ahead(span: Duration) -> String {
    self::span(span.max(Duration::from_secs(1)))
}

/// What a browser's field for a date and a time holds, taken as UTC: `2026-11-30T13:05`, with or without seconds.
pub(super) fn parse(text: &str) -> Option<Timestamp> {
    let text = text.trim_end_matches('Z').replacen(' ', "T", 1);
    let seconds = match text.matches(':').count() {
        1 => ":00",
        _ => "",
    };
    rfc3339(&format!("{text}{seconds}Z")).map(|(at, _)| at)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_can_be_read() {
        for (seconds, text) in [
            (0, "1970-01-01 00:00:00"),
            (951_827_696, "2000-02-29 12:34:56"),
            (1_796_044_522, "2026-11-30 13:15:22"),
        ] {
            let at = Timestamp::from_secs(seconds);
            assert_eq!((utc(at).as_str(), parse(text)), (text, Some(at)));
        }
        assert_eq!(parse("1970-01-01T00:01"), Some(Timestamp::from_secs(60)));
        for wrong in [
            "",
            "1970-01-01",
            "1970-13-01T00:00",
            "1970-01-01T24:00",
            "1970-01-01T00:00:00:00",
            "x-1-1T0:0",
        ] {
            assert_eq!(parse(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn spans_are_in_the_unit_that_people_would_take() {
        for (seconds, text) in [
            (0, "0 s"),
            (59, "59 s"),
            (61, "1 min"),
            (7_300, "2 h"),
            (172_800, "2 d"),
        ] {
            assert_eq!(span(Duration::from_secs(seconds)), text);
        }
        assert_eq!(ahead(Duration::from_millis(400)), "1 s");
        assert_eq!(ahead(Duration::from_secs(61)), "1 min");
    }
}
