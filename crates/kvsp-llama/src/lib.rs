//! The reference engine: a Llama-family decoder on the CPU with exact KV cache reuse.
//!
//! Models come from Hugging Face folders, GGUF files, or memory ([`ModelSource::Tiny`]). Keys and values are
//! rounded to the descriptor's `kv_dtype` when they enter the cache and attention reads only rounded ones, so
//! a prefix that was stored and loaded again gives, bit for bit, the logits of one that was just computed.

mod attention;
mod bpe;
mod chat;
mod config;
pub mod digest;
mod dtype;
mod engine;
mod error;
mod files;
mod gguf;
mod gguf_model;
mod hf;
mod info;
mod linear;
mod math;
mod pool;
mod rope;
mod safetensors;
mod source;
mod tiny;
mod tokenizer;
mod weights;

pub use engine::{LlamaEngine, LlamaPass};
pub use error::LoadError;
pub use source::{LoadOptions, ModelFacts, ModelSource, Prepared, describe, facts, load, prepare, tokenizer};
pub use tokenizer::LlamaTokenizer;
