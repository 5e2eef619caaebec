//! strftime over UTC, for `strftime_now`.

use minijinja::{Error, ErrorKind};

const DAYS: [&str; 7] = [
    "Sunday",
    "Monday",
    "Tuesday",
    "Wednesday",
    "Thursday",
    "Friday",
    "Saturday",
];
const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];
const MAX_FORMAT_BYTES: usize = 256;

struct Moment {
    year: i64,
    month: usize, // 1..=12
    day: i64,
    hour: i64,
    minute: i64,
    second: i64,
    weekday: usize, // 0 = Sunday
    day_of_year: i64,
}

/// Civil date of a day count since 1970-01-01 (proleptic Gregorian).
fn civil(days: i64) -> (i64, usize, i64) {
    let shifted = days + 719_468;
    let era = shifted.div_euclid(146_097);
    let day_of_era = shifted.rem_euclid(146_097);
    let year_of_era =
        (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_index = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_index + 2) / 5 + 1;
    let month = if month_index < 10 {
        month_index + 3
    } else {
        month_index - 9
    };
    let year = year_of_era + era * 400 + i64::from(month <= 2);
    (year, month as usize, day)
}

fn moment(unix_s: i64) -> Moment {
    let unix_s = unix_s.clamp(-62_135_596_800, 253_402_300_799); // years 1 to 9999
    let days = unix_s.div_euclid(86_400);
    let of_day = unix_s.rem_euclid(86_400);
    let (year, month, day) = civil(days);
    let leap = (year % 4 == 0 && year % 100 != 0) || year % 400 == 0;
    let before = [0, 31, 59, 90, 120, 151, 181, 212, 243, 273, 304, 334][month - 1];
    Moment {
        year,
        month,
        day,
        hour: of_day / 3600,
        minute: of_day / 60 % 60,
        second: of_day % 60,
        weekday: (days + 4).rem_euclid(7) as usize,
        day_of_year: before + day + i64::from(leap && month > 2),
    }
}

pub fn format_utc(unix_s: i64, format: &str) -> Result<String, Error> {
    if format.len() > MAX_FORMAT_BYTES {
        return Err(Error::new(
            ErrorKind::InvalidOperation,
            "strftime_now: format is too long",
        ));
    }
    let m = moment(unix_s);
    let hour12 = if m.hour % 12 == 0 { 12 } else { m.hour % 12 };
    let mut out = String::new();
    let mut chars = format.chars();
    while let Some(c) = chars.next() {
        if c != '%' {
            out.push(c);
            continue;
        }
        let mut code = chars.next().unwrap_or('%');
        let padded = code != '-';
        if !padded {
            code = chars.next().unwrap_or('-');
        }
        let two = |n: i64| {
            if padded {
                format!("{n:02}")
            } else {
                n.to_string()
            }
        };
        out.push_str(&match code {
            'Y' => m.year.to_string(),
            'y' => two(m.year.rem_euclid(100)),
            'm' => two(m.month as i64),
            'd' => two(m.day),
            'e' => {
                if padded {
                    format!("{:2}", m.day)
                } else {
                    m.day.to_string()
                }
            }
            'H' => two(m.hour),
            'I' => two(hour12),
            'M' => two(m.minute),
            'S' => two(m.second),
            'j' => {
                if padded {
                    format!("{:03}", m.day_of_year)
                } else {
                    m.day_of_year.to_string()
                }
            }
            'p' => if m.hour < 12 { "AM" } else { "PM" }.to_string(),
            'A' => DAYS[m.weekday].to_string(),
            'a' => DAYS[m.weekday][..3].to_string(),
            'B' => MONTHS[m.month - 1].to_string(),
            'b' | 'h' => MONTHS[m.month - 1][..3].to_string(),
            'F' => format!("{}-{:02}-{:02}", m.year, m.month, m.day),
            'T' | 'X' => format!("{:02}:{:02}:{:02}", m.hour, m.minute, m.second),
            'R' => format!("{:02}:{:02}", m.hour, m.minute),
            'D' | 'x' => format!("{:02}/{:02}/{:02}", m.month, m.day, m.year.rem_euclid(100)),
            'c' => format!(
                "{} {} {:2} {:02}:{:02}:{:02} {}",
                &DAYS[m.weekday][..3],
                &MONTHS[m.month - 1][..3],
                m.day,
                m.hour,
                m.minute,
                m.second,
                m.year
            ),
            'w' => m.weekday.to_string(),
            'u' => if m.weekday == 0 { 7 } else { m.weekday }.to_string(),
            's' => unix_s.to_string(),
            'f' => "000000".to_string(),
            'z' => "+0000".to_string(),
            'Z' => "UTC".to_string(),
            'n' => "\n".to_string(),
            't' => "\t".to_string(),
            '%' => "%".to_string(),
            other => format!("%{other}"),
        });
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::format_utc;

    #[test]
    fn formats_known_moments() {
        assert_eq!(
            format_utc(1_721_995_200, "%Y-%m-%d %H:%M:%S %A %j").unwrap(),
            "2024-07-26 12:00:00 Friday 208"
        );
        assert_eq!(
            format_utc(0, "%d %b %Y, %-d/%-m").unwrap(),
            "01 Jan 1970, 1/1"
        );
        assert_eq!(format_utc(951_782_400, "%F").unwrap(), "2000-02-29");
        assert_eq!(format_utc(i64::MIN, "%Y").unwrap(), "1");
    }
}
