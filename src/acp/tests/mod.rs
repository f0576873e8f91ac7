//! Tests of the connection: the machine alone, and the service over pipes in paused time.

mod bench;
mod cancel;
mod fuzz;
mod games;
mod lines;
mod permission;
mod schema;
mod service;
mod services;
mod session;
mod settings;
