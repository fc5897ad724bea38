//! K and V of token ranges, and attention over them, between the members of a group (draft section 6.9, profile
//! section 8). Every body is held to its `Repr-Digest`.

use bytes::Bytes;
use http::header::CONTENT_ENCODING;
use http::{Method, StatusCode};
use kvsp_proto::attention::{AttentionPartial, AttentionQuery};
use kvsp_proto::container::Container;
use kvsp_proto::message::{MapId, PrefillAnswer, PrefillRequest, TokenRange};
use kvsp_proto::path::{self, MEDIA_ATTENTION, MEDIA_BLOCK};
use kvsp_proto::uri::BaseUri;

use crate::answer::require_media;
use crate::error::ClientError;
use crate::transport::{Call, Client};
use crate::verify::VerifyError;

impl Client {
    /// K and V of a range of tokens at a member, all layers: one container of at most `max` octets. Its form,
    /// `Repr-Digest` and token count are verified; the section sizes are the caller's to check
    /// ([`Container::check_geometry_of`]).
    ///
    /// # Errors
    /// [`ClientError`].
    pub async fn get_tokens(
        &self,
        member: &BaseUri,
        map: &MapId,
        version: u64,
        range: TokenRange,
        max: u64,
    ) -> Result<Container, ClientError> {
        let call = Call::get(path::map_tokens(map, version, range));
        let max = max.min(self.config().max_container_octets);
        let octets = self.digested(member, call, MEDIA_BLOCK, max).await?;
        let container = Container::parse(octets, &self.container_limits()).map_err(VerifyError::Container)?;
        if u64::from(container.token_count()) != range.tokens() {
            return Err(ClientError::protocol("the container has another number of tokens than the range"));
        }
        Ok(container)
    }

    /// Stores K and V of a range of tokens at a member (an extension).
    ///
    /// # Errors
    /// [`ClientError`].
    pub async fn put_tokens(
        &self,
        member: &BaseUri,
        map: &MapId,
        version: u64,
        epoch: u64,
        (range, container): (TokenRange, Bytes),
    ) -> Result<(), ClientError> {
        let call = Call::new(Method::PUT, path::map_tokens(map, version, range)).of_epoch(epoch);
        self.call_empty(member, call.digested(MEDIA_BLOCK, container).await?).await
    }

    /// Attention over a member's keys (extension `group-attention`). The answer is one to this query.
    ///
    /// # Errors
    /// [`ClientError`]; `kvsp-reshard-conflict` where the member has another version.
    pub async fn partial_attention(
        &self,
        member: &BaseUri,
        map: &MapId,
        version: u64,
        epoch: u64,
        query: &AttentionQuery,
    ) -> Result<AttentionPartial, ClientError> {
        let max = AttentionPartial::octets_for(query)
            .ok_or_else(|| ClientError::protocol("the query is too large"))?;
        let call = Call::new(Method::POST, path::map_attention(map, version)).of_epoch(epoch);
        let call = call.digested(MEDIA_ATTENTION, query.encode()).await?;
        let octets = self.digested(member, call, MEDIA_ATTENTION, max).await?;
        let partial = AttentionPartial::decode(&octets)
            .map_err(|error| ClientError::protocol(format!("partial attention: {error}")))?;
        if partial.answers(query) {
            Ok(partial)
        } else {
            Err(ClientError::protocol("not an answer to the query"))
        }
    }

    /// Has a member compute K and V (extension `group-attention`); the answer comes once they are there in all
    /// layers, so the client's timeout must cover the computation.
    ///
    /// # Errors
    /// [`ClientError`].
    pub async fn prefill(
        &self,
        member: &BaseUri,
        map: &MapId,
        version: u64,
        request: &PrefillRequest,
    ) -> Result<PrefillAnswer, ClientError> {
        let call =
            Call::json(Method::POST, path::map_prefill(map, version), request)?.of_epoch(request.epoch);
        self.call_json(member, call).await
    }

    /// An answer of this media type whose octets have their `Repr-Digest`.
    async fn digested(
        &self,
        member: &BaseUri,
        call: Call,
        media: &str,
        max: u64,
    ) -> Result<Bytes, ClientError> {
        let (parts, body) = self.begin(member, call, false).await?.into_parts();
        if parts.status != StatusCode::OK || parts.headers.contains_key(CONTENT_ENCODING) {
            return Err(ClientError::protocol("not a whole representation as it is"));
        }
        require_media(&parts.headers, &[media])?;
        self.receive_digested(&parts.headers, body, max).await
    }
}
