//! The text of `text/event-stream`, as the HTML standard has it.

use std::collections::VecDeque;

use crate::error::ClientError;

/// Octets of a line, and of a message's data.
const MAX_OCTETS: usize = 1 << 20;

/// What comes before a blank line: an event, or only where the reader is.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Message {
    /// The reader's place after it.
    pub(crate) id: Option<String>,
    /// The event's name; empty for none.
    pub(crate) name: String,
    /// Its data; several lines joined.
    pub(crate) data: String,
}

/// Takes a stream apart as it arrives.
#[derive(Debug, Default)]
pub(crate) struct Parser {
    line: Vec<u8>,
    message: Message,
    has_data: bool,
    after_cr: bool,
}

impl Parser {
    /// Takes in octets; messages that are whole go to `ready`.
    ///
    /// # Errors
    /// [`ClientError::TooLarge`].
    pub(crate) fn take(&mut self, octets: &[u8], ready: &mut VecDeque<Message>) -> Result<(), ClientError> {
        for &octet in octets {
            let after_cr = std::mem::replace(&mut self.after_cr, octet == b'\r');
            match octet {
                b'\n' if after_cr => {}
                b'\n' | b'\r' => self.end_line(ready)?,
                _ if self.line.len() >= MAX_OCTETS => {
                    return Err(ClientError::TooLarge { max: MAX_OCTETS as u64 });
                }
                _ => self.line.push(octet),
            }
        }
        Ok(())
    }

    fn end_line(&mut self, ready: &mut VecDeque<Message>) -> Result<(), ClientError> {
        let octets = std::mem::take(&mut self.line);
        if octets.is_empty() {
            let mut message = std::mem::take(&mut self.message);
            let has_data = std::mem::replace(&mut self.has_data, false);
            if !has_data {
                // Without data it is no event, but the place counts.
                message.name.clear();
            }
            if has_data || message.id.is_some() {
                ready.push_back(message);
            }
            return Ok(());
        }
        let line = String::from_utf8_lossy(&octets);
        let (field, value) = line.split_once(':').unwrap_or((&line, ""));
        let value = value.strip_prefix(' ').unwrap_or(value);
        match field {
            "id" if !value.contains('\0') => self.message.id = Some(value.to_owned()),
            "event" => value.clone_into(&mut self.message.name),
            "data" => {
                if std::mem::replace(&mut self.has_data, true) {
                    self.message.data.push('\n');
                }
                self.message.data.push_str(value);
                if self.message.data.len() > MAX_OCTETS {
                    return Err(ClientError::TooLarge { max: MAX_OCTETS as u64 });
                }
            }
            // A comment, or a field that means nothing here.
            _ => {}
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn messages(text: &str, cut: usize) -> Vec<(Option<String>, String, String)> {
        let (mut parser, mut ready) = (Parser::default(), VecDeque::new());
        for piece in text.as_bytes().chunks(cut) {
            parser.take(piece, &mut ready).unwrap();
        }
        ready.into_iter().map(|m| (m.id, m.name, m.data)).collect()
    }

    #[test]
    fn lines_fields_and_comments_are_told_apart() {
        let text = ": hello\nid: 1-0\n\nevent: publish\r\nid:1-1\r\ndata: {\"a\":\r\ndata:  1}\r\n\r\n\
            : still here\rid: 1-2\r\revent: x\n\ndata: {}\n\ndata: lost";
        let some = |id: &str| Some(id.to_owned());
        let want = [
            (some("1-0"), String::new(), String::new()),
            (some("1-1"), "publish".to_owned(), "{\"a\":\n 1}".to_owned()),
            (some("1-2"), String::new(), String::new()),
            (None, String::new(), "{}".to_owned()),
        ];
        for cut in [1, 2, 3, 7, text.len()] {
            assert_eq!(messages(text, cut), want, "in pieces of {cut}");
        }
    }

    #[test]
    fn a_line_has_an_end() {
        let mut parser = Parser::default();
        let long = vec![b'x'; MAX_OCTETS + 1];
        assert!(matches!(parser.take(&long, &mut VecDeque::new()), Err(ClientError::TooLarge { .. })));
    }
}
