//! A login: this very process becomes the program that a person logs in with. Used by the command
//! line, never by the daemon.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::Command;

/// Executes a program in the place of this one, with exactly these variables. Returns only if the
/// system refuses.
#[must_use]
#[expect(clippy::disallowed_methods, reason = "runtime is where processes are started")]
pub fn replace_process(
    program: &Path,
    arguments: &[String],
    env: &BTreeMap<OsString, OsString>,
) -> io::Error {
    Command::new(program).args(arguments).env_clear().envs(env).exec()
}
