//! The reference engine: a Llama-family decoder on the CPU with exact KV cache reuse.
