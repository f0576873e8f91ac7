//! Test catalogue C4: the engine fails at its Nth step, for every N of a short life.

use super::*;

/// A daemon that died in its first start left tables without an id, and no later one would open them
/// (found by the failpoint `migration.after`).
#[test]
fn tables_and_the_stores_id_come_in_one_transaction() {
    let dir = TempDir::new().unwrap();
    let file = dir.path().join(DATABASE_FILE);
    std::fs::write(&file, "").unwrap();
    let mut connection = connect_writer(&file).unwrap();
    schema::migrate(&mut connection, 0).unwrap();
    let id = schema::meta(&connection, "store_id").unwrap();
    assert_eq!(id.map(|id| id.len()), Some(32));
    drop(connection);
    // Nothing else of the first start was done.
    let (_, opened) = open(dir.path(), options()).unwrap();
    assert!(!opened.is_new);
}

/// Commits and appends of the life.
const WRITES: u32 = 20;
/// Steps of a transaction of one job at which the engine can be made to fail.
const STEPS: u32 = 5;

/// What a write was told, in the order of the writes: a record's name and a blob's owner.
type Told = Vec<(String, Result<(), Error>, String, Result<(), Error>)>;

/// A life with one failure in it, up to its end: what it was told, and that the store works
/// afterwards.
async fn live(dir: &Path, step: u32, code: i32) -> (Told, Rev) {
    let case = format!("code {code} at step {step}");
    let store = open_in(dir);
    trip(&store, step, code);
    let mut told = Vec::new();
    for number in 0..WRITES / 2 {
        let name = format!("{number:02}");
        let put = write(&store, &name, "1").await;
        if store.fault().is_some() {
            assert!(put.is_err(), "{case}: acknowledged by a store that is read-only");
            store.reset().await.unwrap();
        }
        let owner = format!("turn{number}");
        let appended = store.append(append(&owner, 0, b"abc")).await;
        if store.fault().is_some() {
            store.reset().await.unwrap();
        }
        told.push((name, put.map(drop), owner, appended.map(drop)));
    }
    let after = write(&store, "after", "1").await.unwrap();
    (told, after)
}

/// Opens what a life has left and compares it with what the life was told: nothing that was
/// acknowledged is lost, nothing that was refused is there.
async fn faults(dir: &Path, told: &Told, after: Rev) -> Vec<String> {
    let store = open_in(dir);
    let mut faults = Vec::new();
    if store.head().await.unwrap() != after {
        faults.push("another revision is the last".to_owned());
    }
    for (name, put, owner, appended) in told {
        let is_there = value(&store, name).await.is_some();
        let has_bytes = store.len(&blob(owner)).await.unwrap() == 3;
        for (outcome, is_there, what) in [(put, is_there, name), (appended, has_bytes, owner)] {
            match outcome {
                Ok(()) if !is_there => faults.push(format!("{what} was acknowledged and is gone")),
                Ok(()) | Err(Error::Unknown(_)) => {}
                Err(_) if is_there => faults.push(format!("{what} was refused and is there")),
                Err(_) => {}
            }
        }
    }
    faults
}

/// A whole life and its judge.
async fn check(step: u32, code: i32) {
    let case = format!("code {code} at step {step}");
    let dir = TempDir::new().unwrap();
    let (told, after) = live(dir.path(), step, code).await;
    let failures = told.iter().filter(|(_, put, _, append)| put.is_err() || append.is_err());
    // A full disk may have been met by the ballast: then nobody was refused.
    let count = failures.count();
    assert!(count == 1 || (code == ffi::SQLITE_FULL && count == 0), "{case}: {count} failures");
    assert_eq!(faults(dir.path(), &told, after).await, Vec::<String>::new(), "{case}");
}

/// The negative control: a store that acknowledges in spite of the error is found, whatever the error
/// and wherever before the commit it comes.
#[tokio::test]
async fn a_store_that_acknowledges_what_failed_is_found() {
    for code in [ffi::SQLITE_IOERR, ffi::SQLITE_BUSY, ffi::SQLITE_CORRUPT] {
        for step in 0..STEPS - 2 {
            let dir = TempDir::new().unwrap();
            let (mut told, after) = live(dir.path(), 2 * STEPS + step, code).await;
            for (_, put, _, appended) in &mut told {
                (*put, *appended) = (Ok(()), Ok(()));
            }
            let found = faults(dir.path(), &told, after).await;
            assert_eq!(found.len(), 1, "code {code} at step {step}: {found:?}");
        }
    }
}

#[tokio::test]
async fn a_failure_at_any_step_of_the_engine_loses_nothing_and_is_recovered_from() {
    let every = if std::env::var("SPAWNLET_TIER").is_ok_and(|tier| tier != "0") { 1 } else { 7 };
    for code in [ffi::SQLITE_FULL, ffi::SQLITE_IOERR, ffi::SQLITE_BUSY, ffi::SQLITE_CORRUPT] {
        for step in (0..WRITES * STEPS).step_by(every) {
            // SQLite says FULL before a commit is written and never after it (rescode.html).
            if code != ffi::SQLITE_FULL || step % STEPS != STEPS - 1 {
                check(step, code).await;
            }
        }
    }
}
