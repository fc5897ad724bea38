//! Four connections on the cores that there are, two at most worth showing.

use std::hint::black_box;
use std::sync::Mutex;

use indicatif::ProgressBar;
use kvsp_client::{Client, ClientConfig};

use super::super::blocks::CONTAINER_OCTETS;
use super::super::child::Limit;
use super::super::contest::Contest;
use super::super::error::BenchError;
use super::super::goal::Goal;
use super::super::hash::Way;
use super::super::limits::{RAW_TCP, receive};
use super::super::report::Bench;
use super::super::wire::Wire;
use super::{Extent, Holder, Home};

pub(super) const CONNECTIONS: usize = 4;

pub(super) fn measure(extent: Extent, bar: &ProgressBar, bench: &mut Bench) -> Result<(), BenchError> {
    let raw = Limit::start(RAW_TCP)?;
    let host = Holder::start(Home::Host)?;
    let runtime = many_threads()?;
    let client = Client::new(ClientConfig::default());
    let each = extent.blocks.div_ceil(CONNECTIONS);
    let mut contest = Contest::default();

    let mut wires = (0..CONNECTIONS)
        .map(|_| Wire::connect(raw.address(), CONTAINER_OCTETS))
        .collect::<Result<Vec<_>, _>>()?;
    let lanes = contest.enter("four connections, raw TCP, two lanes", Some(raw.clock()), move || {
        let failed = Mutex::new(Ok(()));
        std::thread::scope(|scope| {
            for (first, wire) in (0_u32..).zip(&mut wires) {
                let failed = &failed;
                scope.spawn(move || {
                    let blocks = (first * each as u32..).take(each);
                    let got = blocks.into_iter().try_for_each(|block| receive(wire, block, Way::TwoLane));
                    if let (Err(error), Ok(mut failed)) = (got, failed.lock()) {
                        *failed = Err(error);
                    }
                });
            }
        });
        failed.into_inner().unwrap_or(Err(BenchError::Ended("a connection's thread")))
    });
    let (records, http) = (&host.records, &client);
    let verified = contest.enter(
        "four connections, host tier, every digest verified",
        Some(host.service.clock()),
        || {
            let tasks: Vec<_> = (0..CONNECTIONS)
                .map(|first| {
                    let (client, records) = (http.clone(), records.clone());
                    runtime.spawn(async move {
                        for record in records.iter().cycle().skip(first * each).take(each) {
                            black_box(client.get_verified(record, None).await?);
                        }
                        Ok::<_, BenchError>(())
                    })
                })
                .collect();
            join_all(&runtime, tasks)
        },
    );
    let results = contest.run(extent.rounds, bar, "get, four connections")?;
    let octets = (CONNECTIONS * each * CONTAINER_OCTETS) as f64;
    for series in results.iter() {
        bench.figures.push(series.rate(octets, "octets/s"));
    }
    let name = "four connections, verified / raw with two lanes";
    let (own, other) = (&results[verified], &results[lanes]);
    bench.figures.push(own.speed_ratio(name, &[other]).should_be(Goal::AtLeast(0.85)));
    let name = format!("{name}, by CPU time");
    bench.figures.push(own.cpu_speed_ratio(name, &[other]).should_be(Goal::AtLeast(0.85)));
    bench.notes.push(
        "four connections: client and server on all cores; raw by a thread each, the client by tasks of its \
         runtime"
            .to_owned(),
    );
    Ok(())
}

pub(super) fn many_threads() -> Result<tokio::runtime::Runtime, BenchError> {
    let built = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    built.map_err(BenchError::io("the client's runtime"))
}

pub(super) fn join_all(
    runtime: &tokio::runtime::Runtime,
    tasks: Vec<tokio::task::JoinHandle<Result<(), BenchError>>>,
) -> Result<(), BenchError> {
    runtime.block_on(async {
        for task in tasks {
            task.await.map_err(|_| BenchError::Ended("a task"))??;
        }
        Ok(())
    })
}
