//! The instance agent: an inference engine as a KVSP instance and holder.
