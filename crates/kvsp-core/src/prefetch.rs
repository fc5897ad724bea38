//! Prefetch directives (draft section 6.5).
