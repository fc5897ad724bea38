//! Publishing, refreshing and withdrawing replicas (draft section 6.1, profile section 5).

mod desired;
mod driver;

pub(crate) use desired::{Desired, Pace};
pub(crate) use driver::Publisher;
