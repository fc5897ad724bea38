//! Listener, principals, limits, problem responses, graceful stop, telemetry and clock for KVSP services.
