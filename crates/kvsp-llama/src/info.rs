//! What an engine will be, known before it has weights.

use std::sync::Arc;

use kvsp_engine::EngineInfo;
use kvsp_proto::descriptor::Descriptor;

use crate::config::Config;
use crate::dtype::KvType;
use crate::error::LoadError;
use crate::pool::PoolShape;

/// The shape of the pages of a model under this descriptor.
pub(crate) fn pool_shape(config: &Config, descriptor: &Descriptor) -> Result<PoolShape, LoadError> {
    Ok(PoolShape {
        layers: config.layers,
        kv_heads: config.kv_heads,
        head_dim: config.head_dim,
        block_tokens: descriptor.block_tokens as usize,
        kv: KvType::new(descriptor.kv_dtype)?,
    })
}

/// A page has more octets than an address space.
pub(crate) fn too_large() -> LoadError {
    LoadError::Options("a page of so many tokens overflows".into())
}

/// The facts of an engine with a pool of at most `pool_octets`.
pub(crate) fn engine_info(
    config: &Config,
    descriptor: Descriptor,
    pool_octets: u64,
) -> Result<EngineInfo, LoadError> {
    let page_octets = pool_shape(config, &descriptor)?.page_octets().ok_or_else(too_large)?;
    // Page identifiers are 32 bits wide.
    let pages = usize::try_from((pool_octets / page_octets).min(u64::from(u32::MAX))).unwrap_or(usize::MAX);
    if pages == 0 {
        return Err(LoadError::Options(format!(
            "a pool of {pool_octets} octets holds no page: one takes {page_octets}"
        )));
    }
    Ok(EngineInfo {
        descriptor: Arc::new(descriptor),
        max_context: config.max_context,
        vocab: config.vocab,
        eos: config.eos.clone(),
        pages,
        batch_invariant: true,
    })
}
