//! A slow disk: test catalogue C7. Each fsync of the daemon takes 200 ms longer; reads go on, and no
//! clock of a session takes the waiting for idleness.
//!
//! Needs strace; `scripts/chaos.sh --tier 2` sets `SPAWNLET_TEST_STRACE`. Without it this does nothing.
#![allow(clippy::print_stdout, reason = "the figures are the result")]

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::json;

use crate::chaos::wait_for;
use crate::soak::rig::Rig;

const SECONDS: u64 = 60;
/// What a read may take at the 99th of a hundred. The catalogue's 50 ms are without ptrace, which
/// stops the threads at every system call that it looks at.
const READ_MAX: Duration = Duration::from_millis(250);

/// What `/proc/PID/status` says of who traces it.
fn is_traced(pid: u32) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    status.lines().any(|line| line.starts_with("TracerPid:") && !line.ends_with("\t0"))
}

#[test]
fn a_slow_disk_holds_up_writes_and_nothing_else() {
    if std::env::var_os("SPAWNLET_TEST_STRACE").is_none() {
        println!("skipped: SPAWNLET_TEST_STRACE is not set");
        return;
    }
    let mut rig = Rig::new(&[]);
    rig.warm_up();
    let pid = rig.daemon.pid();
    let mut strace = Command::new("strace")
        .args(["-f", "-qq", "-o", "/dev/null", "-e", "trace=fdatasync,fsync"])
        .args(["-e", "inject=fdatasync,fsync:delay_exit=200000", "-p", &pid.to_string()])
        .stdin(Stdio::null())
        .spawn()
        .unwrap();
    wait_for("the daemon is traced", || is_traced(pid).then_some(()));
    let (begun, mut reads, mut made) = (Instant::now(), Vec::new(), 0);
    while begun.elapsed() < Duration::from_secs(SECONDS) {
        let name = format!("s{made}");
        rig.session(&name, &json!({"prompt": "[[updates:20]][[say:x]]", "idleTimeout": "10s"}));
        made += 1;
        for _ in 0..50 {
            let at = Instant::now();
            let (code, _) = rig.get(&format!("sessions/{name}"));
            assert_eq!(code, 200);
            reads.push(at.elapsed());
        }
    }
    let turns: Vec<String> = (0..made).map(|number| format!("s{number}-1")).collect();
    for turn in turns {
        assert_eq!(rig.end_of(&turn), "Completed", "{turn}");
    }
    let _ = strace.kill();
    let _ = strace.wait();
    reads.sort_unstable();
    let p99 = reads[reads.len() * 99 / 100];
    println!("C7: {made} sessions in {SECONDS} s, {} reads, p99 {p99:?}", reads.len());
    assert!(p99 < READ_MAX, "{p99:?}");
    rig.stop();
}
