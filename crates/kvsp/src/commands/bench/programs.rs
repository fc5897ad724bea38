//! Servers of others, where they are installed, with settings that are thrown away afterwards.

use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use bytes::Bytes;
use tempfile::TempDir;

use super::child::{Child, free_port};
use super::error::BenchError;
use super::measure::CpuClock;
use super::wire::{Wire, redis_command};

/// A server of others in a process of its own.
pub(super) struct Program {
    child: Child,
    address: SocketAddr,
    /// Its files; deleted after it has ended.
    _dir: TempDir,
}

impl Program {
    /// Its CPU time.
    pub(super) const fn clock(&self) -> CpuClock {
        self.child.clock()
    }

    /// Where it listens.
    pub(super) const fn address(&self) -> SocketAddr {
        self.address
    }

    /// nginx that serves these files as `/0`, `/1`… out of the page cache by sendfile, one process. `None`
    /// where it is not installed.
    pub(super) fn nginx(files: &[Bytes]) -> Result<Option<Self>, BenchError> {
        const WHAT: &str = "nginx";
        let Some(program) = installed(WHAT) else { return Ok(None) };
        let (dir, address) = (temporary(WHAT)?, free_port()?);
        for (number, octets) in files.iter().enumerate() {
            fs::write(dir.path().join(number.to_string()), octets).map_err(BenchError::io(WHAT))?;
        }
        let conf = dir.path().join("nginx.conf");
        fs::write(&conf, nginx_conf(dir.path(), address)).map_err(BenchError::io(WHAT))?;
        let mut command = Command::new(program);
        command.arg("-p").arg(dir.path()).arg("-c").arg(&conf).args(["-e", "stderr"]);
        Self::start(WHAT, &mut command, dir, address).map(Some)
    }

    /// redis-server in memory alone. `None` where it is not installed.
    pub(super) fn redis() -> Result<Option<Self>, BenchError> {
        const WHAT: &str = "redis-server";
        let Some(program) = installed(WHAT) else { return Ok(None) };
        let (dir, address) = (temporary(WHAT)?, free_port()?);
        let mut command = Command::new(program);
        command.args(["--bind", "127.0.0.1", "--port", &address.port().to_string()]);
        command.args(["--save", "", "--appendonly", "no", "--daemonize", "no", "--loglevel", "warning"]);
        command.arg("--dir").arg(dir.path());
        Self::start(WHAT, &mut command, dir, address).map(Some)
    }

    fn start(
        what: &'static str,
        command: &mut Command,
        dir: TempDir,
        address: SocketAddr,
    ) -> Result<Self, BenchError> {
        let mut child = Child::spawn(what, command.stdout(Stdio::null()))?;
        child.await_port(what, address)?;
        Ok(Self { child, address, _dir: dir })
    }

    /// Stores values in a Redis server.
    pub(super) fn set<'a>(
        &self,
        values: impl IntoIterator<Item = (Vec<u8>, &'a [u8])>,
    ) -> Result<(), BenchError> {
        let mut wire = Wire::connect(self.address, AT_ONCE * OK.len())?;
        let (mut commands, mut count) = (Vec::new(), 0);
        for (key, value) in values {
            commands.extend_from_slice(&redis_command(&[b"SET", &key, value]));
            count += 1;
            if count == AT_ONCE {
                stored(&mut wire, &mut commands, &mut count)?;
            }
        }
        stored(&mut wire, &mut commands, &mut count)
    }
}

/// Commands sent before their answers are taken. All their answers fit into the socket's buffers.
const AT_ONCE: usize = 100;

fn stored(wire: &mut Wire, commands: &mut Vec<u8>, count: &mut usize) -> Result<(), BenchError> {
    wire.send(commands)?;
    commands.clear();
    let answers = wire.exact(OK.len() * std::mem::take(count))?;
    if answers.chunks(OK.len()).all(|answer| answer == OK) {
        return Ok(());
    }
    Err(BenchError::Answer("redis-server"))
}

const OK: &[u8] = b"+OK\r\n";

fn nginx_conf(dir: &Path, address: SocketAddr) -> String {
    let dir = dir.display();
    format!(
        "daemon off;
master_process off;
worker_processes 1;
pid \"{dir}/nginx.pid\";
error_log stderr crit;
events {{ worker_connections 64; }}
http {{
    access_log off;
    sendfile on;
    sendfile_max_chunk 0;
    tcp_nopush on;
    tcp_nodelay on;
    keepalive_timeout 600s;
    keepalive_requests 1000000000;
    open_file_cache max=1000 inactive=600s;
    default_type application/octet-stream;
    client_body_temp_path \"{dir}/client\";
    proxy_temp_path \"{dir}/proxy\";
    fastcgi_temp_path \"{dir}/fastcgi\";
    uwsgi_temp_path \"{dir}/uwsgi\";
    scgi_temp_path \"{dir}/scgi\";
    server {{ listen {address}; root \"{dir}\"; }}
}}
"
    )
}

fn temporary(what: &'static str) -> Result<TempDir, BenchError> {
    tempfile::Builder::new().prefix("kvsp-bench-").tempdir().map_err(BenchError::io(what))
}

/// Where a program is, on the path or where servers are.
fn installed(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let more = ["/usr/sbin", "/usr/local/sbin"].map(PathBuf::from);
    std::env::split_paths(&path).chain(more).map(|dir| dir.join(name)).find(|file| file.is_file())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_installed_is_not_found() {
        assert_eq!(installed("kvsp-no-such-program"), None);
    }
}
