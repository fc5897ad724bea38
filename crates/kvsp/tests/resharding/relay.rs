//! What lies in front of a member: everybody reaches it here. It passes requests and answers on, counts what the
//! controller tells the members of a change, and at one of these messages kills somebody or is late.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

use crate::support::PATIENCE;

/// The longest message that is held as a whole.
const MAX_HELD: usize = 1 << 20;

/// What the controller tells a member.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Plan,
    Commit,
    Abort,
}

/// Where in the course of a message something happens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Moment {
    /// The member never hears it.
    Before,
    /// The member has done it, and the controller does not hear that it has.
    Unacknowledged,
    /// The controller has just been told.
    After,
}

/// Who is killed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Victim {
    Controller,
    /// The member whose message it is.
    Member,
    /// The instance that leads the context.
    Leader,
    /// Nobody: the member's answer is late by so much.
    Late(Duration),
}

/// A blow that is to come.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Blow {
    pub(crate) kind: Kind,
    /// Which message of this kind from now on, counted from 1, to whichever member.
    pub(crate) message: u64,
    pub(crate) moment: Moment,
    pub(crate) victim: Victim,
}

/// What all relays of a fleet share.
#[derive(Debug, Default)]
pub(crate) struct Plan {
    state: Mutex<State>,
    changed: Condvar,
    controller: AtomicU32,
    leader: AtomicU32,
    /// µs that every partial attention takes more, so that an answer lasts.
    drag_us: AtomicU64,
}

#[derive(Debug, Default)]
struct State {
    blow: Option<Blow>,
    /// Messages of the blow's kind.
    seen: u64,
    /// Who was killed: a process.
    struck: Option<u32>,
}

impl Plan {
    /// Counts anew, with a blow to come or none. `leader` is the process that leads.
    pub(crate) fn arm(&self, blow: Option<Blow>, leader: u32) {
        self.leader.store(leader, Ordering::SeqCst);
        *self.state.lock().unwrap() = State { blow, seen: 0, struck: None };
        self.changed.notify_all();
    }

    /// The controller's process.
    pub(crate) fn controller_is(&self, process: u32) {
        self.controller.store(process, Ordering::SeqCst);
    }

    /// How much longer every partial attention takes.
    pub(crate) fn drag(&self, time: Duration) {
        self.drag_us.store(u64::try_from(time.as_micros()).unwrap(), Ordering::SeqCst);
    }

    /// The process that was killed since then; 0 where a member was late.
    pub(crate) fn struck(&self) -> Option<u32> {
        self.state.lock().unwrap().struck
    }

    /// A message to a member begins. Where it comes after the one at which the blow falls, it waits for that.
    fn begin(&self, kind: Kind) -> Option<Blow> {
        let mut state = self.state.lock().unwrap();
        let blow = state.blow.filter(|blow| blow.kind == kind && state.struck.is_none())?;
        state.seen += 1;
        if state.seen == blow.message {
            return Some(blow);
        }
        if state.seen > blow.message {
            let waiting = |state: &mut State| state.struck.is_none() && state.blow.is_some();
            drop(self.changed.wait_timeout_while(state, PATIENCE, waiting).unwrap());
        }
        None
    }

    fn strike(&self, blow: Blow, member: u32) {
        let process = match blow.victim {
            Victim::Controller => self.controller.load(Ordering::SeqCst),
            Victim::Leader => self.leader.load(Ordering::SeqCst),
            Victim::Member => member,
            Victim::Late(_) => 0,
        };
        if process > 0 {
            // Whose turn it is may have been killed in another way.
            let _ = kill(Pid::from_raw(i32::try_from(process).unwrap()), Signal::SIGKILL);
        }
        let mut state = self.state.lock().unwrap();
        state.struck = Some(process);
        state.blow = None;
        self.changed.notify_all();
    }
}

/// The way to one member. Its threads end with the connections.
pub(crate) struct Relay {
    pub(crate) base: String,
    /// Where the member is to listen.
    pub(crate) member: SocketAddr,
    shared: Arc<Shared>,
}

struct Shared {
    member: SocketAddr,
    plan: Arc<Plan>,
    process: AtomicU32,
}

impl Relay {
    pub(crate) fn start(plan: &Arc<Plan>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        // The same port at another address of loopback, which nobody else uses.
        let member = SocketAddr::new([127, 0, 1, 1].into(), address.port());
        let shared = Arc::new(Shared { member, plan: Arc::clone(plan), process: AtomicU32::new(0) });
        let at = Arc::downgrade(&shared);
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let Some(shared) = at.upgrade() else { return };
                std::thread::spawn(move || shared.serve(stream));
            }
        });
        Self { base: format!("http://{address}/kvsp/"), member, shared }
    }

    /// Whose relay it is.
    pub(crate) fn belongs_to(&self, process: u32) {
        self.shared.process.store(process, Ordering::SeqCst);
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        // Whoever waits for a connection sees that the relay is gone.
        let _ = TcpStream::connect(self.base.trim_start_matches("http://").trim_end_matches("/kvsp/"));
    }
}

impl Shared {
    /// Serves a connection until it ends.
    fn serve(&self, stream: TcpStream) -> Option<()> {
        stream.set_nodelay(true).ok()?;
        let mut peer = BufReader::new(stream.try_clone().ok()?);
        let mut to_peer = stream;
        let mut member = None;
        loop {
            let head = Head::read(&mut peer)?;
            let body = head.body(&mut peer)?;
            let drag = self.plan.drag_us.load(Ordering::SeqCst);
            if drag > 0 && head.is("POST", "/attention") {
                std::thread::sleep(Duration::from_micros(drag));
            }
            let blow = head.kind(&body).and_then(|kind| self.plan.begin(kind));
            let process = self.process.load(Ordering::SeqCst);
            let moment = blow.map(|blow| blow.moment);
            if let Some(blow) = blow.filter(|blow| blow.moment == Moment::Before) {
                self.plan.strike(blow, process);
                // The controller's death takes nothing from the member's way.
                if blow.victim == Victim::Member {
                    return None;
                }
            }
            let (answer, connection) = self.exchange(&mut member, &head.octets, &body)?;
            if let Some(blow) = blow.filter(|_| moment == Some(Moment::Unacknowledged)) {
                let held = answer.body(connection)?;
                if let Victim::Late(time) = blow.victim {
                    std::thread::sleep(time);
                    self.plan.strike(blow, process);
                } else {
                    self.plan.strike(blow, process);
                    return None;
                }
                to_peer.write_all(&answer.octets).and_then(|()| to_peer.write_all(&held)).ok()?;
                continue;
            }
            answer.pass(connection, &mut to_peer)?;
            if let Some(blow) = blow.filter(|_| moment == Some(Moment::After)) {
                self.plan.strike(blow, process);
            }
        }
    }

    /// Asks the member, anew where the connection of the last time has ended.
    fn exchange<'a>(
        &self,
        known: &'a mut Option<BufReader<TcpStream>>,
        head: &[u8],
        body: &[u8],
    ) -> Option<(Head, &'a mut BufReader<TcpStream>)> {
        let ask = |connection: &mut BufReader<TcpStream>| {
            let stream = connection.get_mut();
            stream.write_all(head).and_then(|()| stream.write_all(body)).ok()?;
            Head::read(connection)
        };
        let answer = known.as_mut().and_then(ask);
        let answer = match answer {
            Some(answer) => answer,
            None => {
                let stream = TcpStream::connect(self.member).ok()?;
                stream.set_nodelay(true).ok()?;
                ask(known.insert(BufReader::new(stream)))?
            }
        };
        Some((answer, known.as_mut()?))
    }
}

/// The head of a request or an answer over HTTP/1.1.
struct Head {
    octets: Vec<u8>,
    first_line: String,
    length: usize,
    is_chunked: bool,
}

impl Head {
    fn read(from: &mut BufReader<TcpStream>) -> Option<Self> {
        let mut head = Self { octets: Vec::new(), first_line: String::new(), length: 0, is_chunked: false };
        loop {
            let mut line = String::new();
            if from.read_line(&mut line).ok()? == 0 {
                return None;
            }
            head.octets.extend_from_slice(line.as_bytes());
            let line = line.trim_end();
            if head.first_line.is_empty() {
                line.clone_into(&mut head.first_line);
            }
            if line.is_empty() {
                return Some(head);
            }
            if let Some((name, value)) = line.split_once(':') {
                if name.eq_ignore_ascii_case("content-length") {
                    head.length = value.trim().parse().ok()?;
                } else if name.eq_ignore_ascii_case("transfer-encoding") {
                    head.is_chunked = value.trim() == "chunked";
                }
            }
        }
    }

    /// The whole body of a message that tells its length.
    fn body(&self, from: &mut BufReader<TcpStream>) -> Option<Vec<u8>> {
        assert!(!self.is_chunked, "a body without a length: {}", self.first_line);
        let mut body = vec![0; self.length];
        from.read_exact(&mut body).ok()?;
        Some(body)
    }

    /// Passes the message on as it arrives.
    fn pass(&self, from: &mut BufReader<TcpStream>, to: &mut TcpStream) -> Option<()> {
        to.write_all(&self.octets).ok()?;
        if !self.is_chunked {
            return copy(from, to, self.length);
        }
        loop {
            let mut line = String::new();
            if from.read_line(&mut line).ok()? == 0 {
                return None;
            }
            to.write_all(line.as_bytes()).ok()?;
            let octets = usize::from_str_radix(line.trim().split(';').next()?, 16).ok()?;
            // With the line's end; no trailers are used.
            copy(from, to, octets + 2)?;
            if octets == 0 {
                return Some(());
            }
        }
    }

    fn is(&self, method: &str, end: &str) -> bool {
        let mut words = self.first_line.split(' ');
        words.next() == Some(method) && words.next().is_some_and(|path| path.ends_with(end))
    }

    fn kind(&self, body: &[u8]) -> Option<Kind> {
        if !self.is("POST", "/kvsp/reshard") || body.len() > MAX_HELD {
            return None;
        }
        let body: Value = serde_json::from_slice(body).ok()?;
        Some(match (body.get("commit"), body.get("abort")) {
            (Some(_), _) => Kind::Commit,
            (_, Some(_)) => Kind::Abort,
            _ => Kind::Plan,
        })
    }
}

fn copy(from: &mut BufReader<TcpStream>, to: &mut TcpStream, octets: usize) -> Option<()> {
    let copied = std::io::copy(&mut from.take(octets as u64), to).ok()?;
    (copied == octets as u64).then_some(())
}
