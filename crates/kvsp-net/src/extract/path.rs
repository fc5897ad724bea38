//! Typed path segments.

use axum::extract::{FromRequestParts, RawPathParams};
use http::request::Parts;
use kvsp_proto::id::{BlockKey, CompatId, ScopeId};
use kvsp_proto::message::{BadMapId, MapId};
use kvsp_proto::problem::{Problem, ProblemType};
use kvsp_proto::uri::{BaseUri, HolderUri};
use uuid::Uuid;

use crate::reply::Failure;

/// One segment of a path that is an identifier.
pub trait PathSegment: Sized {
    /// Reads the segment, percent-decoded.
    ///
    /// # Errors
    /// `kvsp-bad-identifier`.
    fn from_segment(text: &str) -> Result<Self, Problem>;
}

macro_rules! hex_segment {
    ($($name:ty),+) => {
        $(impl PathSegment for $name {
            fn from_segment(text: &str) -> Result<Self, Problem> {
                text.parse().map_err(Problem::from)
            }
        })+
    };
}

hex_segment!(CompatId, ScopeId, BlockKey);

impl PathSegment for HolderUri {
    fn from_segment(text: &str) -> Result<Self, Problem> {
        Self::from_uri64(text).map_err(|error| Problem::new(ProblemType::BadIdentifier, error.to_string()))
    }
}

impl PathSegment for BaseUri {
    fn from_segment(text: &str) -> Result<Self, Problem> {
        Self::from_uri64(text).map_err(|error| Problem::new(ProblemType::BadIdentifier, error.to_string()))
    }
}

impl PathSegment for Uuid {
    fn from_segment(text: &str) -> Result<Self, Problem> {
        // The parser takes braces, `urn:` and bare hex too; RFC 9562 has one form, of 36 characters.
        let id = if text.len() == 36 { Self::try_parse(text).ok() } else { None };
        id.ok_or_else(|| Problem::new(ProblemType::BadIdentifier, "expected a UUID"))
    }
}

impl PathSegment for u64 {
    fn from_segment(text: &str) -> Result<Self, Problem> {
        // Each number has one spelling, so that a resource has one path.
        let canonical = text == "0" || !text.starts_with('0');
        let digits = canonical && !text.is_empty() && text.bytes().all(|c| c.is_ascii_digit());
        let number = if digits { text.parse().ok() } else { None };
        number.ok_or_else(|| Problem::new(ProblemType::BadIdentifier, "expected an unsigned decimal"))
    }
}

impl PathSegment for MapId {
    fn from_segment(text: &str) -> Result<Self, Problem> {
        text.parse().map_err(|error: BadMapId| Problem::new(ProblemType::BadIdentifier, error.to_string()))
    }
}

/// All segments of a path that are identifiers: one [`PathSegment`], or a tuple of up to four.
pub trait PathSegments: Sized {
    /// Reads the segments in the order of the path.
    ///
    /// # Errors
    /// `kvsp-bad-identifier`.
    fn from_segments<'a>(segments: impl Iterator<Item = &'a str>) -> Result<Self, Problem>;
}

fn next<'a, T: PathSegment>(segments: &mut impl Iterator<Item = &'a str>) -> Result<T, Problem> {
    // Only a route with fewer parameters than its handler takes gets here without a segment.
    T::from_segment(segments.next().unwrap_or_default())
}

impl<T: PathSegment> PathSegments for T {
    fn from_segments<'a>(mut segments: impl Iterator<Item = &'a str>) -> Result<Self, Problem> {
        next(&mut segments)
    }
}

macro_rules! tuple_segments {
    ($($name:ident),+) => {
        impl<$($name: PathSegment),+> PathSegments for ($($name,)+) {
            fn from_segments<'a>(mut segments: impl Iterator<Item = &'a str>) -> Result<Self, Problem> {
                Ok(($(next::<$name>(&mut segments)?,)+))
            }
        }
    };
}

tuple_segments!(A, B);
tuple_segments!(A, B, C);
tuple_segments!(A, B, C, D);

/// The identifiers of the path, parsed: `PathOf((compat, scope, key)): PathOf<(CompatId, ScopeId, BlockKey)>`.
/// A [`BaseUri`] or [`HolderUri`] is read as `{uri64}`. Failure: 400 `kvsp-bad-identifier`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PathOf<T>(pub T);

impl<T: PathSegments, S: Send + Sync> FromRequestParts<S> for PathOf<T> {
    type Rejection = Failure;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Failure> {
        let parameters = RawPathParams::from_request_parts(parts, state)
            .await
            .map_err(|_| Failure::new(ProblemType::BadIdentifier, "a path segment is not UTF-8"))?;
        Ok(Self(T::from_segments(parameters.iter().map(|(_, text)| text))?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_uuid_has_one_form_in_either_case() {
        let text = "6f1d0a9e-2c55-4d7e-9a0e-5b7f2f9f6a11";
        let id = Uuid::from_segment(text).unwrap();
        assert_eq!(Uuid::from_segment(&text.to_uppercase()), Ok(id));
        for bad in [text.replace('-', ""), format!("{{{text}}}"), format!("urn:uuid:{text}"), String::new()] {
            assert_eq!(
                Uuid::from_segment(&bad).unwrap_err().problem_type(),
                Some(ProblemType::BadIdentifier)
            );
        }
    }

    #[test]
    fn segments_come_in_order() {
        let (scope, map) = <(ScopeId, MapId)>::from_segments([&*"0a".repeat(16), "m.1"].into_iter()).unwrap();
        assert_eq!((scope, map.as_str()), (ScopeId([10; 16]), "m.1"));
        assert!(<(ScopeId, MapId)>::from_segments([&*"0a".repeat(16)].into_iter()).is_err());
        assert!(MapId::from_segment("a/b").is_err() && MapId::from_segment(&"a".repeat(129)).is_err());
        assert!(u64::from_segment("01").is_err() && u64::from_segment("0") == Ok(0));
        assert!(u64::from_segment("+1").is_err() && u64::from_segment("18446744073709551616").is_err());
        assert_eq!(u64::from_segment("18446744073709551615"), Ok(u64::MAX));
    }
}
