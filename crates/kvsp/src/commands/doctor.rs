//! `kvsp doctor`: whether this machine, and the services that are named, have what KVSP needs.

mod machine;
mod services;

use std::fmt;
use std::path::PathBuf;
use std::process::ExitCode;

use kvsp_proto::uri::BaseUri;
use serde_json::{Value, json};

use super::client::PeerArgs;
use super::stdout;

/// Check this machine and the services that are named.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:
  kvsp doctor --disk-dir blocks --index http://127.0.0.1:7701/kvsp/ --holder http://127.0.0.1:7702/kvsp/

Exit status 1 where something is wrong; a warning is not.")]
pub(crate) struct DoctorArgs {
    /// Directory of a disk tier.
    #[arg(long, value_name = "DIR", env = "KVSP_DISK_DIR")]
    disk_dir: Option<PathBuf>,
    /// The Index Service.
    #[arg(long, value_name = "URI", env = "KVSP_INDEX")]
    index: Option<BaseUri>,
    /// The Placement Controller.
    #[arg(long, value_name = "URI", env = "KVSP_CONTROLLER")]
    controller: Option<BaseUri>,
    /// A holder.
    #[arg(long, value_name = "URI", env = "KVSP_HOLDER")]
    holder: Option<BaseUri>,
    /// An instance.
    #[arg(long, value_name = "URI")]
    instance: Option<BaseUri>,
    /// The gateway.
    #[arg(long, value_name = "URI")]
    gateway: Option<BaseUri>,
    #[command(flatten)]
    peers: PeerArgs,
}

/// How a check ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Verdict {
    Ok,
    /// It works, but not as well as it could.
    Warning,
    Wrong,
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Ok => "ok",
            Self::Warning => "warning",
            Self::Wrong => "wrong",
        })
    }
}

/// One check and what it found.
#[derive(Debug, Clone)]
struct Check {
    name: String,
    verdict: Verdict,
    detail: String,
}

impl Check {
    fn new(name: impl Into<String>, verdict: Verdict, detail: impl Into<String>) -> Self {
        Self { name: name.into(), verdict, detail: detail.into() }
    }

    /// Wrong where `found` is an error.
    fn of<E: fmt::Display>(name: impl Into<String>, found: Result<String, E>) -> Self {
        match found {
            Ok(detail) => Self::new(name, Verdict::Ok, detail),
            Err(error) => Self::new(name, Verdict::Wrong, error.to_string()),
        }
    }
}

impl DoctorArgs {
    /// Check everything and print one line a check.
    pub(crate) fn run(self, json: bool) -> ExitCode {
        let mut checks = machine::checks(self.disk_dir.as_deref());
        let services = [
            ("index", self.index),
            ("controller", self.controller),
            ("holder", self.holder),
            ("instance", self.instance),
            ("gateway", self.gateway),
        ];
        let services: Vec<(&str, BaseUri)> =
            services.into_iter().filter_map(|(role, base)| Some((role, base?))).collect();
        match self.peers.client(services.iter().map(|(_, base)| base)) {
            Ok(client) => checks.extend(services::checks(&client, &services)),
            Err(error) => {
                eprintln!("kvsp doctor: --allow: {error}");
                return ExitCode::from(2);
            }
        }
        let healthy = checks.iter().all(|check| check.verdict != Verdict::Wrong);
        let told =
            if json { stdout::print(&to_json(&checks, healthy)) } else { stdout::print(&to_text(&checks)) };
        if healthy && told.is_ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
    }
}

fn to_text(checks: &[Check]) -> String {
    let lines = checks.iter().map(|c| format!("{:<8} {:<15} {}", c.verdict, c.name, c.detail));
    lines.collect::<Vec<_>>().join("\n")
}

fn to_json(checks: &[Check], healthy: bool) -> Value {
    let checks: Vec<Value> = checks
        .iter()
        .map(|check| {
            let verdict = check.verdict.to_string();
            json!({ "check": check.name, "verdict": verdict, "detail": check.detail })
        })
        .collect();
    json!({ "ok": healthy, "checks": checks })
}
