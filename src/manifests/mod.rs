//! The watched directories: manifest files in, desired state out.
//!
//! A look at them goes through [`directory`] (list and read, safely), [`yaml`] (parse within
//! bounds, with places), [`document`] (check whole files), [`diff`] (decide, pure), `apply` (carry
//! out through admission) and `report` (tell); [`watcher`] says when to look. It stands before the
//! loop: what is written here the controller sees by its watch.
//!
//! Invariants: a file is applied whole or not at all, and while it is in no order it keeps what it
//! last applied; nothing that runs is touched because a directory cannot be seen; what somebody
//! else removed is not made again until its document changes.
//!
//! Absent on purpose: processes, agents, and any write that does not go through admission (but for
//! the marks and events, which are this module's own records).

mod apply;
pub mod diff;
pub mod directory;
pub mod document;
mod gate;
mod handle;
mod ledger;
mod native;
mod report;
mod shelf;
mod tell;
pub mod watcher;
pub mod yaml;

pub use handle::{Handle, Report};
pub use watcher::{Options, Service};

#[cfg(test)]
mod fuzz;
