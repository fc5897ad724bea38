//! `kvsp lookup`.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use kvsp_proto::id::BlockKey;
use kvsp_proto::json;
use kvsp_proto::message::{Detail, LookupAnswer, LookupRequest};
use kvsp_proto::uri::BaseUri;
use serde::Deserialize;
use serde_json::json;

use super::Answer;
use super::error::CommandError;
use super::output;
use super::peers::{PeerArgs, SpaceArgs};

/// How much of the records is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum DetailName {
    /// Whole records.
    Full,
    /// Records without layer digests.
    Location,
    /// Counts and estimates alone.
    None,
}

/// Arguments of `kvsp lookup`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  kvsp lookup --index http://127.0.0.1:7701/kvsp/ --compat $COMPAT --scope $SCOPE $KEY1 $KEY2
  kvsp block-keys --descriptor d.json --scope-key s.key --tokens t.json --json |
      kvsp lookup --index http://127.0.0.1:7701/kvsp/ --compat $COMPAT --scope $SCOPE --keys -

Exit status 5 where not even the first block is there.")]
pub(crate) struct LookupArgs {
    /// The Index Service.
    #[arg(long, value_name = "URI", env = "KVSP_INDEX")]
    index: BaseUri,
    #[command(flatten)]
    space: SpaceArgs,
    /// Block Keys in prefix order, each 64 lowercase hex digits.
    #[arg(value_name = "KEY", required_unless_present = "keys", conflicts_with = "keys")]
    block_keys: Vec<BlockKey>,
    /// A file of them: what `kvsp block-keys` prints, or a JSON array; - reads stdin.
    #[arg(long, value_name = "FILE")]
    keys: Option<PathBuf>,
    /// Instances for which estimates are wanted, separated by commas; may be given several times.
    #[arg(long, value_name = "URI", value_delimiter = ',')]
    targets: Vec<BaseUri>,
    /// How much of the records to show.
    #[arg(long, value_enum, default_value_t = DetailName::Full)]
    detail: DetailName,
    /// Tokens of a block, for estimates where the index has no descriptor.
    #[arg(long, value_name = "N")]
    block_tokens: Option<u32>,
    #[command(flatten)]
    peers: PeerArgs,
}

impl LookupArgs {
    pub(super) async fn answer(self) -> Result<Answer, CommandError> {
        let client = self.peers.client([&self.index])?;
        let block_keys = match &self.keys {
            Some(path) => read_keys(path)?,
            None => self.block_keys,
        };
        let request = LookupRequest {
            scope_id: self.space.scope,
            compat_id: self.space.compat,
            block_keys,
            targets: self.targets,
            detail: match self.detail {
                DetailName::Full => Detail::Full,
                DetailName::Location => Detail::Location,
                DetailName::None => Detail::None,
            },
            block_tokens: self.block_tokens,
        };
        let answer = client.lookup(&self.index, &request).await.map_err(CommandError::peer(&self.index))?;
        let miss = answer.matched == 0 && !request.block_keys.is_empty();
        Ok(Answer { text: text(&answer, request.block_keys.len()), json: json!(answer), miss })
    }
}

/// Keys as JSON, alone or as the member that `block-keys` prints, or as text, one a line.
fn read_keys(path: &Path) -> Result<Vec<BlockKey>, CommandError> {
    #[derive(Deserialize)]
    struct Printed {
        block_keys: Vec<BlockKey>,
    }
    let octets = output::read(path)?;
    let malformed = |source| CommandError::KeysJson { path: path.to_owned(), source };
    match octets.trim_ascii_start().first() {
        Some(b'[') => json::from_slice(&octets).map_err(malformed),
        Some(b'{') => json::from_slice::<Printed>(&octets).map(|p| p.block_keys).map_err(malformed),
        _ => String::from_utf8_lossy(&octets)
            .split_ascii_whitespace()
            .map(|key| key.parse().map_err(|source| CommandError::Keys { path: path.to_owned(), source }))
            .collect(),
    }
}

fn text(answer: &LookupAnswer, asked: usize) -> String {
    let mut text = format!("matched {} of {asked}, complete {}", answer.matched, answer.complete);
    for block in answer.blocks.iter().flatten() {
        // Writing to a string does not fail.
        let _ = write!(text, "\n{}", block.block_key);
        for replica in &block.replicas {
            let _ = write!(text, "\n  {} {} octets, codec {}", replica.holder, replica.size, replica.codec);
            for residency in &replica.residency {
                let (first, last) = (residency.layers.0, residency.layers.1);
                let _ = write!(text, ", {} {first}-{last}", residency.tier);
            }
            let _ = write!(text, ", {} s left", replica.ttl_ms / 1000);
        }
    }
    for target in answer.targets.iter().flatten() {
        let (fetch, recompute) = (micros(target.fetch_us), micros(target.recompute_us));
        let _ = write!(text, "\n{}: fetch {fetch}, recompute {recompute}", target.instance);
    }
    text
}

fn micros(estimate: Option<u64>) -> String {
    estimate.map_or_else(|| "unknown".to_owned(), |us| format!("{us} us"))
}
