//! The weights of a model, in the form the forward pass uses.

use crate::config::Config;
use crate::error::LoadError;
use crate::linear::Linear;

/// One decoder layer.
pub(crate) struct Layer {
    pub(crate) attention_norm: Vec<f32>,
    /// Queries, keys and values stacked.
    pub(crate) qkv: Linear,
    pub(crate) output: Linear,
    pub(crate) mlp_norm: Vec<f32>,
    /// Gate and up stacked.
    pub(crate) gate_up: Linear,
    pub(crate) down: Linear,
}

/// All weights.
pub(crate) struct Weights {
    /// Vocabulary × hidden; `None` where the head serves for both.
    pub(crate) embedding: Option<Vec<f32>>,
    pub(crate) layers: Vec<Layer>,
    pub(crate) norm: Vec<f32>,
    pub(crate) head: Linear,
}

/// The weights by their role, whatever file they come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Role {
    Embedding,
    Norm,
    Head,
    AttentionNorm(usize),
    Query(usize),
    Key(usize),
    Value(usize),
    Output(usize),
    MlpNorm(usize),
    Gate(usize),
    Up(usize),
    Down(usize),
}

impl Role {
    /// Dimensions, slowest first, as files hold them: outputs × inputs.
    pub(crate) fn shape(self, c: &Config) -> Vec<usize> {
        match self {
            Self::Embedding | Self::Head => vec![c.vocab, c.hidden],
            Self::Norm | Self::AttentionNorm(_) | Self::MlpNorm(_) => vec![c.hidden],
            Self::Query(_) => vec![c.q_dim(), c.hidden],
            Self::Key(_) | Self::Value(_) => vec![c.kv_dim(), c.hidden],
            Self::Output(_) => vec![c.hidden, c.q_dim()],
            Self::Gate(_) | Self::Up(_) => vec![c.intermediate, c.hidden],
            Self::Down(_) => vec![c.hidden, c.intermediate],
        }
    }

    /// Every role of a model, in the order in which files tend to hold them. `Head` comes only where it is
    /// not the embedding.
    pub(crate) fn all(layers: usize, tied: bool) -> impl Iterator<Item = Self> {
        let layer = |l| {
            [
                Self::AttentionNorm(l),
                Self::Query(l),
                Self::Key(l),
                Self::Value(l),
                Self::Output(l),
                Self::MlpNorm(l),
                Self::Gate(l),
                Self::Up(l),
                Self::Down(l),
            ]
        };
        std::iter::once(Self::Embedding)
            .chain((0..layers).flat_map(layer))
            .chain([Self::Norm])
            .chain((!tied).then_some(Self::Head))
    }
}

/// Where weights come from.
pub(crate) trait WeightSource {
    /// Whether the output head is the embedding.
    fn tied(&self) -> bool;

    /// The elements of a weight of this shape, row-major.
    fn read(&mut self, role: Role, shape: &[usize]) -> Result<Vec<f32>, LoadError>;
}

impl Weights {
    /// Read and arrange all weights; `progress` hears how many of how many are in.
    pub(crate) fn load(
        config: &Config,
        source: &mut dyn WeightSource,
        progress: &dyn Fn(u64, u64),
    ) -> Result<Self, LoadError> {
        let tied = source.tied();
        let total = Role::all(config.layers, tied).count() as u64;
        let mut done = 0;
        let mut read = |role: Role| {
            let weight = source.read(role, &role.shape(config))?;
            done += 1;
            progress(done, total);
            Ok::<_, LoadError>(weight)
        };
        let embedding = read(Role::Embedding)?;
        let mut layers = Vec::with_capacity(config.layers);
        for l in 0..config.layers {
            let attention_norm = read(Role::AttentionNorm(l))?;
            let (q, k, v) = (read(Role::Query(l))?, read(Role::Key(l))?, read(Role::Value(l))?);
            let output = read(Role::Output(l))?;
            let mlp_norm = read(Role::MlpNorm(l))?;
            let (gate, up) = (read(Role::Gate(l))?, read(Role::Up(l))?);
            let down = read(Role::Down(l))?;
            layers.push(Layer {
                attention_norm,
                qkv: Linear::from_rows(&[&q, &k, &v], config.hidden)?,
                output: Linear::from_rows(&[&output], config.q_dim())?,
                mlp_norm,
                gate_up: Linear::from_rows(&[&gate, &up], config.hidden)?,
                down: Linear::from_rows(&[&down], config.intermediate)?,
            });
        }
        let norm = read(Role::Norm)?;
        let (embedding, head) = if tied {
            (None, Linear::from_rows(&[&embedding], config.hidden)?)
        } else {
            let head = read(Role::Head)?;
            (Some(embedding), Linear::from_rows(&[&head], config.hidden)?)
        };
        Ok(Self { embedding, layers, norm, head })
    }

    /// The hidden state that stands for a token.
    pub(crate) fn embed(&self, token: u32, hidden: usize) -> Result<Vec<f32>, candle_core::Error> {
        let token = token as usize;
        match &self.embedding {
            Some(rows) => Ok(rows[token * hidden..(token + 1) * hidden].to_vec()),
            None => self.head.row(token),
        }
    }
}
