//! The `positional` member of a descriptor: a registered encoding and its parameters (profile section 2).

use std::fmt;
use std::str::FromStr;

use crate::registry::PositionalEncoding;

/// A positional encoding with the parameters that differ from the model's defaults; shown in the
/// one form in which it parses: `name;a=1;b=2`.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Positional {
    encoding: PositionalEncoding,
    /// Sorted by name, no name twice.
    parameters: Vec<(String, String)>,
}

/// A `positional` that does not parse (`kvsp-descriptor-invalid`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum PositionalError {
    /// The part before the first `;` is not a registered encoding.
    #[error("not a registered positional encoding")]
    Unregistered,
    /// A parameter is not `name=value` of the permitted characters.
    #[error("a parameter is not name=value")]
    NotAParameter,
    /// The parameters are not sorted by name, or a name occurs twice.
    #[error("the parameters are not sorted by name, each once")]
    NotSorted,
    /// A number is not in ECMAScript form: `4.0`, `1e3`, `+4`.
    #[error("a number is not in ECMAScript form")]
    NotCanonical,
    /// `rope-dynamic` and `rope-longrope` change their keys with the sequence length and must say
    /// for which `regime` they were computed.
    #[error("this encoding needs the parameter regime")]
    NoRegime,
}

impl Positional {
    /// The encoding without its parameters.
    #[must_use]
    pub const fn encoding(&self) -> PositionalEncoding {
        self.encoding
    }

    /// The value of the parameter `name`, as written.
    #[must_use]
    pub fn parameter(&self, name: &str) -> Option<&str> {
        self.parameters.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }

    /// All parameters in order.
    pub fn parameters(&self) -> impl Iterator<Item = (&str, &str)> {
        self.parameters.iter().map(|(name, value)| (name.as_str(), value.as_str()))
    }
}

impl FromStr for Positional {
    type Err = PositionalError;

    fn from_str(text: &str) -> Result<Self, PositionalError> {
        let mut parts = text.split(';');
        let encoding = parts
            .next()
            .and_then(|name| name.parse::<PositionalEncoding>().ok())
            .ok_or(PositionalError::Unregistered)?;
        let mut parameters: Vec<(String, String)> = Vec::new();
        for part in parts {
            let (name, value) = part.split_once('=').ok_or(PositionalError::NotAParameter)?;
            if !is_name(name) {
                return Err(PositionalError::NotAParameter);
            }
            check_value(value)?;
            if parameters.last().is_some_and(|(last, _)| last.as_str() >= name) {
                return Err(PositionalError::NotSorted);
            }
            parameters.push((name.to_owned(), value.to_owned()));
        }
        let positional = Self { encoding, parameters };
        let needs_regime =
            matches!(encoding, PositionalEncoding::RopeDynamic | PositionalEncoding::RopeLongrope);
        if needs_regime && positional.parameter("regime").is_none() {
            return Err(PositionalError::NoRegime);
        }
        Ok(positional)
    }
}

impl fmt::Display for Positional {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.encoding.as_str())?;
        self.parameters.iter().try_for_each(|(name, value)| write!(f, ";{name}={value}"))
    }
}

fn is_name(name: &str) -> bool {
    name.starts_with(|c: char| c.is_ascii_alphabetic())
        && name.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.'))
}

/// A value is a number, a word, or several of them separated by `,` (mrope's sections, LongRoPE's factors).
fn check_value(value: &str) -> Result<(), PositionalError> {
    value.split(',').try_for_each(|atom| {
        if atom.is_empty() || !atom.chars().all(|c| c.is_ascii_alphanumeric() || "_-.+:".contains(c)) {
            return Err(PositionalError::NotAParameter);
        }
        match atom.parse::<f64>() {
            Ok(number) if ecmascript(number).as_deref() == Some(atom) => Ok(()),
            Ok(_) => Err(PositionalError::NotCanonical),
            Err(_) => Ok(()),
        }
    })
}

/// The form that ECMAScript, and so JCS, gives a finite number.
fn ecmascript(number: f64) -> Option<String> {
    number.is_finite().then(|| serde_json_canonicalizer::to_string(&number).ok()).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_one_form_parses_and_is_shown_again() {
        for text in [
            "none",
            "learned",
            "alibi",
            "rope",
            "rope;theta=500000",
            "rope-yarn;beta_fast=32;beta_slow=1;factor=4;original_max_position_embeddings=32768",
            "rope-linear;factor=0.5",
            "rope;theta=1e+21",
            "rope;theta=1e-7",
            "rope-dynamic;factor=2;regime=4096",
            "rope-longrope;regime=short",
            "mrope;section=16,24,24",
        ] {
            assert_eq!(text.parse::<Positional>().unwrap().to_string(), text);
        }
        let yarn: Positional = "rope-yarn;beta_fast=32;factor=4".parse().unwrap();
        assert_eq!(yarn.parameter("factor"), Some("4"));
        assert_eq!(yarn.parameter("beta"), None);
        assert_eq!(yarn.parameters().count(), 2);
    }

    #[test]
    fn every_other_form_is_refused() {
        use PositionalError::{NoRegime, NotAParameter, NotCanonical, NotSorted, Unregistered};
        for (text, error) in [
            ("", Unregistered),
            ("Rope", Unregistered),
            (" rope", Unregistered),
            ("rope-", Unregistered),
            ("rope;", NotAParameter),
            ("rope;;theta=1", NotAParameter),
            ("rope;theta", NotAParameter),
            ("rope;theta=", NotAParameter),
            ("rope;=1", NotAParameter),
            ("rope;theta= 1", NotAParameter),
            ("rope; theta=1", NotAParameter),
            ("rope;theta=1;", NotAParameter),
            ("rope;theta=1=2", NotAParameter),
            ("rope;theta=1,,2", NotAParameter),
            ("rope;b=1;a=1", NotSorted),
            ("rope;a=1;a=1", NotSorted),
            ("rope;theta=4.0", NotCanonical),
            ("rope;theta=04", NotCanonical),
            ("rope;theta=+4", NotCanonical),
            ("rope;theta=-0", NotCanonical),
            ("rope;theta=.5", NotCanonical),
            ("rope;theta=5.", NotCanonical),
            ("rope;theta=1e3", NotCanonical),
            ("rope;theta=1E+21", NotCanonical),
            ("rope;theta=1e999", NotCanonical),
            ("rope;theta=nan", NotCanonical),
            ("mrope;section=16,24.0", NotCanonical),
            ("rope-dynamic", NoRegime),
            ("rope-longrope;factor=2", NoRegime),
        ] {
            assert_eq!(text.parse::<Positional>(), Err(error), "{text}");
        }
    }
}
