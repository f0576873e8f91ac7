//! `spawnlet agents check --warm`: the first start of an agent, inside the daemon.
//!
//! What is wanted is a record like any other: a session that is there for one start (annotation
//! `spawnlet.dev/first-start`), in a directory of its own. The daemon starts the agent, opens a
//! session, stops it again, and says on session and agent how it went; this only waits for that and
//! takes the record away. One agent after the other: two that download at the same time would each
//! take longer than its own time.

use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use hyper::Method;
use serde_json::{Value, json};
use tokio::signal::unix::{SignalKind, signal};

use super::Context;
use super::agents::{AGENTS, decode};
use super::client::{Client, collection, item};
use super::delete::is_gone;
use super::failure::Failure;
use super::get::eprint_line;
use super::observe::{Subject, until};
use super::output::{readable, text};
use crate::api::{Agent, FIRST_START, Kind, Name};
use crate::rest::resource::Resource;

const SESSION: Resource = Resource::Records(Kind::Session);
/// How long the record stays if nobody is left to take it away.
const KEPT_FOR: &str = "10m";
/// How the session of an agent that was started ends.
const STARTED: &str = "Started";

/// How the start of one agent went.
struct Outcome {
    agent: String,
    /// The agent as it was afterwards, if the start was a good one.
    started: Option<Agent>,
    reason: String,
    message: String,
}

/// Starts agents one after the other and tells how it went.
pub(super) async fn run(
    names: &[String],
    timeout: Option<Duration>,
    is_json: bool,
    context: &mut Context<'_>,
) -> Result<(), Failure> {
    let client = context.client()?;
    let mut interrupts = Interrupts::new()?;
    let mut outcomes = Vec::with_capacity(names.len());
    let mut stopped = None;
    for name in names {
        let start = Start { client: &client, namespace: &context.namespace, name, timeout };
        match start.run(&mut interrupts).await {
            Ok(outcome) => {
                if !is_json {
                    tell(&outcome, context)?;
                }
                outcomes.push(outcome);
            }
            Err(failure) => {
                stopped = Some(failure);
                break;
            }
        }
    }
    if is_json {
        let list: Vec<Value> = outcomes.iter().map(Outcome::to_json).collect();
        writeln!(context.out, "{:#}", json!({"agents": list}))?;
    }
    if let Some(failure) = stopped {
        return Err(failure);
    }
    let failed: Vec<&str> = outcomes
        .iter()
        .filter(|outcome| outcome.started.is_none())
        .map(|outcome| outcome.agent.as_str())
        .collect();
    if failed.is_empty() {
        return Ok(());
    }
    Err(Failure::Failed(format!("not started: {}", failed.join(", "))))
}

fn tell(outcome: &Outcome, context: &mut Context<'_>) -> Result<(), Failure> {
    let name = &outcome.agent;
    match &outcome.started {
        Some(agent) => {
            let version = agent.status.version.as_deref().unwrap_or("of unknown version");
            let took = agent.status.last_start.as_ref().map(|last| last.took.to_string());
            let took = took.map(|took| format!(", started in {took}")).unwrap_or_default();
            writeln!(context.out, "agent/{name} ok: {}{took}", readable(version))?;
        }
        None => {
            let why = format!("agent/{name} failed: {}: {}", outcome.reason, outcome.message);
            eprint_line(&readable(&why));
        }
    }
    Ok(())
}

impl Outcome {
    fn to_json(&self) -> Value {
        let mut value = json!({"agent": self.agent, "ok": self.started.is_some()});
        match &self.started {
            Some(agent) => {
                value["version"] = json!(agent.status.version);
                value["lastStart"] = json!(agent.status.last_start);
            }
            None => {
                value["reason"] = json!(self.reason);
                value["message"] = json!(self.message);
            }
        }
        value
    }
}

/// One start.
struct Start<'a> {
    client: &'a Client,
    namespace: &'a str,
    name: &'a str,
    timeout: Option<Duration>,
}

impl Start<'_> {
    async fn run(&self, interrupts: &mut Interrupts) -> Result<Outcome, Failure> {
        let agent = match self.agent().await {
            Ok(agent) => agent,
            Err(failure) if failure.is_not_found() => {
                return Ok(self.failed("AgentNotFound", &failure.to_string()));
            }
            Err(failure) => return Err(failure),
        };
        let allowed = agent.spec.effective_start_timeout(agent.status.last_start.is_some());
        eprint_line(&format!("agent/{} is being started, for {allowed} at most", self.name));
        let scratch = Scratch::new()?;
        let session = self.client.post(&self.sessions(), &self.wanted(&scratch.path)).await?;
        let outcome = tokio::select! {
            ended = self.ended(&session) => match ended {
                Ok(ended) => self.judge(&ended).await,
                Err(failure) => Err(failure),
            },
            () = interrupts.next() => Err(Failure::Failed(format!(
                "stopped; agent/{} was not started to the end", self.name
            ))),
        };
        // Whatever came of it, what is started is stopped, and waited for.
        let gone = tokio::select! {
            gone = self.removed(&session) => gone,
            () = interrupts.next() => Err(Failure::Failed(format!(
                "session/{} is still being stopped", text(&session, "/metadata/name")
            ))),
        };
        outcome.and_then(|outcome| gone.map(|()| outcome))
    }

    fn sessions(&self) -> String {
        collection(SESSION, Some(self.namespace))
    }

    async fn agent(&self) -> Result<Agent, Failure> {
        decode(self.client.get(&item(AGENTS, "", self.name)).await?)
    }

    fn wanted(&self, directory: &Path) -> Value {
        json!({
            "metadata": {
                "generateName": format!("first-start-{}-", self.name),
                "annotations": {FIRST_START: "true"},
            },
            "spec": {"agent": self.name, "cwd": directory, "ttlAfterFinished": KEPT_FOR},
        })
    }

    /// The session, once its process tree is gone.
    async fn ended(&self, session: &Value) -> Result<Value, Failure> {
        let name = text(session, "/metadata/name");
        let subject = Subject { resource: SESSION, namespace: self.namespace, name };
        until(self.client, subject, self.timeout, |object| match object {
            None => Err(Failure::Failed(format!("session/{name} was deleted meanwhile"))),
            Some(object) => {
                let is_over = object.pointer("/status/finishedAt").is_some_and(Value::is_string);
                Ok(is_over.then(|| object.clone()))
            }
        })
        .await
    }

    async fn judge(&self, ended: &Value) -> Result<Outcome, Failure> {
        if text(ended, "/status/end/reason") == STARTED {
            let agent = self.agent().await?;
            let (reason, message) = (STARTED.to_owned(), String::new());
            return Ok(Outcome {
                agent: self.name.to_owned(),
                started: Some(agent),
                reason,
                message,
            });
        }
        let reason = match text(ended, "/status/restarts/reason") {
            "" => text(ended, "/status/end/reason"),
            reason => reason,
        };
        Ok(self.failed(reason, text(ended, "/status/end/message")))
    }

    fn failed(&self, reason: &str, message: &str) -> Outcome {
        Outcome {
            agent: self.name.to_owned(),
            started: None,
            reason: reason.to_owned(),
            message: message.to_owned(),
        }
    }

    async fn removed(&self, session: &Value) -> Result<(), Failure> {
        let name = Name::from(text(session, "/metadata/name"));
        let uid = text(session, "/metadata/uid");
        let path = item(SESSION, self.namespace, name.as_str());
        match self.client.send(Method::DELETE, &path, "application/json", &json!({})).await {
            Err(failure) if failure.is_not_found() => return Ok(()),
            Err(failure) => return Err(failure),
            Ok(_) => {}
        }
        let subject = Subject { resource: SESSION, namespace: self.namespace, name: name.as_str() };
        until(self.client, subject, None, |object| Ok(is_gone(object, uid))).await
    }
}

/// What a person or a service manager stops the command by.
struct Interrupts {
    interrupt: tokio::signal::unix::Signal,
    terminate: tokio::signal::unix::Signal,
}

impl Interrupts {
    fn new() -> Result<Self, Failure> {
        let listen = |kind| {
            signal(kind)
                .map_err(|error| Failure::Failed(format!("signals cannot be listened to: {error}")))
        };
        Ok(Self {
            interrupt: listen(SignalKind::interrupt())?,
            terminate: listen(SignalKind::terminate())?,
        })
    }

    async fn next(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
        }
    }
}

/// An empty directory for the agent to be started in, as long as it lasts.
struct Scratch {
    path: PathBuf,
}

impl Scratch {
    fn new() -> Result<Self, Failure> {
        let path = std::env::temp_dir().join(format!("spawnlet-start-{}", uuid::Uuid::now_v7()));
        std::fs::DirBuilder::new()
            .mode(0o700)
            .create(&path)
            .map_err(|error| Failure::Failed(format!("{}: {error}", path.display())))?;
        Ok(Self { path })
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if let Err(error) = std::fs::remove_dir_all(&self.path) {
            eprint_line(&format!("{} cannot be removed: {error}", self.path.display()));
        }
    }
}
