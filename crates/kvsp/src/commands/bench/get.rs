//! Retrieval of blocks over loopback, beside the raw copy of the same octets, hashing, and servers of others.

mod four;
mod one;
mod receive;

use kvsp_client::{Client, ClientConfig};
use kvsp_proto::container::Container;
use kvsp_proto::record::ReplicaRecord;
use tempfile::TempDir;

use super::blocks::{self, COMPAT, CONTAINER_OCTETS, SCOPE};
use super::child::Service;
use super::error::BenchError;
use super::limits::RAW_BLOCKS;
use super::pin;
use super::report::Bench;
use crate::progress;

/// How much is measured.
#[derive(Debug, Clone, Copy)]
struct Extent {
    /// Containers a round.
    blocks: usize,
    rounds: usize,
}

impl Extent {
    fn octets(self) -> f64 {
        (self.blocks * CONTAINER_OCTETS) as f64
    }
}

/// Measures octets a second and CPU time of every way.
pub(super) fn measure(quick: bool) -> Result<Bench, BenchError> {
    let extent = if quick { Extent { blocks: 4, rounds: 3 } } else { Extent { blocks: 32, rounds: 21 } };
    let bar = progress::spinner("get".to_owned());
    let mut bench = Bench { name: "get", figures: Vec::new(), notes: Vec::new() };
    bench.notes.push(format!(
        "{} containers of {CONTAINER_OCTETS} octets a round ({RAW_BLOCKS} different ones), {} rounds in turns after one to \
         warm up; one request at a time on a connection",
        extent.blocks, extent.rounds
    ));
    pin::on_one_core(|| one::measure(extent, &bar, &mut bench))?;
    pin::on_one_core(|| receive::measure_one(extent, &bar, &mut bench))?;
    four::measure(extent, &bar, &mut bench)?;
    receive::measure_four(extent, &bar, &mut bench)?;
    bar.finish_and_clear();
    Ok(bench)
}

/// A holder with the blocks that the raw server has too.
struct Holder {
    service: Service,
    records: Vec<ReplicaRecord>,
    containers: Vec<Container>,
    /// Of the disk tier; deleted after the holder has ended.
    _dir: Option<TempDir>,
}

/// Which tier answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Home {
    Host,
    Disk,
}

impl Holder {
    fn start(home: Home) -> Result<Self, BenchError> {
        const ROOM: &str = "256MiB";
        let dir = match home {
            Home::Host => None,
            Home::Disk => Some(
                tempfile::Builder::new()
                    .prefix("kvsp-bench-")
                    .tempdir()
                    .map_err(BenchError::io("a folder"))?,
            ),
        };
        let path = dir.as_ref().map(|dir| dir.path().to_string_lossy().into_owned()).unwrap_or_default();
        let args: &[&str] = match home {
            Home::Host => &["holder", "--host-octets", ROOM],
            Home::Disk => &["holder", "--host-octets", "0", "--disk-dir", &path, "--disk-octets", ROOM],
        };
        let service = Service::start("the holder", args)?;
        let containers = blocks::containers(RAW_BLOCKS)?;
        let records: Vec<_> =
            (0..).zip(&containers).map(|(n, c)| blocks::record(n, c, service.base())).collect();
        let runtime = current_thread()?;
        runtime.block_on(async {
            let client = Client::new(ClientConfig::default());
            for (record, container) in records.iter().zip(&containers) {
                let octets = container.bytes().clone();
                client.put_block(service.base(), COMPAT, SCOPE, record.block_key, octets).await?;
            }
            Ok::<_, BenchError>(())
        })?;
        Ok(Self { service, records, containers, _dir: dir })
    }

    /// The octets of a GET of each block.
    fn requests(&self) -> Vec<Vec<u8>> {
        let base = self.service.base().path();
        let path = |block: u64| format!("{base}{}", blocks::block_path(block));
        (0..RAW_BLOCKS as u64).map(|block| super::wire::http_request("GET", &path(block), &[], &[])).collect()
    }
}

fn current_thread() -> Result<tokio::runtime::Runtime, BenchError> {
    let built = tokio::runtime::Builder::new_current_thread().enable_all().build();
    built.map_err(BenchError::io("the client's runtime"))
}
