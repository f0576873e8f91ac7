//! Files and terminals of an agent, on top of `runtime`: the loop's port to them.
//!
//! Invariants: no program starts outside of the session's directories or with a variable that is
//! the agent's own identity; what the agent is told is words of ours, never a secret. Absent: the
//! policy, which the connection has applied before anything comes here.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use futures::future::BoxFuture;

use crate::acp::services::{Call, Exit, NewTerminal, Refusal, Reply};
use crate::controller::process::Services;
use crate::runtime::files::{self, Folders};
use crate::runtime::process::AgentExit;
use crate::runtime::sandbox::Sandbox;
use crate::runtime::terminals::{self, Command, Place, Terminals};
use crate::runtime::{Launcher, environment, executable};

/// What programs of an agent's terminals get.
pub(super) struct Ground {
    /// Where they work if the agent does not say.
    pub(super) cwd: PathBuf,
    /// The Agent's own path entries.
    pub(super) path: Vec<String>,
    /// Their environment, before what the agent adds.
    pub(super) env: BTreeMap<OsString, OsString>,
    /// What the kernel holds their agent to, and so them.
    pub(super) sandbox: Option<Sandbox>,
    /// Whether the agent is in a sandbox that lets it write no file of its session: then none is
    /// written for it either.
    pub(super) is_read_only: bool,
}

/// The services of one agent's process.
pub(super) struct AgentServices {
    folders: Arc<Folders>,
    terminals: Terminals,
    ground: Arc<Ground>,
}

impl AgentServices {
    /// Opens the session's directories. Blocks for a few look-ups.
    pub(super) fn new(launcher: Launcher, roots: &[PathBuf], ground: Ground) -> Self {
        Self {
            folders: Arc::new(Folders::open(roots)),
            terminals: Terminals::new(launcher),
            ground: Arc::new(ground),
        }
    }

    /// The terminals, for those who watch over the agent's tree.
    pub(super) fn terminals(&self) -> Terminals {
        self.terminals.clone()
    }

    /// Does something with files on a thread that may block.
    fn with_folders<T: Send + 'static>(
        &self,
        act: impl FnOnce(&Folders) -> Result<T, files::Error> + Send + 'static,
    ) -> BoxFuture<'static, Result<T, Refusal>> {
        let folders = Arc::clone(&self.folders);
        Box::pin(async move {
            match tokio::task::spawn_blocking(move || act(&folders)).await {
                Ok(outcome) => outcome.map_err(|error| of_files(&error)),
                Err(_) => Err(Refusal::Failed("the file could not be looked at".to_owned())),
            }
        })
    }
}

impl Services for AgentServices {
    fn serve(&self, call: Call) -> BoxFuture<'static, Result<Reply, Refusal>> {
        let done = |outcome: Result<(), terminals::Error>| {
            now(outcome.map(|()| Reply::Done).map_err(|error| of_terminals(&error)))
        };
        match call {
            Call::Read { path, line, limit } => {
                let text = self.with_folders(move |folders| folders.read(&path, line, limit));
                Box::pin(async move { text.await.map(Reply::Text) })
            }
            Call::Write { .. } if self.ground.is_read_only => now(Err(Refusal::Refused(
                "the agent's sandbox is read-only: no file is written for it".to_owned(),
            ))),
            Call::Write { path, content } => {
                let written = self.with_folders(move |folders| folders.write(&path, &content));
                Box::pin(async move { written.await.map(|()| Reply::Done) })
            }
            Call::Create(new) => match self.terminals.reserve(new.output_bytes_max) {
                Ok(place) => {
                    let cwd = new
                        .cwd
                        .clone()
                        .map(|path| self.with_folders(move |folders| folders.directory(&path)));
                    Box::pin(create(place, Arc::clone(&self.ground), new, cwd))
                }
                Err(error) => now(Err(of_terminals(&error))),
            },
            Call::Output(id) => {
                let output = self.terminals.output(&id).map_err(|error| of_terminals(&error));
                now(output.map(|output| Reply::Output {
                    text: output.text,
                    is_cut: output.is_cut,
                    exit: output.exit.map(exit),
                }))
            }
            Call::Wait(id) => {
                let terminals = self.terminals();
                Box::pin(async move {
                    let ended = terminals.wait(&id).await;
                    ended.map(|how| Reply::Exited(exit(how))).map_err(|error| of_terminals(&error))
                })
            }
            Call::Kill(id) => done(self.terminals.kill(&id)),
            Call::Release(id) => done(self.terminals.release(&id)),
        }
    }

    fn kill_terminals(&self) {
        self.terminals.kill_all();
    }

    fn release_terminals(&self) {
        self.terminals.release_all();
    }
}

fn now(outcome: Result<Reply, Refusal>) -> BoxFuture<'static, Result<Reply, Refusal>> {
    Box::pin(std::future::ready(outcome))
}

async fn create(
    place: Place,
    ground: Arc<Ground>,
    new: NewTerminal,
    cwd: Option<BoxFuture<'static, Result<PathBuf, Refusal>>>,
) -> Result<Reply, Refusal> {
    let cwd = match cwd {
        Some(cwd) => cwd.await?,
        None => ground.cwd.clone(),
    };
    let NewTerminal { command, args, env, .. } = new;
    let mut env = environment::for_terminal(&ground.env, env);
    env.extend(ground.sandbox.iter().flat_map(Sandbox::variables));
    let program = find(&command, &ground, &env, &cwd).await?;
    let argv = std::iter::once(program.into()).chain(args.into_iter().map(OsString::from));
    let sandbox = ground.sandbox.clone();
    let command = Command { argv: argv.collect(), cwd, env, sandbox };
    place.start(command).await.map(Reply::Created).map_err(|error| of_terminals(&error))
}

/// The program, on the path that it will have.
async fn find(
    command: &str,
    ground: &Arc<Ground>,
    env: &BTreeMap<OsString, OsString>,
    cwd: &Path,
) -> Result<PathBuf, Refusal> {
    let (command, ground) = (command.to_owned(), Arc::clone(ground));
    let (path, cwd) = (env.get(OsStr::new("PATH")).cloned(), cwd.to_owned());
    let look = move || executable::resolve(&command, &ground.path, path.as_deref(), &cwd);
    match tokio::task::spawn_blocking(look).await {
        Ok(found) => found.map_err(|error| Refusal::Refused(error.to_string())),
        Err(_) => Err(Refusal::Failed("the program could not be looked for".to_owned())),
    }
}

fn of_files(error: &files::Error) -> Refusal {
    let words = error.to_string();
    match error {
        files::Error::NotFound => Refusal::NotFound(words),
        files::Error::System(_) | files::Error::Unsteady => Refusal::Failed(words),
        files::Error::Path
        | files::Error::Outside
        | files::Error::Kind { .. }
        | files::Error::TooLarge { .. }
        | files::Error::NotText
        | files::Error::Unsupported => Refusal::Refused(words),
    }
}

fn of_terminals(error: &terminals::Error) -> Refusal {
    let words = error.to_string();
    match error {
        terminals::Error::Start(_) => Refusal::Failed(words),
        terminals::Error::TooMany | terminals::Error::Unknown | terminals::Error::Killed => {
            Refusal::Refused(words)
        }
    }
}

fn exit(how: AgentExit) -> Exit {
    match how {
        AgentExit::Code(code) => Exit::Code(u32::try_from(code).unwrap_or(u32::MAX)),
        AgentExit::Signal(number) => Exit::Signal(name(number)),
    }
}

/// A signal's name (signal(7)); of a rare one its number.
fn name(number: i32) -> String {
    const NAMES: [(i32, &str); 13] = [
        (1, "SIGHUP"),
        (2, "SIGINT"),
        (3, "SIGQUIT"),
        (4, "SIGILL"),
        (5, "SIGTRAP"),
        (6, "SIGABRT"),
        (7, "SIGBUS"),
        (8, "SIGFPE"),
        (9, "SIGKILL"),
        (11, "SIGSEGV"),
        (13, "SIGPIPE"),
        (14, "SIGALRM"),
        (15, "SIGTERM"),
    ];
    let known = NAMES.iter().find(|(known, _)| *known == number);
    known.map_or_else(|| format!("SIG{number}"), |(_, name)| (*name).to_owned())
}
