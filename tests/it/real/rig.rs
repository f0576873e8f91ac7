//! A stub model server, an agent's manifest and a daemon, in a directory of their own.

use std::path::{Path, PathBuf};
use std::process::{Output, Stdio};
use std::time::Duration;

use serde_json::Value;
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, BufReader, Lines};
use tokio::process::{Child, ChildStdout, Command};
use tokio::time::timeout;

/// Longer than anything may take on a busy machine (first starts take up to 10 s there, page 80);
/// no test waits for it when it passes.
pub(super) const DEADLINE: Duration = Duration::from_secs(90);

/// Lines of a child's standard output.
type Out = Lines<BufReader<ChildStdout>>;

/// All that a case needs. When it is dropped, everything in it is killed.
pub(super) struct Rig {
    dir: TempDir,
    stub: Out,
    _stub: Child,
    daemon: Child,
    daemon_out: Out,
    address: String,
    /// Arguments of `serve`.
    settings: Vec<String>,
}

impl Rig {
    /// Starts the stub and the daemon, with `manifests` (and the Agent) in its watched directory.
    pub(super) async fn start(agent: &str, manifests: &str) -> Self {
        Self::start_with(agent, manifests, &[]).await
    }

    /// The same, of a daemon that is configured by `KEY=VALUE`.
    pub(super) async fn start_with(agent: &str, manifests: &str, settings: &[&str]) -> Self {
        let dir = TempDir::new().unwrap();
        for name in ["work", "home", "manifests"] {
            std::fs::create_dir(dir.path().join(name)).unwrap();
        }
        let mut child = python("stub_model.py")
            .args(["--port", "0", "--follow"])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut stub = lines(&mut child);
        let listening = next(&mut stub).await;
        let port = listening.rsplit(':').next().unwrap().to_owned();
        let home = dir.path().join("home");
        let manifest = python("agent_recipes.py")
            .args(["manifest", agent, &port, home.to_str().unwrap()])
            .output()
            .await
            .unwrap();
        assert!(manifest.status.success(), "{manifest:?}");
        let manifest = String::from_utf8(manifest.stdout).unwrap();
        let work = dir.path().join("work");
        let manifests =
            manifests.replace("{agent}", agent).replace("{work}", work.to_str().unwrap());
        let path = dir.path().join("manifests/all.yaml");
        std::fs::write(path, format!("{manifest}\n---\n{manifests}")).unwrap();
        let settings: Vec<_> =
            settings.iter().flat_map(|&setting| ["--set".to_owned(), setting.to_owned()]).collect();
        let (daemon, daemon_out, address) = serve(dir.path(), &settings).await;
        Self { dir, stub, _stub: child, daemon, daemon_out, address, settings }
    }

    /// The directory that sessions work in.
    pub(super) fn work(&self) -> PathBuf {
        self.dir.path().join("work")
    }

    /// The CLI, told where the daemon is.
    fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_spawnlet"));
        command
            .env_remove("SPAWNLET_URL")
            .env_remove("SPAWNLET_TOKEN")
            .env_remove("SPAWNLET_NAMESPACE")
            .arg("--data-dir")
            .arg(self.dir.path().join("data"))
            .args(args)
            .stdin(Stdio::null())
            .kill_on_drop(true);
        command
    }

    /// Runs the CLI, whatever comes of it.
    pub(super) async fn try_cli(&self, args: &[&str]) -> Output {
        let output = self.command(args).output();
        let Ok(output) = timeout(DEADLINE, output).await else {
            panic!("`spawnlet {}` did not end", args.join(" "))
        };
        output.unwrap()
    }

    /// Runs the CLI, which must succeed: its standard output.
    pub(super) async fn cli(&self, args: &[&str]) -> String {
        let output = self.try_cli(args).await;
        let stdout = String::from_utf8_lossy(&output.stdout).into_owned();
        if !output.status.success() {
            let line = args.join(" ");
            let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
            let turns = self.try_cli(&["get", "turns", "-o", "yaml"]).await;
            let reports = self.try_cli(&["report", "session/one"]).await;
            panic!(
                "`spawnlet {line}`: {}\n{stdout}\n{stderr}\n{}\n{}",
                output.status,
                String::from_utf8_lossy(&turns.stdout),
                String::from_utf8_lossy(&reports.stdout),
            );
        }
        stdout
    }

    /// Waits until a record has the phase.
    pub(super) async fn phase(&self, object: &str, phase: &str) {
        let wanted = format!("phase={phase}");
        self.cli(&["wait", object, "--for", &wanted, "--timeout", "60s"]).await;
    }

    /// A record, as the CLI prints it.
    pub(super) async fn record(&self, object: &str) -> Value {
        serde_json::from_str(&self.cli(&["get", object, "-o", "json"]).await).unwrap()
    }

    /// Watches until a record of the kind with the name is there.
    pub(super) async fn appears(&self, kind: &str, name: &str) {
        let mut watch = self.command(&["get", kind, "-w", "-o", "name"]);
        let mut child = watch.stdout(Stdio::piped()).spawn().unwrap();
        let mut out = lines(&mut child);
        while !next(&mut out).await.ends_with(name) {}
    }

    /// Watches until the agent asks for a permission in a turn: the request's name.
    pub(super) async fn asks(&self, turn: &str) -> String {
        let mut watch = self.command(&["get", "permissionrequests", "-w", "-o", "name"]);
        let mut child = watch.stdout(Stdio::piped()).spawn().unwrap();
        let mut out = lines(&mut child);
        loop {
            let request = next(&mut out).await;
            let record = self.record(&request).await;
            if record["spec"]["turn"] == turn && record["status"]["phase"] == "Pending" {
                return record["metadata"]["name"].as_str().unwrap().to_owned();
            }
        }
    }

    /// Waits until the model is asked with this as the last user text: the stub's log entry.
    pub(super) async fn asked(&mut self, text: &str) -> Value {
        loop {
            let line = next(&mut self.stub).await;
            let entry: Value = serde_json::from_str(&line).unwrap();
            if is_main(&entry, text) {
                return entry;
            }
        }
    }

    /// How often the model is asked with this as the last user text, from here to the next
    /// request with `last`.
    pub(super) async fn count_asked(&mut self, text: &str, last: &str) -> usize {
        let mut count = 0;
        loop {
            let line = next(&mut self.stub).await;
            let entry: Value = serde_json::from_str(&line).unwrap();
            if is_main(&entry, last) {
                return count;
            }
            count += usize::from(is_main(&entry, text) && entry["outcome"] == "running");
        }
    }

    /// Kills the daemon as a crash would, and starts it again.
    pub(super) async fn crash_and_restart(&mut self) {
        self.crash().await;
        self.restart().await;
    }

    /// Kills the daemon as a crash would.
    pub(super) async fn crash(&mut self) {
        self.daemon.kill().await.unwrap();
    }

    /// Starts the daemon again.
    pub(super) async fn restart(&mut self) {
        (self.daemon, self.daemon_out, self.address) = serve(self.dir.path(), &self.settings).await;
    }

    /// Sends the daemon's process a signal.
    pub(super) fn signal_daemon(&self, signal: rustix::process::Signal) {
        signal_process(self.daemon.id().unwrap().into(), signal);
    }

    /// Ends the daemon as a service manager does; what its agents started is gone with it. Then
    /// starts it again.
    pub(super) async fn stop_and_restart(&mut self) {
        self.terminate().await;
        assert_eq!(self.processes(), [""; 0], "left by the daemon");
        self.restart().await;
    }

    async fn terminate(&mut self) {
        self.signal_daemon(rustix::process::Signal::TERM);
        let status = timeout(DEADLINE, self.daemon.wait()).await.unwrap().unwrap();
        assert!(status.success(), "the daemon ended with {status}");
    }

    /// Where MCP clients find the daemon.
    pub(super) fn mcp_url(&self) -> String {
        format!("{}/mcp", self.address)
    }

    /// Creates or changes objects, as an operator's file says.
    pub(super) async fn apply(&self, text: &str) {
        let path = self.dir.path().join("applied.yaml");
        std::fs::write(&path, text).unwrap();
        self.cli(&["apply", "-f", path.to_str().unwrap()]).await;
    }

    /// Adds a file to the watched directory.
    pub(super) fn add_manifest(&self, name: &str, text: &str) {
        let (new, path) =
            (self.dir.path().join("new"), self.dir.path().join("manifests").join(name));
        std::fs::write(&new, text).unwrap();
        std::fs::rename(new, path).unwrap();
    }

    /// The command lines of all processes that agents of this daemon started: those whose
    /// environment has the daemon's mark and this case's home directory.
    pub(super) fn processes(&self) -> Vec<String> {
        self.marked("").into_iter().map(|(_, line)| line).collect()
    }

    /// Number and command line of the processes of one session.
    pub(super) fn tree(&self, session: &str) -> Vec<(u64, String)> {
        self.marked(&format!("SPAWNLET_SESSION_NAME={session}\0"))
    }

    fn marked(&self, more: &str) -> Vec<(u64, String)> {
        let home = self.dir.path().join("home");
        let home = home.to_str().unwrap().as_bytes();
        let mut found = Vec::new();
        for entry in std::fs::read_dir("/proc").unwrap().flatten() {
            let name = entry.file_name();
            let Some(pid) = name.to_str().and_then(|name| name.parse().ok()) else { continue };
            // Gone, or another user's.
            let Ok(environ) = std::fs::read(entry.path().join("environ")) else { continue };
            let marks: [&[u8]; 3] = [b"SPAWNLET_INSTANCE=", home, more.as_bytes()];
            if marks.iter().all(|mark| mark.is_empty() || contains(&environ, mark)) {
                let line = std::fs::read(entry.path().join("cmdline")).unwrap_or_default();
                found.push((pid, String::from_utf8_lossy(&line).replace('\0', " ")));
            }
        }
        found
    }

    /// Deletes the session, which leaves no process; then ends the daemon, which has no more to
    /// do.
    pub(super) async fn finish(self, session: &str) {
        self.cli(&["delete", session, "--wait", "--timeout", "60s"]).await;
        assert_eq!(self.processes(), [""; 0], "left by {session}");
        self.end().await;
    }

    /// Ends the daemon.
    pub(super) async fn end(mut self) {
        self.terminate().await;
    }
}

/// Whether the entry of the stub's log is about the conversation itself (titles and summaries have
/// no tools), with this as the last user text.
fn is_main(entry: &Value, text: &str) -> bool {
    entry["tools"].as_u64() > Some(0)
        && entry["user"].as_str().is_some_and(|user| user.contains(text))
}

fn contains(whole: &[u8], part: &[u8]) -> bool {
    whole.windows(part.len()).any(|window| window == part)
}

fn python(program: &str) -> Command {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/agents").join(program);
    let mut command = Command::new("python3");
    command.arg(path).env("PYTHONDONTWRITEBYTECODE", "1").kill_on_drop(true);
    command
}

/// Sends a process a signal, if it is there.
pub(super) fn signal_process(pid: u64, signal: rustix::process::Signal) {
    let pid = rustix::process::Pid::from_raw(pid.try_into().unwrap()).unwrap();
    let _ = rustix::process::kill_process(pid, signal);
}

/// The daemon, its output, and its address.
async fn serve(dir: &Path, settings: &[String]) -> (Child, Out, String) {
    let log = std::fs::OpenOptions::new().create(true).append(true).open(dir.join("log")).unwrap();
    let mut daemon = Command::new(env!("CARGO_BIN_EXE_spawnlet"))
        .arg("serve")
        .arg("--data-dir")
        .arg(dir.join("data"))
        .arg("--manifests")
        .arg(dir.join("manifests"))
        .args(["--listen", "127.0.0.1:0"])
        .args(settings)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(log)
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    let mut out = lines(&mut daemon);
    let line = timeout(DEADLINE, out.next_line()).await.unwrap().unwrap();
    let Some(line) = line else {
        panic!("{}", std::fs::read_to_string(dir.join("log")).unwrap_or_default())
    };
    let Some(address) = line.strip_prefix("listening on ") else { panic!("{line}") };
    let address = address.split_whitespace().next().unwrap().to_owned();
    (daemon, out, address)
}

fn lines(child: &mut Child) -> Out {
    BufReader::new(child.stdout.take().unwrap()).lines()
}

async fn next(out: &mut Out) -> String {
    let line = timeout(DEADLINE, out.next_line()).await.expect("nothing came in time");
    line.unwrap().expect("the process ended")
}

/// A pipe with a name, on which a shell command says that it runs.
pub(super) struct Signal(PathBuf);

impl Signal {
    pub(super) fn new(path: PathBuf) -> Self {
        let mode = rustix::fs::Mode::from_raw_mode(0o600);
        rustix::fs::mknodat(rustix::fs::CWD, &path, rustix::fs::FileType::Fifo, mode, 0).unwrap();
        Self(path)
    }

    /// Waits until something was written.
    pub(super) async fn wait(self) {
        let mut pipe = tokio::net::unix::pipe::OpenOptions::new()
            .read_write(true)
            .open_receiver(&self.0)
            .unwrap();
        let mut byte = [0];
        timeout(DEADLINE, pipe.read_exact(&mut byte)).await.expect("no signal in time").unwrap();
    }
}
