//! The representations of a block: some of its layers, in a codec (draft section 6.7).

use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use http::Uri;
use kvsp_net::extract::query;
use kvsp_net::reply::Failure;
use kvsp_proto::codec::{SPLIT_ELEMENT_OCTETS, transcode};
use kvsp_proto::container::{Container, LayerRange};
use kvsp_proto::digest::{ReprDigest, sha256_parts};
use kvsp_proto::problem::{Problem, ProblemType};
use kvsp_proto::registry::Codec;
use kvsp_store::{BlockMeta, BlockName, BlockPart};

use crate::digests::ReprName;
use crate::problems;
use crate::room::Patience;
use crate::service::BlockService;

/// What a GET asks for.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Asked {
    /// `layers=`; all where absent.
    pub(crate) layers: Option<LayerRange>,
    /// `codec=`; that of the replica where absent.
    pub(crate) codec: Option<Codec>,
}

impl Asked {
    pub(crate) fn from_uri(uri: &Uri) -> Result<Self, Failure> {
        let mut asked = Self::default();
        for (name, value) in query(uri)? {
            match name.as_str() {
                "layers" => {
                    let range = value.parse().ok().filter(|_| asked.layers.is_none());
                    let wrong = "layers= is a-b in unsigned decimals with a <= b, given once";
                    asked.layers = Some(range.ok_or_else(|| Failure::new(ProblemType::InvalidRange, wrong))?);
                }
                "codec" => {
                    let codec = codec_number(&value).filter(|_| asked.codec.is_none());
                    let wrong = "codec= is a number in 1…65534, given once";
                    asked.codec = Some(codec.ok_or_else(|| Failure::new(ProblemType::BadIdentifier, wrong))?);
                }
                _ => {}
            }
        }
        Ok(asked)
    }
}

/// Unsigned decimals without a sign.
fn codec_number(text: &str) -> Option<Codec> {
    let digits = text.bytes().all(|c| c.is_ascii_digit());
    if digits { text.parse().ok().and_then(Codec::new) } else { None }
}

/// A representation that exists: what it is of, and how it is made.
#[derive(Debug, Clone)]
pub(crate) struct Plan {
    pub(crate) meta: Arc<BlockMeta>,
    pub(crate) layers: LayerRange,
    /// The codec to make, where it is not that of the replica.
    recode: Option<(Codec, usize)>,
}

impl Plan {
    /// The same for other layers of the same block.
    pub(crate) fn of(&self, layers: LayerRange) -> Self {
        Self { layers, ..self.clone() }
    }

    fn is_whole(&self) -> bool {
        self.recode.is_none() && self.layers == self.meta.layers()
    }

    fn name(&self) -> ReprName {
        let codec = self.recode.map_or(self.meta.codec, |(codec, _)| codec);
        ReprName { whole: self.meta.repr_digest.0, layers: self.layers, codec }
    }

    fn known_digest(&self, service: &BlockService) -> Option<ReprDigest> {
        if self.is_whole() { Some(self.meta.repr_digest) } else { service.digests.get(&self.name()) }
    }

    /// Octets of the representation, where they follow from what is known of the block.
    pub(crate) fn known_octets(&self) -> Option<u64> {
        match self.recode {
            None => self.meta.header_of(self.layers).map(|header| header.container_octets()),
            Some(_) => None,
        }
    }
}

/// Octets to send, in order, and their digest.
#[derive(Debug, Clone)]
pub(crate) struct Representation {
    pub(crate) parts: BlockPart,
    pub(crate) digest: ReprDigest,
}

impl BlockService {
    /// Whether there is such a representation of a block that is held.
    ///
    /// # Errors
    /// 404 `kvsp-block-not-found` or `kvsp-layers-unavailable`, 406 `kvsp-codec-unavailable`.
    pub(crate) fn plan(&self, name: &BlockName, asked: Asked) -> Result<Plan, Problem> {
        let meta = self.meta(name).ok_or_else(problems::not_found)?;
        let layers = asked.layers.unwrap_or_else(|| meta.layers());
        if !meta.layers().covers(layers) {
            return Err(problems::layers_unavailable());
        }
        let recode = match asked.codec.filter(|codec| *codec != meta.codec) {
            Some(codec) => Some((codec, self.element_octets_for(&meta, codec)?)),
            None => None,
        };
        Ok(Plan { meta, layers, recode })
    }

    /// The size of the elements, where the block can be had in that codec.
    fn element_octets_for(&self, meta: &BlockMeta, codec: Codec) -> Result<usize, Problem> {
        let lossless = |codec| matches!(codec, Codec::RAW | Codec::SPLIT_ZSTD);
        let octets = self.descriptor(meta.name.compat).map(|descriptor| descriptor.kv_dtype.octets());
        match octets {
            Some(SPLIT_ELEMENT_OCTETS) if lossless(codec) && lossless(meta.codec) => Ok(SPLIT_ELEMENT_OCTETS),
            _ => Err(Problem::new(
                ProblemType::CodecUnavailable,
                format!(
                    "the block is held in codec {} and not offered in {}",
                    meta.codec.number(),
                    codec.number()
                ),
            )),
        }
    }

    /// The digest of a representation, without its octets where it is known.
    pub(crate) async fn digest_of(
        &self,
        plan: &Plan,
    ) -> Result<(ReprDigest, Option<Representation>), Problem> {
        match plan.known_digest(self) {
            Some(digest) => Ok((digest, None)),
            None => self.represent(plan).await.map(|made| (made.digest, Some(made))),
        }
    }

    /// The octets of a representation; those of host memory are shared, not copied.
    ///
    /// # Errors
    /// 404 `kvsp-block-not-found` where the block went since, or is rotten.
    pub(crate) async fn represent(&self, plan: &Plan) -> Result<Representation, Problem> {
        if plan.is_whole() {
            let block = self.find(plan.meta.name).await.map_err(|error| problems::store(&error))?;
            let block = block.ok_or_else(problems::not_found)?;
            let parts = BlockPart { head: block.container.bytes().clone(), data: Bytes::new() };
            return Ok(Representation { parts, digest: block.meta.repr_digest });
        }
        if let Some((codec, element_octets)) = plan.recode {
            return self.transcoded(plan, codec, element_octets).await;
        }
        let parts = self.part(plan).await?;
        self.was_read(plan.meta.name, plan.layers);
        // The block may have gone and come again as another; its own digest names what was read.
        let same = self.is_current(plan);
        if let (true, Some(digest)) = (same, plan.known_digest(self)) {
            return Ok(Representation { parts, digest });
        }
        let made = self.hashed(parts).await?;
        if same {
            self.digests.insert(plan.name(), made.digest);
        }
        Ok(made)
    }

    fn is_current(&self, plan: &Plan) -> bool {
        self.meta(&plan.meta.name).is_none_or(|meta| Arc::ptr_eq(&meta, &plan.meta))
    }

    async fn hashed(&self, parts: BlockPart) -> Result<Representation, Problem> {
        let size = usize::try_from(parts.size()).unwrap_or(usize::MAX);
        let hashing = parts.clone();
        let digest = self
            .off_reactor(size, move || {
                ReprDigest(sha256_parts([hashing.head.as_ref(), hashing.data.as_ref()]))
            })
            .await?;
        Ok(Representation { parts, digest })
    }

    /// The layers of a plan as a container in two parts, in its codec.
    pub(crate) async fn layers(&self, plan: &Plan) -> Result<BlockPart, Problem> {
        match plan.recode {
            Some((codec, element_octets)) => {
                self.transcoded(plan, codec, element_octets).await.map(|made| made.parts)
            }
            None => self.part(plan).await,
        }
    }

    /// The layers of a plan in the codec in which they are held; each verified where it does not come from
    /// memory.
    async fn part(&self, plan: &Plan) -> Result<BlockPart, Problem> {
        let part = self.find_part(plan.meta.name, plan.layers).await;
        part.map_err(|error| problems::store(&error))?.ok_or_else(problems::not_found)
    }

    /// A representation in another codec: made before, being made, or made now.
    async fn transcoded(
        &self,
        plan: &Plan,
        codec: Codec,
        element_octets: usize,
    ) -> Result<Representation, Problem> {
        let asked = Instant::now();
        let make = async {
            // It waited for another's attempt, which failed: enough of waiting.
            if asked.elapsed() > self.wait() {
                return Err(problems::no_memory());
            }
            let turn = tokio::time::timeout(self.wait(), self.recoding.acquire()).await;
            let _turn = turn.map_err(|_| problems::no_memory())?;
            let made = self.recode(self.part(plan).await?, codec, element_octets).await?;
            let made = self.hashed(self.counted(made).await?).await?;
            self.metrics.transcodes.inc();
            // Made of another block that came under this name meanwhile: not to be kept under this digest.
            if self.is_current(plan) { Ok(made) } else { Err(problems::not_found()) }
        };
        let (made, made_now) = self.transcoded.get_or_make(plan.name(), make).await?;
        if made_now {
            self.digests.insert(plan.name(), made.digest);
        } else {
            self.metrics.transcode_hits.inc();
        }
        Ok(made)
    }

    async fn recode(
        &self,
        part: BlockPart,
        codec: Codec,
        element_octets: usize,
    ) -> Result<Container, Problem> {
        let limits = self.container_limits();
        let made = self
            .off_reactor(usize::MAX, move || {
                let joined = Bytes::from([part.head.as_ref(), part.data.as_ref()].concat());
                let container = Container::parse(joined, &limits).ok()?;
                transcode(&container, codec, element_octets).ok()
            })
            .await?;
        // What is stored under a descriptor was checked against it, so this is a block stored before the
        // descriptor was known, and not what its codec makes.
        made.ok_or_else(|| {
            Problem::new(ProblemType::CodecUnavailable, "the sections are not what their codec makes")
        })
    }

    /// What was made, in memory that counts. Its input has gone by now, so who waits here holds nothing that
    /// others wait for but a turn.
    async fn counted(&self, made: Container) -> Result<BlockPart, Problem> {
        let octets = made.bytes().len();
        let room = self.room_for(octets as u64, Patience::Waits).await;
        let _room = room.map_err(|error| problems::store(&error))?;
        let mut buffer = self.buffers.take(octets).ok_or_else(problems::no_memory)?;
        let head = self.off_reactor(octets, move || {
            buffer.copy_from_slice(made.bytes());
            buffer.freeze()
        });
        Ok(BlockPart { head: head.await?, data: Bytes::new() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(query: &str) -> Result<Asked, Option<ProblemType>> {
        let uri = format!("/x?{query}").parse().unwrap();
        Asked::from_uri(&uri).map_err(|failure| failure.0.problem_type())
    }

    #[test]
    fn a_query_is_read_strictly() {
        let range = LayerRange::new(0, 3).unwrap();
        let want = Asked { layers: Some(range), codec: Codec::new(2) };
        assert_eq!(asked("layers=0-3&codec=2&other=1&other=2"), Ok(want));
        assert_eq!(asked(""), Ok(Asked::default()));
        for bad in
            ["layers=", "layers", "layers=1", "layers=2-1", "layers=0-3&layers=0-3", "layers=0-4294967296"]
        {
            assert_eq!(asked(bad), Err(Some(ProblemType::InvalidRange)), "{bad}");
        }
        for bad in
            ["codec=", "codec=0", "codec=65535", "codec=65536", "codec=+1", "codec=x", "codec=1&codec=1"]
        {
            assert_eq!(asked(bad), Err(Some(ProblemType::BadIdentifier)), "{bad}");
        }
    }
}
