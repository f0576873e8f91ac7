//! The port to processes: what the loop asks of `runtime`, as a trait, so that the loop runs in
//! tests with agents that live in memory.

use std::path::PathBuf;

use async_trait::async_trait;
use futures::future::BoxFuture;
use tokio::io::{AsyncRead, AsyncWrite};

use crate::acp::services::{Call, Refusal, Reply};
use crate::api::session::Scope;
use crate::api::token::SecretToken;
use crate::api::{Agent, Session};
use crate::plan::world::{Confinement, Finding, ProcessIdentity};
use crate::secret::Redactor;

/// What is started.
#[derive(Clone, Debug)]
pub struct LaunchRequest {
    /// For the environment.
    pub session: Session,
    /// Command, environment policy, path.
    pub agent: Agent,
    /// Where it works.
    pub scope: Scope,
    /// The nonce of the tree.
    pub instance: String,
    /// Its way to the daemon, if it may delegate.
    pub access: Option<Access>,
}

/// An agent's way to the daemon.
#[derive(Clone, Debug)]
pub struct Access {
    /// Where the daemon listens, `http://HOST:PORT`.
    pub url: String,
    /// The token of this run.
    pub token: SecretToken,
}

/// Why a process could not be started.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct LaunchError {
    /// One CamelCase word.
    pub reason: &'static str,
    /// What, where, and what to do.
    pub message: String,
}

/// A process that waits at its gate.
pub struct Launched {
    /// What to record before the gate is opened.
    pub identity: ProcessIdentity,
    /// The sandbox that the agent will be in.
    pub sandbox: Option<Confinement>,
    /// The agent's standard input.
    pub stdin: Box<dyn AsyncWrite + Send + Unpin>,
    /// The agent's standard output.
    pub stdout: Box<dyn AsyncRead + Send + Unpin>,
    /// The agent's standard error.
    pub stderr: Box<dyn AsyncRead + Send + Unpin>,
    /// What becomes of the tree, in order.
    pub events: Box<dyn Events>,
    /// Acts on the tree. Dropping it kills what is left.
    pub control: Box<dyn Control>,
    /// Files and terminals of the agent.
    pub services: Box<dyn Services>,
}

/// Reads and writes files for one agent, and runs programs for it. What it runs is of the agent's
/// tree: [`Control::kill_tree`] kills it, and [`ProcessEvent::TreeEmpty`] waits for its end.
pub trait Services: Send + Sync {
    /// Carries a call out. A terminal is of the turn that runs when this is called, not when the
    /// future is polled.
    fn serve(&self, call: Call) -> BoxFuture<'static, Result<Reply, Refusal>>;
    /// The turn is cancelled: its terminals are killed, and can still be asked for their output.
    fn kill_terminals(&self);
    /// The turn is over: its terminals are killed and forgotten.
    fn release_terminals(&self);
}

/// What becomes of a process tree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ProcessEvent {
    /// The agent runs.
    Started {
        /// Its pid.
        pid: u32,
    },
    /// The agent could not be executed.
    ExecFailed {
        /// What the system said.
        message: String,
    },
    /// The agent's first process ended.
    Exited {
        /// How, in words.
        status: String,
    },
    /// No process of the tree is left.
    TreeEmpty,
    /// The shim is gone; nothing is known of the tree.
    ShimGone,
}

/// Tells what becomes of a process tree.
#[async_trait]
pub trait Events: Send {
    /// The next event; `None` after the last.
    ///
    /// # Cancel safety
    ///
    /// Nothing is lost if the future is dropped.
    async fn next(&mut self) -> Option<ProcessEvent>;
}

/// Acts on a process tree. None of these waits: what they bring about arrives as events.
pub trait Control: Send + Sync {
    /// Lets the shim start the agent.
    fn open_gate(&self);
    /// SIGTERM and SIGCONT to the agent's group.
    fn terminate(&self);
    /// Kills the whole tree, also those that left the group.
    fn kill_tree(&self);
}

/// Starts processes and looks at what a start needs.
#[async_trait]
pub trait Launcher: Send + Sync {
    /// Starts a shim that waits at its gate.
    ///
    /// # Errors
    ///
    /// Nothing was started: the executable, a directory or the shim is missing.
    async fn launch(&self, request: LaunchRequest) -> Result<Launched, LaunchError>;

    /// The agent's executable, on the path that its process would get. `None`: the command names
    /// it relative to the session's directory, so nothing can be said without one.
    ///
    /// # Errors
    ///
    /// It is not there; the message says where it was looked for.
    fn find_agent(&self, agent: &Agent) -> Result<Option<PathBuf>, LaunchError>;

    /// The secrets that agents were given, to keep them out of what is written.
    fn redactor(&self) -> Redactor {
        Redactor::default()
    }

    /// The directories of a session: `cwd` and the rest must exist.
    fn find_scope(&self, cwd: &str, additional: &[String], label: String) -> Finding<Scope>;
}
