//! Lives by seed, and the defects that must be found.

use super::judge::Seen;
use super::{ANY_LIFE, Defect, Setting, live};

/// How many seeds of a test: for every commit, before a merge, by night.
fn seeds(tiers: [u64; 3]) -> u64 {
    match std::env::var("SPAWNLET_TIER").as_deref() {
        Ok("1") => tiers[1],
        Ok("2") => tiers[2],
        Ok(_) | Err(_) => tiers[0],
    }
}

/// The first seed, so that a night plays other lives than the one before.
fn first_seed() -> u64 {
    match std::env::var("SPAWNLET_SEED").as_deref() {
        Ok("") | Err(_) => 0,
        Ok(seed) => seed.parse().expect("SPAWNLET_SEED: a number"),
    }
}

/// Plays lives on both cores, and adds up what they have seen.
fn lives(count: u64, setting: Setting) -> Seen {
    let first = first_seed();
    let half = |part: u64| {
        let mut sum = Seen::default();
        for seed in (first..first + count).filter(|seed| seed % 2 == part) {
            match live(seed, setting) {
                Ok(seen) => sum.add(seen),
                Err(broken) => panic!("{broken}"),
            }
        }
        sum
    };
    std::thread::scope(|scope| {
        let other = scope.spawn(|| half(1));
        let mut sum = half(0);
        sum.add(other.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
        sum
    })
}

/// Test catalogue B1 and I1.
#[test]
fn random_lives_keep_every_promise() {
    let seen = lives(seeds([500, 10_000, 200_000]), ANY_LIFE);
    println!("{seen:?}");
    // A life in which nothing happens keeps every promise too.
    assert!(seen.prompts > 200 && seen.ended_turns > 200 && seen.removed_sessions > 100);
    assert!(seen.tokens > 10, "no tree used much: {}", seen.tokens);
    assert!(seen.first_starts > 50, "no first start: {}", seen.first_starts);
    assert!(seen.answers > 2, "no agent was answered: {}", seen.answers);
    assert!(seen.crashes > 100 && seen.crashes_within_a_pass > 50);
    assert!(seen.conflicts > 50 && seen.faults > 20 && seen.clock_jumps > 50);
    assert!(seen.times_set_right > 20, "no clock was set back: {}", seen.times_set_right);
    for reason in
        ["Cancelled", "Deleted", "Inactivity", "ParentDeleted", "ParentStopped", "TtlExpired"]
    {
        assert!(seen.reasons.contains(reason), "no session ended as {reason}: {:?}", seen.reasons);
    }
}

/// Test catalogue B2.
#[test]
fn random_trees_go_from_below_and_nobody_is_left() {
    let trees = Setting {
        steps: 300,
        sessions: 24,
        fan_out: 6,
        depth: 4,
        clock_jumps: false,
        is_deletion_heavy: true,
        defect: None,
    };
    let seen = lives(seeds([60, 2000, 2000]), trees);
    println!("{seen:?}");
    assert!(seen.removed_sessions > 200);
    assert!(seen.reasons.contains("ParentDeleted"));
}

/// The negative controls: each defect breaks a promise in some life.
#[test]
fn every_defect_is_found_and_named() {
    /// So many lives at most; most defects show in the first few.
    const LIVES: u64 = 5000;
    let found = [
        (Defect::ForgetsPrompts, "P2"),
        (Defect::LeavesLeftovers, "P6"),
        (Defect::WritesBlindly, ""),
        (Defect::TrustsKills, "P6"),
        (Defect::HearsVoices, ""),
        (Defect::CountsNoSlots, "A5"),
        (Defect::OverlooksChildren, "P7"),
        (Defect::SaysSentTooEarly, "P4"),
        (Defect::FollowsWallClock, "P11"),
        (Defect::SetsRightAnew, "P11"),
        (Defect::StartsAgain, "first start"),
        (Defect::CountsApart, "H11"),
    ];
    for (defect, promise) in found {
        let setting = Setting { defect: Some(defect), ..ANY_LIFE };
        let broken = (0..LIVES).find_map(|seed| live(seed, setting).err());
        let broken = broken.unwrap_or_else(|| panic!("{defect:?} was not found in {LIVES} lives"));
        assert!(broken.contains(promise), "{defect:?} was found as another: {broken}");
        assert!(broken.contains("plays again the same"), "{broken}");
    }
}
