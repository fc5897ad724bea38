//! Waiting until the blocks of a prompt are stored outside this process: a checkpoint that names them relies on
//! it (profile section 7).

use std::sync::Arc;
use std::time::Duration;

use kvsp_proto::message::{Detail, LookupRequest};
use tokio::time::Instant;

use super::Session;
use crate::Agent;
use crate::engine::ScopedKey;

/// How often the index is asked for what is still missing.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// Ends once every complete block of the session's prompt has a copy elsewhere: one that the holder has
/// acknowledged, or a replica of somebody else in the index; then true. False at once where nobody would ever
/// store one. Does not end where it does not come about.
pub(super) async fn wait(agent: Arc<Agent>, session: Arc<Session>) -> bool {
    let scope = session.facts.scope.scope_id();
    let mut missing: Vec<ScopedKey> =
        session.facts.prompt_blocks.iter().map(|&key| ScopedKey { scope, key }).collect();
    let Some(copies) = agent.copies.clone() else {
        find_elsewhere(&agent, &mut missing).await;
        return missing.is_empty();
    };
    let mut acknowledged = copies.subscribe();
    let strike_out = |missing: &mut Vec<ScopedKey>| {
        let now = agent.clock.now();
        missing.retain(|block| !copies.has(block, now));
    };
    strike_out(&mut missing);
    find_elsewhere(&agent, &mut missing).await;
    // Blocks that were reused, not computed now, are copied on nobody's account but this session's.
    let reused = session.with(|state| state.reused) / u64::from(agent.descriptor.block_tokens).max(1);
    let reused = usize::try_from(reused).unwrap_or(usize::MAX).min(session.facts.prompt_blocks.len());
    for &key in &session.facts.prompt_blocks[..reused] {
        let block = ScopedKey { scope, key };
        if missing.contains(&block) && agent.host_holds(&block) {
            copies.offer_again(block);
        }
    }
    let mut look = tokio::time::interval_at(Instant::now() + LOOK_EVERY, LOOK_EVERY);
    while !missing.is_empty() {
        tokio::select! {
            changed = acknowledged.changed() => {
                strike_out(&mut missing);
                if changed.is_err() {
                    return false;
                }
            }
            _ = look.tick() => find_elsewhere(&agent, &mut missing).await,
        }
    }
    true
}

/// Strike out the blocks that another holder has, by the index.
async fn find_elsewhere(agent: &Agent, missing: &mut Vec<ScopedKey>) {
    let (Some(index), Some(first)) = (&agent.config.index, missing.first()) else { return };
    let request = LookupRequest {
        scope_id: first.scope,
        compat_id: agent.descriptor.compat_id(),
        block_keys: missing.iter().map(|block| block.key).collect(),
        targets: Vec::new(),
        detail: Detail::Location,
        block_tokens: None,
    };
    // An index that is away leaves the acknowledgements of the holder.
    let Ok(answer) = agent.client.lookup(index, &request).await else { return };
    let elsewhere: std::collections::BTreeSet<_> = answer
        .blocks
        .unwrap_or_default()
        .into_iter()
        .filter(|b| b.replicas.iter().any(|r| r.http_holder().is_some_and(|holder| holder != agent.base)))
        .map(|block| block.block_key)
        .collect();
    missing.retain(|block| !elsewhere.contains(&block.key));
}
