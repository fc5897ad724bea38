//! Places in an answer: what a client that comes back names as `Last-Event-ID`.

use std::fmt;

/// The place after an event. `n` counts the output tokens that the answer had taken by then; an answer's
/// events are a function of its tokens, so a place means the same whoever renders it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Place {
    /// After the text of the first `n` tokens: `n`.
    Tokens(u64),
    /// After the text that was held back until the end: `n:rest`.
    Rest(u64),
    /// After the chunk that tells why the output ended: `n:end`.
    End(u64),
    /// After the usage: `n:usage`.
    Usage(u64),
    /// After everything: `n:done`.
    Done(u64),
}

impl Place {
    /// Reads a place; `None` for anything that no event of ours carries.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let (number, kind) = text.split_once(':').map_or((text, None), |(n, kind)| (n, Some(kind)));
        if number.is_empty() || number.len() > 19 || !number.bytes().all(|c| c.is_ascii_digit()) {
            return None;
        }
        let n = number.parse().ok()?;
        match kind {
            None => Some(Self::Tokens(n)),
            Some("rest") => Some(Self::Rest(n)),
            Some("end") => Some(Self::End(n)),
            Some("usage") => Some(Self::Usage(n)),
            Some("done") => Some(Self::Done(n)),
            Some(_) => None,
        }
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tokens(n) => write!(f, "{n}"),
            Self::Rest(n) => write!(f, "{n}:rest"),
            Self::End(n) => write!(f, "{n}:end"),
            Self::Usage(n) => write!(f, "{n}:usage"),
            Self::Done(n) => write!(f, "{n}:done"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_read_as_they_are_written() {
        for place in [Place::Tokens(0), Place::Rest(1), Place::End(23), Place::Usage(23), Place::Done(9)] {
            assert_eq!(Place::parse(&place.to_string()), Some(place));
        }
        for bad in
            ["", ":", "1:", ":end", "-1", "+1", "1:END", "1:end:end", "99999999999999999999", "x", "1 "]
        {
            assert_eq!(Place::parse(bad), None, "{bad:?}");
        }
    }
}
