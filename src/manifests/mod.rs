//! The watched directory: manifest files in, desired state out.
pub mod diff;
pub mod directory;
pub mod document;
pub mod gate;
mod ledger;
mod native;
mod shelf;
pub mod yaml;
