//! The one integration binary.

mod api;
mod bad_input;
mod clocks;
mod harness;
mod large;
mod restarts;
mod runtime;
mod stops;
mod turns;
