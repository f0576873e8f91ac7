//! The program: arguments in, exit code out.

use std::io::Write;
use std::process::ExitCode;

fn main() -> ExitCode {
    spawnlet::cli::run(std::env::args_os(), |_options| {
        // The daemon's wiring (`server::run`) takes this closure's place.
        let _ = writeln!(std::io::stderr(), "error: this build has no daemon");
        ExitCode::FAILURE
    })
}
