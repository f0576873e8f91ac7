//! A slow disk: test catalogue C7. Each fsync of the daemon takes 200 ms longer; reads go on, no clock
//! of a session takes the waiting for idleness, and what waits is bounded.
//!
//! Needs strace; `scripts/chaos.sh --tier 2` sets `SPAWNLET_TEST_STRACE`. Without it, and below tier 2,
//! only the negative control runs.
#![allow(clippy::print_stdout, reason = "the figures are the result")]

use std::time::{Duration, Instant};

use serde_json::json;

use crate::chaos::tier;
use crate::harness::Strace;
use crate::soak::rig::{Rig, peak_kib};

const SECONDS: u64 = 60;
/// By how much each sync is slowed down.
const SLOWER: Duration = Duration::from_millis(200);
/// What a read may take at the 99th of a hundred.
const READ_MAX: Duration = Duration::from_millis(50);
/// Reads between two new sessions: the turns of the daemon end about as fast as they come.
const READS: usize = 400;
/// Longer than a sync, and shorter than the turns and pauses that the waiting makes.
const IDLE: &str = "10s";
/// A ttl that ends in the run, in a turn that would not.
const SHORT_TTL: &str = "20s";
/// What the daemon may grow by while everything waits for the disk (P13).
const GROWTH_KIB_MAX: u64 = 32 * 1024;

/// The one before the slowest of a hundred, and what is wrong with it.
fn judge(reads: &mut [Duration]) -> (Duration, Option<String>) {
    reads.sort_unstable();
    let p99 = reads[reads.len() * 99 / 100];
    (p99, (p99 >= READ_MAX).then(|| format!("reads wait for the disk: p99 {p99:?}")))
}

#[test]
fn a_slow_disk_holds_up_writes_and_nothing_else() {
    if tier() < 2 || !Strace::is_there("C7") {
        return;
    }
    let mut rig = Rig::new(&[]);
    rig.warm_up();
    let pid = rig.daemon.pid();
    let base = peak_kib(pid);
    let strace = Strace::syncs(pid, &format!("delay_exit={}", SLOWER.as_micros()));
    let (begun, mut reads, mut writes) = (Instant::now(), Vec::new(), Vec::new());
    rig.session("short", &json!({"prompt": "[[never]]", "ttl": SHORT_TTL}));
    while begun.elapsed() < Duration::from_secs(SECONDS) {
        let name = format!("s{}", writes.len());
        let at = Instant::now();
        rig.session(&name, &json!({"prompt": "[[updates:20]][[say:x]]", "idleTimeout": IDLE}));
        writes.push(at.elapsed());
        for _ in 0..READS {
            let at = Instant::now();
            let (code, _) = rig.get(&format!("sessions/{name}"));
            assert_eq!(code, 200);
            reads.push(at.elapsed());
        }
    }
    // The wait at the disk ended no turn, and a clock that ran out in it did its work.
    for number in 0..writes.len() {
        assert_eq!(rig.end_of(&format!("s{number}-1")), "Completed", "s{number}");
    }
    let drained = begun.elapsed() - Duration::from_secs(SECONDS);
    assert_eq!(rig.end_of("short-1"), "Expired");
    drop(strace);
    let grown = peak_kib(pid).saturating_sub(base);
    let (p99, fault) = judge(&mut reads);
    let fastest = writes.iter().min().unwrap();
    println!(
        "C7: {} sessions in {SECONDS} s, the last turn {drained:?} later; {} reads, p99 {p99:?}; the \
         fastest of the writes {fastest:?}; peak memory +{grown} KiB",
        writes.len(),
        reads.len()
    );
    assert_eq!(fault, None);
    // The disk was slow indeed: otherwise the reads prove nothing.
    assert!(*fastest >= SLOWER, "{fastest:?}");
    assert!(grown < GROWTH_KIB_MAX, "+{grown} KiB");
    rig.stop();
}

/// The negative control: reads of which two in a hundred wait for one sync are found.
#[test]
fn reads_that_wait_for_a_slow_disk_are_found() {
    let fast = Duration::from_millis(2);
    let mut reads: Vec<Duration> =
        (0..1000).map(|read| if read % 50 == 0 { fast + SLOWER } else { fast }).collect();
    assert!(judge(&mut reads).1.is_some());
    assert_eq!(judge(&mut vec![fast; 1000]).1, None);
}
