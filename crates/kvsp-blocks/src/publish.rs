//! Publishing, refreshing and withdrawing replicas (draft section 6.1, profile section 5).

mod desired;
mod driver;
mod pace;
mod watch;

pub(crate) use desired::Desired;
pub(crate) use driver::Publisher;
pub(crate) use pace::Pace;
