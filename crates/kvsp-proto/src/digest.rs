//! Digests: of layers and replicas (draft section 4.3) and the `Repr-Digest` field (RFC 9530).

use std::fmt;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use kvsp_hash::Sha256;

use crate::id::Digest;

/// An incremental SHA-256.
#[derive(Debug, Clone, Default)]
pub struct Hasher(Sha256);

impl Hasher {
    /// A hasher that has seen nothing.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Takes in more octets.
    pub fn update(&mut self, octets: &[u8]) {
        self.0.update(octets);
    }

    /// The digest of everything taken in.
    #[must_use]
    pub fn finish(self) -> Digest {
        Digest(self.0.finish())
    }
}

/// The SHA-256 of `octets`.
#[must_use]
pub fn sha256(octets: &[u8]) -> Digest {
    sha256_parts([octets])
}

/// The SHA-256 of the concatenation of `parts`.
#[must_use]
pub fn sha256_parts<'a>(parts: impl IntoIterator<Item = &'a [u8]>) -> Digest {
    let mut hasher = Hasher::new();
    for part in parts {
        hasher.update(part);
    }
    hasher.finish()
}

/// The digest of a layer: of its K section followed by its V section (draft section 4.3).
#[must_use]
pub fn layer_digest(k: &[u8], v: &[u8]) -> Digest {
    sha256_parts([k, v])
}

/// The digest of a replica: of the concatenation of its layer digests, raw, in ascending layer
/// order (draft section 4.3).
#[must_use]
pub fn replica_digest(layer_digests: &[Digest]) -> Digest {
    sha256_parts(layer_digests.iter().map(|digest| digest.as_bytes().as_slice()))
}

/// A `Repr-Digest` or `Content-Digest` field does not parse, or its `sha-256` is no digest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ReprDigestError {
    /// Not a dictionary of structured fields (RFC 9651).
    #[error("the digest field is not a dictionary")]
    NotADictionary,
    /// Its `sha-256` is not a byte sequence of 32 octets.
    #[error("sha-256 is not a byte sequence of 32 octets")]
    NotADigest,
}

/// The `sha-256` of a `Repr-Digest` field (RFC 9530); shown as `sha-256=:<base64>:`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ReprDigest(pub Digest);

impl ReprDigest {
    /// The digest of one representation.
    #[must_use]
    pub fn of(octets: &[u8]) -> Self {
        Self(sha256(octets))
    }

    /// Reads a field's value (several field lines joined with `, `). Other algorithms are ignored;
    /// `None` where `sha-256` is not among them.
    ///
    /// # Errors
    /// The field is no dictionary, or its `sha-256` no digest.
    pub fn parse(field: &str) -> Result<Option<Self>, ReprDigestError> {
        let dictionary: sfv::Dictionary =
            sfv::Parser::new(field).parse().map_err(|_| ReprDigestError::NotADictionary)?;
        let Some(entry) = dictionary.get("sha-256") else {
            return Ok(None);
        };
        let sfv::ListEntry::Item(sfv::Item { bare_item: sfv::BareItem::ByteSequence(octets), .. }) = entry
        else {
            return Err(ReprDigestError::NotADigest);
        };
        let octets = octets.as_slice().try_into().map_err(|_| ReprDigestError::NotADigest)?;
        Ok(Some(Self(Digest(octets))))
    }
}

impl fmt::Display for ReprDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "sha-256=:{}:", STANDARD.encode(self.0.as_bytes()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const EMPTY: &str = "sha-256=:47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU=:";

    #[test]
    fn a_field_is_written_as_rfc_9530_has_it() {
        assert_eq!(ReprDigest::of(b"").to_string(), EMPTY);
    }

    #[test]
    fn a_field_may_carry_several_algorithms() {
        let empty = Some(ReprDigest::of(b""));
        assert_eq!(ReprDigest::parse(EMPTY), Ok(empty));
        assert_eq!(ReprDigest::parse(&format!("sha-512=:YWJj:, {EMPTY}")), Ok(empty));
        assert_eq!(ReprDigest::parse(&format!("{EMPTY};a=1,\tunixsum=:AA==:")), Ok(empty));
        assert_eq!(ReprDigest::parse("sha-512=:YWJj:"), Ok(None));
        assert_eq!(ReprDigest::parse(""), Ok(None));
    }

    #[test]
    fn a_malformed_field_is_an_error() {
        for field in ["sha-256=:YWJj", "=", "SHA-256=:YWJj:", "sha-256=:!!!!:", "a, ,b", "a,"] {
            assert_eq!(ReprDigest::parse(field), Err(ReprDigestError::NotADictionary), "{field}");
        }
        for field in ["sha-256=:YWJj:", "sha-256", "sha-256=abc", "sha-256=1", "sha-256=(:YWJj:)"] {
            assert_eq!(ReprDigest::parse(field), Err(ReprDigestError::NotADigest), "{field}");
        }
    }

    #[test]
    fn parts_hash_as_their_concatenation() {
        assert_eq!(layer_digest(b"ab", b"c"), sha256(b"abc"));
        let layers = [sha256(b"a"), sha256(b"b")];
        assert_eq!(replica_digest(&layers), sha256(&[layers[0].0, layers[1].0].concat()));
    }
}
