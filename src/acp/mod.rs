//! The Agent Client Protocol, version 1: our side of one connection to one agent.
//!
//! Where it stands: the controller starts a process through `runtime` and gives its pipes to
//! [`connection::connect`]; from there on it calls the `Handle` and reads [`event::Event`]s, in the
//! order of the wire. What an agent offers to be set is in [`crate::options`], which is
//! pure and belongs to the planner as much as to us.
//!
//! Invariants: every buffer is bounded; every request of an agent is answered; nothing that an
//! agent writes makes this module panic or drop an event; back-pressure is the only answer to a
//! slow reader. Deliberately absent: processes, files, deadlines of calls (they are the caller's), the
//! store, and the protocol's aggregate types, which do not parse what a newer agent sends.

pub mod codec;
pub mod connection;
mod counts;
pub mod event;
mod machine;
mod outbox;
pub mod permission;
mod requests;
pub mod roots;
pub mod services;
mod update;
pub mod usage;
mod wire;

pub use connection::{Handle, Open, Options, Refused, Scope, Service, connect};
pub use counts::Counts;
pub use event::Event;
pub use outbox::WRITE_QUEUE_BYTES_MAX;

#[cfg(test)]
mod tests;
