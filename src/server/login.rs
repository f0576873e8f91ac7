//! `spawnlet agents login`: a person's terminal becomes the agent's own login, in the agent's home.

use std::process::ExitCode;

use crate::api::agent::HomePolicy;
use crate::cli::LoginOptions;
use crate::runtime::home::{self, Home};
use crate::runtime::{environment, executable, login};

/// Wrong usage (as of every verb).
const EXIT_USAGE: u8 = 2;
const EXIT_FAILED: u8 = 1;

/// The logins that are known: the family's word, as `runtime::home` knows it, and its command.
const KNOWN: [(&str, &[&str]); 4] = [
    ("codex", &["codex", "login"]),
    ("opencode", &["opencode", "auth", "login"]),
    // These two ask for a login where they find none, or take `/login`.
    ("claude", &["claude"]),
    ("pi", &["pi"]),
];

/// Runs the login in the place of this process; returns only if that fails.
#[must_use]
pub fn run(options: LoginOptions) -> ExitCode {
    let (code, message) = match start(options) {
        Err(Refused::Usage(message)) => (EXIT_USAGE, message),
        Err(Refused::Failed(message)) => (EXIT_FAILED, message),
        Ok(never) => match never {},
    };
    super::tell(&message);
    ExitCode::from(code)
}

enum Refused {
    Usage(String),
    Failed(String),
}

fn start(options: LoginOptions) -> Result<std::convert::Infallible, Refused> {
    let LoginOptions { agent, data_dir, command } = options;
    let (name, spec) = (agent.metadata.name.as_str(), &agent.spec);
    let failed = |error: &dyn std::fmt::Display| Refused::Failed(format!("agent/{name}: {error}"));
    let words = if command.is_empty() {
        let families = home::families(spec);
        let known = KNOWN.iter().find(|(family, _)| families.contains(family));
        let (_, words) = known.ok_or_else(|| {
            Refused::Usage(format!(
                "how to log in to agent/{name} is not known; tell the command behind `--`: \
                 spawnlet agents login {name} -- COMMAND..."
            ))
        })?;
        words.iter().map(|&word| word.to_owned()).collect()
    } else {
        command
    };
    let data_dir = std::path::absolute(&data_dir).map_err(|error| failed(&error))?;
    let home = match spec.home_policy {
        HomePolicy::Operator => None,
        HomePolicy::Isolated => Some(Home::of(&data_dir, name, spec)),
    };
    if let Some(home) = &home {
        home.prepare().map_err(|error| failed(&error))?;
    }
    let env = environment::for_login(std::env::vars_os(), spec, home.as_ref());
    let here = std::env::current_dir().map_err(|error| failed(&error))?;
    let path = env.get(std::ffi::OsStr::new("PATH")).map(std::ffi::OsString::as_os_str);
    let program =
        executable::resolve(&words[0], &spec.path, path, &here).map_err(|error| failed(&error))?;
    Err(failed(&login::replace_process(&program, &words[1..], &env)))
}
