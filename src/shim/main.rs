//! `spawnlet-shim`: the parent of one agent, and of whatever the agent starts.
//!
//! It exists because a process group is not enough: agents run their tools in sessions of their
//! own. As a child subreaper the shim inherits every descendant whose parent has died, so its tree
//! is empty exactly when it has no child left (wait(2): ECHILD), and no descendant can hide.
//!
//! In order: a session of its own, subreaper, no new privileges, no core files, no foreign
//! descriptors; then it reads what to start and waits at the gate. The end of the gate pipe means
//! that the daemon did not record it: it exits and has started nothing. After the gate it starts
//! the agent in a process group of its own, without a shell, in a sandbox if one is asked for
//! (`landlock`), lets go of the agent's pipes, and
//! waits: for its children, and for the daemon. The end of the lifeline means that the daemon is
//! gone: then the tree is killed at once.
//!
//! Invariants: the agent's arguments and environment are never in the shim's own (they come over
//! the gate pipe); nothing outside the tree is ever signalled; the tree is reported empty only when
//! it is. Absent on purpose: relaying (the pipes go straight to the agent), logging, time limits
//! (the daemon's), threads, and every library but std and rustix: it has to stay below 1 MiB of
//! private memory (measured beside a running agent: 136 KiB private, 283 KiB with its share of what
//! three shims have in common; release build, x86-64).

#![allow(unsafe_code, reason = "fork, exec and inherited descriptors have no safe form")]

#[allow(dead_code, reason = "the daemon's half of the protocol is not used here")]
#[path = "../runtime/wire.rs"]
mod wire;

#[cfg(target_os = "linux")]
mod landlock;
mod start;
mod tree;

use std::io::Write;
use std::os::fd::{AsFd, FromRawFd, OwnedFd};
use std::process::ExitCode;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Pid, Signal, WaitOptions};
use rustix::time::{ClockId, clock_gettime};

/// How long descendants of a dead agent that still hold its stdout may go on writing.
const DRAIN_MS: i64 = 250;
/// How often it is looked whether they still hold it.
const DRAIN_LOOK_MS: i64 = 10;
/// How often killing is repeated while something is left, beside each death.
const KILL_AGAIN_MS: i64 = 20;
/// EX_USAGE of sysexits.h: started by hand.
const EXIT_USAGE: u8 = 64;

fn main() -> ExitCode {
    if std::env::args_os().nth(1).is_some_and(|argument| argument == "--version") {
        let text = concat!("spawnlet-shim ", env!("CARGO_PKG_VERSION"), "\n");
        return match std::io::stdout().write_all(text.as_bytes()) {
            Ok(()) => ExitCode::SUCCESS,
            Err(_) => ExitCode::FAILURE,
        };
    }
    let Some(pipes) = Pipes::inherited() else {
        let _ = std::io::stderr().write_all(b"spawnlet-shim is started by spawnlet only\n");
        return ExitCode::from(EXIT_USAGE);
    };
    match supervise(pipes) {
        Ok(()) => ExitCode::SUCCESS,
        // The daemon reads the end of the status pipe without EMPTY as "the shim failed", and
        // clears what may be left: there is nobody here to tell more to.
        Err(_) => ExitCode::FAILURE,
    }
}

/// The pipes to the daemon.
struct Pipes {
    lifeline: OwnedFd,
    gate: OwnedFd,
    status: OwnedFd,
}

impl Pipes {
    fn inherited() -> Option<Self> {
        let take = |number| {
            // SAFETY: the descriptor is only asked about, and taken over if it is open: nothing
            // else in this process knows of it.
            let fd = unsafe { OwnedFd::from_raw_fd(number) };
            match rustix::io::fcntl_setfd(&fd, rustix::io::FdFlags::CLOEXEC) {
                Ok(()) => Some(fd),
                Err(_) => {
                    std::mem::forget(fd);
                    None
                }
            }
        };
        Some(Self {
            lifeline: take(wire::LIFELINE_FD)?,
            gate: take(wire::GATE_FD)?,
            status: take(wire::STATUS_FD)?,
        })
    }
}

fn supervise(pipes: Pipes) -> Result<(), Errno> {
    start::isolate()?;
    let deaths = start::watch_children()?;
    greet(&pipes.status)?;
    let Some(launch) = start::read_launch(&pipes.gate)? else {
        tell(&pipes.status, wire::EMPTY, 0);
        return Ok(());
    };
    tell(&pipes.status, wire::READY, 0);
    if !start::wait_for_gate(&pipes.gate)? {
        tell(&pipes.status, wire::EMPTY, 0);
        return Ok(());
    }
    drop(pipes.gate);
    let stdout = tree::pipe_name(1);
    let cgroup = launch.cgroup();
    let (agent, exec) = launch.start()?;
    // From here on the end of the agent's pipes is the agent's and its descendants' alone.
    start::let_go_of_stdio()?;
    let mut shim = Shim {
        status: pipes.status,
        lifeline: Some(pipes.lifeline),
        exec: Some(exec),
        agent,
        agent_gone: false,
        killing: false,
        drain_until_ms: 0,
        tree: tree::Tree { stdout, cgroup },
    };
    while !shim.turn(&deaths)? {}
    shim.tree.remove_cgroup();
    tell(&shim.status, wire::EMPTY, 0);
    Ok(())
}

fn greet(status: &OwnedFd) -> Result<(), Errno> {
    let version = env!("CARGO_PKG_VERSION").as_bytes();
    let length = i32::try_from(version.len()).unwrap_or(0);
    let mut message = wire::frame(wire::HELLO, length).to_vec();
    message.extend_from_slice(version);
    rustix::io::write(status, &message).map(|_| ())
}

/// Tells the daemon; if that is gone, the lifeline says so.
fn tell(status: &OwnedFd, tag: u8, number: i32) {
    let _ = rustix::io::retry_on_intr(|| rustix::io::write(status, &wire::frame(tag, number)));
}

fn now_ms() -> i64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec * 1000 + now.tv_nsec / 1_000_000
}

/// The shim once the agent is forked.
struct Shim {
    status: OwnedFd,
    /// None once the daemon is gone.
    lifeline: Option<OwnedFd>,
    /// The pipe that tells whether the exec succeeded, until it has told.
    exec: Option<OwnedFd>,
    agent: Pid,
    agent_gone: bool,
    /// Whether everything is to die. Never taken back.
    killing: bool,
    drain_until_ms: i64,
    tree: tree::Tree,
}

impl Shim {
    /// Waits for something to happen and does what follows from it; true once the tree is empty.
    fn turn(&mut self, deaths: &OwnedFd) -> Result<bool, Errno> {
        self.wait(deaths)?;
        // Before the deaths: an agent that never got to exec is no agent that exited.
        self.hear_exec();
        if self.reap() {
            return Ok(true);
        }
        self.hear_daemon();
        if self.agent_gone && !self.killing {
            self.killing = now_ms() >= self.drain_until_ms || !self.tree.holds_stdout();
        }
        if self.killing {
            self.tree.kill();
        }
        Ok(false)
    }

    fn wait(&self, deaths: &OwnedFd) -> Result<(), Errno> {
        let mut fds = vec![PollFd::new(deaths, PollFlags::IN)];
        fds.extend(self.lifeline.as_ref().map(|fd| PollFd::new(fd, PollFlags::IN)));
        fds.extend(self.exec.as_ref().map(|fd| PollFd::new(fd, PollFlags::IN)));
        let limit_ms = match (self.killing, self.agent_gone) {
            (true, _) => Some(KILL_AGAIN_MS),
            (false, true) => Some(DRAIN_LOOK_MS),
            (false, false) => None,
        };
        let limit = limit_ms.map(|ms| Timespec { tv_sec: 0, tv_nsec: ms * 1_000_000 });
        match poll(&mut fds, limit.as_ref()) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(error),
        }
        // It never blocks: the pipe is non-blocking. A death after this leaves a new byte.
        let mut bytes = [0_u8; 64];
        while rustix::io::read(deaths, &mut bytes).is_ok_and(|count| count > 0) {}
        Ok(())
    }

    fn hear_exec(&mut self) {
        let Some(exec) = &self.exec else { return };
        let mut frame = [0_u8; wire::FRAME_BYTES];
        match rustix::io::read(exec, &mut frame) {
            Ok(0) => tell(&self.status, wire::STARTED, self.agent.as_raw_nonzero().get()),
            Ok(_) => {
                let (tag, errno) = wire::parse_frame(frame);
                tell(&self.status, tag, errno);
                // Its exit is the end of the fork, not of an agent.
                self.agent_gone = true;
                self.killing = true;
            }
            Err(_) => return,
        }
        self.exec = None;
    }

    /// Takes every dead child; true if none is left, dead or alive.
    fn reap(&mut self) -> bool {
        loop {
            match rustix::process::wait(WaitOptions::NOHANG) {
                Ok(Some((pid, status))) if pid == self.agent && !self.agent_gone => {
                    // The exec pipe closes with the process at the latest.
                    self.hear_exec();
                    if self.agent_gone {
                        continue;
                    }
                    self.agent_gone = true;
                    self.drain_until_ms = now_ms() + DRAIN_MS;
                    match (status.exit_status(), status.terminating_signal()) {
                        (Some(code), _) => tell(&self.status, wire::EXITED, code),
                        (None, signal) => {
                            tell(&self.status, wire::SIGNALLED, signal.unwrap_or(0));
                        }
                    }
                }
                Ok(Some(_)) | Err(Errno::INTR) => {}
                Ok(None) => return false,
                Err(_) => return true,
            }
        }
    }

    fn hear_daemon(&mut self) {
        let Some(lifeline) = &self.lifeline else { return };
        let mut fds = [PollFd::new(lifeline, PollFlags::IN)];
        if !poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).is_ok_and(|ready| ready > 0) {
            return;
        }
        let mut bytes = [0_u8; 64];
        match rustix::io::read(lifeline.as_fd(), &mut bytes) {
            Ok(0) => {
                self.lifeline = None;
                self.killing = true;
            }
            Ok(count) => {
                for byte in bytes.iter().take(count) {
                    match *byte {
                        wire::TERM => self.terminate(),
                        wire::KILL => self.killing = true,
                        _ => {}
                    }
                }
            }
            Err(_) => {}
        }
    }

    /// The agent's group, while the agent is not reaped: so long its number means that group.
    fn terminate(&self) {
        if !self.agent_gone {
            let _ = rustix::process::kill_process_group(self.agent, Signal::TERM);
            let _ = rustix::process::kill_process_group(self.agent, Signal::CONT);
        }
    }
}
