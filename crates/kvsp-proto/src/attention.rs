//! Queries and partial attention between the members of a group (extension `group-attention`, profile section 8).
//!
//! Both are binary, integers and floats in network byte order as in the container of draft section 4.3: tensors of a
//! decoding step are small and many, and their digits must survive.
//!
//! ```text
//! query    "KVQ1" | step 64 | layer 32 | rows 32 | heads 32 | head_dim 32 | position 64 | keys from 64 | keys to 64
//!          | rows × heads × head_dim float32
//! partial  "KVP1" | step 64 | layer 32 | rows 32 | heads 32 | head_dim 32 | keys from 64 | keys to 64
//!          | rows × heads × head_dim float32 | rows × heads float32
//! ```

use bytes::{Buf, BufMut, Bytes, BytesMut};

use crate::message::{BadTokenRange, TokenRange};

const QUERY_MAGIC: u32 = u32::from_be_bytes(*b"KVQ1");
const PARTIAL_MAGIC: u32 = u32::from_be_bytes(*b"KVP1");
/// Octets of a query before its values.
const QUERY_HEAD: usize = 4 + 8 + 4 * 4 + 3 * 8;
/// Octets of a partial before its values.
const PARTIAL_HEAD: usize = 4 + 8 + 4 * 4 + 2 * 8;

/// Octets are not a query or a partial (`kvsp-malformed-container`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum AttentionError {
    /// Another magic, or too short for a head.
    #[error("not a message of this kind")]
    Magic,
    /// A count of 0, or counts that do not fit the octets.
    #[error("counts and octets do not add up")]
    Counts,
    /// The keys are no range.
    #[error(transparent)]
    Keys(#[from] BadTokenRange),
    /// A value is not a number, or infinite where that means nothing.
    #[error("a value is not finite")]
    NotFinite,
}

/// Queries of one layer for a range of keys.
#[derive(Debug, Clone, PartialEq)]
pub struct AttentionQuery {
    /// The step of the leader, which the answer repeats.
    pub step: u64,
    /// The layer.
    pub layer: u32,
    /// The position of the first row; rows are consecutive.
    pub position: u64,
    /// The keys that the member answers for, all of them its own. A row sees those up to its own position.
    pub keys: TokenRange,
    /// Rows.
    pub rows: u32,
    /// Query heads.
    pub heads: u32,
    /// Elements of a head.
    pub head_dim: u32,
    /// Rotated queries, rows × heads × `head_dim`.
    pub values: Vec<f32>,
}

/// Attention over a range of keys.
#[derive(Debug, Clone, PartialEq)]
pub struct AttentionPartial {
    /// The step of the query.
    pub step: u64,
    /// The layer.
    pub layer: u32,
    /// The keys answered for.
    pub keys: TokenRange,
    /// Rows.
    pub rows: u32,
    /// Query heads.
    pub heads: u32,
    /// Elements of a head.
    pub head_dim: u32,
    /// Rows × heads × `head_dim`, normalised over the keys; zeros where a row sees none of them.
    pub out: Vec<f32>,
    /// Rows × heads: the log of the sum of the exponentiated scores; −∞ where a row sees none of the keys.
    pub lse: Vec<f32>,
}

impl AttentionQuery {
    /// The octets.
    #[must_use]
    pub fn encode(&self) -> Bytes {
        let mut out = BytesMut::with_capacity(QUERY_HEAD + 4 * self.values.len());
        out.put_u32(QUERY_MAGIC);
        out.put_u64(self.step);
        put_shape(&mut out, [self.layer, self.rows, self.heads, self.head_dim]);
        out.put_u64(self.position);
        out.put_u64(self.keys.start());
        out.put_u64(self.keys.end());
        put_floats(&mut out, &self.values);
        out.freeze()
    }

    /// Reads the octets of a whole query.
    ///
    /// # Errors
    /// [`AttentionError`].
    pub fn decode(mut octets: &[u8]) -> Result<Self, AttentionError> {
        if octets.len() < QUERY_HEAD || octets.get_u32() != QUERY_MAGIC {
            return Err(AttentionError::Magic);
        }
        let step = octets.get_u64();
        let [layer, rows, heads, head_dim] = std::array::from_fn(|_| octets.get_u32());
        let position = octets.get_u64();
        let keys = TokenRange::new(octets.get_u64(), octets.get_u64())?;
        let (values, _) = counts(rows, heads, head_dim)?;
        if octets.len() as u64 != 4 * values || position.checked_add(u64::from(rows)).is_none() {
            return Err(AttentionError::Counts);
        }
        let values = floats(octets);
        if !values.iter().all(|x| x.is_finite()) {
            return Err(AttentionError::NotFinite);
        }
        Ok(Self { step, layer, position, keys, rows, heads, head_dim, values })
    }
}

impl AttentionPartial {
    /// The octets.
    #[must_use]
    pub fn encode(&self) -> Bytes {
        let mut out = BytesMut::with_capacity(PARTIAL_HEAD + 4 * (self.out.len() + self.lse.len()));
        out.put_u32(PARTIAL_MAGIC);
        out.put_u64(self.step);
        put_shape(&mut out, [self.layer, self.rows, self.heads, self.head_dim]);
        out.put_u64(self.keys.start());
        out.put_u64(self.keys.end());
        put_floats(&mut out, &self.out);
        put_floats(&mut out, &self.lse);
        out.freeze()
    }

    /// Reads the octets of a whole partial.
    ///
    /// # Errors
    /// [`AttentionError`].
    pub fn decode(mut octets: &[u8]) -> Result<Self, AttentionError> {
        if octets.len() < PARTIAL_HEAD || octets.get_u32() != PARTIAL_MAGIC {
            return Err(AttentionError::Magic);
        }
        let step = octets.get_u64();
        let [layer, rows, heads, head_dim] = std::array::from_fn(|_| octets.get_u32());
        let keys = TokenRange::new(octets.get_u64(), octets.get_u64())?;
        let (values, sums) = counts(rows, heads, head_dim)?;
        if values.checked_add(sums).and_then(|n| n.checked_mul(4)) != Some(octets.len() as u64) {
            return Err(AttentionError::Counts);
        }
        let mut out = floats(octets);
        // Both counts are below the length of the octets.
        let lse = out.split_off(usize::try_from(values).map_err(|_| AttentionError::Counts)?);
        let sum_is_sound = |x: &f32| x.is_finite() || *x == f32::NEG_INFINITY;
        if !out.iter().all(|x| x.is_finite()) || !lse.iter().all(sum_is_sound) {
            return Err(AttentionError::NotFinite);
        }
        Ok(Self { step, layer, keys, rows, heads, head_dim, out, lse })
    }

    /// Octets of the answer to a query, to be known before it is received; `None` where they overflow.
    #[must_use]
    pub fn octets_for(query: &AttentionQuery) -> Option<u64> {
        let (values, sums) = counts(query.rows, query.heads, query.head_dim).ok()?;
        values.checked_add(sums)?.checked_mul(4)?.checked_add(PARTIAL_HEAD as u64)
    }

    /// Whether it answers this query.
    #[must_use]
    pub fn answers(&self, query: &AttentionQuery) -> bool {
        (self.step, self.layer, self.keys, self.rows, self.heads, self.head_dim)
            == (query.step, query.layer, query.keys, query.rows, query.heads, query.head_dim)
    }
}

fn put_shape(out: &mut BytesMut, shape: [u32; 4]) {
    shape.into_iter().for_each(|n| out.put_u32(n));
}

fn put_floats(out: &mut BytesMut, values: &[f32]) {
    values.iter().for_each(|x| out.put_f32(*x));
}

fn floats(octets: &[u8]) -> Vec<f32> {
    octets.as_chunks::<4>().0.iter().map(|x| f32::from_be_bytes(*x)).collect()
}

/// Values and sums of a shape, none of it 0.
fn counts(rows: u32, heads: u32, head_dim: u32) -> Result<(u64, u64), AttentionError> {
    let sums = u64::from(rows) * u64::from(heads);
    let values = sums.checked_mul(u64::from(head_dim)).filter(|n| *n > 0 && *n <= u64::MAX / 16);
    values.map(|values| (values, sums)).ok_or(AttentionError::Counts)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn query() -> AttentionQuery {
        AttentionQuery {
            step: 7,
            layer: 1,
            position: 9,
            keys: TokenRange::new(2, 5).unwrap(),
            rows: 2,
            heads: 3,
            head_dim: 4,
            values: (0_u8..24).map(f32::from).collect(),
        }
    }

    fn partial() -> AttentionPartial {
        AttentionPartial {
            step: 7,
            layer: 1,
            keys: TokenRange::new(2, 5).unwrap(),
            rows: 2,
            heads: 3,
            head_dim: 4,
            out: (0_u8..24).map(f32::from).collect(),
            lse: vec![f32::NEG_INFINITY, 0.5, -1.0, 2.0, 3.0, 4.0],
        }
    }

    #[test]
    fn messages_are_read_as_they_are_written() {
        assert_eq!(AttentionQuery::decode(&query().encode()), Ok(query()));
        let octets = partial().encode();
        assert_eq!(AttentionPartial::decode(&octets), Ok(partial()));
        assert_eq!(AttentionPartial::octets_for(&query()), Some(octets.len() as u64));
        assert!(partial().answers(&query()));
        assert!(!AttentionPartial { step: 8, ..partial() }.answers(&query()));
    }

    #[test]
    fn every_cut_and_every_lie_is_refused() {
        let (q, p) = (query().encode(), partial().encode());
        for cut in 0..q.len() {
            assert!(AttentionQuery::decode(&q[..cut]).is_err());
        }
        for cut in 0..p.len() {
            assert!(AttentionPartial::decode(&p[..cut]).is_err());
        }
        assert_eq!(AttentionQuery::decode(&p), Err(AttentionError::Magic));
        for at in (12..28).step_by(4).skip(1) {
            for count in [0_u32, u32::MAX] {
                let mut bad = q.to_vec();
                bad[at..at + 4].copy_from_slice(&count.to_be_bytes());
                assert_eq!(AttentionQuery::decode(&bad), Err(AttentionError::Counts), "{at}");
            }
        }
        let nan = AttentionQuery { values: vec![f32::NAN; 24], ..query() };
        assert_eq!(AttentionQuery::decode(&nan.encode()), Err(AttentionError::NotFinite));
        let infinite = AttentionPartial { lse: vec![f32::INFINITY; 6], ..partial() };
        assert_eq!(AttentionPartial::decode(&infinite.encode()), Err(AttentionError::NotFinite));
    }
}
