//! The resources of the Placement Controller.

mod checkpoints;
mod descriptors;
mod instances;
mod maps;
mod placements;
mod sessions;
mod shortcut;

use std::sync::Arc;

use axum::Router;
use axum::routing::{get, post, put};
use kvsp_proto::path;

use crate::service::ControllerService;
#[cfg(test)]
pub(crate) use maps::MAX_URI_OCTETS;
pub(crate) use shortcut::Direct;

/// The state of every handler.
type Service = axum::extract::State<Arc<ControllerService>>;

pub(crate) fn router(service: Arc<ControllerService>) -> Router {
    let at = |path: &str| format!("/{path}");
    Router::new()
        .route(&at(path::INSTANCES), get(instances::list))
        .route(&at(path::INSTANCE_ROUTE), get(instances::get))
        .route(&at(path::INSTANCE_STATUS_ROUTE), put(instances::put_status))
        .route(&at(path::INSTANCE_STATE_ROUTE), put(instances::put_state))
        .route(&at(path::PLACEMENTS), post(placements::place))
        .route(&at(path::DESCRIPTOR_ROUTE), put(descriptors::put).get(descriptors::get))
        .route(&at(path::SESSIONS), get(sessions::list))
        .route(&at(path::SESSION_ROUTE), get(sessions::get).delete(sessions::delete))
        .route(
            &at(path::SESSION_CHECKPOINT_ROUTE),
            put(checkpoints::put).patch(checkpoints::patch).get(checkpoints::get),
        )
        .route(&at(path::SESSION_CONTINUATION_ROUTE), get(sessions::continuation))
        .route(&at(path::SESSION_FAILOVER_ROUTE), post(sessions::failover))
        .route(&at(path::MAPS), get(maps::list))
        .route(&at(path::MAP_ROUTE), put(maps::put).get(maps::get).delete(maps::delete))
        .route(&at(path::MAP_RESHARD_ROUTE), post(maps::reshard))
        .with_state(service)
}
