//! The race for a path that leads out of a session's directories, with what needs root (test
//! catalogue G4): bind mounts that come and go, device nodes, directories that are moved out while a
//! path goes up from them; links, FIFOs and magic links beside them, as in `src/runtime/files/tests.rs`,
//! which has the negative control.
//!
//! The race runs in this test executable once more, in mounts of its own (unshare(1)), so that
//! nothing of it is left on the machine. 4000 opens; 150,000 at tier 1 (50,000 with
//! `SPAWNLET_SHORT`), a million at tier 2. Where mounts may not be made it says so.

use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use rustix::fs::{CWD, FileType, Mode, OFlags, RenameFlags, makedev, mknodat, renameat_with};
use spawnlet::runtime::files::Folders;

use crate::chaos::{is_short, tier};

/// Tells the inner run where its ground is.
const GROUND: &str = "SPAWNLET_TEST_MOUNTS";
/// Longer than one request may take on a busy machine: it waits for nobody.
const WAIT_MAX: Duration = Duration::from_secs(5);
/// So many mounts come and go at least, for each takes a program.
const MOUNTS_MIN: usize = 40;
/// `/dev/zero` and the first loop device (Documentation/admin-guide/devices.txt).
const ZERO: (u32, u32) = (1, 5);
const LOOP: (u32, u32) = (7, 0);

/// What is asked for: each is inside at some moments.
const RACED: [&str; 10] = [
    "work/dir/secret",
    "work/leaf",
    "work/mounted/secret",
    "work/mounted/below/../secret",
    "work/bound",
    "work/deep/below/../secret",
    "work/deep/below/../../outside/secret",
    "work/sub/../dir-link/secret",
    "work/magic/outside/secret",
    "work/mounted/below/../../../outside/secret",
];

fn opens() -> usize {
    match (tier(), is_short()) {
        (0, _) => 4_000,
        (1, true) => 50_000,
        (1, false) => 150_000,
        _ => 1_000_000,
    }
}

fn runs(program: &str, words: &[&str]) -> bool {
    let mut command = Command::new(program);
    command.args(words).stdout(Stdio::null()).stderr(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}

/// `work` is inside, `outside` is not, `elsewhere` is what is mounted in `work`.
fn prepare(base: &Path) {
    let path = |name: &str| base.join(name);
    for name in ["work/sub", "work/dir/below", "work/mounted/below", "work/deep/below"] {
        std::fs::create_dir_all(path(name)).unwrap();
    }
    for name in ["outside/below", "elsewhere/below"] {
        std::fs::create_dir_all(path(name)).unwrap();
    }
    for name in ["work/dir/secret", "work/mounted/secret", "work/bound", "work/deep/secret"] {
        std::fs::write(path(name), "inside").unwrap();
    }
    std::fs::write(path("outside/secret"), "outside").unwrap();
    std::fs::write(path("elsewhere/secret"), "mounted").unwrap();
    symlink("../outside", path("work/dir-link")).unwrap();
    symlink(format!("/proc/self/root{}", base.display()), path("work/magic")).unwrap();
    set_leaves(base);
}

/// What the leaf may be, each under a name of its own: a write that comes in between puts a file in
/// the place of one of them, so they are set anew now and then.
fn set_leaves(base: &Path) {
    let mode = Mode::from_raw_mode(0o666);
    let new = base.join("new");
    let set = |name: &str| std::fs::rename(&new, base.join("work").join(name)).unwrap();
    std::fs::write(&new, "inside").unwrap();
    set("leaf");
    symlink("../outside/secret", &new).unwrap();
    set("leaf-link");
    for (name, kind, (major, minor)) in [
        ("leaf-fifo", FileType::Fifo, (0, 0)),
        ("leaf-zero", FileType::CharacterDevice, ZERO),
        ("leaf-loop", FileType::BlockDevice, LOOP),
    ] {
        mknodat(CWD, &new, kind, mode, makedev(major, minor)).unwrap();
        set(name);
    }
}

/// Exchanges what stands in the places, until it is over.
fn swap_all(base: &Path, is_over: &AtomicBool) {
    for round in 1_usize.. {
        if is_over.load(Ordering::Relaxed) {
            break;
        }
        if round.is_multiple_of(64) {
            set_leaves(base);
        }
        for (one, other) in [
            ("work/dir", "work/dir-link"),
            ("work/leaf", "work/leaf-link"),
            ("work/leaf", "work/leaf-fifo"),
            ("work/deep/below", "outside/below"),
            ("work/leaf", "work/leaf-zero"),
            ("work/leaf", "work/leaf-loop"),
        ] {
            // It may be missing for a moment where a file was written meanwhile.
            let _ =
                renameat_with(CWD, base.join(one), CWD, base.join(other), RenameFlags::EXCHANGE);
        }
    }
}

/// Mounts and unmounts, until it is over.
fn mount_all(base: &Path, is_over: &AtomicBool, mounted: &AtomicUsize) {
    while !is_over.load(Ordering::Relaxed) {
        for (source, target) in [("elsewhere", "work/mounted"), ("elsewhere/secret", "work/bound")]
        {
            // What was written while it was mounted stands in it.
            std::fs::write(base.join("fresh"), "mounted").unwrap();
            std::fs::rename(base.join("fresh"), base.join("elsewhere/secret")).unwrap();
            let (source, target) = (base.join(source), base.join(target));
            let (source, target) = (source.to_str().unwrap(), target.to_str().unwrap());
            if runs("mount", &["--bind", source, target]) {
                mounted.fetch_add(1, Ordering::Relaxed);
                assert!(runs("umount", &["--lazy", target]));
            }
        }
    }
}

/// The race, in mounts of its own; nothing when it runs as a test.
#[test]
fn inner() {
    let Some(base) = std::env::var_os(GROUND).map(PathBuf::from) else { return };
    prepare(&base);
    let folders = Folders::open(&[base.join("work")]);
    let paths = RACED.map(|name| base.join(name).to_str().unwrap().to_owned());
    let (is_over, mounted) = (AtomicBool::new(false), AtomicUsize::new(0));
    let (mut inside, mut elsewhere, mut written) = (0_usize, 0_usize, 0_usize);
    let (mut escape, mut longest) = (None, Duration::ZERO);
    std::thread::scope(|scope| {
        scope.spawn(|| swap_all(&base, &is_over));
        scope.spawn(|| mount_all(&base, &is_over, &mounted));
        for count in 0..10 * opens() {
            if count >= opens() && mounted.load(Ordering::Relaxed) >= MOUNTS_MIN {
                break;
            }
            let path = &paths[count % paths.len()];
            let begun = Instant::now();
            if count % 16 == 15 {
                written += usize::from(folders.write(path, "inside").is_ok());
            } else if let Ok(text) = folders.read(path, None, None) {
                match text.as_str() {
                    "inside" => inside += 1,
                    "mounted" => elsewhere += 1,
                    _ => escape = Some((path, text)),
                }
            }
            longest = longest.max(begun.elapsed());
            // No panic here: the other threads would go on for ever.
            if escape.is_some() {
                break;
            }
        }
        is_over.store(true, Ordering::Relaxed);
    });
    eprintln!(
        "{} opens and more: {inside} inside, {elsewhere} in mounts, {written} written; {} mounts; longest {longest:?}",
        opens(),
        mounted.load(Ordering::Relaxed)
    );
    assert_eq!(escape, None);
    assert!(longest < WAIT_MAX, "one took {longest:?}");
    assert!(inside > 0 && elsewhere > 0 && written > 0);
    assert_eq!(std::fs::read_to_string(base.join("outside/secret")).unwrap(), "outside");
    assert_eq!(std::fs::read_dir(base.join("outside")).unwrap().count(), 2);
}

/// Test catalogue G4, what of it needs root.
#[test]
fn no_race_with_mounts_and_devices_leads_outside() {
    let ground = tempfile::tempdir().unwrap();
    let base = ground.path().canonicalize().unwrap();
    let probe = base.join("probe");
    let mode = Mode::from_raw_mode(0o600);
    let device = makedev(ZERO.0, ZERO.1);
    let has_nodes = mknodat(CWD, &probe, FileType::CharacterDevice, mode, device).is_ok()
        && rustix::fs::open(&probe, OFlags::RDONLY, Mode::empty()).is_ok();
    if !has_nodes || !runs("unshare", &["--mount", "mount", "-t", "tmpfs", "none", "/mnt"]) {
        eprintln!("skipped: mounts and device nodes take root, and unshare(1)");
        return;
    }
    let output = Command::new("unshare")
        .args(["--mount", "--propagation", "private"])
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", "mounts::inner", "--nocapture"])
        .env(GROUND, &base)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    eprint!("{said}");
    assert!(output.status.success(), "{}{said}", String::from_utf8_lossy(&output.stdout));
}
