//! Sampling from logits with a counter-based generator: the state is (seed, step), so `step` alone restores
//! it exactly after a resume (profile section 7).

use std::cmp::Ordering;

use kvsp_proto::registry::SamplerMethod;
use rand_chacha::ChaCha8Rng;
use rand_core::{RngCore, SeedableRng};
use serde_json::{Map, Value};

/// Sampling parameters out of their range.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SamplerError {
    /// The temperature is not a finite number ≥ 0.
    #[error("temperature must be a finite number of at least 0")]
    Temperature,
    /// `top_p` is not in (0, 1].
    #[error("top_p must be above 0 and at most 1")]
    TopP,
    /// `top_k` is 0.
    #[error("top_k must be at least 1")]
    TopK,
    /// `min_p` is not in [0, 1].
    #[error("min_p must be between 0 and 1")]
    MinP,
    /// A checkpoint's parameters lack a member or give it another type.
    #[error("sampler parameter {0:?} is missing or not such a number")]
    Parameter(&'static str),
}

/// What shapes the distribution, in the order of application: temperature, `top_k`, `top_p`, `min_p`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SamplerParams {
    /// Divides the logits; 0 is greedy.
    pub temperature: f64,
    /// Keep the k most probable tokens.
    pub top_k: Option<u32>,
    /// Keep the smallest set of tokens whose probabilities reach p.
    pub top_p: Option<f64>,
    /// Keep the tokens of at least p times the highest probability.
    pub min_p: Option<f64>,
}

impl Default for SamplerParams {
    fn default() -> Self {
        Self { temperature: 1.0, top_k: None, top_p: None, min_p: None }
    }
}

/// Chooses a token from logits. Equal (parameters, seed, step, logits) give an equal token.
#[derive(Debug, Clone, PartialEq)]
pub struct Sampler {
    params: SamplerParams,
    seed: u64,
}

/// One token still in the running.
#[derive(Clone, Copy)]
struct Candidate {
    token: u32,
    logit: f32,
    weight: f64,
}

impl Sampler {
    /// A sampler with these parameters; temperature 0 makes it greedy whatever else is given.
    ///
    /// # Errors
    /// A parameter outside its range.
    pub fn new(params: SamplerParams, seed: u64) -> Result<Self, SamplerError> {
        if !params.temperature.is_finite() || params.temperature < 0.0 {
            return Err(SamplerError::Temperature);
        }
        if params.top_k == Some(0) {
            return Err(SamplerError::TopK);
        }
        // Written so that NaN fails too.
        if params.top_p.is_some_and(|p| !(p > 0.0 && p <= 1.0)) {
            return Err(SamplerError::TopP);
        }
        if params.min_p.is_some_and(|p| !(0.0..=1.0).contains(&p)) {
            return Err(SamplerError::MinP);
        }
        Ok(Self { params, seed })
    }

    /// The sampler that takes the highest logit.
    #[must_use]
    pub fn greedy() -> Self {
        Self { params: SamplerParams { temperature: 0.0, ..SamplerParams::default() }, seed: 0 }
    }

    /// The sampler of a session checkpoint (draft section 4.4), the inverse of [`Sampler::method`] and
    /// [`Sampler::params_json`]. Unknown parameters are ignored.
    ///
    /// # Errors
    /// The method's own parameter is missing, or one is of the wrong type or range.
    pub fn from_checkpoint(
        method: SamplerMethod,
        params: &Map<String, Value>,
        seed: u64,
    ) -> Result<Self, SamplerError> {
        let number = |name: &'static str| match params.get(name) {
            None => Ok(None),
            Some(value) => value.as_f64().map(Some).ok_or(SamplerError::Parameter(name)),
        };
        let required = |name| number(name)?.ok_or(SamplerError::Parameter(name));
        let count = |name, value: f64| {
            let whole = value.fract() == 0.0 && value >= 0.0;
            // More than there are tokens is all of them: the conversion stops at the largest.
            if whole { Ok(value as u32) } else { Err(SamplerError::Parameter(name)) }
        };
        let mut out = SamplerParams {
            temperature: number("temperature")?.unwrap_or(1.0),
            top_k: number("top_k")?.map(|k| count("top_k", k)).transpose()?,
            top_p: number("top_p")?,
            min_p: number("min_p")?,
        };
        match method {
            SamplerMethod::Greedy => out.temperature = 0.0,
            SamplerMethod::Multinomial => {}
            SamplerMethod::TopK => out.top_k = Some(count("k", required("k")?)?),
            SamplerMethod::TopP => out.top_p = Some(required("p")?),
            SamplerMethod::MinP => out.min_p = Some(required("p")?),
        }
        Self::new(out, seed)
    }

    /// The registered method: `greedy`, else the first of `top-p`, `top-k`, `min-p` that is in force, else
    /// `multinomial`.
    #[must_use]
    pub fn method(&self) -> SamplerMethod {
        if self.is_greedy() {
            SamplerMethod::Greedy
        } else if self.params.top_p.is_some() {
            SamplerMethod::TopP
        } else if self.params.top_k.is_some() {
            SamplerMethod::TopK
        } else if self.params.min_p.is_some() {
            SamplerMethod::MinP
        } else {
            SamplerMethod::Multinomial
        }
    }

    /// The `params` of a checkpoint: the method's own as `p` or `k`, further filters as `top_k` and `min_p`,
    /// and the temperature where it is not 1. Greedy has none.
    #[must_use]
    pub fn params_json(&self) -> Map<String, Value> {
        let mut out = Map::new();
        let method = self.method();
        if method == SamplerMethod::Greedy {
            return out;
        }
        let mut put = |name: &str, value: Option<Value>| {
            if let Some(value) = value {
                out.insert(name.to_owned(), value);
            }
        };
        put("p", self.params.top_p.map(Value::from));
        put(if method == SamplerMethod::TopK { "k" } else { "top_k" }, self.params.top_k.map(Value::from));
        put(if method == SamplerMethod::MinP { "p" } else { "min_p" }, self.params.min_p.map(Value::from));
        put(
            "temperature",
            (self.params.temperature != 1.0).then_some(self.params.temperature).map(Value::from),
        );
        out
    }

    /// Whether the highest logit is taken.
    #[must_use]
    pub fn is_greedy(&self) -> bool {
        self.params.temperature == 0.0
    }

    /// The parameters.
    #[must_use]
    pub fn params(&self) -> &SamplerParams {
        &self.params
    }

    /// The seed of the generator.
    #[must_use]
    pub fn seed(&self) -> u64 {
        self.seed
    }

    /// The token at output index `step`. Equal logits go to the lowest token; NaN counts as −∞; logits that
    /// are all −∞ (or absent) give token 0.
    #[must_use]
    pub fn sample(&self, logits: &[f32], step: u64) -> u32 {
        let best = argmax(logits);
        let Some(&max) = logits.get(best as usize) else { return 0 };
        // An infinite maximum has no distribution; the highest is the only sensible choice.
        if self.is_greedy() || !max.is_finite() {
            return best;
        }
        let mut candidates: Vec<Candidate> = (0u32..)
            .zip(logits)
            .filter(|(_, logit)| !logit.is_nan())
            .map(|(token, &logit)| Candidate {
                token,
                logit,
                weight: (f64::from(logit - max) / self.params.temperature).exp(),
            })
            .filter(|c| c.weight > 0.0)
            .collect();
        self.filter(&mut candidates);
        draw(&candidates, self.uniform(step))
    }

    /// Apply `top_k`, `top_p` and `min_p`.
    fn filter(&self, candidates: &mut Vec<Candidate>) {
        if let Some(k) = self.params.top_k {
            let k = k as usize;
            if k < candidates.len() {
                candidates.select_nth_unstable_by(k, by_rank);
                candidates.truncate(k);
            }
        }
        if self.params.top_k.is_some() || self.params.top_p.is_some() {
            candidates.sort_unstable_by(by_rank);
        }
        if let Some(p) = self.params.top_p {
            let target = p * candidates.iter().map(|c| c.weight).sum::<f64>();
            let mut mass = 0.0;
            let kept = candidates.iter().take_while(|c| {
                let wanted = mass < target;
                mass += c.weight;
                wanted
            });
            let kept = kept.count().max(1);
            candidates.truncate(kept);
        }
        if let Some(p) = self.params.min_p {
            // The highest weight is 1, of the highest logit.
            candidates.retain(|c| c.weight >= p);
        }
    }

    /// A number in [0, 1) that depends on (seed, step) alone.
    fn uniform(&self, step: u64) -> f64 {
        let mut key = *b"KVSP-SAMPLER-1\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0";
        key[24..].copy_from_slice(&self.seed.to_le_bytes());
        let mut rng = ChaCha8Rng::from_seed(key);
        rng.set_stream(step);
        (rng.next_u64() >> 11) as f64 / (1u64 << 53) as f64
    }
}

/// Highest logit first, then the lowest token.
fn by_rank(a: &Candidate, b: &Candidate) -> Ordering {
    b.logit.total_cmp(&a.logit).then(a.token.cmp(&b.token))
}

/// The lowest token of the highest logit, NaN left out; 0 where there is none.
fn argmax(logits: &[f32]) -> u32 {
    let mut best = (0u32, f32::NEG_INFINITY);
    for (token, &logit) in (0u32..).zip(logits) {
        if logit > best.1 {
            best = (token, logit);
        }
    }
    best.0
}

fn draw(candidates: &[Candidate], uniform: f64) -> u32 {
    let target = uniform * candidates.iter().map(|c| c.weight).sum::<f64>();
    let mut mass = 0.0;
    for candidate in candidates {
        mass += candidate.weight;
        if mass > target {
            return candidate.token;
        }
    }
    // Rounding can leave the target a hair above the sum.
    candidates.last().map_or(0, |c| c.token)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn sampler(params: SamplerParams, seed: u64) -> Sampler {
        Sampler::new(params, seed).unwrap()
    }

    #[test]
    fn greedy_takes_the_lowest_of_equals_and_skips_nan() {
        let greedy = Sampler::greedy();
        assert_eq!(greedy.sample(&[1.0, f32::NAN, 3.0, 3.0], 0), 2);
        assert_eq!(greedy.sample(&[f32::NAN, f32::NAN], 9), 0);
        assert_eq!(greedy.sample(&[], 9), 0);
        assert_eq!(greedy.sample(&[0.0, f32::INFINITY, f32::INFINITY], 1), 1);
    }

    #[test]
    fn nan_and_infinities_never_win_a_draw() {
        let s = sampler(SamplerParams::default(), 4);
        for step in 0..200 {
            assert_eq!(s.sample(&[f32::NAN, f32::NEG_INFINITY, 0.5, f32::NAN], step), 2);
            assert_eq!(s.sample(&[0.0, f32::INFINITY, 0.0], step), 1);
        }
    }

    #[test]
    fn filters_keep_only_what_they_name() {
        let logits = [0.0, 3.0, 2.0, 1.0, -4.0];
        let set = |params| {
            let s = sampler(params, 11);
            let mut seen: Vec<u32> = (0..2000).map(|step| s.sample(&logits, step)).collect();
            seen.sort_unstable();
            seen.dedup();
            seen
        };
        let base = SamplerParams::default();
        assert_eq!(set(base), [0, 1, 2, 3, 4]);
        assert_eq!(set(SamplerParams { top_k: Some(2), ..base }), [1, 2]);
        assert_eq!(set(SamplerParams { top_p: Some(0.6), ..base }), [1]);
        assert_eq!(set(SamplerParams { top_p: Some(0.7), ..base }), [1, 2]);
        assert_eq!(set(SamplerParams { min_p: Some(0.1), ..base }), [1, 2, 3]);
        assert_eq!(set(SamplerParams { top_k: Some(2), top_p: Some(0.6), ..base }), [1]);
    }

    #[test]
    fn frequencies_follow_the_distribution() {
        let probabilities: [f32; 3] = [0.5, 0.3, 0.2];
        let logits = probabilities.map(f32::ln);
        let s = sampler(SamplerParams::default(), 99);
        let mut counts = [0u32; 3];
        for step in 0..20_000 {
            counts[s.sample(&logits, step) as usize] += 1;
        }
        for (count, p) in counts.iter().zip(probabilities) {
            assert!((f64::from(*count) / 20_000.0 - f64::from(p)).abs() < 0.02, "{counts:?}");
        }
    }

    #[test]
    fn the_draft_example_round_trips() {
        let s = sampler(SamplerParams { top_p: Some(0.9), ..SamplerParams::default() }, 7);
        assert_eq!(s.method(), SamplerMethod::TopP);
        assert_eq!(Value::Object(s.params_json()), serde_json::json!({"p": 0.9}));
        assert_eq!(Sampler::from_checkpoint(s.method(), &s.params_json(), 7).unwrap(), s);
        assert_eq!(Sampler::greedy().params_json(), Map::new());
    }

    #[test]
    fn bad_parameters_are_named() {
        let base = SamplerParams::default();
        let error = |params| Sampler::new(params, 0).unwrap_err();
        assert_eq!(error(SamplerParams { temperature: f64::NAN, ..base }), SamplerError::Temperature);
        assert_eq!(error(SamplerParams { top_k: Some(0), ..base }), SamplerError::TopK);
        assert_eq!(error(SamplerParams { top_p: Some(0.0), ..base }), SamplerError::TopP);
        assert_eq!(error(SamplerParams { min_p: Some(1.5), ..base }), SamplerError::MinP);
        let missing = Sampler::from_checkpoint(SamplerMethod::TopK, &Map::new(), 0).unwrap_err();
        assert_eq!(missing, SamplerError::Parameter("k"));
        let top_k = |k: Value| {
            let params = Map::from_iter([("k".to_owned(), k)]);
            Sampler::from_checkpoint(SamplerMethod::TopK, &params, 0)
        };
        assert_eq!(top_k(Value::from(1.5)), Err(SamplerError::Parameter("k")));
        assert_eq!(top_k(Value::from(-1)), Err(SamplerError::Parameter("k")));
        let all = top_k(Value::from(1u64 << 40)).unwrap();
        assert_eq!(all.params().top_k, Some(u32::MAX), "more than there can be is all of them");
    }

    proptest! {
        #[test]
        fn a_checkpoint_restores_the_sampler(
            temperature in 0.0..3.0f64,
            top_k in proptest::option::of(1u32..1000),
            top_p in proptest::option::of(0.01..=1.0f64),
            min_p in proptest::option::of(0.0..=1.0f64),
            seed: u64,
            step: u64,
            logits in proptest::collection::vec(-20.0..20.0f32, 1..300),
        ) {
            let s = sampler(SamplerParams { temperature, top_k, top_p, min_p }, seed);
            let restored = Sampler::from_checkpoint(s.method(), &s.params_json(), seed).unwrap();
            prop_assert_eq!(s.sample(&logits, step), restored.sample(&logits, step));
            prop_assert!((s.sample(&logits, step) as usize) < logits.len());
        }
    }
}
