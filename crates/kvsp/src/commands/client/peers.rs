//! Which services a command talks to: those that the user names, and only those of an index's answer that lie
//! where the user allows.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use kvsp_client::policy::{BadEntry, Denied, DestinationPolicy, HostList, LoopbackOnly};
use kvsp_client::{Client, ClientConfig};
use kvsp_proto::id::{CompatId, ScopeId};
use kvsp_proto::uri::BaseUri;

/// Flags of every command that sends requests.
#[derive(Debug, clap::Args)]
pub(crate) struct PeerArgs {
    /// Host, address or network to which requests may go although the command line does not name it; may be
    /// given several times.
    #[arg(long, value_name = "HOST|CIDR", env = "KVSP_ALLOW", value_delimiter = ',')]
    allow: Vec<String>,
    /// Milliseconds for each answer.
    #[arg(long, value_name = "MS", env = "KVSP_TIMEOUT_MS", default_value_t = 30_000)]
    timeout_ms: u64,
}

impl PeerArgs {
    /// A client that may talk to `named` and to what `--allow` lists; to this machine where a name is its own.
    ///
    /// # Errors
    /// An entry of `--allow` is no host, address or network.
    pub(crate) fn client<'a>(
        &self,
        named: impl IntoIterator<Item = &'a BaseUri>,
    ) -> Result<Client, BadEntry> {
        let named: Vec<&BaseUri> = named.into_iter().collect();
        let policy = Named {
            hosts: named.iter().map(|uri| host(uri)).collect(),
            loopback: named.iter().any(|uri| LoopbackOnly.allow(uri).is_ok()),
            allowed: HostList::new(self.allow.iter().map(String::as_str))?,
        };
        Ok(Client::new(ClientConfig {
            policy: Arc::new(policy),
            timeout: Duration::from_millis(self.timeout_ms),
            ..ClientConfig::default()
        }))
    }
}

/// Flags of every command about blocks.
#[derive(Debug, Clone, Copy, clap::Args)]
pub(super) struct SpaceArgs {
    /// The Compatibility ID: 64 lowercase hex digits.
    #[arg(long, value_name = "HEX", env = "KVSP_COMPAT")]
    pub(super) compat: CompatId,
    /// The Scope ID: 32 lowercase hex digits.
    #[arg(long, value_name = "HEX", env = "KVSP_SCOPE")]
    pub(super) scope: ScopeId,
}

struct Named {
    hosts: Vec<String>,
    loopback: bool,
    allowed: HostList,
}

impl DestinationPolicy for Named {
    fn allow(&self, uri: &BaseUri) -> Result<(), Denied> {
        if self.hosts.contains(&host(uri)) || (self.loopback && LoopbackOnly.allow(uri).is_ok()) {
            return Ok(());
        }
        self.allowed.allow(uri)
    }

    fn allow_address(&self, host: &str, address: IpAddr) -> Result<(), Denied> {
        // Wherever a name leads that the user typed, it is the user who goes there.
        if self.hosts.iter().any(|named| named == host)
            || (self.loopback && LoopbackOnly.allow_address(host, address).is_ok())
        {
            return Ok(());
        }
        self.allowed.allow_address(host, address)
    }
}

/// The host without the brackets of an IPv6 address.
fn host(uri: &BaseUri) -> String {
    let parsed: Option<http::Uri> = uri.as_str().parse().ok();
    let host = parsed.as_ref().and_then(http::Uri::host).unwrap_or_default();
    host.trim_matches(['[', ']']).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn policy(named: &str, allow: &[&str]) -> Named {
        let uri: BaseUri = named.parse().unwrap();
        Named {
            hosts: vec![host(&uri)],
            loopback: LoopbackOnly.allow(&uri).is_ok(),
            allowed: HostList::new(allow.iter().copied()).unwrap(),
        }
    }

    fn allows(policy: &Named, uri: &str) -> bool {
        policy.allow(&uri.parse().unwrap()).is_ok()
    }

    #[test]
    fn an_index_elsewhere_cannot_send_the_user_to_this_machine() {
        let policy = policy("http://index.example/kvsp/", &["10.0.0.0/8"]);
        assert!(allows(&policy, "http://index.example:7702/kvsp/"));
        assert!(allows(&policy, "http://10.1.2.3/kvsp/"));
        for uri in ["http://127.0.0.1/kvsp/", "http://192.0.2.1/", "http://[::1]/"] {
            assert!(!allows(&policy, uri), "{uri}");
        }
        assert!(policy.allow_address("index.example", "192.0.2.7".parse().unwrap()).is_ok());
        assert!(policy.allow_address("localhost", "127.0.0.1".parse().unwrap()).is_err());
        assert!(policy.allow_address("other.example", "127.0.0.1".parse().unwrap()).is_err());
    }

    #[test]
    fn an_index_on_this_machine_names_holders_on_it() {
        let policy = policy("http://[::1]:7701/kvsp/", &[]);
        assert!(allows(&policy, "http://127.0.0.1:7702/kvsp/") && allows(&policy, "http://localhost/"));
        assert!(!allows(&policy, "http://10.1.2.3/kvsp/"));
    }
}
