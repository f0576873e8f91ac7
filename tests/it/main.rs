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
mod disk;
mod escaped;
mod escapes;
mod failpoints;
mod first_starts;
mod harness;
mod introduction;
mod ladder;
mod large;
mod limits;
mod load;
mod login_path;
mod mcp;
mod mounts;
mod notices;
mod permissions;
mod power;
mod real;
mod restarts;
mod roles;
mod runtime;
mod sandbox;
mod secrets;
mod services;
mod slow_disk;
mod soak;
mod socket;
mod spawn;
mod standstill;
mod starts;
mod stops;
mod tree_budgets;
mod turns;
mod waits;
mod wall_clock;
