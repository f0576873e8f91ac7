//! The real daemon in a directory of its own, to be killed and started again.

use std::collections::BTreeSet;
use std::io::BufRead as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::http::Client;
use super::tree::{self, Sighting};

/// Longer than a start may take on a busy machine; no test waits for it when it passes.
pub(crate) const DEADLINE: Duration = Duration::from_secs(60);
/// How often it is looked whether something has come about that tells nobody.
const LOOK_AGAIN: Duration = Duration::from_millis(50);

/// The program of the agents: an example, which cargo builds beside the tests.
fn fakeagent() -> PathBuf {
    let test = std::env::current_exe().expect("the test has a path");
    let profile = test.ancestors().nth(2).expect("the test is in target/PROFILE/deps");
    let program = profile.join("examples/fakeagent");
    assert!(program.exists(), "build it first: cargo build --example fakeagent");
    program
}

/// What stays over the daemon's deaths.
pub(crate) struct World {
    directory: tempfile::TempDir,
    settings: Vec<String>,
    program: PathBuf,
}

impl World {
    pub(crate) fn new(settings: &[&str]) -> Self {
        Self::of(settings, Path::new(env!("CARGO_BIN_EXE_spawnlet")))
    }

    /// The same with another build of the daemon.
    pub(crate) fn of(settings: &[&str], program: &Path) -> Self {
        let directory = tempfile::Builder::new().prefix("spawnlet-chaos-").tempdir().unwrap();
        let settings = settings.iter().map(|set| (*set).into()).collect();
        let world = Self { directory, settings, program: program.to_owned() };
        for name in ["manifests", "work"] {
            std::fs::create_dir(world.path(name)).unwrap();
        }
        let agent = |name: &str, flags: &[&str]| {
            let logs = ["--prompt-log", &world.text("prompts"), "--pid-log", &world.text("pids")]
                .map(str::to_owned);
            let argv: Vec<String> = std::iter::once(fakeagent().to_str().unwrap().to_owned())
                .chain(logs)
                .chain(flags.iter().map(|flag| (*flag).to_owned()))
                .collect();
            json!({"apiVersion": "spawnlet.dev/v1alpha1", "kind": "Agent",
                "metadata": {"name": name},
                "spec": {"argv": argv, "stop": {"cancel": "1s", "close": "300ms", "eof": "500ms"}}})
        };
        let state = world.text("state");
        let agents = [
            agent("resuming", &["--cap", "load,resume,close", "--state", &state]),
            agent("loading", &["--cap", "load", "--state", &state]),
            agent("forgetful", &[]),
            agent("stubborn", &["--on-eof", "ignore", "--ignore-term"]),
        ];
        let documents: Vec<String> = agents.iter().map(Value::to_string).collect();
        std::fs::write(world.path("manifests").join("agents.yaml"), documents.join("\n---\n"))
            .unwrap();
        world
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    pub(crate) fn text(&self, name: &str) -> String {
        self.path(name).to_str().unwrap().to_owned()
    }

    pub(crate) fn data_dir(&self) -> PathBuf {
        self.path("data")
    }

    fn store_id(&self) -> String {
        let id = std::fs::read_to_string(self.data_dir().join("store.id")).unwrap_or_default();
        let id = id.trim();
        // Before the store exists it has no processes either.
        if id.is_empty() { "no-store".to_owned() } else { id.to_owned() }
    }

    /// Everything of its agents that is alive.
    pub(crate) fn alive(&self) -> BTreeSet<Sighting> {
        tree::sightings(&self.store_id(), self.directory.path().to_str().unwrap())
    }

    /// As [`tree::wait_until_empty`].
    pub(crate) fn wait_until_empty(
        &self,
        since: Instant,
        limit: Duration,
    ) -> Result<Duration, BTreeSet<Sighting>> {
        let directory = self.directory.path().to_str().unwrap();
        tree::wait_until_empty(&self.store_id(), directory, since, limit)
    }

    fn command(&self) -> Command {
        let log = std::fs::File::options().create(true).append(true).open(self.path("log"));
        let mut command = Command::new(&self.program);
        command.arg("serve").args(["--listen", "127.0.0.1:0", "--data-dir"]).arg(self.data_dir());
        command.arg("--manifests").arg(self.path("manifests"));
        for setting in &self.settings {
            command.args(["--set", setting]);
        }
        for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("SPAWNLET_")) {
            command.env_remove(name);
        }
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(log.unwrap());
        // A signal from a terminal is for the test alone.
        command.process_group(0);
        command
    }

    /// Starts the daemon and does not wait for it.
    pub(crate) fn start(&self) -> Daemon {
        self.start_with(&[])
    }

    /// The same with more in its environment.
    pub(crate) fn start_with(&self, environment: &[(&str, &str)]) -> Daemon {
        let started = Instant::now();
        let mut child = self.command().envs(environment.iter().copied()).spawn().unwrap();
        let stdout = child.stdout.take().unwrap();
        let (sender, lines) = sync_channel(16);
        std::thread::spawn(move || {
            for line in std::io::BufReader::new(stdout).lines().map_while(Result::ok) {
                let _ = sender.try_send(line);
            }
        });
        let start_time = tree::stat(child.id()).map_or(0, |(_, _, start_time)| start_time);
        Daemon { child, lines, started, start_time, address: String::new() }
    }

    /// Starts it and waits until it is ready.
    pub(crate) fn start_ready(&self) -> Daemon {
        let mut daemon = self.start();
        daemon.wait_until_ready(self);
        daemon
    }

    /// Runs one to its end, which is not expected to be far: its exit code.
    pub(crate) fn run_to_end(&self) -> Option<i32> {
        let mut daemon = self.start();
        daemon.wait_for_exit().code()
    }

    pub(crate) fn connect(&self, daemon: &Daemon) -> Client {
        let token = std::fs::read_to_string(self.data_dir().join("operator.token")).unwrap();
        Client::connect(&daemon.address, token.trim()).expect("a ready daemon accepts connections")
    }

    /// Tells where everything is kept for whoever looks for the fault.
    pub(crate) fn keep(&mut self) -> &Path {
        self.directory.disable_cleanup(true);
        self.directory.path()
    }
}

/// A daemon; it is killed when it is dropped.
pub(crate) struct Daemon {
    child: Child,
    lines: Receiver<String>,
    started: Instant,
    /// Clock ticks since boot.
    pub(crate) start_time: u64,
    pub(crate) address: String,
}

impl Daemon {
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Waits for the line `listening on`; how long the start took.
    pub(crate) fn wait_until_ready(&mut self, world: &World) -> Duration {
        loop {
            match self.lines.recv_timeout(DEADLINE) {
                Ok(line) => {
                    if let Some(address) = line.strip_prefix("listening on http://") {
                        self.address = address.to_owned();
                        return self.started.elapsed();
                    }
                }
                Err(error) => {
                    let log = std::fs::read_to_string(world.path("log")).unwrap_or_default();
                    let last: Vec<&str> = log.lines().rev().take(20).collect();
                    panic!("the daemon does not start ({error}); its log, last first: {last:#?}");
                }
            }
        }
    }

    /// Waits for the line `listening on`; false if it ends before.
    pub(crate) fn is_ready(&mut self) -> bool {
        loop {
            match self.lines.recv_timeout(DEADLINE) {
                Ok(line) => {
                    if let Some(address) = line.strip_prefix("listening on http://") {
                        self.address = address.to_owned();
                        return true;
                    }
                }
                Err(RecvTimeoutError::Disconnected) => return false,
                Err(RecvTimeoutError::Timeout) => panic!("the daemon neither starts nor ends"),
            }
        }
    }

    /// Kill -9; when this returns, nothing of the daemon itself runs any more.
    pub(crate) fn kill(&mut self) -> Instant {
        self.child.kill().unwrap();
        let killed = Instant::now();
        self.child.wait().unwrap();
        killed
    }

    /// Asks it to stop and waits until it has.
    pub(crate) fn stop(&mut self) -> ExitStatus {
        let held = tree::hold(self.pid()).unwrap();
        rustix::process::pidfd_send_signal(&held, rustix::process::Signal::TERM).unwrap();
        self.wait_for_exit()
    }

    pub(crate) fn wait_for_exit(&mut self) -> ExitStatus {
        // Its standard output ends with it: nobody else has it.
        let since = Instant::now();
        while !matches!(self.lines.recv_timeout(DEADLINE), Err(RecvTimeoutError::Disconnected)) {
            assert!(since.elapsed() < DEADLINE, "the daemon does not end");
        }
        self.child.wait().unwrap()
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Looks until something has come about.
pub(crate) fn wait_for<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    // Nobody ever sends on it: it is a clock that can be waited for.
    let (_sender, clock) = sync_channel::<()>(1);
    let since = Instant::now();
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(since.elapsed() < DEADLINE, "it does not come about: {what}");
        let _ = clock.recv_timeout(LOOK_AGAIN);
    }
}
