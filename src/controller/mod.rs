//! The reconcile loop.

pub mod queue;
