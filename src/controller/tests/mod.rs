//! The whole loop in memory: a store, agents and processes that are tasks, and paused time.

mod agent;
mod agents;
mod bench;
mod callers;
mod cancels;
mod clocks;
mod crashes;
mod faults;
mod gate;
mod ground;
mod late;
mod notices;
mod permissions;
mod processes;
mod spawn;
mod stalled;
mod tree;
mod turns;
