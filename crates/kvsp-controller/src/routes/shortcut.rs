//! Past the router to checkpoints: they come with every few tokens of every session.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use axum::extract::{Request, State};
use axum::response::{IntoResponse as _, Response};
use http::Method;
use kvsp_net::auth::Caller;
use kvsp_net::extract::{PathOf, PathSegment as _, RequestBody};
use kvsp_net::service::Shortcut;
use kvsp_proto::path;
use uuid::Uuid;

use super::checkpoints;
use crate::service::ControllerService;

/// Finds the handler of a checkpoint whose path is plainly that of one; the router has the same routes, and judges
/// every other path.
pub(crate) struct Direct {
    service: Arc<ControllerService>,
    base: String,
}

impl Direct {
    /// Handlers below `base`, a path that ends in a slash.
    pub(crate) fn new(service: Arc<ControllerService>, base: &str) -> Arc<Self> {
        Arc::new(Self { service, base: base.to_owned() })
    }
}

impl Shortcut for Direct {
    fn answer(
        &self,
        caller: &Caller,
        request: &mut Request,
    ) -> Option<Pin<Box<dyn Future<Output = Response> + Send>>> {
        let is_patch = match *request.method() {
            Method::PATCH => true,
            Method::PUT => false,
            _ => return None,
        };
        let path = request.uri().path().strip_prefix(self.base.as_str())?;
        let session = PathOf(session_of(path)?);
        let (service, caller) = (State(Arc::clone(&self.service)), caller.clone());
        let body = RequestBody::take(request);
        Some(Box::pin(async move {
            let answer = if is_patch {
                checkpoints::patch(service, caller, session, body).await
            } else {
                checkpoints::put(service, caller, session, body).await
            };
            answer.into_response()
        }))
    }
}

/// The session of the path of a checkpoint; `None` unless it is plainly one.
fn session_of(path: &str) -> Option<Uuid> {
    let (session, rest) = path.strip_prefix(path::SESSIONS)?.strip_prefix('/')?.split_once('/')?;
    if rest != "checkpoint" {
        return None;
    }
    Uuid::from_segment(session).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_plain_path_of_a_checkpoint_is_taken() {
        let session = Uuid::from_u128(7);
        let plain = path::session_checkpoint(session);
        assert_eq!(session_of(&plain), Some(session));
        for other in [
            format!("{plain}/"),
            format!("/{plain}"),
            plain.replacen('/', "//", 1),
            plain.replacen('7', "%37", 1),
            path::session(session),
            path::session_continuation(session),
            "sessions/x/checkpoint".to_owned(),
            String::new(),
        ] {
            assert_eq!(session_of(&other), None, "{other}");
        }
    }
}
