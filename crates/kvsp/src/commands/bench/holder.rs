//! A holder in a thread and a runtime of its own.

use std::sync::Arc;
use std::sync::mpsc;
use std::thread::JoinHandle;

use kvsp_blocks::{BlocksConfig, BlocksDeps};
use kvsp_client::{Client, ClientConfig};
use kvsp_holder::HolderConfig;
use kvsp_net::auth::Development;
use kvsp_net::clock::SystemClock;
use kvsp_net::metrics::Metrics;
use kvsp_net::random::SystemRandom;
use kvsp_net::service::{Service, ServiceConfig};
use kvsp_proto::uri::BaseUri;
use tokio_util::sync::CancellationToken;

use super::BenchError;

/// A holder on a free loopback port, with a host tier alone.
pub(super) struct Holder {
    base: BaseUri,
    stop: CancellationToken,
    thread: JoinHandle<Result<(), BenchError>>,
}

impl Holder {
    /// Starts a holder that keeps `host_octets` and waits until it serves.
    pub(super) fn start(host_octets: u64) -> Result<Self, BenchError> {
        let (ready, is_ready) = mpsc::channel();
        let stop = CancellationToken::new();
        let stopped = stop.clone();
        let thread = std::thread::Builder::new()
            .name("bench-holder".to_owned())
            .spawn(move || serve(host_octets, &ready, stopped))
            .map_err(BenchError::io("the holder's thread"))?;
        match is_ready.recv() {
            Ok(base) => Ok(Self { base, stop, thread }),
            Err(mpsc::RecvError) => {
                joined(thread)?;
                Err(BenchError::Ended("the holder"))
            }
        }
    }

    /// Its base URI.
    pub(super) const fn base(&self) -> &BaseUri {
        &self.base
    }

    /// Stops it and waits for its end.
    pub(super) fn stop(self) -> Result<(), BenchError> {
        self.stop.cancel();
        joined(self.thread)
    }
}

fn joined(thread: JoinHandle<Result<(), BenchError>>) -> Result<(), BenchError> {
    thread.join().map_err(|_| BenchError::Ended("the holder"))?
}

fn serve(host_octets: u64, ready: &mpsc::Sender<BaseUri>, stop: CancellationToken) -> Result<(), BenchError> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .map_err(BenchError::io("the holder's runtime"))?;
    runtime.block_on(async {
        let bound = Service::bind(ServiceConfig::default(), Arc::new(Development::new())).await?;
        let base = bound.base();
        let config = HolderConfig { blocks: BlocksConfig { host_octets, ..BlocksConfig::default() } };
        let deps = BlocksDeps {
            client: Client::new(ClientConfig::default()),
            clock: Arc::new(SystemClock::new()),
            random: Arc::new(SystemRandom),
            metrics: Metrics::new(),
        };
        // Nobody listens only where the bench has ended already.
        let tell = || drop(ready.send(base));
        kvsp_holder::serve(config, bound, deps, tell, stop).await?;
        Ok(())
    })
}
