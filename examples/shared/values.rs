//! Parsers of single values. Each error says what would be right; who calls adds where the value came from.

use std::str::FromStr;
use std::time::Duration;

/// A whole number.
pub(crate) fn count<T: FromStr>(text: &str) -> Result<T, String> {
    match text.parse() {
        Ok(number) => Ok(number),
        Err(_) if !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit()) => {
            Err("too large".to_owned())
        }
        Err(_) => Err("not a whole number".to_owned()),
    }
}

/// A whole number of at least 1 and at most `most`.
pub(crate) fn up_to<T>(most: T) -> impl Fn(&str) -> Result<T, String>
where
    T: FromStr + PartialOrd + From<u8> + std::fmt::Display,
{
    move |text| match count::<T>(text)? {
        number if number < T::from(1) => Err("at least 1".to_owned()),
        number if number > most => Err(format!("at most {most}")),
        number => Ok(number),
    }
}

/// A share of 1: `0.3` or `30%`.
pub(crate) fn share(text: &str) -> Result<f64, String> {
    let (digits, whole) = match text.strip_suffix('%') {
        Some(digits) => (digits, 100.0),
        None => (text, 1.0),
    };
    match digits.parse::<f64>() {
        Ok(number) if (0.0..=whole).contains(&number) => Ok(number / whole),
        Ok(_) => Err("a share lies between 0 and 1 (or 0% and 100%)".to_owned()),
        Err(_) => Err("not a share such as 0.3 or 30%".to_owned()),
    }
}

/// A factor above 0.
pub(crate) fn factor(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(number) if number.is_finite() && number > 0.0 => Ok(number),
        _ => Err("not a number above 0".to_owned()),
    }
}

/// `500ms`, `7s`, `5m`, `72h`, `30d`; a unit is needed.
pub(crate) fn duration(text: &str) -> Result<Duration, String> {
    const UNITS: [(&str, u64); 5] = [
        ("ms", 1),
        ("s", 1_000),
        ("m", 60_000),
        ("h", 3_600_000),
        ("d", 86_400_000),
    ];
    let (number, millis) = unit(text, &UNITS)
        .ok_or("not a duration such as 500ms, 7s, 5m, 2h or 30d")?
        .map_err(str::to_owned)?;
    let millis = number.checked_mul(millis).ok_or("too long")?;
    Ok(Duration::from_millis(millis))
}

/// A duration that is not zero.
pub(crate) fn some_time(text: &str) -> Result<Duration, String> {
    match duration(text)? {
        time if time.is_zero() => Err("longer than nothing".to_owned()),
        time => Ok(time),
    }
}

/// Durations between commas: `1s,4s,16s`.
pub(crate) fn durations(text: &str) -> Result<Vec<Duration>, String> {
    text.split(',').map(|part| duration(part.trim())).collect()
}

/// `1MiB`, `64KiB`, `1GiB`, or a plain number of bytes.
pub(crate) fn size(text: &str) -> Result<usize, String> {
    const UNITS: [(&str, u64); 8] = [
        ("", 1),
        ("B", 1),
        ("KiB", 1 << 10),
        ("MiB", 1 << 20),
        ("GiB", 1 << 30),
        ("kB", 1_000),
        ("MB", 1_000_000),
        ("GB", 1_000_000_000),
    ];
    let (number, bytes) = unit(text, &UNITS)
        .ok_or("not a size such as 1048576, 64KiB or 1MiB")?
        .map_err(str::to_owned)?;
    let bytes = number.checked_mul(bytes).ok_or("too large")?;
    usize::try_from(bytes).map_err(|_| "too large".to_owned())
}

/// Digits and a unit; `None` if it is something else.
fn unit(text: &str, units: &[(&str, u64)]) -> Option<Result<(u64, u64), &'static str>> {
    let end = text.bytes().take_while(u8::is_ascii_digit).count();
    let (digits, name) = text.split_at(end);
    if digits.is_empty() {
        return None;
    }
    let (_, factor) = units.iter().find(|(unit, _)| *unit == name)?;
    Some(match digits.parse() {
        Ok(number) => Ok((number, *factor)),
        Err(_) => Err("too large"),
    })
}

/// `1` or `0`, or a word for them.
pub(crate) fn boolean(text: &str) -> Result<bool, String> {
    match text.to_ascii_lowercase().as_str() {
        "1" | "true" | "on" | "yes" => Ok(true),
        "0" | "false" | "off" | "no" => Ok(false),
        _ => Err("neither 1 nor 0".to_owned()),
    }
}

/// A secret: anything but nothing.
pub(crate) fn secret(text: &str) -> Result<String, String> {
    match text.is_empty() {
        true => Err("a secret must not be empty".to_owned()),
        false => Ok(text.to_owned()),
    }
}

/// One or two secrets, with a comma between them.
pub(crate) fn secrets(text: &str) -> Result<Vec<String>, String> {
    let secrets: Vec<_> = text
        .split(',')
        .map(|part| secret(part.trim()))
        .collect::<Result<_, _>>()?;
    match secrets.len() {
        1 | 2 => Ok(secrets),
        more => Err(format!("one or two secrets, not {more}")),
    }
}

/// Anything but nothing.
pub(crate) fn text(text: &str) -> Result<String, String> {
    match text.is_empty() {
        true => Err("must not be empty".to_owned()),
        false => Ok(text.to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_need_a_unit() {
        assert_eq!(duration("500ms"), Ok(Duration::from_millis(500)));
        assert_eq!(duration("7s"), Ok(Duration::from_secs(7)));
        assert_eq!(duration("5m"), Ok(Duration::from_secs(300)));
        assert_eq!(duration("30d"), Ok(Duration::from_secs(30 * 86_400)));
        for bad in ["", "7", "s", "-7s", "7 s", "7S", "1.5s", "7sec", "٧s"] {
            assert!(duration(bad).is_err(), "{bad:?}");
        }
        assert!(some_time("0ms").is_err() && some_time("1ms").is_ok());
        assert!(duration("99999999999999999999s").is_err());
        assert!(duration("999999999999999999d").is_err());
        let backoff = durations("1s,4s, 16s").unwrap();
        assert_eq!(backoff.iter().map(Duration::as_secs).sum::<u64>(), 21);
        assert!(durations("1s,").is_err());
    }

    #[test]
    fn sizes() {
        assert_eq!(size("1MiB"), Ok(1 << 20));
        assert_eq!(size("64KiB"), Ok(64 << 10));
        assert_eq!(size("1048576"), Ok(1 << 20));
        assert_eq!(size("2MB"), Ok(2_000_000));
        for bad in ["", "MiB", "1mib", "1.5MiB", "-1", "20000000000GiB"] {
            assert!(size(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn shares() {
        assert_eq!(share("0.3"), Ok(0.3));
        assert_eq!(share("30%"), Ok(0.3));
        assert_eq!(share("1"), Ok(1.0));
        assert_eq!(share("0"), Ok(0.0));
        for bad in ["", "%", "-0.1", "1.1", "101%", "NaN", "inf", "a third"] {
            assert!(share(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn numbers() {
        assert_eq!(up_to(10_u32)("10"), Ok(10));
        assert!(up_to(10_u32)("0").is_err());
        assert!(up_to(10_u32)("11").is_err());
        assert_eq!(count::<u8>("256"), Err("too large".to_owned()));
        assert!(factor("0").is_err());
        assert!(factor("NaN").is_err());
        assert_eq!(factor("2.5"), Ok(2.5));
    }

    #[test]
    fn one_or_two_secrets() {
        assert_eq!(secrets("a"), Ok(vec!["a".to_owned()]));
        assert_eq!(secrets("a,b").map(|list| list.len()), Ok(2));
        for bad in ["", ",", "a,", "a,,b", "a,b,c", " "] {
            assert!(secrets(bad).is_err(), "{bad:?}");
        }
    }
}
