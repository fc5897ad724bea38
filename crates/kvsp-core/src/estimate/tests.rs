//! The formulas with exact numbers, and the bound by the fastest single source.

use kvsp_proto::id::Digest;
use kvsp_proto::record::{InstanceStatus, LayerSpan, Residency};
use kvsp_proto::registry::{Codec, Tier};
use kvsp_proto::uri::HolderUri;
use proptest::prelude::*;
use serde_json::json;

use super::{Block, FetchCurve, Source, Target, fetch_us, recompute_us, whole_us};

const MB: u64 = 1_000_000;

fn status(links: &[(&str, f64, f64)]) -> InstanceStatus {
    let links: Vec<_> = links
        .iter()
        .map(|(holder, rate, rtt)| json!({"holder": holder, "mbit_per_s": rate, "rtt_us": rtt}))
        .collect();
    InstanceStatus::from_value(json!({
        "instance": "https://i/", "epoch": 1, "state": "active", "prefill_tokens_per_s": 1000,
        "links": links, "ttl_ms": 1000
    }))
    .unwrap()
}

fn uri(text: &str) -> HolderUri {
    text.parse().unwrap()
}

fn held(tier: Tier, first: u32, last: u32, rate: Option<f64>) -> Residency {
    Residency { tier, layers: LayerSpan(first, last), read_mbit_per_s: rate }
}

fn source<'a>(holder: &'a HolderUri, size: u64, residency: &[Residency]) -> Source<'a> {
    Source::new(holder, Digest([1; 32]), Codec::RAW, size, residency.to_vec())
}

fn block<'a>(sources: &[Source<'a>]) -> Block<'a> {
    Block { layers: 4, sources: sources.to_vec() }
}

fn estimate(status: &InstanceStatus, blocks: &[Block<'_>]) -> Option<u64> {
    fetch_us(&Target::of(status), blocks)
}

#[test]
fn one_source_takes_its_round_trip_and_all_octets() {
    let (a, whole) = (uri("https://a/"), [held(Tier::Device, 0, 3, None)]);
    let status = status(&[("https://a/", 200_000.0, 12.0)]);
    let blocks = [block(&[source(&a, 2_097_152, &whole)]), block(&[source(&a, 2_097_152, &whole)])];
    // 12 + 2 · 8 · 2097152 / 200000 = 12 + 167.77216
    assert_eq!(estimate(&status, &blocks), Some(180));
    assert_eq!(estimate(&status, &[]), Some(0));
    let curve = FetchCurve::of(&Target::of(&status), &blocks);
    assert_eq!(whole_us(curve.first(1).unwrap()), Some(96));
    assert_eq!(curve.reach(), 2);
}

#[test]
fn a_tier_slower_than_the_link_decides() {
    let (a, status) = (uri("https://a/"), status(&[("https://a/", 1000.0, 10.0)]));
    let split = [held(Tier::Host, 0, 0, Some(500.0)), held(Tier::Disk, 1, 3, Some(2000.0))];
    // 8 Mbit: a quarter at 500 Mbit/s, three quarters at the link's 1000.
    assert_eq!(estimate(&status, &[block(&[source(&a, MB, &split)])]), Some(10 + 4000 + 6000));
    let none = [held(Tier::Host, 0, 3, Some(0.0))];
    assert_eq!(estimate(&status, &[block(&[source(&a, MB, &none)])]), None, "a rate of 0 is unknown");
}

#[test]
fn what_is_resident_takes_no_time() {
    let (i, a) = (uri("https://i/"), uri("https://a/"));
    let status = status(&[("https://a/", 1000.0, 10.0)]);
    let all = [held(Tier::Device, 0, 1, None), held(Tier::Host, 2, 3, None)];
    assert_eq!(estimate(&status, &[block(&[source(&i, MB, &all)])]), Some(0));
    let half = [held(Tier::Host, 0, 1, None)];
    let whole = [held(Tier::Host, 0, 3, None)];
    let blocks = [block(&[source(&a, MB, &whole), source(&i, MB, &half)])];
    assert_eq!(estimate(&status, &blocks), Some(10 + 4000), "half of the layers are missing");
    let unlinked = super::tests::status(&[]);
    assert_eq!(estimate(&unlinked, &[block(&[source(&i, MB, &all)])]), Some(0));
    assert_eq!(estimate(&unlinked, &blocks), None);
}

#[test]
fn the_targets_own_disk_is_a_source_without_a_link() {
    let (i, a) = (uri("https://i/"), uri("https://a/"));
    let status = status(&[("https://a/", 1_000_000.0, 10.0)]);
    let disk = [held(Tier::Disk, 0, 3, Some(100.0))];
    let whole = [held(Tier::Host, 0, 3, None)];
    let blocks = [block(&[source(&a, MB, &whole), source(&i, MB, &disk)])];
    assert_eq!(estimate(&status, &blocks), Some(80_000), "slower, but what it holds it does not fetch");
    let free = [held(Tier::Disk, 0, 3, None)];
    assert_eq!(estimate(&status, &[block(&[source(&i, MB, &free)])]), Some(0));
    let half = [held(Tier::Disk, 0, 1, Some(100.0))];
    let blocks = [block(&[source(&a, MB, &whole), source(&i, MB, &half)])];
    assert_eq!(estimate(&status, &blocks), Some(40_000), "the slower of both at the same time");
}

#[test]
fn different_computations_are_not_combined() {
    let (a, b) = (uri("https://a/"), uri("https://b/"));
    let status = status(&[("https://a/", 1000.0, 0.0), ("https://b/", 1000.0, 0.0)]);
    let low = source(&a, MB, &[held(Tier::Host, 0, 1, None)]);
    let mut high = source(&b, MB, &[held(Tier::Host, 2, 3, None)]);
    let sources = [low.clone(), high.clone()];
    assert_eq!(estimate(&status, &[block(&sources)]), Some(4000), "each its half, at the same time");
    high.digest = Digest([2; 32]);
    assert_eq!(estimate(&status, &[block(&[low, high])]), None);
}

#[test]
fn moqt_holders_are_skipped() {
    let m = uri("moqt://m/x");
    let status = status(&[("moqt://m/x", 1000.0, 0.0)]);
    assert_eq!(estimate(&status, &[block(&[source(&m, MB, &[held(Tier::Host, 0, 3, None)])])]), None);
}

#[test]
fn blocks_are_spread_over_equal_sources() {
    let (a, b) = (uri("https://a/"), uri("https://b/"));
    let status = status(&[("https://a/", 1000.0, 5.0), ("https://b/", 1000.0, 5.0)]);
    let whole = [held(Tier::Host, 0, 3, None)];
    let blocks = vec![block(&[source(&a, MB, &whole), source(&b, MB, &whole)]); 4];
    assert_eq!(estimate(&status, &blocks), Some(5 + 2 * 8000));
}

#[test]
fn a_gap_ends_the_curve() {
    let (a, b) = (uri("https://a/"), uri("https://b/"));
    let status = status(&[("https://a/", 1000.0, 0.0), ("https://b/", -1.0, 0.0)]);
    let whole = [held(Tier::Host, 0, 3, None)];
    let blocks = [block(&[source(&a, MB, &whole)]), block(&[source(&b, MB, &whole)])];
    let curve = FetchCurve::of(&Target::of(&status), &blocks);
    assert_eq!((curve.all(), curve.first(1), curve.reach()), (None, Some(8000.0), 1));
}

#[test]
fn rates_that_are_none_make_estimates_absent() {
    assert_eq!(recompute_us(4096, 42_000.0), Some(97_524));
    assert_eq!(recompute_us(0, 42_000.0), Some(0));
    assert_eq!(recompute_us(4200, 42_000.0), Some(100_000), "exact quotients are not rounded up");
    for rate in [0.0, -1.0, f64::NAN, f64::INFINITY] {
        assert_eq!(recompute_us(1, rate), None, "{rate}");
    }
    assert_eq!(recompute_us(1 << 53, 1e-9), None, "beyond the integers");
    assert_eq!(recompute_us(3, 0.3), Some(10_000_000), "0.3 is a little less as a double");
    for tokens in [1, 1_000, 16_384, 999_983, 8_999_999] {
        assert_eq!(recompute_us(tokens, 0.001), Some(tokens * 1_000_000_000), "{tokens} tokens");
    }
}

#[test]
fn rounding_is_up_but_for_the_error_of_doubles() {
    assert_eq!(whole_us(0.1 + 0.2 + 0.7), Some(1));
    assert_eq!(whole_us(1.000_001), Some(2));
    assert_eq!(whole_us(0.0), Some(0));
    assert_eq!(whole_us(-1.0), None);
    assert_eq!(whole_us(f64::NAN), None);
    assert_eq!(whole_us(f64::INFINITY), None);
}

proptest! {
    #[test]
    fn never_worse_than_every_block_from_its_fastest_source(
        links in proptest::collection::vec((1.0..1e6_f64, 0.0..1e3_f64), 1..5),
        blocks in proptest::collection::vec((1_u64..10_000_000, 1_u8..31), 1..40),
    ) {
        let names: Vec<HolderUri> = (0..links.len()).map(|n| uri(&format!("https://h{n}/"))).collect();
        let listed: Vec<_> = names.iter().zip(&links).map(|(n, (rate, rtt))| (n.as_str(), *rate, *rtt)).collect();
        let status = status(&listed);
        let whole = [held(Tier::Host, 0, 3, None)];
        let has = |mask: u8| (0..links.len()).filter(move |n| mask >> n & 1 == 1);
        let blocks: Vec<(u64, u8)> = blocks.into_iter().map(|(size, mask)| {
            (size, if has(mask).count() == 0 { 1 } else { mask })
        }).collect();
        let built: Vec<Block<'_>> = blocks.iter().map(|&(size, mask)| {
            block(&has(mask).map(|n| source(&names[n], size, &whole)).collect::<Vec<_>>())
        }).collect();
        let got = estimate(&status, &built).unwrap() as f64;
        let time = |n: usize, size: u64| 8.0 * size as f64 / links[n].0;
        for with_rtt in [0.0, 1.0] {
            let mut loads = vec![None; links.len()];
            for &(size, mask) in &blocks {
                let measure = |n: &usize| time(*n, size) + with_rtt * links[*n].1;
                let n = has(mask).min_by(|a, b| measure(a).total_cmp(&measure(b))).unwrap();
                *loads[n].get_or_insert(links[n].1) += time(n, size);
            }
            let bound = loads.into_iter().flatten().fold(0.0, f64::max);
            prop_assert!(got <= bound.ceil() + 1e-6, "{got} > {bound}");
        }
    }
}
