//! Blocks at a holder (draft section 6.7).

use bytes::Bytes;
use http::header::{CACHE_CONTROL, CONTENT_LENGTH, ETAG, IF_NONE_MATCH};
use http::{HeaderMap, HeaderValue, Method};
use kvsp_buffer::PageBuffer;
use kvsp_proto::container::{Container, Header, LayerRange, Limits};
use kvsp_proto::digest::{Hasher, ReprDigest};
use kvsp_proto::id::{BlockKey, CompatId, ScopeId};
use kvsp_proto::path::{self, MEDIA_BLOCK};
use kvsp_proto::record::ReplicaRecord;
use kvsp_proto::registry::Codec;
use kvsp_proto::uri::BaseUri;

use crate::answer::require_media;
use crate::body::StreamedBody;
use crate::error::ClientError;
use crate::transport::{Call, Client};
use crate::verify::{self, Verifier, VerifyError};

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

/// A block whose octets are still to come.
struct Coming {
    headers: HeaderMap,
    body: StreamedBody,
    repr_digest: ReprDigest,
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
        let Coming { headers, body, repr_digest } =
            self.begin_block(holder, compat, scope, key, query).await?;
        let limits = self.container_limits();
        let octets = self.receive_with(body, limits.max_octets, repr_digest).await?;
        let container = Container::parse(octets, &limits).map_err(VerifyError::Container)?;
        verify::verify_request(&container, query.layers, query.codec)?;
        Ok(FetchedBlock { container, max_age_s: max_age_s(&headers), etag: text(&headers, ETAG.as_str()) })
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
        let Coming { body, repr_digest, .. } = self.begin_replica(record, layers).await?;
        let limits = self.container_limits();
        let mut verifier = Verifier::new(limits, repr_digest, record, layers);
        let octets = self.receive(body, limits.max_octets, |piece| Ok(verifier.update(piece)?)).await?;
        let (header, _) = verifier.finish()?;
        verify_codec(&header, record)?;
        Ok(Container::parse(octets, &limits).map_err(VerifyError::Container)?)
    }

    /// Fetches and verifies a replica as [`Client::get_verified`], into the front of `memory`: nothing is
    /// allocated, and the socket is read straight into it. Pages that the kernel copies into are best aligned to
    /// pages. The container's header; it has [`Header::container_octets`] octets.
    ///
    /// # Errors
    /// [`ClientError`]; then `memory` may hold octets that were not verified, which must not be used. A container
    /// that `memory` has no room for is [`ClientError::TooLarge`].
    pub async fn get_verified_into(
        &self,
        record: &ReplicaRecord,
        layers: Option<LayerRange>,
        memory: &mut [u8],
    ) -> Result<Header, ClientError> {
        let Coming { body, repr_digest, .. } = self.begin_replica(record, layers).await?;
        let mut verifier = Verifier::new(self.container_limits(), repr_digest, record, layers);
        let max = self.container_limits().max_octets.min(memory.len() as u64);
        let too_large = || ClientError::TooLarge { max };
        match body.declared() {
            Some(declared) if declared > max => return Err(too_large()),
            Some(declared) => {
                let declared = usize::try_from(declared).map_err(|_| too_large())?;
                let room = memory.get_mut(..declared).ok_or_else(too_large)?;
                body.receive_into(room, |piece| Ok(verifier.update(piece)?)).await?;
            }
            None => {
                let octets = body.collect(max).await?;
                verifier.update(&octets)?;
                memory.get_mut(..octets.len()).ok_or_else(too_large)?.copy_from_slice(&octets);
            }
        }
        let (header, _) = verifier.finish()?;
        verify_codec(&header, record)?;
        Ok(header)
    }

    async fn begin_replica(
        &self,
        record: &ReplicaRecord,
        layers: Option<LayerRange>,
    ) -> Result<Coming, ClientError> {
        let holder = record.http_holder().ok_or(ClientError::NotHttp)?;
        let query = BlockQuery { layers, codec: Some(record.codec) };
        self.begin_block(&holder, record.compat_id, record.scope_id, record.block_key, &query).await
    }

    async fn begin_block(
        &self,
        holder: &BaseUri,
        compat: CompatId,
        scope: ScopeId,
        key: BlockKey,
        query: &BlockQuery,
    ) -> Result<Coming, ClientError> {
        let path = query.append_to(path::block(compat, scope, key));
        let (parts, body) = self.begin(holder, Call::get(path), false).await?.into_parts();
        require_media(&parts.headers, &[MEDIA_BLOCK])?;
        // Before the octets: an answer without a digest is not worth receiving.
        let repr_digest = repr_digest(&parts.headers)?.ok_or(VerifyError::NoReprDigest)?;
        Ok(Coming { headers: parts.headers, body, repr_digest })
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
        let call = Call::new(Method::PUT, path::block(compat, scope, key));
        let mut call = call.digested(MEDIA_BLOCK, container).await?;
        call.headers.insert(IF_NONE_MATCH, HeaderValue::from_static("*"));
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

    /// A whole body that has the `Repr-Digest` of its headers, at most `max` octets.
    pub(crate) async fn receive_digested(
        &self,
        headers: &HeaderMap,
        body: StreamedBody,
        max: u64,
    ) -> Result<Bytes, ClientError> {
        // Before the octets: an answer without a digest is not worth receiving.
        let wanted = repr_digest(headers)?.ok_or(VerifyError::NoReprDigest)?;
        self.receive_with(body, max, wanted).await
    }

    async fn receive_with(
        &self,
        body: StreamedBody,
        max: u64,
        wanted: ReprDigest,
    ) -> Result<Bytes, ClientError> {
        let mut hasher = Hasher::new();
        let seen = |piece: &[u8]| {
            hasher.update(piece);
            Ok(())
        };
        let octets = self.receive(body, max, seen).await?;
        if hasher.finish() == wanted.0 { Ok(octets) } else { Err(VerifyError::ReprDigest.into()) }
    }

    /// A whole body in one page-aligned buffer, at most `max` octets; `seen` is shown every piece as it arrives,
    /// and may refuse the body.
    async fn receive(
        &self,
        body: StreamedBody,
        max: u64,
        mut seen: impl FnMut(&[u8]) -> Result<(), ClientError>,
    ) -> Result<Bytes, ClientError> {
        let too_large = || ClientError::TooLarge { max };
        let Some(declared) = body.declared() else {
            let octets = body.collect(max).await?;
            seen(&octets)?;
            return Ok(octets);
        };
        if declared > max {
            return Err(too_large());
        }
        let declared = usize::try_from(declared).map_err(|_| too_large())?;
        let pooled = self.arena().take(declared);
        let mut buffer = pooled.or_else(|| PageBuffer::unpooled(declared)).ok_or_else(too_large)?;
        body.receive_into(&mut buffer, seen).await?;
        Ok(buffer.freeze())
    }

    pub(crate) fn container_limits(&self) -> Limits {
        Limits { max_octets: self.config().max_container_octets, max_layers: self.config().max_layers }
    }
}

impl Call {
    /// With a body that its `Repr-Digest` protects.
    pub(crate) async fn digested(self, media: &'static str, body: Bytes) -> Result<Self, ClientError> {
        let digest = if body.len() < HASH_ELSEWHERE_OCTETS {
            ReprDigest::of(&body)
        } else {
            let octets = body.clone();
            elsewhere(move || ReprDigest::of(&octets)).await?
        };
        let digest = HeaderValue::try_from(digest.to_string())
            .map_err(|_| ClientError::protocol("the digest is not a field value"))?;
        let mut call = self.with_body(media, body);
        call.headers.insert(REPR_DIGEST, digest);
        Ok(call)
    }
}

fn verify_codec(header: &Header, record: &ReplicaRecord) -> Result<(), VerifyError> {
    match header.codec() {
        Some(got) if got != record.codec => Err(VerifyError::Codec { wanted: record.codec, got }),
        _ => Ok(()),
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
