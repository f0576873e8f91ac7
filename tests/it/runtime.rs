//! Process control, with real processes: the shim, its gate and its lifeline, and six ways in
//! which agents' children get away from a process group.
#![allow(clippy::disallowed_methods, reason = "these tests start the processes that they test")]
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a failure is the test's failure")]
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "skipped parts say so")]

mod daemon;
mod leftovers;
mod parents;
mod reuse;

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open};
use spawnlet::runtime::process::{AgentExit, StartStage};
use spawnlet::runtime::{Emptiness, LaunchSpec, Launcher, Options, Process, ProcessEvent, cgroup};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::sync::mpsc;

/// No process.
const NONE: [u32; 0] = [];
/// Longer than anything may take on a busy machine; no test waits for it when it passes.
const DEADLINE: Duration = Duration::from_secs(20);

/// A number of seconds that no other process sleeps: it marks a test's processes in `/proc`.
fn token() -> String {
    static NEXT: AtomicU32 = AtomicU32::new(1);
    format!("9{:07}.{:04}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed))
}

fn launcher() -> Launcher {
    launcher_in(None)
}

fn launcher_in(cgroup_base: Option<PathBuf>) -> Launcher {
    Launcher::new(Options {
        shim_path: env!("CARGO_BIN_EXE_spawnlet-shim").into(),
        instance_prefix: format!("test-{}", token()),
        cgroup_base,
    })
}

fn bash(launcher: &Launcher, script: &str) -> LaunchSpec {
    let env = BTreeMap::from([("PATH".into(), "/usr/local/bin:/usr/bin:/bin".into())]);
    LaunchSpec {
        argv: vec!["/bin/bash".into(), "-c".into(), script.into()],
        cwd: "/".into(),
        env,
        instance: launcher.new_instance(),
        sandbox: None,
    }
}

/// A way to start a child. Each writes a line when it runs, and holds the agent's stdout.
#[derive(Clone, Copy, Debug)]
enum Escape {
    Plain,
    Setpgid,
    Setsid,
    DoubleFork,
    EmptyEnvironment,
    ForkStorm,
}

const ESCAPES: [Escape; 6] = [
    Escape::Plain,
    Escape::Setpgid,
    Escape::Setsid,
    Escape::DoubleFork,
    Escape::EmptyEnvironment,
    Escape::ForkStorm,
];
/// Children of the fork storm.
const STORM: usize = 200;

impl Escape {
    /// Starts the children, waits for one line of input, then goes on with `end`.
    fn script(self, token: &str, end: &str) -> String {
        let child = format!("/bin/sh -c 'echo $$; exec sleep {token}'");
        let start = match self {
            Self::Plain => format!("{child} &"),
            Self::Setpgid => format!("set -m; {child} & set +m"),
            Self::Setsid => format!("setsid {child} &"),
            Self::DoubleFork => format!("( ( setsid {child} & ) & )"),
            Self::EmptyEnvironment => {
                format!("( setsid env -i {child} & setsid env -i PATH=/bin:/usr/bin {child} & )")
            }
            Self::ForkStorm => format!("for i in $(seq {STORM}); do ( setsid {child} & ) ; done"),
        };
        format!("{start}\nread -r line; {end}; # {token}")
    }

    fn children(self) -> usize {
        match self {
            Self::ForkStorm => STORM,
            // All of it emptied, and all but PATH.
            Self::EmptyEnvironment => 2,
            Self::Plain | Self::Setpgid | Self::Setsid | Self::DoubleFork => 1,
        }
    }
}

/// The processes whose command line holds the token, but for zombies (theirs is empty).
fn with_token(token: &str) -> Vec<u32> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir("/proc").unwrap().flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else {
            continue;
        };
        let line = std::fs::read(entry.path().join("cmdline")).unwrap_or_default();
        if String::from_utf8_lossy(&line).contains(token) {
            found.push(pid);
        }
    }
    found
}

fn hold(pid: u32) -> Option<OwnedFd> {
    pidfd_open(Pid::from_raw(pid.try_into().unwrap()).unwrap(), PidfdFlags::empty()).ok()
}

/// Waits until a process has exited.
async fn gone(pidfd: OwnedFd) {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    let wait = move || {
        let limit = Timespec { tv_sec: DEADLINE.as_secs().try_into().unwrap(), tv_nsec: 0 };
        poll(&mut [PollFd::new(&pidfd, PollFlags::IN)], Some(&limit)).unwrap()
    };
    assert_eq!(tokio::task::spawn_blocking(wait).await.unwrap(), 1, "it is still there");
}

fn has_exited(pidfd: &OwnedFd) -> bool {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    poll(&mut [PollFd::new(pidfd, PollFlags::IN)], Some(&now)).unwrap() == 1
}

fn is_zombie_of(parent: u32) -> impl Fn(&u32) -> bool {
    move |pid| {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        let rest = stat.rsplit(')').next().unwrap_or_default().trim();
        let mut fields = rest.split(' ');
        fields.next() == Some("Z") && fields.next() == Some(&parent.to_string())
    }
}

async fn next(events: &mut mpsc::Receiver<ProcessEvent>) -> ProcessEvent {
    tokio::time::timeout(DEADLINE, events.recv()).await.expect("no event").expect("no more events")
}

async fn until_empty(events: &mut mpsc::Receiver<ProcessEvent>) -> Vec<ProcessEvent> {
    let mut seen = Vec::new();
    while seen.last() != Some(&ProcessEvent::TreeEmpty) {
        seen.push(next(events).await);
    }
    seen
}

async fn lines(reader: &mut (impl tokio::io::AsyncBufRead + Unpin), count: usize) {
    let mut line = String::new();
    for _ in 0..count {
        let read = tokio::time::timeout(DEADLINE, reader.read_line(&mut line)).await;
        assert!(read.expect("no line").unwrap() > 0, "the output ended");
    }
}

/// A running agent with its escaped children.
struct Escaped {
    process: Process,
    events: mpsc::Receiver<ProcessEvent>,
    /// Kept: nothing may die of a broken pipe.
    _stdout: BufReader<tokio::net::unix::pipe::Receiver>,
    token: String,
}

async fn escape(launcher: &Launcher, style: Escape, end: &str) -> Escaped {
    let token = token();
    let mut process = launcher.spawn(bash(launcher, &style.script(&token, end))).await.unwrap();
    let mut events = process.events().unwrap();
    process.open_gate().unwrap();
    assert!(matches!(next(&mut events).await, ProcessEvent::Started { .. }));
    let mut stdout = BufReader::new(process.take_stdout().unwrap());
    lines(&mut stdout, style.children()).await;
    Escaped { process, events, _stdout: stdout, token }
}

#[tokio::test]
async fn no_escape_survives_the_killing_of_its_tree() {
    let launcher = launcher();
    for style in ESCAPES {
        let mut escaped = escape(&launcher, style, "exit 0").await;
        escaped.process.kill_tree();
        let events = until_empty(&mut escaped.events).await;
        assert_eq!(
            events,
            [ProcessEvent::Exited(AgentExit::Signal(9)), ProcessEvent::TreeEmpty],
            "{style:?}"
        );
        assert_eq!(with_token(&escaped.token), NONE, "{style:?}");
        assert_eq!(escaped.process.emptiness(), Emptiness::Empty);
    }
}

#[tokio::test]
async fn a_tree_that_goes_on_forking_is_killed() {
    let launcher = launcher();
    let token = token();
    // Bounded, should it not be: each of these forks as fast as it can.
    let one = format!("for i in $(seq 500); do ( setsid env -i sleep {token} & ); done");
    let script = format!("( {one} ) & ( {one} ) & ( {one} ) & echo up; read -r line; # {token}");
    for end_by_kill in [true, false] {
        let mut process = launcher.spawn(bash(&launcher, &script)).await.unwrap();
        let mut events = process.events().unwrap();
        process.open_gate().unwrap();
        let mut stdout = BufReader::new(process.take_stdout().unwrap());
        lines(&mut stdout, 1).await;
        if end_by_kill {
            process.kill_tree();
        } else {
            drop(process);
        }
        until_empty(&mut events).await;
        assert_eq!(with_token(&token), NONE);
    }
}

#[tokio::test]
async fn no_escape_survives_the_exit_of_its_agent() {
    let launcher = launcher();
    for style in ESCAPES {
        let mut escaped = escape(&launcher, style, "exit 7").await;
        let mut stdin = escaped.process.take_stdin().unwrap();
        stdin.write_all(b"\n").await.unwrap();
        let events = until_empty(&mut escaped.events).await;
        assert_eq!(
            events,
            [ProcessEvent::Exited(AgentExit::Code(7)), ProcessEvent::TreeEmpty],
            "{style:?}"
        );
        assert_eq!(with_token(&escaped.token), NONE, "{style:?}");
    }
}

#[tokio::test]
async fn no_escape_survives_the_drop_of_its_process() {
    let launcher = launcher();
    for style in ESCAPES {
        let Escaped { process, mut events, token, .. } = escape(&launcher, style, "exit 0").await;
        drop(process);
        until_empty(&mut events).await;
        assert_eq!(with_token(&token), NONE, "{style:?}");
    }
}

/// The negative control: what the tests above would find if a process group were enough.
#[tokio::test]
async fn killing_the_process_group_alone_leaves_most_escapes_alive() {
    let launcher = launcher();
    let mut survived = 0;
    for style in ESCAPES {
        let token = token();
        let script = style.script(&token, "exit 0");
        use std::os::unix::process::CommandExt;
        let mut child = Command::new("/bin/bash")
            .args(["-c", &script])
            .process_group(0)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let stdout = tokio::process::ChildStdout::from_std(child.stdout.take().unwrap()).unwrap();
        let mut stdout = BufReader::new(stdout);
        let group = Pid::from_raw(child.id().try_into().unwrap()).unwrap();
        let mut outside = Vec::new();
        let mut inside = Vec::new();
        for _ in 0..style.children() {
            let mut line = String::new();
            stdout.read_line(&mut line).await.unwrap();
            let pid = Pid::from_raw(line.trim().parse().unwrap()).unwrap();
            let held = pidfd_open(pid, PidfdFlags::empty()).unwrap();
            let group_of = rustix::process::getpgid(Some(pid)).unwrap();
            if group_of == group { inside.push(held) } else { outside.push(held) }
        }
        rustix::process::kill_process_group(group, Signal::KILL).unwrap();
        child.wait().unwrap();
        for process in inside {
            gone(process).await;
        }
        survived += usize::from(!outside.is_empty());
        for process in outside {
            assert!(!has_exited(&process), "it has not survived");
            rustix::process::pidfd_send_signal(&process, Signal::KILL).unwrap();
            gone(process).await;
        }
    }
    drop(launcher);
    assert!(survived >= 4, "only {survived} of 6 survived");
}

#[tokio::test]
async fn nothing_runs_if_the_gate_stays_shut() {
    let launcher = launcher();
    let token = token();
    let script = format!("echo ran; exec sleep {token}");
    let mut process = launcher.spawn(bash(&launcher, &script)).await.unwrap();
    let mut events = process.events().unwrap();
    let mut stdout = process.take_stdout().unwrap();
    assert_eq!(process.emptiness(), Emptiness::Populated);
    let shim = hold(process.identity().shim_pid).unwrap();
    drop(process);
    gone(shim).await;
    assert_eq!(next(&mut events).await, ProcessEvent::TreeEmpty);
    let mut out = Vec::new();
    stdout.read_to_end(&mut out).await.unwrap();
    assert_eq!(out, b"");
    assert_eq!(with_token(&token), NONE);
}

#[tokio::test]
async fn a_kill_at_the_gate_starts_nothing() {
    let launcher = launcher();
    let mut process = launcher.spawn(bash(&launcher, "echo ran")).await.unwrap();
    let mut events = process.events().unwrap();
    process.kill_tree();
    process.open_gate().unwrap();
    assert_eq!(until_empty(&mut events).await, [ProcessEvent::TreeEmpty]);
    assert_eq!(process.emptiness(), Emptiness::Empty);
}

#[tokio::test]
async fn an_agent_has_three_descriptors_and_exactly_its_environment() {
    // Something that a careless daemon would leak.
    let leak = std::fs::File::open("/dev/null").unwrap();
    rustix::io::fcntl_setfd(&leak, rustix::io::FdFlags::empty()).unwrap();
    let launcher = launcher();
    let mut spec = bash(&launcher, "");
    let script = "import os; print(sorted(os.listdir('/proc/self/fd'))); \
                  print(open('/proc/self/environ').read().split('\\0')); \
                  print(os.getcwd(), os.getpid() == os.getpgrp(), \
                  open('/proc/self/status').read().count('NoNewPrivs:\\t1'))";
    spec.argv = vec!["/usr/bin/env".into(), "python3".into(), "-c".into(), script.into()];
    spec.env.insert("SECRET".into(), "s3cret value=1".into());
    spec.cwd = "/tmp".into();
    let instance = spec.instance.clone();
    let mut process = launcher.spawn(spec).await.unwrap();
    let shim = process.identity().shim_pid;
    let of_shim = |file: &str| std::fs::read_to_string(format!("/proc/{shim}/{file}")).unwrap();
    assert_eq!(of_shim("environ"), format!("SPAWNLET_INSTANCE={instance}\0"));
    assert!(!of_shim("cmdline").contains("python"), "{}", of_shim("cmdline"));
    process.open_gate().unwrap();
    let mut out = String::new();
    let mut stdout = process.take_stdout().unwrap();
    tokio::time::timeout(DEADLINE, stdout.read_to_string(&mut out)).await.unwrap().unwrap();
    // 3 is the listing itself.
    let expected = format!(
        "['0', '1', '2', '3']\n['PATH=/usr/local/bin:/usr/bin:/bin', 'SECRET=s3cret value=1', \
         'SPAWNLET_INSTANCE={instance}', '']\n/tmp True 1\n"
    );
    assert_eq!(out, expected);
}

#[tokio::test]
async fn a_start_that_fails_says_what_failed_and_leaves_nothing() {
    let launcher = launcher();
    let mut absent = bash(&launcher, "");
    absent.argv = vec!["/no/such/program".into()];
    let mut elsewhere = bash(&launcher, "");
    elsewhere.cwd = "/no/such/directory".into();
    let script = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(script.path(), "echo a shell ran me").unwrap();
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(script.path(), mode).unwrap();
    let script = script.into_temp_path();
    let mut no_interpreter = bash(&launcher, "");
    no_interpreter.argv = vec![script.as_os_str().into()];
    // ENOENT and ENOEXEC of errno(3).
    for (spec, stage, errno) in [
        (absent, StartStage::Exec, 2),
        (elsewhere, StartStage::Directory, 2),
        (no_interpreter, StartStage::Exec, 8),
    ] {
        let mut process = launcher.spawn(spec).await.unwrap();
        let mut events = process.events().unwrap();
        process.open_gate().unwrap();
        let expected = [ProcessEvent::ExecFailed { stage, errno }, ProcessEvent::TreeEmpty];
        assert_eq!(until_empty(&mut events).await, expected);
    }
}

#[tokio::test]
async fn an_agent_that_ignores_term_or_is_stopped_is_killed_all_the_same() {
    let launcher = launcher();
    for (script, line) in [
        ("trap '' TERM; echo up; while :; do read -r x || sleep 1; done", true),
        ("echo up; kill -STOP $$", true),
    ] {
        let mut process = launcher.spawn(bash(&launcher, script)).await.unwrap();
        let mut events = process.events().unwrap();
        process.open_gate().unwrap();
        assert!(matches!(next(&mut events).await, ProcessEvent::Started { .. }));
        let mut stdout = BufReader::new(process.take_stdout().unwrap());
        lines(&mut stdout, usize::from(line)).await;
        process.kill_tree();
        let expected = [ProcessEvent::Exited(AgentExit::Signal(9)), ProcessEvent::TreeEmpty];
        assert_eq!(until_empty(&mut events).await, expected);
    }
}

#[tokio::test]
async fn term_reaches_a_stopped_agent_and_its_group() {
    let launcher = launcher();
    let token = token();
    let script =
        format!("trap 'exit 3' TERM; echo up; kill -STOP $$; read -r x; exit 1; # {token}");
    let mut process = launcher.spawn(bash(&launcher, &script)).await.unwrap();
    let mut events = process.events().unwrap();
    process.open_gate().unwrap();
    let mut stdout = BufReader::new(process.take_stdout().unwrap());
    lines(&mut stdout, 1).await;
    process.terminate().unwrap();
    let events = until_empty(&mut events).await;
    assert_eq!(events.get(1), Some(&ProcessEvent::Exited(AgentExit::Code(3))), "{events:?}");
}

#[tokio::test]
async fn no_zombie_is_left() {
    let launcher = launcher();
    for _ in 0..5 {
        let mut process = launcher.spawn(bash(&launcher, "true")).await.unwrap();
        let mut events = process.events().unwrap();
        process.open_gate().unwrap();
        let shim = process.identity().shim_pid;
        until_empty(&mut events).await;
        assert!(!is_zombie_of(std::process::id())(&shim));
        drop(launcher.spawn(bash(&launcher, "true")).await.unwrap());
        // Dropped as soon as it has to wait for the first time.
        let spec = bash(&launcher, "true");
        drop(tokio::time::timeout(Duration::ZERO, launcher.spawn(spec)).await);
    }
    tokio::time::timeout(DEADLINE, launcher.drained()).await.unwrap();
    assert!(launcher.live_instances().is_empty());
}

#[tokio::test]
async fn a_stopped_shim_still_kills_its_tree() {
    let launcher = launcher();
    for dropped in [false, true] {
        let Escaped { process, mut events, token, .. } =
            escape(&launcher, Escape::DoubleFork, "exit 0").await;
        let shim = hold(process.identity().shim_pid).unwrap();
        rustix::process::pidfd_send_signal(&shim, Signal::STOP).unwrap();
        if dropped {
            drop(process);
        } else {
            process.kill_tree();
        }
        until_empty(&mut events).await;
        assert_eq!(with_token(&token), NONE);
    }
}

#[tokio::test]
async fn no_escape_survives_where_there_are_cgroups() {
    let Some(base) = cgroup::detect() else {
        eprintln!("skipped: no writable cgroup v2 directory");
        return;
    };
    let launcher = launcher_in(Some(base));
    for style in ESCAPES {
        let mut escaped = escape(&launcher, style, "exit 0").await;
        let directory = escaped.process.identity().cgroup.clone().unwrap();
        let inside = std::fs::read_to_string(directory.join("cgroup.procs")).unwrap();
        assert!(inside.lines().count() > style.children(), "{style:?}: {inside}");
        escaped.process.kill_tree();
        until_empty(&mut escaped.events).await;
        assert_eq!(with_token(&escaped.token), NONE, "{style:?}");
        assert!(!directory.exists());
    }
}

#[tokio::test]
async fn a_shim_stays_below_one_mebibyte_of_private_memory() {
    let launcher = launcher();
    let mut spec = bash(&launcher, "echo up; read -r x");
    // A large launch block must not stay: its memory goes back when the agent is started.
    spec.env.insert("LARGE".into(), "x".repeat(100_000).into());
    let mut process = launcher.spawn(spec).await.unwrap();
    process.open_gate().unwrap();
    lines(&mut BufReader::new(process.take_stdout().unwrap()), 1).await;
    let path = format!("/proc/{}/smaps_rollup", process.identity().shim_pid);
    let rollup = std::fs::read_to_string(path).unwrap();
    let private: u64 = rollup
        .lines()
        .filter(|line| line.starts_with("Private_"))
        .map(|line| line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap())
        .sum();
    assert!(private < 1024, "{private} KiB:\n{rollup}");
}

#[tokio::test]
async fn a_shim_that_is_absent_or_another_program_is_refused() {
    use spawnlet::runtime::launch::Error;
    let with = |shim_path: &str| {
        let options = Options { shim_path: shim_path.into(), ..launcher().options().clone() };
        Launcher::new(options)
    };
    let absent = with("/no/such/shim");
    let error = absent.spawn(bash(&absent, "true")).await.unwrap_err();
    assert!(matches!(error, Error::ShimMissing { .. }), "{error}");
    let other = with("/bin/true");
    let error = other.spawn(bash(&other, "true")).await.unwrap_err();
    assert!(matches!(error, Error::ShimLost), "{error}");
    tokio::time::timeout(DEADLINE, other.drained()).await.unwrap();
}
