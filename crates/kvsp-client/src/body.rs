//! The body of an answer as it comes in.

use std::future::{Future as _, poll_fn};
use std::pin::Pin;
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http_body::{Body, Frame, SizeHint};
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use tokio::io::{AsyncRead as _, ReadBuf};
use tokio::time::{Instant, Sleep};

use crate::error::ClientError;
use crate::exchange::{Bare, Exchange};

/// Octets read at a time into memory of the receiver's: what is hashed then is still in the cache.
const PIECE_OCTETS: usize = 256 << 10;

/// A body that may be silent only so long, and where a deadline is set must be whole by then. Dropping it
/// before its end closes the connection; after its end the connection is used again.
#[derive(Debug)]
pub struct StreamedBody {
    incoming: Incoming,
    /// `None` once the body has ended.
    exchange: Option<Exchange>,
    patience: Patience,
}

impl StreamedBody {
    pub(crate) fn new(
        incoming: Incoming,
        exchange: Exchange,
        host: String,
        idle: Duration,
        whole: Option<Instant>,
    ) -> Self {
        Self { incoming, exchange: Some(exchange), patience: Patience::new(host, idle, whole) }
    }

    /// The next octets; `None` after the last.
    ///
    /// # Errors
    /// [`ClientError::Timeout`] and [`ClientError::Unreachable`].
    pub async fn chunk(&mut self) -> Result<Option<Bytes>, ClientError> {
        while let Some(frame) = self.frame().await {
            if let Ok(data) = frame?.into_data() {
                return Ok(Some(data));
            }
        }
        Ok(None)
    }

    /// The octets that the peer declared; `None` where it did not.
    pub(crate) fn declared(&self) -> Option<u64> {
        self.incoming.size_hint().exact()
    }

    /// The whole body in one buffer, at most `max` octets.
    pub(crate) async fn collect(mut self, max: u64) -> Result<Bytes, ClientError> {
        let declared = self.declared();
        if declared.is_some_and(|octets| octets > max) {
            return Err(ClientError::TooLarge { max });
        }
        let whole = declared.and_then(|octets| usize::try_from(octets).ok()).unwrap_or(0);
        let mut buffer = BytesMut::new();
        while let Some(piece) = self.chunk().await? {
            if (buffer.len() as u64).saturating_add(piece.len() as u64) > max {
                return Err(ClientError::TooLarge { max });
            }
            if buffer.is_empty() && piece.len() == whole {
                // The connection goes back to the pool only once the end has been seen.
                while self.chunk().await?.is_some() {}
                return Ok(piece);
            }
            if buffer.is_empty() {
                buffer.reserve(whole.max(piece.len()));
            }
            buffer.extend_from_slice(&piece);
        }
        Ok(buffer.freeze())
    }

    /// Receives a body of exactly the declared octets, which `memory` has. `seen` is shown every piece as it
    /// arrives, and may refuse the body. The socket is read straight into `memory`.
    pub(crate) async fn receive_into(
        mut self,
        memory: &mut [u8],
        mut seen: impl FnMut(&[u8]) -> Result<(), ClientError>,
    ) -> Result<(), ClientError> {
        let mut arrived = 0;
        let bare = self.exchange.take().and_then(Exchange::into_bare);
        for piece in self.read_already(bare.as_ref()) {
            let end = arrived + piece.len();
            // More than was declared belongs to no answer.
            let room = memory.get_mut(arrived..end).ok_or_else(|| self.patience.broken_off())?;
            room.copy_from_slice(&piece);
            seen(&piece)?;
            arrived = end;
        }
        let Some(mut bare) = bare else {
            return if arrived == memory.len() { Ok(()) } else { Err(self.patience.broken_off()) };
        };
        while arrived < memory.len() {
            let end = memory.len().min(arrived + PIECE_OCTETS);
            let count = self.patience.read(&mut bare, &mut memory[arrived..end]).await?;
            seen(&memory[arrived..arrived + count])?;
            arrived += count;
        }
        bare.end();
        Ok(())
    }

    /// What the HTTP library read together with the head: some in its channel, some in its buffer.
    fn read_already(&mut self, bare: Option<&Bare>) -> Vec<Bytes> {
        let mut pieces = Vec::new();
        let mut context = Context::from_waker(Waker::noop());
        while let Poll::Ready(Some(Ok(frame))) = Pin::new(&mut self.incoming).poll_frame(&mut context) {
            pieces.extend(frame.into_data().ok());
        }
        pieces.extend(bare.map(|bare| bare.read.clone()));
        pieces
    }

    /// The body has ended: its connection may serve the next request.
    fn release(&mut self) {
        if let Some(exchange) = self.exchange.take() {
            exchange.end();
        }
    }
}

impl Body for StreamedBody {
    type Data = Bytes;
    type Error = ClientError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, ClientError>>> {
        let this = &mut *self;
        if let Some(exchange) = &mut this.exchange {
            exchange.drive(cx);
        }
        match Pin::new(&mut this.incoming).poll_frame(cx) {
            Poll::Ready(Some(Ok(frame))) => Poll::Ready(Some(this.patience.arrived().map(|()| frame))),
            Poll::Ready(Some(Err(error))) => Poll::Ready(Some(Err(this.patience.broken(error)))),
            Poll::Ready(None) => {
                this.release();
                Poll::Ready(None)
            }
            Poll::Pending => this.patience.poll_end(cx).map(|error| Some(Err(error))),
        }
    }

    fn is_end_stream(&self) -> bool {
        self.incoming.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.incoming.size_hint()
    }
}

impl Drop for StreamedBody {
    fn drop(&mut self) {
        if self.incoming.is_end_stream() {
            self.release();
        }
    }
}

/// How long a peer may take.
#[derive(Debug)]
struct Patience {
    host: String,
    idle: Duration,
    whole: Option<Instant>,
    timer: Pin<Box<Sleep>>,
    /// The timer runs for the present silence.
    silent: bool,
}

impl Patience {
    fn new(host: String, idle: Duration, whole: Option<Instant>) -> Self {
        let timer = Box::pin(tokio::time::sleep(idle));
        Self { host, idle, whole, timer, silent: false }
    }

    /// Octets have arrived. A peer that trickles is never silent for long: the deadline holds for it too.
    fn arrived(&mut self) -> Result<(), ClientError> {
        self.silent = false;
        match self.whole {
            Some(whole) if whole <= Instant::now() => Err(self.timeout()),
            _ => Ok(()),
        }
    }

    /// Nothing has arrived: ready once the silence is too long.
    fn poll_end(&mut self, cx: &mut Context<'_>) -> Poll<ClientError> {
        if !self.silent {
            let end = Instant::now() + self.idle;
            self.timer.as_mut().reset(self.whole.map_or(end, |whole| whole.min(end)));
            self.silent = true;
        }
        self.timer.as_mut().poll(cx).map(|()| self.timeout())
    }

    /// Reads what is there, at least one octet, into `room`, which is not empty; how many.
    async fn read(&mut self, bare: &mut Bare, room: &mut [u8]) -> Result<usize, ClientError> {
        let mut room = ReadBuf::new(room);
        poll_fn(|cx| match Pin::new(&mut bare.stream).poll_read(cx, &mut room) {
            Poll::Pending => Poll::Ready(Err(ready!(self.poll_end(cx)))),
            Poll::Ready(Err(error)) => Poll::Ready(Err(self.broken(error))),
            Poll::Ready(Ok(())) => Poll::Ready(self.arrived()),
        })
        .await?;
        match room.filled().len() {
            0 => Err(self.broken_off()),
            count => Ok(count),
        }
    }

    fn timeout(&self) -> ClientError {
        ClientError::Timeout { host: self.host.clone() }
    }

    fn broken(&self, error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> ClientError {
        ClientError::Unreachable { host: self.host.clone(), source: error.into() }
    }

    fn broken_off(&self) -> ClientError {
        self.broken(std::io::Error::from(std::io::ErrorKind::UnexpectedEof))
    }
}
