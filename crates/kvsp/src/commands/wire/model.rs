//! `digest model` and `descriptor`: what is hashed here may be many gigabytes.

use std::path::PathBuf;

use kvsp_llama::digest::{ModelDigests, model_digests};
use kvsp_llama::{LoadOptions, ModelSource};
use kvsp_proto::registry::ElementType;
use serde_json::json;

use super::Answer;
use super::error::WireError;
use crate::progress;

/// What is digested.
#[derive(Debug, clap::Subcommand)]
pub(crate) enum DigestCommand {
    /// Digest the weight files and the tokenizer of a model.
    Model(DigestModelArgs),
}

/// Arguments of `kvsp digest model`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  kvsp digest model ./SmolLM2-135M-Instruct --json")]
pub(crate) struct DigestModelArgs {
    /// The model's folder, or one GGUF file.
    #[arg(value_name = "DIR")]
    path: PathBuf,
}

impl DigestCommand {
    pub(super) fn answer(&self) -> Result<Answer, WireError> {
        let Self::Model(DigestModelArgs { path }) = self;
        let ModelDigests { model, tokenizer } = with_progress(|progress| model_digests(path, progress))?;
        Ok(Answer {
            json: json!({ "model_digest": model, "tokenizer_digest": tokenizer }),
            text: format!("model_digest     {model}\ntokenizer_digest {tokenizer}"),
        })
    }
}

/// Arguments of `kvsp descriptor`.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Example:\n  kvsp descriptor ./SmolLM2-135M-Instruct --name HuggingFaceTB/SmolLM2-135M-Instruct > descriptor.json"
)]
pub(crate) struct DescriptorArgs {
    /// The model: a folder, one GGUF file, or tiny.
    model: ModelSource,
    /// The descriptor's model, the same string at all parties; required but for tiny.
    #[arg(long)]
    name: Option<String>,
    /// Tokens of a block.
    #[arg(long, value_name = "N", default_value_t = LoadOptions::default().block_tokens)]
    block_tokens: u32,
    /// Element type of the stored cache.
    #[arg(long, value_name = "T", default_value_t = LoadOptions::default().kv_dtype)]
    kv_dtype: ElementType,
}

impl DescriptorArgs {
    pub(super) fn answer(self) -> Result<Answer, WireError> {
        let options = LoadOptions {
            name: self.name,
            block_tokens: self.block_tokens,
            kv_dtype: self.kv_dtype,
            ..LoadOptions::default()
        };
        let json = with_progress(|progress| kvsp_llama::describe(&self.model, &options, progress))?;
        // Pretty and yet JSON: the text is what other commands read.
        Ok(Answer { text: format!("{json:#}"), json })
    }
}

/// Shows on stderr, if that is a terminal, how many octets are done.
fn with_progress<T, E>(work: impl FnOnce(&dyn Fn(u64, u64)) -> Result<T, E>) -> Result<T, E> {
    let bar = progress::octets("digesting");
    let result = work(&progress::callback(&bar));
    bar.finish_and_clear();
    result
}
