//! The programs that the demonstration runs: the daemon, the verbs of the command line, and the look
//! at what they leave behind.
//!
//! The demonstration is a user of the daemon and no part of it. So it starts the program as a user
//! does, which elsewhere only `runtime` may, and signals nothing but its own child. Whatever becomes
//! of it, the daemon goes with it: orderly by [`Daemon::stop`], else killed when it is dropped, and
//! then every agent's tree ends with the shim's lifeline. None of the user's own `SPAWNLET_`
//! variables reaches a program, so no daemon of the user's is asked.

use std::path::PathBuf;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use futures::StreamExt as _;
use rustix::process::{Pid, Signal, kill_process};
use tokio::process::{Child, ChildStdout, Command};
use tokio_util::codec::{FramedRead, LinesCodec};

use super::failure::Failure;
use super::scratch::Scratch;

/// The parent of every agent; the daemon looks for it beside itself.
const SHIM: &str = "spawnlet-shim";
/// What the daemon says when it is ready.
const READY: &str = "listening on ";
/// How long one program may take; on a busy machine a whole step takes a fraction of a second.
pub(super) const STEP_MAX: Duration = Duration::from_secs(60);
/// How long a daemon that was told to stop may take: twice what it gives its agents.
const STOP_MAX: Duration = Duration::from_secs(30);
/// How long a process whose daemon was killed may still be there: its shim needs 40 ms.
const LEFT_SECONDS_MAX: i64 = 5;
/// The longest line that is read of a program while it runs.
const LINE_MAX: usize = 4096;

/// The program.
#[derive(Debug)]
pub(super) struct Programs {
    spawnlet: PathBuf,
}

/// What a verb did.
#[derive(Debug)]
pub(super) struct Ran {
    pub(super) status: ExitStatus,
    pub(super) out: String,
    pub(super) err: String,
}

impl Programs {
    /// This program itself, with the shim beside it.
    pub(super) fn find() -> Result<Self, Failure> {
        let own = std::env::current_exe()
            .and_then(std::fs::canonicalize)
            .map_err(Failure::system("the path of this program"))?;
        let shim = own.with_file_name(SHIM);
        if !shim.is_file() {
            return Err(Failure::Missing(format!(
                "{} is missing. The daemon starts every agent through it: build both programs, by \
                 `cargo build --bins` or `cargo install --path .`",
                shim.display()
            )));
        }
        Ok(Self { spawnlet: own })
    }

    #[expect(
        clippy::disallowed_methods,
        reason = "the demonstration runs the program as its user does; invariant 5 says so"
    )]
    fn command(&self, scratch: &Scratch, arguments: &[&str]) -> Command {
        let mut command = Command::new(&self.spawnlet);
        command.args(arguments).current_dir(scratch.path());
        for (name, _) in std::env::vars_os() {
            if name.to_string_lossy().starts_with("SPAWNLET_") {
                command.env_remove(name);
            }
        }
        command
            .env("XDG_STATE_HOME", scratch.state())
            .env("XDG_CONFIG_HOME", scratch.config())
            .stdin(Stdio::null())
            // A group of its own: Ctrl-C is for us. We end a verb, and stop the daemon in order.
            .process_group(0)
            .kill_on_drop(true);
        command
    }

    /// Runs a verb to its end.
    ///
    /// # Cancel safety
    ///
    /// Dropped, it kills the program.
    pub(super) async fn run(&self, scratch: &Scratch, arguments: &[&str]) -> Result<Ran, Failure> {
        let line = || format!("spawnlet {}", arguments.join(" "));
        let output = self.command(scratch, arguments).output();
        let output = tokio::time::timeout(STEP_MAX, output)
            .await
            .map_err(|_| {
                Failure::unexpected(line(), "an end", format!("none within {STEP_MAX:?}"))
            })?
            .map_err(Failure::system(line()))?;
        Ok(Ran {
            status: output.status,
            out: String::from_utf8_lossy(&output.stdout).into_owned(),
            err: String::from_utf8_lossy(&output.stderr).into_owned(),
        })
    }

    /// Runs a verb that goes on until it has said a line with all these parts.
    ///
    /// # Cancel safety
    ///
    /// Dropped, it kills the program.
    pub(super) async fn run_until(
        &self,
        scratch: &Scratch,
        arguments: &[&str],
        parts: &[&str],
    ) -> Result<(), Failure> {
        let line = || format!("spawnlet {}", arguments.join(" "));
        let mut command = self.command(scratch, arguments);
        let mut child = command
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .map_err(Failure::system(line()))?;
        let Some(pipe) = child.stdout.take() else { return Ok(()) };
        let mut lines = FramedRead::new(pipe, LinesCodec::new_with_max_length(LINE_MAX));
        let seen = async {
            while let Some(Ok(line)) = lines.next().await {
                if parts.iter().all(|part| line.contains(part)) {
                    return true;
                }
            }
            false
        };
        let is_seen = tokio::time::timeout(STEP_MAX, seen).await.unwrap_or(false);
        child.kill().await.map_err(Failure::system(line()))?;
        if is_seen {
            return Ok(());
        }
        Err(Failure::unexpected(line(), format!("a line with {}", parts.join(", ")), "none"))
    }

    /// Starts the daemon, which is not ready yet.
    pub(super) fn serve(&self, scratch: &Scratch, arguments: &[&str]) -> Result<Daemon, Failure> {
        let doing = || Failure::system("the daemon's start");
        let log = std::fs::File::create(scratch.log()).map_err(doing())?;
        let mut child = self
            .command(scratch, arguments)
            .stdout(Stdio::piped())
            .stderr(log)
            .spawn()
            .map_err(doing())?;
        let lines = child
            .stdout
            .take()
            .map(|pipe| FramedRead::new(pipe, LinesCodec::new_with_max_length(LINE_MAX)));
        Ok(Daemon { child, lines })
    }
}

/// The running daemon.
#[derive(Debug)]
pub(super) struct Daemon {
    child: Child,
    /// Kept open: a daemon whose standard output is closed could fail to say something.
    lines: Option<FramedRead<ChildStdout, LinesCodec>>,
}

impl Daemon {
    /// Waits until it is ready and gives its address, `http://ADDRESS:PORT`.
    pub(super) async fn ready(&mut self) -> Result<String, Failure> {
        let unexpected = |came: String| {
            Failure::unexpected("the daemon's start", format!("a line \"{READY}http://…\""), came)
        };
        let next = async {
            match &mut self.lines {
                Some(lines) => lines.next().await,
                None => None,
            }
        };
        match tokio::time::timeout(STEP_MAX, next).await {
            Ok(Some(Ok(line))) => match line.strip_prefix(READY) {
                Some(address) => Ok(address.to_owned()),
                None => Err(unexpected(line)),
            },
            Ok(Some(Err(error))) => Err(unexpected(error.to_string())),
            Ok(None) => {
                // Its end is near, and is what the reader wants to know.
                let status = tokio::time::timeout(STEP_MAX, self.child.wait()).await;
                Err(unexpected(match status {
                    Ok(Ok(status)) => format!("the daemon ended with {status}"),
                    Ok(Err(_)) | Err(_) => "the end of its standard output".to_owned(),
                }))
            }
            Err(_) => Err(unexpected(format!("nothing within {STEP_MAX:?}"))),
        }
    }

    /// The process's id; none once it has ended.
    pub(super) fn pid(&self) -> Option<u32> {
        self.child.id()
    }

    /// Tells it to stop and waits until it has; one that does not is killed.
    pub(super) async fn stop(&mut self) -> Result<ExitStatus, Failure> {
        let step = "SIGTERM to the daemon";
        // Not reaped yet, so the id is still its own.
        if let Some(pid) = self.child.id().and_then(|pid| Pid::from_raw(pid.try_into().ok()?)) {
            kill_process(pid, Signal::TERM).map_err(|error| Failure::system(step)(error.into()))?;
        }
        match tokio::time::timeout(STOP_MAX, self.child.wait()).await {
            Ok(status) => status.map_err(Failure::system(step)),
            Err(_) => {
                self.child.kill().await.map_err(Failure::system("SIGKILL to the daemon"))?;
                Err(Failure::unexpected(step, "its end", format!("none within {STOP_MAX:?}")))
            }
        }
    }
}

/// The processes of this store's agents that are there and do not go by themselves, each as
/// `PID PROGRAM`. The mark is in the environment of a shim and of all that it started. Blocks.
pub(super) fn left(store_id: &str) -> Vec<String> {
    // The first that stays is enough to know: the second look finds it.
    let _ = marked(store_id).into_iter().all(ends);
    let program = |pid: u32| {
        let path = std::fs::read_link(format!("/proc/{pid}/exe")).unwrap_or_default();
        format!("{pid} {}", path.display())
    };
    marked(store_id).into_iter().map(program).collect()
}

fn marked(store_id: &str) -> Vec<u32> {
    let mark = format!("SPAWNLET_INSTANCE={store_id}.");
    let has_mark = |pid: &u32| {
        let environment = std::fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        environment.split(|byte| *byte == 0).any(|entry| entry.starts_with(mark.as_bytes()))
    };
    std::fs::read_dir("/proc")
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .filter(has_mark)
        .collect()
}

/// Whether a process, which may be nobody's child, ends in time.
#[cfg(target_os = "linux")]
fn ends(pid: u32) -> bool {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    use rustix::process::{PidfdFlags, pidfd_open};

    let Some(pid) = pid.try_into().ok().and_then(Pid::from_raw) else { return true };
    // No descriptor: it is gone.
    let Ok(descriptor) = pidfd_open(pid, PidfdFlags::empty()) else { return true };
    let timeout = Timespec { tv_sec: LEFT_SECONDS_MAX, tv_nsec: 0 };
    // Readable once the process has ended (pidfd_open(2)).
    let mut descriptors = [PollFd::new(&descriptor, PollFlags::IN)];
    poll(&mut descriptors, Some(&timeout)).is_ok_and(|ready| ready > 0)
}

/// Without /proc nothing was found to wait for.
#[cfg(not(target_os = "linux"))]
fn ends(_pid: u32) -> bool {
    true
}
