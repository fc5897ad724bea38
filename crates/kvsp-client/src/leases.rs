//! Leases at a holder (draft section 6.6).

use http::{HeaderValue, Method};
use kvsp_proto::message::{LeaseAnswer, LeaseRequest, RenewRequest};
use kvsp_proto::path;
use kvsp_proto::uri::BaseUri;
use uuid::Uuid;

use crate::error::ClientError;
use crate::transport::{Call, Client};

/// A lease's TTL counts from the sending of the request (profile section 5): take the time before the call.
impl Client {
    /// Leases blocks. With an idempotency key a retry answers the first lease.
    ///
    /// # Errors
    /// [`ClientError`].
    pub async fn create_lease(
        &self,
        holder: &BaseUri,
        request: &LeaseRequest,
        idempotency_key: Option<Uuid>,
    ) -> Result<LeaseAnswer, ClientError> {
        let mut call = Call::json(Method::POST, path::LEASES, request)?;
        if let Some(key) = idempotency_key {
            let value = HeaderValue::try_from(key.to_string())
                .map_err(|_| ClientError::protocol("the idempotency key is not a field value"))?;
            call.headers.insert("idempotency-key", value);
        }
        self.call_json(holder, call).await
    }

    /// What a lease covers and for how long.
    ///
    /// # Errors
    /// [`ClientError`].
    pub async fn get_lease(&self, holder: &BaseUri, lease: Uuid) -> Result<LeaseAnswer, ClientError> {
        self.call_json(holder, Call::get(path::lease(lease))).await
    }

    /// Renews a lease to `ttl_ms` from now.
    ///
    /// # Errors
    /// [`ClientError`].
    pub async fn renew_lease(
        &self,
        holder: &BaseUri,
        lease: Uuid,
        ttl_ms: u64,
    ) -> Result<LeaseAnswer, ClientError> {
        self.call_json(holder, Call::json(Method::PUT, path::lease(lease), &RenewRequest { ttl_ms })?).await
    }

    /// Releases a lease.
    ///
    /// # Errors
    /// [`ClientError`].
    pub async fn release_lease(&self, holder: &BaseUri, lease: Uuid) -> Result<(), ClientError> {
        self.call_empty(holder, Call::delete(path::lease(lease))).await
    }
}
