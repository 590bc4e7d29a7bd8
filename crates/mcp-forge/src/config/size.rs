//! Sizes and durations as people write them: `512m`, `2g`, `1GiB`; `300`, `90s`, `5m`.

use std::time::Duration;

/// The longest duration that is accepted anywhere: ten years, far below any overflow.
const LONGEST_SECONDS: f64 = 315_360_000.0;

/// Reads a size in bytes: a whole number, or a number with `k`, `m`, `g` or `t` and optionally
/// `b` or `ib` after it, in any case. Every unit is a power of 1024, as container tools have it:
/// `2GB`, `2GiB` and `2g` are the same.
///
/// # Errors
///
/// What the text is instead, to be put after "it is".
pub fn parse_bytes(text: &str) -> Result<u64, &'static str> {
    const NO_SIZE: &str = "not a size";
    const TOO_LARGE: &str = "too large a size";
    let (number, unit) = split_unit(text);
    let shift = match unit.to_ascii_lowercase().as_str() {
        "" | "b" => 0,
        "k" | "kb" | "kib" => 10,
        "m" | "mb" | "mib" => 20,
        "g" | "gb" | "gib" => 30,
        "t" | "tb" | "tib" => 40,
        _ => return Err(NO_SIZE),
    };
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    let all_digits = |part: &str| part.bytes().all(|byte| byte.is_ascii_digit());
    if whole.is_empty() || !all_digits(whole) || !all_digits(fraction) || number.ends_with('.') {
        return Err(NO_SIZE);
    }
    let unit_bytes = 1_u64 << shift;
    let bytes = whole
        .parse::<u64>()
        .ok()
        .and_then(|whole| whole.checked_mul(unit_bytes))
        .ok_or(TOO_LARGE)?;
    bytes
        .checked_add(fraction_of(fraction, unit_bytes).ok_or(NO_SIZE)?)
        .ok_or(TOO_LARGE)
}

/// Reads a duration: seconds as a number, or a number with `ms`, `s`, `m`, `h` or `d`.
///
/// # Errors
///
/// What the text is instead, to be put after "it is".
pub fn parse_duration(text: &str) -> Result<Duration, &'static str> {
    const NO_DURATION: &str = "not a duration";
    let (number, unit) = split_unit(text);
    let factor = match unit {
        "ms" => 0.001,
        "" | "s" => 1.0,
        "m" | "min" => 60.0,
        "h" => 3_600.0,
        "d" => 86_400.0,
        _ => return Err(NO_DURATION),
    };
    let seconds = number.parse::<f64>().map_err(|_| NO_DURATION)?;
    duration_from_seconds(seconds * factor).ok_or("longer than ten years")
}

/// A duration of this many seconds, unless that is negative, not a number, or beyond ten years.
pub fn duration_from_seconds(seconds: f64) -> Option<Duration> {
    if !(0.0..=LONGEST_SECONDS).contains(&seconds) {
        return None;
    }
    Duration::try_from_secs_f64(seconds).ok()
}

/// A size as a person would write it: the largest unit that divides it.
pub fn show_size(bytes: u64) -> String {
    for (shift, unit) in [(40, "t"), (30, "g"), (20, "m"), (10, "k")] {
        if bytes > 0 && bytes.is_multiple_of(1 << shift) {
            return format!("{}{unit}", bytes >> shift);
        }
    }
    bytes.to_string()
}

fn split_unit(text: &str) -> (&str, &str) {
    let text = text.trim();
    let end = text
        .find(|letter: char| !letter.is_ascii_digit() && letter != '.')
        .unwrap_or(text.len());
    let (number, unit) = text.split_at(end);
    (number, unit.trim_start())
}

/// The bytes that `.fraction` of a unit is, rounded down; `None` for a fraction of single bytes
/// or one with more digits than any real size has.
fn fraction_of(digits: &str, unit_bytes: u64) -> Option<u64> {
    if digits.is_empty() {
        return Some(0);
    }
    if unit_bytes == 1 || digits.len() > 6 {
        return None;
    }
    let numerator = u128::from(digits.parse::<u64>().ok()?) * u128::from(unit_bytes);
    u64::try_from(numerator / 10_u128.pow(u32::try_from(digits.len()).ok()?)).ok()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn sizes_as_people_write_them() {
        for (text, bytes) in [
            ("0", 0),
            ("4096", 4096),
            ("512m", 512 << 20),
            ("2g", 2 << 30),
            ("2GB", 2 << 30),
            ("1GiB", 1 << 30),
            ("1.5g", 3 << 29),
            ("10 MiB", 10 << 20),
            (" 7k ", 7 << 10),
            ("64B", 64),
        ] {
            assert_eq!(parse_bytes(text), Ok(bytes), "{text}");
        }
        for text in [
            "",
            "m",
            "-1",
            "1.",
            ".5g",
            "1.5",
            "NaN",
            "1e3",
            "0x10",
            "12q",
            "1 2m",
            "99999999999t",
            "٣m",
            "+1",
        ] {
            assert!(parse_bytes(text).is_err(), "{text}");
        }
    }

    #[test]
    fn durations_as_people_write_them() {
        for (text, millis) in [
            ("300", 300_000),
            ("0.5", 500),
            ("90s", 90_000),
            ("5m", 300_000),
            ("2h", 7_200_000),
            ("1d", 86_400_000),
            ("250ms", 250),
        ] {
            assert_eq!(
                parse_duration(text),
                Ok(Duration::from_millis(millis)),
                "{text}"
            );
        }
        for text in [
            "",
            "s",
            "-1",
            "NaN",
            "inf",
            "1e400",
            "5M",
            "5 minutes",
            "1..2",
            "99999999999999d",
        ] {
            assert!(parse_duration(text).is_err(), "{text}");
        }
        assert_eq!(duration_from_seconds(f64::NAN), None);
        assert_eq!(duration_from_seconds(-0.1), None);
    }

    proptest! {
        #[test]
        fn a_size_that_is_shown_is_read_back(bytes: u64) {
            prop_assert_eq!(parse_bytes(&show_size(bytes)), Ok(bytes));
        }

        #[test]
        fn no_text_makes_the_parsers_panic(text in ".{0,40}", digits in "[0-9.]{0,30}[kmgtbis]{0,3}") {
            for text in [&text, &digits] {
                let _ = parse_bytes(text);
                let _ = parse_duration(text);
            }
        }
    }
}
