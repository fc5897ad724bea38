//! The client's receive path beside that of a client as others build it.

use std::hint::black_box;

use indicatif::ProgressBar;
use kvsp_client::{BlockQuery, Client, ClientConfig};
use kvsp_proto::path;
use tokio::runtime::Runtime;

use super::super::blocks::{COMPAT, CONTAINER_OCTETS, SCOPE};
use super::super::contest::Contest;
use super::super::error::BenchError;
use super::super::goal::Goal;
use super::super::measure::Sample;
use super::super::report::Bench;
use super::four::{CONNECTIONS, join_all, many_threads};
use super::{Extent, Holder, Home, current_thread};

/// One connection, both ends on one core.
pub(super) fn measure_one(extent: Extent, bar: &ProgressBar, bench: &mut Bench) -> Result<(), BenchError> {
    let runtime = current_thread()?;
    measure(extent, bar, bench, &runtime, 1, 1.25)
}

/// Four connections on all cores.
pub(super) fn measure_four(extent: Extent, bar: &ProgressBar, bench: &mut Bench) -> Result<(), BenchError> {
    let runtime = many_threads()?;
    measure(extent, bar, bench, &runtime, CONNECTIONS, 1.8)
}

fn measure(
    extent: Extent,
    bar: &ProgressBar,
    bench: &mut Bench,
    runtime: &Runtime,
    connections: usize,
    goal: f64,
) -> Result<(), BenchError> {
    let host = Holder::start(Home::Host)?;
    let clock = Some(host.service.clock());
    let each = extent.blocks.div_ceil(connections);
    let client = Client::new(ClientConfig::default());
    let peer = reqwest::Client::builder().no_proxy().build().map_err(|_| BenchError::Answer("reqwest"))?;
    let shape = if connections == 1 { "one connection" } else { "four connections" };
    let mut contest = Contest::default();
    let ours = contest.enter(format!("{shape}, own client, Repr-Digest verified"), clock, || {
        let tasks = (0..connections).map(|first| {
            let (client, records) = (client.clone(), host.records.clone());
            runtime.spawn(async move {
                for record in records.iter().cycle().skip(first * each).take(each) {
                    let holder = record.http_holder().ok_or(BenchError::Answer("the record"))?;
                    let query = BlockQuery::default();
                    let got = client.get_block(&holder, COMPAT, SCOPE, record.block_key, &query).await?;
                    black_box(got);
                }
                Ok(())
            })
        });
        join_all(runtime, tasks.collect())
    });
    let uris: Vec<String> = host
        .records
        .iter()
        .filter_map(|record| Some(record.http_holder()?.join(&path::block(COMPAT, SCOPE, record.block_key))))
        .collect();
    let theirs = contest.enter(format!("{shape}, reqwest, bytes()"), clock, move || {
        let tasks = (0..connections).map(|first| {
            let (peer, uris) = (peer.clone(), uris.clone());
            runtime.spawn(async move {
                for uri in uris.iter().cycle().skip(first * each).take(each) {
                    let answer = peer.get(uri).send().await.map_err(|_| BenchError::Answer("reqwest"))?;
                    let octets = answer.bytes().await.map_err(|_| BenchError::Answer("reqwest"))?;
                    if octets.len() != CONTAINER_OCTETS {
                        return Err(BenchError::Differ("a GET and the block"));
                    }
                    black_box(octets);
                }
                Ok(())
            })
        });
        join_all(runtime, tasks.collect())
    });
    let containers = &host.containers;
    let hashing = contest.enter(format!("{shape}, Repr-Digest of the same in memory"), None, move || {
        for container in containers.iter().cycle().take(connections * each) {
            black_box(kvsp_hash::sha256(container.bytes()));
        }
        Ok(())
    });
    let results = contest.run(extent.rounds, bar, "get, receive path")?;
    let octets = (connections * each * CONTAINER_OCTETS) as f64;
    for series in results.iter() {
        bench.figures.push(series.rate(octets, "octets/s"));
        bench.figures.push(series.cpu_per_gb(octets));
    }
    for entrant in [ours, theirs] {
        bench.figures.push(results[entrant].server_cpu_per_gb(octets));
    }
    let name = format!("{shape}, receive path of own client / reqwest");
    let [own, part, other] = [ours, hashing, theirs].map(|entrant| &results[entrant]);
    let client = own.cpu_speed_ratio_without(format!("{name}, CPU of the client"), part, other, |s| s.cpu_s);
    let name = format!("{name}, CPU of both ends");
    let both = own.cpu_speed_ratio_without(name, part, other, Sample::both_cpu_s);
    bench.figures.extend([client, both].map(|ratio| ratio.should_be(Goal::AtLeast(goal))));
    if connections == 1 {
        bench.notes.push(
            "receive path: the own client always verifies Repr-Digest, so the time of that hashing, measured \
             beside it, is taken off; that it hashes in between also makes the server write in smaller pieces. reqwest \
             collects bytes() and verifies nothing"
                .to_owned(),
        );
    }
    Ok(())
}
