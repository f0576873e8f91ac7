//! The boundary: text of a child on its way to a parent or a person.
//!
//! What an agent wrote is untrusted. It leaves the daemon in bounded pieces that end between two
//! characters ([`cut`]), and a place in it is named by a cursor that nobody can make up
//! ([`cursor`]). Where it becomes part of what a model or a person reads, it is escaped ([`escape`]);
//! where it is asked for as it is (`read_response`, the answer of a call that waits) it is not.
//! Nothing here reads or writes a record.
//!
//! Invariants: a piece is never longer than was asked for; pieces put together are the text, byte
//! for byte; a cursor that was changed, written in another way or made for another response is
//! none.
//!
//! Absent, for now: envelopes, which the subagent tools and the page need.

pub mod cursor;
pub mod cut;
pub mod escape;

#[cfg(test)]
mod fuzz;
