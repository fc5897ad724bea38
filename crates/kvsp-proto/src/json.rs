//! Strict I-JSON (RFC 7493; profile section 1): one validating scan in linear time, then serde.
//!
//! serde_json alone accepts duplicate member names, integers that a double cannot hold and
//! noncharacters; two implementations would then read two different documents.

mod scan;
mod strict;

use serde::de::DeserializeOwned;
use serde_json::{Number, Value};

use strict::Strict;

/// Starts the message of a serde error that stands for a malformed identifier, so that this layer
/// answers [`JsonError::BadIdentifier`] and not [`JsonError::Malformed`].
pub const IDENTIFIER_MARK: &str = "\u{1}identifier\u{1}";

/// Starts the message of a serde error that stands for a name that is in no registry: well-formed, but false, so
/// that a record answers [`JsonError::Unregistered`] and not [`JsonError::Malformed`].
pub(crate) const UNREGISTERED_MARK: &str = "\u{1}unregistered\u{1}";

/// Containers may nest this deep: `[[]]` has depth 2.
pub const MAX_DEPTH: usize = 32;

/// The largest magnitude of an integer literal, 2^53 − 1.
pub const MAX_INTEGER: u64 = (1 << 53) - 1;

/// A body is not I-JSON or does not have the expected members.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum JsonError {
    /// Not I-JSON, or a member is missing, of the wrong type or out of range (`kvsp-malformed-json`).
    /// The text says where and what, and never repeats a value of the peer's.
    #[error("{0}")]
    Malformed(String),
    /// I-JSON but for an escaped surrogate without its other half (`kvsp-malformed-json`; in a
    /// descriptor `kvsp-descriptor-invalid`).
    #[error("a lone surrogate")]
    LoneSurrogate,
    /// A string member that must be an identifier is not one (`kvsp-bad-identifier`).
    #[error("{0}")]
    BadIdentifier(String),
    /// A string member that must be a registered name is not one (the 422 of what holds it).
    #[error("{0}")]
    Unregistered(String),
}

/// Parses one I-JSON text. A number with an integral value within ±(2^53 − 1) comes out as an
/// integer however it was written: `32.0` and `3.2e1` equal `32`.
///
/// # Errors
/// [`JsonError::Malformed`] or [`JsonError::LoneSurrogate`]; never [`JsonError::BadIdentifier`].
pub fn parse(text: &[u8]) -> Result<Value, JsonError> {
    let scanned = scan::scan(text)?;
    let mut value: Value = serde_json::from_slice(text).map_err(|e| from_serde(&e))?;
    if scanned.integral_fractions {
        normalise(&mut value);
    }
    Ok(value)
}

/// Parses one I-JSON text into a type; unknown members are ignored as far as the type ignores them. A struct
/// is read from an object only, not from an array of its members, and a variant from its name only.
///
/// # Errors
/// Every [`JsonError`].
pub fn from_slice<T: DeserializeOwned>(text: &[u8]) -> Result<T, JsonError> {
    let scanned = scan::scan(text)?;
    if scanned.integral_fractions {
        // An integer member may have been written `32.0`, which serde does not take for an integer.
        let mut value: Value = serde_json::from_slice(text).map_err(|e| from_serde(&e))?;
        normalise(&mut value);
        return from_value(value);
    }
    let mut deserializer = serde_json::Deserializer::from_slice(text);
    // The scan has seen that nothing follows the value.
    T::deserialize(Strict(&mut deserializer)).map_err(|e| from_serde(&e))
}

/// Turns a value of [`parse`] into a type.
///
/// # Errors
/// [`JsonError::Malformed`] or [`JsonError::BadIdentifier`].
pub fn from_value<T: DeserializeOwned>(value: Value) -> Result<T, JsonError> {
    T::deserialize(Strict(value)).map_err(|e| from_serde(&e))
}

/// Makes integers of the numbers with an integral value within ±(2^53 − 1), as [`parse`] does.
pub(crate) fn normalise(value: &mut Value) {
    match value {
        Value::Number(number) => {
            if let Some(integer) = integral(number) {
                *number = integer.into();
            }
        }
        Value::Array(items) => items.iter_mut().for_each(normalise),
        Value::Object(members) => members.values_mut().for_each(normalise),
        Value::Null | Value::Bool(_) | Value::String(_) => {}
    }
}

fn integral(number: &Number) -> Option<i64> {
    const LIMIT: f64 = MAX_INTEGER as f64;
    let float = number.as_f64().filter(|_| number.is_f64())?;
    // Within these bounds every integral double is an i64 exactly; -0.0 becomes 0, as in JCS.
    (float.fract() == 0.0 && float.abs() <= LIMIT).then_some(float as i64)
}

fn from_serde(error: &serde_json::Error) -> JsonError {
    let text = error.to_string();
    if let Some(why) = text.strip_prefix(IDENTIFIER_MARK) {
        return JsonError::BadIdentifier(why.to_owned());
    }
    match text.strip_prefix(UNREGISTERED_MARK) {
        Some(why) => JsonError::Unregistered(why.to_owned()),
        None => JsonError::Malformed(without_values(text)),
    }
}

/// serde repeats the offending value, which may be a token or a key: only what was expected stays.
fn without_values(text: String) -> String {
    for kind in ["invalid type", "invalid value", "unknown variant", "unknown field"] {
        if text.starts_with(kind) {
            return match text.rfind(", expected ") {
                Some(at) => format!("{kind}{}", &text[at..]),
                None => kind.to_owned(),
            };
        }
    }
    text
}

/// Deserialises an optional member that is there; for `#[serde(default, deserialize_with)]`. A derived
/// `Option` would take `null` for an absent member, but `null` is of another type than the member.
pub(crate) fn present<'de, T, D>(deserializer: D) -> Result<Option<T>, D::Error>
where
    T: serde::Deserialize<'de>,
    D: serde::Deserializer<'de>,
{
    T::deserialize(deserializer).map(Some)
}

#[cfg(test)]
mod tests;
