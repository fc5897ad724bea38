//! What happens in the demo, in order.

use std::time::Duration;

use kvsp_client::{Client, ClientConfig};
use kvsp_proto::record::InstanceState;
use kvsp_proto::uri::BaseUri;

use super::ask::{Answer, ask, metric};
use super::report::{Report, Row};
use super::second;
use super::third;
use super::{DemoArgs, DemoError};
use crate::commands::failover::{self, Question};
use crate::commands::fleet::{Cast, CastModel, Fleet};
use crate::progress;

/// The document that comes with the program, and questions about it.
const DOCUMENT: &str = include_str!("../../../../../docs/demo/handbook.md");
const QUESTIONS: &str = include_str!("../../../../../docs/demo/questions.txt");
/// Characters of a short document.
const SHORT: usize = 1600;
/// Tokens of a block: small, so that little of the prompt's tail is left to compute.
const BLOCK_TOKENS: u64 = 16;
/// How long something that takes a moment may take.
const PATIENCE: Duration = Duration::from_secs(30);
/// How often the demo looks whether it has happened.
const LOOK: Duration = Duration::from_millis(50);

/// Output tokens of the later acts with the tiny model, which is so fast that fewer would be over at once.
const TINY_TOKENS: u32 = 400;

struct Stage {
    client: Client,
    controller: BaseUri,
    gateway: BaseUri,
    model: String,
    document: String,
    max_tokens: u32,
}

/// Start the fleet and tell the story.
pub(super) async fn tell(args: &DemoArgs, fleet: &mut Fleet) -> Result<Report, DemoError> {
    let tiny = args.model == "tiny";
    let document = document(args, tiny)?;
    let mut questions = QUESTIONS.lines().filter(|line| !line.is_empty());
    let (first, second) =
        (questions.next().unwrap_or("What is this?"), questions.next().unwrap_or("Who says so?"));
    let client =
        Client::new(ClientConfig { idle_timeout: Duration::from_secs(60), ..ClientConfig::default() });

    let spinner = progress::spinner("starting index, holder, controller, two instances and a gateway".into());
    let name = args.name.clone().unwrap_or_else(|| if tiny { "kvsp/tiny".into() } else { String::new() });
    let model = CastModel { path: &args.model, name: &name, block_tokens: BLOCK_TOKENS };
    let mut cast = Cast::start(fleet, model).await?;
    let (controller, gateway) = (cast.controller.base.clone(), cast.gateway.base.clone());
    let (a, b, index_admin) = (cast.a.base.clone(), cast.b.base.clone(), cast.index.admin.clone());
    let (a_admin, b_admin) = (cast.a.admin.clone(), cast.b.admin.clone());
    spinner.finish_and_clear();

    let stage = Stage { client, controller, gateway, model: name, document, max_tokens: args.max_tokens };
    let mut report = Report::new(args.short || tiny);

    stage.serve_with(&a, &b).await?;
    let cold = stage.question("A computes the prompt", first).await?;
    report.add(Row::new("A, cold", first, &cold));
    stage.published(&index_admin, &cold).await?;

    stage.serve_with(&b, &a).await?;
    let computed = metric(&stage.client, &b_admin, "kvsp_instance_prompt_tokens_computed_total").await?;
    let warm = stage.question("B answers with A's cache", first).await?;
    report.add(Row::new("B, warm", first, &warm));
    let metric_b = |name: &'static str| metric(&stage.client, &b_admin, name);
    report.octets_fetched = metric_b("kvsp_prefetch_octets_fetched_total").await?;
    report.octets_verified = metric_b("kvsp_prefetch_octets_verified_total").await?;
    report.tokens_computed_by_b =
        metric_b("kvsp_instance_prompt_tokens_computed_total").await?.saturating_sub(computed);

    let again_b = stage.question("B answers another question", second).await?;
    report.add(Row::new("B, warm", second, &again_b));
    stage.serve_with(&a, &b).await?;
    let again_a = stage.question("A answers the same", second).await?;
    report.add(Row::new("A, warm", second, &again_a));
    report.mismatches = metric(&stage.client, &a_admin, "kvsp_prefetch_digest_mismatches_total").await?
        + metric(&stage.client, &b_admin, "kvsp_prefetch_digest_mismatches_total").await?;
    report.conclude(&cold, &warm, &[(&cold, &warm), (&again_b, &again_a)], BLOCK_TOKENS);

    stage.serve_with_both(&a, &b).await?;
    let max_tokens = if tiny { TINY_TOKENS } else { stage.max_tokens };
    let asked = (stage.document.as_str(), first);
    let second = second::play(&stage.failover(), fleet, &stage.model, asked, max_tokens).await?;
    let survivor = if *second.struck() == a { cast.b.clone() } else { cast.a.clone() };
    report.add_second(second);

    let asked = Question {
        model: stage.model.clone(),
        text: format!("{}\n\nQuestion: {first}", stage.document),
        max_tokens,
        temperature: 0.0,
        seed: 0,
    };
    report.add_third(third::play(&stage.failover(), fleet, &mut cast, survivor, &asked).await?);
    Ok(report)
}

fn document(args: &DemoArgs, tiny: bool) -> Result<String, DemoError> {
    let text = match &args.document {
        Some(path) => std::fs::read_to_string(path).map_err(DemoError::io(path.display().to_string()))?,
        None => DOCUMENT.to_owned(),
    };
    // The tiny model has a token an octet and a context to match.
    Ok(if args.short || tiny { text.chars().take(SHORT).collect() } else { text })
}

impl Stage {
    async fn question(&self, what: &str, question: &str) -> Result<Answer, DemoError> {
        let spinner = progress::spinner(format!("{what}: {question}"));
        let answer =
            ask(&self.client, &self.gateway, &self.model, &self.document, question, self.max_tokens).await;
        spinner.finish_and_clear();
        answer
    }

    /// Make one instance the only one that takes requests.
    async fn serve_with(&self, active: &BaseUri, other: &BaseUri) -> Result<(), DemoError> {
        wait("both instances' first status", async || {
            Ok(self.client.instances(&self.controller).await?.instances.len() == 2)
        })
        .await?;
        self.client.put_instance_state(&self.controller, active, InstanceState::Active).await?;
        self.client.put_instance_state(&self.controller, other, InstanceState::Draining).await?;
        wait("the change of the active instance", async || {
            let list = self.client.instances(&self.controller).await?.instances;
            let is_active = |uri: &BaseUri| {
                list.iter().any(|i| i.status.instance == *uri && i.status.state == InstanceState::Active)
            };
            Ok(is_active(active) && !is_active(other))
        })
        .await
    }

    /// Have both instances take requests.
    async fn serve_with_both(&self, a: &BaseUri, b: &BaseUri) -> Result<(), DemoError> {
        for instance in [a, b] {
            self.client.put_instance_state(&self.controller, instance, InstanceState::Active).await?;
        }
        wait("both instances to be active", async || {
            let list = self.client.instances(&self.controller).await?.instances;
            Ok(list.iter().filter(|i| i.status.state == InstanceState::Active).count() == 2)
        })
        .await
    }

    fn failover(&self) -> failover::Stage {
        failover::Stage {
            client: self.client.clone(),
            controller: self.controller.clone(),
            gateway: self.gateway.clone(),
        }
    }

    /// Wait until the index has both replicas, the instance's and the holder's, of every block of an answer.
    async fn published(&self, index_admin: &BaseUri, answer: &Answer) -> Result<(), DemoError> {
        // The last token of an answer was not computed on.
        let tokens = (answer.prompt_tokens + answer.completion_tokens).saturating_sub(1);
        let replicas = tokens / BLOCK_TOKENS * 2;
        wait("the publication of the prompt's blocks", async || {
            Ok(metric(&self.client, index_admin, "kvsp_index_replicas").await? >= replicas)
        })
        .await
    }
}

pub(super) async fn wait(
    what: &'static str,
    happened: impl AsyncFn() -> Result<bool, DemoError>,
) -> Result<(), DemoError> {
    let waiting = async {
        while !happened().await? {
            tokio::time::sleep(LOOK).await;
        }
        Ok(())
    };
    tokio::time::timeout(PATIENCE, waiting).await.map_err(|_| DemoError::Late(what))?
}
