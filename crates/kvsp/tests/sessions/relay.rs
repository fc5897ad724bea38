//! What lies between an instance and its controller: it passes requests on, counts checkpoints, kills the
//! instance at one of them, or passes nothing on any more.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// Where in the course of a checkpoint the instance is killed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Moment {
    /// The controller never hears of it.
    Before,
    /// It is recorded, and the instance never hears that it is.
    Unacknowledged,
    /// The instance has just been told that it is recorded.
    After,
}

pub(crate) const MOMENTS: [Moment; 3] = [Moment::Before, Moment::Unacknowledged, Moment::After];

/// A kill that is to come: at which checkpoint from now on, counted from 1, of whichever instance sends it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Blow {
    pub(crate) checkpoint: u64,
    pub(crate) moment: Moment,
}

/// What all relays of a fleet share.
#[derive(Debug, Default)]
pub(crate) struct Plan {
    checkpoints: AtomicU64,
    blow: Mutex<Option<Blow>>,
}

impl Plan {
    /// Counts anew, with a blow to come or none.
    pub(crate) fn arm(&self, blow: Option<Blow>) {
        let mut next = self.blow.lock().unwrap();
        self.checkpoints.store(0, Ordering::SeqCst);
        *next = blow;
    }

    /// Checkpoints since then.
    pub(crate) fn checkpoints(&self) -> u64 {
        self.checkpoints.load(Ordering::SeqCst)
    }

    /// Whether the blow is still to come.
    pub(crate) fn is_armed(&self) -> bool {
        self.blow.lock().unwrap().is_some()
    }

    /// A checkpoint begins; the moment at which its instance is to be killed.
    fn begin(&self) -> Option<Moment> {
        let mut next = self.blow.lock().unwrap();
        let number = 1 + self.checkpoints.fetch_add(1, Ordering::SeqCst);
        let due = next.is_some_and(|blow| blow.checkpoint <= number);
        if due { next.take().map(|blow| blow.moment) } else { None }
    }
}

/// One instance's way to its controller. Its threads end with the connections.
pub(crate) struct Relay {
    pub(crate) base: String,
    shared: Arc<Shared>,
}

struct Shared {
    controller: String,
    plan: Arc<Plan>,
    /// The instance's process; 0 before it is known.
    process: AtomicU32,
    cut: AtomicBool,
    /// Statuses of the answers to checkpoints, in order.
    answers: Mutex<Vec<u16>>,
}

impl Relay {
    /// A relay to `controller`, an address.
    pub(crate) fn start(controller: &str, plan: &Arc<Plan>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let base = format!("http://{}/kvsp/", listener.local_addr().unwrap());
        let shared = Arc::new(Shared {
            controller: controller.to_owned(),
            plan: Arc::clone(plan),
            process: AtomicU32::new(0),
            cut: AtomicBool::new(false),
            answers: Mutex::default(),
        });
        let at = Arc::downgrade(&shared);
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let Some(shared) = at.upgrade() else { return };
                std::thread::spawn(move || shared.serve(stream));
            }
        });
        Self { base, shared }
    }

    /// Whose relay it is.
    pub(crate) fn belongs_to(&self, process: u32) {
        self.shared.process.store(process, Ordering::SeqCst);
    }

    /// From now on nothing gets through, and nobody is told.
    pub(crate) fn cut(&self, cut: bool) {
        self.shared.cut.store(cut, Ordering::SeqCst);
    }

    /// Statuses of the answers to this instance's checkpoints.
    pub(crate) fn answers(&self) -> Vec<u16> {
        self.shared.answers.lock().unwrap().clone()
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        // Whoever waits for a connection sees that the relay is gone.
        self.cut(false);
        let _ = TcpStream::connect(self.base.trim_start_matches("http://").trim_end_matches("/kvsp/"));
    }
}

impl Shared {
    /// Serves a connection until it ends.
    fn serve(&self, stream: TcpStream) -> Option<()> {
        stream.set_nodelay(true).ok()?;
        let mut instance = BufReader::new(stream.try_clone().ok()?);
        let mut to_instance = stream;
        let mut controller = None;
        loop {
            let request = message(&mut instance)?;
            while self.cut.load(Ordering::SeqCst) {
                std::thread::sleep(Duration::from_millis(10));
            }
            let is_checkpoint = request.is_checkpoint();
            let moment = if is_checkpoint { self.plan.begin() } else { None };
            if moment == Some(Moment::Before) {
                self.kill();
                return None;
            }
            let answer = self.exchange(&mut controller, &request.octets)?;
            if is_checkpoint {
                self.answers.lock().unwrap().push(answer.status());
            }
            if moment == Some(Moment::Unacknowledged) {
                self.kill();
                return None;
            }
            to_instance.write_all(&answer.octets).ok()?;
            if moment == Some(Moment::After) {
                self.kill();
                return None;
            }
        }
    }

    /// Asks the controller, anew where the connection of the last time has ended.
    fn exchange(&self, known: &mut Option<BufReader<TcpStream>>, request: &[u8]) -> Option<Message> {
        if let Some(connection) = known
            && let Some(answer) = ask(connection, request)
        {
            return Some(answer);
        }
        let stream = TcpStream::connect(&self.controller).ok()?;
        stream.set_nodelay(true).ok()?;
        ask(known.insert(BufReader::new(stream)), request)
    }

    fn kill(&self) {
        let process = i32::try_from(self.process.load(Ordering::SeqCst)).unwrap();
        assert!(process > 0, "the relay belongs to nobody");
        kill(Pid::from_raw(process), Signal::SIGKILL).unwrap();
    }
}

fn ask(connection: &mut BufReader<TcpStream>, request: &[u8]) -> Option<Message> {
    connection.get_mut().write_all(request).ok()?;
    message(connection)
}

/// A request or an answer over HTTP/1.1 that tells its length.
struct Message {
    octets: Vec<u8>,
    first_line: String,
}

impl Message {
    fn is_checkpoint(&self) -> bool {
        let mut words = self.first_line.split(' ');
        let (method, path) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
        matches!(method, "PUT" | "PATCH") && path.ends_with("/checkpoint")
    }

    fn status(&self) -> u16 {
        self.first_line.split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap_or(0)
    }
}

fn message(from: &mut BufReader<TcpStream>) -> Option<Message> {
    let (mut octets, mut first_line, mut length) = (Vec::new(), String::new(), 0);
    loop {
        let mut line = String::new();
        if from.read_line(&mut line).ok()? == 0 {
            return None;
        }
        octets.extend_from_slice(line.as_bytes());
        let line = line.trim_end();
        if first_line.is_empty() {
            first_line = line.to_owned();
        }
        if line.is_empty() {
            break;
        }
        if let Some((name, value)) = line.split_once(':')
            && name.eq_ignore_ascii_case("content-length")
        {
            length = value.trim().parse().ok()?;
        }
    }
    let head = octets.len();
    octets.resize(head + length, 0);
    from.read_exact(&mut octets[head..]).ok()?;
    Some(Message { octets, first_line })
}
