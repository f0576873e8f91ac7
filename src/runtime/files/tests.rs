//! Reading and writing inside of directories, and the race for a path that leads out of them
//! (test catalogue G4).

use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::fs::{RenameFlags, mkfifoat, renameat_with};

use super::*;

struct Ground {
    home: tempfile::TempDir,
    folders: Folders,
}

impl Ground {
    /// `work` and `extra` are inside, `outside` is not.
    fn new() -> Self {
        let home = tempfile::tempdir().unwrap();
        let base = home.path().canonicalize().unwrap();
        for name in ["work/sub", "extra", "outside"] {
            std::fs::create_dir_all(base.join(name)).unwrap();
        }
        std::fs::write(base.join("outside/secret"), "outside").unwrap();
        let folders = Folders::open(&[base.join("work"), base.join("extra")]);
        Self { home, folders }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.home.path().canonicalize().unwrap().join(name)
    }

    fn text(&self, name: &str) -> String {
        self.path(name).to_str().unwrap().to_owned()
    }

    fn read(&self, name: &str) -> Result<String, String> {
        self.folders.read(&self.text(name), None, None).map_err(|error| error.to_string())
    }

    fn write(&self, name: &str, text: &str) -> Result<(), String> {
        self.folders.write(&self.text(name), text).map_err(|error| error.to_string())
    }
}

const OUTSIDE: &str = "the path is outside of the session's directories";

#[test]
fn what_is_written_is_read_and_new_directories_are_made() {
    let ground = Ground::new();
    ground.write("work/new/deep/file", "ä\nb\nc").unwrap();
    assert_eq!(ground.read("work/new/deep/file").unwrap(), "ä\nb\nc");
    assert_eq!(ground.read("work/sub/../new/./deep/file").unwrap(), "ä\nb\nc");
    ground.write("extra/file", "").unwrap();
    assert_eq!(ground.read("extra/file").unwrap(), "");
    assert!(ground.read("work/none").unwrap_err().contains("no such file"));
    // Permissions stay, nothing is left beside it, and what may not be written is not.
    let path = ground.path("work/new/deep/file");
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o750)).unwrap();
    ground.write("work/new/deep/file", "again").unwrap();
    assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o7777, 0o750);
    assert_eq!(std::fs::read_dir(path.parent().unwrap()).unwrap().count(), 1);
    assert_eq!(ground.read("work/new/deep/file").unwrap(), "again");
}

#[test]
fn lines_are_counted_from_one_and_ends_stay() {
    let ground = Ground::new();
    ground.write("work/file", "a\nb\r\n\nd").unwrap();
    let read = |line, limit| ground.folders.read(&ground.text("work/file"), line, limit).unwrap();
    assert_eq!(read(None, None), "a\nb\r\n\nd");
    assert_eq!(read(Some(0), Some(1)), "a\n");
    assert_eq!(read(Some(2), Some(2)), "b\r\n\n");
    assert_eq!(read(Some(4), Some(9)), "d");
    assert_eq!(read(Some(5), None), "");
    assert_eq!(read(Some(1), Some(0)), "");
    assert_eq!(read(Some(u32::MAX), Some(u32::MAX)), "");
}

#[test]
fn links_lead_where_they_lead_inside_and_are_refused_outside() {
    let ground = Ground::new();
    ground.write("work/sub/file", "inside").unwrap();
    ground.write("extra/file", "extra").unwrap();
    symlink("sub/file", ground.path("work/relative")).unwrap();
    symlink(ground.path("work/sub"), ground.path("work/absolute")).unwrap();
    symlink(ground.path("extra"), ground.path("work/across")).unwrap();
    symlink("../outside", ground.path("work/out")).unwrap();
    symlink(ground.path("outside/none"), ground.path("work/dangling")).unwrap();
    symlink("/proc/self/root", ground.path("work/magic")).unwrap();
    assert_eq!(ground.read("work/relative").unwrap(), "inside");
    assert_eq!(ground.read("work/absolute/file").unwrap(), "inside");
    assert_eq!(ground.read("work/across/file").unwrap(), "extra");
    ground.write("work/relative", "changed").unwrap();
    assert_eq!(ground.read("work/sub/file").unwrap(), "changed");
    assert!(ground.path("work/relative").is_symlink(), "a link stays one");
    for name in [
        "outside/secret",
        "work/out/secret",
        "work/../outside/secret",
        "work/dangling",
        "work/magic/etc/passwd",
        "work/none/../../outside/secret",
        "nowhere",
        "work-not/file",
    ] {
        assert_eq!(ground.read(name), Err(OUTSIDE.into()), "{name}");
        assert_eq!(ground.write(name, "escaped"), Err(OUTSIDE.into()), "{name}");
    }
    assert_eq!(
        ground.folders.directory(&ground.text("work/out")).unwrap_err().to_string(),
        OUTSIDE
    );
    let directory = ground.folders.directory(&ground.text("work/absolute/.")).unwrap();
    assert_eq!(directory, ground.path("work/sub"));
    assert_eq!(std::fs::read_dir(ground.path("outside")).unwrap().count(), 1);
    for path in ["", "work/file", "/a\0b", &"/x".repeat(3000)] {
        assert!(matches!(ground.folders.read(path, None, None), Err(Error::Path)), "{path}");
        assert!(matches!(ground.folders.write(path, ""), Err(Error::Path)), "{path}");
    }
}

#[test]
fn what_is_no_regular_file_is_refused_and_not_waited_for() {
    let ground = Ground::new();
    let fifo = ground.path("work/fifo");
    mkfifoat(CWD, &fifo, Mode::from_raw_mode(0o600)).unwrap();
    let _socket = std::os::unix::net::UnixListener::bind(ground.path("work/socket")).unwrap();
    for (name, found) in
        [("fifo", "FIFO"), ("socket", "no regular file"), ("sub", "a directory"), ("", "directory")]
    {
        let name = format!("work/{name}");
        assert!(ground.read(&name).unwrap_err().contains(found), "{name}");
        assert!(ground.write(&name, "x").unwrap_err().contains("expected"), "{name}");
    }
    // With somebody at its other end it could be opened, and is refused as well.
    let _reader =
        rustix::fs::open(&fifo, OFlags::RDONLY | OFlags::NONBLOCK, Mode::empty()).unwrap();
    assert!(ground.write("work/fifo", "x").unwrap_err().contains("a FIFO"));
    symlink("/dev/zero", ground.path("work/zero")).unwrap();
    assert_eq!(ground.read("work/zero"), Err(OUTSIDE.into()));
    assert!(ground.write("work/sub/file/x/", "x").is_ok());
    assert!(ground.write("work/sub/file/x/y", "x").unwrap_err().contains("directory"));
}

#[test]
fn what_is_too_large_or_no_text_is_told() {
    let ground = Ground::new();
    std::fs::write(ground.path("work/binary"), [b'a', b'\n', 0xff]).unwrap();
    assert_eq!(ground.read("work/binary").unwrap_err(), "the file is not UTF-8 text");
    let line = ground.folders.read(&ground.text("work/binary"), Some(1), Some(1));
    assert_eq!(line.unwrap(), "a\n");
    let large = "0123456\n".repeat(READ_BYTES_MAX / 8);
    ground.write("work/large", &large).unwrap();
    assert_eq!(ground.read("work/large").unwrap(), large);
    ground.write("work/large", &format!("{large}x")).unwrap();
    assert!(ground.read("work/large").unwrap_err().contains("by line and limit"));
    let last = READ_BYTES_MAX as u32 / 8 + 1;
    let read = ground.folders.read(&ground.text("work/large"), Some(last), None);
    assert_eq!(read.unwrap(), "x");
}

/// How many opens a race takes: 100,000 and more need six seconds, a million a minute.
fn opens() -> usize {
    match std::env::var("SPAWNLET_TIER").as_deref() {
        Ok("2") => 1_000_000,
        Ok("1") => 150_000,
        _ => 4_000,
    }
}

/// Runs `look` so often, or until it says that it has seen enough, while directories and files of
/// the ground turn into links that lead out, and back.
fn race(ground: &Ground, opens: usize, mut look: impl FnMut(usize) -> bool) {
    for (inside, link) in [("work/dir", "work/dir-link"), ("work/leaf", "work/leaf-link")] {
        let (inside, link) = (ground.path(inside), ground.path(link));
        if link.ends_with("dir-link") {
            std::fs::create_dir_all(inside.join("below")).unwrap();
            std::fs::write(inside.join("secret"), "inside").unwrap();
            symlink("../outside", link).unwrap();
        } else {
            std::fs::write(inside, "inside").unwrap();
            symlink("../outside/secret", link).unwrap();
        }
    }
    mkfifoat(CWD, ground.path("work/leaf-fifo"), Mode::from_raw_mode(0o600)).unwrap();
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let swap = |one: &str, other: &str| {
                let (one, other) = (ground.path(one), ground.path(other));
                // It may be missing for a moment where a file was written meanwhile.
                let _ = renameat_with(CWD, &one, CWD, &other, RenameFlags::EXCHANGE);
            };
            while !is_over.load(Ordering::Relaxed) {
                swap("work/dir", "work/dir-link");
                swap("work/leaf", "work/leaf-link");
                swap("work/leaf", "work/leaf-fifo");
            }
        });
        let _ = (0..opens).find(|count| look(*count));
        is_over.store(true, Ordering::Relaxed);
    });
}

const RACED: [&str; 4] =
    ["work/dir/secret", "work/leaf", "work/dir/below/../secret", "work/sub/../dir-link/secret"];

#[test]
fn no_race_for_a_path_leads_outside() {
    let ground = Ground::new();
    let paths = RACED.map(|name| ground.text(name));
    let (mut inside, mut written, mut escape) = (0, 0, None);
    race(&ground, opens(), |count| {
        let path = &paths[count % paths.len()];
        if count % 16 == 15 {
            written += usize::from(ground.folders.write(path, "inside").is_ok());
        } else if let Ok(text) = ground.folders.read(path, None, None) {
            inside += 1;
            escape = (text != "inside").then_some((path, text));
        }
        // No panic here: the other thread would go on for ever.
        escape.is_some()
    });
    assert_eq!(escape, None);
    assert!(inside > 0 && written > 0, "{inside} reads and {written} writes came through");
    assert_eq!(std::fs::read_to_string(ground.path("outside/secret")).unwrap(), "outside");
    assert_eq!(std::fs::read_dir(ground.path("outside")).unwrap().count(), 1);
}

#[test]
fn a_path_that_is_looked_at_and_then_opened_does_lead_outside() {
    let ground = Ground::new();
    let paths = RACED.map(|name| ground.path(name));
    let root = ground.path("work");
    let mut has_escaped = false;
    // Found within a few hundred where both threads have a core of their own.
    race(&ground, 5_000_000, |count| {
        let path = &paths[count % paths.len()];
        if path.canonicalize().is_ok_and(|real| real.starts_with(&root)) {
            // Not to hang on the FIFO.
            let flags = OFlags::RDONLY | OFlags::NONBLOCK;
            let Ok(file) = rustix::fs::open(path, flags, Mode::empty()) else { return false };
            let text = io::read_to_string(File::from(file)).unwrap_or_default();
            has_escaped = text == "outside";
        }
        has_escaped
    });
    assert!(has_escaped, "the race is too slow to be one");
}
