//! `GET events`: the feed of changes as `text/event-stream` (extension `events`).

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::extract::State;
use axum::response::Response;
use bytes::Bytes;
use http::header::{CACHE_CONTROL, CONTENT_TYPE};
use http::{HeaderMap, HeaderValue, Uri};
use kvsp_core::index::{Change, ChangeKind, Changes};
use kvsp_net::Failure;
use kvsp_net::auth::Caller;
use kvsp_net::extract::query;
use kvsp_net::principal::{Principal, Role};
use kvsp_proto::fast::write::{push_hex16, push_hex32, push_integer, push_text};
use kvsp_proto::id::{CompatId, ScopeId};
use kvsp_proto::path::MEDIA_EVENTS;
use kvsp_proto::problem::{Problem, ProblemType};
use tokio::time::{Instant, sleep, sleep_until};

use super::Service;
use crate::feed::{self, Follower};
use crate::service::IndexService;

/// Changes taken out of the index under one lock.
const CHANGES_A_LOCK: usize = 512;

/// After a change, a follower waits so long for those that come right after it, and takes them together.
const GATHER: Duration = Duration::from_millis(10);

/// Seconds after which one who found no room may come again.
const RETRY_AFTER_S: u64 = 5;

/// The header by which a follower says where it was.
const LAST_EVENT_ID: &str = "last-event-id";

/// What a follower asks for.
#[derive(Debug, Default)]
struct Wanted {
    after: Option<String>,
    scope: Option<ScopeId>,
    compat: Option<CompatId>,
}

pub(super) async fn follow(
    State(service): Service,
    Caller(caller): Caller,
    uri: Uri,
    headers: HeaderMap,
) -> Result<Response, Failure> {
    caller.require_role(&Role::ALL)?;
    let mut wanted = Wanted::of(&uri)?;
    if let Some(scope) = wanted.scope {
        caller.require_scope(scope)?;
    }
    // A browser comes again with the URI that it had at first, and says in the header how far it got.
    if let Some(last) = headers.get(LAST_EVENT_ID) {
        wanted.after = Some(last.to_str().unwrap_or_default().to_owned());
    }
    let follower = service.feed.follow().ok_or_else(|| {
        Problem::new(ProblemType::Overloaded, "as many follow the feed as may").retry_after(RETRY_AFTER_S)
    })?;
    let subscription = Subscription::new(service, caller, wanted, follower);
    let stream = futures_util::stream::unfold(subscription, async |mut subscription| {
        let piece = subscription.next().await?;
        Some((Ok::<_, Infallible>(piece), subscription))
    });
    let mut response = Response::new(Body::from_stream(stream));
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(MEDIA_EVENTS));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    Ok(response)
}

impl Wanted {
    fn of(uri: &Uri) -> Result<Self, Failure> {
        let mut wanted = Self::default();
        for (name, value) in query(uri)? {
            let twice = match name.as_str() {
                "after" => wanted.after.replace(value).is_some(),
                "scope" => wanted.scope.replace(value.parse()?).is_some(),
                "compat" => wanted.compat.replace(value.parse()?).is_some(),
                _ => false,
            };
            if twice {
                let detail = format!("{name} is given twice");
                return Err(Failure::new(ProblemType::BadIdentifier, detail));
            }
        }
        Ok(wanted)
    }
}

/// One follower's place in the feed. It holds nothing but that: what it does not read waits in the index's
/// ring, and is a gap once it has left it.
struct Subscription {
    service: Arc<IndexService>,
    caller: Arc<Principal>,
    scope: Option<ScopeId>,
    compat: Option<CompatId>,
    cursor: u64,
    opening: Option<Vec<u8>>,
    /// More may be there without a call.
    more: bool,
    /// When it ends, so that rights are looked at again.
    end: Instant,
    _follower: Follower,
}

impl Subscription {
    fn new(service: Arc<IndexService>, caller: Arc<Principal>, wanted: Wanted, follower: Follower) -> Self {
        let after = wanted.after.filter(|after| !after.is_empty());
        let known = after.as_deref().map(|after| service.feed.cursor_of(after));
        let mut opening = b": changes of this index\n".to_vec();
        let (cursor, gap) = match known {
            Some(Some(cursor)) => (cursor, false),
            lost => (feed::from_now(&service.read()), lost.is_some()),
        };
        let mut subscription = Self {
            caller,
            scope: wanted.scope,
            compat: wanted.compat,
            cursor,
            opening: None,
            more: true,
            end: Instant::now() + Duration::from_millis(service.config.max_event_stream_ms),
            service,
            _follower: follower,
        };
        if gap {
            subscription.resync(&mut opening);
        } else {
            subscription.place(&mut opening);
        }
        subscription.opening = Some(opening);
        subscription
    }

    /// The next octets; `None` at the stream's end.
    async fn next(&mut self) -> Option<Bytes> {
        if let Some(opening) = self.opening.take() {
            return Some(opening.into());
        }
        let service = Arc::clone(&self.service);
        let quiet = sleep(Duration::from_millis(service.config.event_keep_alive_ms));
        tokio::pin!(quiet);
        loop {
            let moved = service.feed.moved();
            tokio::pin!(moved);
            // From here on a call is not missed, whether or not it is waited for yet.
            moved.as_mut().enable();
            while self.more {
                let text = self.read();
                if !text.is_empty() {
                    return Some(text.into());
                }
                // Others' changes may be many.
                tokio::task::yield_now().await;
            }
            tokio::select! {
                biased;
                () = service.closing.cancelled() => return None,
                () = sleep_until(self.end) => return None,
                () = moved => {
                    sleep(GATHER).await;
                    self.more = true;
                }
                () = &mut quiet => {
                    // With its place, so that one who sees few of the changes does not fall behind.
                    let mut text = b": still here\n".to_vec();
                    self.place(&mut text);
                    return Some(text.into());
                }
            }
        }
    }

    /// Takes changes from the index: what of them this follower may and wants to see.
    fn read(&mut self) -> Vec<u8> {
        let mut text = Vec::new();
        let changes = self.service.read().changes_since(self.cursor, CHANGES_A_LOCK);
        match changes {
            Changes::Gap { next } => {
                self.cursor = next;
                self.resync(&mut text);
            }
            Changes::Events { events, next } => {
                self.cursor = next;
                self.more = events.len() == CHANGES_A_LOCK;
                for change in events.iter().filter(|change| self.wants(change)) {
                    self.write(change, &mut text);
                }
            }
        }
        text
    }

    fn wants(&self, change: &Change) -> bool {
        self.scope.is_none_or(|scope| scope == change.scope)
            && self.compat.is_none_or(|compat| compat == change.compat)
            && self.caller.has_scope(change.scope)
    }

    fn write(&self, change: &Change, out: &mut Vec<u8>) {
        let name: &[u8] = match change.kind {
            ChangeKind::Publish => b"event: publish\nid: ",
            ChangeKind::Withdraw => b"event: withdraw\nid: ",
            ChangeKind::Expire => b"event: expire\nid: ",
        };
        out.extend_from_slice(name);
        out.extend_from_slice(format!("{:016x}-", self.service.feed.incarnation()).as_bytes());
        push_integer(out, change.number + 1);
        out.extend_from_slice(b"\ndata: {\"compat_id\":");
        push_hex32(out, &change.compat.0);
        out.extend_from_slice(b",\"scope_id\":");
        push_hex16(out, &change.scope.0);
        out.extend_from_slice(b",\"block_key\":");
        push_hex32(out, &change.key.0);
        out.extend_from_slice(b",\"holder\":");
        push_text(out, change.holder.as_str());
        out.extend_from_slice(b"}\n\n");
    }

    /// Tells that changes were missed: the follower reads anew what it keeps.
    fn resync(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(b"event: resync\n");
        out.extend_from_slice(
            format!("id: {}\ndata: {{}}\n\n", self.service.feed.id_of(self.cursor)).as_bytes(),
        );
    }

    /// Tells where the follower is, without an event.
    fn place(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(format!("id: {}\n\n", self.service.feed.id_of(self.cursor)).as_bytes());
    }
}
