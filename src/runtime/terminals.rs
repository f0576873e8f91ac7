//! Programs that an agent asks the daemon to run for it, and what they write.
//!
//! Each runs under a shim of its own, like an agent: with a process group of its own, and a tree
//! that is known to be empty when it is. The owner closes the set when the agent's own tree is
//! gone, and waits with [`Terminals::gone`] until theirs are too: only then may it tell that nothing
//! of the session runs.
//!
//! Invariants: no more than [`TERMINALS_MAX`] at a time; of each output the end is kept, whole
//! characters; one that is released, or whose set is closed or dropped, is killed with its whole
//! tree. Absent: a pseudo-terminal, standard input (it is at its end), a shell, records: a tree
//! whose daemon dies is killed by its shim, and the next daemon clears what carries the mark.

use std::collections::{BTreeMap, VecDeque};
use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::io::AsyncReadExt as _;
use tokio::sync::{oneshot, watch};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::process::AgentExit;
use super::sandbox::Sandbox;
use super::{LaunchSpec, Launcher, Process, ProcessEvent};

/// How many terminals a session may have that are not released.
pub const TERMINALS_MAX: usize = 16;
/// How much of a terminal's output is kept at most.
pub const OUTPUT_BYTES_MAX: usize = 64 * 1024;
/// An order to kill is repeated so often until the tree is empty.
const KILL_AGAIN: Duration = Duration::from_secs(1);
/// How long the end of the output is waited for once the tree is empty: a stranger may hold it.
const DRAIN: Duration = Duration::from_secs(1);

/// Why a terminal cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The session has as many as it may.
    #[error("the session has {TERMINALS_MAX} terminals already; release one first")]
    TooMany,
    /// No terminal has this id, or has it any more.
    #[error("there is no such terminal: it was released, or its turn is over")]
    Unknown,
    /// It was killed before it ran, or the agent is being stopped.
    #[error("it was killed before it was started")]
    Killed,
    /// It could not be started.
    #[error("it could not be started: {0}")]
    Start(String),
}

/// What is to run.
#[derive(Debug)]
pub struct Command {
    /// The absolute path of the program, and its arguments.
    pub argv: Vec<OsString>,
    /// Where.
    pub cwd: PathBuf,
    /// Its whole environment, but for the mark.
    pub env: BTreeMap<OsString, OsString>,
    /// What the kernel holds it to: the same as its agent.
    pub sandbox: Option<Sandbox>,
}

/// What a terminal wrote, and whether it has ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Output {
    /// The end of it.
    pub text: String,
    /// Whether there was more before it.
    pub is_cut: bool,
    /// How it ended, if it has.
    pub exit: Option<AgentExit>,
}

#[derive(Debug)]
struct Terminal {
    tail: Mutex<Tail>,
    /// Set once nothing of it is left and all that it wrote was read.
    exit: watch::Sender<Option<AgentExit>>,
    kill: CancellationToken,
}

/// A place for a terminal that is about to be started; given back if it is not.
#[derive(Debug)]
pub struct Place {
    id: String,
    terminal: Arc<Terminal>,
    alive: Alive,
    inner: Arc<Inner>,
    is_taken: bool,
}

/// The terminals of one agent's process. A cheap handle.
#[derive(Clone, Debug)]
pub struct Terminals {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    launcher: Launcher,
    state: Mutex<State>,
    drivers: Mutex<JoinSet<()>>,
    alive: watch::Sender<usize>,
}

#[derive(Debug, Default)]
struct State {
    next: u64,
    is_closed: bool,
    open: BTreeMap<String, Arc<Terminal>>,
}

// What the locks hold is whole at every point where a panic could come.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Terminals {
    /// None yet.
    #[must_use]
    pub fn new(launcher: Launcher) -> Self {
        let (state, drivers) = (Mutex::default(), Mutex::default());
        Self { inner: Arc::new(Inner { launcher, state, drivers, alive: watch::channel(0).0 }) }
    }

    /// Takes a place for a terminal that keeps at most `output_bytes_max` of its output. From here
    /// on it is killed with the others.
    ///
    /// # Errors
    ///
    /// [`Error::TooMany`], [`Error::Killed`].
    pub fn reserve(&self, output_bytes_max: usize) -> Result<Place, Error> {
        let mut state = lock(&self.inner.state);
        if state.is_closed {
            return Err(Error::Killed);
        }
        // Those that are released and not gone yet count too: they are processes.
        if state.open.len().max(*self.inner.alive.borrow()) >= TERMINALS_MAX {
            return Err(Error::TooMany);
        }
        state.next += 1;
        let id = format!("terminal-{}", state.next);
        let terminal = Arc::new(Terminal {
            tail: Mutex::new(Tail::new(output_bytes_max.min(OUTPUT_BYTES_MAX))),
            exit: watch::channel(None).0,
            kill: CancellationToken::new(),
        });
        state.open.insert(id.clone(), Arc::clone(&terminal));
        let alive = Alive::new(&self.inner.alive);
        Ok(Place { id, terminal, alive, inner: Arc::clone(&self.inner), is_taken: false })
    }

    /// What a terminal wrote.
    ///
    /// # Errors
    ///
    /// [`Error::Unknown`].
    pub fn output(&self, id: &str) -> Result<Output, Error> {
        let terminal = self.find(id)?;
        let exit = *terminal.exit.borrow();
        let (text, is_cut) = lock(&terminal.tail).text();
        Ok(Output { text, is_cut, exit })
    }

    /// Waits until a terminal has ended.
    ///
    /// # Errors
    ///
    /// [`Error::Unknown`]; [`Error::Killed`] if it never ran.
    ///
    /// # Cancel safety
    ///
    /// Safe.
    pub async fn wait(&self, id: &str) -> Result<AgentExit, Error> {
        let mut exit = self.find(id)?.exit.subscribe();
        let ended = exit.wait_for(Option::is_some).await.map_err(|_| Error::Killed)?;
        (*ended).ok_or(Error::Killed)
    }

    /// Kills a terminal's tree; it stays to be asked for its output.
    ///
    /// # Errors
    ///
    /// [`Error::Unknown`].
    pub fn kill(&self, id: &str) -> Result<(), Error> {
        self.find(id)?.kill.cancel();
        Ok(())
    }

    /// Kills a terminal's tree and forgets it.
    ///
    /// # Errors
    ///
    /// [`Error::Unknown`].
    pub fn release(&self, id: &str) -> Result<(), Error> {
        let terminal = lock(&self.inner.state).open.remove(id).ok_or(Error::Unknown)?;
        terminal.kill.cancel();
        Ok(())
    }

    /// Kills them all; they stay to be asked for their output.
    pub fn kill_all(&self) {
        for terminal in lock(&self.inner.state).open.values() {
            terminal.kill.cancel();
        }
    }

    /// Kills them all and forgets them.
    pub fn release_all(&self) {
        for terminal in std::mem::take(&mut lock(&self.inner.state).open).values() {
            terminal.kill.cancel();
        }
    }

    /// Kills them all; no more are started.
    pub fn close(&self) {
        lock(&self.inner.state).is_closed = true;
        self.kill_all();
    }

    /// Waits until no process of any terminal is left.
    ///
    /// # Cancel safety
    ///
    /// Safe.
    pub async fn gone(&self) {
        let mut alive = self.inner.alive.subscribe();
        // The sender lives as long as this does.
        let _ = alive.wait_for(|count| *count == 0).await;
    }

    fn find(&self, id: &str) -> Result<Arc<Terminal>, Error> {
        lock(&self.inner.state).open.get(id).cloned().ok_or(Error::Unknown)
    }
}

impl Place {
    /// Starts a program here; the terminal's id.
    ///
    /// # Errors
    ///
    /// [`Error::Killed`], [`Error::Start`].
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the place is given back and what was started is killed.
    pub async fn start(mut self, command: Command) -> Result<String, Error> {
        let (sender, started) = oneshot::channel();
        let driver = Driver {
            launcher: self.inner.launcher.clone(),
            terminal: Arc::clone(&self.terminal),
            alive: self.alive.take(),
        };
        {
            let mut drivers = lock(&self.inner.drivers);
            while drivers.try_join_next().is_some() {}
            drivers.spawn(driver.run(command, sender));
        }
        started.await.unwrap_or(Err(Error::Killed))?;
        self.is_taken = true;
        Ok(self.id.clone())
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if !self.is_taken {
            self.terminal.kill.cancel();
            lock(&self.inner.state).open.remove(&self.id);
        }
    }
}

/// Counts as a tree that may have processes.
#[derive(Debug)]
struct Alive(Option<watch::Sender<usize>>);

impl Alive {
    fn new(count: &watch::Sender<usize>) -> Self {
        count.send_modify(|count| *count += 1);
        Self(Some(count.clone()))
    }

    const fn take(&mut self) -> Self {
        Self(self.0.take())
    }

    /// It stays counted for good: nobody can say that it is gone.
    fn forget(mut self) {
        self.0 = None;
    }
}

impl Drop for Alive {
    fn drop(&mut self) {
        if let Some(count) = &self.0 {
            count.send_modify(|count| *count -= 1);
        }
    }
}

/// The task of one terminal.
struct Driver {
    launcher: Launcher,
    terminal: Arc<Terminal>,
    alive: Alive,
}

impl Driver {
    async fn run(self, command: Command, started: oneshot::Sender<Result<(), Error>>) {
        let Self { launcher, terminal, alive } = self;
        if terminal.kill.is_cancelled() {
            let _ = started.send(Err(Error::Killed));
            return;
        }
        let instance = launcher.new_instance();
        let Command { argv, cwd, env, sandbox } = command;
        let spec = LaunchSpec { argv, cwd, env, instance, sandbox };
        let process = match launcher.spawn_joined(spec).await {
            Ok(process) => process,
            Err(error) => {
                let _ = started.send(Err(Error::Start(error.to_string())));
                return;
            }
        };
        match follow(process, &terminal, started).await {
            Some(exit) => {
                drop(alive);
                terminal.exit.send_replace(Some(exit));
            }
            None => alive.forget(),
        }
    }
}

/// Runs a process that stands at its gate to the end of its tree. `None` if that was not told.
async fn follow(
    mut process: Process,
    terminal: &Terminal,
    started: oneshot::Sender<Result<(), Error>>,
) -> Option<AgentExit> {
    // Its input is at its end.
    drop(process.take_stdin());
    let (mut events, mut output) = (process.events()?, process.take_stdout()?);
    // A shim that is gone tells so by its events.
    let _ = process.open_gate();
    let (mut started, mut exit) = (Some(started), None);
    let mut tell = |outcome| {
        if let Some(started) = started.take() {
            // Nobody waits any more: the place was given up, and with it comes an order to kill.
            let _ = started.send(outcome);
        }
    };
    let mut again = Duration::ZERO;
    let mut is_open = true;
    let mut buffer = vec![0; 16 * 1024];
    let kill = terminal.kill.clone();
    loop {
        let killing = async {
            kill.cancelled().await;
            tokio::time::sleep(again).await;
        };
        // All of them lose nothing if another branch wins.
        tokio::select! {
            event = events.recv() => match event? {
                ProcessEvent::Started { .. } => tell(Ok(())),
                ProcessEvent::ExecFailed { errno, .. } => {
                    let error = std::io::Error::from_raw_os_error(errno);
                    tell(Err(Error::Start(error.to_string())));
                }
                ProcessEvent::Exited(how) => exit = Some(how),
                ProcessEvent::ShimGone => {}
                ProcessEvent::TreeEmpty => break,
            },
            count = output.read(&mut buffer), if is_open => match count {
                Ok(0) | Err(_) => is_open = false,
                Ok(count) => lock(&terminal.tail).take(&buffer[..count]),
            },
            () = killing => {
                process.kill_tree();
                again = KILL_AGAIN;
            }
        }
    }
    tell(Err(Error::Killed));
    let rest = async {
        while let Ok(count @ 1..) = output.read(&mut buffer).await {
            lock(&terminal.tail).take(&buffer[..count]);
        }
    };
    let _ = tokio::time::timeout(DRAIN, rest).await;
    // A shim that died tells no exit; what it had was killed.
    Some(exit.unwrap_or(AgentExit::Signal(rustix::process::Signal::KILL.as_raw())))
}

/// The end of an output.
#[derive(Debug)]
struct Tail {
    bytes: VecDeque<u8>,
    bytes_max: usize,
    is_cut: bool,
}

impl Tail {
    const fn new(bytes_max: usize) -> Self {
        Self { bytes: VecDeque::new(), bytes_max, is_cut: false }
    }

    fn take(&mut self, new: &[u8]) {
        let kept = &new[new.len().saturating_sub(self.bytes_max)..];
        let over = (self.bytes.len() + kept.len()).saturating_sub(self.bytes_max);
        self.is_cut |= over > 0 || kept.len() < new.len();
        self.bytes.drain(..over);
        self.bytes.extend(kept);
    }

    /// As text that begins with a whole character, and whether something was cut off before it.
    /// What is no UTF-8 is shown as such, within the same bound.
    fn text(&self) -> (String, bool) {
        let (front, back) = self.bytes.as_slices();
        let mut bytes = Vec::with_capacity(self.bytes.len());
        bytes.extend_from_slice(front);
        bytes.extend_from_slice(back);
        let is_within = |byte: &&u8| **byte & 0b1100_0000 == 0b1000_0000;
        // A character has at most four bytes: three of a cut one may be left.
        let broken =
            if self.is_cut { bytes.iter().take(3).take_while(is_within).count() } else { 0 };
        let text = String::from_utf8_lossy(&bytes[broken..]);
        let over = text.len().saturating_sub(self.bytes_max);
        let from = text.ceil_char_boundary(over);
        (text[from..].to_owned(), self.is_cut || from > 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tail(bytes_max: usize, pieces: &[&[u8]]) -> (String, bool) {
        let mut tail = Tail::new(bytes_max);
        for piece in pieces {
            tail.take(piece);
        }
        tail.text()
    }

    #[test]
    fn the_end_of_an_output_is_kept_in_whole_characters() {
        assert_eq!(tail(8, &[b"abc", b"def"]), ("abcdef".into(), false));
        assert_eq!(tail(4, &[b"abc", b"def"]), ("cdef".into(), true));
        assert_eq!(tail(4, &[b"abcdefgh"]), ("efgh".into(), true));
        assert_eq!(tail(0, &[b"abc"]), (String::new(), true));
        let text = "äöü€𝄞";
        for bytes_max in 0..=text.len() {
            for split in 0..=text.len() {
                let (front, back) = text.as_bytes().split_at(split);
                let (kept, is_cut) = tail(bytes_max, &[front, back]);
                assert!(text.ends_with(&kept) && kept.len() <= bytes_max, "{bytes_max} {kept}");
                assert!(kept.len() + 4 > bytes_max && is_cut == (bytes_max < text.len()));
            }
        }
        // Every byte becomes three, and is bounded again.
        let (kept, is_cut) = tail(6, &[&[0xff; 6]]);
        assert_eq!((kept.as_str(), is_cut), ("\u{fffd}\u{fffd}", true));
    }
}
