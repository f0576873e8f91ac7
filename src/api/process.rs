//! The processes of a session as they are when somebody asks: no record, read from the kernel.

use serde::Serialize;

/// One process of a session's tree.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ProcessSample {
    /// Its number.
    pub pid: u32,
    /// Its parent's.
    pub parent: u32,
    /// The name of its program: its arguments may hold what is nobody's business.
    pub name: String,
    /// `R` runs, `S` and `D` wait, `T` is stopped, `Z` is dead (proc_pid_stat(5)).
    pub state: char,
    /// For how long it has been there, in milliseconds.
    pub age_ms: u64,
    /// Processor time that it used in all, in milliseconds.
    pub cpu_ms: u64,
    /// What it holds in memory, in KiB.
    pub resident_kib: u64,
}
