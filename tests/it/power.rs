//! Power cuts: test catalogue C3. A store on an ext4 image is written to while the file system is shut
//! down under it without flushing anything; then it is mounted again, and nothing that was
//! acknowledged may be missing.
//!
//! Needs root, a loop device and python3 (for the one ioctl): `scripts/chaos.sh --tier 2` makes an
//! image and names it in `SPAWNLET_TEST_POWER_IMAGE`. Without it these tests do nothing.
#![allow(clippy::print_stdout, reason = "the figures are the result")]

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};

use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};
use spawnlet::store::sqlite::{Options, open};
use spawnlet::store::{Commit, Key, Op, Store as _};

use crate::chaos::seed;

/// `FS_IOC_SHUTDOWN` with `FS_SHUTDOWN_FLAGS_NOLOGFLUSH` (linux/fs.h): what is in memory is lost.
const CUT: &str = "import fcntl,os,struct,sys\n\
    fcntl.ioctl(os.open(sys.argv[1],os.O_RDONLY),0x8004587d,struct.pack('I',2))";
const CUTS: usize = 200;
const CUTS_OF_THE_CONTROL: usize = 20;
/// Commits before the cut, at most.
const COMMITS_MAX: usize = 60;

/// A mounted image.
struct Disk {
    image: PathBuf,
    mount: tempfile::TempDir,
}

fn run(program: &str, arguments: &[&Path]) {
    let status = Command::new(program).args(arguments).stdin(Stdio::null()).status().unwrap();
    assert!(status.success(), "{program} {arguments:?}: {status}");
}

impl Disk {
    fn named() -> Option<Self> {
        let image = std::env::var_os("SPAWNLET_TEST_POWER_IMAGE").filter(|path| !path.is_empty());
        let Some(image) = image else {
            println!("skipped: SPAWNLET_TEST_POWER_IMAGE names no image");
            return None;
        };
        let disk = Self { image: image.into(), mount: tempfile::tempdir().unwrap() };
        run("mkfs.ext4", &[Path::new("-qF"), &disk.image]);
        disk.mount();
        Some(disk)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.mount.path().join(name)
    }

    fn mount(&self) {
        run("mount", &[Path::new("-oloop"), &self.image, self.mount.path()]);
    }

    /// What was not written is gone.
    fn cut(&self) {
        run("python3", &[Path::new("-c"), Path::new(CUT), self.mount.path()]);
    }

    /// The power comes back: the file system replays its own journal.
    fn restore(&self) {
        run("umount", &[self.mount.path()]);
        self.mount();
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(self.mount.path()).status();
    }
}

fn put(number: usize) -> Commit {
    let key = Key::new(format!("/t/{number:04}"));
    let value = number.to_string().repeat(50).into();
    Commit { guards: Vec::new(), ops: vec![Op::Put { key, value }] }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_power_cut_loses_nothing_that_was_acknowledged() {
    let Some(disk) = Disk::named() else { return };
    let seed = seed();
    let mut random = StdRng::seed_from_u64(seed);
    let (mut acknowledged, mut torn) = (0, 0);
    for cut in 0..CUTS {
        let directory = disk.path(&format!("data{cut}"));
        let (store, _) =
            open(&directory, Options { ballast_bytes: 0, ..Options::default() }).unwrap();
        let commits = random.random_range(1..COMMITS_MAX);
        let is_over = AtomicBool::new(false);
        let mut acked = Vec::new();
        // The cut comes while commits are under way.
        std::thread::scope(|scope| {
            let writer = scope.spawn(|| {
                let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
                let mut acked = Vec::new();
                for number in 0.. {
                    if number == commits {
                        is_over.store(true, Ordering::SeqCst);
                    }
                    match runtime.block_on(store.commit(put(number))) {
                        Ok(_) => acked.push(number),
                        Err(_) => break,
                    }
                }
                acked
            });
            while !is_over.load(Ordering::SeqCst) && !writer.is_finished() {
                std::thread::yield_now();
            }
            disk.cut();
            acked = writer.join().unwrap();
        });
        drop(store);
        disk.restore();
        let (store, opened) =
            open(&directory, Options { ballast_bytes: 0, ..Options::default() }).unwrap();
        assert!(opened.was_unclean, "seed {seed}, cut {cut}: {opened:?}");
        let (records, _) = store.list("/t/", None, 0).await.unwrap();
        let there = records.len();
        assert!(
            there >= acked.len(),
            "seed {seed}, cut {cut}: {} acked, {there} there",
            acked.len()
        );
        acknowledged += acked.len();
        torn += there - acked.len();
        store.close().await;
        drop(store);
        std::fs::remove_dir_all(&directory).unwrap();
    }
    println!(
        "C3: seed {seed}, {CUTS} cuts, {acknowledged} acknowledged, 0 lost, {torn} more there"
    );
}

/// The negative control: with `synchronous=NORMAL` acknowledged rows are lost.
#[test]
fn without_full_syncs_a_power_cut_loses_acknowledged_rows() {
    let Some(disk) = Disk::named() else { return };
    let mut lost = 0;
    for cut in 0..CUTS_OF_THE_CONTROL {
        let file = disk.path(&format!("normal{cut}.db"));
        let connect = || {
            let connection = rusqlite::Connection::open(&file).unwrap();
            connection.pragma_update(None, "journal_mode", "WAL").unwrap();
            connection.pragma_update(None, "synchronous", "NORMAL").unwrap();
            connection
        };
        let connection = connect();
        connection.execute_batch("CREATE TABLE t (n INTEGER)").unwrap();
        connection.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(())).unwrap();
        for number in 0..50 {
            connection.execute("INSERT INTO t VALUES (?1)", [number]).unwrap();
        }
        disk.cut();
        drop(connection);
        disk.restore();
        let there: i64 =
            connect().query_row("SELECT count(*) FROM t", [], |row| row.get(0)).unwrap_or(0);
        lost += 50 - there;
    }
    println!("C3, the control: {lost} of {} rows lost", CUTS_OF_THE_CONTROL * 50);
    assert!(lost > 0, "the cuts cut nothing");
}
