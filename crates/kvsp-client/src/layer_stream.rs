//! A prefix, layer by layer, as it arrives (extension `layer-stream`, profile section 5).

use std::collections::VecDeque;

use http::Method;
use kvsp_proto::container::{
    Container, ContainerError, Header, LayerRange, LayerSections, Malformed, StreamEvent, StreamParser,
};
use kvsp_proto::id::{BlockKey, CompatId, ScopeId};
use kvsp_proto::path::{self, BLOCKS_HEADER, MEDIA_BLOCK_SEQUENCE};
use kvsp_proto::record::{LayerSpan, ReplicaRecord};
use kvsp_proto::registry::Codec;
use kvsp_proto::uri::BaseUri;
use serde::Serialize;

use crate::answer::require_media;
use crate::body::StreamedBody;
use crate::error::ClientError;
use crate::transport::{Call, Client};
use crate::verify::{self, VerifyError};

#[derive(Serialize)]
struct Request<'a> {
    block_keys: &'a [BlockKey],
    layers: LayerSpan,
    #[serde(skip_serializing_if = "Option::is_none")]
    codec: Option<Codec>,
}

impl Client {
    /// Asks for layers of the leading blocks of a prefix, layer by layer. The answer's head must come within
    /// the client's timeout; then only silence ends the stream early.
    ///
    /// # Errors
    /// [`ClientError`]; a holder without the extension answers 404 or 405.
    pub async fn layer_stream(
        &self,
        holder: &BaseUri,
        compat: CompatId,
        scope: ScopeId,
        block_keys: &[BlockKey],
        layers: LayerRange,
        codec: Option<Codec>,
    ) -> Result<LayerStream, ClientError> {
        let request = Request { block_keys, layers: LayerSpan(layers.first(), layers.last()), codec };
        let call = Call::json(Method::POST, path::blocks(compat, scope), &request)?;
        let (parts, body) = self.begin(holder, call, true).await?.into_parts();
        require_media(&parts.headers, &[MEDIA_BLOCK_SEQUENCE])?;
        let blocks = parts.headers.get(BLOCKS_HEADER).and_then(|value| value.to_str().ok()?.parse().ok());
        let blocks = blocks.filter(|blocks| *blocks <= block_keys.len());
        let blocks = blocks.ok_or_else(|| ClientError::protocol("no valid number of blocks"))?;
        Ok(LayerStream {
            body,
            parser: StreamParser::sequence(self.container_limits()),
            expected: Expected { blocks, layers, codec, block: 0, layer: layers.first().into() },
            coming: None,
            ready: VecDeque::new(),
            ended: false,
        })
    }
}

/// One layer of one block, as it came.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StreamedLayer {
    /// Which of the blocks asked for.
    pub block: usize,
    /// Which layer.
    pub layer: u32,
    /// The codec of its sections.
    pub codec: Codec,
    /// Tokens of the block.
    pub token_count: u32,
    /// K and V, not copied.
    pub sections: LayerSections,
}

impl StreamedLayer {
    /// Checks the layer against the record of its replica.
    ///
    /// # Errors
    /// [`VerifyError`].
    pub fn verify(&self, record: &ReplicaRecord) -> Result<(), VerifyError> {
        verify::verify_layer(self.layer, &self.sections, self.codec, record)
    }

    /// Copies the layer into a container of its own.
    ///
    /// # Errors
    /// [`Malformed`] where the token count is 0, which the stream does not let through.
    pub fn to_container(&self) -> Result<Container, Malformed> {
        let sections = [(&self.sections.k, &self.sections.v)];
        Container::build(self.codec, self.layer, self.token_count, &sections)
    }
}

/// The layers of a prefix as they arrive: layer a of every block, then layer a+1 of every block, and so on.
#[derive(Debug)]
pub struct LayerStream {
    body: StreamedBody,
    parser: StreamParser,
    expected: Expected,
    coming: Option<Coming>,
    ready: VecDeque<StreamedLayer>,
    ended: bool,
}

/// What must come next.
#[derive(Debug, Clone, Copy)]
struct Expected {
    blocks: usize,
    layers: LayerRange,
    codec: Option<Codec>,
    block: usize,
    /// Counts beyond the last layer, which may be the highest number there is.
    layer: u64,
}

impl Expected {
    const fn is_complete(&self) -> bool {
        self.blocks == 0 || self.layer > self.layers.last() as u64
    }

    /// Whether a container with this header comes next.
    fn check(&self, header: &Header) -> Result<Codec, VerifyError> {
        let codec = header.codec().ok_or(ContainerError::Codec(header.codec_number()))?;
        if self.is_complete() {
            return Err(ContainerError::from(Malformed::Trailing).into());
        }
        // Not complete, so the layer is within the range, whose ends are 32 bits wide.
        let wanted = u32::try_from(self.layer).ok().and_then(|layer| LayerRange::new(layer, layer).ok());
        match (wanted, self.codec) {
            (Some(wanted), _) if wanted != header.layers() => {
                Err(VerifyError::Layers { wanted, got: header.layers() })
            }
            (_, Some(wanted)) if wanted != codec => Err(VerifyError::Codec { wanted, got: codec }),
            _ => Ok(codec),
        }
    }

    const fn advance(&mut self) {
        self.block += 1;
        if self.block == self.blocks {
            self.block = 0;
            self.layer += 1;
        }
    }
}

/// The container whose layer is coming.
#[derive(Debug, Clone, Copy)]
struct Coming {
    codec: Codec,
    token_count: u32,
}

impl LayerStream {
    /// How many of the leading blocks are sent.
    #[must_use]
    pub const fn blocks(&self) -> usize {
        self.expected.blocks
    }

    /// The next layer; `None` once every layer of every block has come, and after an error.
    ///
    /// # Errors
    /// [`ClientError`]: silence, a break, a malformed container, or another layer or codec than was asked for.
    /// What came before stands, once it is verified.
    pub async fn next(&mut self) -> Option<Result<StreamedLayer, ClientError>> {
        if let Some(layer) = self.ready.pop_front() {
            return Some(Ok(layer));
        }
        if self.ended {
            return None;
        }
        let outcome = self.receive().await.transpose();
        self.ended = !matches!(outcome, Some(Ok(_)));
        outcome
    }

    async fn receive(&mut self) -> Result<Option<StreamedLayer>, ClientError> {
        loop {
            self.take_events()?;
            if let Some(layer) = self.ready.pop_front() {
                return Ok(Some(layer));
            }
            match self.body.chunk().await? {
                Some(octets) => self.parser.push(octets),
                None => break,
            }
        }
        self.parser.finish().map_err(VerifyError::Container)?;
        if !self.expected.is_complete() {
            return Err(VerifyError::Container(Malformed::Missing.into()).into());
        }
        Ok(None)
    }

    fn take_events(&mut self) -> Result<(), ClientError> {
        while let Some(event) = self.parser.next_event().map_err(VerifyError::Container)? {
            match event {
                StreamEvent::Header(header) => {
                    let codec = self.expected.check(&header)?;
                    self.coming = Some(Coming { codec, token_count: header.token_count() });
                }
                StreamEvent::Layer { layer, sections } => {
                    // A header of exactly one layer went before.
                    if let Some(Coming { codec, token_count }) = self.coming.take() {
                        let block = self.expected.block;
                        self.ready.push_back(StreamedLayer { block, layer, codec, token_count, sections });
                        self.expected.advance();
                    }
                }
                StreamEvent::End => {}
            }
        }
        Ok(())
    }
}
