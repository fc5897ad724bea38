//! A holder that can be told to misbehave.

mod serve;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use kvsp_proto::container::Container;
use kvsp_proto::id::BlockKey;
use kvsp_proto::uri::BaseUri;
use tokio::net::TcpListener;

use crate::generate::Prefix;
use crate::run::Running;

/// How the holder answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Behaviour {
    /// As the protocol says.
    Honest,
    /// 404 `kvsp-block-not-found` for every block.
    NotFound,
    /// Takes the request and never answers.
    HangBeforeAnswer,
    /// Sends half of the body and then nothing.
    HangInBody,
    /// One octet of the last section is wrong, under a `Repr-Digest` that matches it.
    CorruptUnderItsDigest,
    /// The container is right, its `Repr-Digest` is another's.
    WrongReprDigest,
    /// No `Repr-Digest`.
    NoReprDigest,
    /// Declares the whole body, sends half of it and closes.
    Truncated,
    /// Knows GET of blocks only: 405 for everything else.
    OnlyGet,
    /// Sends the body in pieces with a pause before each.
    Slow {
        /// Octets of a piece.
        piece: usize,
        /// The pause.
        pause: Duration,
    },
    /// Sends all layers, whatever was asked for.
    AllLayers,
    /// Declares more octets than anybody takes.
    Oversize,
    /// A redirect to the same resource.
    Redirect,
    /// Not a container, under a matching `Repr-Digest`.
    NotAContainer,
    /// This status, as a page of HTML.
    Html(u16),
}

#[derive(Debug)]
struct Shared {
    blocks: Mutex<BTreeMap<BlockKey, Container>>,
    behaviour: Mutex<Behaviour>,
    layer_stream: AtomicBool,
    requests: Mutex<Vec<String>>,
}

impl Shared {
    fn behaviour(&self) -> Behaviour {
        *self.behaviour.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn block(&self, key: BlockKey) -> Option<Container> {
        self.blocks.lock().unwrap_or_else(PoisonError::into_inner).get(&key).cloned()
    }

    fn note(&self, request: String) {
        self.requests.lock().unwrap_or_else(PoisonError::into_inner).push(request);
    }
}

/// A holder on a free loopback port. It ends when it is dropped.
#[derive(Debug)]
pub struct Hostile {
    base: BaseUri,
    shared: Arc<Shared>,
    _running: Running<()>,
}

impl Hostile {
    /// A holder of all blocks of a prefix; honest until told otherwise.
    ///
    /// # Panics
    /// No port can be bound.
    pub async fn start(prefix: &Prefix) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a loopback port is free");
        let address = listener.local_addr().expect("it is bound");
        let base = format!("http://{address}/kvsp/").parse().expect("a base URI");
        let blocks = prefix.keys.iter().copied().zip(prefix.containers.iter().cloned()).collect();
        let shared = Arc::new(Shared {
            blocks: Mutex::new(blocks),
            behaviour: Mutex::new(Behaviour::Honest),
            layer_stream: AtomicBool::new(true),
            requests: Mutex::new(Vec::new()),
        });
        let routes = serve::routes(Arc::clone(&shared));
        let running = Running::spawn(|stop| async move {
            // Idle connections close with the listener; a hanging answer keeps only its own.
            let served = axum::serve(listener, routes).with_graceful_shutdown(stop.cancelled_owned());
            served.await.expect("serving does not fail");
        });
        Self { base, shared, _running: running }
    }

    /// The base URI.
    #[must_use]
    pub const fn base(&self) -> &BaseUri {
        &self.base
    }

    /// From the next request on, behaves so.
    pub fn behave(&self, behaviour: Behaviour) {
        *self.shared.behaviour.lock().unwrap_or_else(PoisonError::into_inner) = behaviour;
    }

    /// Whether it has the extension `layer-stream`; without it `POST blocks` is 405.
    pub fn offer_layer_stream(&self, offer: bool) {
        self.shared.layer_stream.store(offer, Ordering::Relaxed);
    }

    /// Takes a block away.
    pub fn forget(&self, key: BlockKey) {
        self.shared.blocks.lock().unwrap_or_else(PoisonError::into_inner).remove(&key);
    }

    /// The requests so far, as `METHOD path?query`.
    #[must_use]
    pub fn requests(&self) -> Vec<String> {
        self.shared.requests.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}
