//! The built daemon, driven from outside: its own directories, the command line, HTTP, and the
//! processes that are there.
//!
//! Nothing here sleeps or polls: what is waited for is a line of a pipe, an event of a watch, or
//! the end of a process, each with a deadline that only a failing test reaches.
#![allow(dead_code, reason = "each test uses what it needs")]

mod caller;
mod http;
mod processes;
mod seen;
mod strace;

use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Output, Stdio};
use std::sync::Mutex;
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

pub(crate) use caller::Caller;
pub(crate) use http::{Answer, Request};
pub(crate) use processes::wait_gone;
pub(crate) use seen::condition;
pub(crate) use strace::Strace;

/// Longer than anything may take on a busy machine; no test waits for it when it passes.
pub(crate) const DEADLINE: Duration = Duration::from_secs(120);
/// Lines of the daemon that nobody has looked at yet.
const LINES_MAX: usize = 100_000;
const SPAWNLET: &str = env!("CARGO_BIN_EXE_spawnlet");
const GROUP: &str = "/apis/spawnlet.dev/v1alpha1";

/// The scripted agent.
pub(crate) fn fakeagent() -> PathBuf {
    let test = std::env::current_exe().unwrap();
    let path = test.parent().unwrap().parent().unwrap().join("examples/fakeagent");
    assert!(path.is_file(), "{} is missing: cargo build --examples", path.display());
    path
}

/// The built binary.
pub(crate) fn binary() -> &'static str {
    SPAWNLET
}

/// A command of the built binary that knows nothing of the machine's own daemon.
pub(crate) fn spawnlet() -> Command {
    spawnlet_under(&[])
}

/// The same, executed at the end of another program that is given its command line.
fn spawnlet_under(wrapper: &[&str]) -> Command {
    let mut words = wrapper.iter().chain(&[SPAWNLET]);
    let mut command = Command::new(words.next().unwrap());
    command.args(words);
    for name in ["SPAWNLET_INSTANCE", "SPAWNLET_TOKEN", "SPAWNLET_URL", "SPAWNLET_NAMESPACE"] {
        command.env_remove(name);
    }
    command.env("RUST_BACKTRACE", "1");
    command
}

/// A directory of a test, with what a daemon needs in it.
pub(crate) struct Home {
    root: tempfile::TempDir,
}

impl Home {
    pub(crate) fn new() -> Self {
        Self::within(&std::env::temp_dir())
    }

    /// The same in this directory.
    pub(crate) fn within(directory: &Path) -> Self {
        let root = tempfile::Builder::new().prefix("spawnlet-it-").tempdir_in(directory).unwrap();
        for name in ["manifests", "work", "log"] {
            std::fs::create_dir(root.path().join(name)).unwrap();
        }
        Self { root }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.root.path().join(name)
    }

    /// The directory that sessions work in.
    pub(crate) fn work(&self) -> String {
        self.path("work").display().to_string()
    }

    /// Starts the daemon, and does not wait.
    fn spawn(&self, wrapper: &[&str], env: &[(&str, &str)], arguments: &[&str]) -> Child {
        let mut command = spawnlet_under(wrapper);
        command.envs(env.iter().copied());
        command.arg("serve").arg("--data-dir").arg(self.path("data"));
        command.arg("--manifests").arg(self.path("manifests"));
        if !arguments.contains(&"--listen") {
            command.args(["--listen", "127.0.0.1:0"]);
        }
        command.args(arguments);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command.spawn().unwrap()
    }

    /// Runs a daemon that is expected not to start.
    pub(crate) fn serve_refused(&self, arguments: &[&str]) -> Output {
        finish(self.spawn(&[], &[], arguments), None)
    }

    /// Starts the daemon and waits until it is ready.
    pub(crate) fn serve(self, arguments: &[&str]) -> Daemon {
        self.serve_with(&[], arguments)
    }

    /// The same, with these variables.
    pub(crate) fn serve_with(self, env: &[(&str, &str)], arguments: &[&str]) -> Daemon {
        let child = self.spawn(&[], env, arguments);
        self.serving(child)
    }

    /// The same, executed at the end of another program.
    pub(crate) fn serve_under(self, wrapper: &[&str], arguments: &[&str]) -> Daemon {
        let child = self.spawn(wrapper, &[], arguments);
        self.serving(child)
    }

    fn serving(self, mut child: Child) -> Daemon {
        let out = Mutex::new(lines(child.stdout.take().unwrap()));
        let err = Mutex::new(lines(child.stderr.take().unwrap()));
        let mut daemon =
            Daemon { home: Some(self), child: Some(child), out, err, address: String::new() };
        let line = daemon.line_with("listening on ");
        daemon.address = line.rsplit("http://").next().unwrap().trim().to_owned();
        daemon
    }
}

/// Sends the lines of a pipe on.
pub(crate) fn lines(pipe: impl Read + Send + 'static) -> Receiver<String> {
    let (sender, receiver) = sync_channel(LINES_MAX);
    std::thread::spawn(move || {
        for line in BufReader::new(pipe).lines().map_while(Result::ok) {
            // A log that nobody reads must not hold the daemon up.
            if sender.try_send(line).is_err() {
                continue;
            }
        }
    });
    receiver
}

/// A running daemon. Dropped, it is killed with all that it started.
pub(crate) struct Daemon {
    home: Option<Home>,
    child: Option<Child>,
    // Several threads may use one daemon.
    out: Mutex<Receiver<String>>,
    err: Mutex<Receiver<String>>,
    address: String,
}

impl Daemon {
    pub(crate) fn start() -> Self {
        Self::with(&[])
    }

    pub(crate) fn with(arguments: &[&str]) -> Self {
        Home::new().serve(arguments)
    }

    pub(crate) fn home(&self) -> &Home {
        self.home.as_ref().unwrap()
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.home().path(name)
    }

    pub(crate) fn address(&self) -> &str {
        &self.address
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.as_ref().unwrap().id()
    }

    /// The next line of standard output with this text.
    fn line_with(&self, text: &str) -> String {
        loop {
            let next = self.out.lock().unwrap().recv_timeout(DEADLINE);
            match next {
                Ok(line) if line.contains(text) => return line,
                Ok(_) => {}
                Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => {
                    panic!("no line {text:?}; the log:\n{}", self.log());
                }
            }
        }
    }

    /// What the daemon has logged since this was asked last.
    pub(crate) fn log(&self) -> String {
        self.err.lock().unwrap().try_iter().collect::<Vec<_>>().join("\n")
    }

    /// Ends the daemon as a crash does.
    pub(crate) fn kill9(mut self) -> Home {
        let mut child = self.child.take().unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
        self.home.take().unwrap()
    }

    /// Ends the daemon as a service manager does, and gives its exit code.
    pub(crate) fn stop(mut self) -> (Option<i32>, Home) {
        let child = self.child.take().unwrap();
        signal(child.id(), Signal::TERM);
        let code = finish(child, None).status.code();
        (code, self.home.take().unwrap())
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = spawnlet();
        command.arg("--data-dir").arg(self.path("data")).args(arguments);
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    /// Runs a verb.
    pub(crate) fn cli(&self, arguments: &[&str]) -> Ran {
        let child = self.command(arguments).stdin(Stdio::null()).spawn().unwrap();
        Ran::new(arguments, &finish(child, None))
    }

    /// Runs a verb with this PATH.
    pub(crate) fn cli_on_path(&self, path: &Path, arguments: &[&str]) -> Ran {
        let mut command = self.command(arguments);
        let child = command.env("PATH", path).stdin(Stdio::null()).spawn().unwrap();
        Ran::new(arguments, &finish(child, None))
    }

    /// Runs a verb that is given something on standard input.
    pub(crate) fn cli_with(&self, arguments: &[&str], input: &[u8]) -> Ran {
        let child = self.command(arguments).stdin(Stdio::piped()).spawn().unwrap();
        Ran::new(arguments, &finish(child, Some(input)))
    }

    /// Runs a verb that must succeed, and gives its standard output.
    pub(crate) fn ok(&self, arguments: &[&str]) -> String {
        let ran = self.cli(arguments);
        assert_eq!(ran.code, Some(0), "{ran:?}\n{}", self.log());
        ran.out
    }

    /// Starts a verb that goes on; its lines can be read.
    pub(crate) fn follow(&self, arguments: &[&str]) -> Follower {
        let mut child = self.command(arguments).stdin(Stdio::null()).spawn().unwrap();
        let out = lines(child.stdout.take().unwrap());
        Follower { child, out }
    }

    /// The operator's token.
    pub(crate) fn token(&self) -> String {
        std::fs::read_to_string(self.path("data/operator.token")).unwrap()
    }

    /// A request of the operator.
    pub(crate) fn request(&self, method: &str, path: &str) -> Request {
        Request::new(&self.address, method, path).bearer(&self.token())
    }

    /// An object, by `sessions/NAME`.
    pub(crate) fn get(&self, object: &str) -> Value {
        let answer = self.request("GET", &path_of(object)).send();
        assert_eq!(answer.status, 200, "{object}: {}", answer.text());
        answer.json()
    }

    /// Whether an object is there.
    pub(crate) fn has(&self, object: &str) -> bool {
        self.request("GET", &path_of(object)).send().status == 200
    }

    /// Creates an object.
    pub(crate) fn create(&self, collection: &str, body: &Value) -> Answer {
        self.request("POST", &path_of(collection)).json_body(body).send()
    }

    /// Makes or replaces an `Agent` that is the scripted one with these flags.
    pub(crate) fn agent(&self, name: &str, flags: &[&str], spec: Value) {
        let mut argv = vec![fakeagent().display().to_string()];
        argv.extend(flags.iter().map(|&flag| flag.to_owned()));
        // The mark by which the processes are found again.
        argv.push(format!("--pid-log={}", self.path("log").join(name).display()));
        self.agent_of(name, &argv, spec);
    }

    /// Makes an `Agent` of any program.
    pub(crate) fn agent_of(&self, name: &str, argv: &[String], spec: Value) {
        let mut whole = json!({"argv": argv, "env": {"IT_ROOT": self.path("")}});
        merge(&mut whole, spec);
        let body = json!({"metadata": {"name": name}, "spec": whole});
        let answer = self.create("agents", &body);
        if answer.status == 409 {
            let patch = json!({"spec": {"argv": argv}});
            let answer = self.patch(&format!("agents/{name}"), &patch);
            assert_eq!(answer.status, 200, "{}", answer.text());
        } else {
            assert_eq!(answer.status, 201, "{}", answer.text());
        }
    }

    /// Makes a `Session`.
    pub(crate) fn session(&self, name: &str, agent: &str, spec: Value) -> Value {
        let mut whole = json!({"agent": agent, "cwd": self.home().work()});
        merge(&mut whole, spec);
        let answer = self.create("sessions", &json!({"metadata": {"name": name}, "spec": whole}));
        assert_eq!(answer.status, 201, "{}", answer.text());
        answer.json()
    }

    /// Changes an object by a merge patch.
    pub(crate) fn patch(&self, object: &str, patch: &Value) -> Answer {
        self.request("PATCH", &path_of(object))
            .header("content-type", "application/merge-patch+json")
            .body(patch.to_string().as_bytes())
            .send()
    }

    /// Makes a turn and gives its name.
    pub(crate) fn turn(&self, session: &str, prompt: &str) -> String {
        let turn = self.ok(&["prompt", session, prompt, "--detach"]);
        turn.trim().strip_prefix("turn/").unwrap().to_owned()
    }

    /// A turn, once it has ended.
    pub(crate) fn ended(&self, turn: &str) -> Value {
        self.until(&format!("turns/{turn}"), |turn| turn["status"]["finishedAt"].is_string())
    }

    /// A turn, once its answer holds so much text. It must not end in a hex digit: a token might begin
    /// with that, so it is shown along with what comes next.
    pub(crate) fn said(&self, session: &str, turn: &str, text: &str) {
        let path = format!(
            "{GROUP}/namespaces/default/sessions/{session}/transcript?follow=true&format=json&turn={turn}"
        );
        let mut stream = self.request("GET", &path).stream();
        while let Some(entry) = stream.next_json() {
            if entry["text"].as_str().is_some_and(|said| said.contains(text)) {
                return;
            }
        }
        panic!("{turn} never said {text:?}: {}", self.get(&format!("turns/{turn}")));
    }

    /// The answer of a turn.
    pub(crate) fn response(&self, turn: &str) -> String {
        self.ok(&["response", turn])
    }

    /// An object, once it is as told.
    pub(crate) fn until(&self, object: &str, is_so: impl Fn(&Value) -> bool) -> Value {
        self.watch(object, |object| object.filter(|object| is_so(object)).cloned())
    }

    /// Waits until an object is gone.
    pub(crate) fn gone(&self, object: &str) {
        self.watch(object, |object| object.is_none().then_some(()));
    }

    fn watch<T>(&self, object: &str, find: impl Fn(Option<&Value>) -> Option<T>) -> T {
        let (kind, name) = object.split_once('/').unwrap();
        let base = format!("{}?fieldSelector=metadata.name%3D{name}", path_of(kind));
        let list = self.request("GET", &base).send().json();
        if let Some(found) = find(list["items"].get(0)) {
            return found;
        }
        let version = list["metadata"]["resourceVersion"].as_str().unwrap();
        let path = format!("{base}&watch=1&resourceVersion={version}");
        let mut stream = self.request("GET", &path).stream();
        let mut last = list["items"].get(0).cloned();
        while let Some(event) = stream.next_json() {
            match event["type"].as_str().unwrap() {
                "BOOKMARK" => continue,
                "DELETED" => last = None,
                _ => last = Some(event["object"].clone()),
            }
            if let Some(found) = find(last.as_ref()) {
                return found;
            }
        }
        let last = last.unwrap_or_default();
        panic!("{object} did not become so: {last:#}\nthe log:\n{}", self.log());
    }

    /// A session in a phase.
    pub(crate) fn phase(&self, session: &str, phase: &str) -> Value {
        self.until(&format!("sessions/{session}"), |found| found["status"]["phase"] == phase)
    }

    /// Writes a manifest file whole, as editors do.
    pub(crate) fn write_manifest(&self, name: &str, text: &str) {
        let (new, path) = (self.path("new"), self.path("manifests").join(name));
        std::fs::write(&new, text).unwrap();
        std::fs::rename(new, path).unwrap();
    }

    /// The next line of the log with this text.
    pub(crate) fn log_line(&self, text: &str) -> String {
        loop {
            let next = self.err.lock().unwrap().recv_timeout(DEADLINE);
            match next {
                Ok(line) if line.contains(text) => return line,
                Ok(_) => {}
                Err(error) => panic!("the log has no line {text:?}: {error}"),
            }
        }
    }

    /// Processes that the daemon has started, or their children, that are still there.
    pub(crate) fn processes(&self) -> Vec<String> {
        self.home().processes()
    }

    /// The lines of a log of the scripted agent.
    pub(crate) fn logged(&self, name: &str) -> Vec<Value> {
        self.home().logged(name)
    }

    /// The most memory that the daemon has ever had, in KiB.
    pub(crate) fn peak_kib(&self) -> u64 {
        let path = format!("/proc/{}/status", self.pid());
        let text = std::fs::read_to_string(path).unwrap();
        let line = text.lines().find(|line| line.starts_with("VmHWM:")).unwrap();
        line.split_whitespace().nth(1).unwrap().parse().unwrap()
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
        if std::thread::panicking() {
            eprintln!("the daemon's log:\n{}", self.log());
        }
    }
}

impl Home {
    pub(crate) fn processes(&self) -> Vec<String> {
        processes::of(self.root.path()).into_iter().map(|(_, line)| line).collect()
    }

    /// Waits until no process is left whose command line holds a text.
    pub(crate) fn no_process_with(&self, text: &str) {
        let find =
            || processes::of(self.root.path()).into_iter().find(|(_, line)| line.contains(text));
        while let Some((pid, line)) = find() {
            assert!(processes::wait_gone(pid, DEADLINE), "{pid} is still there: {line}");
        }
    }

    /// Waits until no process is left.
    pub(crate) fn no_process(&self) {
        for (pid, line) in processes::of(self.root.path()) {
            assert!(processes::wait_gone(pid, DEADLINE), "{pid} is still there: {line}");
        }
        assert_eq!(self.processes(), Vec::<String>::new());
    }

    pub(crate) fn logged(&self, name: &str) -> Vec<Value> {
        let text = std::fs::read_to_string(self.path("log").join(name)).unwrap_or_default();
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }
}

impl Drop for Home {
    fn drop(&mut self) {
        for (pid, _) in processes::of(self.root.path()) {
            signal(pid, Signal::KILL);
        }
    }
}

/// What a verb did.
#[derive(Debug)]
pub(crate) struct Ran {
    pub(crate) arguments: Vec<String>,
    pub(crate) code: Option<i32>,
    pub(crate) out: String,
    pub(crate) err: String,
}

impl Ran {
    fn new(arguments: &[&str], output: &Output) -> Self {
        Self {
            arguments: arguments.iter().map(|&argument| argument.to_owned()).collect(),
            code: output.status.code(),
            out: String::from_utf8_lossy(&output.stdout).into_owned(),
            err: String::from_utf8_lossy(&output.stderr).into_owned(),
        }
    }
}

/// A verb that goes on.
pub(crate) struct Follower {
    child: Child,
    out: Receiver<String>,
}

impl Follower {
    /// The next line with this text.
    pub(crate) fn line_with(&self, text: &str) -> String {
        loop {
            let line = self.out.recv_timeout(DEADLINE);
            let line = line.unwrap_or_else(|error| panic!("no line {text:?}: {error}"));
            if line.contains(text) {
                return line;
            }
        }
    }
}

impl Drop for Follower {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Writes the input, reads the output, and waits for the end; a program that hangs is killed.
pub(crate) fn finish(mut child: Child, input: Option<&[u8]>) -> Output {
    let pid = child.id();
    let stdin = child.stdin.take();
    let (done, is_done) = sync_channel::<()>(1);
    std::thread::scope(|scope| {
        scope.spawn(move || {
            if is_done.recv_timeout(DEADLINE) == Err(RecvTimeoutError::Timeout) {
                signal(pid, Signal::KILL);
            }
        });
        if let Some(input) = input {
            scope.spawn(move || write_all(stdin.unwrap(), input));
        }
        let output = child.wait_with_output().unwrap();
        drop(done);
        output
    })
}

fn write_all(mut stdin: ChildStdin, input: &[u8]) {
    // It may end without having read it all.
    let _ = stdin.write_all(input);
}

/// Sends a signal; to a process that is gone, nothing.
pub(crate) fn signal(pid: u32, signal: Signal) {
    let pid = Pid::from_raw(pid.try_into().unwrap()).unwrap();
    let _ = kill_process(pid, signal);
}

/// Lays one object over another, key by key.
fn merge(target: &mut Value, over: Value) {
    match (target, over) {
        (Value::Object(target), Value::Object(over)) => {
            for (key, value) in over {
                merge(target.entry(key).or_insert(Value::Null), value);
            }
        }
        (target, over) => *target = over,
    }
}

/// The path of `KIND` or `KIND/NAME`, in the default namespace if the kind has one.
pub(crate) fn path_of(object: &str) -> String {
    if object.starts_with("agents") || object.starts_with("manifests") {
        format!("{GROUP}/{object}")
    } else if object.starts_with("events") {
        format!("/api/v1/namespaces/default/{object}")
    } else {
        format!("{GROUP}/namespaces/default/{object}")
    }
}

/// Text of a path, for YAML.
pub(crate) fn quoted(path: impl AsRef<Path>) -> String {
    Value::from(path.as_ref().display().to_string()).to_string()
}
