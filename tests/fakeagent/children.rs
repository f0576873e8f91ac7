//! Processes that try to outlive the agent, and what a process does to itself.

use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};
use std::time::Duration;

use serde_json::json;

use crate::flags::TERM_IS_IGNORED;
use crate::memory::append;

/// A child ends by itself after this long: a test that fails leaves nothing for ever.
const LIFE: Duration = Duration::from_secs(600);

/// How many processes a storm has.
const STORM: usize = 200;

/// Notes this process's id.
pub(crate) fn log_pid(pid_log: Option<&Path>) {
    if let Some(path) = pid_log {
        let _ = append(path, &json!({"pid": std::process::id()}));
    }
}

/// Starts a child in one of the styles of `--help`, and waits until it is up: it has noted itself,
/// and left what it leaves. One that holds standard output is not waited for.
pub(crate) fn escape(style: &str, pid_log: Option<&Path>) -> std::io::Result<()> {
    // The children say that they are up by closing it.
    let (mut up, close) = std::io::pipe()?;
    let (count, role) = match style {
        "storm" => (STORM, "plain"),
        "plain" | "setpgid" => (1, "plain"),
        "hold" => (1, "hold"),
        "setsid" | "scrub" => (1, "setsid"),
        "double" => (1, "double"),
        _ => return Err(std::io::ErrorKind::InvalidInput.into()),
    };
    for _ in 0..count {
        let mut command = this_program(role, pid_log)?;
        command.stdin(Stdio::null()).stderr(Stdio::null());
        if style != "hold" {
            command.stdout(close.try_clone()?);
        }
        if style == "setpgid" {
            command.process_group(0);
        }
        if style == "scrub" {
            command.env_clear();
        }
        let mut child = command.spawn()?;
        if style == "double" {
            child.wait()?;
        }
    }
    drop(close);
    std::io::copy(&mut up, &mut std::io::sink())?;
    Ok(())
}

#[expect(clippy::disallowed_methods, reason = "an agent starts processes of its own")]
fn this_program(role: &str, pid_log: Option<&Path>) -> std::io::Result<Command> {
    let mut command = Command::new(std::env::current_exe()?);
    command.arg(format!("--be={role}")).args(pid_log);
    Ok(command)
}

/// The life of such a child.
pub(crate) fn be(role: &str, pid_log: Option<&str>) -> ExitCode {
    if matches!(role, "setsid" | "double") {
        let _ = rustix::process::setsid();
    }
    if role == "bound" {
        // What no daemon may do to its agents: to die with the thread that started it.
        use rustix::process::{Signal, set_parent_process_death_signal};
        let _ = set_parent_process_death_signal(Some(Signal::KILL));
    }
    let pid_log = pid_log.map(Path::new);
    if role == "double" {
        // The grandchild loses its parent at once, and with it every trace of the agent's tree.
        let started = this_program("plain", pid_log).and_then(|mut command| command.spawn());
        return if started.is_ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE };
    }
    log_pid(pid_log);
    if role != "hold" {
        let _ = close_stdout();
    }
    std::thread::sleep(LIFE);
    ExitCode::SUCCESS
}

/// Starts this program again, in the same process, with SIGTERM ignored: a shell can do that
/// without unsafe code, and what is ignored stays so across exec (signal(7)).
#[expect(clippy::disallowed_methods, reason = "an agent may do what it likes")]
pub(crate) fn start_again_without_term(arguments: &[String]) -> ExitCode {
    let Ok(program) = std::env::current_exe() else { return ExitCode::FAILURE };
    let mut shell = Command::new("/bin/sh");
    shell.arg("-c").arg("trap '' TERM; exec \"$0\" \"$@\"").arg(program);
    let _ = shell.args(arguments).arg(TERM_IS_IGNORED).exec();
    ExitCode::FAILURE
}

/// Stops this process until it gets SIGCONT.
pub(crate) fn stop_self() {
    let _ = rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::STOP);
}

/// Closes standard output, and lives on.
pub(crate) fn close_stdout() -> std::io::Result<()> {
    let null = std::fs::OpenOptions::new().write(true).open("/dev/null")?;
    Ok(rustix::stdio::dup2_stdout(null)?)
}

/// The open file descriptors and what they are.
pub(crate) fn descriptors() -> std::io::Result<String> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir("/proc/self/fd")? {
        let entry = entry?;
        // The descriptor of this very listing is gone by the time that it is looked at.
        if let Ok(target) = std::fs::read_link(entry.path()) {
            let name = entry.file_name().to_string_lossy().into_owned();
            if !target.starts_with(format!("/proc/{}/fd", std::process::id())) {
                found.push(format!("{name} {}", target.display()));
            }
        }
    }
    found.sort();
    Ok(found.join("\n"))
}

/// Runs a program that is looked for on PATH; its exit code, standard output and standard error.
#[expect(clippy::disallowed_methods, reason = "an agent runs what it likes")]
pub(crate) fn run(words: &str) -> std::io::Result<String> {
    let mut words = words.split_whitespace();
    let program = words.next().unwrap_or("true");
    let output = std::process::Command::new(program)
        .args(words)
        .stdin(std::process::Stdio::null())
        .output()?;
    Ok(format!(
        "exit {}\n{}{}",
        output.status.code().unwrap_or(-1),
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    ))
}
