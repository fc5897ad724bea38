//! `compat-id`, `scope-id` and `block-keys`.

use std::path::{Path, PathBuf};

use kvsp_proto::block_key::{self, ScopeKey};
use kvsp_proto::json;
use serde_json::json;

use super::Answer;
use super::error::WireError;
use super::files;

/// Arguments of `kvsp compat-id`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  kvsp compat-id descriptor.json")]
pub(crate) struct CompatIdArgs {
    /// The descriptor, a JSON file; - reads stdin.
    #[arg(value_name = "DESCRIPTOR.json")]
    descriptor: PathBuf,
}

impl CompatIdArgs {
    pub(super) fn answer(&self) -> Result<Answer, WireError> {
        let compat_id = files::read_descriptor(&self.descriptor)?.compat_id();
        Ok(Answer { json: json!({ "compat_id": compat_id }), text: compat_id.to_string() })
    }
}

/// Arguments of `kvsp scope-id`.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Example:\n  head -c 32 /dev/urandom > team.key && kvsp scope-id --scope-key team.key"
)]
pub(crate) struct ScopeIdArgs {
    /// A file with the raw octets of the scope key, at least 32.
    #[arg(long, value_name = "FILE")]
    scope_key: PathBuf,
}

impl ScopeIdArgs {
    pub(super) fn answer(&self) -> Result<Answer, WireError> {
        let scope_id = read_scope_key(&self.scope_key)?.scope_id();
        Ok(Answer { json: json!({ "scope_id": scope_id }), text: scope_id.to_string() })
    }
}

/// Arguments of `kvsp block-keys`.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Example:\n  kvsp block-keys --descriptor descriptor.json --scope-key team.key --tokens tokens.json"
)]
pub(crate) struct BlockKeysArgs {
    /// The descriptor, a JSON file.
    #[arg(long, value_name = "FILE")]
    descriptor: PathBuf,
    /// A file with the raw octets of the scope key, at least 32.
    #[arg(long, value_name = "FILE")]
    scope_key: PathBuf,
    /// The token identifiers, a JSON array of integers; - reads stdin.
    #[arg(long, value_name = "FILE")]
    tokens: PathBuf,
}

impl BlockKeysArgs {
    pub(super) fn answer(&self) -> Result<Answer, WireError> {
        let descriptor = files::read_descriptor(&self.descriptor)?;
        let scope_key = read_scope_key(&self.scope_key)?;
        let tokens: Vec<u32> = json::from_slice(&files::read(&self.tokens)?)
            .map_err(|source| WireError::Tokens { path: self.tokens.clone(), source })?;
        let keys =
            block_key::block_keys(&scope_key, descriptor.compat_id(), descriptor.block_tokens, &tokens);
        let text: Vec<String> = keys.iter().map(ToString::to_string).collect();
        Ok(Answer { json: json!({ "block_keys": keys }), text: text.join("\n") })
    }
}

fn read_scope_key(path: &Path) -> Result<ScopeKey, WireError> {
    ScopeKey::new(files::read(path)?).map_err(|source| WireError::ScopeKey { path: path.to_owned(), source })
}
