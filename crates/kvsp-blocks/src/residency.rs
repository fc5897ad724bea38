//! What a record says of where the layers of a block are.

use kvsp_core::tier::{Level, PerLevel};
use kvsp_proto::record::{LayerSpan, Residency};
use kvsp_proto::registry::Tier;

/// Each layer in the fastest tier that holds it: the engine's memory where `device` says so, else the first
/// tier of which it is among the leading `held` layers.
pub(crate) fn residency(
    held: &PerLevel<u32>,
    rates: &PerLevel<Option<f64>>,
    device: Option<LayerSpan>,
) -> Vec<Residency> {
    let mut list = Vec::with_capacity(3);
    let mut next = 0;
    for (level, layers) in held.iter().filter(|(_, layers)| **layers > 0) {
        // In each tier the layers beyond those of the faster ones.
        let Some(last) = layers.checked_sub(1).filter(|last| *last >= next) else {
            continue;
        };
        without(LayerSpan(next, last), device, |span| list.push(entry(level, rates, span)));
        next = last.saturating_add(1);
    }
    if let Some(span) = device {
        list.push(Residency { tier: Tier::Device, layers: span, read_mbit_per_s: None });
        list.sort_by_key(|residency| residency.layers);
    }
    list
}

fn entry(level: Level, rates: &PerLevel<Option<f64>>, layers: LayerSpan) -> Residency {
    Residency { tier: level.tier(), layers, read_mbit_per_s: rates[level] }
}

/// The parts of a span that are not in `but`.
fn without(LayerSpan(first, last): LayerSpan, but: Option<LayerSpan>, mut part: impl FnMut(LayerSpan)) {
    let Some(LayerSpan(from, to)) = but.filter(|but| but.0 <= last && first <= but.1) else {
        return part(LayerSpan(first, last));
    };
    if first < from {
        part(LayerSpan(first, from.saturating_sub(1)));
    }
    if to < last {
        part(LayerSpan(to.saturating_add(1), last));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spans(held: [u32; 3], device: Option<LayerSpan>) -> Vec<(Tier, u32, u32)> {
        let [host, disk, object] = held;
        let rates = PerLevel::new(Some(1.0), Some(2.0), None);
        let list = residency(&PerLevel::new(host, disk, object), &rates, device);
        for residency in &list {
            let want = match residency.tier {
                Tier::Host => Some(1.0),
                Tier::Disk => Some(2.0),
                _ => None,
            };
            assert_eq!(residency.read_mbit_per_s, want);
        }
        list.into_iter().map(|r| (r.tier, r.layers.0, r.layers.1)).collect()
    }

    #[test]
    fn each_layer_is_in_the_fastest_tier_that_has_it() {
        use Tier::{Disk, Host, Object};
        assert_eq!(spans([10, 0, 0], None), [(Host, 0, 9)]);
        assert_eq!(spans([10, 10, 10], None), [(Host, 0, 9)]);
        assert_eq!(spans([4, 10, 0], None), [(Host, 0, 3), (Disk, 4, 9)]);
        assert_eq!(spans([5, 2, 10], None), [(Host, 0, 4), (Object, 5, 9)]);
        assert_eq!(spans([1, 5, 10], None), [(Host, 0, 0), (Disk, 1, 4), (Object, 5, 9)]);
        assert_eq!(spans([0, 0, 1], None), [(Object, 0, 0)]);
    }

    #[test]
    fn layers_on_the_device_are_told_apart() {
        use Tier::{Device, Disk, Host};
        assert_eq!(spans([10, 0, 0], Some(LayerSpan(0, 9))), [(Device, 0, 9)]);
        assert_eq!(spans([10, 0, 0], Some(LayerSpan(0, 3))), [(Device, 0, 3), (Host, 4, 9)]);
        assert_eq!(spans([10, 0, 0], Some(LayerSpan(3, 3))), [(Host, 0, 2), (Device, 3, 3), (Host, 4, 9)]);
        assert_eq!(spans([4, 10, 0], Some(LayerSpan(2, 5))), [(Host, 0, 1), (Device, 2, 5), (Disk, 6, 9)]);
    }
}
