//! Server-sent events: the `data:` lines that completions stream.

use std::fmt::Display;

use bytes::Bytes;
use serde::Serialize;

/// Longest event that a reader takes, in octets.
pub const MAX_EVENT_OCTETS: usize = 1 << 20;

/// The payload that ends a stream.
pub const DONE: &str = "[DONE]";

/// One event with a JSON payload.
///
/// # Errors
/// [`serde_json::Error`] where the payload cannot be written.
pub fn event<T: Serialize>(payload: &T) -> Result<Bytes, serde_json::Error> {
    written(String::new(), payload)
}

/// One event with a JSON payload and the name of the reader's place after it, which is of one line. A client
/// that comes back gives that name as `Last-Event-ID`.
///
/// # Errors
/// [`serde_json::Error`] where the payload cannot be written.
pub fn event_at<T: Serialize>(id: impl Display, payload: &T) -> Result<Bytes, serde_json::Error> {
    written(id_line(id), payload)
}

fn written<T: Serialize>(head: String, payload: &T) -> Result<Bytes, serde_json::Error> {
    let mut out = head.into_bytes();
    out.extend_from_slice(b"data: ");
    serde_json::to_writer(&mut out, payload)?;
    out.extend_from_slice(b"\n\n");
    Ok(out.into())
}

fn id_line(id: impl Display) -> String {
    format!("id: {id}\n")
}

/// The event that ends a stream.
#[must_use]
pub fn done() -> Bytes {
    Bytes::from_static(b"data: [DONE]\n\n")
}

/// The event that ends a stream, with the name of the reader's place after it.
#[must_use]
pub fn done_at(id: impl Display) -> Bytes {
    let mut out = id_line(id).into_bytes();
    out.extend_from_slice(&done());
    out.into()
}

/// A comment, which clients ignore: keeps a silent connection alive.
#[must_use]
pub fn keep_alive() -> Bytes {
    Bytes::from_static(b": keep-alive\n\n")
}

/// An event was longer than [`MAX_EVENT_OCTETS`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("an event is longer than {MAX_EVENT_OCTETS} octets")]
pub struct EventTooLong;

/// Reads the payloads of `data:` lines from chunks of any size.
#[derive(Debug, Default)]
pub struct EventReader {
    pending: Vec<u8>,
}

impl EventReader {
    /// Take a chunk and give back the payloads that it completed, in order.
    ///
    /// # Errors
    /// [`EventTooLong`]; the reader is of no use afterwards.
    pub fn push(&mut self, chunk: &[u8]) -> Result<Vec<String>, EventTooLong> {
        let mut payloads = Vec::new();
        for octet in chunk {
            if *octet != b'\n' {
                if self.pending.len() >= MAX_EVENT_OCTETS {
                    return Err(EventTooLong);
                }
                self.pending.push(*octet);
                continue;
            }
            let line = String::from_utf8_lossy(&self.pending);
            if let Some(payload) = line.trim_end_matches('\r').strip_prefix("data:") {
                payloads.push(payload.trim_start().to_owned());
            }
            self.pending.clear();
        }
        Ok(payloads)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn payloads_survive_any_chunking() {
        let mut stream = event(&serde_json::json!({"a": "ü\n"})).unwrap().to_vec();
        stream.extend_from_slice(&keep_alive());
        stream.extend_from_slice(b"event: x\r\ndata:[1]\r\n\r\n");
        stream.extend_from_slice(&done());
        for size in 1..stream.len() {
            let mut reader = EventReader::default();
            let got: Vec<String> = stream.chunks(size).flat_map(|c| reader.push(c).unwrap()).collect();
            assert_eq!(got, [r#"{"a":"ü\n"}"#, "[1]", DONE], "{size}");
        }
    }

    #[test]
    fn an_event_names_its_place() {
        let event = event_at("3:end", &serde_json::json!({"a": 1})).unwrap();
        assert_eq!(event, "id: 3:end\ndata: {\"a\":1}\n\n");
        assert_eq!(done_at(7), "id: 7\ndata: [DONE]\n\n");
        let mut reader = EventReader::default();
        assert_eq!(reader.push(&event).unwrap(), [r#"{"a":1}"#]);
    }

    #[test]
    fn an_endless_line_is_refused() {
        let mut reader = EventReader::default();
        assert_eq!(reader.push(&vec![b'x'; MAX_EVENT_OCTETS + 1]), Err(EventTooLong));
    }
}
