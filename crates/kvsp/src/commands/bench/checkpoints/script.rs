//! Sessions at a controller, and the requests that record their checkpoints.

use std::rc::Rc;

use kvsp_client::{Client, ClientConfig, ClientError};
use kvsp_proto::message::{CheckpointAppend, PlacementRequest};
use kvsp_proto::path;
use kvsp_proto::record::{InstanceState, InstanceStatus, SamplerState, SessionCheckpoint};
use kvsp_proto::registry::SamplerMethod;
use kvsp_proto::uri::BaseUri;
use serde_json::Map;
use tokio::runtime::{Builder, Runtime};
use uuid::Uuid;

use super::super::blocks::{COMPAT, SCOPE};
use super::super::child::Service;
use super::super::error::BenchError;
use super::super::wire::http_request;

/// Nobody listens there: the controller is told of the instance, and never has to reach it.
const INSTANCE: &str = "http://127.0.0.1:9/kvsp/";
/// Longer than a round; it is told again before each.
const STATUS_TTL_MS: u64 = 60_000;
/// Tokens of the prompt, in none of whose blocks anybody is interested.
const PROMPT: [u32; 8] = [3, 1, 4, 1, 5, 9, 2, 6];

/// For each connection its requests of one round.
#[derive(Debug)]
pub(super) struct Script(Vec<Rc<Vec<Vec<u8>>>>);

impl Script {
    /// For one connection after the other.
    pub(super) fn requests(&self) -> impl Iterator<Item = Rc<Vec<Vec<u8>>>> {
        self.0.iter().cloned()
    }
}

/// Sessions that are placed and have their first checkpoint.
pub(super) struct Sessions {
    runtime: Runtime,
    client: Client,
    controller: BaseUri,
    instance: BaseUri,
    reports: u64,
    sessions: Vec<Uuid>,
}

impl Sessions {
    /// Places so many sessions at an instance that only says that it is there.
    pub(super) fn begin(controller: &Service, count: usize) -> Result<Self, BenchError> {
        let runtime = Builder::new_current_thread().enable_all().build();
        let mut this = Self {
            runtime: runtime.map_err(BenchError::io("the sessions"))?,
            client: Client::new(ClientConfig::default()),
            controller: controller.base().clone(),
            instance: INSTANCE.parse().map_err(|_| BenchError::Differ("the instance's URI"))?,
            reports: 0,
            sessions: Vec::new(),
        };
        this.place(count)?;
        Ok(this)
    }

    /// Ends the sessions and begins as many others.
    pub(super) fn renew(&mut self) -> Result<(), BenchError> {
        let ended = std::mem::take(&mut self.sessions);
        for session in &ended {
            self.runtime.block_on(self.client.end_session(&self.controller, *session))?;
        }
        self.place(ended.len())
    }

    fn place(&mut self, count: usize) -> Result<(), BenchError> {
        self.reports += 1;
        let status = self.status();
        let (client, controller) = (&self.client, &self.controller);
        let placed = self.runtime.block_on(async {
            client.put_status(controller, &status).await?;
            let mut sessions = Vec::with_capacity(count);
            for _ in 0..count {
                let answer = client.place(controller, &placement()).await?;
                let Some(placed) = answer.session else { return Ok(None) };
                client.put_checkpoint(controller, &first(placed.session, placed.epoch)).await?;
                sessions.push(placed.session);
            }
            Ok::<_, ClientError>(Some(sessions))
        })?;
        self.sessions = placed.ok_or(BenchError::Answer("a placement with a session"))?;
        Ok(())
    }

    /// So many checkpoints of each session, each of one token more.
    pub(super) fn appends(&self, each: usize) -> Result<Script, BenchError> {
        let requests = self.sessions.iter().map(|session| {
            let path = format!("{}{}", self.controller.path(), path::session_checkpoint(*session));
            let octets = (0..each as u64).map(|offset| {
                let body =
                    serde_json::to_vec(&append(offset)).map_err(|_| BenchError::Answer("a checkpoint"))?;
                Ok(http_request("PATCH", &path, &[("content-type", path::MEDIA_JSON)], &body))
            });
            octets.collect::<Result<Vec<_>, BenchError>>().map(Rc::new)
        });
        requests.collect::<Result<_, _>>().map(Script)
    }

    fn status(&self) -> InstanceStatus {
        InstanceStatus {
            instance: self.instance.clone(),
            epoch: 1,
            state: InstanceState::Active,
            running: 0,
            queued: 0,
            batch_size: 64,
            kv_utilization: 0.0,
            prefill_tokens_per_s: 1_000.0,
            decode_tokens_per_s: 100.0,
            links: Vec::new(),
            requested_state: None,
            ttl_ms: STATUS_TTL_MS,
            seq: Some(self.reports),
            mean_service_us: None,
            compat_ids: None,
        }
    }
}

fn placement() -> PlacementRequest {
    PlacementRequest {
        scope_id: SCOPE,
        compat_id: COMPAT,
        block_keys: Vec::new(),
        tokens: PROMPT.len() as u64,
        request_ref: None,
        session: true,
        continuation: None,
        exclude: Vec::new(),
    }
}

fn first(session: Uuid, epoch: u64) -> SessionCheckpoint {
    SessionCheckpoint {
        session,
        epoch,
        compat_id: COMPAT,
        scope_id: SCOPE,
        prompt_blocks: Vec::new(),
        prompt_tail: PROMPT.to_vec(),
        generated: Vec::new(),
        output_offset: 0,
        sampler: sampler(0),
    }
}

/// The token of this output index.
fn append(offset: u64) -> CheckpointAppend {
    let token = u32::try_from(offset % 50_000).unwrap_or(0);
    CheckpointAppend { epoch: 1, from_offset: offset, append: vec![token], sampler: sampler(offset + 1) }
}

fn sampler(step: u64) -> SamplerState {
    let params = Map::from_iter([("temperature".to_owned(), 0.8.into())]);
    SamplerState { method: SamplerMethod::Multinomial, params, seed: 7, step, deterministic: false }
}
