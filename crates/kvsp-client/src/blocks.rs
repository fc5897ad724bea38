//! Blocks at a holder (draft section 6.7).

use bytes::Bytes;
use http::header::{CACHE_CONTROL, CONTENT_LENGTH, ETAG, IF_NONE_MATCH};
use http::{HeaderMap, HeaderValue, Method};
use kvsp_proto::container::{Container, LayerRange, Limits};
use kvsp_proto::digest::{Hasher, ReprDigest};
use kvsp_proto::id::{BlockKey, CompatId, ScopeId};
use kvsp_proto::path::{self, MEDIA_BLOCK};
use kvsp_proto::record::ReplicaRecord;
use kvsp_proto::registry::Codec;
use kvsp_proto::uri::BaseUri;

use crate::answer::require_media;
use crate::error::ClientError;
use crate::transport::{Call, Client};
use crate::verify::{self, VerifyError};

/// Octets from which hashing moves off the threads that serve connections.
const HASH_ELSEWHERE_OCTETS: usize = 1 << 20;
const REPR_DIGEST: &str = "repr-digest";

/// Which representation of a block is wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct BlockQuery {
    /// These layers; `None`: all.
    pub layers: Option<LayerRange>,
    /// In this codec; `None`: as the holder has it.
    pub codec: Option<Codec>,
}

impl BlockQuery {
    fn append_to(self, mut path: String) -> String {
        let mut separator = '?';
        if let Some(layers) = self.layers {
            path.push_str(&format!("{separator}layers={layers}"));
            separator = '&';
        }
        if let Some(codec) = self.codec {
            path.push_str(&format!("{separator}codec={}", codec.number()));
        }
        path
    }
}

/// A block as a holder served it; its `Repr-Digest` was verified.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FetchedBlock {
    /// The container.
    pub container: Container,
    /// Seconds for which it may be kept, where the holder says so.
    pub max_age_s: Option<u64>,
    /// The entity tag.
    pub etag: Option<String>,
}

/// What a holder tells of a block without sending it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BlockHead {
    /// Octets of the container.
    pub size: Option<u64>,
    /// The digest of the container.
    pub repr_digest: Option<ReprDigest>,
    /// Seconds for which it may be kept, where the holder says so.
    pub max_age_s: Option<u64>,
    /// The entity tag.
    pub etag: Option<String>,
}

impl Client {
    /// Fetches a block, or some of its layers, and verifies `Repr-Digest`, the container's form, and that it
    /// has the layers and the codec asked for.
    ///
    /// # Errors
    /// [`ClientError`]; a miss [is not found](ClientError::is_not_found).
    pub async fn get_block(
        &self,
        holder: &BaseUri,
        compat: CompatId,
        scope: ScopeId,
        key: BlockKey,
        query: &BlockQuery,
    ) -> Result<FetchedBlock, ClientError> {
        let path = query.append_to(path::block(compat, scope, key));
        let (parts, body) = self.begin(holder, Call::get(path), false).await?.into_parts();
        require_media(&parts.headers, &[MEDIA_BLOCK])?;
        // Before the octets: an answer without a digest is not worth receiving.
        let wanted = repr_digest(&parts.headers)?.ok_or(VerifyError::NoReprDigest)?;
        let limits = self.container_limits();
        let mut hasher = Hasher::new();
        let octets = body.collect(limits.max_octets, |piece| hasher.update(piece)).await?;
        if hasher.finish() != wanted.0 {
            return Err(VerifyError::ReprDigest.into());
        }
        let container = Container::parse(octets, &limits).map_err(VerifyError::Container)?;
        verify::verify_request(&container, query.layers, query.codec)?;
        Ok(FetchedBlock {
            container,
            max_age_s: max_age_s(&parts.headers),
            etag: text(&parts.headers, ETAG.as_str()),
        })
    }

    /// Fetches a replica, or some of its layers, in its own codec from its own holder, and verifies it against
    /// its record as draft section 6.7 demands. The section sizes of a known descriptor are the caller's to
    /// check ([`Container::check_geometry`]).
    ///
    /// # Errors
    /// [`ClientError`]; a miss [is not found](ClientError::is_not_found).
    pub async fn get_verified(
        &self,
        record: &ReplicaRecord,
        layers: Option<LayerRange>,
    ) -> Result<Container, ClientError> {
        let holder = record.http_holder().ok_or(ClientError::NotHttp)?;
        let query = BlockQuery { layers, codec: Some(record.codec) };
        let fetched =
            self.get_block(&holder, record.compat_id, record.scope_id, record.block_key, &query).await?;
        let container = fetched.container;
        if container.bytes().len() < HASH_ELSEWHERE_OCTETS {
            verify::verify_record(&container, record, layers)?;
            return Ok(container);
        }
        let record = record.clone();
        elsewhere(move || verify::verify_record(&container, &record, layers).map(|_| container))
            .await?
            .map_err(Into::into)
    }

    /// What a holder tells of a block.
    ///
    /// # Errors
    /// [`ClientError`]; a miss [is not found](ClientError::is_not_found), without a problem type.
    pub async fn head_block(
        &self,
        holder: &BaseUri,
        compat: CompatId,
        scope: ScopeId,
        key: BlockKey,
        query: &BlockQuery,
    ) -> Result<BlockHead, ClientError> {
        let call = Call::new(Method::HEAD, query.append_to(path::block(compat, scope, key)));
        let headers = self.begin(holder, call, false).await?.into_parts().0.headers;
        Ok(BlockHead {
            size: text(&headers, CONTENT_LENGTH.as_str()).and_then(|octets| octets.parse().ok()),
            repr_digest: repr_digest(&headers)?,
            max_age_s: max_age_s(&headers),
            etag: text(&headers, ETAG.as_str()),
        })
    }

    /// Stores a container at a holder, protected by its `Repr-Digest`.
    ///
    /// # Errors
    /// [`ClientError`]; `kvsp-block-exists` where the holder has the block already.
    pub async fn put_block(
        &self,
        holder: &BaseUri,
        compat: CompatId,
        scope: ScopeId,
        key: BlockKey,
        container: Bytes,
    ) -> Result<(), ClientError> {
        let digest = if container.len() < HASH_ELSEWHERE_OCTETS {
            ReprDigest::of(&container)
        } else {
            let octets = container.clone();
            elsewhere(move || ReprDigest::of(&octets)).await?
        };
        let mut call =
            Call::new(Method::PUT, path::block(compat, scope, key)).with_body(MEDIA_BLOCK, container);
        call.headers.insert(IF_NONE_MATCH, HeaderValue::from_static("*"));
        let digest = HeaderValue::try_from(digest.to_string())
            .map_err(|_| ClientError::protocol("the digest is not a field value"))?;
        call.headers.insert(REPR_DIGEST, digest);
        self.call_empty(holder, call).await
    }

    /// Deletes a block. Deleting what is not there succeeds.
    ///
    /// # Errors
    /// [`ClientError`]; `kvsp-block-leased` while a lease covers it.
    pub async fn delete_block(
        &self,
        holder: &BaseUri,
        compat: CompatId,
        scope: ScopeId,
        key: BlockKey,
    ) -> Result<(), ClientError> {
        self.call_empty(holder, Call::delete(path::block(compat, scope, key))).await
    }

    pub(crate) fn container_limits(&self) -> Limits {
        Limits { max_octets: self.config().max_container_octets, max_layers: self.config().max_layers }
    }
}

async fn elsewhere<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<T, ClientError> {
    // Hashing does not panic; what remains is a runtime that is shutting down.
    tokio::task::spawn_blocking(work).await.map_err(|_| ClientError::protocol("the runtime is shutting down"))
}

fn repr_digest(headers: &HeaderMap) -> Result<Option<ReprDigest>, ClientError> {
    let mut lines = Vec::new();
    for line in headers.get_all(REPR_DIGEST) {
        lines.push(
            line.to_str().map_err(|_| {
                VerifyError::BadReprDigest(kvsp_proto::digest::ReprDigestError::NotADictionary)
            })?,
        );
    }
    if lines.is_empty() {
        return Ok(None);
    }
    Ok(ReprDigest::parse(&lines.join(", ")).map_err(VerifyError::BadReprDigest)?)
}

fn text(headers: &HeaderMap, name: &str) -> Option<String> {
    headers.get(name).and_then(|value| value.to_str().ok()).map(str::to_owned)
}

fn max_age_s(headers: &HeaderMap) -> Option<u64> {
    let value = headers.get(CACHE_CONTROL)?.to_str().ok()?;
    value.split(',').find_map(|part| part.trim().strip_prefix("max-age=")?.parse().ok())
}
