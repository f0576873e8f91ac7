//! The daemon put together: store, loop, watched directories, API; started in order, stopped in
//! order.
//!
//! The order of a start is a promise: the data directory is claimed, what an earlier daemon left
//! running is killed, the API listens, the loop runs, the manifests are applied once; only then is
//! the daemon ready. Nothing else in the program names both the loop and the API.

mod admit;
mod files;
mod health;
mod hooks;
mod launcher;
mod listen;
mod log;
pub mod login;
mod login_path;
mod program;
mod services;
mod start;

use std::path::Path;
use std::process::ExitCode;

use crate::api::machine::Guard;
use crate::cli::ServeOptions;
use crate::runtime::cgroup;
use crate::runtime::machine::Facts;

pub use start::Error;

/// The daemon stopped in order.
const EXIT_OK: u8 = 0;
/// The daemon could not start or failed.
const EXIT_FAILED: u8 = 1;
/// The configuration is wrong (sysexits.h, `EX_CONFIG`).
const EXIT_CONFIG: u8 = 78;
/// Another daemon has the data directory (sysexits.h, `EX_TEMPFAIL`).
pub const EXIT_LOCKED: u8 = 75;

/// Runs the daemon until it is told to stop; gives the process's exit code.
#[must_use]
pub fn run(options: ServeOptions) -> ExitCode {
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            tell(&format!("the runtime did not start: {error}"));
            return ExitCode::from(EXIT_FAILED);
        }
    };
    let code = match runtime.block_on(start::run(options)) {
        Ok(()) => EXIT_OK,
        Err(error) => {
            tell(&error.to_string());
            match error {
                Error::Config(_) | Error::ConfigFile { .. } => EXIT_CONFIG,
                Error::Open(crate::store::sqlite::OpenError::Locked { .. }) => EXIT_LOCKED,
                _ => EXIT_FAILED,
            }
        }
    };
    // Threads that still read files or wait for a process must not hold up the end.
    runtime.shutdown_background();
    ExitCode::from(code)
}

/// Which guards the machine has as this process sees it, where no daemon answers.
#[must_use]
pub fn guards(data_dir: &Path) -> Vec<Guard> {
    Facts::look(data_dir, cgroup::detect()).guards()
}

/// Says on standard error why the daemon does not run; the log may not exist yet.
#[expect(clippy::print_stderr, reason = "the daemon's last words")]
fn tell(message: &str) {
    eprintln!("error: {message}");
}
