//! Many connections, each with one request under way: the same load for whoever serves.

use std::net::SocketAddr;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::runtime::{Builder, Runtime};
use tokio::task::{JoinSet, LocalSet};

use super::super::error::BenchError;
use super::super::wire::{content_length, find};
use super::script::Script;

const WHAT: &str = "a connection of the load";
/// Octets of an answer, head and body.
const MOST_OCTETS: usize = 8 << 10;

/// Connections that stay open, driven by one thread.
pub(super) struct Load {
    runtime: Runtime,
    connections: Vec<TcpStream>,
}

impl Load {
    /// Connects so many times.
    pub(super) fn connect(address: SocketAddr, count: usize) -> Result<Self, BenchError> {
        let failed = BenchError::io;
        let runtime = Builder::new_current_thread().enable_all().build().map_err(failed("the load"))?;
        let connections = runtime.block_on(async {
            let mut connections = Vec::with_capacity(count);
            for _ in 0..count {
                let stream = TcpStream::connect(address).await.map_err(failed(WHAT))?;
                stream.set_nodelay(true).map_err(failed(WHAT))?;
                connections.push(stream);
            }
            Ok::<_, BenchError>(connections)
        })?;
        Ok(Self { runtime, connections })
    }

    /// Sends each connection its requests one after the other, every one after the answer to that before it.
    pub(super) fn run(&mut self, script: &Script) -> Result<(), BenchError> {
        let connections = std::mem::take(&mut self.connections);
        let local = LocalSet::new();
        let back = local.block_on(&self.runtime, async {
            let mut running = JoinSet::new();
            for (mut stream, requests) in connections.into_iter().zip(script.requests()) {
                running.spawn_local(async move {
                    let mut buffer = vec![0; MOST_OCTETS];
                    for request in requests.iter() {
                        stream.write_all(request).await.map_err(BenchError::io(WHAT))?;
                        answer(&mut stream, &mut buffer).await?;
                    }
                    Ok::<_, BenchError>(stream)
                });
            }
            let mut back = Vec::new();
            while let Some(ended) = running.join_next().await {
                back.push(ended.map_err(|_| BenchError::Ended(WHAT))??);
            }
            Ok::<_, BenchError>(back)
        })?;
        self.connections = back;
        Ok(())
    }
}

/// Receives one answer, which must be good.
async fn answer(stream: &mut TcpStream, buffer: &mut [u8]) -> Result<(), BenchError> {
    const END: &[u8] = b"\r\n\r\n";
    let mut received = 0;
    loop {
        let room = buffer.get_mut(received..).filter(|room| !room.is_empty());
        let room = room.ok_or(BenchError::Answer(WHAT))?;
        match stream.read(room).await.map_err(BenchError::io(WHAT))? {
            0 => return Err(BenchError::Ended(WHAT)),
            octets => received += octets,
        }
        let Some(head) = find(&buffer[..received], END).map(|at| at + END.len()) else { continue };
        let text = std::str::from_utf8(&buffer[..head]).map_err(|_| BenchError::Answer(WHAT))?;
        let body = content_length(text).ok_or(BenchError::Answer(WHAT))?;
        if received < head.saturating_add(body) {
            continue;
        }
        let status = text.get(9..12).and_then(|status| status.parse().ok()).unwrap_or(0);
        if status == 200 {
            return Ok(());
        }
        let text = String::from_utf8_lossy(&buffer[head..received]).into_owned();
        return Err(BenchError::Status { what: "a checkpoint", status, text });
    }
}
