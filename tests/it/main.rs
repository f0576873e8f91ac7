//! The one integration binary.

mod clocks;
mod harness;
mod restarts;
mod real;
mod runtime;
mod stops;
mod turns;
