//! The lease that keeps a source from evicting what is being loaded (draft section 6.6).

use std::collections::BTreeSet;
use std::sync::Arc;

use kvsp_client::{Client, ClientError};
use kvsp_proto::id::BlockKey;
use kvsp_proto::message::LeaseRequest;
use kvsp_proto::uri::BaseUri;
use uuid::Uuid;

use super::Load;

/// A lease while it is held; renewed in the background until it is dropped, then released.
pub(super) struct HeldLease {
    client: Client,
    source: BaseUri,
    lease: Uuid,
    renewing: tokio::task::JoinHandle<()>,
}

/// Lease blocks at a source. Returns the lease and the blocks that the source does not hold.
///
/// A source that has no leases to give, or grants none for want of quota, is still read: its blocks may vanish
/// under the load, which is then a miss like any other.
///
/// # Errors
/// [`ClientError`] where the source cannot be used at all.
pub(super) async fn take(
    load: &Arc<Load>,
    source: &BaseUri,
    keys: Vec<BlockKey>,
) -> Result<(Option<HeldLease>, BTreeSet<BlockKey>), ClientError> {
    let client = load.agent.client.clone();
    let request = LeaseRequest {
        compat_id: load.compat,
        scope_id: load.scope,
        block_keys: keys.clone(),
        ttl_ms: load.lease_ms,
    };
    let granted = match client.create_lease(source, &request, Some(load.agent.random.uuid())).await {
        Ok(granted) => granted,
        Err(error) if error.is_not_found() => return Ok((None, keys.into_iter().collect())),
        Err(ClientError::Problem(problem)) if matches!(problem.status(), 405 | 429 | 501) => {
            return Ok((None, BTreeSet::new()));
        }
        Err(error) => return Err(error),
    };
    let (renewer, at, lease, ttl_ms) = (client.clone(), source.clone(), granted.lease, load.lease_ms);
    let period = load.lease_time().max(std::time::Duration::from_millis(100)) / 2;
    let renewing = tokio::spawn(async move {
        loop {
            tokio::time::sleep(period).await;
            if renewer.renew_lease(&at, lease, ttl_ms).await.is_err() {
                return;
            }
        }
    });
    let held = HeldLease { client, source: source.clone(), lease, renewing };
    Ok((Some(held), granted.missing.into_iter().collect()))
}

impl Drop for HeldLease {
    fn drop(&mut self) {
        self.renewing.abort();
        let (client, source, lease) = (self.client.clone(), self.source.clone(), self.lease);
        // If the release is lost the lease runs out by itself.
        tokio::spawn(async move { drop(client.release_lease(&source, lease).await) });
    }
}
