//! The one integration binary.

mod clocks;
mod harness;
mod real;
mod restarts;
mod runtime;
mod stops;
mod turns;
