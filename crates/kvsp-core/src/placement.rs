//! Placement by cost (draft section 6.4).
