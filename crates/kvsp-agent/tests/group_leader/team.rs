//! Three instances and a desk, maps over them, and answers led by one of them.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use http::Request;
use kvsp_client::{StreamedBody, TokenStream};
use kvsp_core::reshard::{Copies, instances_of, plan_for};
use kvsp_proto::message::{
    LengthRequest, MapId, MapView, PendingReshard, Phase, ReshardMessage, ReshardPlan, ResumeAnswer,
    ResumeRequest, Shard, TokenEvent, TokenRange,
};
use kvsp_proto::record::SessionCheckpoint;
use kvsp_proto::uri::BaseUri;
use serde_json::{Value, json};
use tokio::runtime::Runtime;
use uuid::Uuid;

use crate::desk::Desk;
use crate::support::{
    Answer as HttpAnswer, Instance, MODEL, PATIENCE, Setup, client, eventually, scope, send,
};

/// The team.
pub(crate) struct Team {
    pub(crate) desk: Desk,
    pub(crate) instances: Vec<Instance>,
    /// Numbers the plans.
    attempts: AtomicU64,
}

/// A split: where each shard ends, and whose it is.
pub(crate) type Split<'a> = &'a [(u64, usize)];

impl Team {
    pub(crate) async fn of(members: usize) -> Self {
        let desk = Desk::start().await;
        let mut team = Self { desk, instances: Vec::new(), attempts: AtomicU64::new(1) };
        for _ in 0..members {
            team.join().await;
        }
        team
    }

    pub(crate) fn setup(&self) -> Setup {
        let mut setup = Setup { pool_octets: 8 << 20, ..Setup::default() };
        setup.agent.controller = Some(self.desk.base());
        // Several chunks in a prompt of some hundred tokens.
        setup.agent.chunk_tokens = 48;
        setup
    }

    pub(crate) async fn join(&mut self) {
        let instance = Instance::start(self.setup()).await;
        self.instances.push(instance);
    }

    /// An instance on threads of its own, which can be ended at once like a process.
    pub(crate) async fn join_apart(&mut self) -> Apart {
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let instance = runtime.spawn(Instance::start(self.setup())).await.unwrap();
        self.instances.push(instance);
        Apart(Some(runtime))
    }

    pub(crate) fn base(&self, member: usize) -> BaseUri {
        self.instances[member].base.clone()
    }

    pub(crate) fn shards(&self, split: Split<'_>) -> Vec<Shard> {
        let mut start = 0;
        let mut shard = |&(end, member): &(u64, usize)| {
            let tokens = TokenRange::new(start, end).unwrap();
            start = end;
            Shard { tokens, instance: self.base(member) }
        };
        split.iter().map(&mut shard).collect()
    }

    /// Version 1 of a map, which nobody but the desk knows yet.
    pub(crate) fn map(&self, map: &MapId, session: Option<Uuid>, split: Split<'_>) {
        self.desk.publish(MapView {
            map: map.clone(),
            version: 1,
            shards: self.shards(split),
            compat_id: self.instances[0].compat(),
            scope_id: scope(),
            session,
            attempt: None,
            pending: None,
        });
    }

    /// A session over a map of its own.
    pub(crate) fn session(&self, id: u128, split: Split<'_>) -> Job {
        let id = Uuid::from_u128(id);
        self.map(&id.into(), Some(id), split);
        Job { id, epoch: 1 }
    }

    /// Has the desk say that a change to these shards is open; its number.
    pub(crate) fn announce(&self, map: &MapId, shards: &[Shard]) -> Option<u64> {
        let view = self.desk.view(map);
        let attempt = Some(self.attempts.fetch_add(1, Ordering::SeqCst));
        let (to, shards) = (view.version + 1, shards.to_vec());
        let pending = PendingReshard { to, shards, phase: Phase::Preparing, acks: Vec::new(), attempt };
        self.desk.publish(MapView { pending: Some(pending), ..view });
        attempt
    }

    /// Prepares the next version as the controller does; what is left to decide.
    pub(crate) async fn prepare(
        &self,
        map: &MapId,
        leader: usize,
        split: Split<'_>,
        lost: &[usize],
    ) -> Pending {
        let view = self.desk.view(map);
        let shards = self.shards(split);
        let to = view.version + 1;
        let attempt = self.announce(map, &shards);
        let request = LengthRequest { to, shards: shards.clone() };
        let asked = client().context_length(&self.base(leader), map, view.version, &request).await;
        let length = asked.map(|answer| answer.length).ok();
        let lost = lost.iter().map(|member| self.base(*member)).collect();
        let copies = Copies { shards: &view.shards, spare: &[], lost: &lost };
        let members: Vec<BaseUri> = instances_of(&view.shards)
            .union(&instances_of(&shards))
            .filter(|m| !lost.contains(m))
            .cloned()
            .collect();
        for member in &members {
            let parts = plan_for(member, copies, &shards);
            let plan = ReshardPlan {
                map: map.clone(),
                from: view.version,
                to,
                deadline_ms: 20_000,
                retain: parts.retain,
                fetch: parts.fetch,
                release: parts.release,
                rebuild: parts.rebuild,
                length,
                shards: shards.clone(),
                compat_id: Some(view.compat_id),
                scope_id: Some(view.scope_id),
                session: view.session,
                attempt,
            };
            client().tell_reshard(member, &ReshardMessage::Plan(Box::new(plan))).await.unwrap();
        }
        Pending { next: MapView { version: to, shards, attempt, ..view }, members }
    }

    /// Decides for the next version, and tells it.
    pub(crate) async fn commit(&self, pending: Pending) {
        let Pending { next, members } = pending;
        let (map, version, attempt) = (next.map.clone(), next.version, next.attempt);
        self.desk.publish(next);
        for member in &members {
            let commit = ReshardMessage::Commit { map: map.clone(), version, attempt, keep: Vec::new() };
            client().tell_reshard(member, &commit).await.unwrap();
        }
    }

    /// Decides for it, and tells it to all but one; what is left to tell.
    pub(crate) async fn commit_but(&self, pending: Pending, late: usize) -> Pending {
        let late = self.base(late);
        let (late, soon) = pending.members.into_iter().partition(|member| *member == late);
        self.commit(Pending { next: pending.next.clone(), members: soon }).await;
        Pending { next: pending.next, members: late }
    }

    /// Decides against it, and tells it.
    pub(crate) async fn abort(&self, pending: Pending) {
        let Pending { next, members } = pending;
        self.desk.publish(MapView { pending: None, ..self.desk.view(&next.map) });
        for member in &members {
            let abort = ReshardMessage::Abort {
                map: next.map.clone(),
                version: next.version,
                attempt: next.attempt,
                keep: Vec::new(),
            };
            client().tell_reshard(member, &abort).await.unwrap();
        }
    }

    /// Has all members forget the context of a session.
    pub(crate) async fn end(&self, job: &Job) {
        for instance in &self.instances {
            client().end_map(&instance.base, &job.map()).await.unwrap();
        }
    }

    /// Tokens that a member holds of a map, in all layers; none where it does not know it.
    pub(crate) async fn held(&self, member: usize, map: &MapId) -> Option<Vec<TokenRange>> {
        let view = client().held(&self.base(member), map).await.ok()?;
        Some(view.held)
    }

    /// Positions computed so far, of prompts or again.
    pub(crate) async fn computed(&self) -> u64 {
        let mut all = 0;
        for instance in &self.instances {
            all += instance.metric("kvsp_instance_prompt_tokens_computed_total").await;
        }
        all
    }

    /// A greedy completion without a session over a map: text, tokens, and those of the prompt that were reused.
    pub(crate) async fn ask(
        &self,
        leader: usize,
        map: &MapId,
        prompt: &[u32],
        max_tokens: u32,
    ) -> (String, u64, u64) {
        let answer = self.try_ask(leader, map.as_str(), prompt, max_tokens).await;
        assert_eq!(answer.status, 200, "{answer:?}");
        let answer = answer.json();
        let usage = &answer["usage"];
        (
            answer["choices"][0]["text"].as_str().unwrap().to_owned(),
            usage["completion_tokens"].as_u64().unwrap(),
            usage["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap_or_default(),
        )
    }

    pub(crate) async fn try_ask(
        &self,
        leader: usize,
        map: &str,
        prompt: &[u32],
        max_tokens: u32,
    ) -> HttpAnswer {
        let request = over(map, prompt, max_tokens, false);
        let answer = client().forward(&self.base(leader), "v1/completions", request).await.unwrap();
        let (head, mut body) = answer.into_parts();
        let mut octets = Vec::new();
        while let Some(chunk) = body.chunk().await.unwrap() {
            octets.extend_from_slice(&chunk);
        }
        HttpAnswer { status: head.status.as_u16(), headers: head.headers, body: octets.into() }
    }

    /// A greedy completion over a map, as a stream; it is cancelled where that is dropped.
    pub(crate) async fn stream(
        &self,
        leader: usize,
        map: &MapId,
        prompt: &[u32],
        max_tokens: u32,
    ) -> StreamedBody {
        let request = over(map.as_str(), prompt, max_tokens, true);
        let answer = client().forward(&self.base(leader), "v1/completions", request).await.unwrap();
        assert_eq!(answer.status(), 200);
        answer.into_body()
    }

    /// Waits until an instance leads nothing.
    pub(crate) async fn leads_nothing(&self, member: usize) {
        eventually("that nothing is led", async || {
            (self.instances[member].metric("kvsp_group_contexts_led").await == 0).then_some(())
        })
        .await;
    }

    /// Waits until an instance keeps no memory for contexts.
    pub(crate) async fn nothing_kept(&self, member: usize) {
        eventually("that nothing is kept", async || {
            let text = send(&self.instances[member].admin, "GET", "metrics", "").await.body;
            let text = String::from_utf8(text.to_vec()).unwrap();
            let line = |name: &str| {
                text.lines().find_map(|l| l.strip_prefix(name)?.strip_prefix(' ')?.parse::<f64>().ok())
            };
            (line("kvsp_instance_kv_utilization")? == 0.0).then_some(())
        })
        .await;
    }
}

/// The runtime of one instance.
pub(crate) struct Apart(Option<Runtime>);

impl Apart {
    /// Ends it as a crash does.
    pub(crate) fn kill(mut self) {
        self.shut();
    }

    fn shut(&mut self) {
        if let Some(runtime) = self.0.take() {
            runtime.shutdown_background();
        }
    }
}

impl Drop for Apart {
    fn drop(&mut self) {
        self.shut();
    }
}

/// A change that is prepared.
pub(crate) struct Pending {
    pub(crate) next: MapView,
    members: Vec<BaseUri>,
}

/// A session over a split context.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Job {
    pub(crate) id: Uuid,
    pub(crate) epoch: u64,
}

impl Job {
    pub(crate) fn map(&self) -> MapId {
        self.id.into()
    }

    /// Begins it.
    pub(crate) async fn start(&self, leader: &Instance, prompt: &[u32], max_tokens: u32) -> Answer {
        self.start_with(leader, prompt, max_tokens, json!({"temperature": 0})).await
    }

    pub(crate) async fn start_with(
        &self,
        leader: &Instance,
        prompt: &[u32],
        max_tokens: u32,
        mut body: Value,
    ) -> Answer {
        body["model"] = MODEL.into();
        body["prompt"] = prompt.into();
        body["max_tokens"] = max_tokens.into();
        body["stream"] = true.into();
        let request = Request::post("/")
            .header("content-type", "application/json")
            .header("kvsp-session", self.id.to_string())
            .header("kvsp-session-epoch", self.epoch.to_string())
            .header("kvsp-scope-id", scope().to_string())
            .header("kvsp-map", self.map().to_string())
            .body(Bytes::from(body.to_string()))
            .unwrap();
        let answer = client().forward(&leader.base, "v1/completions", request).await.unwrap();
        let (head, body) = answer.into_parts();
        assert_eq!(head.status, 200);
        Answer { stream: TokenStream::new(&head.headers, body).unwrap(), tokens: Vec::new() }
    }

    /// Has another instance go on with it from a checkpoint.
    pub(crate) async fn resume(
        &self,
        leader: &Instance,
        checkpoint: &SessionCheckpoint,
        max_tokens: u32,
    ) -> (ResumeAnswer, Answer) {
        let request = ResumeRequest {
            epoch: self.epoch,
            checkpoint: checkpoint.clone(),
            continuation: Some(json!({"max_tokens": max_tokens})),
            map: Some(self.map()),
        };
        let answer = client().resume(&leader.base, self.id, &request).await.unwrap();
        let stream = client().tokens(&leader.base, self.id, 0).await.unwrap();
        (answer, Answer { stream, tokens: Vec::new() })
    }
}

/// An answer under way.
pub(crate) struct Answer {
    stream: TokenStream,
    pub(crate) tokens: Vec<u32>,
}

impl Answer {
    async fn next(&mut self) -> Option<TokenEvent> {
        let event = tokio::time::timeout(PATIENCE, self.stream.next()).await;
        Some(event.expect("the stream is not silent for ever")?.unwrap())
    }

    /// Reads until there are so many tokens.
    pub(crate) async fn until(&mut self, tokens: usize) {
        while self.tokens.len() < tokens {
            match self.next().await {
                Some(TokenEvent::Token { index, token, .. }) => {
                    assert_eq!(index, self.tokens.len() as u64);
                    self.tokens.push(token);
                }
                other => panic!("{other:?} after {} tokens", self.tokens.len()),
            }
        }
    }

    /// Reads to the end; why it ended and how many prompt tokens were reused, where it did not break off.
    pub(crate) async fn end(&mut self) -> Option<(String, u64)> {
        loop {
            match self.next().await? {
                TokenEvent::Token { index, token, .. } => {
                    assert_eq!(index, self.tokens.len() as u64);
                    self.tokens.push(token);
                }
                TokenEvent::Done { done, reused, .. } => return Some((done, reused.unwrap())),
            }
        }
    }
}

/// A moment, for tests that want something to have happened or not.
pub(crate) const MOMENT: Duration = Duration::from_millis(50);

/// A greedy completion over a map, without a session.
fn over(map: &str, prompt: &[u32], max_tokens: u32, stream: bool) -> Request<Bytes> {
    let body = json!({
        "model": MODEL, "prompt": prompt, "max_tokens": max_tokens, "temperature": 0, "stream": stream,
    });
    Request::post("/")
        .header("content-type", "application/json")
        .header("kvsp-map", map)
        .body(Bytes::from(body.to_string()))
        .unwrap()
}
