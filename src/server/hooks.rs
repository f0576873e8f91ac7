//! The operator's hooks: programs that are asked before a child is made, and told of what became of
//! children. Each runs as an agent does, under a shim, without a shell.
//!
//! Invariants: a program gets its time limit and no more, then its whole tree is killed; nobody who
//! tells waits (a full queue drops what is told, and says so in the log); an asking program that
//! fails refuses.
//!
//! Absent on purpose: repetition. What is told is told at most once; the records are the truth.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use async_trait::async_trait;
use serde_json::Value;
use tokio::sync::{Mutex, Semaphore, mpsc};
use tokio_util::sync::CancellationToken;

use super::launcher::RuntimeLauncher;
use crate::api::command;
use crate::api::config::Hook;
use crate::ports::Hooks;
use crate::runtime::{LaunchSpec, environment, executable};

/// What is told and not yet passed on.
const TOLD_MAX: usize = 256;
/// Programs that are asked at the same time; callers wait for the next free place.
const ASKED_MAX: usize = 4;

/// What is told of an event.
struct Told {
    event: &'static str,
    input: Value,
}

/// The configured programs.
pub(super) struct Programs {
    hooks: Vec<Hook>,
    launcher: Arc<RuntimeLauncher>,
    asked: Semaphore,
    sender: mpsc::Sender<Told>,
    receiver: Mutex<mpsc::Receiver<Told>>,
}

impl Programs {
    pub(super) fn new(hooks: Vec<Hook>, launcher: Arc<RuntimeLauncher>) -> Self {
        let (sender, receiver) = mpsc::channel(TOLD_MAX);
        let asked = Semaphore::new(ASKED_MAX);
        Self { hooks, launcher, asked, sender, receiver: Mutex::new(receiver) }
    }

    /// Passes on what is told, one after the other, until the stop.
    pub(super) async fn run(self: Arc<Self>, stop: CancellationToken) {
        let mut receiver = self.receiver.lock().await;
        loop {
            // Both lose nothing: a message is taken whole or not at all.
            let told = tokio::select! {
                () = stop.cancelled() => return,
                told = receiver.recv() => told,
            };
            let Some(Told { event, input }) = told else { return };
            for hook in self.of(event) {
                if let Err(why) = self.launcher.run_hook(hook, &input).await {
                    tracing::warn!(event, command = hook.command, why, "a hook failed");
                }
            }
        }
    }

    fn of(&self, event: &str) -> impl Iterator<Item = &Hook> {
        self.hooks.iter().filter(move |hook| hook.event == event)
    }
}

#[async_trait]
impl Hooks for Programs {
    fn has(&self, event: &str) -> bool {
        self.of(event).next().is_some()
    }

    async fn ask(&self, event: &str, mut input: Value) -> Result<Value, String> {
        let Ok(_place) = self.asked.acquire().await else { return Ok(input) };
        for hook in self.of(event) {
            let answer = self.launcher.run_hook(hook, &input).await.inspect_err(|why| {
                tracing::warn!(event, command = hook.command, why, "a hook refused");
            })?;
            if answer.iter().all(u8::is_ascii_whitespace) {
                continue;
            }
            let answer: Value = serde_json::from_slice(&answer)
                .map_err(|error| format!("its answer is no JSON: {error}"))?;
            let Some(child) = answer.get("child").filter(|child| child.is_object()) else {
                return Err("its answer has no object `child`".to_owned());
            };
            input["child"] = child.clone();
        }
        Ok(input)
    }

    fn tell(&self, event: &'static str, input: Value) {
        if self.has(event) && self.sender.try_send(Told { event, input }).is_err() {
            tracing::warn!(event, "hooks do not keep up: one is not told of this");
        }
    }
}

impl RuntimeLauncher {
    /// Runs a program: the input on its standard input, its standard output as the answer.
    async fn run_hook(&self, hook: &Hook, input: &Value) -> Result<Vec<u8>, String> {
        let spec = self.hook_spec(hook)?;
        self.run_program(Some(&hook.command), spec, &input.to_string(), hook.timeout).await
    }

    fn hook_spec(&self, hook: &Hook) -> Result<LaunchSpec, String> {
        let words = command::split(&hook.command).map_err(|error| error.to_string())?;
        let first = words.first().ok_or("its command is empty")?;
        let env: BTreeMap<OsString, OsString> = environment::filtered(std::env::vars_os());
        let path = env.get(&OsString::from("PATH")).map(OsString::as_os_str);
        let program = executable::resolve(first, &[], path, Path::new("/"))
            .map_err(|error| error.to_string())?;
        let mut argv: Vec<OsString> = words.into_iter().map(OsString::from).collect();
        argv[0] = program.into();
        let instance = self.runtime().new_instance();
        Ok(LaunchSpec { argv, cwd: PathBuf::from("/"), env, instance, sandbox: None })
    }
}
