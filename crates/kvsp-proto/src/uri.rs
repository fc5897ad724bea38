//! Base URIs, normalised, and their form in a path (profile section 1).

use std::fmt;
use std::str::FromStr;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde::de::{Deserialize, Deserializer, Error as _};
use serde::ser::{Serialize, Serializer};
use url::Url;

/// Longest base URI accepted, in octets.
pub const MAX_URI_OCTETS: usize = 2048;

/// Why a text is not a base URI.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum UriError {
    /// Over [`MAX_URI_OCTETS`].
    #[error("the URI is longer than {MAX_URI_OCTETS} octets")]
    TooLong,
    /// Not a URI, or not one that normalises to ASCII.
    #[error("not a valid URI")]
    Syntax,
    /// Another scheme than `https`, `http` or (a replica's holder only) `moqt`.
    #[error("the scheme must be https (http in plaintext development mode)")]
    Scheme,
    /// No host.
    #[error("the URI has no host")]
    Host,
    /// User information, a query or a fragment.
    #[error("a base URI has no userinfo, query or fragment")]
    Extra,
    /// The path does not end in a slash.
    #[error("a base URI ends in '/'")]
    Slash,
    /// The `{uri64}` is not base64url without padding of a normalised base URI.
    #[error("not the base64url encoding of a normalised base URI")]
    Encoding,
}

/// An `http` or `https` base URI in its RFC 3986 normal form.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BaseUri(Box<str>);

/// The holder of a replica: a base URI, or a `moqt` URI (draft section 4.4).
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct HolderUri(Box<str>);

fn normalise(text: &str, moqt: bool) -> Result<Box<str>, UriError> {
    if text.len() > MAX_URI_OCTETS {
        return Err(UriError::TooLong);
    }
    if crate::fast::is_plainly_normal(text) {
        return Ok(text.into());
    }
    parsed(text, moqt)
}

/// The normal form by way of the URL parser.
pub(crate) fn parsed(text: &str, moqt: bool) -> Result<Box<str>, UriError> {
    // The parser is lenient where RFC 3986 is not: it trims blanks and turns '\' into '/'.
    if !text.bytes().all(|b| b.is_ascii_graphic() && !b"\\\"<>^`{|}".contains(&b)) {
        return Err(UriError::Syntax);
    }
    let (scheme, rest) = text.split_once(':').ok_or(UriError::Syntax)?;
    let scheme = scheme.to_ascii_lowercase();
    match scheme.as_str() {
        "https" | "http" => {}
        "moqt" if moqt => {}
        _ => return Err(UriError::Scheme),
    }
    let authority = rest.strip_prefix("//").ok_or(UriError::Host)?;
    if authority.is_empty() || authority.starts_with(['/', ':', '?', '#']) {
        return Err(UriError::Host);
    }
    let url = Url::parse(text).map_err(|_| UriError::Syntax)?;
    if url.host_str().is_none_or(str::is_empty) {
        return Err(UriError::Host);
    }
    let raw_authority = authority.split(['/', '?', '#']).next().unwrap_or_default();
    if raw_authority.contains('@') || text.contains(['?', '#']) {
        return Err(UriError::Extra);
    }
    if scheme == "moqt" {
        // The URL parser leaves the host of a non-special scheme as it is.
        let lower = raw_authority.to_ascii_lowercase();
        let path = authority.get(raw_authority.len()..).unwrap_or_default();
        return Ok(format!("moqt://{lower}{path}").into());
    }
    // The parser gives an empty path a slash; a base URI has one of its own.
    if !text.ends_with('/') {
        return Err(UriError::Slash);
    }
    Ok(normal_escapes(url.as_str()).into())
}

/// Percent-escapes in upper case, unreserved characters unescaped (RFC 3986 section 6.2.2).
fn normal_escapes(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find('%') {
        out.push_str(&rest[..at]);
        let digits = rest.get(at + 1..at + 3).unwrap_or_default();
        match u8::from_str_radix(digits, 16) {
            Ok(c) if c.is_ascii_alphanumeric() || b"-._~".contains(&c) => out.push(char::from(c)),
            _ => {
                out.push('%');
                out.push_str(&digits.to_ascii_uppercase());
            }
        }
        rest = rest.get(at + 1 + digits.len()..).unwrap_or_default();
    }
    out.push_str(rest);
    out
}

fn from_uri64<T: FromStr<Err = UriError> + AsRef<str>>(text: &str) -> Result<T, UriError> {
    if text.len() > MAX_URI_OCTETS * 2 {
        return Err(UriError::TooLong);
    }
    let octets = URL_SAFE_NO_PAD.decode(text).map_err(|_| UriError::Encoding)?;
    let inner = std::str::from_utf8(&octets).map_err(|_| UriError::Encoding)?;
    let uri: T = inner.parse()?;
    if uri.as_ref() == inner { Ok(uri) } else { Err(UriError::Encoding) }
}

macro_rules! uri {
    ($name:ident, $moqt:literal) => {
        impl $name {
            /// The normalised text.
            #[must_use]
            pub fn as_str(&self) -> &str {
                &self.0
            }

            /// Whether the scheme is `https`.
            #[must_use]
            pub fn is_https(&self) -> bool {
                self.0.starts_with("https:")
            }

            /// The `{uri64}` of a path: base64url without padding.
            #[must_use]
            pub fn to_uri64(&self) -> String {
                URL_SAFE_NO_PAD.encode(self.0.as_bytes())
            }

            /// Decode a `{uri64}`.
            ///
            /// # Errors
            /// [`UriError`] unless it encodes exactly the normal form (problem `kvsp-bad-identifier`).
            pub fn from_uri64(text: &str) -> Result<Self, UriError> {
                from_uri64(text)
            }
        }

        impl FromStr for $name {
            type Err = UriError;
            fn from_str(text: &str) -> Result<Self, UriError> {
                normalise(text, $moqt).map(Self)
            }
        }

        impl AsRef<str> for $name {
            fn as_ref(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.pad(&self.0)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{:?}", &*self.0)
            }
        }

        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.serialize_str(&self.0)
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let text = std::borrow::Cow::<'de, str>::deserialize(deserializer)?;
                text.parse().map_err(|e: UriError| {
                    D::Error::custom(format_args!("{}{e}", crate::json::IDENTIFIER_MARK))
                })
            }
        }
    };
}

uri!(BaseUri, false);
uri!(HolderUri, true);

impl BaseUri {
    /// The URI of a resource below this base; `path` has no leading slash.
    #[must_use]
    pub fn join(&self, path: &str) -> String {
        format!("{}{path}", self.0)
    }

    /// The path of the base itself, with its slashes.
    #[must_use]
    pub fn path(&self) -> &str {
        let after = self.0.find("://").map_or(0, |at| at + 3);
        self.0[after..].find('/').map_or("/", |at| &self.0[after + at..])
    }
}

impl HolderUri {
    /// The HTTP base URI, unless the holder is a `moqt` publisher.
    #[must_use]
    pub fn http(&self) -> Option<BaseUri> {
        (!self.is_moqt()).then(|| BaseUri(self.0.clone()))
    }

    /// Whether the replica is served by Media over QUIC Transport.
    #[must_use]
    pub fn is_moqt(&self) -> bool {
        self.0.starts_with("moqt:")
    }
}

impl From<BaseUri> for HolderUri {
    fn from(uri: BaseUri) -> Self {
        Self(uri.0)
    }
}

impl From<&BaseUri> for HolderUri {
    fn from(uri: &BaseUri) -> Self {
        Self(uri.0.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_base_uri_is_normalised() {
        let cases = [
            ("HTTPS://H1.Example:443/kvsp/", "https://h1.example/kvsp/"),
            ("http://127.0.0.1:80/", "http://127.0.0.1/"),
            ("http://[::1]:8080/kvsp/", "http://[::1]:8080/kvsp/"),
            ("https://h/a/../%7eb/%2f/", "https://h/~b/%2F/"),
        ];
        for (text, want) in cases {
            let uri: BaseUri = text.parse().unwrap();
            assert_eq!(uri.as_str(), want);
            assert_eq!(BaseUri::from_uri64(&uri.to_uri64()).unwrap(), uri);
            assert_eq!(want.parse::<BaseUri>().unwrap(), uri, "normalising twice changes nothing");
        }
    }

    #[test]
    fn anything_else_is_refused() {
        let cases = [
            ("ftp://h/", UriError::Scheme),
            ("moqt://h/", UriError::Scheme),
            ("https:///kvsp/", UriError::Host),
            ("https://u@h/", UriError::Extra),
            ("https://h/?q", UriError::Extra),
            ("https://h/#f", UriError::Extra),
            ("https://h/kvsp", UriError::Slash),
            ("https://h", UriError::Slash),
            ("https:h/", UriError::Host),
            (" https://h/", UriError::Syntax),
            ("https://h/\\", UriError::Syntax),
            ("", UriError::Syntax),
        ];
        for (text, want) in cases {
            assert_eq!(text.parse::<BaseUri>(), Err(want), "{text}");
        }
    }

    #[test]
    fn a_uri64_encodes_the_normal_form_only() {
        let encoded = URL_SAFE_NO_PAD.encode("HTTPS://h/");
        assert_eq!(BaseUri::from_uri64(&encoded), Err(UriError::Encoding));
        assert_eq!(BaseUri::from_uri64("aHR0cHM6Ly9oLw=="), Err(UriError::Encoding));
        assert!(BaseUri::from_uri64("aHR0cHM6Ly9oLw").is_ok());
    }

    #[test]
    fn a_holder_may_be_a_moqt_publisher() {
        let uri: HolderUri = "MOQT://Relay.Example/Path".parse().unwrap();
        assert_eq!(uri.as_str(), "moqt://relay.example/Path");
        assert!(uri.is_moqt() && uri.http().is_none());
        assert_eq!(HolderUri::from_uri64(&uri.to_uri64()).unwrap(), uri);
    }

    #[test]
    fn the_path_of_a_base() {
        assert_eq!("https://h/kvsp/".parse::<BaseUri>().unwrap().path(), "/kvsp/");
        assert_eq!("https://h/".parse::<BaseUri>().unwrap().path(), "/");
    }
}
