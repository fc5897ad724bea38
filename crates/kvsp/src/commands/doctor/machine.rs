//! Checks of this machine.

use std::io::{self, Read as _, Write as _};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::path::Path;
use std::time::{Duration, Instant};

use nix::sys::resource::{Resource, getrlimit};

use super::{Check, Verdict};

/// Available memory below which a default host tier does not fit.
const COMFORTABLE_KIB: u64 = 4 << 20;
/// Open files that a listener's connections and a disk tier's files want.
const COMFORTABLE_FILES: u64 = 4096;
/// Open files without which a service soon refuses connections.
const FEWEST_FILES: u64 = 256;
/// The clock must be seen to move within this time.
const CLOCK_PATIENCE: Duration = Duration::from_millis(100);

/// All checks of this machine, of a disk tier's directory where there is one.
pub(super) fn checks(disk_dir: Option<&Path>) -> Vec<Check> {
    let mut checks = vec![cpu(), memory(), open_files(), Check::of("loopback", loopback()), clock()];
    checks.extend(disk_dir.map(|dir| {
        let found = disk(dir).map_err(|error| format!("{}: {error}", dir.display()));
        Check::of("disk directory", found)
    }));
    checks
}

/// Whether SHA-256 has instructions of its own, and vectors are wide.
fn cpu() -> Check {
    #[cfg(target_arch = "x86_64")]
    let features = [
        ("sha_ni", std::arch::is_x86_feature_detected!("sha")),
        ("avx2", std::arch::is_x86_feature_detected!("avx2")),
    ];
    #[cfg(target_arch = "aarch64")]
    let features = [("sha2", std::arch::is_aarch64_feature_detected!("sha2"))];
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    let features: [(&str, bool); 0] = [];
    let missing: Vec<&str> = features.iter().filter(|(_, has)| !has).map(|(name, _)| *name).collect();
    let named: Vec<&str> = features.iter().map(|(name, _)| *name).collect();
    if missing.is_empty() {
        return Check::new("cpu", Verdict::Ok, named.join(", "));
    }
    let detail = format!("no {}: hashing or inference will be slow", missing.join(", no "));
    Check::new("cpu", Verdict::Warning, detail)
}

fn memory() -> Check {
    let text = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let available = text.lines().find_map(|line| {
        let rest = line.strip_prefix("MemAvailable:")?.trim().strip_suffix("kB")?;
        rest.trim().parse::<u64>().ok()
    });
    match available {
        None => Check::new("memory", Verdict::Warning, "the system does not tell"),
        Some(kib) => {
            let detail = format!("{:.1} GiB available", kib as f64 / f64::from(1 << 20));
            if kib < COMFORTABLE_KIB {
                let hint = format!("{detail}: set --host-octets below the default of 4GiB");
                return Check::new("memory", Verdict::Warning, hint);
            }
            Check::new("memory", Verdict::Ok, detail)
        }
    }
}

fn open_files() -> Check {
    const NAME: &str = "open files";
    match getrlimit(Resource::RLIMIT_NOFILE) {
        Err(error) => Check::new(NAME, Verdict::Warning, format!("the limit is unknown: {error}")),
        Ok((soft, _)) if soft < FEWEST_FILES => {
            Check::new(NAME, Verdict::Wrong, format!("at most {soft}: raise it with ulimit -n"))
        }
        Ok((soft, hard)) if soft < COMFORTABLE_FILES => {
            let detail = format!("at most {soft}: ulimit -n raises it, up to {hard}");
            Check::new(NAME, Verdict::Warning, detail)
        }
        Ok((soft, _)) => Check::new(NAME, Verdict::Ok, format!("at most {soft}")),
    }
}

/// A port can be bound and reached.
fn loopback() -> io::Result<String> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let address = listener.local_addr()?;
    let mut near = TcpStream::connect(address)?;
    let (mut far, _) = listener.accept()?;
    near.write_all(b"kvsp")?;
    let mut heard = [0; 4];
    far.read_exact(&mut heard)?;
    Ok(format!("bound and reached {}", address.ip()))
}

/// Expiry and leases depend on the monotonic clock: it moves, and never back.
fn clock() -> Check {
    let start = Instant::now();
    let mut last = start;
    let mut steps = 0_u32;
    while steps < 1000 && start.elapsed() < CLOCK_PATIENCE {
        let now = Instant::now();
        if now < last {
            return Check::new("monotonic clock", Verdict::Wrong, "it went back");
        }
        steps += u32::from(now > last);
        last = now;
    }
    if steps == 0 {
        return Check::new("monotonic clock", Verdict::Wrong, "it stands still");
    }
    let step = last.duration_since(start) / steps;
    Check::new("monotonic clock", Verdict::Ok, format!("steps of {} ns or less", step.as_nanos()))
}

/// A file can be written there, reaches the disk, and can be taken away.
fn disk(dir: &Path) -> io::Result<String> {
    let mut file = tempfile::Builder::new().prefix(".kvsp-doctor").tempfile_in(dir)?;
    file.write_all(&[0; 4096])?;
    file.as_file().sync_all()?;
    file.close()?;
    let room = nix::sys::statvfs::statvfs(dir).map_err(io::Error::from)?;
    let free = u128::from(room.blocks_available()) * u128::from(room.fragment_size());
    Ok(format!("{} is writable, {:.1} GiB free", dir.display(), free as f64 / f64::from(1 << 30)))
}
