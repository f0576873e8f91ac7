//! The full disk: what is refused, what still works, and that it ends.

use std::path::Path;
use std::sync::atomic::Ordering;

use rusqlite::Connection;
use tempfile::TempDir;

use super::super::*;
use super::{append, blob, delete, open_in, options, value, write};

/// Fills a store whose file may not grow any more, as on a full disk.
async fn fill(store: &SqliteStore, dir: &Path) -> u64 {
    let filler = "x".repeat(50_000);
    let mut number = 0;
    let writes = |number: u64| {
        let name = format!("fill{number}");
        let filler = &filler;
        async move { write(store, &name, filler).await }
    };
    writes(number).await.unwrap();
    let connection = Connection::open(dir.join(DATABASE_FILE)).unwrap();
    let pages: i64 = connection.pragma_query_value(None, "page_count", |row| row.get(0)).unwrap();
    // The writer has the quota, and the ballast gives as much again.
    store.shared.trips.quota_pages.store(pages + 200, Ordering::SeqCst);
    store.shared.trips.wanted_pages.store(pages + 100, Ordering::SeqCst);
    while !store.is_disk_low() {
        number += 1;
        writes(number).await.unwrap();
        assert!(number < 100, "it never filled");
    }
    number
}

#[tokio::test]
async fn a_full_disk_refuses_new_work_and_still_cancels_and_deletes() {
    let dir = TempDir::new().unwrap();
    let store = open_in(dir.path());
    store.append(append("turn", 0, b"abc")).await.unwrap();
    let ballast = dir.path().join("ballast");
    assert_eq!(std::fs::metadata(&ballast).unwrap().len(), options().ballast_bytes);
    // No room for a new ballast either.
    store.shared.ballast.pretend_free(Some(options().ballast_bytes / 2));
    let last = fill(&store, dir.path()).await;
    // The write that found it full went through on the ballast, and nothing more is appended.
    assert!(!ballast.exists());
    assert!(value(&store, &format!("fill{last}")).await.is_some());
    let refused = store.append(append("turn", 3, b"def")).await.unwrap_err();
    assert!(refused.to_string().contains("nearly full"), "{refused}");
    // A cancel is a write over a record, a delete removes one with its blobs.
    write(&store, "fill0", "cancelled").await.unwrap();
    for number in 1..=last {
        delete(&store, &format!("fill{number}")).await.unwrap();
    }
    let ops = vec![Op::DropBlobs { owner: Uid::from("turn") }];
    store.commit(Commit { guards: Vec::new(), ops }).await.unwrap();
    assert_eq!(store.len(&blob("turn")).await.unwrap(), 0);
    assert!(store.fault().is_none() && store.is_disk_low());
    // Room again: asking finds it, and the ballast is back.
    store.shared.ballast.pretend_free(None);
    let _ = store.is_disk_low();
    write(&store, "fill0", "x").await.unwrap();
    assert!(!store.is_disk_low() && ballast.exists());
    store.append(append("turn", 0, b"abc")).await.unwrap();
}

#[tokio::test]
async fn low_water_is_seen_before_the_disk_is_full() {
    let dir = TempDir::new().unwrap();
    let store = open_in(dir.path());
    let bytes = options().ballast_bytes;
    assert!(!store.is_disk_low());
    store.shared.ballast.pretend_free(Some(bytes / 4 - 1));
    // The disk is looked at behind a group: the second answer says that the look is done.
    write(&store, "a", "1").await.unwrap();
    write(&store, "a", "1").await.unwrap();
    assert!(store.is_disk_low());
    // Not back and forth at the mark.
    store.shared.ballast.pretend_free(Some(bytes / 4 + 1));
    write(&store, "a", "2").await.unwrap();
    write(&store, "a", "2").await.unwrap();
    assert!(store.is_disk_low() && dir.path().join("ballast").exists());
    store.shared.ballast.pretend_free(Some(bytes));
    write(&store, "a", "3").await.unwrap();
    write(&store, "a", "3").await.unwrap();
    assert!(!store.is_disk_low());
}

/// Fills a disk of 8 MiB with records and then with somebody else's file; tells what deleting all
/// the records came to, and the store.
async fn delete_on_full_disk(dir: &Path, options: Options) -> (Result<(), Error>, SqliteStore) {
    let (store, _) = open(dir, options).unwrap();
    let filler = "x".repeat(100_000);
    let mut names = Vec::new();
    while !store.is_disk_low() {
        let name = format!("fill{}", names.len());
        if write(&store, &name, &filler).await.is_err() {
            break;
        }
        names.push(name);
    }
    let mut other = std::fs::File::create(dir.join("rest")).unwrap();
    while std::io::Write::write_all(&mut other, &[0; 4096]).is_ok() {}
    let mut result = Ok(());
    for name in names {
        result = result.and(delete(&store, &name).await.map(drop));
    }
    (result, store)
}

/// On a real small disk, if whoever runs the tests names one (`mount -t tmpfs -o size=8m`).
#[tokio::test]
async fn a_real_full_disk_still_deletes_and_without_ballast_does_not() {
    let Some(disk) = std::env::var_os("SPAWNLET_TEST_SMALL_DISK") else {
        eprintln!("skipped: SPAWNLET_TEST_SMALL_DISK names no small file system");
        return;
    };
    let dir = TempDir::new_in(&disk).unwrap();
    let (deleted, store) = delete_on_full_disk(dir.path(), Options::default()).await;
    deleted.unwrap();
    assert!(store.fault().is_none());
    std::fs::remove_file(dir.path().join("rest")).unwrap();
    // Each look gives some of the file's free pages back.
    for _ in 0..100 {
        let _ = store.is_disk_low();
        write(&store, "a", "1").await.unwrap();
    }
    assert!(!store.is_disk_low());
    store.append(append("turn", 0, b"abc")).await.unwrap();
    drop(store);
    drop(dir);
    let dir = TempDir::new_in(&disk).unwrap();
    let none = Options { ballast_bytes: 0, ..Options::default() };
    let (deleted, store) = delete_on_full_disk(dir.path(), none).await;
    assert!(matches!(deleted, Err(Error::Unavailable(_))));
    assert!(value(&store, "fill0").await.is_some() && store.fault().is_none());
}
