//! What the controller asks the index: the replicas of a prompt, and descriptors it was not told itself.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use kvsp_client::ClientError;
use kvsp_core::placement::Prefix;
use kvsp_core::time::Time;
use kvsp_proto::descriptor::Descriptor;
use kvsp_proto::id::CompatId;
use kvsp_proto::message::{Detail, LookupRequest, PlacementRequest};

use crate::service::ControllerService;

/// How long the index is not asked again for a descriptor that it did not have.
const RETRY: Duration = Duration::from_secs(5);

/// Most compatibilities whose descriptors are remembered to be unknown.
const MAX_UNKNOWN: usize = 1024;

/// Compatibilities whose descriptors the index did not have, with the time until which that is believed.
#[derive(Debug, Default)]
pub(crate) struct Unknown {
    until: BTreeMap<CompatId, Time>,
}

impl Unknown {
    fn holds(&self, compat: CompatId, now: Time) -> bool {
        self.until.get(&compat).is_some_and(|until| *until > now)
    }

    fn note(&mut self, compat: CompatId, now: Time) {
        if self.until.len() >= MAX_UNKNOWN {
            self.until.retain(|_, until| *until > now);
        }
        if self.until.len() < MAX_UNKNOWN {
            self.until.insert(compat, now + RETRY);
        }
    }
}

impl ControllerService {
    /// The complete blocks of a prompt; `None` where the index could not be asked.
    pub(crate) async fn prefix(&self, request: &PlacementRequest, layers: Option<u32>) -> Option<Prefix> {
        if request.block_keys.is_empty() {
            return Some(Prefix::default());
        }
        let index = self.config.index.as_ref()?;
        let lookup = LookupRequest {
            scope_id: request.scope_id,
            compat_id: request.compat_id,
            block_keys: request.block_keys.clone(),
            targets: Vec::new(),
            detail: Detail::Location,
            block_tokens: None,
        };
        let asked = tokio::time::timeout(self.config.index_timeout(), self.client.lookup(index, &lookup));
        match asked.await {
            Ok(Ok(answer)) => Some(Prefix::of(answer, &request.block_keys, layers)),
            Ok(Err(error)) => {
                tracing::warn!(%error, "placing without the index");
                None
            }
            Err(_) => {
                tracing::warn!("placing without the index: it did not answer in time");
                None
            }
        }
    }

    /// The descriptor of a compatibility, from here or from the index.
    pub(crate) async fn descriptor(&self, compat: CompatId) -> Option<Arc<Descriptor>> {
        let known = self.descriptors().get(compat).cloned();
        if known.is_some() {
            return known;
        }
        let index = self.config.index.as_ref()?;
        if self.unknown().holds(compat, self.now()) {
            return None;
        }
        let asked =
            tokio::time::timeout(self.config.index_timeout(), self.client.get_descriptor(index, compat))
                .await;
        let now = self.now();
        match asked {
            Ok(Ok(descriptor)) => {
                let mut descriptors = self.descriptors();
                if let Err(refusal) = descriptors.register(compat, descriptor) {
                    tracing::warn!(%refusal, "a descriptor of the index is not kept");
                }
                descriptors.get(compat).cloned()
            }
            Ok(Err(error)) => {
                if !ClientError::is_not_found(&error) {
                    tracing::debug!(%error, "no descriptor from the index");
                }
                self.unknown().note(compat, now);
                None
            }
            Err(_) => {
                self.unknown().note(compat, now);
                None
            }
        }
    }
}
