//! `spawnlet demo`, as the README's first command runs it.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use rustix::process::Signal;

use crate::harness::{Home, binary, finish, lines, signal, spawnlet};

/// The columns and lines of a screen.
const COLUMNS: usize = 120;
const LINES: usize = 120;

/// A directory to make scratch directories in.
fn scratch(home: &Home) -> PathBuf {
    let path = home.path("scratch");
    std::fs::create_dir(&path).unwrap();
    path
}

fn start(mut command: Command, scratch: &Path, arguments: &[&str]) -> Child {
    command.arg("demo").args(arguments).env("TMPDIR", scratch);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command.spawn().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn files(directory: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(directory).unwrap().flatten();
    entries.map(|entry| entry.path().display().to_string()).collect()
}

/// Processes that work in a directory, were given it, or run a program of it.
fn processes(directory: &Path) -> Vec<String> {
    let mark = directory.display().to_string();
    let entries = std::fs::read_dir("/proc").unwrap().flatten().map(|entry| entry.path());
    let is_ours = |process: &PathBuf| {
        let read = |name: &str| text(&std::fs::read(process.join(name)).unwrap_or_default());
        let works_in = std::fs::read_link(process.join("cwd")).unwrap_or_default();
        works_in.starts_with(directory) || read("environ").contains(&mark)
    };
    entries.filter(is_ours).map(|process| process.display().to_string()).collect()
}

fn assert_nothing_left(scratch: &Path, output: &Output) {
    assert_eq!(processes(scratch), Vec::<String>::new(), "{output:?}");
    assert_eq!(files(scratch), Vec::<String>::new(), "{output:?}");
}

#[test]
fn the_demo_runs_to_its_end_and_leaves_nothing() {
    let home = Home::new();
    let scratch = scratch(&home);
    let mut command = spawnlet();
    // A daemon and a configuration of the user's are neither asked nor needed, nor is a proxy.
    command.env("SPAWNLET_URL", "http://127.0.0.1:1").env("SPAWNLET_TOKEN", "foreign");
    command.env("SPAWNLET_NAMESPACE", "other").env("HTTP_PROXY", "http://127.0.0.1:1");
    command.env("XDG_STATE_HOME", "/nowhere").env("XDG_CONFIG_HOME", "/nowhere");
    let output = finish(start(command, &scratch, &[]), None);
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    assert_eq!(output.status.code(), Some(0), "{out}\n{err}");
    assert_eq!(err, "");
    for part in [
        "listening on http://127.0.0.1:",
        "You said: Hello from a YAML file.",
        "its tools: available_agents, prompt_to_agent",
        "<- {\"status\":\"accepted\"",
        "<- {\"status\":\"idle\"",
        "\"done\":true}",
        "<- {\"cancelled\":true}",
        "<- {\"status\":\"error\",\"code\":\"TURN_CANCELLED_BY_PARENT\"",
        "Stop(Cancel)",
        "session/demo deleted",
        "the daemon ended with exit code 0",
        "README.md",
    ] {
        assert!(out.contains(part), "{part}\n{out}");
    }
    assert!(!out.contains('\u{1b}'), "colours are for terminals\n{out}");
    assert!(out.lines().count() <= LINES, "{out}");
    // The first names the scratch directory, as long as its path is.
    for line in out.lines().skip(1) {
        assert!(line.chars().count() <= COLUMNS, "{line}");
    }
    assert_nothing_left(&scratch, &output);
}

#[test]
fn the_demo_keeps_its_directory_if_it_is_told_to() {
    let home = Home::new();
    let scratch = scratch(&home);
    let output = finish(start(spawnlet(), &scratch, &["--keep"]), None);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let kept = files(&scratch);
    assert_eq!(kept.len(), 1, "{kept:?}");
    assert!(text(&output.stdout).contains(&format!("its files are in {}", kept[0])), "{output:?}");
    for name in ["demo.yaml", "daemon.log", "state/spawnlet/store.db"] {
        assert!(Path::new(&kept[0]).join(name).is_file(), "{name}");
    }
    assert_eq!(processes(&scratch), Vec::<String>::new());
}

#[test]
fn the_demo_without_its_shim_says_so_and_begins_nothing() {
    let home = Home::new();
    let scratch = scratch(&home);
    let alone = home.path("work").join("spawnlet");
    std::fs::hard_link(binary(), &alone)
        .or_else(|_| std::fs::copy(binary(), &alone).map(|_| ()))
        .unwrap();
    let output = finish(start(Command::new(&alone), &scratch, &[]), None);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let err = text(&output.stderr);
    assert!(
        err.contains("spawnlet-shim is missing") && err.contains("cargo build --bins"),
        "{err}"
    );
    assert_eq!(text(&output.stdout), "");
    assert_nothing_left(&scratch, &output);
}

#[test]
fn an_interrupted_demo_stops_its_daemon_and_its_agents() {
    let home = Home::new();
    let scratch = scratch(&home);
    let mut child = start(spawnlet(), &scratch, &[]);
    let out = lines(child.stdout.take().unwrap());
    // An agent hangs in its turn by then.
    while !out.recv_timeout(crate::harness::DEADLINE).unwrap().starts_with("-> cancel_session") {}
    assert_ne!(processes(&scratch), Vec::<String>::new(), "the test looks at the right ones");
    signal(child.id(), Signal::INT);
    let output = finish(child, None);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let err = text(&output.stderr);
    assert!(err.contains("stopped by SIGINT") && err.contains("no process is left, and no file"));
    assert_nothing_left(&scratch, &output);
}

#[test]
fn a_step_that_comes_out_differently_ends_the_demo_and_keeps_its_directory() {
    let home = Home::new();
    // Too long for the path of a socket (unix(7): 108 bytes), so no daemon starts there.
    let scratch = home.path(&"long".repeat(25));
    std::fs::create_dir(&scratch).unwrap();
    let output = finish(start(spawnlet(), &scratch, &[]), None);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let err = text(&output.stderr);
    assert!(err.contains("the daemon's start\n  expected: a line \"listening on"), "{err}");
    assert!(err.contains("and came: the daemon ended with exit status: 1"), "{err}");
    let kept = files(&scratch);
    assert_eq!(kept.len(), 1, "{kept:?}");
    assert!(err.contains(&format!("no process is left; what it wrote is in {}", kept[0])), "{err}");
    assert_eq!(processes(&scratch), Vec::<String>::new());
}

#[test]
fn the_example_of_two_files_is_answered_by_the_example_agent() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let test = std::env::current_exe().unwrap();
    let agent = test.parent().unwrap().parent().unwrap().join("examples/echo-agent");
    assert!(agent.is_file(), "{} is missing: cargo build --examples", agent.display());
    let home = Home::new();
    for name in ["agent.yaml", "session.yaml"] {
        let text = std::fs::read_to_string(root.join("examples/quickstart").join(name)).unwrap();
        // On the PATH for the reader, here by its place.
        let command = format!("command: {}", agent.display());
        let text = text.replace("command: echo-agent", &command);
        std::fs::write(home.path("manifests").join(name), text).unwrap();
    }
    let daemon = home.serve(&[]);
    let turn = daemon.ended("first-1");
    assert_eq!(turn["status"]["phase"], "Completed", "{turn:#}");
    assert!(daemon.response("first-1").contains("Hello from a YAML file."));
}
