//! Load and soak, and bad agents beside good ones: test catalogue E2, E3, F9, J1, J2,
//! J3 and J5.
//!
//! At tier 0 (each commit) only the short forms of J1 and E2 run. `scripts/chaos.sh` runs all of it at
//! tiers 1 and 2. What is counted (files, threads, zombies, turns) is judged; what is measured in time
//! is printed, and held to a bound only where the machine would have to stand still to miss it.
#![allow(clippy::print_stdout, reason = "the figures are the result")]

mod bad;
mod crowd;
mod measured;
pub(crate) mod rig;

use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};
use serde_json::json;

use crate::chaos::{seed, tier, wait_for};
use rig::{Held, Rig, held, memory_kib};

/// Sessions alive at a time.
const ALIVE_MAX: usize = 100;
/// What the daemon may grow by after its first third, in percent.
const GROWTH_PERCENT_MAX: u64 = 10;
/// The same by tier, where that is more: until there were some thousand writes, what is kept of the
/// newest ones fills up.
const FILLING_KIB: [u64; 3] = [16 * 1024, 16 * 1024, 4 * 1024];

/// J1: sessions come and go, with random cancels, deletions and ends of their ttl.
#[test]
fn sessions_come_and_go_and_the_daemon_stays_as_it_was() {
    let total = [30, 300, 2000][tier()];
    let seed = seed();
    println!("J1: {total} sessions, seed {seed}");
    let mut random = StdRng::seed_from_u64(seed);
    let mut rig = Rig::new(&[]);
    // The store's readers and the runtime's threads are there after the first few.
    rig.warm_up();
    let before = held(rig.daemon.pid());
    let mut alive: Vec<String> = Vec::new();
    let mut memory_early = 0;
    let mut memory_by_tenth = Vec::new();
    for number in 0..total {
        let name = format!("j{number}");
        let is_endless = random.random_bool(0.1);
        let prompt = if is_endless { "[[never]]" } else { "[[updates:20]][[say:done]]" };
        let mut spec = json!({"prompt": prompt});
        if random.random_bool(0.2) {
            spec["ttl"] = "2s".into();
        }
        rig.session(&name, &spec);
        if is_endless {
            rig.cancel(&format!("{name}-1"));
        }
        alive.push(name);
        while alive.len() >= ALIVE_MAX.min(total / 3) {
            let gone = alive.swap_remove(random.random_range(0..alive.len()));
            rig.delete(&gone);
        }
        if number % (total / 10) == 0 {
            memory_by_tenth.push(memory_kib(rig.daemon.pid()));
        }
        if number == total / 3 {
            memory_early = memory_kib(rig.daemon.pid());
        }
    }
    rig.wait_until_all_turns_are_final();
    let memory_late = memory_kib(rig.daemon.pid());
    for name in alive {
        rig.delete(&name);
    }
    rig.wait_until_empty();
    let pid = rig.daemon.pid();
    let after = wait_for("files and threads are as before", || {
        let now = held(pid);
        (now.files <= before.files && now.threads <= before.threads && now.zombies == 0)
            .then_some(now)
    });
    println!("J1: before {before:?}, after {after:?}; memory {memory_early} to {memory_late} KiB");
    println!("J1: memory by tenths {memory_by_tenth:?} KiB");
    let limit = memory_early + (memory_early * GROWTH_PERCENT_MAX / 100).max(FILLING_KIB[tier()]);
    assert!(memory_late <= limit, "{memory_early} KiB grew to {memory_late} KiB");
    let file = rig.world.data_dir().join("store.db");
    let world = rig.stop();
    let kept = Kept::of(&file);
    drop(world);
    println!("J1: {kept:?}");
    assert_eq!(kept.fault(), None);
}

/// What a store's file holds after everything in it was deleted.
#[derive(Debug)]
struct Kept {
    file_bytes: u64,
    /// Revisions of which there is history.
    revisions: u64,
    /// Transcripts, responses and other blobs.
    blobs: u64,
}

impl Kept {
    /// The largest history: 10,000 revisions, and what is dropped at once (`store::sqlite`).
    const REVISIONS_MAX: u64 = 10_000 + 2 * 512;
    /// What the file may take for each: a record of a turn or a session, written twice.
    const REVISION_BYTES: u64 = 8 * 1024;
    /// What it takes beside: its own pages, and what was there at once before it was deleted.
    const BESIDE_BYTES: u64 = 8 << 20;

    fn of(file: &std::path::Path) -> Self {
        let store = rusqlite::Connection::open(file).unwrap();
        let count = |sql: &str| -> u64 {
            store.query_row(sql, [], |row| row.get::<_, i64>(0)).unwrap().try_into().unwrap()
        };
        Self {
            file_bytes: std::fs::metadata(file).unwrap().len(),
            // What is left of older ones is their nonces, 24 bytes each.
            revisions: count(
                "SELECT max(rev) - (SELECT CAST(value AS INTEGER) FROM meta WHERE name = 'oldest') \
                 FROM commits",
            ),
            blobs: count("SELECT count(*) FROM blobs"),
        }
    }

    fn fault(&self) -> Option<String> {
        let bytes_max = Self::BESIDE_BYTES + self.revisions * Self::REVISION_BYTES;
        let is_bounded = self.revisions <= Self::REVISIONS_MAX && self.file_bytes <= bytes_max;
        (!is_bounded || self.blobs > 0).then(|| format!("{self:?} is not bounded"))
    }
}

/// The negative control of J1's look at the file: one that keeps transcripts, or all of its history, is
/// found.
#[test]
fn a_store_that_keeps_too_much_is_found() {
    let kept = |file_bytes, revisions, blobs| Kept { file_bytes, revisions, blobs }.fault();
    assert_eq!(kept(20 << 20, 5_000, 0), None);
    assert!(kept(20 << 20, 5_000, 1).is_some());
    assert!(kept(200 << 20, 5_000, 0).is_some());
    assert!(kept(20 << 20, 30_000, 0).is_some());
}

/// The negative control of J1: a file that stays open is seen.
#[test]
fn a_leak_is_seen() {
    let own = std::process::id();
    let before = held(own).files;
    let kept: Vec<_> = (0..50).map(|_| std::fs::File::open("/proc/version").unwrap()).collect();
    // Other tests of this binary open and close files beside it, but not fifty.
    let Held { files, .. } = held(own);
    assert!(files + 20 > before + kept.len(), "{before} {files}");
}
