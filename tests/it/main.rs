//! The one integration binary.

mod clocks;
mod harness;
mod restarts;
mod runtime;
mod stops;
mod turns;
