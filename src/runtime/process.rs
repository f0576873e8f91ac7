//! A running shim with its agent, as the daemon holds it, and the task that listens to it.
//!
//! Dropping a [`Process`] closes the lifeline, and with that the shim kills the tree: nothing can
//! leak by an early return. The listening task belongs to the launcher, so it outlives the
//! `Process`, reaps the shim, and, if the shim died before its tree, clears what it left until
//! nothing is found.
//!
//! Invariants: [`ProcessEvent::TreeEmpty`] is the last event, comes once, and means that neither
//! the shim nor any process below it exists; whatever is not known counts as not empty.
//! Absent: deadlines and the stop ladder's order (the planner's).

use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::Child;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::io::AsyncReadExt;
use tokio::io::unix::AsyncFd;
use tokio::net::unix::pipe;
use tokio::sync::{mpsc, oneshot};

use super::sys::pidfd;
use super::{cgroup, leftovers, orphans, wire};

/// Events of one process: it has at most five, so sending one never waits for who reads them.
pub(super) const EVENTS_MAX: usize = 8;
/// How soon the clearing of a dead shim's tree is repeated at first, and at most how late.
const CLEAR_AGAIN: Duration = Duration::from_millis(10);
const CLEAR_AGAIN_MAX: Duration = Duration::from_secs(1);
/// Orders to kill after which the shim itself is taken for stuck (its agent runs as the same user
/// and can stop or trace it). It is then killed, and its tree comes to the daemon.
const KILLS_BEFORE_SHIM: u32 = 3;

/// What identifies a process across a restart of the daemon.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProcessIdentity {
    /// The shim's pid.
    pub shim_pid: u32,
    /// The shim's start time in clock ticks since boot (proc_pid_stat(5), field 22).
    pub start_time: u64,
    /// The inode of the shim's pidfd, where the kernel has one per process (Linux 6.9).
    pub pidfd_inode: Option<u64>,
    /// The agent's cgroup directory, if it has one.
    pub cgroup: Option<PathBuf>,
}

/// What happened to a process, in the order in which it happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ProcessEvent {
    /// The agent was executed.
    Started {
        /// Its pid, which is also its process group.
        pid: u32,
    },
    /// The agent could not be executed; [`ProcessEvent::TreeEmpty`] follows.
    ExecFailed {
        /// What failed.
        stage: StartStage,
        /// The error number, for `std::io::Error::from_raw_os_error`.
        errno: i32,
    },
    /// The agent itself is gone. What it wrote may still be in its pipes, and descendants may hold
    /// them open for 250 ms more: read to the end.
    Exited(AgentExit),
    /// The shim died before its tree was empty. The daemon clears it: `TreeEmpty` follows as soon
    /// as that is known.
    ShimGone,
    /// No process of the tree exists, nor does the shim. The last event.
    TreeEmpty,
}

/// What of a start failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StartStage {
    /// Entering the working directory.
    Directory,
    /// Joining the cgroup.
    Cgroup,
    /// Putting the sandbox around it.
    Sandbox,
    /// Executing the program.
    Exec,
}

/// How an agent went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AgentExit {
    /// By itself, with this code.
    Code(i32),
    /// By this signal.
    Signal(i32),
}

impl std::fmt::Display for AgentExit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Code(code) => write!(f, "exit code {code}"),
            Self::Signal(signal) => write!(f, "signal {signal}"),
        }
    }
}

/// Whether processes of a tree exist.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Emptiness {
    /// None does, nor does the shim.
    Empty,
    /// Some do, or the shim still stands at its gate.
    Populated,
    /// The shim died, and what it left may hide: counts as "might be running".
    Unknown,
}

impl Emptiness {
    const fn to_u8(self) -> u8 {
        match self {
            Self::Empty => 0,
            Self::Populated => 1,
            Self::Unknown => 2,
        }
    }

    const fn from_u8(value: u8) -> Self {
        match value {
            0 => Self::Empty,
            1 => Self::Populated,
            _ => Self::Unknown,
        }
    }
}

/// A shim and its agent.
#[derive(Debug)]
pub struct Process {
    pub(super) identity: ProcessIdentity,
    pub(super) lifeline: OwnedFd,
    pub(super) gate: Mutex<Option<OwnedFd>>,
    pub(super) stdin: Option<pipe::Sender>,
    pub(super) stdout: Option<pipe::Receiver>,
    pub(super) stderr: Option<pipe::Receiver>,
    pub(super) events: Option<mpsc::Receiver<ProcessEvent>>,
    pub(super) shared: Arc<Shared>,
    /// Keeps the listening tasks.
    pub(super) _launcher: super::Launcher,
}

/// What a process and the task that listens to it share.
#[derive(Debug)]
pub(super) struct Shared {
    emptiness: AtomicU8,
    /// Whether an agent may ever have been started.
    opened: AtomicBool,
    kills: AtomicU32,
    shim: OwnedFd,
}

impl Shared {
    pub(super) fn new(shim: OwnedFd) -> Self {
        let emptiness = AtomicU8::new(Emptiness::Populated.to_u8());
        Self { emptiness, opened: AtomicBool::new(false), kills: AtomicU32::new(0), shim }
    }

    fn set(&self, emptiness: Emptiness) {
        self.emptiness.store(emptiness.to_u8(), Ordering::Release);
    }
}

impl Process {
    /// What to record before the gate is opened.
    #[must_use]
    pub const fn identity(&self) -> &ProcessIdentity {
        &self.identity
    }

    /// The agent's standard input, once. Dropping it is the agent's end of input.
    pub fn take_stdin(&mut self) -> Option<pipe::Sender> {
        self.stdin.take()
    }

    /// The agent's standard output, once.
    pub fn take_stdout(&mut self) -> Option<pipe::Receiver> {
        self.stdout.take()
    }

    /// The agent's standard error, once. It has to be read as long as the agent lives: see
    /// [`super::stderr`].
    pub fn take_stderr(&mut self) -> Option<pipe::Receiver> {
        self.stderr.take()
    }

    /// What happens to it, once.
    pub fn events(&mut self) -> Option<mpsc::Receiver<ProcessEvent>> {
        self.events.take()
    }

    /// Lets the shim start the agent. A second call does nothing.
    ///
    /// # Errors
    ///
    /// The shim is gone ([`ProcessEvent::ShimGone`] or `TreeEmpty` says so too).
    pub fn open_gate(&self) -> io::Result<()> {
        match self.take_gate() {
            Some(gate) => {
                self.shared.opened.store(true, Ordering::Release);
                send(&gate, wire::OPEN)
            }
            None => Ok(()),
        }
    }

    /// SIGTERM, and SIGCONT in case it is stopped, to the agent's process group.
    ///
    /// # Errors
    ///
    /// The shim is gone: then the daemon is clearing its tree already.
    pub fn terminate(&self) -> io::Result<()> {
        send(&self.lifeline, wire::TERM)
    }

    /// Kills the whole tree, also what left the agent's group or session; the shim goes on until
    /// none is left, then [`ProcessEvent::TreeEmpty`] comes. A shim at its gate leaves without
    /// starting anything. May be repeated; the third call and later ones also kill the shim, where
    /// its tree then comes to the daemon.
    pub fn kill_tree(&self) {
        drop(self.take_gate());
        let _ = pidfd::resume(&self.shared.shim);
        if let Some(directory) = &self.identity.cgroup {
            let _ = cgroup::kill(directory);
        }
        // If the shim is gone, the listening task has taken over.
        let _ = send(&self.lifeline, wire::KILL);
        let calls = self.shared.kills.fetch_add(1, Ordering::Relaxed) + 1;
        if calls >= KILLS_BEFORE_SHIM
            && self.emptiness() != Emptiness::Empty
            && orphans::come_here()
        {
            let _ = pidfd::kill(&self.shared.shim);
        }
    }

    /// Whether processes of its tree exist.
    #[must_use]
    pub fn emptiness(&self) -> Emptiness {
        Emptiness::from_u8(self.shared.emptiness.load(Ordering::Acquire))
    }

    fn take_gate(&self) -> Option<OwnedFd> {
        self.gate.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // A stopped shim would not see the end of the lifeline.
        let _ = pidfd::resume(&self.shared.shim);
    }
}

/// One byte into a non-blocking pipe. A full one holds thousands of orders already.
fn send(fd: &OwnedFd, order: u8) -> io::Result<()> {
    match rustix::io::retry_on_intr(|| rustix::io::write(fd, &[order])) {
        Ok(_) | Err(rustix::io::Errno::AGAIN) => Ok(()),
        Err(errno) => Err(errno.into()),
    }
}

/// How far a shim got before it stood at the gate.
#[derive(Debug)]
pub(super) enum Greeting {
    /// It waits at the gate.
    Ready,
    /// It is another build than this daemon.
    Version(String),
    /// It ended or spoke something else.
    Lost,
}

/// The listening task: reads the status pipe, reaps the shim, clears what it may have left.
pub(super) struct Listener {
    pub(super) child: Child,
    pub(super) pidfd: AsyncFd<OwnedFd>,
    pub(super) status: pipe::Receiver,
    pub(super) events: mpsc::Sender<ProcessEvent>,
    pub(super) shared: Arc<Shared>,
    pub(super) instance: String,
    pub(super) cgroup: Option<PathBuf>,
}

impl Listener {
    pub(super) async fn run(mut self, greeting: oneshot::Sender<Greeting>) {
        let greeted = self.greeting().await.unwrap_or(Greeting::Lost);
        let is_ready = matches!(greeted, Greeting::Ready);
        let _ = greeting.send(greeted);
        let said_empty = if is_ready {
            self.listen().await
        } else {
            // Whatever it is, it is not our shim: it may not even heed its pipes.
            let _ = pidfd::kill(&self.shared.shim);
            false
        };
        // An error here means that epoll itself is broken: reaping below then waits a moment for a
        // shim whose pipes are closed.
        drop(self.pidfd.readable().await);
        if let Err(error) = orphans::reap(&mut self.child) {
            tracing::warn!(instance = self.instance, %error, "the shim's exit status was lost");
        }
        if !said_empty && self.shared.opened.load(Ordering::Acquire) {
            self.emit(ProcessEvent::ShimGone).await;
            self.shared.set(Emptiness::Unknown);
            self.clear().await;
        }
        if let Some(directory) = &self.cgroup {
            cgroup::remove(directory);
        }
        self.shared.set(Emptiness::Empty);
        self.emit(ProcessEvent::TreeEmpty).await;
    }

    async fn greeting(&mut self) -> io::Result<Greeting> {
        let (tag, length) = self.frame().await?;
        let length = usize::try_from(length).unwrap_or(usize::MAX);
        if tag != wire::HELLO || length > wire::VERSION_BYTES_MAX {
            return Ok(Greeting::Lost);
        }
        let mut version = vec![0; length];
        self.status.read_exact(&mut version).await?;
        if version != env!("CARGO_PKG_VERSION").as_bytes() {
            return Ok(Greeting::Version(String::from_utf8_lossy(&version).into_owned()));
        }
        let (tag, _) = self.frame().await?;
        Ok(if tag == wire::READY { Greeting::Ready } else { Greeting::Lost })
    }

    /// Passes events on until the shim says that the tree is empty (true) or says no more.
    async fn listen(&mut self) -> bool {
        while let Ok((tag, number)) = self.frame().await {
            let failed = |stage| ProcessEvent::ExecFailed { stage, errno: number };
            let event = match tag {
                wire::STARTED => match u32::try_from(number) {
                    Ok(pid) => ProcessEvent::Started { pid },
                    Err(_) => return false,
                },
                wire::CWD_FAILED => failed(StartStage::Directory),
                wire::CGROUP_FAILED => failed(StartStage::Cgroup),
                wire::SANDBOX_FAILED => failed(StartStage::Sandbox),
                wire::EXEC_FAILED => failed(StartStage::Exec),
                wire::EXITED => ProcessEvent::Exited(AgentExit::Code(number)),
                wire::SIGNALLED => ProcessEvent::Exited(AgentExit::Signal(number)),
                wire::EMPTY => return true,
                _ => return false,
            };
            self.emit(event).await;
        }
        false
    }

    async fn frame(&mut self) -> io::Result<(u8, i32)> {
        let mut frame = [0; wire::FRAME_BYTES];
        self.status.read_exact(&mut frame).await?;
        Ok(wire::parse_frame(frame))
    }

    /// Nobody may be listening any more: the process was dropped.
    async fn emit(&self, event: ProcessEvent) {
        let _ = self.events.send(event).await;
    }

    /// Kills what a dead shim left, until nothing is found and nothing can hide.
    async fn clear(&self) {
        let mut again = CLEAR_AGAIN;
        loop {
            let (instance, directory) = (self.instance.clone(), self.cgroup.clone());
            let pass = move || clear_pass(&instance, directory.as_deref());
            // A pass that panicked found out nothing.
            let found = tokio::task::spawn_blocking(pass).await.unwrap_or(Emptiness::Unknown);
            if found == Emptiness::Empty {
                return;
            }
            self.shared.set(found);
            tokio::time::sleep(again).await;
            again = (again * 2).min(CLEAR_AGAIN_MAX);
        }
    }
}

fn clear_pass(instance: &str, directory: Option<&Path>) -> Emptiness {
    let is_ours = |mark: &str| mark == instance;
    let populated = directory.map(|directory| {
        let _ = cgroup::kill(directory);
        cgroup::is_populated(directory)
    });
    let marked = leftovers::kill_marked(is_ours);
    let orphans = orphans::clear(is_ours);
    match populated {
        Some(Ok(false)) if marked.killed.is_empty() => return Emptiness::Empty,
        Some(Ok(true)) => return Emptiness::Populated,
        Some(Ok(false) | Err(_)) | None => {}
    }
    if !marked.killed.is_empty() || !orphans.killed.is_empty() {
        Emptiness::Populated
    } else if orphans::come_here() && orphans.untouched.is_empty() {
        // Whatever is left of the tree would be a child of this process by now.
        Emptiness::Empty
    } else {
        Emptiness::Unknown
    }
}
