//! The front end: one [`Delivery`] for each request, a stream, and a look at the controller now and then; and
//! behind it the client, who keeps what was delivered when the front end is gone.

use kvsp_core::session::{Delivery, Taken};
use kvsp_proto::message::{Needs, SessionState, SessionView};
use uuid::Uuid;

use crate::net::{Msg, Node};
use crate::world::{Mutant, Shared, instance_number};

const PLACE_TIMEOUT_MS: u64 = 60;
const POLL_MS: u64 = 12;
const SILENCE_MS: u64 = 50;
const GAP_MS: u64 = 10;
const RETRY_MS: u64 = 8;

/// One request, as the front end has it; gone when that crashes, but for the session's name.
#[derive(Default)]
pub struct Request {
    begins: u64,
    placing: Option<(u64, u64)>,
    pub session: Option<Uuid>,
    delivery: Option<Delivery>,
    view: Option<SessionView>,
    next_poll: u64,
    conn: Option<Conn>,
    next_try: u64,
    /// The original request is to be sent, not a `tokens`.
    start: bool,
    complete: bool,
    /// The instance waits for the prompt.
    asked: bool,
    pub ended: bool,
}

struct Conn {
    id: u64,
    /// Its answer has come: what a header says is known.
    accepted: bool,
    heard: u64,
    progress: u64,
    gap: bool,
}

#[derive(Default)]
pub struct Front {
    pub requests: Vec<Request>,
    next_id: u64,
}

impl Request {
    pub fn new(begins: u64) -> Self {
        Self { begins, ..Self::default() }
    }
}

impl Front {
    fn id(&mut self) -> u64 {
        self.next_id += 1;
        self.next_id
    }

    /// The process is gone and comes back; clients name the session that they had.
    pub fn crash(&mut self) {
        for request in &mut self.requests {
            *request = Request {
                begins: request.begins,
                session: request.session,
                ended: request.ended,
                ..Request::default()
            };
        }
    }

    pub fn tick(&mut self, shared: &mut Shared) {
        for job in 0..self.requests.len() {
            self.tick_request(job, shared);
        }
    }

    fn tick_request(&mut self, job: usize, shared: &mut Shared) {
        let id = self.id();
        let request = &mut self.requests[job];
        let now = shared.now;
        if request.ended || now < request.begins {
            return;
        }
        let Some(session) = request.session else {
            if request.placing.is_none_or(|(_, until)| until <= now) {
                request.placing = Some((id, now + PLACE_TIMEOUT_MS));
                shared.send(Node::Front, Node::Controller, Msg::Place { job, request: id });
            }
            return;
        };
        if now >= request.next_poll {
            request.next_poll = now + POLL_MS;
            let msg = if request.complete { Msg::End { session } } else { Msg::View { session } };
            shared.send(Node::Front, Node::Controller, msg);
        }
        if request.complete {
            return;
        }
        let Some(delivery) = &request.delivery else { return };
        if request.asked && request.next_poll == now + POLL_MS {
            let (to, epoch) = (Node::Instance(instance_number(delivery.instance())), delivery.epoch());
            shared.send(Node::Front, to, Msg::Prompt { session, epoch });
        }
        if let Some(conn) = &request.conn {
            if now >= conn.heard + SILENCE_MS {
                let epoch = delivery.epoch();
                request.conn = None;
                request.next_try = now + RETRY_MS;
                shared.send(Node::Front, Node::Controller, Msg::Broken { session, epoch });
            } else if conn.gap && now >= conn.progress + GAP_MS {
                request.conn = None;
            }
        }
        if request.conn.is_none() && now >= request.next_try {
            let (epoch, from) = (delivery.epoch(), delivery.next());
            let to = Node::Instance(instance_number(delivery.instance()));
            request.conn = Some(Conn { id, accepted: false, heard: now, progress: now, gap: false });
            let start = std::mem::take(&mut request.start);
            let msg = match start {
                true => Msg::Start { session, epoch, conn: id },
                false => Msg::Connect { session, from, conn: id },
            };
            shared.send(Node::Front, to, msg);
        }
    }

    fn of(&mut self, session: Uuid) -> Option<(usize, &mut Request)> {
        let mut requests = self.requests.iter_mut().enumerate();
        requests.find(|(_, request)| request.session == Some(session) && !request.ended)
    }

    /// The request of a connection that is open.
    fn open(&mut self, session: Uuid, conn: u64, now: u64) -> Option<&mut Request> {
        let (_, request) = self.of(session)?;
        let open = request.conn.as_mut().filter(|open| open.id == conn)?;
        if open.accepted {
            open.heard = now;
        }
        Some(request)
    }

    /// So much was sent on a connection: what has not arrived after a while never will.
    fn told(&mut self, session: Uuid, conn: u64, sent: u64, now: u64) {
        let Some(request) = self.open(session, conn, now) else { return };
        let next = request.delivery.as_ref().map_or(0, Delivery::next);
        if let Some(open) = &mut request.conn {
            open.gap |= sent > next;
        }
    }

    pub fn handle(&mut self, msg: Msg, shared: &mut Shared) {
        let now = shared.now;
        match msg {
            Msg::Placed { job, request: id, session, choice } => {
                let request = &mut self.requests[job];
                if request.placing.is_some_and(|(placing, _)| placing == id) && request.session.is_none() {
                    request.placing = None;
                    request.session = Some(session);
                    request.delivery = Some(Delivery::new(1, choice.instance));
                    request.start = true;
                    shared.jobs[job].session = Some(session);
                }
            }
            Msg::Viewed(view) => self.viewed(view, shared),
            Msg::Ended { session } => {
                let Some((_, request)) = self.of(session) else { return };
                if request.complete {
                    request.ended = true;
                    if let Some(delivery) = &request.delivery {
                        let to = Node::Instance(instance_number(delivery.instance()));
                        shared.send(Node::Front, to, Msg::End { session });
                    }
                }
            }
            Msg::Accepted { session, conn, needs } => {
                let Some(request) = self.open(session, conn, now) else { return };
                request.asked |= needs == Some(Needs::Prompt);
                if let Some(open) = &mut request.conn {
                    (open.accepted, open.heard) = (true, now);
                }
            }
            Msg::Prompted { session, epoch } => {
                let Some((_, request)) = self.of(session) else { return };
                request.asked &= request.delivery.as_ref().is_none_or(|delivery| delivery.epoch() != epoch);
            }
            Msg::KeepAlive { session, conn, sent } => self.told(session, conn, sent, now),
            Msg::Rejected { session, conn, unknown } => self.rejected(session, conn, unknown, shared),
            Msg::Closed { session, conn } => self.rejected(session, conn, false, shared),
            Msg::Token { session, conn, epoch, index, token } => {
                self.token(session, conn, (epoch, index, token), shared);
            }
            Msg::Finished { session, conn, epoch, count } => {
                self.told(session, conn, count, now);
                let Some((_, request)) = self.of(session) else { return };
                let Some(delivery) = &request.delivery else { return };
                if epoch < delivery.epoch() {
                    self.stale(session, conn, shared);
                    return;
                }
                request.complete |= delivery.epoch() == epoch && delivery.next() == count;
            }
            other => unreachable!("{other:?} is not for a front end"),
        }
    }

    fn viewed(&mut self, view: SessionView, shared: &mut Shared) {
        let now = shared.now;
        let Some((_, request)) = self.of(view.session) else { return };
        let instance = view.instance.clone();
        match &mut request.delivery {
            None => request.delivery = Some(Delivery::new(view.epoch, instance)),
            Some(delivery) => {
                if delivery.raised(view.epoch, instance) {
                    request.conn = None;
                    request.start = false;
                    request.next_try = now;
                }
            }
        }
        request.asked |= view.needs == Some(Needs::Prompt);
        // It ended before a front end crashed that had all of it.
        request.ended |= view.state == SessionState::Done;
        request.view = Some(view);
    }

    /// The connection did not come about, or is over.
    fn rejected(&mut self, session: Uuid, conn: u64, unknown: bool, shared: &mut Shared) {
        let now = shared.now;
        let Some(request) = self.open(session, conn, now) else { return };
        let Some(delivery) = &request.delivery else { return };
        request.conn = None;
        request.next_try = now + RETRY_MS;
        let epoch = delivery.epoch();
        let view = request.view.as_ref().filter(|view| view.epoch == epoch);
        match view.filter(|_| unknown).map(|view| (view.state, view.output_offset)) {
            // Nothing is recorded: the request begins anew.
            Some((SessionState::Running, 0)) => {
                request.start = true;
                shared.count("request sent anew");
            }
            // The resume has not arrived there yet.
            Some((SessionState::Resuming, _)) => {}
            _ => shared.send(Node::Front, Node::Controller, Msg::Broken { session, epoch }),
        }
    }

    /// The instance streams a former epoch: it was given the session before, and has not heard that it has it
    /// again.
    fn stale(&mut self, session: Uuid, conn: u64, shared: &mut Shared) {
        let now = shared.now;
        let Some(request) = self.open(session, conn, now) else { return };
        request.conn = None;
        request.next_try = now + RETRY_MS;
        let epoch = request.delivery.as_ref().map(Delivery::epoch);
        let view = request.view.as_ref().filter(|view| Some(view.epoch) == epoch);
        if view.is_some_and(|view| view.state == SessionState::Running && view.output_offset == 0) {
            request.start = true;
            shared.count("request sent anew");
        }
    }

    fn token(&mut self, session: Uuid, conn: u64, event: (u64, u64, u32), shared: &mut Shared) {
        let (sent_epoch, index, token) = event;
        let now = shared.now;
        let no_epochs = shared.mutant == Some(Mutant::NoEpochAtFront);
        let Some((job, request)) = self.of(session) else { return };
        let Some(delivery) = &mut request.delivery else { return };
        let epoch = if no_epochs { delivery.epoch() } else { sent_epoch };
        let known = delivery.epoch();
        let mut open = request.conn.as_mut().filter(|open| open.id == conn);
        if let Some(open) = open.as_deref_mut().filter(|open| open.accepted) {
            open.heard = now;
        }
        match delivery.token(epoch, index, token) {
            Ok(Taken::New) => {
                let client = &mut shared.jobs[job].client;
                shared.oracle.delivered(session, (sent_epoch, known), index, token, client);
                if index as usize == client.len() {
                    client.push(token);
                }
                if let Some(open) = open {
                    (open.progress, open.gap) = (now, false);
                }
            }
            Ok(Taken::Duplicate) => shared.count("token again"),
            Ok(Taken::Stale) => {
                shared.count("token of an old epoch");
                self.stale(session, conn, shared);
            }
            Ok(Taken::Ahead) => {
                shared.count("token after a gap");
                if let Some(open) = open {
                    open.gap = true;
                }
            }
            Err(mismatch) => shared.oracle.mismatch(session, mismatch.index),
        }
    }
}
