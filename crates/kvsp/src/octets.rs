//! Sizes as people write them.

use std::str::FromStr;

/// A number of octets, written as `1073741824`, `1024MiB` or `1GiB`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Octets(pub(crate) u64);

impl FromStr for Octets {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("{text:?} is not a size such as 512MiB, 4GiB or 1000000");
        let digits = text.bytes().take_while(u8::is_ascii_digit).count();
        let (number, unit) = text.split_at(digits);
        let number: u64 = number.parse().map_err(|_| wrong())?;
        let factor: u64 = match unit.trim().to_ascii_lowercase().as_str() {
            "" | "b" => 1,
            "kib" | "k" => 1 << 10,
            "mib" | "m" => 1 << 20,
            "gib" | "g" => 1 << 30,
            "tib" | "t" => 1 << 40,
            "kb" => 1000,
            "mb" => 1_000_000,
            "gb" => 1_000_000_000,
            _ => return Err(wrong()),
        };
        number.checked_mul(factor).map(Self).ok_or_else(wrong)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_multiply_and_nonsense_is_refused() {
        assert_eq!("64MiB".parse(), Ok(Octets(64 << 20)));
        assert_eq!("2 gb".parse(), Ok(Octets(2_000_000_000)));
        assert_eq!("17".parse(), Ok(Octets(17)));
        for text in ["", "MiB", "1.5GiB", "-1", "99999999999TiB"] {
            assert!(text.parse::<Octets>().is_err(), "{text}");
        }
    }
}
