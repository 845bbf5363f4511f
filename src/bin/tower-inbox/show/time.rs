//! Times and durations, as people and scripts write them.

use std::time::Duration;

use tower_inbox::clock::Timestamp;
use tower_inbox::verify::Unit;

/// In UTC with microseconds, as JSON has it.
pub(crate) fn rfc3339(at: Timestamp) -> String {
    at.to_string()
}

/// In UTC with seconds, for people.
pub(crate) fn moment(at: Timestamp) -> String {
    let text = at.to_string();
    let whole = text.split('.').next().unwrap_or_default();
    format!("{}Z", whole.replace('T', " "))
}

/// How long ago, in one unit.
pub(crate) fn ago(at: Timestamp, now: Timestamp) -> String {
    duration(now.since(at))
}

/// In the largest unit of which there are two or more.
pub(crate) fn duration(time: Duration) -> String {
    let seconds = time.as_secs();
    match seconds {
        0..120 => format!("{seconds} s"),
        120..7_200 => format!("{} min", seconds / 60),
        7_200..172_800 => format!("{} h", seconds / 3_600),
        _ => format!("{} d", seconds / 86_400),
    }
}

/// A handler's time, say: seconds as a float.
pub(crate) fn took(seconds: f64) -> String {
    if seconds < 1.0 {
        format!("{:.0} ms", seconds * 1_000.0)
    } else if seconds < 120.0 {
        format!("{seconds:.1} s")
    } else {
        duration(Duration::from_secs_f64(seconds.min(1e12)))
    }
}

/// `90s`, `5m`, `12h`, `30d`.
pub(crate) fn parse_duration(text: &str) -> Result<Duration, String> {
    let wrong = || format!("{text:?} is no duration, such as 90s, 5m, 12h or 30d");
    let unit = text.chars().next_back().ok_or_else(wrong)?;
    let each = match unit {
        's' => 1,
        'm' => 60,
        'h' => 3_600,
        'd' => 86_400,
        _ => return Err(wrong()),
    };
    let number: u64 = text[..text.len() - 1].parse().map_err(|_| wrong())?;
    number
        .checked_mul(each)
        .map(Duration::from_secs)
        .ok_or_else(wrong)
}

/// RFC 3339, or how long ago.
pub(crate) fn instant(text: &str) -> Result<Timestamp, String> {
    if let Some(at) = Unit::Rfc3339.parse(text) {
        return Ok(at);
    }
    let ago = parse_duration(text)
        .map_err(|_| format!("{text:?} is no time: RFC 3339, or how long ago, such as 2h"))?;
    Ok(Timestamp::now().minus(ago))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times() {
        let at = Timestamp::from_secs(1_700_000_000);
        assert_eq!(moment(at), "2023-11-14 22:13:20Z");
        assert_eq!(Unit::Rfc3339.parse(&rfc3339(at)), Some(at));
        assert_eq!(instant("2023-11-14T22:13:20Z"), Ok(at));
        assert!(instant("1h").is_ok_and(|at| at < Timestamp::now()));
        assert!(instant("yesterday").is_err());
    }

    #[test]
    fn durations() {
        assert_eq!(parse_duration("90s"), Ok(Duration::from_secs(90)));
        assert_eq!(parse_duration("30d"), Ok(Duration::from_secs(30 * 86_400)));
        for wrong in ["", "d", "3", "-1s", "1.5h", "99999999999999999999d", "5é"] {
            assert!(parse_duration(wrong).is_err(), "{wrong}");
        }
        assert_eq!(duration(Duration::from_secs(119)), "119 s");
        assert_eq!(duration(Duration::from_secs(7_199)), "119 min");
        assert_eq!(duration(Duration::from_secs(172_800)), "2 d");
        assert_eq!(took(0.0123), "12 ms");
    }
}
