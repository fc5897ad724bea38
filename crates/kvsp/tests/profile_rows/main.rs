//! The profile's sections 3 and 5, row by row and sentence by sentence, as a stranger sees them: over HTTP,
//! against processes of the program in development mode. Requests and expectations are made from the two
//! specifications alone.

#![allow(clippy::unwrap_used, clippy::panic)]

mod blocks;
mod index;
mod leases;
mod rows;
mod status;
#[path = "../crash/support.rs"]
mod support;
