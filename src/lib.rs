//! spawnlet keeps coding agents as declarative records and drives their processes toward them.
//!
//! The map is in `ARCHITECTURE.md`. In one breath: users write desired state ([`api`] records) into
//! the [`store`] through `rest`, `manifests` and later `mcp`; a `controller` observes each
//! session as one value, lets the pure [`plan`] decide, carries the steps out through `runtime`
//! (processes) and `acp` (protocol), and writes back what it saw.

pub mod acp;
pub mod admission;
pub mod api;
pub mod boundary;
pub mod cli;
pub mod clock;
pub mod controller;
pub mod demo;
pub mod failpoint;
#[cfg(test)]
mod fuzz;
pub mod guard;
pub mod ledger;
pub mod manifests;
pub mod mcp;
pub mod options;
pub mod plan;
pub mod ports;
pub mod rest;
pub mod runtime;
pub mod secret;
pub mod server;
pub mod slots;
pub mod store;
