//! Calls to the Placement Controller (draft sections 6.3 and 6.4).

use http::Method;
use kvsp_proto::message::{
    InstanceList, InstanceView, PlacementAnswer, PlacementRequest, StateBody, StateOrder,
};
use kvsp_proto::path;
use kvsp_proto::record::InstanceState;
use kvsp_proto::uri::BaseUri;

use crate::error::ClientError;
use crate::transport::{Call, Client};

impl Client {
    /// Asks where a request is best served.
    ///
    /// # Errors
    /// [`ClientError`].
    pub async fn place(
        &self,
        controller: &BaseUri,
        request: &PlacementRequest,
    ) -> Result<PlacementAnswer, ClientError> {
        self.call_json(controller, Call::json(Method::POST, path::PLACEMENTS, request)?).await
    }

    /// All instances that the controller knows.
    ///
    /// # Errors
    /// [`ClientError`].
    pub async fn instances(&self, controller: &BaseUri) -> Result<InstanceList, ClientError> {
        self.call_json(controller, Call::get(path::INSTANCES)).await
    }

    /// One instance as the controller sees it.
    ///
    /// # Errors
    /// [`ClientError`].
    pub async fn instance(
        &self,
        controller: &BaseUri,
        instance: &BaseUri,
    ) -> Result<InstanceView, ClientError> {
        self.call_json(controller, Call::get(path::instance(instance))).await
    }

    /// Has the controller put an instance into a state.
    ///
    /// # Errors
    /// [`ClientError`].
    pub async fn put_instance_state(
        &self,
        controller: &BaseUri,
        instance: &BaseUri,
        state: InstanceState,
    ) -> Result<StateBody, ClientError> {
        self.order_instance_state(controller, instance, StateOrder { state, migrate: false }).await
    }

    /// Has the controller put an instance into a state, and its sessions elsewhere where that is wanted.
    ///
    /// # Errors
    /// [`ClientError`].
    pub async fn order_instance_state(
        &self,
        controller: &BaseUri,
        instance: &BaseUri,
        order: StateOrder,
    ) -> Result<StateBody, ClientError> {
        let path = path::instance_state(instance);
        self.call_json(controller, Call::json(Method::PUT, path, &order)?).await
    }
}
