//! Power cuts: test catalogue C3. A store on an ext4 image is written to while the file system is shut
//! down under it without flushing anything; then it is mounted again, and nothing that was
//! acknowledged may be missing.
//!
//! Acknowledged means before the cut. A power cut ends the machine at once; this one only ends the
//! file system, and for a moment the kernel then takes an fdatasync for done whose transaction was
//! given up by the cut: a bare loop of write and fdatasync shows it in 9 cuts of 100 (measured, kernel
//! 6.18). What is acknowledged in that moment is counted and told, and nobody could have been told it.
//!
//! Needs root, a loop device and python3 (for the one ioctl): `scripts/chaos.sh --tier 2` makes an
//! image and names it in `SPAWNLET_TEST_POWER_IMAGE`. Without it these tests do nothing.
#![allow(clippy::print_stdout, reason = "the figures are the result")]

use std::io::{BufReader, Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};

use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};
use spawnlet::store::sqlite::{Options, SqliteStore, open};
use spawnlet::store::{Commit, Key, Op, Store as _};

use crate::chaos::seed;

/// `FS_IOC_SHUTDOWN` with `FS_SHUTDOWN_FLAGS_NOLOGFLUSH` (linux/fs.h): what is in memory is lost. One
/// interpreter makes all cuts, one for each line that it is sent: where `python3` is a script that
/// looks for the real one (measured), its start takes 400 ms, most of a cut.
const CUTTER: &str = "import fcntl,os,struct,sys\n\
    for line in sys.stdin:\n    \
        at=os.open(sys.argv[1],os.O_RDONLY)\n    \
        fcntl.ioctl(at,0x8004587d,struct.pack('I',2))\n    \
        os.close(at)\n    \
        print('cut',flush=True)";
const CUTS: usize = 200;
const CUTS_OF_THE_CONTROL: usize = 20;
/// Commits before the cut, at most.
const COMMITS_MAX: usize = 60;

/// A mounted image.
struct Disk {
    image: PathBuf,
    mount: tempfile::TempDir,
    cutter: Child,
    cuts: BufReader<ChildStdout>,
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
        let mount = tempfile::tempdir().unwrap();
        let mut cutter = Command::new("python3")
            .args(["-c", CUTTER])
            .arg(mount.path())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let cuts = BufReader::new(cutter.stdout.take().unwrap());
        let disk = Self { image: image.into(), mount, cutter, cuts };
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
    fn cut(&mut self) {
        self.cutter.stdin.as_mut().unwrap().write_all(b"\n").unwrap();
        let mut done = [0; 4];
        self.cuts.read_exact(&mut done).unwrap();
        assert_eq!(&done, b"cut\n");
    }

    /// The power comes back: the file system replays its own journal.
    fn restore(&self) {
        run("umount", &[self.mount.path()]);
        self.mount();
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let _ = self.cutter.kill();
        let _ = self.cutter.wait();
        let _ = Command::new("umount").arg(self.mount.path()).status();
    }
}

fn put(number: usize) -> Commit {
    let key = Key::new(format!("/t/{number:04}"));
    let value = number.to_string().repeat(50).into();
    Commit { guards: Vec::new(), ops: vec![Op::Put { key, value }] }
}

/// Writes until the disk refuses: how many commits were acknowledged. `told` has that number at any
/// moment.
fn write_until_refused(store: &SqliteStore, told: &AtomicUsize) -> usize {
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let mut number = 0;
    while runtime.block_on(store.commit(put(number))).is_ok() {
        number += 1;
        told.store(number, Ordering::SeqCst);
    }
    number
}

#[tokio::test(flavor = "multi_thread")]
async fn a_power_cut_loses_nothing_that_was_acknowledged() {
    let Some(mut disk) = Disk::named() else { return };
    let seed = seed();
    let mut random = StdRng::seed_from_u64(seed);
    let options = || Options { ballast_bytes: 0, ..Options::default() };
    let (mut acknowledged, mut torn, mut at_the_cut) = (0, 0, 0);
    for cut in 0..CUTS {
        let directory = disk.path(&format!("data{cut}"));
        let (store, _) = open(&directory, options()).unwrap();
        let commits = random.random_range(1..COMMITS_MAX);
        let told = AtomicUsize::new(0);
        // The cut comes while commits are under way.
        let (before, after) = std::thread::scope(|scope| {
            let writer = scope.spawn(|| write_until_refused(&store, &told));
            while told.load(Ordering::SeqCst) < commits && !writer.is_finished() {
                std::thread::yield_now();
            }
            let before = told.load(Ordering::SeqCst);
            disk.cut();
            (before, writer.join().unwrap())
        });
        drop(store);
        disk.restore();
        let (store, opened) = open(&directory, options()).unwrap();
        assert!(opened.was_unclean, "seed {seed}, cut {cut}: {opened:?}");
        let (records, _) = store.list("/t/", None, 0).await.unwrap();
        let there = records.len();
        assert!(there >= before, "seed {seed}, cut {cut}: {before} acked, {there} there");
        acknowledged += before;
        torn += there.saturating_sub(after);
        at_the_cut += after.saturating_sub(there);
        store.close().await;
        drop(store);
        std::fs::remove_dir_all(&directory).unwrap();
    }
    println!(
        "C3: seed {seed}, {CUTS} cuts, {acknowledged} acknowledged before them, 0 lost; {torn} more \
         there than acknowledged, {at_the_cut} acknowledged by a dead disk"
    );
}

/// The negative control: with `synchronous=NORMAL` acknowledged rows are lost.
#[test]
fn without_full_syncs_a_power_cut_loses_acknowledged_rows() {
    let Some(mut disk) = Disk::named() else { return };
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
