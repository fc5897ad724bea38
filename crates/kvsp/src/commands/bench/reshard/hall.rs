//! Three instances that hold contexts together.

use std::time::Duration;

use kvsp_client::{Client, ClientConfig};
use kvsp_proto::container::Container;
use kvsp_proto::id::ScopeId;
use kvsp_proto::message::{MapCreate, MapId, MapView, OpenContext, Shard, TokenRange};
use kvsp_proto::registry::Codec;
use kvsp_proto::uri::BaseUri;

use super::model;
use crate::commands::bench::child::Service;
use crate::commands::bench::error::BenchError;
use crate::commands::fleet::{Change, Member, Watch, change};

/// Room for output.
const ROOM: u64 = 512;
/// Tokens of one PUT.
const PIECE: u64 = 512;
const SCOPE: ScopeId = ScopeId([0x5c; 16]);
const PATIENCE: Duration = Duration::from_secs(60);
const LOOK: Duration = Duration::from_millis(20);
const WHAT: &str = "a temporary directory";

/// A context that is split over the instances.
pub(super) struct Context {
    pub(super) map: MapId,
    pub(super) tokens: u64,
}

impl Context {
    /// A context of so many tokens.
    pub(super) fn of(tokens: u64) -> Result<Self, BenchError> {
        let map = format!("bench-{tokens}").parse().map_err(|_| BenchError::Answer("a map"))?;
        Ok(Self { map, tokens })
    }
}

pub(super) struct Hall {
    pub(super) client: Client,
    pub(super) instances: [Service; 3],
    pub(super) members: Vec<Member>,
    controller: Service,
    _index: Service,
    _dir: tempfile::TempDir,
}

impl Hall {
    /// Starts all.
    pub(super) async fn open() -> Result<Self, BenchError> {
        let dir = tempfile::Builder::new().prefix("kvsp-bench-").tempdir().map_err(BenchError::io(WHAT))?;
        let path = |name: &str| {
            dir.path().join(name).into_os_string().into_string().map_err(|_| BenchError::Answer(WHAT))
        };
        let (folder, key, state) = (path("model")?, path("scope.key")?, path("state")?);
        model::write(folder.as_ref())?;
        std::fs::write(&key, [7; 32]).map_err(BenchError::io(WHAT))?;
        let index = Service::start("the index", &["index"])?;
        let to_index = ["--index", index.base().as_str()];
        let controller = [&["controller", "--state", &state], &to_index[..]].concat();
        let controller = Service::start("the controller", &controller)?;
        let own = ["instance", "--model", &folder, "--name", "kvsp/bench", "--scope-key", &key];
        let to_controller = ["--controller", controller.base().as_str()];
        let room = ["--pool-octets", "512MiB", "--equal-hardware"];
        let args = [&own[..], &to_index, &to_controller, &room].concat();
        let start = || Service::start("an instance", &args);
        let instances = [start()?, start()?, start()?];
        let member =
            |service: &Service| Member { base: service.base().clone(), admin: service.admin().clone() };
        let members = instances.iter().map(member).collect();
        let client = Client::new(ClientConfig { idle_timeout: PATIENCE, ..ClientConfig::default() });
        let hall = Self { client, instances, members, controller, _index: index, _dir: dir };
        hall.active().await?;
        Ok(hall)
    }

    async fn active(&self) -> Result<(), BenchError> {
        let waiting = async {
            while self.client.instances(self.controller.base()).await?.instances.len() < self.members.len() {
                tokio::time::sleep(LOOK).await;
            }
            Ok(())
        };
        tokio::time::timeout(PATIENCE, waiting).await.map_err(|_| BenchError::Late("the instances"))?
    }

    /// Creates the map of a context, over all three in equal parts.
    pub(super) async fn create(&self, context: &Context) -> Result<MapView, BenchError> {
        let status = self.client.status(self.leader()).await?;
        let compat = status.compat_ids.and_then(|ids| ids.first().copied());
        let create = MapCreate {
            map: None,
            version: None,
            compat_id: compat.ok_or(BenchError::Answer("an instance"))?,
            scope_id: SCOPE,
            session: None,
            shards: self.split(context, 3)?,
        };
        Ok(self.client.create_map(self.controller.base(), &context.map, &create).await?)
    }

    /// Stores every position of a context with its owner, as a leader would.
    pub(super) async fn fill(&self, context: &Context) -> Result<(), BenchError> {
        let MapView { version, shards, compat_id, scope_id, session, .. } = self.create(context).await?;
        let (map, length) = (&context.map, context.tokens);
        let open = OpenContext {
            version,
            epoch: 0,
            length,
            certain: None,
            shards: shards.clone(),
            compat_id,
            scope_id,
            session,
        };
        for member in &self.members {
            self.client.open_context(&member.base, map, &open).await?;
        }
        for shard in shards {
            for range in pieces(shard.tokens.start()..shard.tokens.end().min(length))? {
                let octets = container(range)?.bytes().clone();
                let stored = self.client.put_tokens(&shard.instance, map, version, 0, (range, octets));
                stored.await?;
            }
        }
        Ok(())
    }

    /// A context in equal parts over the first of the instances and the last: over all, or without the second.
    pub(super) fn split(&self, context: &Context, over: u64) -> Result<Vec<Shard>, BenchError> {
        let [a, b, c] = &self.instances;
        let who = if over == 3 { vec![a, b, c] } else { vec![a, c] };
        let cut = |n: u64| if n == over { context.tokens + ROOM } else { context.tokens * n / over };
        let shard = |(n, service): (u64, &Service)| {
            let tokens = TokenRange::new(cut(n), cut(n + 1)).map_err(|_| BenchError::Answer("a range"))?;
            Ok(Shard { tokens, instance: service.base().clone() })
        };
        (0..).zip(who).map(shard).collect()
    }

    pub(super) async fn view(&self, context: &Context) -> Result<MapView, BenchError> {
        Ok(self.client.map(self.controller.base(), &context.map).await?)
    }

    /// Splits a context anew.
    pub(super) async fn reshard(&self, context: &Context, over: u64) -> Result<Change, BenchError> {
        let watch =
            Watch { client: &self.client, controller: self.controller.base(), members: &self.members };
        Ok(change(&watch, &self.view(context).await?, self.split(context, over)?, PATIENCE).await?)
    }

    /// Ends a context, so that its memory is free.
    pub(super) async fn end(&self, context: &Context) -> Result<(), BenchError> {
        Ok(self.client.end_map(self.controller.base(), &context.map).await?)
    }

    /// Who has the last part and leads.
    pub(super) fn leader(&self) -> &BaseUri {
        self.instances[2].base()
    }

    /// Who holds the middle part and lets go of it.
    pub(super) fn source(&self) -> &BaseUri {
        self.instances[1].base()
    }
}

fn pieces(range: std::ops::Range<u64>) -> Result<Vec<TokenRange>, BenchError> {
    let starts = range.clone().step_by(PIECE as usize);
    let piece = |start: u64| {
        TokenRange::new(start, range.end.min(start + PIECE)).map_err(|_| BenchError::Answer("a range"))
    };
    starts.map(piece).collect()
}

/// K and V of these positions: finite numbers of two octets, different everywhere.
fn container(range: TokenRange) -> Result<Container, BenchError> {
    let tokens = u32::try_from(range.tokens()).map_err(|_| BenchError::Answer("a range"))?;
    let octets = tokens as usize * model::LAYER_TOKEN_OCTETS;
    let mut state = range.start() + 1;
    let mut section = || -> Vec<u8> {
        let elements = std::iter::repeat_with(|| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            // Exponents below that of 1.
            ((state as u16) & 0xbbff).to_le_bytes()
        });
        elements.take(octets / 2).flatten().collect()
    };
    let sections: Vec<_> = (0..model::layers()).map(|_| (section(), section())).collect();
    Ok(Container::build(Codec::RAW, 0, tokens, &sections)?)
}
