//! Storing blocks at a holder, verified as they arrive, beside the raw copy of the same octets and hashing.

use kvsp_proto::container::Container;

use super::blocks::{self, CONTAINER_OCTETS};
use super::child::{Limit, Service, address_of};
use super::contest::Contest;
use super::error::BenchError;
use super::goal::Goal;
use super::hash::Way;
use super::limits::{Ask, RAW_TCP};
use super::measure::Sample;
use super::pin;
use super::report::Bench;
use super::wire::{Wire, http_request};
use crate::progress;

/// Measures octets a second and CPU time of both ways.
pub(super) fn measure(quick: bool) -> Result<Bench, BenchError> {
    let (blocks, rounds) = if quick { (4, 3) } else { (16, 21) };
    pin::on_one_core(|| measure_bound(blocks, rounds))
}

fn measure_bound(blocks: usize, rounds: usize) -> Result<Bench, BenchError> {
    let bar = progress::spinner("put".to_owned());
    let containers = blocks::containers(blocks)?;
    let raw = Limit::start(RAW_TCP)?;
    let holder = Service::start("the holder", &["holder", "--host-octets", "256MiB"])?;
    let mut contest = Contest::default();

    let mut raw_way = |name: &str, way| {
        let mut wire = Wire::connect(raw.address(), 1)?;
        let containers = &containers;
        let work = move || {
            for container in containers {
                wire.send(&Ask::Take(way).to_octets())?;
                wire.send(container.bytes())?;
                wire.exact(1)?;
            }
            Ok(())
        };
        Ok::<_, BenchError>(contest.enter(name, Some(raw.clock()), work))
    };
    let bare = raw_way("raw TCP", Way::Not)?;
    let lanes = raw_way("raw TCP, two lanes", Way::TwoLane)?;

    let address = address_of(holder.base())?;
    let heads: Vec<_> = (0..).zip(&containers).map(|(n, c)| put_head(&holder, n, c)).collect();
    let mut wire = Wire::connect(address, 1 << 10)?;
    let put = contest.enter("PUT, host tier, every digest verified", Some(holder.clock()), {
        let containers = &containers;
        move || {
            for (head, container) in heads.iter().zip(containers) {
                wire.send(head)?;
                wire.send(container.bytes())?;
                wire.http()?.good("a PUT")?;
            }
            Ok(())
        }
    });
    let deletes: Vec<_> = (0..blocks as u64).map(|n| delete(&holder, n)).collect();
    let mut other = Wire::connect(address, 1 << 10)?;
    contest.after(put, move || {
        for request in &deletes {
            other.send(request)?;
            other.http()?.good("a DELETE")?;
        }
        Ok(())
    });

    let results = contest.run(rounds, &bar, "put")?;
    bar.finish_and_clear();
    let octets = (blocks * CONTAINER_OCTETS) as f64;
    let mut figures = Vec::new();
    for series in results.iter() {
        figures.push(series.rate(octets, "octets/s"));
        figures.push(series.cpu_per_gb(octets));
        figures.push(series.server_cpu_per_gb(octets));
    }
    let name = "PUT / raw with two lanes";
    let (own, limit) = (&results[put], &results[lanes]);
    figures.push(own.speed_ratio(name, &[limit]).should_be(Goal::AtLeast(0.8)));
    let by_cpu = own.cpu_speed_ratio(format!("{name}, by CPU time"), &[limit]);
    figures.push(by_cpu.should_be(Goal::AtLeast(0.8)));
    figures.push(own.speed_ratio("PUT / raw", &[&results[bare]]));
    let serving = |sample: &Sample| sample.server_cpu_s;
    let name = "CPU of the holder / of the raw receiver with two lanes";
    figures.push(own.cpu_ratio(name, &[limit], serving, serving));
    let notes = vec![
        format!("{blocks} containers of {CONTAINER_OCTETS} octets a round, {rounds} rounds in turns after one to warm up"),
        "one connection, one request at a time, both ends on one core, each in a process of its own; the blocks \
         are deleted between rounds, not measured"
            .to_owned(),
        "the sender has its Repr-Digest from before; the holder verifies it and makes the layer digests".to_owned(),
        "raw TCP: read into a page-aligned buffer, with hashing layer by layer as it arrives, and one octet back"
            .to_owned(),
    ];
    Ok(Bench { name: "put", figures, notes })
}

fn put_head(holder: &Service, block: u64, container: &Container) -> Vec<u8> {
    let (path, digest) = (path(holder, block), container.repr_digest().to_string());
    let length = CONTAINER_OCTETS.to_string();
    let headers = [
        ("content-type", "application/kvsp-block"),
        ("content-length", &*length),
        ("if-none-match", "*"),
        ("repr-digest", &*digest),
    ];
    http_request("PUT", &path, &headers, &[])
}

fn delete(holder: &Service, block: u64) -> Vec<u8> {
    http_request("DELETE", &path(holder, block), &[], &[])
}

fn path(holder: &Service, block: u64) -> String {
    format!("{}{}", holder.base().path(), blocks::block_path(block))
}
