//! Errors of the layers below as problems of the profile's section 3.

use kvsp_core::lease::LeaseError;
use kvsp_proto::descriptor::DescriptorError;
use kvsp_proto::problem::{Problem, ProblemType};
use kvsp_store::StoreError;

use crate::keep::KeepError;

pub(crate) fn not_found() -> Problem {
    Problem::new(ProblemType::BlockNotFound, "the block is not held here")
}

pub(crate) fn exists() -> Problem {
    Problem::new(ProblemType::BlockExists, "a replica is held already, and kept")
}

pub(crate) fn layers_unavailable() -> Problem {
    Problem::new(ProblemType::LayersUnavailable, "those layers are not held here")
}

pub(crate) fn no_memory() -> Problem {
    Problem::new(ProblemType::Overloaded, "too many octets are in memory").retry_after(1)
}

pub(crate) fn keep(error: KeepError) -> Problem {
    match error {
        KeepError::Full => Problem::new(ProblemType::StorageFull, "no eviction can make room"),
        KeepError::Stuck => {
            let detail = "an earlier block of that name could not be deleted yet";
            Problem::new(ProblemType::Overloaded, detail).retry_after(1)
        }
        KeepError::Leased => Problem::new(ProblemType::BlockLeased, "the block is under lease"),
        KeepError::Store(error) => store(&error),
    }
}

/// What failed is told to the operator; the peer learns only that it did.
pub(crate) fn store(error: &StoreError) -> Problem {
    if matches!(error, StoreError::NoMemory) {
        return no_memory();
    }
    tracing::error!(%error, "a tier failed");
    match error {
        error if error.is_full() => Problem::new(ProblemType::StorageFull, "the device is full"),
        StoreError::Stopped => Problem::blank(503, "the service is stopping"),
        _ => Problem::blank(500, "the block could not be read or written"),
    }
}

pub(crate) fn lease(error: LeaseError) -> Problem {
    let detail = error.to_string();
    match error {
        LeaseError::Quota { asked, leased, limit, retry_ms } => {
            let problem = Problem::new(ProblemType::LeaseQuota, detail)
                .with("asked", asked)
                .with("leased", leased)
                .with("limit", limit);
            match retry_ms {
                Some(ms) => problem.retry_after(ms.div_ceil(1000)),
                None => problem,
            }
        }
        LeaseError::TooMany => Problem::new(ProblemType::Overloaded, detail).retry_after(1),
        LeaseError::NothingHeld => Problem::new(ProblemType::BlockNotFound, detail),
        LeaseError::Unknown => Problem::new(ProblemType::LeaseUnknown, detail),
        LeaseError::KeyReused => Problem::new(ProblemType::DirectiveConflict, detail),
    }
}

pub(crate) fn descriptor(error: DescriptorError) -> Problem {
    match error {
        DescriptorError::Json(error) => error.into(),
        DescriptorError::Invalid { .. } => Problem::new(ProblemType::DescriptorInvalid, error.to_string()),
    }
}
