//! Nothing that a source sends enters the engine unless it is what the index recorded; whatever a source
//! does, the next one is used, and else the answer is computed.

use kvsp_proto::container::Container;
use kvsp_proto::id::BlockKey;
use kvsp_proto::message::{DirectiveState, FailureReason};
use kvsp_proto::registry::Codec;
use kvsp_testkit::{Behaviour, Geometry, Hostile, Prefix, generate};

use crate::support::{Ask, Index, Instance, Reply, Setup, prompt};

const MISMATCHES: &str = "kvsp_prefetch_digest_mismatches_total";
/// One complete block and a tail.
const SHORT: usize = 21;

/// `a` computes and is honest; `b` loads.
struct Stage {
    index: Index,
    a: Instance,
    b: Instance,
    next: u64,
}

impl Stage {
    async fn new() -> Self {
        let index = Index::start().await;
        let a = Instance::start(Setup::at(&index)).await;
        let b = Instance::start(Setup::at(&index)).await;
        Self { index, a, b, next: 0 }
    }

    /// A prompt that only `a` has computed, with its answer.
    async fn prompt(&mut self, length: usize) -> (Vec<u32>, Reply, Prefix) {
        self.next += 1;
        let tokens = prompt(1000 + self.next, length);
        let cold = self.a.ask(&Ask::new(&tokens, 12)).await;
        let prefix = self.a.prefix(&tokens).await;
        self.index.published(self.a.compat(), &prefix.keys, &self.a.base).await;
        (tokens, cold, prefix)
    }

    async fn asks_b(&self, tokens: &[u32], cold: &Reply, cached: u64) {
        let reply = self.b.ask(&Ask::new(tokens, 12)).await;
        assert_eq!((&reply.text, reply.tokens), (&cold.text, cold.tokens));
        assert_eq!(reply.cached, cached);
    }
}

#[derive(Debug)]
struct Case {
    behaviour: Behaviour,
    layer_stream: bool,
    reason: FailureReason,
}

async fn liars(cases: &[Case]) {
    let mut stage = Stage::new().await;
    for case in cases {
        // Alone: nothing is loaded, and the answer is computed.
        let (tokens, cold, prefix) = stage.prompt(SHORT).await;
        let source = Hostile::start(&prefix).await;
        source.behave(case.behaviour);
        source.offer_layer_stream(case.layer_stream);
        stage.index.record(&prefix, source.base()).await;
        let before = stage.b.metric(MISMATCHES).await;
        let status = stage.b.load(&prefix.keys, &[source.base()]).await;
        assert_eq!((status.state, status.loaded), (DirectiveState::Failed, vec![]), "{case:?}");
        assert_eq!(status.failed[0].reason, case.reason, "{case:?}");
        let counted = stage.b.metric(MISMATCHES).await - before;
        assert_eq!(counted, u64::from(case.reason == FailureReason::DigestMismatch), "{case:?}");
        stage.asks_b(&tokens, &cold, 0).await;

        // With an honest source after it: that one is used.
        let (tokens, cold, prefix) = stage.prompt(SHORT).await;
        let source = Hostile::start(&prefix).await;
        source.behave(case.behaviour);
        source.offer_layer_stream(case.layer_stream);
        stage.index.record(&prefix, source.base()).await;
        let status = stage.b.load(&prefix.keys, &[source.base(), &stage.a.base]).await;
        assert_eq!((status.state, status.loaded), (DirectiveState::Complete, prefix.keys), "{case:?}");
        assert!(!source.requests().is_empty(), "{case:?}: the first source was not asked");
        stage.asks_b(&tokens, &cold, 16).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lies_and_failures_in_a_layer_stream() {
    use FailureReason::{DigestMismatch, NotFound, Unreachable};
    let case = |behaviour, reason| Case { behaviour, layer_stream: true, reason };
    liars(&[
        case(Behaviour::CorruptUnderItsDigest, DigestMismatch),
        case(Behaviour::NotFound, NotFound),
        case(Behaviour::Truncated, Unreachable),
        case(Behaviour::Html(500), Unreachable),
        case(Behaviour::Redirect, Unreachable),
    ])
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lies_and_failures_in_whole_blocks() {
    use FailureReason::{ContainerMismatch, DigestMismatch, Unreachable};
    let case = |behaviour, reason| Case { behaviour, layer_stream: false, reason };
    liars(&[
        case(Behaviour::CorruptUnderItsDigest, DigestMismatch),
        case(Behaviour::WrongReprDigest, DigestMismatch),
        case(Behaviour::NoReprDigest, DigestMismatch),
        case(Behaviour::NotAContainer, ContainerMismatch),
        case(Behaviour::Truncated, Unreachable),
        case(Behaviour::Oversize, Unreachable),
    ])
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn blocks_before_a_lie_are_kept_and_the_rest_is_computed() {
    let mut stage = Stage::new().await;
    let (tokens, cold, prefix) = stage.prompt(70).await;
    let source = Hostile::start(&prefix).await;
    source.behave(Behaviour::CorruptUnderItsDigest);
    stage.index.record(&prefix, source.base()).await;
    let status = stage.b.load(&prefix.keys, &[source.base()]).await;
    assert_eq!(status.state, DirectiveState::Partial);
    assert_eq!(status.loaded, prefix.keys[..3], "the last octet of the last block is wrong");
    assert_eq!(status.failed[0].reason, FailureReason::DigestMismatch);
    stage.asks_b(&tokens, &cold, 48).await;
}

/// A source that offers neither leases nor layer streams is still one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_source_of_plain_blocks_is_used() {
    let mut stage = Stage::new().await;
    let (tokens, cold, prefix) = stage.prompt(70).await;
    let source = Hostile::start(&prefix).await;
    source.behave(Behaviour::OnlyGet);
    stage.index.record(&prefix, source.base()).await;
    let status = stage.b.load(&prefix.keys, &[source.base()]).await;
    assert_eq!((status.state, status.loaded), (DirectiveState::Complete, prefix.keys));
    stage.asks_b(&tokens, &cold, 64).await;
}

/// Containers that do not have the shape of this model's blocks, whatever their digests.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn blocks_of_another_shape_are_refused() {
    let mut stage = Stage::new().await;
    let own = Geometry { layers: 4, kv_heads: 2, head_dim: 16, ..Geometry::default() };
    let shapes = [
        Geometry { head_dim: 32, ..own },
        Geometry { block_tokens: 8, ..own },
        Geometry { kv_heads: 1, ..own },
    ];
    for shape in shapes {
        for layer_stream in [true, false] {
            let (tokens, cold, prefix) = stage.prompt(SHORT).await;
            let other = generate::container(&generate::descriptor("other/model", shape), 1);
            let lie = Prefix { containers: vec![other], ..prefix_of(&prefix) };
            let source = Hostile::start(&lie).await;
            source.offer_layer_stream(layer_stream);
            stage.index.record(&prefix, source.base()).await;
            let status = stage.b.load(&prefix.keys, &[source.base()]).await;
            assert_eq!(status.state, DirectiveState::Failed, "{shape:?}");
            // A whole block is told by its digests already.
            let reason = match layer_stream {
                true => FailureReason::ContainerMismatch,
                false => FailureReason::DigestMismatch,
            };
            assert_eq!(status.failed[0].reason, reason, "{shape:?}");
            stage.asks_b(&tokens, &cold, 0).await;
        }
    }
}

fn prefix_of(prefix: &Prefix) -> Prefix {
    Prefix {
        descriptor: prefix.descriptor.clone(),
        scope_key: crate::support::scope_key(),
        tokens: prefix.tokens.clone(),
        keys: prefix.keys.clone(),
        containers: prefix.containers.clone(),
    }
}

/// The sections of a layer cut at another place have the same digest; the sizes tell.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_layer_cut_elsewhere_is_refused() {
    let mut stage = Stage::new().await;
    let (tokens, cold, prefix) = stage.prompt(SHORT).await;
    let honest = &prefix.containers[0];
    let sections: Vec<_> = (0..4)
        .map(|layer| {
            let octets = honest.layer_octets(layer).unwrap();
            (octets.slice(..8), octets.slice(8..))
        })
        .collect();
    let shifted = Container::build(Codec::RAW, 0, 16, &sections).unwrap();
    assert_eq!(shifted.digest(), honest.digest());
    let source = Hostile::start(&Prefix { containers: vec![shifted], ..prefix_of(&prefix) }).await;
    stage.index.record(&prefix, source.base()).await;
    let status = stage.b.load(&prefix.keys, &[source.base()]).await;
    assert_eq!(status.failed[0].reason, FailureReason::ContainerMismatch);
    stage.asks_b(&tokens, &cold, 0).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_source_without_a_record_is_not_even_asked() {
    let mut stage = Stage::new().await;
    let (tokens, cold, prefix) = stage.prompt(SHORT).await;
    let source = Hostile::start(&prefix).await;
    let status = stage.b.load(&prefix.keys, &[source.base()]).await;
    assert_eq!((status.state, status.failed[0].reason), (DirectiveState::Failed, FailureReason::NoRecord));
    assert!(source.requests().is_empty());
    // Blocks that nobody has ever computed are no different, and those after them are still loaded.
    let keys = [BlockKey([9; 32]), prefix.keys[0]];
    let status = stage.b.load(&keys, &[&stage.a.base]).await;
    assert_eq!((status.state, status.loaded), (DirectiveState::Partial, prefix.keys));
    assert_eq!((status.failed[0].block_key, status.failed[0].reason), (keys[0], FailureReason::NoRecord));
    stage.asks_b(&tokens, &cold, 16).await;
}
