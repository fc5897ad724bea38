//! The index of replicas (draft sections 6.1 and 6.2).
