//! Processes of the real binary, a small file system of their own, and HTTP over plain sockets, so that
//! nothing of the product judges the product.

#![allow(dead_code, clippy::unwrap_used, clippy::panic)]

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use serde_json::Value;

/// How long anything that is bound to happen may take on a busy machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);
const LOOK: Duration = Duration::from_millis(20);

pub(crate) const BLOCK: &str = "application/kvsp-block";
pub(crate) const JSON: &str = "application/kvsp+json";
pub(crate) const PROBLEMS: &str = "https://iana.org/assignments/http-problem-types#";

/// A number from the environment.
pub(crate) fn count(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().map_or(default, |text| text.parse().unwrap())
}

/// Random numbers, the same for the same seed.
pub(crate) struct Chance(pub(crate) u64);

impl Chance {
    pub(crate) fn of(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut x = self.0;
        x = (x ^ (x >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (x ^ (x >> 31)) % n.max(1)
    }
}

/// Waits until `look` gives something.
#[track_caller]
pub(crate) fn eventually<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let until = Instant::now() + PATIENCE;
    loop {
        if let Some(seen) = look() {
            return seen;
        }
        assert!(Instant::now() < until, "in vain: {what}");
        std::thread::sleep(LOOK);
    }
}

/// A service of the real binary.
pub(crate) struct Process {
    child: Child,
    /// Base URI and that of the admin listener.
    pub(crate) base: String,
    pub(crate) admin: String,
    /// From the start to the ready line.
    pub(crate) took: Duration,
    log: PathBuf,
}

impl Process {
    /// `kvsp serve ARGS`, once it is ready. Its log goes into `dir`.
    pub(crate) fn serve(dir: &Path, args: &[&str]) -> Self {
        let (file, log) = tempfile::Builder::new().suffix(".log").tempfile_in(dir).unwrap().keep().unwrap();
        let begin = Instant::now();
        let mut child = Command::new(env!("CARGO_BIN_EXE_kvsp"))
            .arg("serve")
            .args(args)
            .args(["--json", "--exit-with-parent"])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(file)
            .spawn()
            .unwrap();
        let mut stdout = BufReader::new(child.stdout.take().unwrap());
        let (tell, told) = mpsc::channel();
        std::thread::spawn(move || {
            let mut line = String::new();
            while stdout.read_line(&mut line).is_ok_and(|octets| octets > 0) {
                let _ = tell.send(std::mem::take(&mut line));
            }
        });
        let mut process =
            Self { child, base: String::new(), admin: String::new(), took: Duration::ZERO, log };
        match told.recv_timeout(PATIENCE) {
            Ok(line) => {
                let ready: Value = serde_json::from_str(&line).unwrap();
                process.base = ready["base"].as_str().unwrap().to_owned();
                process.admin = ready["admin"].as_str().unwrap().to_owned();
                process.took = begin.elapsed();
            }
            Err(error) => panic!("kvsp serve {args:?} is not ready: {error}\n{}", process.log()),
        }
        process
    }

    pub(crate) fn pid(&self) -> i32 {
        i32::try_from(self.child.id()).unwrap()
    }

    pub(crate) fn log(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }

    pub(crate) fn authority(&self) -> String {
        authority(&self.base)
    }

    /// SIGKILL.
    pub(crate) fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// SIGTERM, and the end.
    pub(crate) fn stop(&mut self) {
        let pid = nix::unistd::Pid::from_raw(self.pid());
        nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGTERM).unwrap();
        let child = &mut self.child;
        let status = eventually("the end after SIGTERM", || child.try_wait().unwrap());
        assert!(status.success(), "{status}\n{}", self.log());
    }

    /// A connection to the service.
    pub(crate) fn connect(&self) -> Connection {
        Connection::open(&self.base).unwrap()
    }

    /// One request on a connection of its own.
    pub(crate) fn send(&self, method: &str, path: &str, headers: &[(&str, &str)], body: &[u8]) -> Answer {
        self.connect().send(method, path, headers, body).unwrap()
    }

    /// One JSON request on a connection of its own.
    pub(crate) fn json(&self, method: &str, path: &str, body: &Value) -> Answer {
        self.send(method, path, &[("content-type", JSON)], body.to_string().as_bytes())
    }

    pub(crate) fn get(&self, path: &str) -> Answer {
        self.send("GET", path, &[], b"")
    }

    pub(crate) fn put_block(&self, path: &str, octets: &[u8]) -> Answer {
        self.send("PUT", path, &[("content-type", BLOCK), ("if-none-match", "*")], octets)
    }

    /// A counter or gauge; 0 where it is not there.
    pub(crate) fn metric(&self, name: &str) -> u64 {
        let answer = Connection::open(&self.admin).unwrap().send("GET", "metrics", &[], b"").unwrap();
        let text = String::from_utf8(answer.body).unwrap();
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        line.map_or(0, |value| value.parse::<f64>().unwrap() as u64)
    }

    /// Octets of memory that the process has resident.
    pub(crate) fn resident_octets(&self) -> u64 {
        let statm = std::fs::read_to_string(format!("/proc/{}/statm", self.pid())).unwrap();
        statm.split(' ').nth(1).unwrap().parse::<u64>().unwrap() * 4096
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            eprintln!("--- log of {}\n{}", self.base, self.log());
        }
    }
}

fn authority(base: &str) -> String {
    let rest = base.strip_prefix("http://").unwrap();
    rest.split('/').next().unwrap().to_owned()
}

/// What came back.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    /// Names in lower case.
    pub(crate) headers: BTreeMap<String, String>,
    pub(crate) body: Vec<u8>,
}

impl Answer {
    #[track_caller]
    pub(crate) fn header(&self, name: &str) -> &str {
        self.headers.get(name).unwrap_or_else(|| panic!("no {name} in {self:?}"))
    }

    #[track_caller]
    pub(crate) fn value(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|_| panic!("no JSON: {self:?}"))
    }

    /// The name of a problem's type: `about:blank`, or what follows the registry's URI.
    #[track_caller]
    pub(crate) fn problem(&self) -> String {
        assert_eq!(self.header("content-type"), "application/problem+json", "{self:?}");
        let body = self.value();
        assert_eq!(body["status"], self.status, "{body}");
        assert!(body["title"].is_string() && body["detail"].is_string(), "{body}");
        let kind = body["type"].as_str().unwrap();
        kind.strip_prefix(PROBLEMS).unwrap_or(kind).to_owned()
    }
}

/// A connection, kept open between requests.
pub(crate) struct Connection {
    stream: BufReader<TcpStream>,
    authority: String,
    prefix: String,
}

impl Connection {
    pub(crate) fn open(base: &str) -> std::io::Result<Self> {
        let authority = authority(base);
        let prefix = base.split_once(&authority).unwrap().1.to_owned();
        let stream = TcpStream::connect(&authority)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        Ok(Self { stream: BufReader::new(stream), authority, prefix })
    }

    /// Sends a request and reads its answer. `path` is relative to the base, or absolute.
    pub(crate) fn send(
        &mut self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: &[u8],
    ) -> std::io::Result<Answer> {
        let target = if path.starts_with('/') { path.to_owned() } else { format!("{}{path}", self.prefix) };
        let mut head = format!("{method} {target} HTTP/1.1\r\nhost: {}\r\n", self.authority);
        for (name, value) in headers {
            head.push_str(&format!("{name}: {value}\r\n"));
        }
        if !body.is_empty() || matches!(method, "PUT" | "POST") {
            head.push_str(&format!("content-length: {}\r\n", body.len()));
        }
        head.push_str("\r\n");
        let stream = self.stream.get_mut();
        stream.write_all(head.as_bytes())?;
        // A server may answer and close before it has read all: the answer counts.
        let _ = stream.write_all(body);
        self.answer(method == "HEAD")
    }

    /// Sends raw octets.
    pub(crate) fn write(&mut self, octets: &[u8]) -> std::io::Result<()> {
        self.stream.get_mut().write_all(octets)
    }

    pub(crate) fn answer(&mut self, head_only: bool) -> std::io::Result<Answer> {
        let broken = || std::io::Error::from(std::io::ErrorKind::UnexpectedEof);
        let mut line = String::new();
        self.line(&mut line)?;
        let status = line.split(' ').nth(1).and_then(|text| text.parse().ok()).ok_or_else(broken)?;
        let mut headers = BTreeMap::new();
        loop {
            self.line(&mut line)?;
            if line.is_empty() {
                break;
            }
            let (name, value) = line.split_once(':').ok_or_else(broken)?;
            headers.insert(name.to_ascii_lowercase(), value.trim().to_owned());
        }
        let mut body = Vec::new();
        if let Some(length) = headers.get("content-length").filter(|_| !head_only && status != 304) {
            body.resize(length.parse().map_err(|_| broken())?, 0);
            self.stream.read_exact(&mut body)?;
        } else if headers.get("transfer-encoding").is_some_and(|coding| coding == "chunked") && !head_only {
            while self.chunk(&mut body)? {}
        }
        Ok(Answer { status, headers, body })
    }

    fn chunk(&mut self, body: &mut Vec<u8>) -> std::io::Result<bool> {
        let mut line = String::new();
        self.line(&mut line)?;
        let length = usize::from_str_radix(line.trim(), 16).map_err(std::io::Error::other)?;
        let start = body.len();
        body.resize(start + length, 0);
        self.stream.read_exact(&mut body[start..])?;
        self.line(&mut line)?;
        Ok(length > 0)
    }

    fn line(&mut self, line: &mut String) -> std::io::Result<()> {
        line.clear();
        if self.stream.read_line(line)? == 0 {
            return Err(std::io::ErrorKind::UnexpectedEof.into());
        }
        line.truncate(line.trim_end_matches(['\r', '\n']).len());
        Ok(())
    }
}

pub(crate) const COMPAT: [u8; 32] = [0x11; 32];
pub(crate) const SCOPE: [u8; 16] = [0x22; 16];

pub(crate) fn hex(octets: &[u8]) -> String {
    octets.iter().map(|octet| format!("{octet:02x}")).collect()
}

/// The key of block `n`, in hex.
pub(crate) fn key(n: u64) -> String {
    format!("{n:064x}")
}

pub(crate) fn block_path(n: u64) -> String {
    format!("blocks/{}/{}/{}", hex(&COMPAT), hex(&SCOPE), key(n))
}

pub(crate) fn replicas_path(n: u64) -> String {
    format!("replicas/{}/{}/{}", hex(&COMPAT), hex(&SCOPE), key(n))
}

/// A container of codec `raw`: `layers` layers from `first` on, each with sections of `octets` octets made
/// of `seed`.
pub(crate) fn container(first: u32, layers: u32, octets: usize, seed: u64) -> Vec<u8> {
    coded(1, first, layers, octets, seed)
}

pub(crate) fn coded(codec: u16, first: u32, layers: u32, octets: usize, seed: u64) -> Vec<u8> {
    let mut out = b"KVB1\x01\x00".to_vec();
    out.extend(codec.to_be_bytes());
    for number in [first, layers, 4] {
        out.extend(number.to_be_bytes());
    }
    for _ in 0..2 * layers {
        out.extend((octets as u64).to_be_bytes());
    }
    let mut chance = Chance(seed);
    for _ in 0..(2 * layers as usize * octets).div_ceil(8) {
        out.extend(chance.of(u64::MAX).to_le_bytes());
    }
    out.truncate(20 + 16 * layers as usize + 2 * layers as usize * octets);
    out
}

/// Files below a directory whose names are not those of whole blocks and the tier's own.
pub(crate) fn files(dir: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut dirs = vec![dir.to_owned()];
    while let Some(dir) = dirs.pop() {
        for entry in std::fs::read_dir(dir).into_iter().flatten().flatten() {
            // What goes while it is looked at is gone.
            match entry.file_type() {
                Ok(kind) if kind.is_dir() => dirs.push(entry.path()),
                Ok(_) => found.push(entry.path()),
                Err(_) => {}
            }
        }
    }
    found.sort();
    found
}

/// Octets that the files below a directory take on their device.
pub(crate) fn octets_used(dir: &Path) -> u64 {
    use std::os::unix::fs::MetadataExt as _;
    files(dir).iter().filter_map(|path| path.metadata().ok()).map(|meta| meta.blocks() * 512).sum()
}
