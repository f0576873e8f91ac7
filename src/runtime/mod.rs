//! Processes: the only module that starts or signals any.
//!
//! In the loop it stands behind the controller's `act`. A launch goes through `spawnlet-shim`,
//! which waits at a gate until the daemon has recorded who it is ([`launch`], [`process`]); a stop
//! ends with an empty tree; what an earlier daemon left behind is cleared at start ([`leftovers`]).
//! [`executable`], [`environment`], [`credentials`], [`home`] and [`scope`] turn an Agent and a
//! Session into what is started, [`sandbox`] into what the kernel lets it do; [`stderr`] keeps what
//! it complains about. [`machine`] tells what this machine has of the guards that all this needs.
//! [`files`] and [`terminals`] are what agents may ask of the daemon.
//!
//! Invariants: no agent runs that was not recorded first (what runs in its terminals is not
//! recorded: it is proven gone before the agent counts as gone, and carries the store's mark); no
//! process is signalled that is not provably of this store (a child of ours, a descendant of one, or a process that agrees with its
//! record or carries this store's mark, held by a pidfd before it is looked at); an agent's
//! arguments and variables are in no other process's; a tree counts as empty only when the shim
//! said so or nothing of it can be found and nothing could be hidden. Only `sys.rs` has `unsafe`.
//!
//! Absent on purpose: any knowledge of records' meaning, deadlines (the planner's) and the
//! protocol. The kernel's parent-death signal is not used: it goes by the thread that forked, and
//! tokio's threads end while the daemon lives (3 of 3 agents died when it was measured).

pub mod cgroup;
pub mod credentials;
pub mod environment;
pub mod executable;
pub mod files;
pub mod home;
pub mod launch;
pub mod leftovers;
pub mod login;
pub mod login_path;
pub mod machine;
pub mod orphans;
pub mod peers;
mod proc;
pub mod process;
pub mod sandbox;
pub mod scope;
pub mod stderr;
mod sys;
pub mod terminals;
pub mod tree;
#[allow(dead_code, reason = "the shim's half of the protocol is not used here")]
mod wire;

pub use launch::{LaunchSpec, Launcher, Options};
pub use orphans::become_subreaper;
pub use proc::boot_id;
pub use process::{Emptiness, Process, ProcessEvent, ProcessIdentity};

/// The variable that marks every process of an agent's tree as a store's.
pub const INSTANCE_VARIABLE: &str = "SPAWNLET_INSTANCE";
