//! A store that lost what it acknowledged is refused, and no other one is.

use std::os::unix::fs::PermissionsExt as _;

use super::*;

const WAL_FILE: &str = "store.db-wal";

/// A store of which one half is in the file and the other in the log, as kill -9 leaves it, and
/// the file as it was at the half.
async fn killed() -> (TempDir, Vec<u8>) {
    let dir = TempDir::new().unwrap();
    let store = open_in(dir.path());
    for number in 0..10 {
        write(&store, &number.to_string(), "x").await.unwrap();
    }
    store.close().await;
    drop(store);
    let old = std::fs::read(dir.path().join(DATABASE_FILE)).unwrap();
    let store = open_in(dir.path());
    for number in 10..20 {
        write(&store, &number.to_string(), "x").await.unwrap();
    }
    (copy_as_after_a_kill(dir.path()), old)
}

/// The bytes of what must not change. An empty log is none.
fn bytes(dir: &Path) -> Vec<Vec<u8>> {
    let names = [DATABASE_FILE, WAL_FILE, ID_FILE, MARK_FILE, "clean"];
    names.map(|name| std::fs::read(dir.join(name)).unwrap_or_default()).to_vec()
}

fn assert_refused(dir: &Path, case: &str) {
    let before = bytes(dir);
    for _ in 0..2 {
        let error = open(dir, options()).err().unwrap_or_else(|| panic!("{case}: opened"));
        let OpenError::Regressed { head, acknowledged: 20 } = error else {
            panic!("{case}: {error}")
        };
        assert!(head < 20, "{case}");
        assert!(error.to_string().contains("20 was acknowledged"), "{error}");
        assert!(error.to_string().contains("remove store.head"), "{error}");
        assert_eq!(bytes(dir), before, "{case}");
    }
}

#[tokio::test]
async fn a_cut_or_removed_log_is_refused_and_opens_once_it_is_back() {
    let (dir, _) = killed().await;
    let wal = std::fs::read(dir.path().join(WAL_FILE)).unwrap();
    for kept in [None, Some(0), Some(17), Some(wal.len() / 3)] {
        let copy = copy_as_after_a_kill(dir.path());
        let file = copy.path().join(WAL_FILE);
        match kept {
            None => std::fs::remove_file(&file).unwrap(),
            Some(kept) => std::fs::write(&file, &wal[..kept]).unwrap(),
        }
        assert_refused(copy.path(), &format!("kept {kept:?}"));
        std::fs::write(&file, &wal).unwrap();
        assert_eq!(open_in(copy.path()).head().await.unwrap(), Rev(20));
    }
}

#[tokio::test]
async fn an_older_file_is_refused_until_the_mark_is_removed() {
    let (dir, old) = killed().await;
    drop(open_in(dir.path()));
    std::fs::write(dir.path().join(DATABASE_FILE), &old).unwrap();
    let _ = std::fs::remove_file(dir.path().join(WAL_FILE));
    assert_refused(dir.path(), "an old copy");
    std::fs::remove_file(dir.path().join(MARK_FILE)).unwrap();
    let store = open_in(dir.path());
    assert_eq!(store.head().await.unwrap(), Rev(10));
    write(&store, "new", "x").await.unwrap();
    drop(store);
    assert_eq!(open_in(dir.path()).head().await.unwrap(), Rev(11));
}

#[tokio::test]
async fn another_commit_at_the_marked_revision_is_refused() {
    let (dir, _) = killed().await;
    let other = copy_as_after_a_kill(dir.path());
    for copy in [dir.path(), other.path()] {
        let store = open_in(copy);
        write(&store, "a", "x").await.unwrap();
        store.close().await;
    }
    let from = other.path().join(DATABASE_FILE);
    std::fs::copy(from, dir.path().join(DATABASE_FILE)).unwrap();
    let error = open(dir.path(), options()).err().unwrap();
    assert!(matches!(error, OpenError::Diverged { rev: 21 }), "{error}");
}

#[tokio::test]
async fn an_absent_torn_older_or_foreign_mark_is_no_alarm() {
    let (dir, _) = killed().await;
    let other = killed().await.0;
    let mark = std::fs::read(dir.path().join(MARK_FILE)).unwrap();
    let mut torn = mark.clone();
    torn[60] ^= 1;
    let foreign = std::fs::read(other.path().join(MARK_FILE)).unwrap();
    for bytes in [None, Some(&mark[..0]), Some(&mark[..50]), Some(&torn[..]), Some(&foreign[..])] {
        let copy = copy_as_after_a_kill(dir.path());
        let file = copy.path().join(MARK_FILE);
        match bytes {
            None => std::fs::remove_file(&file).unwrap(),
            Some(bytes) => std::fs::write(&file, bytes).unwrap(),
        }
        let store = open_in(copy.path());
        assert_eq!(store.head().await.unwrap(), Rev(20));
        // The next commit leaves a whole mark again.
        write(&store, "a", "x").await.unwrap();
        let bytes = std::fs::read(&file).unwrap();
        assert!(String::from_utf8(bytes).unwrap().contains(" 00000000000000000021 "));
    }
    // A mark from before the last commits: a power cut may leave it.
    let store = open_in(dir.path());
    write(&store, "a", "x").await.unwrap();
    drop(store);
    std::fs::write(dir.path().join(MARK_FILE), &mark).unwrap();
    assert_eq!(open_in(dir.path()).head().await.unwrap(), Rev(21));
}

#[tokio::test]
async fn the_mark_is_private_even_if_it_was_not() {
    let (dir, _) = killed().await;
    let file = dir.path().join(MARK_FILE);
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o644)).unwrap();
    drop(open_in(dir.path()));
    assert_eq!(std::fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
}

#[tokio::test]
async fn a_lock_that_cannot_be_written_says_why_and_what_to_do() {
    let dir = TempDir::new().unwrap();
    // A directory in its place fails for root too.
    std::fs::create_dir(dir.path().join("lock")).unwrap();
    let error = open(dir.path(), options()).err().unwrap().to_string();
    assert!(error.contains("os error") && error.contains("writable"), "{error}");
}
