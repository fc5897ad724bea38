//! The model of benches that generate.

/// Output tokens of one answer of the tiny model, and of a real one, which is a hundred times slower.
const TINY_TOKENS: u32 = 400;
const TOKENS: u32 = 96;

/// Which model generates.
#[derive(Debug, Clone, clap::Args)]
pub(super) struct BenchModel {
    /// The model of `sessions` and `failover`: a Hugging Face folder, a GGUF file, or `tiny`.
    #[arg(long, value_name = "PATH|tiny", default_value = "tiny")]
    model: String,
    /// Its name; required for a path.
    #[arg(long, value_name = "NAME", default_value = "kvsp/tiny")]
    name: String,
}

impl BenchModel {
    pub(super) fn path(&self) -> &str {
        &self.model
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// Output tokens that an answer may have.
    pub(super) fn tokens(&self) -> u32 {
        if self.model == "tiny" { TINY_TOKENS } else { TOKENS }
    }
}
