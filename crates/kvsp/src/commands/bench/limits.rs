//! What the machine can do at best, each in a process of its own: `kvsp bench --limit NAME` serves it on a free
//! port of loopback, told on stdout, until it is killed.

mod acknowledge;

use std::convert::Infallible;
use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, TcpListener, TcpStream};

use bytes::Bytes;
use http_body_util::{BodyExt as _, Empty};
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use kvsp_buffer::PageBuffer;
use kvsp_proto::container::Container;

use super::blocks::{self, CONTAINER_OCTETS, HEADER_OCTETS, LAYER_OCTETS, LAYERS};
use super::error::BenchError;
use super::hash::{self, Way};
use super::wire::Wire;

/// The name of [`raw_tcp`] on the command line.
pub(super) const RAW_TCP: &str = "raw-tcp";
/// The name of [`no_content`] on the command line.
pub(super) const NO_CONTENT: &str = "no-content";
/// The name of [`acknowledge`] on the command line.
pub(super) const ACKNOWLEDGE: &str = "acknowledge";
/// Containers that the raw server has.
pub(super) const RAW_BLOCKS: usize = 16;
/// Octets of a request's head to the raw server: a whole line of the cache, so that a container behind it lies
/// no odd octets off its place in a page, which makes copies slow.
const ASKED: usize = 64;
/// The longest answer that is asked for, and the longest request.
const MOST_OCTETS: usize = 4 << 20;

/// Which limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum LimitName {
    /// Blocks and octets over plain TCP.
    RawTcp,
    /// An HTTP server that reads a body and answers 204.
    NoContent,
    /// A service of ours that acknowledges checkpoints at once.
    Acknowledge,
}

impl LimitName {
    /// Serves until killed.
    pub(super) fn serve(self) -> Result<(), BenchError> {
        match self {
            Self::RawTcp => raw_tcp(),
            Self::NoContent => no_content(),
            Self::Acknowledge => acknowledge::serve(),
        }
    }
}

/// A request to the raw server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Ask {
    /// Send the container of this number, modulo how many there are.
    Block(u32),
    /// Take the container that follows, hash it whole and layer by layer in this way as it arrives, and answer one octet.
    Take(Way),
    /// Take so many octets that follow and answer so many others.
    Octets(u32, u32),
}

impl Ask {
    /// As it is sent.
    pub(super) fn to_octets(self) -> [u8; ASKED] {
        let (kind, a, b) = match self {
            Self::Block(block) => (0, block, 0),
            Self::Take(way) => (1, way as u32, 0),
            Self::Octets(request, answer) => (2, request, answer),
        };
        let mut octets = [kind; ASKED];
        octets[1..5].copy_from_slice(&a.to_be_bytes());
        octets[5..9].copy_from_slice(&b.to_be_bytes());
        octets
    }

    fn from_octets(octets: [u8; ASKED]) -> Option<Self> {
        let [kind, a0, a1, a2, a3, b0, b1, b2, b3, ..] = octets;
        let (a, b) = (u32::from_be_bytes([a0, a1, a2, a3]), u32::from_be_bytes([b0, b1, b2, b3]));
        match kind {
            0 => Some(Self::Block(a)),
            1 => Way::ALL.into_iter().find(|way| *way as u32 == a).map(Self::Take),
            2 if a.max(b) as usize <= MOST_OCTETS => Some(Self::Octets(a, b)),
            _ => None,
        }
    }
}

/// Receives a container from the raw server and hashes it as it arrives.
pub(super) fn receive(wire: &mut Wire, block: u32, way: Way) -> Result<(), BenchError> {
    wire.send(&Ask::Block(block).to_octets())?;
    if way == Way::Not {
        wire.exact(CONTAINER_OCTETS)?;
        return Ok(());
    }
    let mut hashing = hash::Hashing::new(way);
    wire.pieces(pieces(), |piece| hashing.take(piece))?;
    hashing.finish();
    Ok(())
}

/// Octets of a container's header and of each layer.
pub(super) fn pieces() -> impl Iterator<Item = usize> {
    std::iter::once(HEADER_OCTETS).chain(std::iter::repeat_n(LAYER_OCTETS, LAYERS as usize))
}

fn listen() -> Result<TcpListener, BenchError> {
    let failed = BenchError::io;
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).map_err(failed("the limit's listener"))?;
    let address = listener.local_addr().map_err(failed("the limit's listener"))?;
    let mut stdout = std::io::stdout();
    writeln!(stdout, "{address}").and_then(|()| stdout.flush()).map_err(failed("stdout"))?;
    Ok(listener)
}

/// One thread a connection, blocking reads and writes.
fn raw_tcp() -> Result<(), BenchError> {
    let containers = blocks::containers(RAW_BLOCKS)?;
    let listener = listen()?;
    std::thread::scope(|scope| {
        for stream in listener.incoming().map_while(Result::ok) {
            // Ends with the connection; the bench notices where that is too early.
            scope.spawn(|| serve_raw(stream, &containers));
        }
    });
    Ok(())
}

fn serve_raw(mut stream: TcpStream, containers: &[Container]) -> Option<()> {
    stream.set_nodelay(true).ok()?;
    let mut buffer = PageBuffer::unpooled(CONTAINER_OCTETS)?;
    let mut request = vec![0; 1 << 20];
    let answer = vec![b'x'; MOST_OCTETS];
    let mut asked = [0; ASKED];
    loop {
        stream.read_exact(&mut asked).ok()?;
        match Ask::from_octets(asked)? {
            Ask::Block(block) => {
                let container = containers.get(block as usize % containers.len().max(1))?;
                stream.write_all(container.bytes()).ok()?;
            }
            Ask::Take(way) => {
                take(&mut stream, &mut buffer, way)?;
                stream.write_all(&[1]).ok()?;
            }
            Ask::Octets(octets, answered) => {
                let mut left = octets as usize;
                while left > 0 {
                    let now = left.min(request.len());
                    stream.read_exact(&mut request[..now]).ok()?;
                    left -= now;
                }
                stream.write_all(&answer[..answered as usize]).ok()?;
            }
        }
    }
}

fn take(stream: &mut TcpStream, buffer: &mut PageBuffer, way: Way) -> Option<()> {
    let mut hashing = hash::Hashing::new(way);
    let mut at = 0;
    for octets in pieces() {
        let room = &mut buffer[at..at + octets];
        stream.read_exact(room).ok()?;
        hashing.take(room);
        at += octets;
    }
    hashing.finish();
    Some(())
}

/// hyper as it comes, on as many threads as there are cores.
fn no_content() -> Result<(), BenchError> {
    let failed = BenchError::io;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .map_err(failed("the limit's runtime"))?;
    let listener = listen()?;
    runtime.block_on(async {
        listener.set_nonblocking(true).map_err(failed("the limit's listener"))?;
        let listener = tokio::net::TcpListener::from_std(listener).map_err(failed("the limit's listener"))?;
        loop {
            let (stream, _) = listener.accept().await.map_err(failed("the limit's listener"))?;
            stream.set_nodelay(true).map_err(failed("the limit's listener"))?;
            let service = service_fn(|request: http::Request<hyper::body::Incoming>| async {
                let _ = request.into_body().collect().await;
                let mut answer = http::Response::new(Empty::<Bytes>::new());
                *answer.status_mut() = http::StatusCode::NO_CONTENT;
                Ok::<_, Infallible>(answer)
            });
            let connection = hyper::server::conn::http1::Builder::new();
            tokio::spawn(connection.serve_connection(TokioIo::new(stream), service));
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_read_as_they_were_sent() {
        for ask in [Ask::Block(7), Ask::Take(Way::TwoPasses), Ask::Octets(3, 1 << 20)] {
            assert_eq!(Ask::from_octets(ask.to_octets()), Some(ask));
        }
        assert_eq!(Ask::from_octets([9; ASKED]), None);
        assert_eq!(Ask::from_octets(Ask::Octets(u32::MAX, 0).to_octets()), None);
    }

    #[test]
    fn the_pieces_make_a_container() {
        assert_eq!(pieces().sum::<usize>(), CONTAINER_OCTETS);
    }
}
