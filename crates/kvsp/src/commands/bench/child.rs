//! Processes that serve the bench, so that their CPU time can be told from its own.

use std::io::{BufRead as _, BufReader};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use kvsp_proto::uri::BaseUri;
use nix::unistd::Pid;
use serde_json::Value;

use super::error::BenchError;
use super::measure::CpuClock;

/// How long a process may take until it serves.
const START: Duration = Duration::from_secs(20);
/// Between two looks whether it does.
const LOOK: Duration = Duration::from_millis(2);

/// A process that ends when this is dropped.
#[derive(Debug)]
pub(super) struct Child {
    process: std::process::Child,
    clock: CpuClock,
}

impl Child {
    /// Starts a program.
    pub(super) fn spawn(what: &'static str, command: &mut Command) -> Result<Self, BenchError> {
        let process =
            command.stdin(Stdio::null()).stderr(Stdio::null()).spawn().map_err(BenchError::io(what))?;
        // A process id is positive and fits.
        let clock = CpuClock::of(Pid::from_raw(i32::try_from(process.id()).unwrap_or(i32::MAX)))?;
        Ok(Self { process, clock })
    }

    /// Its CPU time.
    pub(super) const fn clock(&self) -> CpuClock {
        self.clock
    }

    /// The first line on its stdout.
    fn first_line(&mut self, what: &'static str) -> Result<String, BenchError> {
        let stdout = self.process.stdout.take().ok_or(BenchError::Ended(what))?;
        let mut line = String::new();
        BufReader::new(stdout).read_line(&mut line).map_err(BenchError::io(what))?;
        if line.is_empty() { Err(BenchError::Ended(what)) } else { Ok(line) }
    }

    /// Waits until it accepts connections.
    pub(super) fn await_port(&mut self, what: &'static str, address: SocketAddr) -> Result<(), BenchError> {
        let start = Instant::now();
        while TcpStream::connect(address).is_err() {
            let ended = self.process.try_wait().map_err(BenchError::io(what))?.is_some();
            if ended || start.elapsed() > START {
                return Err(BenchError::Ended(what));
            }
            std::thread::sleep(LOOK);
        }
        Ok(())
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// A port of loopback that nobody listened on a moment ago.
pub(super) fn free_port() -> Result<SocketAddr, BenchError> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).map_err(BenchError::io("a free port"))?;
    listener.local_addr().map_err(BenchError::io("a free port"))
}

/// This program in another process, without the settings that its environment may have for other purposes.
fn this_program(what: &'static str, args: &[&str]) -> Result<Child, BenchError> {
    let program = std::env::current_exe().map_err(BenchError::io(what))?;
    let mut command = Command::new(program);
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("KVSP_") {
            command.env_remove(name);
        }
    }
    Child::spawn(what, command.args(args).stdout(Stdio::piped()))
}

/// A service of ours in a process of its own.
#[derive(Debug)]
pub(super) struct Service {
    child: Child,
    base: BaseUri,
    admin: BaseUri,
}

impl Service {
    /// Starts `kvsp serve` with these arguments on a free port, and waits until it is ready.
    pub(super) fn start(what: &'static str, args: &[&str]) -> Result<Self, BenchError> {
        let mut child = this_program(what, &[&["serve", "--json", "--exit-with-parent"], args].concat())?;
        let ready: Value = serde_json::from_str(&child.first_line(what)?).unwrap_or_default();
        let uri = |member: &str| ready[member].as_str().and_then(|uri| uri.parse().ok());
        let (base, admin) = uri("base").zip(uri("admin")).ok_or(BenchError::Answer(what))?;
        Ok(Self { child, base, admin })
    }

    /// Its CPU time.
    pub(super) const fn clock(&self) -> CpuClock {
        self.child.clock()
    }

    /// Its base URI.
    pub(super) const fn base(&self) -> &BaseUri {
        &self.base
    }

    /// The base URI of its administration listener.
    pub(super) const fn admin(&self) -> &BaseUri {
        &self.admin
    }
}

/// The address in a base URI of loopback.
pub(super) fn address_of(base: &BaseUri) -> Result<SocketAddr, BenchError> {
    let authority = base.as_str().split('/').nth(2).unwrap_or_default();
    authority.parse().map_err(|_| BenchError::Answer("the service's URI"))
}

/// One of our limits in a process of its own: see [`super::limits`].
#[derive(Debug)]
pub(super) struct Limit {
    child: Child,
    address: SocketAddr,
}

impl Limit {
    /// Starts the limit of this name and waits until it serves.
    pub(super) fn start(name: &'static str) -> Result<Self, BenchError> {
        let mut child = this_program(name, &["bench", "--limit", name])?;
        let address = child.first_line(name)?.trim().parse().map_err(|_| BenchError::Answer(name))?;
        Ok(Self { child, address })
    }

    /// Its CPU time.
    pub(super) const fn clock(&self) -> CpuClock {
        self.child.clock()
    }

    /// Where it listens.
    pub(super) const fn address(&self) -> SocketAddr {
        self.address
    }
}
