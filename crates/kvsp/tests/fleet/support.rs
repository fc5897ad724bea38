//! Processes of the real binary, killed when a test ends, and requests to them.

#![allow(dead_code, reason = "each suite uses its part")]

use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::Request;
use kvsp_client::{Client, ClientConfig};
use kvsp_proto::uri::BaseUri;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};

/// How long anything that is bound to happen may take on a busy machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);
const LOOK: Duration = Duration::from_millis(20);

pub(crate) const MODEL: &str = "kvsp/tiny";

pub(crate) fn kvsp() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_kvsp"));
    command.stdin(Stdio::null());
    command
}

/// Runs a command that ends by itself.
pub(crate) fn run(args: &[&str]) -> Output {
    kvsp().args(args).output().unwrap()
}

pub(crate) fn signal(process: u32, signal: Signal) {
    kill(Pid::from_raw(i32::try_from(process).unwrap()), signal).unwrap();
}

/// A service, or several in one process.
pub(crate) struct Process {
    child: Child,
    /// The ready line.
    pub(crate) ready: Value,
    log: PathBuf,
}

impl Process {
    /// `kvsp serve ARGS`, once it is ready. Its log goes into `dir`.
    pub(crate) fn serve(dir: &Path, args: &[&str]) -> Self {
        Self::serve_with(dir, args, &[])
    }

    pub(crate) fn serve_with(dir: &Path, args: &[&str], env: &[(&str, &str)]) -> Self {
        let (file, log) = tempfile::Builder::new().suffix(".log").tempfile_in(dir).unwrap().keep().unwrap();
        let mut child = kvsp()
            .arg("serve")
            .args(args)
            .args(["--json", "--exit-with-parent"])
            .envs(env.iter().copied())
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
        let mut process = Self { child, ready: Value::Null, log };
        match told.recv_timeout(PATIENCE) {
            Ok(line) => process.ready = serde_json::from_str(&line).unwrap(),
            Err(error) => panic!("kvsp serve {args:?} is not ready: {error}\n{}", process.log()),
        }
        process
    }

    pub(crate) fn log(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// A URI of the ready line.
    pub(crate) fn uri(&self, name: &str) -> BaseUri {
        self.ready[name].as_str().unwrap_or_else(|| panic!("no {name} in {}", self.ready)).parse().unwrap()
    }

    pub(crate) fn base(&self) -> BaseUri {
        self.uri("base")
    }

    /// The address that it listens on, for a process that is to take its place.
    pub(crate) fn authority(&self) -> String {
        let base = self.base();
        let rest = base.as_str().strip_prefix("http://").unwrap();
        rest.split('/').next().unwrap().to_owned()
    }

    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// Whether it has not ended.
    pub(crate) fn is_alive(&mut self) -> bool {
        self.child.try_wait().unwrap().is_none()
    }

    /// SIGKILL.
    pub(crate) fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// SIGTERM; answers the exit status.
    pub(crate) fn stop(&mut self) -> Option<i32> {
        signal(self.child.id(), Signal::SIGTERM);
        let status = wait(&mut self.child);
        status.unwrap_or_else(|| panic!("SIGTERM does not end it\n{}", self.log())).code()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            eprintln!("--- log of {}\n{}", self.ready, self.log());
        }
    }
}

/// Waits for the end of a process; `None` where it does not come.
pub(crate) fn wait(child: &mut Child) -> Option<std::process::ExitStatus> {
    let until = Instant::now() + PATIENCE;
    while Instant::now() < until {
        if let Some(status) = child.try_wait().unwrap() {
            return Some(status);
        }
        std::thread::sleep(LOOK);
    }
    None
}

/// Waits until `look` gives something.
pub(crate) async fn eventually<T>(what: &str, mut look: impl AsyncFnMut() -> Option<T>) -> T {
    let until = Instant::now() + PATIENCE;
    loop {
        if let Some(seen) = look().await {
            return seen;
        }
        assert!(Instant::now() < until, "in vain: {what}");
        tokio::time::sleep(LOOK).await;
    }
}

pub(crate) fn client() -> Client {
    Client::new(ClientConfig::default())
}

/// What came back.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) headers: http::HeaderMap,
    pub(crate) body: Bytes,
}

impl Answer {
    pub(crate) fn text(&self) -> String {
        String::from_utf8(self.body.to_vec()).unwrap()
    }

    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|_| panic!("no JSON: {self:?}"))
    }

    /// The body of a 200.
    pub(crate) fn ok(&self) -> Value {
        assert_eq!(self.status, 200, "{self:?}");
        self.json()
    }
}

/// Sends any request.
pub(crate) async fn send(
    base: &BaseUri,
    method: &str,
    path: &str,
    headers: &[(&str, &str)],
    body: impl Into<Bytes>,
) -> Answer {
    let mut request = Request::builder().method(method);
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    let request = request.body(body.into()).unwrap();
    let (head, mut body) = client().forward(base, path, request).await.unwrap().into_parts();
    let mut octets = Vec::new();
    while let Some(chunk) = body.chunk().await.unwrap() {
        octets.extend_from_slice(&chunk);
    }
    Answer { status: head.status.as_u16(), headers: head.headers, body: octets.into() }
}

pub(crate) async fn get(base: &BaseUri, path: &str) -> Answer {
    send(base, "GET", path, &[], "").await
}

pub(crate) const JSON: (&str, &str) = ("content-type", "application/json");

pub(crate) async fn post(base: &BaseUri, path: &str, body: &Value) -> Answer {
    send(base, "POST", path, &[JSON], body.to_string()).await
}

/// A counter or gauge of a service; 0 where it is not there.
pub(crate) async fn metric(admin: &BaseUri, name: &str) -> u64 {
    let text = get(admin, "metrics").await.text();
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    line.map_or(0, |value| value.parse::<f64>().unwrap() as u64)
}

/// A greedy completion by the gateway: its text and the tokens that were not computed.
pub(crate) async fn complete(gateway: &BaseUri, prompt: &str) -> (String, u64) {
    let body = json!({"model": MODEL, "prompt": prompt, "max_tokens": 24, "temperature": 0});
    let answer = post(gateway, "v1/completions", &body).await.ok();
    let cached = answer["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap();
    (answer["choices"][0]["text"].as_str().unwrap().to_owned(), cached)
}
