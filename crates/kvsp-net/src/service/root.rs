//! The routes of a service below its base path, with the root document.

use axum::Router;
use axum::routing::get;
use http::StatusCode;
use kvsp_proto::message::ServiceRoot;

use super::ServiceFacts;
use crate::reply;

/// The version of the profile that is served.
const PROFILE: u32 = 1;

/// `router` below `base_path`, and the root document at it, with and without its last slash.
pub(super) fn mount(base_path: &str, router: Router, facts: &ServiceFacts) -> Router {
    let owned = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
    let document = ServiceRoot {
        kvsp: PROFILE,
        roles: owned(&facts.roles),
        extensions: owned(&facts.extensions),
        limits: facts.limits,
    };
    let root = get(async move || reply::json(StatusCode::OK, &document));
    let bare = base_path.trim_end_matches('/');
    if bare.is_empty() {
        return router.route("/", root);
    }
    Router::new().nest(bare, router).route(bare, root.clone()).route(base_path, root)
}
