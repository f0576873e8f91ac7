//! The whole loop in memory: a store, agents and processes that are tasks, and paused time.

mod agent;
mod bench;
mod gate;
mod ground;
mod turns;
