//! The body of a request as it comes in: with a deadline, and with manners when nobody reads it.
//!
//! A server that closes a socket with unread octets in it makes the kernel send a reset, which can overtake
//! the answer. So a body that its handler refused to read is read and thrown away for a while, bounded in
//! octets and time, after the answer is on its way; then the connection serves the next request or closes.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::header::EXPECT;
use http::request::Parts;
use http_body::{Body, Frame, SizeHint};
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use tokio::runtime::Handle;
use tokio::time::{Instant, Sleep};

/// How long a body may take, and how much of an unwanted one is read.
#[derive(Debug, Clone, Copy)]
pub(crate) struct InboundLimits {
    /// Longest wait for the next octets.
    pub(crate) idle: Duration,
    /// Longest time from the first read to the last octet.
    pub(crate) total: Duration,
    /// Longest time that an unwanted body is read.
    pub(crate) linger: Duration,
    /// Most octets of an unwanted body that are read.
    pub(crate) linger_octets: u64,
}

/// Why a body ended early.
#[derive(Debug, thiserror::Error)]
pub(crate) enum InboundError {
    /// The peer sent nothing for too long, or was too slow altogether.
    #[error("the body came too slowly")]
    Slow,
    /// The peer broke off, or its framing is wrong.
    #[error("the body broke off")]
    Broken(#[source] hyper::Error),
}

/// A request body.
pub(crate) struct InboundBody {
    /// `None` once it has ended.
    incoming: Option<Incoming>,
    limits: InboundLimits,
    /// When the body must be complete; set by the first read.
    deadline: Option<Instant>,
    /// Runs while octets are waited for: most bodies are there with the head of their request.
    timer: Option<Pin<Box<Sleep>>>,
    /// The peer waits for `100 Continue`, which a first read causes to be sent.
    expects: bool,
    /// Only HTTP/1 shares its connection's fate with a body; HTTP/2 resets the stream.
    lingers: bool,
}

impl InboundBody {
    pub(crate) fn new(parts: &Parts, incoming: Incoming, limits: InboundLimits) -> Self {
        Self {
            incoming: (!incoming.is_end_stream()).then_some(incoming),
            limits,
            deadline: None,
            timer: None,
            expects: parts.headers.contains_key(EXPECT),
            lingers: parts.version <= http::Version::HTTP_11,
        }
    }

    fn poll_timer(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, InboundError>>> {
        let timer = self.timer.get_or_insert_with(|| {
            let silent = Instant::now() + self.limits.idle;
            let end = self.deadline.map_or(silent, |deadline| deadline.min(silent));
            Box::pin(tokio::time::sleep_until(end))
        });
        if timer.as_mut().poll(cx).is_ready() {
            return Poll::Ready(Some(Err(InboundError::Slow)));
        }
        Poll::Pending
    }
}

impl Body for InboundBody {
    type Data = Bytes;
    type Error = InboundError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, InboundError>>> {
        let this = &mut *self;
        let total = this.limits.total;
        let deadline = *this.deadline.get_or_insert_with(|| Instant::now() + total);
        let Some(incoming) = &mut this.incoming else { return Poll::Ready(None) };
        match Pin::new(incoming).poll_frame(cx) {
            Poll::Pending => this.poll_timer(cx),
            Poll::Ready(Some(Ok(frame))) => {
                // A peer that trickles is never pending for long: the deadline holds for it too. One that
                // was never waited for cannot trickle.
                if this.timer.take().is_some() && deadline <= Instant::now() {
                    return Poll::Ready(Some(Err(InboundError::Slow)));
                }
                Poll::Ready(Some(Ok(frame)))
            }
            Poll::Ready(Some(Err(error))) => {
                this.incoming = None;
                Poll::Ready(Some(Err(InboundError::Broken(error))))
            }
            Poll::Ready(None) => {
                this.incoming = None;
                Poll::Ready(None)
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.incoming.as_ref().is_none_or(Body::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        self.incoming.as_ref().map_or_else(|| SizeHint::with_exact(0), Body::size_hint)
    }
}

impl Drop for InboundBody {
    fn drop(&mut self) {
        let Some(incoming) = self.incoming.take().filter(|incoming| !incoming.is_end_stream()) else {
            return;
        };
        // A peer that waits for `100 Continue` has not sent the body, and must not be told to.
        let unsent = self.expects && self.deadline.is_none();
        if !self.lingers || unsent {
            return;
        }
        if let Ok(runtime) = Handle::try_current() {
            runtime.spawn(linger(incoming, self.limits));
        }
    }
}

async fn linger(mut incoming: Incoming, limits: InboundLimits) {
    let discard = async {
        let mut left = limits.linger_octets;
        while let Some(Ok(frame)) = incoming.frame().await {
            let octets = frame.data_ref().map_or(0, Bytes::len) as u64;
            match left.checked_sub(octets) {
                Some(rest) => left = rest,
                None => return,
            }
        }
    };
    if tokio::time::timeout(limits.linger, discard).await.is_err() {
        tracing::debug!("an unwanted body did not end in time");
    }
}
