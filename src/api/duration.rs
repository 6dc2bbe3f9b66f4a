//! Lengths of time as people write them: `1h30m`.

use std::time::Duration;

/// Reads hours, minutes and seconds in this order, such as `24h`, `1h30m` or `90s`; `None` for anything else, and for
/// no time at all.
#[must_use]
pub fn parse(text: &str) -> Option<Duration> {
    let mut rest = text;
    let mut total = Duration::ZERO;
    for (unit, seconds) in [('h', 3600), ('m', 60), ('s', 1)] {
        if let Some((amount, behind)) = rest.split_once(unit) {
            total += Duration::from_secs(amount.parse::<u32>().ok()?.into()) * seconds;
            rest = behind;
        }
    }
    (rest.is_empty() && !total.is_zero()).then_some(total)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_duration_is_read_as_hours_minutes_and_seconds() {
        for (text, seconds) in [
            ("24h", Some(86_400)),
            ("1h30m", Some(5_400)),
            ("1h1m1s", Some(3_661)),
            ("90s", Some(90)),
            ("999999h999999m999999s", Some(999_999 * 3_661)),
            ("Never", None),
            ("", None),
            ("0s", None),
            ("24", None),
            ("1d", None),
            ("30m1h", None),
            ("-1h", None),
            ("99999999999h", None),
        ] {
            assert_eq!(parse(text), seconds.map(Duration::from_secs), "{text}");
        }
    }
}
