//! Calls about sequence-sharded contexts, to the Placement Controller and to members (draft section 6.9, profile
//! sections 5 and 8).

use http::{HeaderValue, Method, StatusCode};
use kvsp_proto::message::{
    HeldView, LengthAnswer, LengthRequest, MapCreate, MapId, MapList, MapView, OpenContext, ReshardMessage,
    ReshardRequest,
};
use kvsp_proto::path::{self, SESSION_EPOCH_HEADER};
use kvsp_proto::uri::BaseUri;

use crate::error::ClientError;
use crate::transport::{Call, Client};

impl Client {
    /// Creates version 1 of a map.
    ///
    /// # Errors
    /// [`ClientError`].
    pub async fn create_map(
        &self,
        controller: &BaseUri,
        map: &MapId,
        create: &MapCreate,
    ) -> Result<MapView, ClientError> {
        self.call_json(controller, Call::json(Method::PUT, path::map(map), create)?).await
    }

    /// How a map stands.
    ///
    /// # Errors
    /// [`ClientError`].
    pub async fn map(&self, controller: &BaseUri, map: &MapId) -> Result<MapView, ClientError> {
        self.call_json(controller, Call::get(path::map(map))).await
    }

    /// All maps that the caller may see (an extension).
    ///
    /// # Errors
    /// [`ClientError`].
    pub async fn maps(&self, controller: &BaseUri) -> Result<MapList, ClientError> {
        self.call_json(controller, Call::get(path::MAPS)).await
    }

    /// Has a map split anew; the answer comes before it is.
    ///
    /// # Errors
    /// [`ClientError`].
    pub async fn reshard_map(
        &self,
        controller: &BaseUri,
        map: &MapId,
        request: &ReshardRequest,
    ) -> Result<MapView, ClientError> {
        self.call_json(controller, Call::json(Method::POST, path::map_reshard(map), request)?).await
    }

    /// Ends a map at the controller, or has a member forget it and free its memory (extensions).
    ///
    /// # Errors
    /// [`ClientError`].
    pub async fn end_map(&self, service: &BaseUri, map: &MapId) -> Result<(), ClientError> {
        self.call_empty(service, Call::delete(path::map(map))).await
    }

    /// Tells a member of a map a plan, a commit or an abort. A plan is answered once its ranges are loaded. The
    /// acknowledgement is the 200 alone: the texts do not say what is in its body.
    ///
    /// # Errors
    /// [`ClientError`]; [`ClientError::Protocol`] for any other success.
    pub async fn tell_reshard(&self, member: &BaseUri, message: &ReshardMessage) -> Result<(), ClientError> {
        let call = Call::json(Method::POST, path::RESHARD, message)?;
        let response = self.begin(member, call, false).await?;
        let status = response.status();
        response.into_body().collect(self.config().max_json_octets).await?;
        if status == StatusCode::OK {
            return Ok(());
        }
        Err(ClientError::protocol(format!("status {status} acknowledges nothing")))
    }

    /// Asks the leader of a context for its length, now that a change of its map begins (extension
    /// `group-attention`).
    ///
    /// # Errors
    /// [`ClientError`].
    pub async fn context_length(
        &self,
        leader: &BaseUri,
        map: &MapId,
        version: u64,
        request: &LengthRequest,
    ) -> Result<LengthAnswer, ClientError> {
        let path = path::map_length(map, version);
        self.call_json(leader, Call::json(Method::POST, path, request)?).await
    }

    /// Begins to lead a context at a member (an extension).
    ///
    /// # Errors
    /// [`ClientError`].
    pub async fn open_context(
        &self,
        member: &BaseUri,
        map: &MapId,
        open: &OpenContext,
    ) -> Result<HeldView, ClientError> {
        self.call_json(member, Call::json(Method::PUT, path::map(map), open)?.of_epoch(open.epoch)).await
    }

    /// What a member holds of a context (an extension).
    ///
    /// # Errors
    /// [`ClientError`].
    pub async fn held(&self, member: &BaseUri, map: &MapId) -> Result<HeldView, ClientError> {
        self.call_json(member, Call::get(path::map(map))).await
    }
}

impl Call {
    /// From the leader of a context, in this epoch of its session.
    pub(crate) fn of_epoch(mut self, epoch: u64) -> Self {
        self.headers.insert(SESSION_EPOCH_HEADER, HeaderValue::from(epoch));
        self
    }
}
