//! The ready line (profile section 10).

use std::io::Write as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use kvsp_proto::uri::BaseUri;
use serde_json::{Map, Value, json};

/// A service that is being started.
pub(super) struct Starting {
    pub(super) role: &'static str,
    pub(super) base: BaseUri,
    pub(super) admin: BaseUri,
    pub(super) ready: Arc<AtomicBool>,
}

/// Wait until every service takes requests, then say so in one line on stdout.
pub(super) async fn announce(services: &[Starting], together: bool, json: bool) -> std::io::Result<()> {
    while !services.iter().all(|s| s.ready.load(Ordering::Acquire)) {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let line = if json {
        line_json(services, together).to_string()
    } else {
        let parts: Vec<String> =
            services.iter().map(|s| format!("{} {} (admin {})", s.role, s.base, s.admin)).collect();
        format!("ready: {}", parts.join(", "))
    };
    let mut out = std::io::stdout().lock();
    writeln!(out, "{line}")?;
    out.flush()
}

fn line_json(services: &[Starting], together: bool) -> Value {
    let mut line = Map::from_iter([("ready".to_owned(), Value::Bool(true))]);
    if together {
        let admin: Map<String, Value> =
            services.iter().map(|s| (s.role.to_owned(), s.admin.as_str().into())).collect();
        for service in services {
            line.insert(service.role.to_owned(), service.base.as_str().into());
        }
        line.insert("admin".to_owned(), admin.into());
    } else if let Some(service) = services.first() {
        line.insert("base".to_owned(), json!(service.base.as_str()));
        line.insert("admin".to_owned(), json!(service.admin.as_str()));
    }
    Value::Object(line)
}
