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
const READS: usize = 200;
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

/// What is wrong with reads, beside answers that need neither store nor disk, from the same daemon in
/// the same minute: those tell what tracing and a busy machine take. They may not be slow either: a
/// thread of the daemon that waits for the disk itself holds up everything.
fn fault(reads: &mut [Duration], bare: &mut [Duration]) -> Option<String> {
    let (reads, bare) = (p99(reads), p99(bare));
    if bare >= SLOWER / 2 {
        return Some(format!("everything waits for the disk: p99 {bare:?}"));
    }
    (reads >= READ_MAX + bare).then(|| format!("reads wait for the disk: p99 {reads:?}, {bare:?}"))
}

/// How long reads of a session take, and answers that are no more than that.
fn read(rig: &mut Rig, session: &str) -> (Duration, Duration) {
    let at = Instant::now();
    let (code, _) = rig.get(&format!("sessions/{session}"));
    let read = at.elapsed();
    assert_eq!(code, 200);
    let at = Instant::now();
    let (code, _) = rig.client.send("GET", "/livez", "Accept: text/plain", None).unwrap();
    assert_eq!(code, 200);
    (read, at.elapsed())
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
    let begun = Instant::now();
    let (mut reads, mut bare, mut writes) = (Vec::new(), Vec::new(), Vec::new());
    rig.session("short", &json!({"prompt": "[[never]]", "ttl": SHORT_TTL}));
    while begun.elapsed() < Duration::from_secs(SECONDS) {
        let name = format!("s{}", writes.len());
        let at = Instant::now();
        rig.session(&name, &json!({"prompt": "[[updates:20]][[say:x]]", "idleTimeout": IDLE}));
        writes.push(at.elapsed());
        for _ in 0..READS {
            let (read, alive) = read(&mut rig, &name);
            reads.push(read);
            bare.push(alive);
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
    let fault = fault(&mut reads, &mut bare);
    let fastest = writes.iter().min().unwrap();
    println!(
        "C7: {} sessions in {SECONDS} s, the last turn {drained:?} later; {} reads, p99 {:?}, answers \
         without the store {:?}; the fastest of the writes {fastest:?}; peak memory +{grown} KiB",
        writes.len(),
        reads.len(),
        p99(&mut reads),
        p99(&mut bare)
    );
    assert_eq!(fault, None);
    // The disk was slow indeed: otherwise the reads prove nothing.
    assert!(*fastest >= SLOWER, "{fastest:?}");
    assert!(grown < GROWTH_KIB_MAX, "+{grown} KiB");
    rig.stop();
}

/// The negative control: reads of which two in a hundred wait for one sync are found, also where all
/// else waits with them.
#[test]
fn reads_that_wait_for_a_slow_disk_are_found() {
    let fast = Duration::from_millis(2);
    let mut slow: Vec<Duration> =
        (0..1000).map(|read| if read % 50 == 0 { fast + SLOWER } else { fast }).collect();
    let mut all_fast = vec![fast; 1000];
    assert!(fault(&mut slow, &mut all_fast).is_some());
    let mut bare = slow.clone();
    assert!(fault(&mut slow, &mut bare).is_some());
    assert_eq!(fault(&mut all_fast.clone(), &mut all_fast), None);
}
