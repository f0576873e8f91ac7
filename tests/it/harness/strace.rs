//! A daemon whose system calls are tampered with, by strace.

use std::process::{Child, Command, Stdio};

use rustix::process::Signal;

/// strace on all threads of a process, and on those that it makes. Dropped, it lets go of them.
pub(crate) struct Strace(Child);

impl Strace {
    /// Whether whoever runs the tests has strace and lets it work (`scripts/chaos.sh` looks).
    pub(crate) fn is_there(part: &str) -> bool {
        let is_there = std::env::var_os("SPAWNLET_TEST_STRACE").is_some_and(|set| !set.is_empty());
        if !is_there {
            eprintln!("skipped: {part} needs strace; SPAWNLET_TEST_STRACE is not set");
        }
        is_there
    }

    /// Tampers with every fsync and fdatasync from now on, as `inject=SET:` says it (strace(1)).
    pub(crate) fn syncs(pid: u32, how: &str) -> Self {
        let child = Command::new("strace")
            .args(["-f", "-qq", "-o", "/dev/null", "-e", "trace=fdatasync,fsync"])
            .args(["-e", &format!("inject=fdatasync,fsync:{how}"), "-p", &pid.to_string()])
            .stdin(Stdio::null())
            .spawn()
            .unwrap();
        crate::chaos::wait_for("every thread is traced", || is_traced(pid).then_some(()));
        Self(child)
    }
}

impl Drop for Strace {
    fn drop(&mut self) {
        // Asked, it lets the threads go on as they were; killed, it leaves one with half a call.
        super::signal(self.0.id(), Signal::TERM);
        let _ = self.0.wait();
    }
}

/// What `/proc/PID/task` says of who traces it.
fn is_traced(pid: u32) -> bool {
    let threads = std::fs::read_dir(format!("/proc/{pid}/task")).unwrap().flatten();
    let mut states = threads
        .filter_map(|thread| std::fs::read_to_string(thread.path().join("status")).ok())
        .map(|status| {
            let mut lines = status.lines();
            lines.any(|line| line.starts_with("TracerPid:") && !line.ends_with("\t0"))
        });
    states.all(|is_traced| is_traced)
}
