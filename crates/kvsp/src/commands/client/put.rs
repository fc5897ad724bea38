//! `kvsp put`.

use std::path::PathBuf;

use bytes::Bytes;
use kvsp_client::BlockQuery;
use kvsp_proto::container::{Container, Limits};
use kvsp_proto::digest::replica_digest;
use kvsp_proto::id::{BlockKey, NamedDigest};
use kvsp_proto::record::{LayerSpan, ReplicaRecord, Residency};
use kvsp_proto::registry::Tier;
use kvsp_proto::uri::BaseUri;
use serde_json::json;

use super::Answer;
use super::error::CommandError;
use super::output;
use super::peers::{PeerArgs, SpaceArgs};

/// What the user has on disk is never too large; the holder has limits of its own.
const LIMITS: Limits = Limits { max_octets: u64::MAX, max_layers: u32::MAX };

/// Arguments of `kvsp put`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:
  kvsp put --to http://127.0.0.1:7702/kvsp/ --compat $COMPAT --scope $SCOPE --key $KEY block.kvb1

Exit status 1 where the holder has the block already, 4 where FILE is not a container.")]
pub(crate) struct PutArgs {
    /// The holder.
    #[arg(long, value_name = "URI", env = "KVSP_HOLDER")]
    to: BaseUri,
    #[command(flatten)]
    space: SpaceArgs,
    /// The Block Key: 64 lowercase hex digits.
    #[arg(long, value_name = "HEX")]
    key: BlockKey,
    /// The container; - reads stdin.
    file: PathBuf,
    /// Print the Replica Record instead. Its tier is taken to be host memory.
    #[arg(long)]
    record: bool,
    #[command(flatten)]
    peers: PeerArgs,
}

impl PutArgs {
    pub(super) async fn answer(self) -> Result<Answer, CommandError> {
        let container = Container::parse(Bytes::from(output::read(&self.file)?), &LIMITS)
            .map_err(|source| CommandError::Container { path: self.file.clone(), source })?;
        let client = self.peers.client([&self.to])?;
        let failed = || CommandError::peer(&self.to);
        let (compat, scope) = (self.space.compat, self.space.scope);
        client
            .put_block(&self.to, compat, scope, self.key, container.bytes().clone())
            .await
            .map_err(failed())?;
        let query = BlockQuery::default();
        let head = client.head_block(&self.to, compat, scope, self.key, &query).await.map_err(failed())?;
        let ttl_ms = head.max_age_s.unwrap_or(0).saturating_mul(1000).max(1);
        let record = self.record_of(&container, ttl_ms);
        if self.record {
            let json = json!(record);
            return Ok(Answer::found(json.clone(), format!("{json:#}")));
        }
        let repr_digest = container.repr_digest().to_string();
        let text = format!("stored {} octets, digest {}, {repr_digest}", record.size, record.digest);
        let json = json!({
            "block_key": record.block_key,
            "holder": record.holder,
            "size": record.size,
            "digest": record.digest,
            "repr_digest": repr_digest,
        });
        Ok(Answer::found(json, text))
    }

    fn record_of(&self, container: &Container, ttl_ms: u64) -> ReplicaRecord {
        let digests = container.layer_digests();
        let layers = container.layers();
        ReplicaRecord {
            block_key: self.key,
            compat_id: self.space.compat,
            scope_id: self.space.scope,
            holder: (&self.to).into(),
            codec: container.codec(),
            size: container.size(),
            digest: NamedDigest(replica_digest(&digests)),
            layer_digests: Some(digests),
            residency: vec![Residency {
                tier: Tier::Host,
                layers: LayerSpan(layers.first(), layers.last()),
                read_mbit_per_s: None,
            }],
            ttl_ms,
            seq: None,
            holder_epoch: None,
            producer: None,
            moqt_namespace: None,
        }
    }
}
