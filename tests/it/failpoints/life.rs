//! The four lives: what users do, how it stands when the daemon dies, and what the next one finds.

use std::collections::BTreeSet;
use std::os::unix::process::ExitStatusExt as _;
use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::{Value, json};
use spawnlet::failpoint::Point;

use crate::chaos::daemon::{Daemon, World, wait_for};
use crate::chaos::http::{Client, NoAnswer};

const SIGABRT: i32 = 6;
const NAMESPACE: &str = "namespaces/default";
const FINAL: [&str; 6] =
    ["Completed", "Failed", "Cancelled", "Expired", "Interrupted", "Discarded"];

/// What users do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Life {
    /// `spawnlet prompt`, and the turn completes.
    Turn,
    /// A caller spawns a child in the background, and its turn completes.
    Child,
    /// `spawnlet prompt`, and the turn is cancelled while it runs.
    Cancel,
    /// A caller's child runs, and the caller's session is deleted.
    Delete,
}

/// What was found when everything had come to rest.
#[derive(Clone, Debug)]
pub(super) struct Found {
    /// Phase and delivery of the only turn.
    pub(super) turn: Option<(String, String)>,
    /// Lines in the agent's log.
    pub(super) prompts: usize,
    /// Whether somebody was told that the turn exists.
    pub(super) was_accepted: bool,
    /// Whatever else is wrong.
    pub(super) faults: Vec<String>,
}

/// The daemon does not answer any more.
struct Died;

impl From<NoAnswer> for Died {
    fn from(_: NoAnswer) -> Self {
        Self
    }
}

/// One life with one death in it.
pub(super) struct Run<'a> {
    life: Life,
    point: Point,
    program: &'a Path,
    world: World,
    was_accepted: bool,
    faults: Vec<String>,
}

impl<'a> Run<'a> {
    pub(super) fn new(life: Life, point: Point, program: &'a Path) -> Self {
        let world = World::of(&[], program);
        Self { life, point, program, world, was_accepted: false, faults: Vec::new() }
    }

    pub(super) fn go(mut self) -> Found {
        match self.point {
            Point::MigrationBefore
            | Point::MigrationAfter
            | Point::ManifestBefore
            | Point::ManifestAfter => {
                self.die_in_start();
                let daemon = self.world.start_ready();
                if self.play(&daemon, true).is_err() {
                    self.faults.push("a daemon without failpoints died".to_owned());
                }
                self.finish(daemon)
            }
            Point::SweepBefore | Point::SweepAfter | Point::Recovered => {
                let mut first = self.world.start_ready();
                if self.play(&first, false).is_err() {
                    self.faults.push("a daemon without failpoints died".to_owned());
                }
                first.kill();
                self.die_in_start();
                self.take_over()
            }
            _ => {
                let mut first = self.start_to_die();
                if !first.is_ready() {
                    self.faults.push("it died in its start".to_owned());
                } else if self.play(&first, true).is_ok() {
                    self.faults.push("the point was not reached".to_owned());
                    first.kill();
                }
                self.expect_abort(first);
                self.take_over()
            }
        }
    }

    fn start_to_die(&self) -> Daemon {
        // The session is admitted before the turn.
        let is_second = matches!(self.point, Point::AdmitBefore | Point::AdmitAfter);
        let which = if is_second { ":2" } else { "" };
        self.world.start_with(&[("FAILPOINT", &format!("{}{which}", self.point.name()))])
    }

    fn die_in_start(&mut self) {
        let mut daemon = self.start_to_die();
        if daemon.is_ready() {
            self.faults.push("the point was not reached in a start".to_owned());
            daemon.kill();
        }
        self.expect_abort(daemon);
    }

    fn expect_abort(&mut self, mut daemon: Daemon) {
        let status = daemon.wait_for_exit();
        if status.signal() != Some(SIGABRT) {
            self.faults.push(format!("it ended otherwise: {status}"));
        }
    }

    /// The next daemon, which lives: nothing of the dead one is left when it is ready.
    fn take_over(mut self) -> Found {
        let daemon = self.world.start_ready();
        let mut left = self.world.alive();
        left.retain(|sighting| sighting.start_time < daemon.start_time);
        if left != BTreeSet::new() {
            self.faults.push(format!("left after the start: {left:?}"));
        }
        self.finish(daemon)
    }

    /// Lets everything come to rest, looks, and cleans up: nothing is left.
    fn finish(mut self, mut daemon: Daemon) -> Found {
        let mut client = self.world.connect(&daemon);
        let turn = wait_for("the turn comes to rest", || {
            // A parent whose end was asked for takes everything with it.
            let sessions = items(&mut client, "sessions");
            if sessions.iter().any(|session| session["metadata"]["deletionTimestamp"].is_string()) {
                return None;
            }
            let Some(turn) = items(&mut client, "turns").pop() else { return Some(None) };
            let status = &turn["status"];
            let (phase, delivery) = (text(&status["phase"]), text(&status["delivery"]));
            if phase == "Running" && text(&turn["spec"]["prompt"]).contains("[[never]]") {
                let name = text(&turn["metadata"]["name"]);
                let path = format!("{NAMESPACE}/turns/{name}");
                let _ = client.call("PATCH", &path, Some(&cancelled()));
            }
            FINAL.contains(&phase.as_str()).then_some(Some((phase, delivery)))
        });
        for session in items(&mut client, "sessions") {
            let name = text(&session["metadata"]["name"]);
            let _ = client.call("DELETE", &format!("{NAMESPACE}/sessions/{name}"), None);
        }
        wait_for("all sessions are gone", || {
            items(&mut client, "sessions").is_empty().then_some(())
        });
        let alive = self.world.alive();
        let turns = items(&mut client, "turns");
        if !alive.is_empty() || !turns.is_empty() {
            self.faults.push(format!("after the deletion of all: {alive:?} {turns:?}"));
        }
        if !daemon.stop().success() {
            self.faults.push("the daemon does not stop in order".to_owned());
        }
        let log = std::fs::read_to_string(self.world.path("prompts")).unwrap_or_default();
        if !self.faults.is_empty() {
            println!("kept: {}", self.world.keep().display());
        }
        let (was_accepted, faults) = (self.was_accepted, self.faults);
        Found { turn, prompts: log.lines().count(), was_accepted, faults }
    }

    /// What users do, to its end or to the middle of the turn.
    fn play(&mut self, daemon: &Daemon, is_to_end: bool) -> Result<(), Died> {
        let mut client = self.world.connect(daemon);
        let endless = matches!(self.life, Life::Cancel | Life::Delete);
        let prompt = if endless { "[[never]]" } else { "[[sleep:500]][[say:done]]" };
        match self.life {
            Life::Turn | Life::Cancel => {
                let session = json!({"metadata": {"name": "s"},
                    "spec": {"agent": "forgetful", "cwd": self.world.text("work")}});
                client.call("POST", &format!("{NAMESPACE}/sessions"), Some(&session))?;
                self.was_accepted = self.prompt(prompt)?;
            }
            Life::Child | Life::Delete => {
                self.was_accepted = self.spawn(&mut client, daemon, prompt)?
            }
        }
        let sent = |turn: &Value| turn["status"]["phase"] == "Running" || is_final(turn);
        until(&mut client, "turns", &|turns| turns.first().is_some_and(sent))?;
        if !is_to_end {
            return Ok(());
        }
        match self.life {
            Life::Turn | Life::Child => {}
            Life::Cancel => {
                client.call("PATCH", &format!("{NAMESPACE}/turns/s-1"), Some(&cancelled()))?;
            }
            Life::Delete => {
                client.call("DELETE", &format!("{NAMESPACE}/sessions/caller"), None)?;
                return until(&mut client, "sessions", &<[Value]>::is_empty);
            }
        }
        until(&mut client, "turns", &|turns| turns.iter().all(is_final))
    }

    /// `spawnlet prompt`; whether it says that there is a turn.
    fn prompt(&self, prompt: &str) -> Result<bool, Died> {
        let mut command = Command::new(self.program);
        command.arg("--data-dir").arg(self.world.data_dir());
        command.args(["prompt", "s", prompt, "--detach"]).stdin(Stdio::null());
        let output = command.output().unwrap();
        if output.status.success() { Ok(true) } else { Err(Died) }
    }

    /// `prompt_to_agent` over MCP; whether it says that the child has its prompt.
    fn spawn(&self, client: &mut Client, daemon: &Daemon, prompt: &str) -> Result<bool, Died> {
        let path = format!("{NAMESPACE}/sessions/caller/token");
        let (_, made) =
            client.call("POST", &path, Some(&json!({"cwd": self.world.text("work")})))?;
        let settled = |session: &Value| session["status"]["scope"]["cwd"].is_string();
        until(client, "sessions", &|sessions| sessions.first().is_some_and(settled))?;
        let mut caller = Client::connect(&daemon.address, &text(&made["token"]))?;
        let meta = json!({"io.modelcontextprotocol/protocolVersion": "2026-07-28",
            "io.modelcontextprotocol/clientInfo": {"name": "it", "version": "1"},
            "io.modelcontextprotocol/clientCapabilities": {}});
        let body = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {
            "name": "prompt_to_agent", "_meta": meta,
            "arguments": {"agentId": "forgetful", "prompt": prompt}}});
        let head = "Accept: application/json, text/event-stream\r\n\
            Content-Type: application/json\r\nMcp-Protocol-Version: 2026-07-28\r\n\
            Mcp-Method: tools/call\r\nMcp-Name: prompt_to_agent";
        // The answer may be a stream, whose body is not read here: that it came is enough.
        let (code, _) = caller.send("POST", "/mcp/spawn", head, Some(&body))?;
        assert_eq!(code, 200);
        Ok(true)
    }
}

fn cancelled() -> Value {
    json!({"spec": {"desiredState": "cancelled"}})
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

fn is_final(turn: &Value) -> bool {
    FINAL.contains(&turn["status"]["phase"].as_str().unwrap_or_default())
}

fn list(client: &mut Client, collection: &str) -> Result<Vec<Value>, NoAnswer> {
    let (_, list) = client.call("GET", &format!("{NAMESPACE}/{collection}"), None)?;
    Ok(list["items"].as_array().cloned().unwrap_or_default())
}

fn items(client: &mut Client, collection: &str) -> Vec<Value> {
    list(client, collection).expect("a daemon without failpoints answers")
}

/// Looks until a collection is as told, or nobody answers.
fn until(
    client: &mut Client,
    collection: &str,
    is_so: &dyn Fn(&[Value]) -> bool,
) -> Result<(), Died> {
    wait_for("it is as told, or the daemon is dead", || match list(client, collection) {
        Ok(found) => is_so(&found).then_some(Ok(())),
        Err(_) => Some(Err(Died)),
    })
}
