//! The block and lease resources and the publisher of replicas, mounted by holders and instances.
