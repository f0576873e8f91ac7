//! The one integration binary.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::print_stderr,
    clippy::disallowed_methods,
    reason = "tests start the processes that they test, and fail by panics"
)]

mod agents;
mod api;
mod bad_input;
mod budgets;
mod callers;
mod chaos;
mod clocks;
mod demo;
mod harness;
mod introduction;
mod ladder;
mod large;
mod limits;
mod load;
mod mcp;
mod notices;
mod permissions;
mod real;
mod restarts;
mod runtime;
mod secrets;
mod spawn;
mod starts;
mod stops;
mod turns;
