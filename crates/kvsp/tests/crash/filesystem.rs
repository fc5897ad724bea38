//! A small file system for one test: a tmpfs in a mount namespace of the test's own.

#![allow(dead_code, clippy::unwrap_used, clippy::panic)]

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Tells the inner run that it has namespaces of its own.
const INSIDE: &str = "KVSP_TEST_OWN_NAMESPACES";

/// Runs `test`, which is named `name`, in a process with a mount namespace of its own, and there with a tmpfs
/// of `mebibytes`. Where the system does not allow that, the test runs on a plain directory and says so.
pub(crate) fn on_small_filesystem(name: &str, mebibytes: u64, test: impl FnOnce(&Path, bool)) {
    let dir = tempfile::TempDir::new().unwrap();
    let place = dir.path().join("small");
    std::fs::create_dir(&place).unwrap();
    if std::env::var_os(INSIDE).is_some() {
        std::thread::spawn(end_with_parent);
        mount(&place, mebibytes);
        test(&place, true);
        // The mount ends with the namespace, so with this process.
        let _ = Command::new("umount").arg("--lazy").arg(&place).status();
        return;
    }
    if !namespaces_work(&place) {
        eprintln!("no mount namespaces here: {name} runs on a plain directory");
        test(&place, false);
        return;
    }
    let mut inner = Command::new("unshare")
        .args(["--user", "--map-root-user", "--mount"])
        .arg(std::env::current_exe().unwrap())
        .args([name, "--exact", "--nocapture", "--test-threads=1"])
        .env(INSIDE, "1")
        .stdin(Stdio::piped())
        .spawn()
        .unwrap();
    let held = inner.stdin.take();
    let status = inner.wait().unwrap();
    drop(held);
    assert!(status.success(), "{name} on a file system of its own: {status}");
}

/// The outer process holds the other end of stdin as long as it lives.
fn end_with_parent() {
    let _ = std::io::copy(&mut std::io::stdin(), &mut std::io::sink());
    std::process::exit(3);
}

fn mount(place: &Path, mebibytes: u64) {
    let size = format!("size={mebibytes}m,mode=0700");
    let status =
        Command::new("mount").args(["-t", "tmpfs", "-o", &size, "tmpfs"]).arg(place).status().unwrap();
    assert!(status.success(), "mount: {status}");
}

fn namespaces_work(place: &PathBuf) -> bool {
    let mut probe = Command::new("unshare");
    probe.args(["--user", "--map-root-user", "--mount", "mount", "-t", "tmpfs", "tmpfs"]).arg(place);
    probe.stderr(Stdio::null()).status().is_ok_and(|status| status.success())
}

/// Octets in use on the file system of a path.
pub(crate) fn filesystem_used(place: &Path) -> u64 {
    let stat = nix::sys::statvfs::statvfs(place).unwrap();
    (stat.blocks() - stat.blocks_free()) * stat.fragment_size()
}
