//! The KVSP Placement Controller.
