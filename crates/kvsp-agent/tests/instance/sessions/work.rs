//! What tests of sessions have in common.

use bytes::Bytes;
use http::Request;
use kvsp_client::TokenStream;
use kvsp_engine::Tokenizer as _;
use kvsp_llama::ModelSource;
use kvsp_proto::message::{ResumeAnswer, ResumeRequest, TokenEvent};
use kvsp_proto::record::SessionCheckpoint;
use serde_json::{Value, json};
use uuid::Uuid;

use super::controller::Controller;
use crate::support::{Answer, Index, Instance, MODEL, PATIENCE, Setup, client, scope, send};

/// How a session samples.
#[derive(Debug, Clone)]
pub(super) struct Job {
    pub(super) id: Uuid,
    pub(super) epoch: u64,
    pub(super) prompt: Vec<u32>,
    pub(super) max_tokens: u32,
    pub(super) sampling: Value,
}

impl Job {
    pub(super) fn new(id: u128, prompt: Vec<u32>, max_tokens: u32) -> Self {
        let sampling = json!({"temperature": 0.8, "seed": 11});
        Self { id: Uuid::from_u128(id), epoch: 1, prompt, max_tokens, sampling }
    }

    pub(super) fn sampling(self, sampling: Value) -> Self {
        Self { sampling, ..self }
    }

    pub(super) fn at(self, epoch: u64) -> Self {
        Self { epoch, ..self }
    }

    fn body(&self) -> Value {
        let mut body = self.sampling.clone();
        body["model"] = MODEL.into();
        body["prompt"] = self.prompt.clone().into();
        body["max_tokens"] = self.max_tokens.into();
        body["stream"] = true.into();
        body
    }

    pub(super) fn request(&self) -> Request<Bytes> {
        Request::post("/")
            .header("content-type", "application/json")
            .header("kvsp-session", self.id.to_string())
            .header("kvsp-session-epoch", self.epoch.to_string())
            .header("kvsp-scope-id", scope().to_string())
            .body(self.body().to_string().into())
            .unwrap()
    }

    /// Begins the session.
    pub(super) async fn start(&self, instance: &Instance) -> TokenStream {
        let answer = client().forward(&instance.base, "v1/completions", self.request()).await.unwrap();
        let (head, body) = answer.into_parts();
        assert_eq!(head.status, 200);
        TokenStream::new(&head.headers, body).unwrap()
    }

    /// Begins the session where that is refused.
    pub(super) async fn refused(&self, instance: &Instance) -> Answer {
        let answer = client().forward(&instance.base, "v1/completions", self.request()).await.unwrap();
        let (head, mut body) = answer.into_parts();
        let mut octets = Vec::new();
        while let Some(chunk) = body.chunk().await.unwrap() {
            octets.extend_from_slice(&chunk);
        }
        Answer { status: head.status.as_u16(), headers: head.headers, body: octets.into() }
    }

    /// The same request without a session.
    pub(super) async fn plain(&self, instance: &Instance) -> (String, u64) {
        let mut body = self.body();
        body["stream"] = false.into();
        let answer = send(&instance.base, "POST", "v1/completions", &body.to_string()).await;
        let answer = answer.json();
        let text = answer["choices"][0]["text"].as_str().unwrap().to_owned();
        (text, answer["usage"]["completion_tokens"].as_u64().unwrap())
    }
}

/// Everything that a stream has to say.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Told {
    pub(super) tokens: Vec<u32>,
    /// Absent where the stream ended without one.
    pub(super) done: Option<String>,
    pub(super) reused: u64,
}

/// Reads a stream to its end, checking indices and epochs. `see` is shown each index.
pub(super) async fn read_all(
    stream: &mut TokenStream,
    from: u64,
    epoch: u64,
    mut see: impl FnMut(u64),
) -> Told {
    let mut told = Told { tokens: Vec::new(), done: None, reused: 0 };
    while let Some(event) = in_time(stream.next()).await {
        match event.unwrap() {
            TokenEvent::Token { index, epoch: at, token, .. } => {
                assert_eq!((index, at), (from + told.tokens.len() as u64, epoch));
                see(index);
                told.tokens.push(token);
            }
            TokenEvent::Done { done, epoch: at, reused } => {
                assert_eq!((at, &told.done), (Some(epoch), &None));
                (told.done, told.reused) = (Some(done), reused.unwrap());
            }
        }
    }
    told
}

async fn in_time<T>(event: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, event).await.expect("the stream is not silent for ever")
}

/// The next token.
pub(super) async fn next(stream: &mut TokenStream) -> (u64, u32) {
    match in_time(stream.next()).await.expect("the stream goes on").unwrap() {
        TokenEvent::Token { index, token, .. } => (index, token),
        done @ TokenEvent::Done { .. } => panic!("{done:?} where a token was expected"),
    }
}

pub(super) async fn tokens(instance: &Instance, id: Uuid, from: u64) -> TokenStream {
    client().tokens(&instance.base, id, from).await.unwrap()
}

/// The text of output tokens.
pub(super) fn text(tokens: &[u32]) -> String {
    kvsp_llama::tokenizer(&ModelSource::Tiny { seed: 0 }).unwrap().decode(tokens).unwrap()
}

/// Resumes a session at an instance, with so many tokens at most.
pub(super) async fn resume(
    instance: &Instance,
    epoch: u64,
    checkpoint: &SessionCheckpoint,
    max_tokens: u32,
) -> ResumeAnswer {
    let request = ResumeRequest {
        epoch,
        checkpoint: checkpoint.clone(),
        continuation: Some(json!({"max_tokens": max_tokens, "front_end": {}})),
        map: None,
    };
    client().resume(&instance.base, checkpoint.session, &request).await.unwrap()
}

/// The checkpoint as it was, or would have been, after `offset` tokens.
pub(super) fn cut(checkpoint: &SessionCheckpoint, id: u128, offset: usize) -> SessionCheckpoint {
    let mut cut = checkpoint.clone();
    cut.session = Uuid::from_u128(id);
    cut.generated.truncate(offset);
    cut.output_offset = offset as u64;
    cut.sampler.step = offset as u64;
    cut
}

/// An instance under a controller.
pub(super) async fn instance(controller: &Controller, index: Option<&Index>) -> Instance {
    Instance::start(setup(controller, index)).await
}

pub(super) fn setup(controller: &Controller, index: Option<&Index>) -> Setup {
    let mut setup = index.map_or_else(Setup::default, Setup::at);
    setup.agent.controller = Some(controller.base());
    setup
}
