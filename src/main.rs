//! The program: arguments in, exit code out.

use std::process::ExitCode;

fn main() -> ExitCode {
    spawnlet::cli::run(
        std::env::args_os(),
        spawnlet::server::run,
        spawnlet::demo::run,
        spawnlet::server::login::run,
        spawnlet::server::guards,
    )
}
