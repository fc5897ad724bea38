use kvsp_engine::{Engine as _, Merge, Span};
use kvsp_llama::{LlamaEngine, LoadOptions, ModelSource};
use kvsp_net::clock::{Clock, SystemClock};
use kvsp_proto::block_key::ScopeKey;
use kvsp_proto::container::Limits;
use kvsp_proto::registry::ElementType;
use tokio::sync::mpsc;

use super::super::{
    EngineEvent, EngineRequest, EngineSource, HostTier, Output, PromptTokens, SchedulerConfig,
};
use super::*;
use crate::engine::{Gauges, ScopedKey};

struct NoHost;

impl HostTier for NoHost {
    fn holds(&self, _: &ScopedKey) -> bool {
        false
    }
}

const BLOCK_TOKENS: u32 = 8;

fn engine(pool_octets: u64) -> LlamaEngine {
    let options = LoadOptions {
        name: Some("tiny".into()),
        block_tokens: BLOCK_TOKENS,
        kv_dtype: ElementType::Float16,
        pool_octets,
    };
    kvsp_llama::load(&ModelSource::Tiny { seed: 0 }, &options, &|_, _| {}).unwrap()
}

struct Thread {
    handle: EngineHandle,
    clock: Arc<SystemClock>,
    _events: mpsc::Receiver<EngineEvent>,
}

fn thread(engine: LlamaEngine) -> Thread {
    let config = SchedulerConfig { max_running: 4, max_queued: 4, chunk_tokens: 16 };
    let clock = Arc::new(SystemClock::new());
    let (handle, events, _) =
        EngineHandle::spawn(EngineSource::of(engine), config, Arc::new(NoHost), clock.clone()).unwrap();
    Thread { handle, clock, _events: events }
}

fn start() -> Thread {
    thread(engine(8 << 20))
}

fn map() -> MapId {
    "m".parse().unwrap()
}

fn tokens(count: usize) -> Vec<u32> {
    (0..count).map(|i| (i * 31 % 250) as u32).collect()
}

impl Thread {
    fn soon(&self, millis: u64) -> Time {
        self.clock.now().after_millis(millis)
    }

    async fn reserve(&self, range: Range<u64>) {
        self.handle.context_reserve(&map(), range.into()).await.unwrap();
    }

    /// One pass over consecutive tokens, all earlier positions held here; the logits after the last.
    async fn compute(&self, position: u64, tokens: Vec<u32>) -> Vec<f32> {
        let end = position + tokens.len() as u64;
        let pass = self.handle.pass_begin(&map(), position, tokens).await.unwrap();
        let mut attention = None;
        while let Advanced::Layer { queries, local, .. } =
            self.handle.pass_advance(&pass, attention, (0..end).into()).await.unwrap()
        {
            let mut merge = Merge::new(&queries);
            for (keys, partial) in local {
                merge.add(keys.start as usize..keys.end as usize, partial).unwrap();
            }
            attention = Some(merge.finish().unwrap());
        }
        self.handle.pass_finish(pass, true).await.unwrap().unwrap()
    }

    fn sections(&self, octets: Bytes, count: u32) -> VerifiedSections {
        let container = Container::parse(octets, &Limits::default()).unwrap();
        VerifiedSections::of(&container, &self.handle.info().descriptor, count).unwrap()
    }
}

fn request(prompt: usize, max_tokens: usize, scope: Option<Arc<ScopeKey>>) -> EngineRequest {
    EngineRequest {
        prompt: PromptTokens::Known(tokens(prompt)),
        generated: Vec::new(),
        max_tokens,
        sampler: kvsp_engine::Sampler::greedy(),
        first_step: 0,
        scope,
        request_ref: None,
        pace: None,
    }
}

/// The logits of an engine that has it all to itself.
fn expected(tokens: &[u32]) -> Vec<f32> {
    let mut engine = engine(8 << 20);
    let pages = (0..tokens.len().div_ceil(BLOCK_TOKENS as usize) as u32).map(kvsp_engine::PageId).collect();
    let span = Span { tokens: tokens.to_vec(), position: 0, first_page: 0, pages, logits: true };
    let mut pass = engine.begin(vec![span]).unwrap();
    while engine.next_layer(&pass).is_some() {
        engine.step_layer(&mut pass).unwrap();
    }
    engine.finish(pass).unwrap().pop().flatten().unwrap()
}

#[tokio::test]
async fn a_pass_in_parts_computes_what_the_engine_computes() {
    let thread = start();
    thread.reserve(0..40).await;
    let tokens = tokens(30);
    let whole = thread.compute(0, tokens.clone()).await;
    assert_eq!(whole, expected(&tokens));
    assert_eq!(thread.handle.context_held(&map()).await, (0..30).into());
    // The last token once more, over what is held.
    thread.handle.context_forget(&map(), 29).await;
    assert_eq!(thread.handle.context_held(&map()).await, (0..29).into());
    assert_eq!(thread.compute(29, vec![tokens[29]]).await, whole);
}

#[tokio::test]
async fn octets_move_between_pools_at_any_boundary() {
    let (from, to) = (start(), start());
    from.reserve(0..40).await;
    from.compute(0, tokens(37)).await;
    // Elsewhere the same block may begin in another page, with a gap before it.
    to.reserve(3..31).await;
    for (a, b) in [(3, 8), (8, 21), (21, 22), (22, 31)] {
        let octets = from.handle.context_read(&map(), a..b).await.unwrap();
        let sections = to.sections(octets.clone(), (b - a) as u32);
        to.handle.context_write(&map(), a..b, sections).await.unwrap();
        assert_eq!(to.handle.context_read(&map(), a..b).await.unwrap(), octets);
    }
    assert_eq!(to.handle.context_held(&map()).await, (3..31).into());
    let whole = from.handle.context_read(&map(), 3..31).await.unwrap();
    assert_eq!(to.handle.context_read(&map(), 3..31).await.unwrap(), whole);

    for missing in [2..5, 30..32, 5..5, 100..101] {
        assert_eq!(to.handle.context_read(&map(), missing).await, Err(ContextError::Missing));
    }
    let sections = to.sections(whole.clone(), 28);
    let elsewhere = to.handle.context_write(&map(), 4..32, sections.clone()).await;
    assert_eq!(elsewhere, Err(ContextError::NotReserved));
    // 28 tokens do not fill a longer range.
    to.reserve(40..80).await;
    let longer = to.handle.context_write(&map(), 40..69, sections).await;
    assert!(matches!(longer, Err(ContextError::Engine(_))), "{longer:?}");
    assert_eq!(to.handle.context_held(&map()).await, (3..31).into());
}

#[tokio::test]
async fn attention_waits_for_its_keys_layer_by_layer() {
    let thread = start();
    thread.reserve(0..32).await;
    let pass = thread.handle.pass_begin(&map(), 0, tokens(16)).await.unwrap();
    let advanced = thread.handle.pass_advance(&pass, None, Ranges::new()).await.unwrap();
    let Advanced::Layer { layer: 0, queries: first, local } = advanced else { panic!("{advanced:?}") };
    assert!(local.is_empty());
    let values = vec![0.5; first.heads * first.head_dim];
    let late = Queries { position: 16, rows: 1, values, ..first.clone() };

    // Layer 0 is there; layer 1 comes while it is waited for; keys 16.. never come; 40 is nobody's.
    let now = thread.soon(0);
    let layer0 = thread.handle.attend(&map(), 0, 0..16, late.clone(), now).await.unwrap();
    assert!(layer0.lse.iter().all(|lse| lse.is_finite()));
    let missing = thread.handle.attend(&map(), 1, 0..16, late.clone(), thread.soon(10)).await;
    assert_eq!(missing, Err(ContextError::Missing));
    let (name, behind) = (map(), Queries { position: 50, ..late.clone() });
    let nobodys = thread.handle.attend(&name, 0, 0..40, behind, thread.soon(3_600_000));
    assert_eq!(nobodys.await, Err(ContextError::Missing));
    let (waits, goes_on) =
        tokio::join!(thread.handle.attend(&name, 1, 0..16, late.clone(), thread.soon(60_000)), async {
            tokio::task::yield_now().await;
            let mut merge = Merge::new(&first);
            let own = thread.handle.attend(&map(), 0, 0..16, first.clone(), now).await.unwrap();
            merge.add(0..16, own).unwrap();
            thread.handle.pass_advance(&pass, Some(merge.finish().unwrap()), (0..16).into()).await
        });
    assert!(waits.is_ok() && matches!(goes_on, Ok(Advanced::Layer { layer: 1, .. })));
    // Rows that see no key of the range.
    let none = thread.handle.attend(&map(), 0, 20..24, late, now).await.unwrap();
    assert!(none.lse.iter().all(|lse| *lse == f32::NEG_INFINITY) && none.out.iter().all(|x| *x == 0.0));
}

#[tokio::test]
async fn a_pass_ends_with_its_owner_and_with_its_memory() {
    let thread = start();
    thread.reserve(0..32).await;
    let begin = async || thread.handle.pass_begin(&map(), 0, tokens(8)).await.unwrap();
    let pass = begin().await;
    thread.handle.context_forget(&map(), 7).await;
    let advanced = thread.handle.pass_advance(&pass, None, Ranges::new()).await;
    assert_eq!(advanced.unwrap_err(), ContextError::PassEnded);
    let pass = begin().await;
    thread.handle.context_free(&map(), Some((7..8).into())).await;
    let advanced = thread.handle.pass_advance(&pass, None, Ranges::new()).await;
    assert_eq!(advanced.unwrap_err(), ContextError::PassEnded);
    assert_eq!(thread.handle.pass_begin(&map(), 0, tokens(8)).await.unwrap_err(), ContextError::NotReserved);
}

#[tokio::test]
async fn contexts_take_cached_blocks_but_never_each_others_pages() {
    let engine = engine(256 << 10);
    let capacity = (engine.info().pages * BLOCK_TOKENS as usize) as u64;
    let thread = thread(engine);
    // A request leaves its blocks in the pool for reuse.
    let scope = Arc::new(kvsp_testkit::generate::scope_key(1));
    let mut outputs = thread.handle.submit(request(17, 1, Some(scope))).await.unwrap();
    while let Some(output) = outputs.recv().await {
        assert!(!matches!(output, Output::Failed(_)));
    }
    let pages = || Gauges::read(&thread.handle.gauges().context_pages);
    thread.reserve(0..capacity - 1).await;
    assert_eq!(pages(), capacity / u64::from(BLOCK_TOKENS));
    let other: MapId = "other".parse().unwrap();
    let refused = thread.handle.context_reserve(&other, (0..1).into()).await;
    assert_eq!(refused, Err(ContextError::NoRoom));
    assert!(thread.handle.gauges().kv_utilization() >= 1.0);
    thread.handle.context_free(&map(), Some((0..9).into())).await;
    thread.handle.context_reserve(&other, (5..6).into()).await.unwrap();
    let refused = thread.handle.context_reserve(&other, (5..900).into()).await;
    assert_eq!(refused, Err(ContextError::NoRoom));
    thread.handle.context_free(&map(), None).await;
    thread.handle.context_free(&other, None).await;
    assert_eq!(thread.handle.context_held(&map()).await, Ranges::new());
    assert_eq!(pages(), 0);
}

#[tokio::test]
async fn requests_and_attention_take_turns() {
    let thread = start();
    thread.reserve(0..512).await;
    thread.compute(0, tokens(400)).await;
    let pass = thread.handle.pass_begin(&map(), 400, tokens(64)).await.unwrap();
    let advanced = thread.handle.pass_advance(&pass, None, Ranges::new()).await.unwrap();
    let Advanced::Layer { queries, .. } = advanced else { panic!("{advanced:?}") };
    let mut outputs = thread.handle.submit(request(100, 40, None)).await.unwrap();
    let answered = std::sync::atomic::AtomicU64::new(0);
    let name = map();
    // Others ask without a pause as long as the request runs; each waits for his answer.
    let flood = futures_util::future::join_all((0..8).map(async |_| {
        loop {
            let until = thread.soon(60_000);
            thread.handle.attend(&name, 0, 0..400, queries.clone(), until).await.unwrap();
            answered.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        }
    }));
    let answer = async {
        let mut at = Vec::new();
        while let Some(output) = outputs.recv().await {
            assert!(!matches!(output, Output::Failed(_)));
            at.push(answered.load(std::sync::atomic::Ordering::Relaxed));
        }
        at
    };
    let at = tokio::select! {
        at = answer => at,
        _ = flood => unreachable!("it goes on for ever"),
    };
    assert!(at.len() > 3, "the request came to its end");
    assert!(at[at.len() - 1] > at[0], "attention was answered between its tokens: {at:?}");
}
