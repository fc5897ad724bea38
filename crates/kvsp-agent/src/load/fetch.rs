//! One fetch: some blocks from one source, as a layer stream, or block by block where it offers none.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;

use futures_util::{StreamExt as _, stream};
use kvsp_client::{ClientError, VerifyError};
use kvsp_core::prefetch::{Fetch, FetchBlock};
use kvsp_proto::container::LayerRange;
use kvsp_proto::message::FailureReason;
use kvsp_proto::problem::ProblemKind;

use super::layer::ArrivedLayer;
use super::{Load, describe, lease};

/// Blocks fetched at once from a source that offers no layer stream.
const BLOCKS_AT_ONCE: usize = 4;

/// Run a fetch to its end; every block is then loaded, or reported as failed at this source.
pub(super) async fn run(load: &Arc<Load>, fetch: Fetch) {
    tracing::debug!(fetch = describe(&fetch), "fetching");
    let begin = Instant::now();
    let keys = fetch.blocks.iter().map(|b| b.record.block_key).collect();
    let (held, missing) = match load.unless_silent(lease::take(load, &fetch.source, keys)).await {
        Some(Ok(leased)) => leased,
        Some(Err(error)) => return fail_all(load, &fetch.blocks, &error),
        None => return give_up(load, &fetch.blocks),
    };
    load.agent.links.reached(&fetch.source, begin.elapsed());
    let (absent, present): (Vec<FetchBlock>, Vec<FetchBlock>) =
        fetch.blocks.iter().cloned().partition(|b| missing.contains(&b.record.block_key));
    for block in absent {
        load.failed(block.index, FailureReason::NotFound);
    }
    let begin = Instant::now();
    let fetch = Fetch { source: fetch.source, blocks: present };
    let octets = stream_layers(load, &fetch).await;
    load.agent.links.transferred(&fetch.source, octets, begin.elapsed());
    drop(held);
}

/// What a client error means for the block that it hit.
fn reason(error: &ClientError) -> FailureReason {
    match error {
        ClientError::Verification(error) => refused(error),
        ClientError::Denied(_) => FailureReason::SourceForbidden,
        error if error.is_not_found() => FailureReason::NotFound,
        _ => FailureReason::Unreachable,
    }
}

/// What a failed verification says: octets of another shape, or octets that are not the recorded ones.
fn refused(error: &VerifyError) -> FailureReason {
    match error {
        VerifyError::Container(_)
        | VerifyError::Layers { .. }
        | VerifyError::Codec { .. }
        | VerifyError::Size { .. }
        | VerifyError::Compat { .. } => FailureReason::ContainerMismatch,
        VerifyError::NoLayerDigest { .. } => FailureReason::NoRecord,
        VerifyError::NoReprDigest
        | VerifyError::BadReprDigest(_)
        | VerifyError::ReprDigest
        | VerifyError::LayerDigest { .. }
        | VerifyError::ReplicaDigest => FailureReason::DigestMismatch,
    }
}

/// The source is silent.
fn give_up<'a>(load: &Load, blocks: impl IntoIterator<Item = &'a FetchBlock>) {
    for block in blocks {
        load.failed(block.index, FailureReason::Unreachable);
    }
}

fn fail_all(load: &Load, blocks: &[FetchBlock], error: &ClientError) {
    tracing::debug!(%error, "a source failed");
    for block in blocks {
        load.failed(block.index, reason(error));
    }
}

/// Whether a source answered that it does not know the layer-stream resource.
fn offers_no_stream(error: &ClientError) -> bool {
    matches!(error, ClientError::Problem(p)
        if matches!(p.kind, ProblemKind::Blank(_)) && matches!(p.status(), 404 | 405 | 415 | 501))
}

async fn stream_layers(load: &Arc<Load>, fetch: &Fetch) -> u64 {
    let Some(first) = fetch.blocks.first() else { return 0 };
    let missing = load.agent.descriptor.layers.saturating_sub(first.from_layer);
    let Some(range) = LayerRange::from_count(first.from_layer, missing) else { return 0 };
    let keys: Vec<_> = fetch.blocks.iter().map(|b| b.record.block_key).collect();
    let opening = load.agent.client.layer_stream(&fetch.source, load.compat, load.scope, &keys, range, None);
    let mut layers = match load.unless_silent(opening).await {
        Some(Ok(layers)) => layers,
        Some(Err(error)) if offers_no_stream(&error) => return fetch_blocks(load, fetch, range).await,
        Some(Err(error)) => {
            fail_all(load, &fetch.blocks, &error);
            return 0;
        }
        None => {
            give_up(load, &fetch.blocks);
            return 0;
        }
    };
    let mut open: HashMap<usize, &FetchBlock> = fetch.blocks.iter().enumerate().collect();
    for (place, block) in fetch.blocks.iter().enumerate().skip(layers.blocks()) {
        load.failed(block.index, FailureReason::NotFound);
        open.remove(&place);
    }
    let mut octets = 0;
    while !open.is_empty() {
        let next = load.unless_silent(layers.next()).await;
        match next.flatten() {
            Some(Ok(sent)) => {
                let arrived = ArrivedLayer {
                    layer: sent.layer,
                    codec: Some(sent.codec),
                    token_count: sent.token_count,
                    sections: sent.sections,
                };
                octets += arrived.octets();
                let Some(block) = open.get(&sent.block) else { continue };
                if let Err(reason) = take_layer(load, block, &arrived).await {
                    load.failed(block.index, reason);
                    open.remove(&sent.block);
                } else if range.last() == sent.layer {
                    open.remove(&sent.block);
                }
            }
            Some(Err(error)) => {
                let rest: Vec<FetchBlock> = open.into_values().cloned().collect();
                fail_all(load, &rest, &error);
                break;
            }
            None => {
                give_up(load, open.into_values());
                break;
            }
        }
    }
    octets
}

/// Verify one layer and keep it; place the block once it is whole.
async fn take_layer(load: &Load, block: &FetchBlock, arrived: &ArrivedLayer) -> Result<(), FailureReason> {
    let counters = &load.agent.load_counters;
    counters.fetched(arrived.octets());
    let raw = arrived.admit(&block.record, &load.agent.descriptor)?;
    counters.verified(arrived.octets());
    let held = arrived.sections.clone();
    if let Some(whole) = load.keep(block.index, arrived.layer, held, raw, &block.record).await {
        load.place(block.index, &block.record, whole).await;
    }
    Ok(())
}

/// Whole blocks by GET, a few at once.
async fn fetch_blocks(load: &Arc<Load>, fetch: &Fetch, range: LayerRange) -> u64 {
    stream::iter(fetch.blocks.clone())
        .map(|block| async move { fetch_block(load, &block, range).await })
        .buffered(BLOCKS_AT_ONCE)
        .fold(0, |sum, octets| async move { sum + octets })
        .await
}

async fn fetch_block(load: &Load, block: &FetchBlock, range: LayerRange) -> u64 {
    let getting = load.agent.client.get_verified(&block.record, Some(range));
    let container = match load.unless_silent(getting).await {
        Some(Ok(container)) => container,
        Some(Err(error)) => {
            fail_all(load, std::slice::from_ref(block), &error);
            return 0;
        }
        None => {
            give_up(load, [block]);
            return 0;
        }
    };
    for layer in range.first()..=range.last() {
        let taken = match container.layer(layer) {
            Some(sections) => {
                let codec = container.header().codec();
                let arrived = ArrivedLayer { layer, codec, token_count: container.token_count(), sections };
                take_layer(load, block, &arrived).await
            }
            None => Err(FailureReason::ContainerMismatch),
        };
        if let Err(reason) = taken {
            load.failed(block.index, reason);
            break;
        }
    }
    container.size()
}
