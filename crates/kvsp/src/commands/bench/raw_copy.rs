//! The limit of a transfer: the same octets through a plain loopback TCP connection.

use std::ffi::OsString;
use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, TcpListener, TcpStream};

use bytes::Bytes;
use nix::sys::socket::sockopt::TcpCongestion;
use nix::sys::socket::{getsockopt, setsockopt};

use super::BenchError;

/// Octets of a memory page.
const PAGE: usize = 4096;

/// A connection over which a thread sends the same pieces again and again, once for each octet that it gets.
pub(super) struct RawCopy {
    stream: TcpStream,
    congestion: String,
    sizes: Vec<usize>,
    buffer: Vec<u8>,
}

impl RawCopy {
    /// Connects. `congestion` names the sender's congestion control; without it the system chooses. `None`
    /// where the system does not let this process choose that one.
    pub(super) fn start(pieces: Vec<Bytes>, congestion: Option<&str>) -> Result<Option<Self>, BenchError> {
        let failed = BenchError::io;
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).map_err(failed("the raw copy"))?;
        let address = listener.local_addr().map_err(failed("the raw copy"))?;
        let stream = TcpStream::connect(address).map_err(failed("the raw copy"))?;
        let (sender, _) = listener.accept().map_err(failed("the raw copy"))?;
        for end in [&stream, &sender] {
            end.set_nodelay(true).map_err(failed("the raw copy"))?;
        }
        if let Some(name) = congestion
            && setsockopt(&sender, TcpCongestion, &OsString::from(name)).is_err()
        {
            return Ok(None);
        }
        let congestion = congestion_of(&sender);
        let sizes: Vec<usize> = pieces.iter().map(Bytes::len).collect();
        let buffer = vec![0; sizes.iter().max().unwrap_or(&0) + PAGE];
        std::thread::Builder::new()
            .name("bench-raw".to_owned())
            .spawn(move || send(sender, &pieces))
            .map_err(failed("the sender's thread"))?;
        Ok(Some(Self { stream, congestion, sizes, buffer }))
    }

    /// The congestion control of the sender.
    pub(super) fn congestion(&self) -> &str {
        &self.congestion
    }

    /// Receives every piece, each into the same buffer; the octets received.
    pub(super) fn copy(&mut self) -> Result<usize, BenchError> {
        let from = self.buffer.as_ptr().align_offset(PAGE).min(PAGE);
        self.stream.write_all(&[0]).map_err(BenchError::io("the raw copy"))?;
        let mut octets = 0;
        for &size in &self.sizes {
            self.stream
                .read_exact(&mut self.buffer[from..from + size])
                .map_err(BenchError::io("the raw copy"))?;
            octets += size;
        }
        Ok(octets)
    }
}

/// Ends with the connection: the receiver notices where that is too early.
fn send(mut sender: TcpStream, pieces: &[Bytes]) {
    let mut wanted = [0];
    while sender.read_exact(&mut wanted).is_ok() {
        for piece in pieces {
            if sender.write_all(piece).is_err() {
                return;
            }
        }
    }
}

fn congestion_of(stream: &TcpStream) -> String {
    let name = getsockopt(stream, TcpCongestion).unwrap_or_default();
    name.to_string_lossy().trim_end_matches('\0').to_owned()
}
