//! The estimates of draft section 6.4, made exact by the profile's section 11. Pure functions.
//!
//! How blocks are spread over several sources is free. Three ways are tried: every block to the source
//! that alone is fastest, with and without its round trip, and every block to the source that would end
//! first. The best of them counts, so the result is never worse than when every block takes its fastest
//! single source. Where no source alone holds what is missing of a block, its layers are spread instead.

mod need;
mod spread;

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use kvsp_proto::id::Digest;
use kvsp_proto::record::{InstanceStatus, ReplicaRecord, Residency};
use kvsp_proto::registry::Codec;
use kvsp_proto::uri::{BaseUri, HolderUri};

use need::need_of;
use spread::Spread;

/// One live replica of a block, as far as estimates go.
#[derive(Debug, Clone, PartialEq)]
pub struct Source<'a> {
    /// Who holds it.
    pub holder: &'a HolderUri,
    /// Its replica digest: only equal ones combine.
    pub digest: Digest,
    /// Its codec: only equal ones combine.
    pub codec: Codec,
    /// Octets of the whole container.
    pub size: u64,
    /// What resides where, in the order of layers.
    residency: Vec<Residency>,
}

impl<'a> Source<'a> {
    /// A replica that holds what `residency` says; its ranges may come in any order.
    #[must_use]
    pub fn new(
        holder: &'a HolderUri,
        digest: Digest,
        codec: Codec,
        size: u64,
        mut residency: Vec<Residency>,
    ) -> Self {
        residency.sort_unstable_by_key(|held| held.layers);
        Self { holder, digest, codec, size, residency }
    }

    /// Where a layer resides.
    fn held(&self, layer: u32) -> Option<&Residency> {
        let after = self.residency.partition_point(|held| held.layers.0 <= layer);
        let last = self.residency.get(after.checked_sub(1)?)?;
        last.layers.contains(layer).then_some(last)
    }
}

/// A block and its live replicas.
#[derive(Debug, Clone, PartialEq)]
pub struct Block<'a> {
    /// L: layers that make the block whole.
    pub layers: u32,
    /// Its live replicas, ordered by holder.
    pub sources: Vec<Source<'a>>,
}

impl<'a> Block<'a> {
    /// A block of records. `layers` is what a descriptor says; else the longest `layer_digests` decides,
    /// else the highest resident layer.
    pub fn of(records: impl IntoIterator<Item = &'a ReplicaRecord>, layers: Option<u32>) -> Self {
        let mut listed = None;
        let mut highest = 0_u32;
        let mut sources = Vec::new();
        for record in records {
            let digests = record.layer_digests.as_ref().and_then(|list| u32::try_from(list.len()).ok());
            listed = listed.max(digests);
            let end = record.residency.iter().map(|held| held.layers.1.saturating_add(1)).max();
            highest = highest.max(end.unwrap_or(0));
            let residency = record.residency.clone();
            sources.push(Source::new(&record.holder, record.digest.0, record.codec, record.size, residency));
        }
        Self { layers: layers.or(listed).unwrap_or(highest), sources }
    }
}

/// An instance for which something is estimated, with its links in order.
#[derive(Debug, Clone)]
pub struct Target<'a> {
    instance: HolderUri,
    links: BTreeMap<&'a HolderUri, Link>,
}

/// A usable link: both numbers are finite, the rate is above 0.
#[derive(Debug, Clone, Copy)]
struct Link {
    mbit_per_s: f64,
    rtt_us: f64,
}

impl<'a> Target<'a> {
    /// The target that a status describes. Links without a rate are as good as none; of several to one
    /// holder the first counts.
    #[must_use]
    pub fn of(status: &'a InstanceStatus) -> Self {
        let mut links = BTreeMap::new();
        for link in &status.links {
            if usable(link.mbit_per_s) && link.rtt_us.is_finite() && link.rtt_us >= 0.0 {
                let known = Link { mbit_per_s: link.mbit_per_s, rtt_us: link.rtt_us };
                links.entry(&link.holder).or_insert(known);
            }
        }
        Self { instance: HolderUri::from(&status.instance), links }
    }

    /// The URI of the instance.
    #[must_use]
    pub fn instance(&self) -> Option<BaseUri> {
        self.instance.http()
    }

    fn link(&self, holder: &HolderUri) -> Option<Link> {
        self.links.get(holder).copied()
    }

    fn rtt_us(&self, holder: &HolderUri) -> f64 {
        match self.link(holder) {
            Some(link) if *holder != self.instance => link.rtt_us,
            _ => 0.0,
        }
    }
}

/// µs to make the first k blocks resident at a target, for k = 0 up to the last block for which that can
/// be computed.
#[derive(Debug, Clone, PartialEq)]
pub struct FetchCurve {
    us: Vec<f64>,
    blocks: usize,
}

impl FetchCurve {
    /// The curve of `blocks` in prefix order.
    #[must_use]
    pub fn of(target: &Target<'_>, blocks: &[Block<'_>]) -> Self {
        let mut spread = Spread::default();
        let mut us = Vec::with_capacity(blocks.len() + 1);
        us.push(0.0);
        for block in blocks {
            let Some(tasks) = need_of(target, block) else { break };
            us.push(spread.add(target, tasks));
        }
        Self { us, blocks: blocks.len() }
    }

    /// µs, not yet rounded, for all blocks; `None` where that cannot be computed.
    #[must_use]
    pub fn all(&self) -> Option<f64> {
        self.us.get(self.blocks).copied()
    }

    /// µs, not yet rounded, for the first `k` blocks.
    #[must_use]
    pub fn first(&self, k: usize) -> Option<f64> {
        self.us.get(k).copied()
    }

    /// The largest `k` of [`FetchCurve::first`].
    #[must_use]
    pub fn reach(&self) -> usize {
        self.us.len().saturating_sub(1)
    }
}

/// `fetch_us`: µs to make all blocks resident at a target; `None` where a block has no source with a
/// known link.
#[must_use]
pub fn fetch_us(target: &Target<'_>, blocks: &[Block<'_>]) -> Option<u64> {
    whole_us(FetchCurve::of(target, blocks).all()?)
}

/// `recompute_us`, not yet rounded: µs to prefill `tokens`; `None` where the rate is unknown.
#[must_use]
pub fn recompute(tokens: u64, prefill_tokens_per_s: f64) -> Option<f64> {
    usable(prefill_tokens_per_s).then(|| 1e6 * tokens as f64 / prefill_tokens_per_s)
}

/// `recompute_us`: µs to prefill `tokens`; `None` where the rate is unknown.
#[must_use]
pub fn recompute_us(tokens: u64, prefill_tokens_per_s: f64) -> Option<u64> {
    whole_us(recompute(tokens, prefill_tokens_per_s)?)
}

/// Rounds up to a whole µs; `None` for what is no duration or beyond the integers of I-JSON.
#[must_use]
pub fn whole_us(us: f64) -> Option<u64> {
    /// Sums and quotients of doubles, and decimal rates as doubles, are off by a few units in the last place:
    /// what is above a whole number by no more than that is that number.
    const SLACK: f64 = 4.0 * f64::EPSILON;
    const MAX: f64 = kvsp_proto::json::MAX_INTEGER as f64;
    let whole = us.floor();
    let up = if us - whole <= us * SLACK { whole } else { whole + 1.0 };
    (us >= 0.0 && up <= MAX).then_some(up as u64)
}

fn usable(rate: f64) -> bool {
    rate.is_finite() && rate > 0.0
}
