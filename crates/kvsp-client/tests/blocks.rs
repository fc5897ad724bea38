//! Blocks from a holder that behaves, and from one that does not.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by a panic")]

use std::time::{Duration, Instant};

use kvsp_client::{BlockQuery, Client, ClientConfig, ClientError, VerifyError};
use kvsp_proto::container::LayerRange;
use kvsp_proto::digest::ReprDigest;
use kvsp_proto::id::BlockKey;
use kvsp_proto::problem::ProblemType;
use kvsp_proto::record::ReplicaRecord;
use kvsp_proto::registry::Codec;
use kvsp_proto::uri::HolderUri;
use kvsp_testkit::{Behaviour, Geometry, Hostile, Prefix};

struct Stage {
    prefix: Prefix,
    holder: Hostile,
    client: Client,
    record: ReplicaRecord,
}

impl Stage {
    async fn set() -> Self {
        Self::with(ClientConfig {
            timeout: Duration::from_secs(5),
            idle_timeout: Duration::from_millis(200),
            max_container_octets: 1 << 20,
            ..ClientConfig::default()
        })
        .await
    }

    async fn with(config: ClientConfig) -> Self {
        let prefix = Prefix::new(Geometry::default(), 7, 3);
        let holder = Hostile::start(&prefix).await;
        let record = prefix.records(&HolderUri::from(holder.base())).remove(0);
        Self { prefix, holder, client: Client::new(config), record }
    }

    async fn fetch(&self, behaviour: Behaviour, layers: Option<LayerRange>) -> Result<(), ClientError> {
        self.holder.behave(behaviour);
        let fetched = self.client.get_verified(&self.record, layers).await;
        // Whatever happened, the next good answer is taken.
        self.holder.behave(Behaviour::Honest);
        self.client.get_verified(&self.record, None).await.expect("an honest answer");
        fetched.map(|_| ())
    }
}

fn range(first: u32, last: u32) -> LayerRange {
    LayerRange::new(first, last).unwrap()
}

#[tokio::test]
async fn an_honest_block_is_verified_whole_and_in_part() {
    let stage = Stage::set().await;
    let whole = stage.client.get_verified(&stage.record, None).await.unwrap();
    assert_eq!(whole, stage.prefix.containers[0]);
    let part = stage.client.get_verified(&stage.record, Some(range(1, 2))).await.unwrap();
    assert_eq!(part, stage.prefix.containers[0].slice(range(1, 2)).unwrap().join());
    let (compat, scope, key) = (stage.record.compat_id, stage.record.scope_id, stage.record.block_key);
    let fetched = stage
        .client
        .get_block(stage.holder.base(), compat, scope, key, &BlockQuery::default())
        .await
        .unwrap();
    assert_eq!((fetched.max_age_s, fetched.etag.as_deref()), (Some(60), Some("\"one\"")));
    let head = stage
        .client
        .head_block(stage.holder.base(), compat, scope, key, &BlockQuery::default())
        .await
        .unwrap();
    assert_eq!(head.size, Some(whole.size()));
    assert_eq!(head.repr_digest, Some(ReprDigest::of(whole.bytes())));
    assert!(stage.holder.requests()[1].ends_with("?layers=1-2&codec=1"), "{:?}", stage.holder.requests());
}

#[tokio::test]
async fn a_block_is_received_into_the_callers_memory() {
    let stage = Stage::set().await;
    let whole = stage.prefix.containers[0].bytes();
    let mut memory = vec![0xEE; whole.len() + 3];
    let header = stage.client.get_verified_into(&stage.record, None, &mut memory).await.unwrap();
    assert_eq!(header, *stage.prefix.containers[0].header());
    assert_eq!((&memory[..whole.len()], &memory[whole.len()..]), (whole.as_ref(), [0xEE; 3].as_slice()));
    let part = stage.prefix.containers[0].slice(range(1, 2)).unwrap().join();
    let header = stage.client.get_verified_into(&stage.record, Some(range(1, 2)), &mut memory).await.unwrap();
    assert_eq!((header.layers(), &memory[..part.bytes().len()]), (range(1, 2), part.bytes().as_ref()));
    let short = stage.client.get_verified_into(&stage.record, None, &mut memory[..whole.len() - 1]).await;
    assert!(matches!(short, Err(ClientError::TooLarge { max }) if max == whole.len() as u64 - 1));
    stage.holder.behave(Behaviour::CorruptUnderItsDigest);
    let corrupt = stage.client.get_verified_into(&stage.record, None, &mut memory).await;
    let want = VerifyError::LayerDigest { layer: 3 };
    assert!(matches!(corrupt, Err(ClientError::Verification(got)) if got == want));
}

/// A call may be a task of its own: its futures move between threads.
#[tokio::test]
async fn fetches_run_as_tasks() {
    let stage = Stage::set().await;
    let (client, record) = (stage.client.clone(), stage.record.clone());
    let size = usize::try_from(record.size).unwrap();
    let task = tokio::spawn(async move {
        let mut memory = vec![0; size];
        client.get_verified_into(&record, None, &mut memory).await.map(|_| ())?;
        client.get_verified(&record, None).await
    });
    assert_eq!(task.await.unwrap().unwrap(), stage.prefix.containers[0]);
}

#[tokio::test]
async fn a_miss_is_not_found() {
    let stage = Stage::set().await;
    let error = stage.fetch(Behaviour::NotFound, None).await.unwrap_err();
    assert!(error.is_not_found());
    assert_eq!(error.problem_type(), Some(ProblemType::BlockNotFound));
    let error = stage.fetch(Behaviour::Honest, Some(range(2, 9))).await.unwrap_err();
    assert_eq!(error.problem_type(), Some(ProblemType::LayersUnavailable));
    let mut record = stage.record.clone();
    record.block_key = BlockKey([9; 32]);
    assert!(stage.client.get_verified(&record, None).await.unwrap_err().is_not_found());
}

#[tokio::test]
async fn what_is_not_the_producers_is_refused() {
    let stage = Stage::set().await;
    let cases = [
        (Behaviour::CorruptUnderItsDigest, None, VerifyError::LayerDigest { layer: 3 }),
        (Behaviour::CorruptUnderItsDigest, Some(range(0, 1)), VerifyError::LayerDigest { layer: 1 }),
        (Behaviour::WrongReprDigest, None, VerifyError::ReprDigest),
        (Behaviour::NoReprDigest, None, VerifyError::NoReprDigest),
        (
            Behaviour::AllLayers,
            Some(range(1, 1)),
            VerifyError::Layers { wanted: range(1, 1), got: range(0, 3) },
        ),
    ];
    for (behaviour, layers, want) in cases {
        match stage.fetch(behaviour, layers).await {
            Err(ClientError::Verification(got)) => assert_eq!(got, want, "{behaviour:?}"),
            other => panic!("{behaviour:?}: {other:?}"),
        }
    }
    let error = stage.fetch(Behaviour::NotAContainer, None).await.unwrap_err();
    assert!(matches!(error, ClientError::Verification(VerifyError::Container(_))), "{error:?}");
}

#[tokio::test]
async fn a_corrupt_block_is_caught_only_with_its_record() {
    let stage = Stage::set().await;
    stage.holder.behave(Behaviour::CorruptUnderItsDigest);
    let (compat, scope, key) = (stage.record.compat_id, stage.record.scope_id, stage.record.block_key);
    let fetched =
        stage.client.get_block(stage.holder.base(), compat, scope, key, &BlockQuery::default()).await;
    assert!(fetched.is_ok(), "its Repr-Digest matches");
}

#[tokio::test]
async fn silence_and_breaks_end_in_time() {
    let stage = Stage::set().await;
    let start = Instant::now();
    let error = stage.fetch(Behaviour::HangInBody, None).await.unwrap_err();
    assert!(matches!(error, ClientError::Timeout { .. }) && error.is_unreachable(), "{error:?}");
    assert!(start.elapsed() < Duration::from_secs(3));
    let error = stage.fetch(Behaviour::Truncated, None).await.unwrap_err();
    assert!(matches!(error, ClientError::Unreachable { .. }), "{error:?}");
    let short =
        Stage::with(ClientConfig { timeout: Duration::from_millis(200), ..ClientConfig::default() }).await;
    let error = short.fetch(Behaviour::HangBeforeAnswer, None).await.unwrap_err();
    assert!(matches!(error, ClientError::Timeout { .. }), "{error:?}");
}

#[tokio::test]
async fn a_trickle_is_held_to_the_deadline() {
    let stage = Stage::set().await;
    let trickle = Behaviour::Slow { piece: 8, pause: Duration::from_millis(2) };
    stage.holder.behave(trickle);
    let start = Instant::now();
    let short = stage.client.with_timeout(Duration::from_millis(150));
    let error = short.get_verified(&stage.record, None).await.unwrap_err();
    assert!(matches!(error, ClientError::Timeout { .. }), "{error:?}");
    assert!(start.elapsed() < Duration::from_secs(1));
    let slow = Behaviour::Slow { piece: 500, pause: Duration::from_millis(2) };
    stage.fetch(slow, None).await.expect("slow is not silent");
}

#[tokio::test]
async fn sizes_redirects_and_pages_are_refused() {
    let stage = Stage::set().await;
    let error = stage.fetch(Behaviour::Oversize, None).await.unwrap_err();
    assert!(matches!(error, ClientError::TooLarge { max } if max == 1 << 20), "{error:?}");
    let before = stage.holder.requests().len();
    let error = stage.fetch(Behaviour::Redirect, None).await.unwrap_err();
    assert!(matches!(error, ClientError::Protocol(_)), "{error:?}");
    assert_eq!(stage.holder.requests().len(), before + 2, "the redirect and the honest answer");
    let error = stage.fetch(Behaviour::Html(200), None).await.unwrap_err();
    assert!(matches!(error, ClientError::Protocol(_)), "{error:?}");
    let error = stage.fetch(Behaviour::Html(502), None).await.unwrap_err();
    assert!(matches!(&error, ClientError::Problem(problem) if problem.status() == 502), "{error:?}");
    assert_eq!(error.problem_type(), None);
}

#[tokio::test]
async fn a_record_that_is_false_is_refused() {
    let stage = Stage::set().await;
    let verify = async |change: fn(&mut ReplicaRecord)| {
        let mut record = stage.record.clone();
        change(&mut record);
        match stage.client.get_verified(&record, None).await {
            Err(ClientError::Verification(error)) => Some(error),
            Ok(_) => None,
            Err(other) => panic!("{other:?}"),
        }
    };
    let size = stage.record.size;
    assert_eq!(
        verify(|record| record.size += 1).await,
        Some(VerifyError::Size { wanted: size + 1, got: size })
    );
    assert_eq!(verify(|record| record.digest.0.0[0] ^= 1).await, Some(VerifyError::ReplicaDigest));
    assert_eq!(
        verify(|record| record.layer_digests = None).await,
        None,
        "the replica digest is enough for all"
    );
    let mut record = stage.record.clone();
    record.layer_digests = None;
    let error = stage.client.get_verified(&record, Some(range(0, 0))).await.unwrap_err();
    assert!(matches!(error, ClientError::Verification(VerifyError::NoLayerDigest { layer: 0 })), "{error:?}");
    record.digest.0.0[0] ^= 1;
    let error = stage.client.get_verified(&record, None).await.unwrap_err();
    assert!(matches!(error, ClientError::Verification(VerifyError::ReplicaDigest)), "{error:?}");
    let mut record = stage.record.clone();
    record.codec = Codec::SPLIT_ZSTD;
    let error = stage.client.get_verified(&record, None).await.unwrap_err();
    assert!(matches!(error, ClientError::Verification(VerifyError::Codec { .. })), "{error:?}");
}
