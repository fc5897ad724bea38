//! Following the index's changes (extension `events`): a stream that goes on where it broke off.

use std::collections::VecDeque;
use std::time::Duration;

use http::HeaderValue;
use kvsp_proto::id::{CompatId, ScopeId};
use kvsp_proto::message::ReplicaName;
use kvsp_proto::path::{self, MEDIA_EVENTS};
use kvsp_proto::uri::BaseUri;

use crate::answer::require_media;
use crate::body::StreamedBody;
use crate::error::ClientError;
use crate::sse::{Message, Parser};
use crate::transport::{Call, Client};

/// The header by which a follower says where it was.
const LAST_EVENT_ID: &str = "last-event-id";

/// The first pause before a broken stream is asked for again; each further one is twice as long.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

/// Which changes to follow.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct EventsQuery {
    /// The cursor to go on from ([`IndexEvents::cursor`]); `None`: what comes from now on.
    pub after: Option<String>,
    /// Of this scope alone.
    pub scope: Option<ScopeId>,
    /// Of this compatibility alone.
    pub compat: Option<CompatId>,
}

/// A change of the index. The names have no `seq`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum IndexEvent {
    /// There is a new record of this replica, or what it says has changed.
    Publish(ReplicaName),
    /// The record was withdrawn.
    Withdraw(ReplicaName),
    /// The record has expired, or had to make room.
    Expire(ReplicaName),
    /// Changes were missed: what is kept of the index has to be read anew. The events go on from here.
    Resync,
}

/// The changes of an index, one after the other.
#[derive(Debug)]
pub struct IndexEvents {
    client: Client,
    index: BaseUri,
    query: EventsQuery,
    body: Option<StreamedBody>,
    parser: Parser,
    ready: VecDeque<Message>,
    pause: Duration,
}

impl Client {
    /// Follows the changes of an index.
    ///
    /// A reader that keeps what it sees follows first and reads the index then: nothing is missed in between.
    ///
    /// # Errors
    /// [`ClientError`].
    pub async fn index_events(
        &self,
        index: &BaseUri,
        query: EventsQuery,
    ) -> Result<IndexEvents, ClientError> {
        let mut events = IndexEvents {
            client: self.clone(),
            index: index.clone(),
            query,
            body: None,
            parser: Parser::default(),
            ready: VecDeque::new(),
            pause: FIRST_PAUSE,
        };
        events.connect().await?;
        Ok(events)
    }
}

impl IndexEvents {
    /// The next change. Where the stream ends or breaks, or the index cannot be reached or is overloaded, it
    /// is asked for again after a pause, as long as it takes, from where it was; dropping the future loses
    /// nothing.
    ///
    /// # Errors
    /// [`ClientError`] where the index refuses, or does not answer with events; another call tries again.
    pub async fn next(&mut self) -> Result<IndexEvent, ClientError> {
        loop {
            while let Some(message) = self.ready.pop_front() {
                if let Some(id) = message.id {
                    self.query.after = Some(id);
                }
                if let Some(event) = event_of(&message.name, &message.data)? {
                    return Ok(event);
                }
            }
            let Some(body) = &mut self.body else {
                tokio::time::sleep(self.pause).await;
                self.reconnect().await?;
                continue;
            };
            match body.chunk().await {
                Ok(Some(octets)) => {
                    self.pause = FIRST_PAUSE;
                    if let Err(error) = self.parser.take(&octets, &mut self.ready) {
                        self.body = None;
                        return Err(error);
                    }
                }
                Ok(None) => self.body = None,
                Err(error) if error.is_unreachable() => self.body = None,
                Err(error) => {
                    self.body = None;
                    return Err(error);
                }
            }
        }
    }

    /// Where the last event that [`IndexEvents::next`] gave leaves the reader; `None` before the index has
    /// told. It may be kept over a restart of the reader.
    #[must_use]
    pub fn cursor(&self) -> Option<&str> {
        self.query.after.as_deref()
    }

    async fn reconnect(&mut self) -> Result<(), ClientError> {
        self.pause = (self.pause * 2).min(LONGEST_PAUSE);
        match self.connect().await {
            Err(error) if error.is_unreachable() => Ok(()),
            Err(ClientError::Problem(problem)) if problem.status() == 503 => {
                let asked = problem.retry_after_s.map_or(self.pause, Duration::from_secs);
                self.pause = asked.clamp(self.pause, LONGEST_PAUSE.max(self.pause));
                Ok(())
            }
            done => done,
        }
    }

    async fn connect(&mut self) -> Result<(), ClientError> {
        let mut target = path::EVENTS.to_owned();
        let mut separator = '?';
        let filters = [
            ("scope", self.query.scope.map(|scope| scope.to_string())),
            ("compat", self.query.compat.map(|compat| compat.to_string())),
        ];
        for (name, value) in filters {
            if let Some(value) = value {
                target.push(separator);
                target.push_str(&format!("{name}={value}"));
                separator = '&';
            }
        }
        let mut call = Call::get(target);
        if let Some(after) = &self.query.after {
            let after = HeaderValue::from_str(after)
                .map_err(|_| ClientError::protocol("the cursor of the events is not a header's value"))?;
            call.headers.insert(LAST_EVENT_ID, after);
        }
        let (parts, body) = self.client.begin(&self.index, call, true).await?.into_parts();
        require_media(&parts.headers, &[MEDIA_EVENTS])?;
        self.parser = Parser::default();
        self.body = Some(body);
        Ok(())
    }
}

/// The event of a message; `None` for one of a name that is not known, or of none.
fn event_of(name: &str, data: &str) -> Result<Option<IndexEvent>, ClientError> {
    let replica = || {
        kvsp_proto::json::from_slice::<ReplicaName>(data.as_bytes())
            .map_err(|error| ClientError::protocol(format!("an event's data: {error}")))
    };
    Ok(Some(match name {
        "publish" => IndexEvent::Publish(replica()?),
        "withdraw" => IndexEvent::Withdraw(replica()?),
        "expire" => IndexEvent::Expire(replica()?),
        "resync" => IndexEvent::Resync,
        _ => return Ok(None),
    }))
}
