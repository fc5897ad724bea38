//! The resources of the Placement Controller.

mod descriptors;
mod instances;
mod placements;

use std::sync::Arc;

use axum::Router;
use axum::routing::{get, post, put};
use kvsp_proto::path;

use crate::service::ControllerService;

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
        .with_state(service)
}
