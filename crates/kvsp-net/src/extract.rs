//! What a handler takes from a request, in the order of checks of the profile's section 3.

mod body;
mod path;
mod query;

pub use body::RequestBody;
pub use path::{PathOf, PathSegment, PathSegments};
pub use query::query;
