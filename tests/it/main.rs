//! The one integration binary.

mod api;
mod bad_input;
mod chaos;
mod clocks;
mod harness;
mod large;
mod real;
mod restarts;
mod runtime;
mod stops;
mod turns;
