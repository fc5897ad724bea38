//! One connection with as little between it and the socket as can be: what a service is measured by, and what
//! the limits and the peers are measured by alike.

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::ops::Range;

use kvsp_buffer::PageBuffer;

use super::error::BenchError;

/// Octets of a page: a receive buffer that begins elsewhere makes the kernel's copies slow.
const PAGE: usize = 4096;
const WIRE: &str = "a connection";

/// A blocking connection that takes one answer at a time into one page-aligned buffer.
pub(super) struct Wire {
    stream: TcpStream,
    /// The head of an answer lies at the end of the first page, so that its body begins at the second.
    buffer: PageBuffer,
    /// Octets of the last answer's head.
    head: usize,
}

/// An answer over HTTP.
pub(super) struct Answer<'a> {
    pub(super) status: u16,
    pub(super) body: &'a [u8],
}

impl Answer<'_> {
    /// The body of a good answer.
    pub(super) fn good(&self, what: &'static str) -> Result<&[u8], BenchError> {
        if (200..300).contains(&self.status) {
            return Ok(self.body);
        }
        let text = String::from_utf8_lossy(&self.body[..self.body.len().min(200)]).into_owned();
        Err(BenchError::Status { what, status: self.status, text })
    }
}

impl Wire {
    /// Connects. No answer has a body of more than `largest` octets.
    pub(super) fn connect(address: SocketAddr, largest: usize) -> Result<Self, BenchError> {
        let stream = TcpStream::connect(address).map_err(BenchError::io(WIRE))?;
        stream.set_nodelay(true).map_err(BenchError::io(WIRE))?;
        let buffer = PageBuffer::unpooled(2 * PAGE + largest).ok_or(BenchError::Memory)?;
        Ok(Self { stream, buffer, head: 0 })
    }

    /// Sends a request without waiting for anything.
    pub(super) fn send(&mut self, request: &[u8]) -> Result<(), BenchError> {
        self.stream.write_all(request).map_err(BenchError::io(WIRE))
    }

    /// The next `octets`.
    pub(super) fn exact(&mut self, octets: usize) -> Result<&[u8], BenchError> {
        let room = self.buffer.get_mut(PAGE..PAGE + octets).ok_or(BenchError::Answer(WIRE))?;
        self.stream.read_exact(room).map_err(BenchError::io(WIRE))?;
        Ok(room)
    }

    /// The next octets in pieces of these sizes, each shown as it arrives; they lie one after the other.
    pub(super) fn pieces(
        &mut self,
        sizes: impl IntoIterator<Item = usize>,
        mut seen: impl FnMut(&[u8]),
    ) -> Result<&[u8], BenchError> {
        let mut at = PAGE;
        for octets in sizes {
            let room = self.buffer.get_mut(at..at + octets).ok_or(BenchError::Answer(WIRE))?;
            self.stream.read_exact(room).map_err(BenchError::io(WIRE))?;
            seen(room);
            at += octets;
        }
        Ok(&self.buffer[PAGE..at])
    }

    /// The next answer over HTTP/1.1, which must tell its length.
    pub(super) fn http(&mut self) -> Result<Answer<'_>, BenchError> {
        const END: &[u8] = b"\r\n\r\n";
        let (head, received) = self.head(|octets| find(octets, END).map(|at| at + END.len()))?;
        let text = std::str::from_utf8(&self.buffer[head.clone()]).map_err(|_| BenchError::Answer(WIRE))?;
        let status = text.get(9..12).and_then(|status| status.parse().ok());
        let status = status.ok_or(BenchError::Answer(WIRE))?;
        let octets = if status == 204 { Some(0) } else { content_length(text) };
        let body = self.rest(head.end, octets.ok_or(BenchError::Answer(WIRE))?, received)?;
        Ok(Answer { status, body: &self.buffer[body] })
    }

    /// The next bulk string of a Redis server.
    pub(super) fn bulk(&mut self) -> Result<&[u8], BenchError> {
        let (head, received) = self.head(|octets| find(octets, b"\r\n").map(|at| at + 2))?;
        let text = std::str::from_utf8(&self.buffer[head.clone()]).unwrap_or_default();
        let octets = text.strip_prefix('$').and_then(|rest| rest.trim_end().parse::<usize>().ok());
        let body = self.rest(head.end, octets.ok_or(BenchError::Answer("redis-server"))? + 2, received)?;
        Ok(&self.buffer[body.start..body.end - 2])
    }

    /// Receives until `end` finds the head's octets; where it lies, and where what was received ends.
    fn head(&mut self, end: impl Fn(&[u8]) -> Option<usize>) -> Result<(Range<usize>, usize), BenchError> {
        let start = PAGE - self.head.min(PAGE);
        let mut received = start;
        loop {
            let octets = match self.stream.read(&mut self.buffer[received..]) {
                Ok(0) => return Err(BenchError::Ended(WIRE)),
                Ok(octets) => octets,
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) => return Err(BenchError::io(WIRE)(error)),
            };
            received += octets;
            if let Some(octets) = end(&self.buffer[start..received]) {
                self.head = octets;
                return Ok((start..start + octets, received));
            }
            if received >= start + PAGE {
                return Err(BenchError::Answer(WIRE));
            }
        }
    }

    /// Receives the body that begins at `start`; where it lies.
    fn rest(&mut self, start: usize, octets: usize, received: usize) -> Result<Range<usize>, BenchError> {
        let end = start.checked_add(octets).filter(|&end| end <= self.buffer.len() && received <= end);
        let end = end.ok_or(BenchError::Answer(WIRE))?;
        self.stream.read_exact(&mut self.buffer[received..end]).map_err(BenchError::io(WIRE))?;
        Ok(start..end)
    }
}

/// Where it begins, within the first page.
pub(super) fn find(octets: &[u8], what: &[u8]) -> Option<usize> {
    octets.windows(what.len()).take(PAGE).position(|window| window == what)
}

/// The length that a head over HTTP/1.1 tells.
pub(super) fn content_length(head: &str) -> Option<usize> {
    head.lines().find_map(|line| {
        let (name, value) = line.split_once(':')?;
        name.eq_ignore_ascii_case("content-length").then(|| value.trim().parse().ok())?
    })
}

/// The octets of a request over HTTP/1.1 with its body. `path` begins with `/`.
pub(super) fn http_request(method: &str, path: &str, headers: &[(&str, &str)], body: &[u8]) -> Vec<u8> {
    let mut text = format!("{method} {path} HTTP/1.1\r\nhost: 127.0.0.1\r\n");
    for (name, value) in headers {
        text.push_str(&format!("{name}: {value}\r\n"));
    }
    if !body.is_empty() {
        text.push_str(&format!("content-length: {}\r\n", body.len()));
    }
    text.push_str("\r\n");
    [text.as_bytes(), body].concat()
}

/// The octets of a Redis command.
pub(super) fn redis_command(parts: &[&[u8]]) -> Vec<u8> {
    let mut octets = format!("*{}\r\n", parts.len()).into_bytes();
    for part in parts {
        octets.extend_from_slice(format!("${}\r\n", part.len()).as_bytes());
        octets.extend_from_slice(part);
        octets.extend_from_slice(b"\r\n");
    }
    octets
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    /// A connection to somebody who sends this, twice.
    fn told(octets: &'static [u8]) -> Wire {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let wire = Wire::connect(listener.local_addr().unwrap(), 100).unwrap();
        let (mut sender, _) = listener.accept().unwrap();
        std::thread::spawn(move || {
            for _ in 0..2 {
                sender.write_all(octets).unwrap();
                let _ = sender.read(&mut [0]);
            }
        });
        wire
    }

    #[test]
    fn the_body_of_an_answer_begins_at_a_page_from_the_second_on() {
        let mut wire = told(b"HTTP/1.1 201 Created\r\nX: y\r\nContent-Length: 3\r\n\r\nabc");
        assert_eq!(wire.http().unwrap().body, b"abc");
        wire.send(b"\n").unwrap();
        let answer = wire.http().unwrap();
        assert_eq!((answer.status, answer.good("x").unwrap()), (201, b"abc".as_slice()));
        assert_eq!(answer.body.as_ptr().align_offset(PAGE), 0);
        assert!(told(b"HTTP/1.1 200 OK\r\n\r\nabc").http().is_err(), "a length is needed");
        let mut wire = told(b"HTTP/1.1 404 Not Found\r\ncontent-length: 1\r\n\r\nx");
        assert!(matches!(wire.http().unwrap().good("x"), Err(BenchError::Status { status: 404, .. })));
        assert!(told(b"HTTP/1.1 200 OK\r\ncontent-length: 99999\r\n\r\nabc").http().is_err());
    }

    #[test]
    fn bulk_strings_and_plain_octets() {
        assert_eq!(told(b"$3\r\nabc\r\n").bulk().unwrap(), b"abc");
        assert!(told(b"$-1\r\n").bulk().is_err());
        assert_eq!(told(b"abcd").exact(4).unwrap(), b"abcd");
        let mut sizes = Vec::new();
        assert_eq!(told(b"abcd").pieces([1, 3], |piece| sizes.push(piece.len())).unwrap(), b"abcd");
        assert_eq!(sizes, [1, 3]);
        assert_eq!(redis_command(&[b"GET", b"a"]), b"*2\r\n$3\r\nGET\r\n$1\r\na\r\n");
    }
}
