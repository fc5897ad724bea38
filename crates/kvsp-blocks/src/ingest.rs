//! A container on its way in: every check of a block PUT, in the profile's order.

use std::sync::Arc;

use bytes::Bytes;
use kvsp_proto::codec;
use kvsp_proto::container::{Container, ContainerError};
use kvsp_proto::digest::ReprDigest;
use kvsp_proto::problem::{Problem, ProblemType};
use kvsp_proto::registry::Codec;
use kvsp_store::{BlockMeta, BlockName, StoredBlock};

use crate::problems;
use crate::service::{BlockService, PutOutcome};

/// Octets that are hashed or transcoded at once, on the thread that serves.
const SMALL_OCTETS: usize = 64 << 10;

/// What a PUT says about the container beside its octets.
#[derive(Debug, Clone)]
pub(crate) struct Claims {
    /// The principal that stores it.
    pub(crate) producer: String,
    /// The `Repr-Digest` sent, not yet read.
    pub(crate) repr_digest: Option<String>,
    /// Whether `If-None-Match: *` was sent.
    pub(crate) if_none_match: bool,
}

impl BlockService {
    /// Checks a container and stores it as a block.
    ///
    /// Of the checks: container (400, 413), codec (415), precondition (428, 412), contents (422), room (507).
    pub(crate) async fn ingest(
        self: &Arc<Self>,
        name: BlockName,
        octets: Bytes,
        claims: Claims,
    ) -> Result<PutOutcome, Problem> {
        let container = Container::parse(octets, &self.container_limits()).map_err(malformed)?;
        if !container.codec().is_known() {
            return Err(Problem::new(
                ProblemType::UnsupportedCodec,
                format!("codec {} is not registered", container.codec().number()),
            ));
        }
        if !claims.if_none_match {
            return Err(Problem::blank(428, "a block is stored with If-None-Match: *"));
        }
        if self.meta(&name).is_some() {
            return Ok(PutOutcome::Exists);
        }
        self.check_layers(&name, &container)?;
        self.check_decodes(&name, &container).await?;
        let claimed = claims.repr_digest.as_deref().map(read_digest).transpose()?.flatten();
        let meta = self.compute(name, claims.producer, &container).await?;
        if claimed.is_some_and(|claimed| claimed != meta.repr_digest) {
            return Err(Problem::new(
                ProblemType::DigestMismatch,
                "the Repr-Digest is not that of the octets received",
            ));
        }
        let kept = self.keep(StoredBlock { meta: Arc::new(meta), container }).await;
        kept.map_err(problems::keep)
    }

    /// All layers from layer 0: of the descriptor, where that is known.
    fn check_layers(&self, name: &BlockName, container: &Container) -> Result<(), Problem> {
        let mismatch = |detail: String| Problem::new(ProblemType::ContainerMismatch, detail);
        let layers = container.layers();
        if layers.first() != 0 {
            return Err(mismatch(format!("a block starts with layer 0, not {}", layers.first())));
        }
        let Some(descriptor) = self.descriptor(name.compat) else {
            return Ok(());
        };
        if layers.count() != u64::from(descriptor.layers) {
            return Err(mismatch(format!("{} layers of {}", layers.count(), descriptor.layers)));
        }
        container.check_geometry(&descriptor).map_err(|error| mismatch(error.to_string()))
    }

    /// Sections of a codec that is known must decode, not only claim the right size: nobody could use them,
    /// and they would keep an honest replica out.
    async fn check_decodes(&self, name: &BlockName, container: &Container) -> Result<(), Problem> {
        let Some(descriptor) =
            self.descriptor(name.compat).filter(|_| container.codec() == Codec::SPLIT_ZSTD)
        else {
            return Ok(());
        };
        let (coded, octets) = (container.clone(), descriptor.kv_dtype.octets());
        let decoded = self.off_reactor(container.bytes().len(), move || {
            codec::transcode(&coded, Codec::RAW, octets).map(drop)
        });
        decoded.await?.map_err(|error| Problem::new(ProblemType::ContainerMismatch, error.to_string()))
    }

    /// Hashes a container in one pass, away from the threads that serve requests where it is not small.
    async fn compute(
        &self,
        name: BlockName,
        producer: String,
        container: &Container,
    ) -> Result<BlockMeta, Problem> {
        let container = container.clone();
        self.off_reactor(container.bytes().len(), move || {
            let (repr_digest, layer_digests) = container.digests();
            let (header, codec) = (container.header().clone(), container.codec());
            BlockMeta { name, producer, header, codec, layer_digests, repr_digest }
        })
        .await
    }

    /// Runs what keeps a processor busy for a time in proportion to `octets`: at once where that is short,
    /// else on a thread of its own, a few at a time.
    pub(crate) async fn off_reactor<T: Send + 'static>(
        &self,
        octets: usize,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, Problem> {
        if octets <= SMALL_OCTETS {
            return Ok(work());
        }
        let stopping = |_| Problem::blank(503, "the service is stopping");
        let slot = self.computing.clone().acquire_owned().await.map_err(|_| stopping(()))?;
        let task = tokio::task::spawn_blocking(move || {
            let _slot = slot;
            work()
        });
        task.await.map_err(|_| stopping(()))
    }
}

/// The `sha-256` of a field; none where it has other algorithms only. A field that does not parse states
/// nothing that could be verified, and the sender believes that it does: 400.
fn read_digest(field: &str) -> Result<Option<ReprDigest>, Problem> {
    ReprDigest::parse(field).map_err(|error| Problem::blank(400, format!("Repr-Digest: {error}")))
}

fn malformed(error: ContainerError) -> Problem {
    let problem = match error {
        ContainerError::Malformed(_) => ProblemType::MalformedContainer,
        ContainerError::Codec(_) => ProblemType::UnsupportedCodec,
        ContainerError::TooLarge { .. } | ContainerError::TooManyLayers { .. } => ProblemType::LimitExceeded,
    };
    Problem::new(problem, error.to_string())
}
