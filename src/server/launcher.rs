//! The loop's port to processes, on top of `runtime`.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use async_trait::async_trait;
use tokio::sync::mpsc;

use crate::api::Agent;
use crate::api::agent::{HomePolicy, SandboxMode};
use crate::api::config::Config;
use crate::api::machine::Guard;
use crate::api::session::Scope;
use crate::controller::process::{
    Control, Events, LaunchError, LaunchRequest, Launched, Launcher, ProcessEvent,
};
use crate::plan::world::{Confinement, Finding, Missing, ProcessIdentity};
use crate::ports::Inputs;
use crate::runtime::home::Home;
use crate::runtime::sandbox::{self, Sandbox};
use crate::runtime::terminals::Terminals;
use crate::runtime::{
    self, LaunchSpec, credentials, environment, executable, leftovers, login_path, scope,
};
use crate::secret::{Lease, Redactor, Secret, Vault};

use super::login_path::Captured;
use super::services::{AgentServices, Ground};

/// Starts agents under shims.
pub(super) struct RuntimeLauncher {
    launcher: runtime::Launcher,
    own_bin: PathBuf,
    data_dir: PathBuf,
    vault: Arc<Vault>,
    redactor: Redactor,
    login_path: Captured,
}

impl RuntimeLauncher {
    /// The launcher of this daemon, and the vault that it takes credentials from.
    pub(super) async fn with_vault(
        store_id: &str,
        data_dir: &Path,
        redactor: &Redactor,
        config: &Config,
    ) -> Result<(Arc<Self>, Arc<Vault>), runtime::launch::Error> {
        let vault = Arc::new(Vault::of_daemon(data_dir));
        let mut launcher = Self::new(store_id, data_dir, Arc::clone(&vault), redactor.clone())?;
        launcher.login_path = launcher.capture(config.login_path).await;
        Ok((Arc::new(launcher), vault))
    }

    fn new(
        store_id: &str,
        data_dir: &Path,
        vault: Arc<Vault>,
        redactor: Redactor,
    ) -> Result<Self, runtime::launch::Error> {
        let options = runtime::Options::detect(store_id)?;
        // The shim stands beside the program: the one was found by the other.
        let own_bin = options.shim_path.with_file_name("spawnlet");
        let launcher = runtime::Launcher::new(options);
        // Homes are told to agents, which work elsewhere.
        let data_dir = std::path::absolute(data_dir).unwrap_or_else(|_| data_dir.to_owned());
        let login_path = Captured::default();
        Ok(Self { launcher, own_bin, data_dir, vault, redactor, login_path })
    }

    /// The PATH that agents inherit.
    fn path(&self) -> Option<OsString> {
        login_path::appended(std::env::var_os("PATH"), self.login_path.directories())
    }

    /// What agents inherit.
    fn inherited(&self) -> impl Iterator<Item = (OsString, OsString)> {
        let path = self.path().map(|path| ("PATH".into(), path));
        std::env::vars_os().filter(|(name, _)| name != "PATH").chain(path)
    }

    /// How agents' programs are looked for, for `doctor`.
    pub(super) fn path_guard(&self) -> Guard {
        self.login_path.guard(self.path().as_deref())
    }

    /// What starts processes.
    pub(super) const fn runtime(&self) -> &runtime::Launcher {
        &self.launcher
    }

    pub(super) async fn sweep(&self) -> io::Result<leftovers::Report> {
        let report = self.launcher.sweep().await?;
        let (launcher, data_dir) = (self.launcher.clone(), self.data_dir.clone());
        let clear = move || sandbox::remove_leftovers(&data_dir, || launcher.live_instances());
        tokio::task::spawn_blocking(clear).await.map_err(io::Error::other)?;
        Ok(report)
    }
}

#[async_trait]
impl Launcher for RuntimeLauncher {
    async fn launch(&self, request: LaunchRequest) -> Result<Launched, LaunchError> {
        let credentials = self.credentials(&request.agent)?;
        let spec = self.spec(&request, &credentials)?;
        let mode = request.agent.spec.sandbox.mode;
        let sandbox = spec.sandbox.as_ref().map(|found| Confinement { mode, abi: found.abi() });
        let services = self.services(&request, spec.sandbox.clone())?;
        // From before the process is there until nothing is kept of it any more.
        let token =
            request.access.as_ref().map(|access| Secret::new(access.token.expose().to_owned()));
        let secrets = credentials.into_iter().map(|(_, value)| value).chain(token);
        let lease = self.redactor.hold(secrets);
        let mut process = self
            .launcher
            .spawn(spec)
            .await
            .map_err(|error| LaunchError { reason: "LaunchFailed", message: error.to_string() })?;
        let identity = process.identity();
        let identity = ProcessIdentity {
            shim_pid: identity.shim_pid,
            start_time: identity.start_time,
            pidfd_inode: identity.pidfd_inode,
            cgroup: identity.cgroup.as_ref().map(|path| path.display().to_string()),
        };
        let (stdin, stdout, stderr) =
            (process.take_stdin(), process.take_stdout(), process.take_stderr());
        let (Some(stdin), Some(stdout), Some(stderr), Some(from)) =
            (stdin, stdout, stderr, process.events())
        else {
            let message = "the process has no pipes (a defect)".to_owned();
            return Err(LaunchError { reason: "LaunchFailed", message });
        };
        Ok(Launched {
            identity,
            sandbox,
            stdin: Box::new(stdin),
            stdout: Box::new(stdout),
            stderr: Box::new(stderr),
            events: Box::new(TreeEvents::new(from, services.terminals())),
            control: Box::new(Tree { process, terminals: services.terminals(), _secrets: lease }),
            services: Box::new(services),
        })
    }

    fn redactor(&self) -> Redactor {
        self.redactor.clone()
    }

    fn find_agent(&self, agent: &Agent) -> Result<Option<PathBuf>, LaunchError> {
        let argv = argv(agent)?;
        // A relative program is found below the session's directory, which is not known here.
        if argv[0].contains('/') && !argv[0].starts_with('/') {
            return Ok(None);
        }
        let path = agent.spec.env.get("PATH").map(OsString::from);
        let path = path.or_else(|| self.path());
        let path = environment::path(path.as_ref(), &agent.spec.path, self.own_bin.parent());
        executable::resolve(&argv[0], &agent.spec.path, Some(&path), Path::new("/"))
            .map(Some)
            .map_err(|error| not_found(agent, &error))
    }

    fn find_scope(&self, cwd: &str, additional: &[String], label: String) -> Finding<Scope> {
        match scope::resolve(cwd, additional, &label) {
            Ok(scope) => Finding::Found(Box::new(scope)),
            Err(error) => Finding::Missing(Missing {
                reason: "DirectoryNotFound",
                message: error.to_string(),
            }),
        }
    }
}

impl Inputs for RuntimeLauncher {
    fn executable(&self, agent: &Agent) -> Result<Option<PathBuf>, String> {
        self.find_agent(agent).map_err(|error| error.message)
    }

    fn directories(&self, cwd: &str, additional: &[String]) -> Result<Vec<String>, String> {
        let found = scope::resolve(cwd, additional, "").map_err(|error| error.to_string())?;
        Ok(std::iter::once(found.cwd).chain(found.additional_directories).collect())
    }
}

impl RuntimeLauncher {
    fn credentials(&self, agent: &Agent) -> Result<Vec<(String, Secret)>, LaunchError> {
        credentials::bind(&agent.spec, |name| std::env::var_os(name), &self.vault).map_err(
            |error| {
                let message = format!("Agent {}: {error}", agent.metadata.name);
                LaunchError { reason: "CredentialMissing", message }
            },
        )
    }

    /// What the agent may ask for: in its session's directories, with its environment but for what
    /// is its own.
    fn services(
        &self,
        request: &LaunchRequest,
        sandbox: Option<Sandbox>,
    ) -> Result<AgentServices, LaunchError> {
        let (agent, scope) = (&request.agent, &request.scope);
        let home = self.home(agent)?;
        let env = environment::for_login(self.inherited(), &agent.spec, home.as_ref());
        let cwd = PathBuf::from(&scope.cwd);
        let more = scope.additional_directories.iter().map(PathBuf::from);
        let roots: Vec<PathBuf> = std::iter::once(cwd.clone()).chain(more).collect();
        let is_read_only = agent.spec.sandbox.mode == SandboxMode::ReadOnly;
        let ground = Ground { cwd, path: agent.spec.path.clone(), env, sandbox, is_read_only };
        Ok(AgentServices::new(self.launcher.clone(), &roots, ground))
    }

    /// The agent's own home, made and checked, if it has one.
    fn home(&self, agent: &Agent) -> Result<Option<Home>, LaunchError> {
        if agent.spec.home_policy == HomePolicy::Operator {
            return Ok(None);
        }
        let home = Home::of(&self.data_dir, agent.metadata.name.as_str(), &agent.spec);
        home.prepare().map_err(|error| LaunchError {
            reason: "HomeUnusable",
            message: format!("Agent {}: {error}", agent.metadata.name),
        })?;
        Ok(Some(home))
    }

    /// What the kernel is to hold the agent to, if its record asks for that.
    fn sandbox(
        &self,
        request: &LaunchRequest,
        home: Option<&Home>,
    ) -> Result<Option<Sandbox>, LaunchError> {
        let agent = &request.agent;
        let asked = sandbox::Asked {
            sandbox: &agent.spec.sandbox,
            scope: &request.scope,
            home,
            data_dir: &self.data_dir,
            instance: &request.instance,
        };
        Sandbox::of(&asked).map_err(|error| LaunchError {
            reason: error.reason(),
            message: format!("Agent {}: {error}", agent.metadata.name),
        })
    }

    fn spec(
        &self,
        request: &LaunchRequest,
        credentials: &[(String, Secret)],
    ) -> Result<LaunchSpec, LaunchError> {
        let LaunchRequest { session, agent, scope, instance, access } = request;
        let identity = environment::Identity {
            session: &session.metadata.uid,
            name: &session.metadata.name,
            namespace: &session.metadata.namespace,
            agent: &session.spec.agent,
            parent: session.status.lineage.parent.as_ref(),
            model: None,
            bin: &self.own_bin,
            instance,
            access: access.as_ref().map(|access| (access.url.as_str(), &access.token)),
        };
        let home = self.home(agent)?;
        let sandbox = self.sandbox(request, home.as_ref())?;
        let mut env: BTreeMap<OsString, OsString> = environment::build(
            self.inherited(),
            &agent.spec,
            &identity,
            home.as_ref(),
            credentials,
        );
        env.extend(sandbox.iter().flat_map(Sandbox::variables));
        let argv = argv(agent)?;
        let cwd = PathBuf::from(&scope.cwd);
        let path = env.get(&OsString::from("PATH")).map(OsString::as_os_str);
        let program = executable::resolve(&argv[0], &agent.spec.path, path, &cwd)
            .map_err(|error| not_found(agent, &error))?;
        let mut words: Vec<OsString> = argv.into_iter().map(OsString::from).collect();
        words[0] = program.into();
        Ok(LaunchSpec { argv: words, cwd, env, instance: instance.clone(), sandbox })
    }
}

/// Program and arguments; never empty.
fn argv(agent: &Agent) -> Result<Vec<String>, LaunchError> {
    agent.spec.words().map_err(|errors| LaunchError {
        reason: "CommandInvalid",
        message: format!("Agent {}: {errors}", agent.metadata.name),
    })
}

fn not_found(agent: &Agent, error: &executable::Error) -> LaunchError {
    LaunchError {
        reason: "ExecutableNotFound",
        message: format!("Agent {}: {error}", agent.metadata.name),
    }
}

/// A process tree of the runtime's, with those of its terminals.
struct Tree {
    process: runtime::Process,
    terminals: Terminals,
    /// The secrets that it has, for as long as anything is kept of it.
    _secrets: Lease,
}

impl Control for Tree {
    fn open_gate(&self) {
        // A shim that is gone tells so by its events.
        if let Err(error) = self.process.open_gate() {
            tracing::warn!(%error, "a gate could not be opened");
        }
    }

    fn terminate(&self) {
        if let Err(error) = self.process.terminate() {
            tracing::debug!(%error, "SIGTERM could not be sent; the next rung kills");
        }
    }

    fn kill_tree(&self) {
        self.terminals.close();
        self.process.kill_tree();
    }
}

/// A process tree's events, in the loop's words. It is empty when the agent's own tree is, and those
/// of its terminals are too.
struct TreeEvents {
    from: mpsc::Receiver<runtime::ProcessEvent>,
    terminals: Terminals,
    /// The agent's own tree is empty, and its terminals are on their way.
    is_closing: bool,
}

impl TreeEvents {
    const fn new(from: mpsc::Receiver<runtime::ProcessEvent>, terminals: Terminals) -> Self {
        Self { from, terminals, is_closing: false }
    }
}

#[async_trait]
impl Events for TreeEvents {
    async fn next(&mut self) -> Option<ProcessEvent> {
        if !self.is_closing {
            match self.from.recv().await? {
                runtime::ProcessEvent::Started { pid } => {
                    return Some(ProcessEvent::Started { pid });
                }
                runtime::ProcessEvent::ExecFailed { stage, errno } => {
                    let message = format!("{stage:?}: {}", io::Error::from_raw_os_error(errno));
                    return Some(ProcessEvent::ExecFailed { message });
                }
                runtime::ProcessEvent::Exited(exit) => {
                    return Some(ProcessEvent::Exited { status: exit.to_string() });
                }
                runtime::ProcessEvent::ShimGone => return Some(ProcessEvent::ShimGone),
                runtime::ProcessEvent::TreeEmpty => {
                    self.terminals.close();
                    self.is_closing = true;
                }
            }
        }
        self.terminals.gone().await;
        // Nothing comes after it.
        self.is_closing = false;
        Some(ProcessEvent::TreeEmpty)
    }
}
