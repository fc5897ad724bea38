//! Another instance goes on, to the bit.

use kvsp_net::random::{Random as _, SeededRandom};
use kvsp_proto::message::{Needs, PromptRequest};
use kvsp_proto::record::SessionCheckpoint;
use kvsp_testkit::{Behaviour, Hostile};
use serde_json::{Value, json};

use super::controller::{Controller, Does};
use super::work::{Job, Told, cut, instance, next, read_all, resume, setup, tokens};
use crate::support::{Holder, Index, Instance, client, eventually, prompt, send};

/// Prompt tokens: two blocks and five more.
const PROMPT: usize = 37;
const OUTPUT: u32 = 50;

/// A session that ran to its end at one instance, and what that left behind: its last checkpoint, and its blocks
/// at a holder.
struct Past {
    controller: Controller,
    index: Index,
    holder: Holder,
    job: Job,
    told: Told,
    checkpoint: SessionCheckpoint,
}

impl Past {
    async fn of(length: usize, sampling: Value) -> Self {
        let (controller, index) = (Controller::start().await, Index::start().await);
        let holder = Holder::start(&index, 64 << 20, async |_| None).await;
        let mut setup = setup(&controller, Some(&index));
        setup.agent.holder = Some(holder.base.clone());
        let a = Instance::start(setup).await;
        let job = Job::new(1, prompt(5, length), OUTPUT).sampling(sampling);
        let told = read_all(&mut job.start(&a).await, 0, 1, |_| {}).await;
        let checkpoint = controller.recorded_to(job.id, told.tokens.len() as u64).await;
        let known = [&job.prompt[..], &told.tokens[..told.tokens.len() - 1]].concat();
        index.published(a.compat(), &a.keys(&known), &holder.base).await;
        a.running.stop().await.unwrap();
        Self { controller, index, holder, job, told, checkpoint }
    }

    /// The sampled one of most tests.
    async fn sampled() -> Self {
        Self::of(PROMPT, json!({"temperature": 0.8, "top_p": 0.9, "seed": 7})).await
    }

    async fn instance(&self) -> Instance {
        let mut setup = setup(&self.controller, Some(&self.index));
        setup.agent.holder = Some(self.holder.base.clone());
        Instance::start(setup).await
    }

    /// An instance that finds nothing of it.
    async fn stranger(&self) -> (Index, Instance) {
        let empty = Index::start().await;
        let instance = instance(&self.controller, Some(&empty)).await;
        (empty, instance)
    }

    /// Resumes the session as it was after `offset` tokens; all its tokens from `from` on.
    async fn go_on(&self, at: &Instance, id: u128, offset: usize, from: u64) -> Told {
        let checkpoint = cut(&self.checkpoint, id, offset);
        let answer = resume(at, 2, &checkpoint, OUTPUT).await;
        assert_eq!((answer.session, answer.epoch, answer.needs), (Some(checkpoint.session), Some(2), None));
        let told = read_all(&mut tokens(at, checkpoint.session, from).await, from, 2, |_| {}).await;
        assert_eq!(told.tokens, self.told.tokens[usize::try_from(from).unwrap()..], "after {offset} tokens");
        assert_eq!(told.done, self.told.done, "after {offset} tokens");
        let recorded = self.controller.recorded(checkpoint.session);
        // A session that was complete has nothing more to record.
        assert!(offset == self.told.tokens.len() || recorded.is_some());
        told
    }
}

/// What was recorded before the session came here: the fake controller wants to have seen it.
async fn known_before(past: &Past, id: u128, offset: usize) -> SessionCheckpoint {
    let checkpoint = cut(&past.checkpoint, id, offset);
    if offset > 0 {
        client().put_checkpoint(&past.controller.base(), &checkpoint).await.unwrap();
    }
    checkpoint
}

/// Cut at every token around the borders of blocks, and at both ends.
async fn cuts(sampling: Value) {
    let past = Past::of(PROMPT, sampling).await;
    let b = past.instance().await;
    let length = past.told.tokens.len();
    // 37 + 11 and 37 + 27 are whole blocks.
    for offset in [28, 0, 1, 5, 10, 11, 12, 26, 27, 42, 43, 44, 49, 50] {
        if offset <= length {
            let id = 100 + offset as u128;
            known_before(&past, id, offset).await;
            past.go_on(&b, id, offset, (offset as u64).saturating_sub(3)).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sampled_session_goes_on_exactly_from_every_cut() {
    cuts(json!({"temperature": 0.8, "top_p": 0.9, "seed": 7})).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_greedy_session_goes_on_exactly_from_every_cut() {
    cuts(json!({"temperature": 0})).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_of_other_samplers_goes_on_exactly_from_every_cut() {
    cuts(json!({"temperature": 1.3, "top_k": 40, "min_p": 0.02, "seed": 1234})).await;
}

/// Prompt and generated blocks are loaded; computed are the tokens after the last block alone.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_stored_is_loaded_and_only_the_tail_is_computed() {
    let past = Past::of(16 * 12 + 5, json!({"temperature": 0.8, "seed": 3})).await;
    let length = past.told.tokens.len();
    assert!(length >= 40, "a text of {length} tokens tells too little");
    let b = past.instance().await;
    known_before(&past, 9, 30).await;
    let told = past.go_on(&b, 9, 30, 0).await;
    assert_eq!(told.reused, 16 * 12 + 5, "of the prompt nothing was computed");
    assert_eq!(b.metric("kvsp_instance_prompt_tokens_computed_total").await, 0);
    // 197 + 30 tokens are 14 blocks and three tokens.
    assert_eq!(b.metric("kvsp_instance_output_tokens_recomputed_total").await, 3);
    assert_eq!(b.metric("kvsp_session_prompts_needed_total").await, 0);
    assert!(b.metric("kvsp_prefetch_octets_verified_total").await > 0);
}

/// The blocks are gone: the prompt is asked for, a wrong one refused, and the right one computed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_blocks_the_front_end_brings_the_prompt() {
    let past = Past::sampled().await;
    let (_index, b) = past.stranger().await;
    let checkpoint = known_before(&past, 9, 20).await;
    let id = checkpoint.session;
    assert_eq!(resume(&b, 2, &checkpoint, OUTPUT).await.needs, Some(Needs::Prompt));
    assert_eq!(resume(&b, 2, &checkpoint, OUTPUT).await.needs, Some(Needs::Prompt), "a repeat");
    // What is recorded can be read meanwhile: it may not have been delivered.
    let mut stream = tokens(&b, id, 18).await;
    assert_eq!(stream.needs, Some(Needs::Prompt));
    assert_eq!(next(&mut stream).await, (18, past.told.tokens[18]));
    assert_eq!(next(&mut stream).await, (19, past.told.tokens[19]));

    let give = async |epoch: u64, tokens: &[u32]| {
        let body = serde_json::to_string(&PromptRequest { epoch, tokens: tokens.to_vec() }).unwrap();
        send(&b.base, "POST", &format!("sessions/{id}/prompt"), &body).await
    };
    let right = past.job.prompt.clone();
    let mut other = right.clone();
    other[3] ^= 1;
    let mut tail = right.clone();
    tail[PROMPT - 1] ^= 1;
    for wrong in [&other[..], &tail, &right[..PROMPT - 1], &[], &[right.clone(), vec![1]].concat()] {
        assert_eq!(give(2, wrong).await.problem(), (422, "kvsp-invalid-checkpoint".into()));
    }
    assert_eq!(give(1, &right).await.problem(), (409, "kvsp-stale-epoch".into()));
    assert_eq!(give(3, &right).await.problem(), (409, "kvsp-unknown-epoch".into()));
    assert_eq!(give(2, &right).await.status, 202);
    assert_eq!(give(2, &right).await.status, 202, "a repeat");
    let told = read_all(&mut stream, 20, 2, |_| {}).await;
    assert_eq!((&told.tokens[..], &told.done), (&past.told.tokens[20..], &past.told.done));
    assert_eq!(tokens(&b, id, 0).await.needs, None);
    assert_eq!(b.metric("kvsp_instance_prompt_tokens_computed_total").await, PROMPT as u64);
}

/// The last token of the prompt is in a block, so nobody can tell its logits without the prompt.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_prompt_of_whole_blocks_is_needed_before_the_first_token() {
    let past = Past::of(32, json!({"temperature": 0.8, "seed": 5})).await;
    let b = past.instance().await;
    let none = cut(&past.checkpoint, 9, 0);
    assert_eq!(resume(&b, 2, &none, OUTPUT).await.needs, Some(Needs::Prompt));
    let prompt = PromptRequest { epoch: 2, tokens: past.job.prompt.clone() };
    client().give_prompt(&b.base, none.session, &prompt).await.unwrap();
    let told = read_all(&mut tokens(&b, none.session, 0).await, 0, 2, |_| {}).await;
    assert_eq!(told.tokens, past.told.tokens);
    // With one token it is not needed.
    known_before(&past, 10, 1).await;
    past.go_on(&b, 10, 1, 0).await;
}

/// A holder that lies, or hangs: nothing of it enters the engine, and the stream that runs ends so that its
/// reader comes again and is told of the prompt.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn blocks_that_turn_out_to_be_broken_are_asked_for_as_a_prompt() {
    let past = Past::sampled().await;
    let c = past.instance().await;
    past.go_on(&c, 50, 0, 0).await;
    let prefix = c.prefix(&past.job.prompt).await;
    for (n, behaviour) in [Behaviour::CorruptUnderItsDigest, Behaviour::HangInBody].into_iter().enumerate() {
        let index = Index::start().await;
        let hostile = Hostile::start(&prefix).await;
        hostile.behave(behaviour);
        index.record(&prefix, hostile.base()).await;
        let mut setup = setup(&past.controller, Some(&index));
        setup.agent.max_load_ms = 700;
        let b = Instance::start(setup).await;
        let checkpoint = known_before(&past, 60 + n as u128, 20).await;
        let id = checkpoint.session;
        resume(&b, 2, &checkpoint, OUTPUT).await;
        let mut stream = tokens(&b, id, 20).await;
        if stream.needs.is_none() {
            assert!(stream.next().await.is_none(), "a stream without the header ends");
            stream = tokens(&b, id, 20).await;
        }
        assert_eq!(stream.needs, Some(Needs::Prompt), "{behaviour:?}");
        let prompt = PromptRequest { epoch: 2, tokens: past.job.prompt.clone() };
        client().give_prompt(&b.base, id, &prompt).await.unwrap();
        let told = read_all(&mut stream, 20, 2, |_| {}).await;
        assert_eq!(told.tokens, past.told.tokens[20..], "{behaviour:?}");
    }
}

/// The instance that was lost may still be listed as a source, and answer nothing: the next source is tried long
/// before the load is given up.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn silent_sources_give_way_to_the_next() {
    let past = Past::sampled().await;
    let mut setup = setup(&past.controller, Some(&past.index));
    setup.agent.max_load_ms = 20_000;
    let b = Instance::start(setup).await;
    let c = past.instance().await;
    past.go_on(&c, 69, 0, 0).await;
    let prefix = c.prefix(&past.job.prompt).await;
    c.running.stop().await.unwrap();
    let mut silent = Vec::new();
    for behaviour in [Behaviour::HangBeforeAnswer, Behaviour::HangInBody, Behaviour::HangBeforeAnswer] {
        let hostile = Hostile::start(&prefix).await;
        hostile.behave(behaviour);
        past.index.record(&prefix, hostile.base()).await;
        silent.push(hostile);
    }
    known_before(&past, 70, 20).await;
    past.go_on(&b, 70, 20, 0).await;
    assert_eq!(b.metric("kvsp_session_prompts_needed_total").await, 0);
}

/// Sessions whose prompts nobody here knows take pages from each other, and go on from the host tier, or from
/// the holder where that has forgotten the blocks too.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sessions_known_by_their_keys_survive_the_loss_of_their_pages() {
    // 9 blocks of prompt and 50 tokens: 13 pages each, of which they share most, and there are some 20.
    let past = Past::of(16 * 9 + 5, json!({"temperature": 0.9, "seed": 21})).await;
    for host_octets in [64 << 20, 600 << 10] {
        let mut setup = setup(&past.controller, Some(&past.index));
        setup.pool_octets = 20 * 16 * 1024;
        setup.host_octets = host_octets;
        setup.agent.max_unacked_tokens = 1;
        let b = Instance::start(setup).await;
        let mut running = tokio::task::JoinSet::new();
        let mut checkpoints = Vec::new();
        for n in 0..12_u128 {
            let id = 100 + n + u128::from(host_octets);
            checkpoints.push(known_before(&past, id, 3 + 3 * usize::try_from(n).unwrap()).await);
        }
        // Each holds what it has, a page of its own at least, until all are there and the pool is too small.
        past.controller.does(Does::Break);
        for checkpoint in checkpoints {
            resume(&b, 2, &checkpoint, OUTPUT).await;
            let (base, prompt) = (b.base.clone(), past.job.prompt.clone());
            running.spawn(async move {
                loop {
                    let mut stream = client().tokens(&base, checkpoint.session, 0).await.unwrap();
                    if stream.needs.is_some() {
                        let prompt = PromptRequest { epoch: 2, tokens: prompt.clone() };
                        client().give_prompt(&base, checkpoint.session, &prompt).await.unwrap();
                    }
                    let told = read_all(&mut stream, 0, 2, |_| {}).await;
                    if told.done.is_some() {
                        return told;
                    }
                }
            });
        }
        eventually("a pool that is too small", async || {
            (b.metric("kvsp_instance_preemptions_total").await > 0).then_some(())
        })
        .await;
        past.controller.does(Does::Acknowledge);
        while let Some(told) = running.join_next().await {
            assert_eq!(told.unwrap().tokens, past.told.tokens);
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_resume_is_idempotent_and_a_lower_epoch_is_stale() {
    let past = Past::sampled().await;
    let b = past.instance().await;
    let checkpoint = known_before(&past, 9, 20).await;
    let id = checkpoint.session;
    for _ in 0..3 {
        resume(&b, 3, &checkpoint, OUTPUT).await;
    }
    read_all(&mut tokens(&b, id, 0).await, 0, 3, |_| {}).await;
    resume(&b, 3, &checkpoint, OUTPUT).await;
    assert_eq!(b.metric("kvsp_sessions_resumed_total").await, 1);
    let old = json!({"epoch": 2, "checkpoint": checkpoint});
    let stale = send(&b.base, "POST", &format!("sessions/{id}/resume"), &old.to_string()).await;
    assert_eq!(stale.problem(), (409, "kvsp-stale-epoch".into()));
    // A higher one takes its place, from an earlier checkpoint or a later one.
    resume(&b, 4, &checkpoint, 30).await;
    let told = read_all(&mut tokens(&b, id, 0).await, 0, 4, |_| {}).await;
    assert_eq!((&told.tokens[..], told.done.as_deref()), (&past.told.tokens[..30], Some("length")));
}

/// A front end that was told of the epoch before this instance was: what it began makes way for the checkpoint.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_resume_takes_the_place_of_a_request_that_came_too_early() {
    let past = Past::sampled().await;
    let b = past.instance().await;
    let checkpoint = known_before(&past, 9, 20).await;
    let early = Job::new(9, past.job.prompt.clone(), 4000).sampling(json!({"seed": 99})).at(2);
    let mut wrong = early.start(&b).await;
    resume(&b, 2, &checkpoint, OUTPUT).await;
    assert_eq!(read_all(&mut wrong, 0, 2, |_| {}).await.done, None);
    let told = read_all(&mut early.start(&b).await, 0, 2, |_| {}).await;
    assert_eq!((told.tokens, told.done), (past.told.tokens, past.told.done));
}

/// Without a limit a session goes on to the end of the context, and one that was complete ends at once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_limit_on_tokens_holds_over_a_resume() {
    let past = Past::sampled().await;
    let b = past.instance().await;
    let checkpoint = known_before(&past, 9, 20).await;
    for (epoch, limit) in [(2, 20), (3, 7)] {
        resume(&b, epoch, &checkpoint, limit).await;
        let told = read_all(&mut tokens(&b, checkpoint.session, 0).await, 0, epoch, |_| {}).await;
        assert_eq!((&told.tokens[..], told.done.as_deref()), (&past.told.tokens[..20], Some("length")));
    }
    let body = json!({"epoch": 5, "checkpoint": checkpoint, "continuation": {"max_tokens": "many"}});
    let path = format!("sessions/{}/resume", checkpoint.session);
    assert_eq!(send(&b.base, "POST", &path, &body.to_string()).await.status, 202);
    let mut stream = tokens(&b, checkpoint.session, 0).await;
    for index in 0..past.told.tokens.len() {
        assert_eq!(next(&mut stream).await, (index as u64, past.told.tokens[index]));
    }
    next(&mut stream).await;
}

/// An instance that is told to stop finishes its sessions; one that drains takes none, and is not idle.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_instance_that_stops_finishes_its_sessions() {
    let past = Past::sampled().await;
    let b = past.instance().await;
    let job = Job::new(70, prompt(8, 20), 400);
    let mut stream = job.start(&b).await;
    next(&mut stream).await;
    client().put_state(&b.base, kvsp_proto::record::InstanceState::Draining).await.unwrap();
    let refused = json!({"epoch": 2, "checkpoint": cut(&past.checkpoint, 71, 5)});
    let path = format!("sessions/{}/resume", uuid::Uuid::from_u128(71));
    let refused = send(&b.base, "POST", &path, &refused.to_string()).await;
    assert_eq!(refused.problem(), (409, "kvsp-instance-not-active".into()));
    assert_eq!(
        Job::new(72, prompt(8, 20), 4).refused(&b).await.problem(),
        (409, "kvsp-instance-not-active".into())
    );
    // The same request again is the same session.
    drop(job.start(&b).await);
    b.running.token().cancel();
    let told = read_all(&mut stream, 1, 1, |_| {}).await;
    assert!(told.done.is_some(), "{} tokens and no end", told.tokens.len());
    eventually("all of it recorded", async || {
        let recorded = past.controller.recorded(job.id)?;
        (recorded.output_offset == 1 + told.tokens.len() as u64).then_some(())
    })
    .await;
}

/// While it finishes what runs it must not fall silent: its sessions would be taken away from it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_instance_that_stops_reports_until_it_has_finished() {
    let controller = Controller::gated().await;
    let mut setup = setup(&controller, None);
    setup.agent.status_ttl_ms = 150;
    let instance = Instance::start(setup).await;
    let mut stream = Job::new(73, prompt(8, 20), 40).start(&instance).await;
    controller.arrived(1).await;
    instance.running.token().cancel();
    // The first of them is that of the stop itself.
    eventually("statuses while it drains", async || (controller.draining() >= 4).then_some(())).await;
    controller.open();
    assert!(read_all(&mut stream, 0, 1, |_| {}).await.done.is_some());
}

/// Sessions of any length and sampler, cut anywhere, at once and while the blocks are still on their way to the
/// holder: whatever is found, is half there or is missing, the text is the same.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn any_session_goes_on_exactly_whatever_is_there_of_it() {
    // A session is some hundred operations.
    let operations = std::env::var("KVSP_SOAK_OPS").ok().and_then(|n| n.parse().ok()).unwrap_or(1200_u64);
    let cases = operations / 100;
    let (controller, index) = (Controller::start().await, Index::start().await);
    let holder = Holder::start(&index, 64 << 20, async |_| None).await;
    let mut setup = setup(&controller, Some(&index));
    setup.agent.holder = Some(holder.base.clone());
    // One session in two goes without its blocks at the holder.
    setup.agent.max_store_wait_ms = 0;
    setup.block_tokens = 5;
    let (a, b) = (Instance::start(setup.clone()).await, Instance::start(setup).await);
    let random = SeededRandom::new(cases);
    for case in 0..cases {
        let below = |n: u64| random.u64() % n;
        let length = usize::try_from(1 + below(60)).unwrap();
        let temperature = below(3) as f64 * 0.6;
        let sampling = match below(3) {
            0 => json!({"temperature": temperature, "seed": case}),
            1 => json!({"temperature": temperature, "seed": case, "top_k": 1 + below(50)}),
            _ => json!({"temperature": temperature, "seed": case, "top_p": 0.7}),
        };
        let max_tokens = 1 + u32::try_from(below(60)).unwrap();
        let job = Job::new(u128::from(case) + 1, prompt(case, length), max_tokens).sampling(sampling);
        let told = read_all(&mut job.start(&a).await, 0, 1, |_| {}).await;
        let count = told.tokens.len();
        if count == 0 {
            continue;
        }
        let offset = usize::try_from(below(count as u64 + 1)).unwrap();
        let checkpoint =
            cut(&controller.recorded_to(job.id, count as u64).await, 1000 + u128::from(case), offset);
        resume(&b, 2, &checkpoint, max_tokens).await;
        let from = below(offset as u64 + 1);
        let mut got = Vec::new();
        let done = loop {
            let at = from + got.len() as u64;
            let mut stream = tokens(&b, checkpoint.session, at).await;
            if stream.needs.is_some() {
                let prompt = PromptRequest { epoch: 2, tokens: job.prompt.clone() };
                client().give_prompt(&b.base, checkpoint.session, &prompt).await.unwrap();
            }
            let more = read_all(&mut stream, at, 2, |_| {}).await;
            got.extend(more.tokens);
            if more.done.is_some() {
                break more.done;
            }
        };
        assert_eq!(
            got,
            told.tokens[usize::try_from(from).unwrap()..],
            "case {case} of {cases}: {job:?} at {offset}"
        );
        assert_eq!(done, told.done, "case {case} of {cases}: {job:?} at {offset}");
    }
}
