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
mod conditions;
mod demo;
mod failpoints;
mod harness;
mod introduction;
mod ladder;
mod large;
mod limits;
mod load;
mod mcp;
mod notices;
mod permissions;
mod power;
mod real;
mod restarts;
mod runtime;
mod sandbox;
mod secrets;
mod services;
mod slow_disk;
mod soak;
mod spawn;
mod starts;
mod stops;
mod tree_budgets;
mod turns;
