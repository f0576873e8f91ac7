//! Test catalogue B4: writers whose reads and writes interleave in any order lose no update.

use std::sync::Arc;

use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};

use super::{Records, Txn, key_of};
use crate::api::{ObjectMeta, Session, SessionSpec};
use crate::store::memory::MemoryStore;

/// One writer: what it has read and not written yet.
#[derive(Default)]
struct Writer {
    seen: Option<Session>,
    written: u64,
    refused: u64,
}

/// Plays one order of reads and writes; by `is_guarded` false, a writer that ignores what it read
/// (the negative control). What was lost, and how many were refused.
async fn play(seed: u64, is_guarded: bool) -> (u64, u64) {
    let mut random = StdRng::seed_from_u64(seed);
    let records = Records::new(Arc::new(MemoryStore::new()));
    let metadata = ObjectMeta {
        name: "s".into(),
        namespace: "default".into(),
        uid: "uid-s".into(),
        generation: 1,
        ..ObjectMeta::default()
    };
    let made = Session::new(metadata, SessionSpec::default());
    let key = key_of(&made);
    Txn::new().create(&made).commit(&**records.store()).await.unwrap();
    let read = || async { records.at::<SessionSpec>(&key).await.unwrap().unwrap() };
    let mut writers = [Writer::default(), Writer::default()];
    for _ in 0..random.random_range(4..12) {
        let writer = &mut writers[random.random_range(0..2)];
        let Some(seen) = writer.seen.take() else {
            writer.seen = Some(read().await);
            continue;
        };
        let mut wanted = seen.clone();
        wanted.status.turns_made += 1;
        let base = if is_guarded { seen } else { read().await };
        match Txn::new().update(&base, &wanted).commit(&**records.store()).await {
            Ok(_) => writer.written += 1,
            Err(error) => {
                assert!(error.is_conflict(), "seed {seed}: {error}");
                writer.refused += 1;
            }
        }
    }
    let written: u64 = writers.iter().map(|writer| writer.written).sum();
    let refused = writers.iter().map(|writer| writer.refused).sum();
    (written - read().await.status.turns_made, refused)
}

#[tokio::test]
async fn writers_with_stale_versions_lose_no_update_and_the_loser_is_told() {
    let is_slow = std::env::var("SPAWNLET_TIER").is_ok_and(|tier| tier == "1" || tier == "2");
    let orders = if is_slow { 20_000 } else { 2_000 };
    let mut refused = 0;
    for seed in 0..orders {
        let (lost, told) = play(seed, true).await;
        assert_eq!(lost, 0, "seed {seed}");
        refused += told;
    }
    assert!(refused > orders / 2, "hardly any met: {refused}");
}

#[tokio::test]
async fn a_writer_that_ignores_versions_loses_updates() {
    let mut lost = 0;
    for seed in 0..200 {
        lost += play(seed, false).await.0;
    }
    assert!(lost > 100, "{lost}");
}
