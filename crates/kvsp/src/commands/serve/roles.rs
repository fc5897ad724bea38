//! Building and running services, one or all.

use std::future::Future;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use kvsp_agent::AgentParts;
use kvsp_blocks::BlocksDeps;
use kvsp_client::{Client, ClientConfig};
use kvsp_engine::{EngineInfo, Tokenizer};
use kvsp_gateway::{GatewayModel, GatewayParts};
use kvsp_holder::HolderConfig;
use kvsp_llama::Prepared;
use kvsp_net::auth::Development;
use kvsp_net::clock::{Clock, SystemClock};
use kvsp_net::metrics::Metrics;
use kvsp_net::random::{Random, SystemRandom};
use kvsp_net::service::{Bound, ServeError, Service, ServiceConfig};
use kvsp_proto::block_key::ScopeKey;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::StartError;
use super::args::RoleName;
use super::model::{Model, engine, own_scope_key, scope_keys};
use super::ready::{Starting, announce};
use crate::config::FileConfig;
use crate::signals::StopSignals;

/// What services take from outside; tests and simulations inject other ones.
#[derive(Clone)]
struct Surroundings {
    clock: Arc<dyn Clock>,
    random: Arc<dyn Random>,
    client: Client,
}

type Serving = Pin<Box<dyn Future<Output = Result<(), ServeError>> + Send>>;

/// Services that run together, in the order in which they were started; they stop in the reverse order, so
/// that a holder can withdraw its replicas from an index that still listens.
struct Fleet {
    around: Surroundings,
    service: ServiceConfig,
    started: Vec<Starting>,
    running: Vec<(CancellationToken, tokio::task::JoinHandle<Result<(), ServeError>>)>,
    ended: JoinSet<()>,
}

/// Run a role until SIGTERM or SIGINT.
pub(super) async fn run(role: RoleName, config: FileConfig, json: bool) -> Result<(), StartError> {
    let mut fleet = Fleet::new(config.service.clone());
    match role {
        RoleName::Index => fleet.index(&config).await?,
        RoleName::Holder => fleet.holder(&config).await?,
        RoleName::Controller => fleet.controller(&config).await?,
        RoleName::Instance => {
            let model = needed(&config)?;
            let scopes = scope_keys(&config.model.scope_keys)?;
            let prepared = prepare(&model)?;
            fleet.instance(&config, prepared, model.tokenizer()?, scopes).await?;
        }
        RoleName::Gateway => {
            if config.gateway.controller.is_none() {
                return Err(StartError::Usage("a gateway needs --controller URI".into()));
            }
            let model = needed(&config)?;
            let scope = scope_keys(&config.model.scope_keys)?.into_iter().next();
            fleet.gateway(&config, prepare(&model)?.info(), model.tokenizer()?, scope).await?;
        }
        RoleName::All => fleet.all(config).await?,
    }
    fleet.run(role == RoleName::All, json).await
}

fn needed(config: &FileConfig) -> Result<Model, StartError> {
    Model::of(&config.model)?.ok_or_else(|| {
        StartError::Usage("this role needs --model PATH (and --name NAME), or --model tiny".into())
    })
}

fn prepare(model: &Model) -> Result<Prepared, StartError> {
    // Digesting takes seconds, and nothing else runs yet that it could hold up.
    Ok(tokio::task::block_in_place(|| model.prepare())?)
}

impl Fleet {
    fn new(service: ServiceConfig) -> Self {
        let around = Surroundings {
            clock: Arc::new(SystemClock::new()),
            random: Arc::new(SystemRandom),
            client: Client::new(ClientConfig::default()),
        };
        Self { around, service, started: Vec::new(), running: Vec::new(), ended: JoinSet::new() }
    }

    /// Bind the next service. With a fixed port the services of one process take consecutive ones.
    async fn bind(&mut self, role: &'static str) -> Result<(Bound, Arc<AtomicBool>), StartError> {
        let mut config = self.service.clone();
        let nth = u16::try_from(self.started.len()).unwrap_or(u16::MAX);
        for address in [&mut config.listen, &mut config.admin_listen] {
            *address = nth_port(*address, nth)?;
        }
        if self.started.is_empty() {
            tracing::warn!(
                insecure = config.insecure,
                "development mode: no credentials are configured, every caller may do everything"
            );
        }
        let authenticator = if config.insecure { Development::insecure() } else { Development::new() };
        let bound = Service::bind(config, Arc::new(authenticator)).await?;
        let ready = Arc::new(AtomicBool::new(false));
        self.started.push(Starting { role, base: bound.base(), admin: bound.admin(), ready: ready.clone() });
        Ok((bound, ready))
    }

    fn spawn(&mut self, serve: impl FnOnce(CancellationToken) -> Serving) {
        let stop = CancellationToken::new();
        let task = tokio::spawn(serve(stop.clone()));
        self.running.push((stop, task));
    }

    async fn index(&mut self, config: &FileConfig) -> Result<(), StartError> {
        let (bound, ready) = self.bind("index").await?;
        let (config, around) = (config.index.clone(), self.around.clone());
        let deps = kvsp_index::Deps { clock: around.clock, random: around.random, metrics: Metrics::new() };
        self.spawn(|stop| Box::pin(kvsp_index::serve(config, bound, deps, set(ready), stop)));
        Ok(())
    }

    async fn holder(&mut self, config: &FileConfig) -> Result<(), StartError> {
        let (bound, ready) = self.bind("holder").await?;
        let (config, around) = (HolderConfig { blocks: config.holder.clone() }, self.around.clone());
        let deps = BlocksDeps {
            client: around.client,
            clock: around.clock,
            random: around.random,
            metrics: Metrics::new(),
        };
        self.spawn(|stop| Box::pin(kvsp_holder::serve(config, bound, deps, set(ready), stop)));
        Ok(())
    }

    async fn controller(&mut self, config: &FileConfig) -> Result<(), StartError> {
        let (bound, ready) = self.bind("controller").await?;
        let (config, around) = (config.controller.clone(), self.around.clone());
        let deps = kvsp_controller::Deps {
            client: around.client,
            clock: around.clock,
            random: around.random,
            metrics: Metrics::new(),
        };
        self.spawn(|stop| Box::pin(kvsp_controller::serve(config, bound, deps, set(ready), stop)));
        Ok(())
    }

    async fn instance(
        &mut self,
        config: &FileConfig,
        model: Prepared,
        tokenizer: Arc<dyn Tokenizer>,
        scopes: Vec<Arc<ScopeKey>>,
    ) -> Result<(), StartError> {
        let (bound, ready) = self.bind("instance").await?;
        let around = self.around.clone();
        let parts = AgentParts {
            engine: engine(model),
            tokenizer,
            scopes,
            blocks: config.instance_blocks.clone(),
            client: around.client,
            clock: around.clock,
            random: around.random,
        };
        let config = config.instance.clone();
        self.spawn(|stop| Box::pin(kvsp_agent::serve(config, bound, parts, set(ready), stop)));
        Ok(())
    }

    async fn gateway(
        &mut self,
        config: &FileConfig,
        model: &EngineInfo,
        tokenizer: Arc<dyn Tokenizer>,
        scope: Option<Arc<ScopeKey>>,
    ) -> Result<(), StartError> {
        let (bound, ready) = self.bind("gateway").await?;
        let around = self.around.clone();
        let parts = GatewayParts {
            model: GatewayModel {
                descriptor: model.descriptor.clone(),
                tokenizer,
                max_context: model.max_context,
            },
            scope,
            // A first token can take as long as the prompt is long; the instance sends keep-alives meanwhile.
            client: around.client,
            random: around.random,
        };
        let config = config.gateway.clone();
        self.spawn(|stop| Box::pin(kvsp_gateway::serve(config, bound, parts, set(ready), stop)));
        Ok(())
    }

    /// The base URI of a service that was started.
    fn base_of(&self, role: &str) -> Option<kvsp_proto::uri::BaseUri> {
        self.started.iter().find(|s| s.role == role).map(|s| s.base.clone())
    }

    /// All roles, each told where the others are; without a model no instance and no gateway.
    async fn all(&mut self, mut config: FileConfig) -> Result<(), StartError> {
        self.index(&config).await?;
        let index = self.base_of("index");
        config.holder.index.clone_from(&index);
        config.controller.index.clone_from(&index);
        config.instance.index.clone_from(&index);
        config.instance_blocks.index = index;
        self.holder(&config).await?;
        self.controller(&config).await?;
        config.instance.holder = self.base_of("holder");
        let controller = self.base_of("controller");
        config.instance.controller.clone_from(&controller);
        config.gateway.controller = controller;
        let Some(model) = Model::of(&config.model)? else { return Ok(()) };
        let mut scopes = scope_keys(&config.model.scope_keys)?;
        if scopes.is_empty() {
            scopes.extend(own_scope_key(self.around.random.as_ref()));
        }
        let prepared = prepare(&model)?;
        let info = prepared.info().clone();
        let tokenizer = model.tokenizer()?;
        let scope = scopes.first().cloned();
        self.instance(&config, prepared, tokenizer.clone(), scopes).await?;
        self.gateway(&config, &info, tokenizer, scope).await
    }

    /// Announce, wait for the wish to stop or for a service that ends by itself, and stop all in order.
    async fn run(mut self, together: bool, json: bool) -> Result<(), StartError> {
        let failed = CancellationToken::new();
        let mut tasks = Vec::new();
        for (stop, task) in self.running {
            let failed = failed.clone();
            let (ended, outcome) = tokio::sync::oneshot::channel();
            self.ended.spawn(async move {
                let result = task.await.unwrap_or_else(|error| Err(ServeError::from(error)));
                failed.cancel();
                // The receiver lives until the end of `run`.
                let _ = ended.send(result);
            });
            tasks.push((stop, outcome));
        }
        let mut signals = StopSignals::new()?;
        let served = async {
            announce(&self.started, together, json).await?;
            std::future::pending::<std::io::Result<()>>().await
        };
        tokio::select! {
            announced = served => announced?,
            () = signals.asked() => {}
            () = failed.cancelled() => {}
        }
        let mut result = Ok(());
        for (stop, outcome) in tasks.into_iter().rev() {
            stop.cancel();
            if let Ok(Err(error)) = outcome.await {
                result = Err(error.into());
            }
        }
        result
    }
}

/// A port `n` above a fixed one; any free port stays any free port.
fn nth_port(address: SocketAddr, n: u16) -> Result<SocketAddr, StartError> {
    if address.port() == 0 {
        return Ok(address);
    }
    let port = address.port().checked_add(n).ok_or_else(|| {
        StartError::Usage(format!("the ports after {} run out; choose a lower one", address.port()))
    })?;
    Ok(SocketAddr::new(address.ip(), port))
}

fn set(ready: Arc<AtomicBool>) -> impl FnOnce() + Send {
    move || ready.store(true, Ordering::Release)
}
