//! Identifiers: fixed-length octet strings, carried as lowercase hex (profile section 1).

use std::fmt;
use std::str::FromStr;

use serde::de::{Deserialize, Deserializer, Error as _};
use serde::ser::{Serialize, Serializer};
use uuid::Uuid;

/// An identifier is not exactly the expected number of lowercase hex digits
/// (problem `kvsp-bad-identifier`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("expected exactly {digits} lowercase hex digits")]
pub struct BadIdentifier {
    /// Hex digits that the identifier must have.
    pub digits: usize,
}

const fn nibble(c: u8) -> Option<u8> {
    match c {
        b'0'..=b'9' => Some(c - b'0'),
        b'a'..=b'f' => Some(c - b'a' + 10),
        _ => None,
    }
}

fn decode<const N: usize>(text: &str) -> Result<[u8; N], BadIdentifier> {
    let bad = BadIdentifier { digits: 2 * N };
    let digits = text.as_bytes();
    if digits.len() != 2 * N {
        return Err(bad);
    }
    let mut out = [0; N];
    for (octet, pair) in out.iter_mut().zip(digits.chunks_exact(2)) {
        match (nibble(pair[0]), nibble(pair[1])) {
            (Some(high), Some(low)) => *octet = high << 4 | low,
            _ => return Err(bad),
        }
    }
    Ok(out)
}

fn write_hex(octets: &[u8], f: &mut fmt::Formatter<'_>) -> fmt::Result {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let mut text = [0; 64];
    for (pair, octet) in text.chunks_exact_mut(2).zip(octets) {
        pair[0] = DIGITS[usize::from(octet >> 4)];
        pair[1] = DIGITS[usize::from(octet & 15)];
    }
    let text = std::str::from_utf8(&text[..2 * octets.len().min(32)]).map_err(|_| fmt::Error)?;
    f.pad(text)
}

macro_rules! identifier {
    ($(#[$doc:meta])* $name:ident, $octets:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
        pub struct $name(pub [u8; $octets]);

        impl $name {
            /// The raw octets.
            #[must_use]
            pub const fn as_bytes(&self) -> &[u8; $octets] {
                &self.0
            }
        }

        impl FromStr for $name {
            type Err = BadIdentifier;
            fn from_str(text: &str) -> Result<Self, BadIdentifier> {
                decode(text).map(Self)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write_hex(&self.0, f)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!(stringify!($name), "({})"), self)
            }
        }

        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let text = std::borrow::Cow::<'de, str>::deserialize(deserializer)?;
                // The marker lets the JSON layer answer `kvsp-bad-identifier`, not `kvsp-malformed-json`.
                text.parse().map_err(|e: BadIdentifier| D::Error::custom(format_args!("{}{e}", crate::json::IDENTIFIER_MARK)))
            }
        }
    };
}

identifier!(
    /// The Compatibility ID of draft section 4.1: equal IDs mean interchangeable caches.
    CompatId,
    32
);
identifier!(
    /// The Scope ID of draft section 4.2.
    ScopeId,
    16
);
identifier!(
    /// The Block Key of draft section 4.2: names a block together with its whole prefix.
    BlockKey,
    32
);
identifier!(
    /// A SHA-256 digest, of a layer (draft section 4.3) or of anything else.
    Digest,
    32
);

/// A SHA-256 digest carried as `sha-256:<hex32>` (model, tokenizer and replica digests).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NamedDigest(pub Digest);

impl fmt::Display for NamedDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "sha-256:{}", self.0)
    }
}

impl fmt::Debug for NamedDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for NamedDigest {
    type Err = BadIdentifier;
    fn from_str(text: &str) -> Result<Self, BadIdentifier> {
        text.strip_prefix("sha-256:").ok_or(BadIdentifier { digits: 64 })?.parse().map(Self)
    }
}

impl Serialize for NamedDigest {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for NamedDigest {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = std::borrow::Cow::<'de, str>::deserialize(deserializer)?;
        text.parse().map_err(|e: BadIdentifier| {
            D::Error::custom(format_args!("{}sha-256:<hex32>: {e}", crate::json::IDENTIFIER_MARK))
        })
    }
}

/// Deserialises a UUID in a body; for `#[serde(deserialize_with)]`.
///
/// # Errors
/// Text that is no UUID is a bad identifier, anything but text is malformed.
pub(crate) fn uuid<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Uuid, D::Error> {
    let text = std::borrow::Cow::<'de, str>::deserialize(deserializer)?;
    text.parse().map_err(|e| D::Error::custom(format_args!("{}{e}", crate::json::IDENTIFIER_MARK)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_lowercase_of_the_exact_length_is_an_identifier() {
        let text = "00ff".repeat(16);
        let key: BlockKey = text.parse().unwrap();
        assert_eq!(key.to_string(), text);
        assert!(text.to_uppercase().parse::<BlockKey>().is_err());
        assert!(text[1..].parse::<BlockKey>().is_err());
        assert!(format!("{text}0").parse::<BlockKey>().is_err());
        assert!(text.parse::<ScopeId>().is_err());
        assert_eq!("0a".repeat(16).parse::<ScopeId>().unwrap().0, [10; 16]);
    }

    #[test]
    fn a_named_digest_has_its_prefix() {
        let hex = "ab".repeat(32);
        assert_eq!(
            format!("sha-256:{hex}").parse::<NamedDigest>().unwrap().to_string(),
            format!("sha-256:{hex}")
        );
        assert!(hex.parse::<NamedDigest>().is_err());
        assert!(format!("SHA-256:{hex}").parse::<NamedDigest>().is_err());
    }
}
