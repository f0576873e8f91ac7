//! The real daemon on a wall clock that jumps (test catalogue I2): libfaketime moves it by two hours
//! and back while the daemon runs. Nobody's time is over early, and nobody's late.
//!
//! Five jumps there and back, at tier 2 alone; where the library is missing it says so.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde_json::json;

use crate::chaos::tier;
use crate::harness::{Daemon, Home};

/// The library for programs with threads; the package is called faketime or libfaketime.
const LIBRARY: &str = "libfaketimeMT.so.1";
const JUMPS: usize = 5;
/// How late the end of a clock may be seen, on a busy machine.
const LATE_MAX: Duration = Duration::from_millis(1500);

/// Looks where systems keep their libraries: in the directories of libraries, those of an
/// architecture below them, and in `faketime` in either.
fn library() -> Option<PathBuf> {
    let roots = ["/usr/lib", "/usr/lib64", "/usr/local/lib", "/opt/homebrew/lib"];
    let below = |directory: &Path| {
        let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
        entries.map(|entry| entry.path()).filter(|path| path.is_dir()).collect::<Vec<_>>()
    };
    let all = roots.iter().map(PathBuf::from).flat_map(|root| {
        let inner = below(&root);
        inner.into_iter().chain([root])
    });
    all.flat_map(|directory| [directory.join("faketime").join(LIBRARY), directory.join(LIBRARY)])
        .find(|path| path.is_file())
}

/// A wall clock that daemons go by, and nothing else does.
struct WallClock {
    library: PathBuf,
    file: PathBuf,
}

impl WallClock {
    /// One that stands so far ahead of the machine's; `None`, and a word why, where it cannot be had.
    fn ahead(home: &Home, seconds: i64) -> Option<Self> {
        let Some(library) = library() else {
            eprintln!("skipped: {LIBRARY} is in no directory of libraries (package faketime)");
            return None;
        };
        let clock = Self { library, file: home.path("faketime") };
        clock.set(seconds);
        Some(clock)
    }

    /// Sets it so far ahead of the machine's.
    fn set(&self, seconds: i64) {
        // Whole or not at all: the daemon may read it at any moment.
        let new = self.file.with_extension("new");
        std::fs::write(&new, format!("{seconds:+}\n")).unwrap();
        std::fs::rename(new, &self.file).unwrap();
    }

    /// A daemon that goes by it.
    fn serve(&self, home: Home) -> Daemon {
        let (library, file) = (self.library.display().to_string(), self.file.display().to_string());
        let env = [
            ("LD_PRELOAD", library.as_str()),
            ("FAKETIME_TIMESTAMP_FILE", &file),
            ("FAKETIME_NO_CACHE", "1"),
            // Only the wall clock jumps: no machine's monotonic clock does.
            ("FAKETIME_DONT_FAKE_MONOTONIC", "1"),
            ("FAKETIME_DONT_RESET", "1"),
        ];
        home.serve_with(&env, &[])
    }
}

/// Sessions of one jump: it comes in the middle of all their clocks.
fn live_through(daemon: &Daemon, clock: &WallClock, round: usize, seconds: i64) {
    let name =
        |what: &str| format!("{what}-{round}-{}", if seconds == 0 { "back" } else { "there" });
    let (talks, old, idle, kept) = (name("talks"), name("old"), name("idle"), name("kept"));
    let talk = format!("[[say:begun]]{}", "[[sleep:200]][[say:.]]".repeat(20));
    let quiet = "[[say:begun]]";
    daemon.session(&kept, "plain", json!({"ttl": "1h", "idleTimeout": "1h", "prompt": quiet}));
    daemon.phase(&kept, "Idle");
    let begun = Instant::now();
    daemon.session(&old, "plain", json!({"ttl": "4s", "prompt": quiet}));
    daemon.session(&talks, "plain", json!({"turnInactivityTimeout": "3s", "prompt": talk}));
    daemon.said(&talks, &format!("{talks}-1"), "begun");
    daemon.session(&idle, "plain", json!({"idleTimeout": "2s", "prompt": quiet}));
    daemon.ended(&format!("{idle}-1"));
    let is_idle = Instant::now();
    assert!(begun.elapsed() < Duration::from_secs(4), "too slow a machine to see anything");
    clock.set(seconds);
    daemon.phase(&idle, "Hibernated");
    let was_idle = is_idle.elapsed();
    let least = Duration::from_millis(1500);
    assert!(was_idle >= least && was_idle <= Duration::from_secs(2) + LATE_MAX, "{was_idle:?}");
    let session = daemon.phase(&old, "Stopped");
    let lived = begun.elapsed();
    assert_eq!(session["status"]["reason"], "TtlExpired");
    let whole = Duration::from_secs(4);
    assert!(lived >= whole - LATE_MAX && lived <= whole + LATE_MAX, "{lived:?}");
    let turn = daemon.ended(&format!("{talks}-1"));
    assert_eq!(turn["status"]["phase"], "Completed", "{turn:#}");
    let session = daemon.get(&format!("sessions/{kept}"));
    assert_eq!(session["status"]["phase"], "Idle", "{session:#}");
    // It was seen, so there was one; and it is told once.
    daemon.log_line("the wall clock jumped");
    daemon.ok(&["stop", &kept]);
    assert_eq!(daemon.phase(&kept, "Stopped")["status"]["reason"], "Cancelled");
    assert!(!daemon.log().contains("the wall clock jumped"));
}

/// Test catalogue I2.
#[test]
fn two_hours_there_and_back_end_nobody_early_and_nobody_late() {
    if tier() < 2 {
        return;
    }
    let home = Home::new();
    let Some(clock) = WallClock::ahead(&home, 0) else { return };
    let daemon = clock.serve(home);
    daemon.agent("plain", &["--cap=all"], json!({}));
    for round in 0..JUMPS {
        live_through(&daemon, &clock, round, 7200);
        live_through(&daemon, &clock, round, 0);
    }
    daemon.follow(&["events", "-w"]).line_with("ClockJumped");
    for round in 0..JUMPS {
        for way in ["there", "back"] {
            daemon.ok(&["stop", &format!("talks-{round}-{way}")]);
        }
    }
}

/// Promise P11, over a start of the daemon: a day back lengthens no life by more than its whole ttl,
/// and keeps no record.
#[test]
fn a_clock_that_is_set_back_between_two_daemons_keeps_nobody_alive() {
    let home = Home::new();
    let Some(clock) = WallClock::ahead(&home, 86_400) else { return };
    let daemon = clock.serve(home);
    let state = format!("--state={}", daemon.path("log/state").display());
    daemon.agent("plain", &["--cap=all", &state], json!({}));
    daemon.session("old", "plain", json!({"ttl": "3s", "prompt": "[[say:x]]"}));
    daemon.ended("old-1");
    daemon.session("kept", "plain", json!({"ttl": "2d", "prompt": "[[say:x]]"}));
    daemon.ended("kept-1");
    daemon.session("done", "plain", json!({"ttlAfterFinished": "3s"}));
    daemon.phase("done", "Idle");
    daemon.ok(&["stop", "done"]);
    daemon.phase("done", "Stopped");
    let home = daemon.kill9();
    clock.set(0);
    let begun = Instant::now();
    let daemon = clock.serve(home);
    assert_eq!(daemon.phase("old", "Stopped")["status"]["reason"], "TtlExpired");
    daemon.gone("sessions/done");
    let lasted = begun.elapsed();
    assert!(lasted < Duration::from_secs(60), "{lasted:?}");
    // Neither is a life shortened: two days from here.
    let kept = daemon.until("sessions/kept", |one| one["status"]["ttlCountsFrom"].is_string());
    assert_eq!(kept["status"]["phase"], "Hibernated", "{kept:#}");
    let created = kept["metadata"]["creationTimestamp"].as_str().unwrap();
    let from = kept["status"]["ttlCountsFrom"].as_str().unwrap();
    assert!(from < created, "{from} {created}");
}

/// The same of what was made before the clock went wrong: only its end lies ahead, and no uid tells.
#[test]
fn a_session_that_ended_on_a_day_to_come_is_kept_no_longer_for_it() {
    let home = Home::new();
    let Some(clock) = WallClock::ahead(&home, 0) else { return };
    let daemon = clock.serve(home);
    daemon.agent("plain", &["--cap=all"], json!({}));
    daemon.session("done", "plain", json!({"ttlAfterFinished": "3s"}));
    daemon.phase("done", "Idle");
    let home = daemon.kill9();
    clock.set(86_400);
    let daemon = clock.serve(home);
    daemon.ok(&["stop", "done"]);
    daemon.phase("done", "Stopped");
    let home = daemon.kill9();
    clock.set(0);
    let daemon = clock.serve(home);
    daemon.gone("sessions/done");
}
