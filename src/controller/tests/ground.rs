//! What outlives a daemon: the machine's processes, the journal, and what the agents were given.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::agent::{Agent, Script};
use crate::api::session::Scope;
use crate::api::{Agent as AgentRecord, Uid};
use futures::future::BoxFuture;

use crate::acp::services::{Call, Refusal, Reply};
use crate::controller::process::{
    Control, Events, LaunchError, LaunchRequest, Launched, Launcher, ProcessEvent, Services,
};
use crate::controller::prompts::PromptLog;
use crate::plan::world::{Finding, ProcessIdentity};
use crate::store::journal;

/// The bytes that a pipe holds.
const PIPE_BYTES: usize = 64 * 1024;

/// The machine.
#[derive(Default)]
pub(super) struct Ground {
    state: Mutex<State>,
    processes: Mutex<JoinSet<()>>,
    /// Lets the trees go that are never proven empty.
    pub(super) mercy: CancellationToken,
}

#[derive(Default)]
struct State {
    /// Trees that exist, by session.
    alive: HashMap<Uid, u32>,
    launches: u32,
    kills: u32,
    /// How often each prompt's text reached an agent.
    prompts: BTreeMap<String, u32>,
    journal: HashSet<Uid>,
    /// Programs that are not installed.
    missing: HashSet<String>,
    notes: Vec<String>,
    violations: Vec<String>,
}

impl Ground {
    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// A promise was broken.
    pub(super) fn violation(&self, what: String) {
        self.state().violations.push(what);
    }

    pub(super) fn violations(&self) -> Vec<String> {
        self.state().violations.clone()
    }

    pub(super) fn prompted(&self, text: &str) {
        let mut state = self.state();
        let times = state.prompts.entry(text.to_owned()).or_default();
        *times += 1;
        if *times > 1 {
            state.violations.push(format!("the prompt {text:?} was given twice"));
        }
    }

    /// How often a prompt reached an agent.
    pub(super) fn times_prompted(&self, text: &str) -> u32 {
        self.state().prompts.get(text).copied().unwrap_or(0)
    }

    /// Whether any prompt reached an agent.
    pub(super) fn has_reached_prompt(&self) -> bool {
        !self.state().prompts.is_empty()
    }

    pub(super) fn note(&self, what: String) {
        self.state().notes.push(what);
    }

    pub(super) fn notes(&self) -> Vec<String> {
        self.state().notes.clone()
    }

    pub(super) fn launches(&self) -> u32 {
        self.state().launches
    }

    pub(super) fn kills(&self) -> u32 {
        self.state().kills
    }

    pub(super) fn alive(&self) -> u32 {
        self.state().alive.values().sum()
    }

    /// Installs a program or takes it away.
    pub(super) fn install(&self, program: &str, is_there: bool) {
        if is_there {
            self.state().missing.remove(program);
        } else {
            self.state().missing.insert(program.to_owned());
        }
    }

    fn find(&self, program: &str) -> Result<PathBuf, LaunchError> {
        if self.state().missing.contains(program) {
            let message = format!("{program:?} was not found in /bin");
            return Err(LaunchError { reason: "ExecutableNotFound", message });
        }
        Ok(PathBuf::from("/bin").join(program))
    }

    fn born(&self, session: &Uid) {
        let mut state = self.state();
        state.launches += 1;
        let alive = state.alive.entry(session.clone()).or_default();
        *alive += 1;
        if *alive > 1 {
            state.violations.push(format!("two process trees of session {session}"));
        }
    }

    fn died(&self, session: &Uid) {
        if let Some(alive) = self.state().alive.get_mut(session) {
            *alive -= 1;
        }
    }

    /// What one process does, from its gate to its end.
    async fn live(
        self: Arc<Self>,
        session: Uid,
        agent: Agent,
        signals: Signals,
        told: mpsc::Sender<ProcessEvent>,
    ) {
        let (immortal, ignores_term) = (agent.script.immortal, agent.script.ignores_term);
        let status = tokio::select! {
            biased;
            () = signals.kill.cancelled() => "signal 9".to_owned(),
            () = signals.gate.cancelled() => {
                let _ = told.send(ProcessEvent::Started { pid: 8 }).await;
                tokio::select! {
                    biased;
                    () = signals.kill.cancelled() => "signal 9".to_owned(),
                    () = signals.term.cancelled(), if !ignores_term => "signal 15".to_owned(),
                    status = agent.run() => status,
                }
            }
        };
        let _ = told.send(ProcessEvent::Exited { status }).await;
        if immortal {
            self.mercy.cancelled().await;
        }
        self.died(&session);
        let _ = told.send(ProcessEvent::TreeEmpty).await;
    }
}

#[derive(Clone, Default)]
struct Signals {
    gate: CancellationToken,
    term: CancellationToken,
    kill: CancellationToken,
}

struct Remote {
    signals: Signals,
    ground: Arc<Ground>,
}

impl Control for Remote {
    fn open_gate(&self) {
        self.signals.gate.cancel();
    }

    fn terminate(&self) {
        self.signals.term.cancel();
    }

    fn kill_tree(&self) {
        self.ground.state().kills += 1;
        self.signals.kill.cancel();
    }
}

impl Drop for Remote {
    fn drop(&mut self) {
        self.signals.kill.cancel();
    }
}

/// For an agent that asks for nothing.
struct NoServices;

impl Services for NoServices {
    fn serve(&self, _: Call) -> BoxFuture<'static, Result<Reply, Refusal>> {
        let reason = "there are neither files nor terminals here".to_owned();
        Box::pin(std::future::ready(Err(Refusal::Failed(reason))))
    }

    fn kill_terminals(&self) {}

    fn release_terminals(&self) {}
}

struct Told(mpsc::Receiver<ProcessEvent>);

#[async_trait]
impl Events for Told {
    async fn next(&mut self) -> Option<ProcessEvent> {
        self.0.recv().await
    }
}

/// Starts scripted agents on the ground.
pub(super) struct Machine(pub(super) Arc<Ground>);

#[async_trait]
impl Launcher for Machine {
    async fn launch(&self, request: LaunchRequest) -> Result<Launched, LaunchError> {
        let script = Script::parse(request.agent.spec.command.as_deref().unwrap_or_default());
        if script.missing {
            let message = "no such file".to_owned();
            return Err(LaunchError { reason: "LaunchFailed", message });
        }
        let session = request.session.metadata.uid.clone();
        self.0.born(&session);
        let (stdin, agent_stdin) = tokio::io::duplex(PIPE_BYTES);
        let (agent_stdout, stdout) = tokio::io::duplex(PIPE_BYTES);
        let (sender, receiver) = mpsc::channel(16);
        let signals = Signals::default();
        let agent = Agent {
            script,
            ground: Arc::clone(&self.0),
            stdin: agent_stdin,
            stdout: agent_stdout,
            buffer: Vec::new(),
            prompt: None,
            unanswered: 0,
        };
        let mut processes =
            self.0.processes.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        while let Some(joined) = processes.try_join_next() {
            if let Err(error) = joined {
                self.0.violation(format!("an agent failed: {error}"));
            }
        }
        processes.spawn(Arc::clone(&self.0).live(session, agent, signals.clone(), sender));
        Ok(Launched {
            identity: ProcessIdentity {
                shim_pid: 7,
                start_time: 1,
                pidfd_inode: Some(2),
                cgroup: None,
            },
            sandbox: None,
            stdin: Box::new(stdin),
            stdout: Box::new(stdout),
            stderr: Box::new(tokio::io::empty()),
            events: Box::new(Told(receiver)),
            control: Box::new(Remote { signals, ground: Arc::clone(&self.0) }),
            services: Box::new(NoServices),
        })
    }

    fn find_agent(&self, agent: &AgentRecord) -> Result<Option<PathBuf>, LaunchError> {
        let command = agent.spec.command.as_deref().unwrap_or_default();
        let program = command.split_whitespace().next().unwrap_or_default();
        self.0.find(program).map(Some)
    }

    fn find_scope(&self, cwd: &str, additional: &[String], label: String) -> Finding<Scope> {
        Finding::Found(Box::new(Scope {
            cwd: cwd.to_owned(),
            additional_directories: additional.to_vec(),
            label,
            folders: Vec::new(),
        }))
    }
}

/// The journal, on the ground.
pub(super) struct Paper(pub(super) Arc<Ground>);

#[async_trait]
impl PromptLog for Paper {
    async fn record(&self, turn: &Uid) -> Result<(), journal::Error> {
        if self.0.state().journal.insert(turn.clone()) {
            Ok(())
        } else {
            Err(journal::Error::AlreadyThere(turn.clone()))
        }
    }

    fn contains(&self, turn: &Uid) -> bool {
        self.0.state().journal.contains(turn)
    }

    async fn settle(&self, _: &Uid) -> Result<(), journal::Error> {
        Ok(())
    }
}
