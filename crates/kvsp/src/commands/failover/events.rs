//! The events of a stream with their identifiers.

use super::FailoverError;

/// Octets of a line.
const MAX_LINE: usize = 1 << 20;

/// One event: what is between two blank lines.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Raw {
    /// The place in the stream after it.
    pub(super) id: String,
    /// Its payload.
    pub(super) data: String,
}

/// Takes a stream apart as it arrives.
#[derive(Debug, Default)]
pub(super) struct Reader {
    line: Vec<u8>,
    event: Raw,
}

impl Reader {
    /// Takes octets and gives back the events that they complete; comments are passed over.
    pub(super) fn push(&mut self, octets: &[u8]) -> Result<Vec<Raw>, FailoverError> {
        let mut ready = Vec::new();
        for octet in octets {
            if *octet != b'\n' {
                if self.line.len() >= MAX_LINE {
                    return Err(FailoverError::Answer("a line without an end".to_owned()));
                }
                self.line.push(*octet);
                continue;
            }
            let line = String::from_utf8_lossy(&self.line).trim_end_matches('\r').to_owned();
            self.line.clear();
            match line.split_once(':') {
                Some(("id", value)) => value.trim().clone_into(&mut self.event.id),
                Some(("data", value)) => self.event.data.push_str(value.trim_start()),
                None if line.is_empty() && !self.event.data.is_empty() => {
                    ready.push(std::mem::take(&mut self.event));
                }
                _ => {}
            }
        }
        Ok(ready)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_have_their_identifiers_however_they_arrive() {
        let text = b": keep-alive\n\nid: 3\ndata: {\"a\": 1}\n\nid: 3:end\r\ndata: [DONE]\r\n\r\ndata: x\n\n";
        let event = |id: &str, data: &str| Raw { id: id.to_owned(), data: data.to_owned() };
        let want = [event("3", "{\"a\": 1}"), event("3:end", "[DONE]"), event("", "x")];
        for size in 1..=text.len() {
            let mut reader = Reader::default();
            let got: Vec<Raw> = text.chunks(size).flat_map(|piece| reader.push(piece).unwrap()).collect();
            assert_eq!(got, want, "{size}");
        }
        assert!(Reader::default().push(&vec![b'x'; MAX_LINE + 1]).is_err());
    }
}
