//! `kvsp get`.

use std::path::PathBuf;

use kvsp_client::verify::{Assurance, verify_record};
use kvsp_client::{BlockQuery, Client, ClientError};
use kvsp_proto::container::{Container, LayerRange};
use kvsp_proto::id::{BlockKey, NamedDigest};
use kvsp_proto::record::ReplicaRecord;
use kvsp_proto::registry::Codec;
use kvsp_proto::uri::{BaseUri, HolderUri};
use serde_json::json;

use super::Answer;
use super::error::CommandError;
use super::output;
use super::peers::{PeerArgs, SpaceArgs};

/// Arguments of `kvsp get`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  kvsp get --index http://127.0.0.1:7701/kvsp/ --compat $COMPAT --scope $SCOPE --key $KEY -o block.kvb1
  kvsp get --from http://127.0.0.1:7702/kvsp/ --compat $COMPAT --scope $SCOPE --key $KEY --layers 0-15 -o lower.kvb1

With an index, its records say who holds the block and what its digests are; with --from as well, only that
holder is asked. Without an index nothing but the holder's own Repr-Digest vouches for the octets.")]
pub(crate) struct GetArgs {
    /// The holder.
    #[arg(long, value_name = "URI", env = "KVSP_HOLDER", required_unless_present = "index")]
    from: Option<BaseUri>,
    /// The Index Service that has the block's records.
    #[arg(long, value_name = "URI", env = "KVSP_INDEX")]
    index: Option<BaseUri>,
    #[command(flatten)]
    space: SpaceArgs,
    /// The Block Key: 64 lowercase hex digits.
    #[arg(long, value_name = "HEX")]
    key: BlockKey,
    /// Only these layers, inclusive: a-b.
    #[arg(long, value_name = "A-B")]
    layers: Option<LayerRange>,
    /// In this codec; by default as it is held.
    #[arg(long, value_name = "N", value_parser = codec)]
    codec: Option<Codec>,
    /// Where to write the container.
    #[arg(short, long, value_name = "OUT")]
    output: PathBuf,
    #[command(flatten)]
    peers: PeerArgs,
}

fn codec(text: &str) -> Result<Codec, String> {
    let number: Option<u16> = text.parse().ok();
    number.and_then(Codec::new).ok_or_else(|| "a codec is a number of 1…65534".to_owned())
}

/// A container, who served it, and who vouches for it.
struct Got {
    container: Container,
    holder: BaseUri,
    assurance: Assurance,
}

impl GetArgs {
    pub(super) async fn answer(self) -> Result<Answer, CommandError> {
        let client = self.peers.client(self.from.iter().chain(&self.index))?;
        let got = match (&self.index, &self.from) {
            (Some(index), _) => self.by_record(&client, index).await?,
            (None, Some(holder)) => self.by_repr_digest(&client, holder).await?,
            // One of them is required.
            (None, None) => return Err(CommandError::Unnamed),
        };
        output::write_whole(&self.output, got.container.bytes())?;
        Ok(self.describe(&got))
    }

    const fn query(&self) -> BlockQuery {
        BlockQuery { layers: self.layers, codec: self.codec }
    }

    async fn by_repr_digest(&self, client: &Client, holder: &BaseUri) -> Result<Got, CommandError> {
        let (compat, scope) = (self.space.compat, self.space.scope);
        let fetched = client.get_block(holder, compat, scope, self.key, &self.query()).await;
        let container = fetched.map_err(|error| failure(holder, error))?.container;
        Ok(Got { container, holder: holder.clone(), assurance: Assurance::Holder })
    }

    /// The index is advisory: what one holder does not have or cannot send right, the next may.
    async fn by_record(&self, client: &Client, index: &BaseUri) -> Result<Got, CommandError> {
        let (compat, scope) = (self.space.compat, self.space.scope);
        let records = client.block_replicas(index, compat, scope, self.key).await;
        let wanted = self.from.as_ref().map(HolderUri::from);
        let mut worst = CommandError::Miss("the index has no record of it that HTTP reaches".to_owned());
        for record in records.map_err(CommandError::peer(index))? {
            if wanted.as_ref().is_some_and(|wanted| *wanted != record.holder) {
                continue;
            }
            let Some(holder) = record.http_holder() else { continue };
            match self.fetch(client, &holder, record).await {
                Ok(got) => return Ok(got),
                Err(error) => {
                    tracing::debug!(%error, "a holder did not serve the block");
                    if error.weight() >= worst.weight() {
                        worst = error;
                    }
                }
            }
        }
        Err(worst)
    }

    async fn fetch(
        &self,
        client: &Client,
        holder: &BaseUri,
        record: ReplicaRecord,
    ) -> Result<Got, CommandError> {
        // Asked for by name, or else a holder may choose another codec than the one its record vouches for.
        let query = BlockQuery { codec: self.codec.or(Some(record.codec)), ..self.query() };
        let fetched =
            client.get_block(holder, record.compat_id, record.scope_id, record.block_key, &query).await;
        let container = fetched.map_err(|error| failure(holder, error))?.container;
        let assurance = verify_record(&container, &record, self.layers)
            .map_err(|error| failure(holder, ClientError::Verification(error)))?;
        Ok(Got { container, holder: holder.clone(), assurance })
    }

    fn describe(&self, got: &Got) -> Answer {
        let container = &got.container;
        let (layers, codec) = (container.layers(), container.codec());
        let vouched = match got.assurance {
            Assurance::Producer => "record",
            Assurance::Holder => "repr-digest",
        };
        let repr_digest = container.repr_digest().to_string();
        let text = format!(
            "{} octets from {}, codec {codec}, layers {layers}, {} tokens, verified against: {vouched}",
            container.size(),
            got.holder,
            container.token_count(),
        );
        let mut json = json!({
            "block_key": self.key,
            "holder": got.holder,
            "size": container.size(),
            "codec": codec,
            "layers": [layers.first(), layers.last()],
            "token_count": container.token_count(),
            "repr_digest": repr_digest,
            "verified": vouched,
            "output": self.output,
        });
        if self.layers.is_none() {
            let digest: NamedDigest = container.digest();
            json["digest"] = json!(digest);
        }
        Answer::found(json, text)
    }
}

/// What a holder does not have is a miss, whatever its words for it.
fn failure(holder: &BaseUri, error: ClientError) -> CommandError {
    if error.is_not_found() {
        CommandError::Miss(format!("{holder}: {error}"))
    } else {
        CommandError::Peer { peer: holder.clone(), source: error }
    }
}
