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

/// The one before the slowest of a hundred.
fn p99(reads: &mut [Duration]) -> Duration {
    reads.sort_unstable();
    reads[reads.len() * 99 / 100]
}

/// What is wrong with reads, beside what the machine takes for them on a disk that is not slow.
fn fault(reads: &mut [Duration], before: Duration) -> Option<String> {
    let p99 = p99(reads);
    (p99 >= READ_MAX + before).then(|| format!("reads wait for the disk: p99 {p99:?}"))
}

fn read(rig: &mut Rig, session: &str, count: usize) -> Vec<Duration> {
    let one = |_| {
        let at = Instant::now();
        let (code, _) = rig.get(&format!("sessions/{session}"));
        assert_eq!(code, 200);
        at.elapsed()
    };
    (0..count).map(one).collect()
}

#[test]
fn a_slow_disk_holds_up_writes_and_nothing_else() {
    if tier() < 2 || !Strace::is_there("C7") {
        return;
    }
    let mut rig = Rig::new(&[]);
    rig.warm_up();
    let pid = rig.daemon.pid();
    rig.session("other", &json!({}));
    let before = p99(&mut read(&mut rig, "other", READS));
    let base = peak_kib(pid);
    let strace = Strace::syncs(pid, &format!("delay_exit={}", SLOWER.as_micros()));
    let (begun, mut reads, mut writes) = (Instant::now(), Vec::new(), Vec::new());
    rig.session("short", &json!({"prompt": "[[never]]", "ttl": SHORT_TTL}));
    while begun.elapsed() < Duration::from_secs(SECONDS) {
        let name = format!("s{}", writes.len());
        let at = Instant::now();
        rig.session(&name, &json!({"prompt": "[[updates:20]][[say:x]]", "idleTimeout": IDLE}));
        writes.push(at.elapsed());
        reads.extend(read(&mut rig, &name, READS));
    }
    // The wait at the disk ended no turn, and a clock that ran out in it did its work.
    for number in 0..writes.len() {
        assert_eq!(rig.end_of(&format!("s{number}-1")), "Completed", "s{number}");
    }
    let drained = begun.elapsed() - Duration::from_secs(SECONDS);
    assert_eq!(rig.end_of("short-1"), "Expired");
    drop(strace);
    let grown = peak_kib(pid).saturating_sub(base);
    let fault = fault(&mut reads, before);
    let fastest = writes.iter().min().unwrap();
    println!(
        "C7: {} sessions in {SECONDS} s, the last turn {drained:?} later; {} reads, p99 {:?} (before: \
         {before:?}); the fastest of the writes {fastest:?}; peak memory +{grown} KiB",
        writes.len(),
        reads.len(),
        p99(&mut reads)
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
    assert!(fault(&mut reads, fast).is_some());
    assert_eq!(fault(&mut vec![fast; 1000], fast), None);
}
