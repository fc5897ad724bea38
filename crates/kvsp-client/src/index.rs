//! Calls to the Index Service (draft sections 6.1 and 6.2), and those that every role shares.

mod events;

pub use events::{EventsQuery, IndexEvent, IndexEvents};

use std::sync::Arc;

use http::Method;
use kvsp_proto::descriptor::Descriptor;
use kvsp_proto::id::{BlockKey, CompatId, ScopeId};
use kvsp_proto::message::{
    BatchAnswer, BatchRequest, LookupAnswer, LookupRequest, ReplicaList, ReplicaName, ServiceRoot, StateBody,
    TtlAnswer,
};
use kvsp_proto::path;
use kvsp_proto::record::{InstanceStatus, ReplicaRecord};
use kvsp_proto::uri::{BaseUri, HolderUri};

use crate::error::ClientError;
use crate::transport::{Call, Client};

/// Every call fails as [`ClientError`] says; the problems are those of the profile's section 3.
impl Client {
    /// `GET {base}`: what a service is.
    ///
    /// # Errors
    /// [`ClientError`].
    pub async fn root(&self, base: &BaseUri) -> Result<ServiceRoot, ClientError> {
        self.call_json(base, Call::get("")).await
    }

    /// Publishes or refreshes a record; answers the TTL granted.
    ///
    /// # Errors
    /// [`ClientError`].
    pub async fn put_replica(
        &self,
        index: &BaseUri,
        record: &ReplicaRecord,
    ) -> Result<TtlAnswer, ClientError> {
        let path = path::replica(record.compat_id, record.scope_id, record.block_key, &record.holder);
        self.call_json(index, Call::json(Method::PUT, path, record)?).await
    }

    /// Withdraws a record. Withdrawing what is not there succeeds.
    ///
    /// # Errors
    /// [`ClientError`].
    pub async fn delete_replica(&self, index: &BaseUri, name: &ReplicaName) -> Result<(), ClientError> {
        let mut path = path::replica(name.compat_id, name.scope_id, name.block_key, &name.holder);
        if let Some(seq) = name.seq {
            path.push_str(&format!("?seq={seq}"));
        }
        self.call_empty(index, Call::delete(path)).await
    }

    /// One record; the error [is not found](ClientError::is_not_found) where there is none.
    ///
    /// # Errors
    /// [`ClientError`].
    pub async fn get_replica(
        &self,
        index: &BaseUri,
        compat: CompatId,
        scope: ScopeId,
        key: BlockKey,
        holder: &HolderUri,
    ) -> Result<ReplicaRecord, ClientError> {
        self.call_json(index, Call::get(path::replica(compat, scope, key, holder))).await
    }

    /// All live records of a block, ordered by holder.
    ///
    /// # Errors
    /// [`ClientError`].
    pub async fn block_replicas(
        &self,
        index: &BaseUri,
        compat: CompatId,
        scope: ScopeId,
        key: BlockKey,
    ) -> Result<Vec<ReplicaRecord>, ClientError> {
        let list: ReplicaList =
            self.call_json(index, Call::get(path::block_replicas(compat, scope, key))).await?;
        Ok(list.replicas.into_iter().map(Arc::unwrap_or_clone).collect())
    }

    /// Publishes and withdraws many records; each item is judged alone, in order.
    ///
    /// # Errors
    /// [`ClientError`], also where the answer does not have one item for each asked.
    pub async fn batch(&self, index: &BaseUri, request: &BatchRequest) -> Result<BatchAnswer, ClientError> {
        let answer: BatchAnswer =
            self.call_json(index, Call::json(Method::POST, path::REPLICAS, request)?).await?;
        if (answer.put.len(), answer.delete.len()) != (request.put.len(), request.delete.len()) {
            return Err(ClientError::protocol("the batch's answer has another number of items"));
        }
        Ok(answer)
    }

    /// Looks up the leading blocks of a prompt.
    ///
    /// # Errors
    /// [`ClientError`], also where the answer's counts do not add up.
    pub async fn lookup(
        &self,
        index: &BaseUri,
        request: &LookupRequest,
    ) -> Result<LookupAnswer, ClientError> {
        let answer: LookupAnswer =
            self.call_json(index, Call::json(Method::POST, path::LOOKUP, request)?).await?;
        let asked = request.block_keys.len() as u64;
        let listed = answer.blocks.as_ref().is_none_or(|blocks| blocks.len() as u64 == answer.matched);
        if answer.complete > answer.matched || answer.matched > asked || !listed {
            return Err(ClientError::protocol("the lookup's counts do not add up"));
        }
        Ok(answer)
    }

    /// Withdraws all records of a holder.
    ///
    /// # Errors
    /// [`ClientError`].
    pub async fn delete_holder(&self, index: &BaseUri, holder: &HolderUri) -> Result<(), ClientError> {
        self.call_empty(index, Call::delete(path::holder(holder))).await
    }

    /// Reports an instance's status, to the index or the controller; answers the state it is to be in.
    ///
    /// # Errors
    /// [`ClientError`].
    pub async fn put_status(
        &self,
        service: &BaseUri,
        status: &InstanceStatus,
    ) -> Result<StateBody, ClientError> {
        let path = path::instance_status(&status.instance);
        self.call_json(service, Call::json(Method::PUT, path, status)?).await
    }

    /// Registers a descriptor under its Compatibility ID.
    ///
    /// # Errors
    /// [`ClientError`].
    pub async fn put_descriptor(
        &self,
        service: &BaseUri,
        descriptor: &Descriptor,
    ) -> Result<(), ClientError> {
        let path = path::descriptor(descriptor.compat_id());
        let call = Call::new(Method::PUT, path).with_body(path::MEDIA_JSON, descriptor.jcs().into());
        self.call_empty(service, call).await
    }

    /// A registered descriptor. Its Compatibility ID is computed, not believed (draft section 4.1).
    ///
    /// # Errors
    /// [`ClientError`], [`ClientError::Protocol`] where the descriptor is another's.
    pub async fn get_descriptor(
        &self,
        service: &BaseUri,
        compat: CompatId,
    ) -> Result<Descriptor, ClientError> {
        let answer = self.call(service, Call::get(path::descriptor(compat))).await?;
        answer.require_json()?;
        let descriptor =
            Descriptor::from_json(&answer.body).map_err(|error| ClientError::protocol(error.to_string()))?;
        if descriptor.compat_id() != compat {
            return Err(ClientError::protocol("the descriptor has another Compatibility ID"));
        }
        Ok(descriptor)
    }
}
