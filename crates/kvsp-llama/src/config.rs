//! The shape of a Llama model and its rotary encoding, checked once so that the arithmetic need not.

use crate::error::LoadError;

/// Elements of a head above which key products would be summed in several parts.
const MAX_HEAD_DIM: usize = 512;
/// Bound on every other dimension: far above any model, far below an overflow.
const MAX_DIM: usize = 1 << 24;

/// Which elements of a head the rotary encoding turns together; it is the order of the stored keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Pairing {
    /// Elements 2i and 2i+1 (GGUF architecture `llama`).
    Interleaved,
    /// Elements i and i + `head_dim`/2 (Hugging Face).
    HalfSplit,
}

/// How rotary frequencies are stretched for long contexts.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum RopeScaling {
    /// Not at all.
    None,
    /// Positions divided by a factor.
    Linear {
        /// The factor.
        factor: f64,
    },
    /// The Llama 3 rule.
    Llama3 {
        /// Division of the lowest frequencies.
        factor: f64,
        /// Wavelengths above `original / low` are divided.
        low: f64,
        /// Wavelengths below `original / high` are kept.
        high: f64,
        /// The context the model was first trained with.
        original: f64,
    },
    /// Divisors of each frequency as the file lists them (GGUF's form of the Llama 3 rule).
    Factors(Vec<f32>),
}

/// The shape of a model.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Config {
    pub(crate) hidden: usize,
    pub(crate) intermediate: usize,
    pub(crate) layers: usize,
    pub(crate) heads: usize,
    pub(crate) kv_heads: usize,
    pub(crate) head_dim: usize,
    pub(crate) vocab: usize,
    pub(crate) max_context: usize,
    pub(crate) rms_eps: f32,
    pub(crate) rope_theta: f64,
    pub(crate) scaling: RopeScaling,
    pub(crate) pairing: Pairing,
    pub(crate) eos: Vec<u32>,
}

impl Config {
    /// Refuse shapes the forward pass cannot compute.
    pub(crate) fn check(&self) -> Result<(), LoadError> {
        let dims = [
            ("hidden size", self.hidden),
            ("intermediate size", self.intermediate),
            ("layers", self.layers),
            ("attention heads", self.heads),
            ("key-value heads", self.kv_heads),
            ("vocabulary", self.vocab),
            ("context length", self.max_context),
        ];
        for (name, value) in dims {
            if value == 0 || value > MAX_DIM {
                return Err(LoadError::malformed("model configuration", format!("{name} is {value}")));
            }
        }
        if self.head_dim < 4 || self.head_dim > MAX_HEAD_DIM || !self.head_dim.is_multiple_of(2) {
            return Err(LoadError::Unsupported(format!(
                "a head of {} elements (even, 4 to {MAX_HEAD_DIM})",
                self.head_dim
            )));
        }
        if !self.heads.is_multiple_of(self.kv_heads) {
            return Err(LoadError::malformed(
                "model configuration",
                format!(
                    "{} attention heads do not divide over {} key-value heads",
                    self.heads, self.kv_heads
                ),
            ));
        }
        let positive = |x: f64| x.is_finite() && x > 0.0;
        let norm_ok = self.rms_eps.is_finite() && self.rms_eps >= 0.0;
        if !norm_ok || !positive(self.rope_theta) {
            return Err(LoadError::malformed("model configuration", "rope theta or norm epsilon".into()));
        }
        let scaling_ok = match &self.scaling {
            RopeScaling::None => true,
            // A descriptor writes the factor without an exponent.
            RopeScaling::Linear { factor } => (1e-3..=1e6).contains(factor),
            RopeScaling::Llama3 { factor, low, high, original } => {
                [*factor, *low, *high, *original].into_iter().all(positive) && high > low
            }
            RopeScaling::Factors(factors) => {
                factors.len() == self.head_dim / 2 && factors.iter().all(|&f| positive(f64::from(f)))
            }
        };
        if !scaling_ok {
            return Err(LoadError::malformed("model configuration", "rope scaling parameters".into()));
        }
        Ok(())
    }

    /// The descriptor's `positional`; the model's own defaults need no parameters.
    pub(crate) fn positional(&self) -> String {
        match &self.scaling {
            RopeScaling::None => "rope".into(),
            RopeScaling::Linear { factor } => format!("rope-linear;factor={factor}"),
            RopeScaling::Llama3 { .. } | RopeScaling::Factors(_) => "rope-llama3".into(),
        }
    }

    /// Query heads that share a key-value head.
    pub(crate) fn group(&self) -> usize {
        self.heads / self.kv_heads
    }

    /// Elements of the keys (or of the values) of one token in one layer.
    pub(crate) fn kv_dim(&self) -> usize {
        self.kv_heads * self.head_dim
    }

    /// Elements of all query heads of a token.
    pub(crate) fn q_dim(&self) -> usize {
        self.heads * self.head_dim
    }

    /// Angle per position of each rotary pair.
    pub(crate) fn inverse_frequencies(&self) -> Vec<f32> {
        let half = self.head_dim / 2;
        let plain = (0..half).map(|i| self.rope_theta.powf(-((2 * i) as f64) / self.head_dim as f64));
        match &self.scaling {
            RopeScaling::None => plain.map(|f| f as f32).collect(),
            RopeScaling::Linear { factor } => plain.map(|f| (f / factor) as f32).collect(),
            RopeScaling::Factors(factors) => {
                plain.zip(factors).map(|(f, &by)| (f / f64::from(by)) as f32).collect()
            }
            RopeScaling::Llama3 { factor, low, high, original } => plain
                .map(|f| {
                    let wavelength = 2.0 * std::f64::consts::PI / f;
                    let smooth = ((original / wavelength - low) / (high - low)).clamp(0.0, 1.0);
                    ((1.0 - smooth) * f / factor + smooth * f) as f32
                })
                .collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(scaling: RopeScaling) -> Config {
        Config { scaling, ..crate::tiny::config() }
    }

    #[test]
    fn positional_names_only_what_the_registry_wants() {
        assert_eq!(config(RopeScaling::None).positional(), "rope");
        assert_eq!(config(RopeScaling::Linear { factor: 4.0 }).positional(), "rope-linear;factor=4");
        assert_eq!(config(RopeScaling::Linear { factor: 2.5 }).positional(), "rope-linear;factor=2.5");
    }

    #[test]
    fn llama3_keeps_high_and_divides_low_frequencies() {
        let llama3 = RopeScaling::Llama3 { factor: 8.0, low: 1.0, high: 4.0, original: 512.0 };
        let plain = config(RopeScaling::None).inverse_frequencies();
        let scaled = config(llama3).inverse_frequencies();
        assert_eq!(plain[0], scaled[0]);
        let last = plain.len() - 1;
        assert_eq!(plain[last] / 8.0, scaled[last]);
        assert!(scaled.windows(2).all(|w| w[0] > w[1]));
    }

    #[test]
    fn impossible_shapes_are_refused() {
        let good = config(RopeScaling::None);
        assert!(good.check().is_ok());
        assert!(Config { heads: 3, ..good.clone() }.check().is_err());
        assert!(Config { kv_heads: 0, ..good.clone() }.check().is_err());
        assert!(Config { head_dim: 7, ..good.clone() }.check().is_err());
        assert!(Config { vocab: 1 << 30, ..good }.check().is_err());
        assert!(config(RopeScaling::Linear { factor: f64::NAN }).check().is_err());
        assert!(config(RopeScaling::Factors(vec![1.0])).check().is_err());
    }
}
