//! The one integration binary.

mod chaos;
mod clocks;
mod harness;
mod real;
mod restarts;
mod runtime;
mod stops;
mod turns;
