//! The process tree of a session as it is now, for people who ask whether an agent is stuck.
//!
//! Read once per question, never polled. Nothing is signalled or decided by it.

use crate::api::process::ProcessSample;
use crate::api::session::ProcessRecord;

use super::proc;

/// The kernel's ticks in /proc (USER_HZ) are 10 ms on every Linux.
const TICK_MS: u64 = 10;
/// Processes that are told of; a tree may hold as many as its machine lets it.
const PROCESSES_MAX: usize = 256;

/// What is below a session's shim, parents first. Nothing if the shim is gone, or its number is
/// another process's by now.
#[must_use]
pub fn sample(record: &ProcessRecord) -> Vec<ProcessSample> {
    let Some(shim) = record.shim_pid else { return Vec::new() };
    let is_shim = proc::stat(shim).is_some_and(|stat| Some(stat.start_time) == record.start_time);
    if !is_shim {
        return Vec::new();
    }
    let uptime_ms = proc::uptime_ms().unwrap_or_default();
    let mut open = proc::children(shim);
    let mut found: Vec<ProcessSample> = Vec::new();
    while let Some(pid) = (!open.is_empty()).then(|| open.remove(0)) {
        let is_known = found.iter().any(|known| known.pid == pid);
        if is_known || found.len() >= PROCESSES_MAX {
            continue;
        }
        let (Some(stat), Some(usage)) = (proc::stat(pid), proc::usage(pid)) else { continue };
        found.push(ProcessSample {
            pid,
            parent: stat.parent,
            name: usage.name,
            state: stat.state,
            age_ms: uptime_ms.saturating_sub(stat.start_time.saturating_mul(TICK_MS)),
            cpu_ms: usage.cpu_ticks.saturating_mul(TICK_MS),
            resident_kib: usage.resident_kib,
        });
        open.extend(proc::children(pid));
    }
    found
}
