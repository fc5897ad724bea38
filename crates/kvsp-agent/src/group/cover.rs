//! Positions by who owns them.

use kvsp_core::reshard::Ranges;
use kvsp_proto::message::{Shard, TokenRange};
use kvsp_proto::uri::BaseUri;

/// Cuts positions by their owners, in order; what nobody owns is left out.
pub(super) fn by_owner(shards: &[Shard], positions: &Ranges) -> Vec<(BaseUri, TokenRange)> {
    let parts = shards.iter().flat_map(|shard| {
        let owned = positions.clip(shard.tokens.into()).to_wire();
        owned.into_iter().map(|range| (shard.instance.clone(), range))
    });
    parts.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn positions_are_cut_where_their_owner_changes() {
        let member = |n: u16| -> BaseUri { format!("http://127.0.0.1:{n}/kvsp/").parse().unwrap() };
        let range = |a, b| TokenRange::new(a, b).unwrap();
        let shard = |a, b, n| Shard { tokens: range(a, b), instance: member(n) };
        let shards = [shard(0, 10, 1), shard(10, 20, 2), shard(20, 32, 1)];
        let positions: Ranges = [3..4, 9..22, 30..40].into_iter().collect();
        let expected = [
            (member(1), range(3, 4)),
            (member(1), range(9, 10)),
            (member(2), range(10, 20)),
            (member(1), range(20, 22)),
            (member(1), range(30, 32)),
        ];
        assert_eq!(by_owner(&shards, &positions), expected);
    }
}
