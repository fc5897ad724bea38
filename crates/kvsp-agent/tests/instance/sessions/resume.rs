//! Another instance goes on.
