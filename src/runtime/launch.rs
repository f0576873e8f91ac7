//! Starting an agent: the shim first, standing at its gate, so that the caller can record it.
//!
//! The order is the caller's to keep: commit the mark, [`Launcher::spawn`], commit
//! [`Process::identity`], [`Process::open_gate`]. If the daemon dies in between, the end of the
//! gate pipe makes the shim leave, and no agent has run unrecorded.
//!
//! Invariants: the agent's arguments, directory and variables go to the shim through a pipe and are
//! in no other process's; each spawned shim has a listening task here that reaps it, whatever
//! becomes of the [`Process`]. Absent: what to start (the modules beside this one tell).

use std::collections::{BTreeMap, HashSet};
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::io::AsyncWriteExt;
use tokio::io::unix::AsyncFd;
use tokio::net::unix::pipe;
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinSet;

use super::process::{EVENTS_MAX, Greeting, Listener, Process, ProcessIdentity, Shared};
use super::sandbox::Sandbox;
use super::sys::{self, pidfd};
use super::{INSTANCE_VARIABLE, cgroup, leftovers, orphans, proc, wire};

/// The shim's file, in the directory of the running executable.
const SHIM_NAME: &str = "spawnlet-shim";

/// How agents are launched.
#[derive(Clone, Debug)]
pub struct Options {
    /// The `spawnlet-shim` executable of the same version.
    pub shim_path: PathBuf,
    /// What each mark of this store begins with: the store's id.
    pub instance_prefix: String,
    /// The directory to make one cgroup per agent in; none: shims alone.
    pub cgroup_base: Option<PathBuf>,
}

impl Options {
    /// The shim beside the running executable, and a cgroup directory if one is writable.
    ///
    /// # Errors
    ///
    /// [`Error::ShimMissing`].
    pub fn detect(instance_prefix: impl Into<String>) -> Result<Self, Error> {
        // Canonical: a link to the daemon in another directory has no shim beside it.
        let own = std::env::current_exe().and_then(std::fs::canonicalize);
        let own = own.map_err(|source| Error::ShimMissing { path: SHIM_NAME.into(), source })?;
        let shim_path = own.with_file_name(SHIM_NAME);
        if let Err(source) = std::fs::metadata(&shim_path) {
            return Err(Error::ShimMissing { path: shim_path, source });
        }
        let instance_prefix = instance_prefix.into();
        Ok(Self { shim_path, instance_prefix, cgroup_base: cgroup::detect() })
    }
}

/// What to start.
#[derive(Clone)]
pub struct LaunchSpec {
    /// The absolute path of the program, and its arguments.
    pub argv: Vec<OsString>,
    /// Where: an absolute path of a directory.
    pub cwd: PathBuf,
    /// All of its environment; the mark is put in by the launcher.
    pub env: BTreeMap<OsString, OsString>,
    /// The mark of its tree, of [`Launcher::new_instance`], recorded before.
    pub instance: String,
    /// What the kernel holds it to; none: what its user may do. A program that the daemon starts
    /// for a sandboxed agent (a terminal, say) gets the agent's.
    pub sandbox: Option<Sandbox>,
}

// Values of variables may be secrets.
impl std::fmt::Debug for LaunchSpec {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LaunchSpec")
            .field("program", &self.argv.first())
            .field("cwd", &self.cwd)
            .field("env", &self.env.keys())
            .field("instance", &self.instance)
            .field("sandbox", &self.sandbox)
            .finish_non_exhaustive()
    }
}

/// Why an agent was not launched. Nothing runs then.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The package is not installed whole.
    #[error("the shim {} is missing: install spawnlet-shim beside spawnlet", path.display())]
    ShimMissing {
        /// Where it was looked for.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The package was updated by half.
    #[error("the shim is of version {found}, expected {expected}: install both of one version")]
    ShimVersion {
        /// What the shim said.
        found: String,
        /// The daemon's own.
        expected: &'static str,
    },
    /// What is to be started cannot be.
    #[error("{field}: {problem}")]
    Spec {
        /// `argv`, `cwd`, `env` or `instance`.
        field: &'static str,
        /// What is wrong with it, and what was expected. No values of variables.
        problem: String,
    },
    /// Pipes, the cgroup or the fork: out of descriptors, memory or processes.
    #[error("the system did not give what a process needs: {what}")]
    Resources {
        /// What was asked for.
        what: &'static str,
        /// What it said.
        source: io::Error,
    },
    /// The shim started and went away before it stood at the gate.
    #[error("the shim ended before it was ready")]
    ShimLost,
}

/// What a caller can do about an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Disposition {
    /// Try again, with back-off.
    Retry,
    /// Nothing until somebody changes something.
    Terminal,
}

impl Error {
    /// What the caller can do about it.
    #[must_use]
    pub const fn disposition(&self) -> Disposition {
        match self {
            Self::Resources { .. } | Self::ShimLost => Disposition::Retry,
            Self::ShimMissing { .. } | Self::ShimVersion { .. } | Self::Spec { .. } => {
                Disposition::Terminal
            }
        }
    }
}

/// Launches agents. A cheap handle.
#[derive(Clone, Debug)]
pub struct Launcher {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    options: Options,
    listeners: Mutex<JoinSet<()>>,
    live: Arc<Mutex<HashSet<String>>>,
}

// What the locks hold is whole at every point where a panic could come.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Launcher {
    /// A launcher without any process.
    #[must_use]
    pub fn new(options: Options) -> Self {
        let (listeners, live) = (Mutex::default(), Arc::default());
        Self { inner: Arc::new(Inner { options, listeners, live }) }
    }

    /// How it launches.
    #[must_use]
    pub fn options(&self) -> &Options {
        &self.inner.options
    }

    /// A new mark: to be recorded before [`Launcher::spawn`], so that a shim whose daemon died at
    /// that moment is known.
    #[must_use]
    pub fn new_instance(&self) -> String {
        format!("{}.{}", self.inner.options.instance_prefix, uuid::Uuid::new_v4().simple())
    }

    /// The marks of all trees that this launcher still looks after.
    #[must_use]
    pub fn live_instances(&self) -> HashSet<String> {
        lock(&self.inner.live).clone()
    }

    /// Starts a shim that waits at its gate with what it is to start. The agent runs after
    /// [`Process::open_gate`]. Without a deadline of its own.
    ///
    /// # Errors
    ///
    /// [`Error`]; nothing runs then.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the shim leaves without starting anything, and is reaped.
    pub async fn spawn(&self, spec: LaunchSpec) -> Result<Process, Error> {
        self.spawn_as(spec, false).await
    }

    /// The same, with standard error going where standard output goes, in the order of writing.
    ///
    /// # Errors
    ///
    /// [`Error`]; nothing runs then.
    ///
    /// # Cancel safety
    ///
    /// As of [`Launcher::spawn`].
    pub async fn spawn_joined(&self, spec: LaunchSpec) -> Result<Process, Error> {
        self.spawn_as(spec, true).await
    }

    async fn spawn_as(&self, spec: LaunchSpec, is_joined: bool) -> Result<Process, Error> {
        let block = self.block(&spec)?;
        // Before there is anything that carries the mark: the backstop asks for it.
        let live = Live::new(&self.inner.live, &spec.instance);
        if let Some(sandbox) = &spec.sandbox {
            sandbox.prepare().map_err(resources("a directory for temporary files"))?;
        }
        let mut cgroup = Cgroup(match &self.inner.options.cgroup_base {
            Some(base) => Some(make_cgroup(base, &spec.instance)?),
            None => None,
        });
        let (process, gate, greeting) = self.start(live, cgroup.0.clone(), is_joined)?;
        // The listening task removes the directory from here on.
        cgroup.0 = None;
        let mut sender = pipe::Sender::from_owned_fd(gate).map_err(resources("the gate"))?;
        // EPIPE: the greeting tells why.
        let _ = sender.write_all(&block).await;
        match greeting.await {
            Ok(Greeting::Ready) => {}
            Ok(Greeting::Version(found)) => {
                return Err(Error::ShimVersion { found, expected: env!("CARGO_PKG_VERSION") });
            }
            Ok(Greeting::Lost) | Err(_) => return Err(Error::ShimLost),
        }
        let gate = sender.into_nonblocking_fd().map_err(resources("the gate"))?;
        *lock(&process.gate) = Some(gate);
        Ok(process)
    }

    /// Kills what carries this store's mark and is of no live tree, and clears orphans. To be
    /// called every few seconds: a backstop for shims that died unseen.
    ///
    /// # Errors
    ///
    /// /proc cannot be read.
    ///
    /// # Cancel safety
    ///
    /// The pass goes on to its end in the background.
    pub async fn sweep(&self) -> io::Result<leftovers::Report> {
        let inner = Arc::clone(&self.inner);
        let pass =
            move || leftovers::sweep(&inner.options, |mark| lock(&inner.live).contains(mark));
        tokio::task::spawn_blocking(pass).await.map_err(io::Error::other)?
    }

    /// Waits until every shim that was started is reaped and its tree gone. Their [`Process`]es
    /// must have been dropped or killed before, or it waits for them.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the listening tasks end with it: only to be given up when the
    /// program ends.
    pub async fn drained(&self) {
        let mut listeners = std::mem::take(&mut *lock(&self.inner.listeners));
        while listeners.join_next().await.is_some() {}
    }

    fn block(&self, spec: &LaunchSpec) -> Result<Vec<u8>, Error> {
        let problem = |field, problem: &str| Error::Spec { field, problem: problem.to_owned() };
        let program =
            spec.argv.first().ok_or_else(|| problem("argv", "empty, expected a program"))?;
        if !Path::new(program).is_absolute() {
            return Err(problem("argv", "the program must be an absolute path"));
        }
        if !spec.cwd.is_absolute() {
            return Err(problem("cwd", "must be an absolute path"));
        }
        if !leftovers::is_of_store(&spec.instance, &self.inner.options.instance_prefix) {
            return Err(problem("instance", "must be a mark of this store"));
        }
        let directory = self.inner.options.cgroup_base.as_deref();
        let directory = directory.map(|base| cgroup::path(base, &spec.instance));
        let mut env = spec.env.clone();
        env.insert(INSTANCE_VARIABLE.into(), spec.instance.clone().into());
        let nul = |text: &OsStr| text.as_bytes().contains(&0);
        if spec.argv.iter().any(|argument| nul(argument)) {
            return Err(problem("argv", "an argument contains NUL"));
        }
        if nul(spec.cwd.as_os_str()) {
            return Err(problem("cwd", "contains NUL"));
        }
        for (name, value) in &env {
            if name.is_empty() || name.as_bytes().contains(&b'=') || nul(name) || nul(value) {
                let name = name.to_string_lossy();
                return Err(problem("env", &format!("{name}: contains NUL, or is no name")));
            }
        }
        let argv: Vec<Vec<u8>> = spec.argv.iter().map(|text| text.as_bytes().to_vec()).collect();
        let env: Vec<Vec<u8>> = env
            .into_iter()
            .map(|(name, value)| [name.into_vec(), value.into_vec()].join(&b'='))
            .collect();
        let cgroup = directory.as_ref().map_or(&[][..], |path| path.as_os_str().as_bytes());
        let rules = spec.sandbox.as_ref().map(Sandbox::encode).unwrap_or_default();
        let cwd = spec.cwd.as_os_str().as_bytes();
        let block = wire::encode_launch(cwd, cgroup, &argv, &env, &rules);
        if block.len() > wire::LAUNCH_BYTES_MAX {
            return Err(problem("env", "arguments and environment are over 8 MiB together"));
        }
        Ok(block)
    }

    /// Pipes, fork, listening task. No await: from the fork on somebody is there to reap it.
    fn start(
        &self,
        live: Live,
        cgroup: Option<PathBuf>,
        is_joined: bool,
    ) -> Result<(Process, OwnedFd, oneshot::Receiver<Greeting>), Error> {
        let ((stdin, to_stdin), (from_stdout, stdout)) = (pipe()?, pipe()?);
        let (from_stderr, stderr) = if is_joined {
            (None, stdout.try_clone().map_err(resources("a pipe"))?)
        } else {
            let (from_stderr, stderr) = pipe()?;
            (Some(from_stderr), stderr)
        };
        let (lifeline, to_lifeline) = pipe()?;
        let ((gate, to_gate), (from_status, status)) = (pipe()?, pipe()?);
        let receive = |fd| pipe::Receiver::from_owned_fd(fd).map_err(resources("a pipe"));
        let to_stdin = pipe::Sender::from_owned_fd(to_stdin).map_err(resources("a pipe"))?;
        let from_stdout = receive(from_stdout)?;
        let from_stderr = from_stderr.map(receive).transpose()?;
        let from_status = receive(from_status)?;
        rustix::io::ioctl_fionbio(&to_lifeline, true)
            .map_err(|errno| resources("a pipe")(errno.into()))?;

        let instance = live.instance.clone();
        let stdio = sys::Stdio3 { stdin, stdout, stderr };
        let pipes = sys::ShimPipes { lifeline, gate, status };
        let shim = &self.inner.options.shim_path;
        let mut child =
            orphans::start(|| sys::start_shim(shim, OsStr::new(&instance), stdio, pipes)).map_err(
                |source| match source.kind() {
                    io::ErrorKind::NotFound => Error::ShimMissing { path: shim.clone(), source },
                    _ => Error::Resources { what: "a process", source },
                },
            )?;
        let known = hold(child.id());
        let (held, for_listener, start_time) = match known {
            Ok(known) => known,
            Err(source) => {
                // It waits at its gate and has started nothing.
                let _ = child.kill();
                let _ = orphans::reap(&mut child);
                return Err(Error::Resources { what: "a handle on the shim", source });
            }
        };
        let identity = ProcessIdentity {
            shim_pid: child.id(),
            start_time,
            pidfd_inode: pidfd::inode(&held),
            cgroup: cgroup.clone(),
        };
        let shared = Arc::new(Shared::new(held));
        let (events, received) = mpsc::channel(EVENTS_MAX);
        let (greet, greeting) = oneshot::channel();
        let listener = Listener {
            child,
            pidfd: for_listener,
            status: from_status,
            events,
            shared: Arc::clone(&shared),
            instance,
            cgroup,
        };
        self.listen(async move {
            listener.run(greet).await;
            drop(live);
        });
        let process = Process {
            identity,
            lifeline: to_lifeline,
            gate: Mutex::new(None),
            stdin: Some(to_stdin),
            stdout: Some(from_stdout),
            stderr: from_stderr,
            events: Some(received),
            shared,
            _launcher: self.clone(),
        };
        Ok((process, to_gate, greeting))
    }

    fn listen(&self, listener: impl Future<Output = ()> + Send + 'static) {
        let mut listeners = lock(&self.inner.listeners);
        while listeners.try_join_next().is_some() {}
        listeners.spawn(listener);
    }
}

/// A mark that counts as live as long as this exists.
struct Live {
    live: Arc<Mutex<HashSet<String>>>,
    instance: String,
}

impl Live {
    fn new(live: &Arc<Mutex<HashSet<String>>>, instance: &str) -> Self {
        lock(live).insert(instance.to_owned());
        Self { live: Arc::clone(live), instance: instance.to_owned() }
    }
}

impl Drop for Live {
    fn drop(&mut self) {
        lock(&self.live).remove(&self.instance);
    }
}

/// A directory to be removed if the start fails before somebody else looks after it.
struct Cgroup(Option<PathBuf>);

impl Drop for Cgroup {
    fn drop(&mut self) {
        if let Some(directory) = &self.0 {
            cgroup::remove(directory);
        }
    }
}

fn make_cgroup(base: &Path, instance: &str) -> Result<PathBuf, Error> {
    let directory = cgroup::path(base, instance);
    std::fs::create_dir(&directory).map_err(resources("a cgroup"))?;
    Ok(directory)
}

/// Two handles on a child that was just started, and its start time.
fn hold(pid: u32) -> io::Result<(OwnedFd, AsyncFd<OwnedFd>, u64)> {
    let held = pidfd::open(pid)?;
    let listened = sys::watch(held.try_clone()?)?;
    let stat = proc::stat(pid).ok_or_else(|| io::Error::from(io::ErrorKind::NotFound))?;
    Ok((held, listened, stat.start_time))
}

/// A pipe of std, which makes both ends so that no other program inherits them.
fn pipe() -> Result<(OwnedFd, OwnedFd), Error> {
    match std::io::pipe() {
        Ok((reader, writer)) => Ok((OwnedFd::from(reader), OwnedFd::from(writer))),
        Err(source) => Err(Error::Resources { what: "a pipe", source }),
    }
}

fn resources(what: &'static str) -> impl Fn(io::Error) -> Error {
    move |source| Error::Resources { what, source }
}
