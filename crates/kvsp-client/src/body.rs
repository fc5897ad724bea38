//! The body of an answer as it comes in.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http_body::{Body, Frame, SizeHint};
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use tokio::time::{Instant, Sleep};

use crate::error::ClientError;

/// A body that may be silent only so long, and where a deadline is set must be whole by then. Dropping it
/// before its end closes the connection; after its end the connection is used again.
#[derive(Debug)]
pub struct StreamedBody {
    incoming: Incoming,
    host: String,
    idle: Duration,
    whole: Option<Instant>,
    timer: Pin<Box<Sleep>>,
}

impl StreamedBody {
    pub(crate) fn new(incoming: Incoming, host: String, idle: Duration, whole: Option<Instant>) -> Self {
        let timer = Box::pin(tokio::time::sleep_until(next(idle, whole)));
        Self { incoming, host, idle, whole, timer }
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

    /// The whole body in one buffer, at most `max` octets; `seen` is shown every piece as it arrives.
    pub(crate) async fn collect(
        mut self,
        max: u64,
        mut seen: impl FnMut(&[u8]),
    ) -> Result<Bytes, ClientError> {
        let declared = self.incoming.size_hint().exact();
        if declared.is_some_and(|octets| octets > max) {
            return Err(ClientError::TooLarge { max });
        }
        let whole = declared.and_then(|octets| usize::try_from(octets).ok()).unwrap_or(0);
        let mut buffer = BytesMut::new();
        while let Some(piece) = self.chunk().await? {
            if (buffer.len() as u64).saturating_add(piece.len() as u64) > max {
                return Err(ClientError::TooLarge { max });
            }
            seen(&piece);
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
}

fn next(idle: Duration, whole: Option<Instant>) -> Instant {
    let silent = Instant::now() + idle;
    whole.map_or(silent, |whole| whole.min(silent))
}

impl Body for StreamedBody {
    type Data = Bytes;
    type Error = ClientError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, ClientError>>> {
        let this = &mut *self;
        match Pin::new(&mut this.incoming).poll_frame(cx) {
            Poll::Ready(Some(Ok(frame))) => {
                // A peer that trickles is never silent for long: the deadline holds for it too.
                if this.whole.is_some_and(|whole| whole <= Instant::now()) {
                    return Poll::Ready(Some(Err(ClientError::Timeout { host: this.host.clone() })));
                }
                this.timer.as_mut().reset(next(this.idle, this.whole));
                Poll::Ready(Some(Ok(frame)))
            }
            Poll::Ready(Some(Err(error))) => {
                let host = this.host.clone();
                Poll::Ready(Some(Err(ClientError::Unreachable { host, source: error.into() })))
            }
            Poll::Ready(None) => Poll::Ready(None),
            Poll::Pending if this.timer.as_mut().poll(cx).is_ready() => {
                Poll::Ready(Some(Err(ClientError::Timeout { host: this.host.clone() })))
            }
            Poll::Pending => Poll::Pending,
        }
    }

    fn is_end_stream(&self) -> bool {
        self.incoming.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.incoming.size_hint()
    }
}
