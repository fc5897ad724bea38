//! The answer's text, written straight from the index's views into one buffer.

use bytes::Bytes;
use kvsp_core::index::{BlockView, ReplicaView};
use kvsp_net::Failure;
use kvsp_proto::fast::write::{RecordParts, push_hex32, push_integer};
use kvsp_proto::id::BlockKey;
use kvsp_proto::message::{Detail, LookupRequest, TargetEstimate};
use kvsp_proto::problem::{Problem, ProblemType};

/// Room for `{"matched":…,"complete":…,"blocks":[`, whose numbers are known only at the end.
const HEAD_ROOM: usize = 96;

/// Most octets for which room is made at once, by the size of the first block.
const MAX_RESERVED: usize = 64 << 20;

/// An answer in the making.
pub(super) struct Body<'a> {
    request: &'a LookupRequest,
    out: Vec<u8>,
    blocks: usize,
    max: u64,
}

impl<'a> Body<'a> {
    pub(super) fn new(request: &'a LookupRequest, max: u64) -> Self {
        Self { request, out: vec![b' '; HEAD_ROOM], blocks: 0, max }
    }

    /// Reads a little of all that [`Body::block`] is going to write. Writing a block takes so long that the
    /// processor does not see the next one's memory in time; reads alone it does at the same time for many.
    pub(super) fn fetch(&self, block: &BlockView<'_>) {
        if self.request.detail != Detail::Full {
            // Without layer digests there is little to read.
            return;
        }
        let mut seen = 0_u8;
        for replica in block.replicas() {
            seen ^= replica.digest().0[0];
            // Two digests are as long as what comes from memory at once.
            seen = replica
                .layer_digests()
                .into_iter()
                .flatten()
                .step_by(2)
                .fold(seen, |seen, digest| seen ^ digest.0[0]);
        }
        std::hint::black_box(seen);
    }

    /// Appends a matched block.
    ///
    /// # Errors
    /// `kvsp-limit-exceeded` where the answer becomes too large.
    pub(super) fn block(&mut self, block: &BlockView<'_>) -> Result<(), Failure> {
        let digests = match self.request.detail {
            Detail::Full => true,
            Detail::Location => false,
            Detail::None => return Ok(()),
        };
        let key = block.key();
        if self.blocks > 0 {
            self.out.push(b',');
        }
        self.out.extend_from_slice(b"{\"block_key\":");
        push_hex32(&mut self.out, &key.0);
        self.out.extend_from_slice(b",\"replicas\":[");
        let mut first = true;
        for replica in block.replicas() {
            if !std::mem::replace(&mut first, false) {
                self.out.push(b',');
            }
            self.replica(&replica, &key, digests);
        }
        self.out.extend_from_slice(b"]}");
        self.blocks += 1;
        if self.out.len() as u64 > self.max {
            let detail = "the answer would be too large; ask for fewer keys or with less detail";
            return Err(Problem::new(ProblemType::LimitExceeded, detail).with("limit", self.max).into());
        }
        if self.blocks == 1 {
            // Blocks of one prefix are mostly alike.
            let like_this = (self.out.len() - HEAD_ROOM + 16).saturating_mul(self.request.block_keys.len());
            self.out.reserve(like_this.min(MAX_RESERVED));
        }
        Ok(())
    }

    fn replica(&mut self, replica: &ReplicaView<'_>, key: &BlockKey, digests: bool) {
        let digest = replica.digest();
        RecordParts {
            block_key: key,
            compat_id: &self.request.compat_id,
            scope_id: &self.request.scope_id,
            holder: replica.holder().as_str(),
            codec: replica.codec(),
            size: replica.size(),
            digest: &digest,
            layer_digests: replica.layer_digests().filter(|_| digests),
            residency: replica.residency(),
            ttl_ms: replica.ttl_ms(),
            seq: replica.seq(),
            holder_epoch: replica.holder_epoch(),
            producer: replica.producer(),
            moqt_namespace: replica.moqt_namespace(),
        }
        .write(&mut self.out);
    }

    /// The whole text, as serde_json would write a `LookupAnswer`.
    pub(super) fn finish(mut self, matched: usize, complete: usize, targets: &[TargetEstimate]) -> Bytes {
        let mut head = Vec::with_capacity(HEAD_ROOM);
        head.extend_from_slice(b"{\"matched\":");
        push_integer(&mut head, matched as u64);
        head.extend_from_slice(b",\"complete\":");
        push_integer(&mut head, complete as u64);
        if self.request.detail != Detail::None {
            head.extend_from_slice(b",\"blocks\":[");
            self.out.push(b']');
        }
        if !self.request.targets.is_empty() {
            self.out.extend_from_slice(b",\"targets\":");
            // Writing into a vector does not fail, and estimates are integers and texts.
            if serde_json::to_writer(&mut self.out, targets).is_err() {
                self.out.extend_from_slice(b"[]");
            }
        }
        self.out.push(b'}');
        let start = HEAD_ROOM.saturating_sub(head.len());
        if let Some(room) = self.out.get_mut(start..HEAD_ROOM) {
            room.copy_from_slice(&head);
        }
        Bytes::from(self.out).slice(start..)
    }
}
