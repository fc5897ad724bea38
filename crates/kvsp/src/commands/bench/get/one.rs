//! One connection, both ends on one core.

use std::hint::black_box;

use indicatif::ProgressBar;
use kvsp_client::{Client, ClientConfig};

use super::super::blocks::CONTAINER_OCTETS;
use super::super::child::{Limit, address_of};
use super::super::contest::{Contest, Entrant};
use super::super::error::BenchError;
use super::super::goal::Goal;
use super::super::hash::Way;
use super::super::limits::{RAW_BLOCKS, RAW_TCP, receive};
use super::super::measure::{CpuClock, Sample};
use super::super::programs::Program;
use super::super::report::Bench;
use super::super::wire::{Wire, http_request, redis_command};
use super::{Extent, Holder, Home, current_thread};

pub(super) fn measure(extent: Extent, bar: &ProgressBar, bench: &mut Bench) -> Result<(), BenchError> {
    let raw = Limit::start(RAW_TCP)?;
    let (host, disk) = (Holder::start(Home::Host)?, Holder::start(Home::Disk)?);
    let files: Vec<_> = host.containers.iter().map(|container| container.bytes().clone()).collect();
    let (nginx, redis) = (Program::nginx(&files)?, Program::redis()?);
    let runtime = current_thread()?;
    let client = Client::new(ClientConfig::default());
    let mut contest = Contest::default();

    let raw_way = |contest: &mut Contest<'_>, name: &str, way| {
        let mut wire = Wire::connect(raw.address(), CONTAINER_OCTETS)?;
        let work = move || (0..extent.blocks as u32).try_for_each(|block| receive(&mut wire, block, way));
        Ok::<_, BenchError>(contest.enter(name, Some(raw.clock()), work))
    };
    let bare = raw_way(&mut contest, "raw TCP", Way::Not)?;
    let lanes = raw_way(&mut contest, "raw TCP, two lanes", Way::TwoLane)?;
    let passes = raw_way(&mut contest, "raw TCP, two passes of sha2", Way::TwoPasses)?;

    let unverified = |contest: &mut Contest<'_>, name: &str, holder: &Holder| {
        let clock = holder.service.clock();
        let wire = Wire::connect(address_of(holder.service.base())?, CONTAINER_OCTETS)?;
        Ok::<_, BenchError>(enter_http(contest, name, clock, wire, holder.requests(), extent))
    };
    let host_bare = unverified(&mut contest, "host tier, unverified", &host)?;
    let disk_bare = unverified(&mut contest, "disk tier, unverified", &disk)?;
    let nginx_bare = match &nginx {
        Some(nginx) => {
            let paths = (0..RAW_BLOCKS).map(|block| http_request("GET", &format!("/{block}"), &[], &[]));
            let wire = Wire::connect(nginx.address(), CONTAINER_OCTETS)?;
            let (name, clock) = ("nginx, sendfile from the page cache", nginx.clock());
            Some(enter_http(&mut contest, name, clock, wire, paths.collect(), extent))
        }
        None => None,
    };
    let redis_bare =
        redis.as_ref().map(|redis| enter_redis(&mut contest, redis, &files, extent)).transpose()?;

    let mut verified = |name: &str, holder: &Holder| {
        let (runtime, client, records) = (&runtime, &client, holder.records.clone());
        contest.enter(name, Some(holder.service.clock()), move || {
            runtime.block_on(async {
                for record in records.iter().cycle().take(extent.blocks) {
                    black_box(client.get_verified(record, None).await?);
                }
                Ok(())
            })
        })
    };
    let host_all = verified("host tier, every digest verified", &host);
    let disk_all = verified("disk tier, every digest verified", &disk);

    let results = contest.run(extent.rounds, bar, "get, one core")?;
    let octets = extent.octets();
    let of = |entrant: Entrant| &results[entrant];
    for series in results.iter() {
        bench.figures.push(series.rate(octets, "octets/s"));
        bench.figures.push(series.cpu_per_gb(octets));
        bench.figures.push(series.server_cpu_per_gb(octets));
    }
    let mut compare = |name: &str, own: Entrant, other: Entrant, goal: Option<f64>| {
        let by_clock = of(own).speed_ratio(name, &[of(other)]);
        let by_cpu = of(own).cpu_speed_ratio(format!("{name}, by CPU time"), &[of(other)]);
        for figure in [by_clock, by_cpu] {
            bench.figures.push(match goal {
                Some(least) => figure.should_be(Goal::AtLeast(least)),
                None => figure,
            });
        }
    };
    compare("host verified / raw with two lanes", host_all, lanes, Some(0.9));
    compare("host verified / raw with two passes", host_all, passes, Some(1.45));
    compare("disk verified / raw with two lanes", disk_all, lanes, None);
    compare("host unverified / raw", host_bare, bare, Some(0.9));
    compare("disk unverified / raw", disk_bare, bare, None);
    if let Some(redis) = redis_bare {
        compare("host unverified / Redis", host_bare, redis, Some(1.1));
    }
    let serving = |sample: &Sample| sample.server_cpu_s;
    let mut holder_cpu = |name: &str, own: Entrant, other: Entrant, most: f64| {
        let ratio = of(own).cpu_ratio(name, &[of(other)], serving, serving);
        bench.figures.push(ratio.should_be(Goal::AtMost(most)));
    };
    holder_cpu("CPU of the holder, host tier / of raw write", host_bare, bare, 1.2);
    if let Some(nginx) = nginx_bare {
        holder_cpu("CPU of the holder, disk tier / of nginx", disk_bare, nginx, 1.25);
    }
    let absent = [("nginx", nginx.is_none()), ("redis-server", redis.is_none())];
    let absent = absent.iter().filter(|(_, absent)| *absent);
    bench.notes.extend(absent.map(|(name, _)| format!("{name} is not installed: absent")));
    bench.notes.extend([
        "one core: client and server share it, each in a process of its own".to_owned(),
        "raw TCP: a few octets ask for a container, which is read into a page-aligned buffer; with hashing, \
         layer by layer as it arrives"
            .to_owned(),
        "unverified, nginx and Redis: the same loop with a request and an answer's head, so that what differs \
         is the server; verified: the client of this project with Repr-Digest, layer digests and replica digest"
            .to_owned(),
        "disk tier: files in the page cache, no host tier before it".to_owned(),
    ]);
    Ok(())
}

fn enter_http<'a>(
    contest: &mut Contest<'a>,
    name: &str,
    clock: CpuClock,
    mut wire: Wire,
    requests: Vec<Vec<u8>>,
    extent: Extent,
) -> Entrant {
    contest.enter(name, Some(clock), move || {
        for request in requests.iter().cycle().take(extent.blocks) {
            wire.send(request)?;
            if wire.http()?.good("a GET")?.len() != CONTAINER_OCTETS {
                return Err(BenchError::Differ("a GET and the block"));
            }
        }
        Ok(())
    })
}

fn enter_redis<'a>(
    contest: &mut Contest<'a>,
    redis: &Program,
    values: &[bytes::Bytes],
    extent: Extent,
) -> Result<Entrant, BenchError> {
    let key = |block: usize| format!("block:{block}").into_bytes();
    redis.set(values.iter().enumerate().map(|(block, value)| (key(block), &value[..])))?;
    let requests: Vec<_> = (0..values.len()).map(|block| redis_command(&[b"GET", &key(block)])).collect();
    let mut wire = Wire::connect(redis.address(), CONTAINER_OCTETS)?;
    Ok(contest.enter("Redis GET", Some(redis.clock()), move || {
        for request in requests.iter().cycle().take(extent.blocks) {
            wire.send(request)?;
            if wire.bulk()?.len() != CONTAINER_OCTETS {
                return Err(BenchError::Differ("a value and the block"));
            }
        }
        Ok(())
    }))
}
