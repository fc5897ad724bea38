//! Sessions: nothing is shown before the controller acknowledged it, another instance goes on exactly, and what is
//! fenced stops (draft section 6.8, profile section 7).

mod controller;
mod inputs;
mod output;
mod resume;
mod rights;
mod work;
