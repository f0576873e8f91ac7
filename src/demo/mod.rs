//! `spawnlet demo`: the main job on one screen, offline, with the program itself as everything that
//! takes part: daemon, command line, agent and MCP client.
//!
//! It is a user of the daemon, not a part of it: it starts the built program as children, reads what
//! they print, and names nothing of the library but its own arguments. So what it shows is what a
//! user gets, and it is a test of the whole as well.
//!
//! Invariants: every step is checked, and the first that comes out differently ends it; nothing is
//! written outside of the scratch directory; however it ends (but by SIGKILL), the daemon is stopped
//! and no process of its store is left, or the exit code is not 0. Nothing polls: what is waited for
//! is a line, an update, the end of a process, each with a bound.

mod client;
mod failure;
mod process;
mod scratch;
mod screen;
mod story;

use std::io::{self, Write as _};
use std::process::ExitCode;

use tokio::signal::unix::{SignalKind, signal};

use crate::cli::DemoOptions;
use failure::Failure;
use process::{Daemon, Programs};
use scratch::Scratch;
use screen::Screen;

/// The lines of the daemon's log that are shown after a failure.
const LOG_LINES: usize = 20;

/// What the demonstration works with.
struct Stage {
    screen: Screen,
    programs: Programs,
    scratch: Scratch,
    /// None before its start and after its end.
    daemon: Option<Daemon>,
}

/// Shows it all; gives the process's exit code.
#[must_use]
pub fn run(options: DemoOptions) -> ExitCode {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let outcome = match runtime {
        Ok(runtime) => runtime.block_on(perform(options)),
        Err(source) => Err(Failure::system("the runtime")(source)),
    };
    match outcome {
        Ok(code) => code,
        Err(failure) => {
            tell(&format!("error: {failure}"));
            ExitCode::FAILURE
        }
    }
}

/// # Errors
///
/// What kept it from beginning. What goes wrong later is told here.
async fn perform(options: DemoOptions) -> Result<ExitCode, Failure> {
    let mut interruption = Interruption::new()?;
    let programs = Programs::find()?;
    let scratch = Scratch::new()?;
    let mut stage = Stage { screen: Screen::stdout(), programs, scratch, daemon: None };
    // A story that is dropped kills the program that it runs; the daemon is the stage's.
    let outcome = tokio::select! {
        biased;
        name = interruption.next() => Err(Failure::Interrupted(name)),
        outcome = Box::pin(story::play(&mut stage)) => outcome,
    };
    let is_kept =
        options.keep || matches!(outcome, Err(Failure::Unexpected { .. } | Failure::System { .. }));
    let outcome = match outcome {
        Ok(()) => {
            clear(&mut stage, is_kept).await.and_then(|()| Ok(story::close(&mut stage, is_kept)?))
        }
        Err(failure) => {
            tell(&format!("\nerror: {failure}"));
            clear_after_failure(&mut stage, is_kept).await;
            return Ok(ExitCode::FAILURE);
        }
    };
    outcome.map(|()| ExitCode::SUCCESS)
}

/// Stops the daemon if it runs, looks that no process is left, and removes the directory.
async fn clear(stage: &mut Stage, is_kept: bool) -> Result<(), Failure> {
    let stopped = match stage.daemon.take() {
        Some(mut daemon) => daemon.stop().await.map(|_| ()),
        None => Ok(()),
    };
    let left = match stage.scratch.store_id() {
        Some(id) => process::left(&id),
        None => Vec::new(),
    };
    if !left.is_empty() {
        return Err(Failure::unexpected("the look at what is left", "no process", left.join(", ")));
    }
    stopped?;
    if is_kept { Ok(()) } else { stage.scratch.remove() }
}

async fn clear_after_failure(stage: &mut Stage, is_kept: bool) {
    if is_kept {
        let log = std::fs::read_to_string(stage.scratch.log()).unwrap_or_default();
        let lines: Vec<&str> = log.lines().collect();
        if !lines.is_empty() {
            let last = lines.iter().skip(lines.len().saturating_sub(LOG_LINES));
            tell("the end of the daemon's log:");
            last.for_each(|line| tell(line));
        }
    }
    let path = stage.scratch.path().display().to_string();
    match clear(stage, is_kept).await {
        Ok(()) if is_kept => tell(&format!("no process is left; what it wrote is in {path}")),
        Ok(()) => tell("no process is left, and no file"),
        Err(failure) => tell(&format!("error: {failure}\nwhat it wrote is in {path}")),
    }
}

/// The signals that ask a program to end.
struct Interruption {
    interrupt: tokio::signal::unix::Signal,
    terminate: tokio::signal::unix::Signal,
    hangup: tokio::signal::unix::Signal,
}

impl Interruption {
    fn new() -> Result<Self, Failure> {
        let listen = |kind| signal(kind).map_err(Failure::system("listening for signals"));
        Ok(Self {
            interrupt: listen(SignalKind::interrupt())?,
            terminate: listen(SignalKind::terminate())?,
            hangup: listen(SignalKind::hangup())?,
        })
    }

    /// Its name.
    async fn next(&mut self) -> &'static str {
        // Cancel-safe: a signal that was not taken stays.
        tokio::select! {
            _ = self.interrupt.recv() => "SIGINT",
            _ = self.terminate.recv() => "SIGTERM",
            _ = self.hangup.recv() => "SIGHUP",
        }
    }
}

/// On standard error; nothing can be done if that fails.
fn tell(text: &str) {
    let _ = writeln!(io::stderr(), "{text}");
}
