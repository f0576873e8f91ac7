//! `fakeagent`: a scripted ACP agent that misbehaves on demand, for the tests.
//!
//! Flags (or `--script FILE` with the same, one a line) say how it behaves as a process; directives
//! in a prompt's text, `[[name:argument]]`, say what it does in that turn. `--help` lists both. One
//! thread reads standard input, the other does everything else in order, and looks at what was
//! read wherever it waits; so a cancel is seen in the middle of a turn.

mod agent;
mod attack;
mod caller;
mod children;
mod flags;
mod memory;
mod services;
mod turn;
mod wire;

use std::io::Write;
use std::process::ExitCode;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let Some(style) = arguments.first().and_then(|first| first.strip_prefix("--be=")) {
        return children::be(style, arguments.get(1).map(String::as_str));
    }
    if arguments.iter().any(|argument| argument == "--help" || argument == "-h") {
        let _ = std::io::stdout().write_all(flags::HELP.as_bytes());
        return ExitCode::SUCCESS;
    }
    let flags = match flags::parse(&arguments) {
        Ok(flags) => flags,
        Err(message) => {
            let _ = writeln!(std::io::stderr(), "fakeagent: {message}; see --help");
            return ExitCode::from(64);
        }
    };
    if flags.ignore_term && !arguments.iter().any(|argument| argument == flags::TERM_IS_IGNORED) {
        return children::start_again_without_term(&arguments);
    }
    children::log_pid(flags.pid_log.as_deref());
    match agent::Agent::new(flags).run() {
        Ok(code) => ExitCode::from(code),
        // The daemon is gone: nobody is left to tell.
        Err(_) => ExitCode::from(74),
    }
}
