//! Where outgoing requests may go (profile section 4).
//!
//! A peer that names a URI (a record's holder, a directive's source) must not be able to make this process
//! talk to whatever it likes. The policy sees the URI before anything is resolved, and then every address of
//! the host before one of them is connected to; so a name that resolves elsewhere than it should is caught.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv6Addr};
use std::str::FromStr;

use kvsp_proto::uri::BaseUri;
use url::Host;

/// A destination is forbidden (`kvsp-source-forbidden`, where a peer named it).
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("policy forbids requests to {destination}")]
pub struct Denied {
    /// The host or address.
    pub destination: String,
}

impl Denied {
    fn new(destination: &dyn std::fmt::Display) -> Self {
        Self { destination: destination.to_string() }
    }
}

/// Decides where requests may go.
pub trait DestinationPolicy: Send + Sync + 'static {
    /// Whether a request to this URI may be tried.
    ///
    /// # Errors
    /// [`Denied`].
    fn allow(&self, uri: &BaseUri) -> Result<(), Denied>;

    /// Whether `host`, allowed before, may be reached at this address of it.
    ///
    /// # Errors
    /// [`Denied`].
    fn allow_address(&self, host: &str, address: IpAddr) -> Result<(), Denied>;
}

/// Plaintext development mode: this machine alone.
#[derive(Debug, Clone, Copy, Default)]
pub struct LoopbackOnly;

impl DestinationPolicy for LoopbackOnly {
    fn allow(&self, uri: &BaseUri) -> Result<(), Denied> {
        match host_of(uri)? {
            Host::Domain(name) if name == "localhost" => Ok(()),
            Host::Domain(name) => Err(Denied::new(&name)),
            Host::Ipv4(address) => self.allow_address("", address.into()),
            Host::Ipv6(address) => self.allow_address("", address.into()),
        }
    }

    fn allow_address(&self, _host: &str, address: IpAddr) -> Result<(), Denied> {
        if address.to_canonical().is_loopback() { Ok(()) } else { Err(Denied::new(&address)) }
    }
}

/// A network in CIDR notation, or a single address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Network {
    address: IpAddr,
    prefix: u8,
}

impl Network {
    fn contains(self, other: IpAddr) -> bool {
        match (self.address, other) {
            (IpAddr::V4(own), IpAddr::V4(other)) => {
                let mask = u32::MAX.checked_shl(32 - u32::from(self.prefix)).unwrap_or(0);
                (u32::from(own) ^ u32::from(other)) & mask == 0
            }
            (IpAddr::V6(own), IpAddr::V6(other)) => {
                let mask = u128::MAX.checked_shl(128 - u32::from(self.prefix)).unwrap_or(0);
                (u128::from(own) ^ u128::from(other)) & mask == 0
            }
            _ => false,
        }
    }
}

/// An entry of a [`HostList`] is neither a host name, nor an address, nor a network.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a host name, an address or a network")]
pub struct BadEntry(pub String);

impl FromStr for Network {
    type Err = BadEntry;

    fn from_str(text: &str) -> Result<Self, BadEntry> {
        let bad = || BadEntry(text.to_owned());
        let (address, prefix) = match text.split_once('/') {
            Some((address, prefix)) => (address, Some(prefix)),
            None => (text, None),
        };
        let address: IpAddr = address.trim_matches(['[', ']']).parse().map_err(|_| bad())?;
        let widest = if address.is_ipv4() { 32 } else { 128 };
        let prefix = prefix.map_or(Ok(widest), |p| p.parse().map_err(|_| bad()))?;
        if prefix > widest { Err(bad()) } else { Ok(Self { address, prefix }) }
    }
}

/// Hosts by name and networks. A name's addresses may be anywhere but at loopback; an address, or a host that
/// is not listed by name, must lie in a listed network. Link-local, metadata, multicast and unspecified
/// addresses are never allowed.
#[derive(Debug, Clone, Default)]
pub struct HostList {
    names: BTreeSet<String>,
    networks: Vec<Network>,
}

impl HostList {
    /// The list of these names, addresses and networks (`h1.example`, `10.0.0.7`, `fd00::/8`).
    ///
    /// # Errors
    /// [`BadEntry`] names the first entry that is none of them.
    pub fn new<'a>(entries: impl IntoIterator<Item = &'a str>) -> Result<Self, BadEntry> {
        let mut list = Self::default();
        for entry in entries {
            if let Ok(network) = entry.parse() {
                list.networks.push(network);
            } else if let Ok(Host::Domain(name)) = Host::parse(entry) {
                list.names.insert(name);
            } else {
                return Err(BadEntry(entry.to_owned()));
            }
        }
        Ok(list)
    }

    fn in_network(&self, address: IpAddr) -> bool {
        self.networks.iter().any(|network| network.contains(address))
    }
}

impl DestinationPolicy for HostList {
    fn allow(&self, uri: &BaseUri) -> Result<(), Denied> {
        match host_of(uri)? {
            // Whether it lies in a listed network is known once it is resolved.
            Host::Domain(name) if self.names.contains(&name) || !self.networks.is_empty() => Ok(()),
            Host::Domain(name) => Err(Denied::new(&name)),
            Host::Ipv4(address) => self.allow_address("", address.into()),
            Host::Ipv6(address) => self.allow_address("", address.into()),
        }
    }

    fn allow_address(&self, host: &str, address: IpAddr) -> Result<(), Denied> {
        let address = address.to_canonical();
        let by_name = self.names.contains(host) && (!address.is_loopback() || host == "localhost");
        if !is_never_a_peer(address) && (by_name || self.in_network(address)) {
            return Ok(());
        }
        Err(Denied::new(&address))
    }
}

/// Addresses at which no peer lives, but a cloud's metadata service may.
fn is_never_a_peer(address: IpAddr) -> bool {
    /// The metadata service of one cloud has a unique local address.
    const METADATA: Ipv6Addr = Ipv6Addr::new(0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x254);
    if address.is_unspecified() || address.is_multicast() {
        return true;
    }
    match address {
        IpAddr::V4(v4) => v4.is_link_local() || v4.is_broadcast() || v4.octets() == [100, 100, 100, 200],
        IpAddr::V6(v6) => v6.is_unicast_link_local() || v6 == METADATA,
    }
}

fn host_of(uri: &BaseUri) -> Result<Host<String>, Denied> {
    let url = url::Url::parse(uri.as_str()).map_err(|_| Denied::new(uri))?;
    url.host().map(|host| host.to_owned()).ok_or_else(|| Denied::new(uri))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn allows(policy: &dyn DestinationPolicy, uri: &str) -> bool {
        policy.allow(&uri.parse().unwrap()).is_ok()
    }

    #[test]
    fn development_stays_on_this_machine() {
        for uri in ["http://localhost:1/", "http://127.0.0.1/", "http://127.1.2.3/kvsp/", "http://[::1]:9/"] {
            assert!(allows(&LoopbackOnly, uri), "{uri}");
        }
        for uri in [
            "http://h1.example/",
            "http://10.0.0.1/",
            "http://[::2]/",
            "http://localhost.example/",
            "http://0.0.0.0/",
        ] {
            assert!(!allows(&LoopbackOnly, uri), "{uri}");
        }
        assert!(LoopbackOnly.allow_address("localhost", "::ffff:127.0.0.1".parse().unwrap()).is_ok());
        assert!(LoopbackOnly.allow_address("localhost", "10.0.0.1".parse().unwrap()).is_err());
    }

    #[test]
    fn a_list_names_hosts_and_networks() {
        let list = HostList::new(["H1.example", "10.1.0.0/16", "fd00::/8"]).unwrap();
        for uri in ["http://h1.example/", "http://10.1.2.3/", "http://[fd12::1]/"] {
            assert!(allows(&list, uri), "{uri}");
        }
        for uri in
            ["http://10.2.0.1/", "http://[fe80::1]/", "http://[fd00:ec2::254]/", "http://169.254.169.254/"]
        {
            assert!(!allows(&list, uri), "{uri}");
        }
        // An unlisted name is judged by where it leads, a listed one may lead anywhere but here.
        let address = |text: &str| text.parse::<IpAddr>().unwrap();
        assert!(list.allow_address("other.example", address("10.1.9.9")).is_ok());
        assert!(list.allow_address("other.example", address("192.0.2.1")).is_err());
        assert!(list.allow_address("h1.example", address("192.0.2.1")).is_ok());
        assert!(list.allow_address("h1.example", address("127.0.0.1")).is_err());
        assert!(list.allow_address("h1.example", address("::ffff:169.254.169.254")).is_err());
    }

    #[test]
    fn everything_may_be_listed_but_not_reached() {
        let all = HostList::new(["0.0.0.0/0", "::/0"]).unwrap();
        assert!(allows(&all, "http://192.0.2.1/") && allows(&all, "http://any.example/"));
        for address in ["169.254.169.254", "0.0.0.0", "224.0.0.1", "255.255.255.255", "fe80::1", "ff02::1"] {
            assert!(all.allow_address("any.example", address.parse().unwrap()).is_err(), "{address}");
        }
        for bad in ["10.0.0.0/33", "a b", "", "::/129"] {
            assert!(HostList::new([bad]).is_err(), "{bad}");
        }
    }
}
