//! What an agent that means harm tries, each thing once: a line for each says what came of it.

use std::fs;
use std::io;
use std::path::Path;

use rustix::process::{Pid, Signal};

/// `SIGNAL DATA_DIR OUTSIDE`: the signal is KILL, or 0 to ask only. `OUTSIDE` holds a file
/// `victim`.
pub(crate) fn attack(argument: &str) -> io::Result<String> {
    let mut words = argument.split_whitespace();
    let mut word = || words.next().ok_or(io::ErrorKind::InvalidInput);
    let (signal, data, outside) = (word()?, Path::new(word()?), Path::new(word()?));
    let shim = rustix::process::getppid().ok_or(io::ErrorKind::NotFound)?;
    let daemon = parent_of(shim)?;
    let temp = std::env::temp_dir();
    let token = data.join("operator.token");
    let trace = |pid: Pid| {
        let memory = format!("/proc/{}/mem", pid.as_raw_nonzero());
        fs::OpenOptions::new().read(true).write(true).open(memory).map(drop)
    };
    let append = |path: &Path| fs::OpenOptions::new().append(true).open(path).map(drop);
    let tried = [
        ("kill-shim", kill(shim, signal)),
        ("kill-daemon", kill(daemon, signal)),
        ("trace-shim", trace(shim)),
        ("trace-daemon", trace(daemon)),
        ("see-shim", fs::read(format!("/proc/{}/environ", shim.as_raw_nonzero())).map(drop)),
        ("see-daemon", fs::read(format!("/proc/{}/environ", daemon.as_raw_nonzero())).map(drop)),
        ("write-outside", fs::write(outside.join("made"), "x")),
        ("append-outside", append(&outside.join("victim"))),
        ("rename-outside", fs::rename(outside.join("victim"), outside.join("victim"))),
        ("write-state", fs::write(data.join("made"), "x")),
        ("read-token", fs::read(&token).map(drop)),
        ("link-token", fs::hard_link(&token, temp.join("token"))),
        ("read-outside", fs::read(outside.join("victim")).map(drop)),
        ("write-work", fs::write("made", "x")),
        ("write-temp", fs::write(temp.join("made"), "x")),
        ("write-null", fs::write("/dev/null", "x")),
    ];
    let line = |(name, done): (&str, io::Result<()>)| match done {
        Ok(()) => format!("{name}=done\n"),
        // Moving something to where more may be done with it is told like a move between mounts.
        Err(error)
            if matches!(
                error.kind(),
                io::ErrorKind::PermissionDenied | io::ErrorKind::CrossesDevices
            ) =>
        {
            format!("{name}=denied\n")
        }
        Err(error) => format!("{name}={error}\n"),
    };
    Ok(tried.into_iter().map(line).collect())
}

fn kill(pid: Pid, signal: &str) -> io::Result<()> {
    let done = match signal {
        "KILL" => rustix::process::kill_process(pid, Signal::KILL),
        _ => rustix::process::test_kill_process(pid),
    };
    done.map_err(io::Error::from)
}

/// proc_pid_stat(5): the fourth field, after a name in parentheses.
fn parent_of(pid: Pid) -> io::Result<Pid> {
    let stat = fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero()))?;
    let rest = stat.rsplit(')').next().unwrap_or_default();
    let parent = rest.split_whitespace().nth(1).and_then(|text| text.parse().ok());
    parent.and_then(Pid::from_raw).ok_or_else(|| io::ErrorKind::InvalidData.into())
}
