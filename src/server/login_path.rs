//! The directories that agents' programs are looked for in: the service's own PATH and, with
//! `loginPath: capture`, behind it what a login shell has on its. Asked once, at the start; nothing
//! that goes wrong with it keeps the daemon from starting, and `doctor` tells what came of it.

use std::ffi::{OsStr, OsString};
use std::io::Read as _;
use std::path::{Path, PathBuf};

use super::launcher::RuntimeLauncher;
use crate::api::Dur;
use crate::api::config::LoginPath;
use crate::api::machine::{Guard, GuardState};
use crate::runtime::{LaunchSpec, environment, executable, login_path};

/// How long a login shell may take: some profiles go to the network.
const SHELL_MAX: Dur = Dur::from_secs(5);
/// How much of `/etc/passwd` is read.
const PASSWD_BYTES_MAX: u64 = 1024 * 1024;
/// Most agents that a package manager installs are started by the one and run by the other.
const SOUGHT: [&str; 2] = ["npx", "node"];

/// What came of asking a login shell.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) enum Captured {
    /// It was not asked.
    #[default]
    Off,
    /// What it has beyond the service's PATH.
    Directories(Vec<PathBuf>),
    /// It could not be asked; why, in a sentence.
    Failed(String),
}

impl Captured {
    /// Directories behind the service's own.
    pub(super) fn directories(&self) -> &[PathBuf] {
        match self {
            Self::Off | Self::Failed(_) => &[],
            Self::Directories(directories) => directories,
        }
    }

    /// How agents' programs are looked for, as `doctor` tells it. `path`: what agents get, but for
    /// what is theirs alone.
    pub(super) fn guard(&self, path: Option<&OsStr>) -> Guard {
        let mut found = match path {
            None => "no PATH".to_owned(),
            Some(path) => path.to_string_lossy().into_owned(),
        };
        match self {
            Self::Off => {}
            Self::Directories(more) => {
                found.push_str(&format!("; the last {} are of the login shell", more.len()));
            }
            Self::Failed(why) => found.push_str(&format!("; the login shell: {why}")),
        }
        let is_found =
            |program: &&str| executable::resolve(program, &[], path, Path::new("/")).is_ok();
        let missing: Vec<&str> = SOUGHT.into_iter().filter(|program| !is_found(program)).collect();
        let is_known = !matches!(self, Self::Failed(_));
        let lost = match missing.as_slice() {
            [] if is_known => String::new(),
            [] => "what only the login shell finds cannot be run".to_owned(),
            missing => format!(
                "not found on it: {}; agents that are started by npx cannot run",
                missing.join(", ")
            ),
        };
        let (state, hint) = match (lost.is_empty(), self) {
            (true, _) => (GuardState::Present, ""),
            (false, Self::Off) => (
                GuardState::Weak,
                "if a login shell finds it, set loginPath: capture in the daemon's configuration; \
                 else name its directory in spec.path of the Agent",
            ),
            (false, Self::Failed(_) | Self::Directories(_)) => (
                GuardState::Weak,
                "name the directory of an agent's program in spec.path of the Agent",
            ),
        };
        Guard { name: "AgentPath".to_owned(), state, found, lost, hint: hint.to_owned() }
    }
}

impl RuntimeLauncher {
    /// Asks the login shell, if that is wanted.
    pub(super) async fn capture(&self, wanted: LoginPath) -> Captured {
        if wanted == LoginPath::Off {
            return Captured::Off;
        }
        match self.ask_login_shell().await {
            Ok(directories) => {
                tracing::info!(?directories, "the login shell's PATH was taken over");
                Captured::Directories(directories)
            }
            Err(why) => {
                tracing::warn!(why, "loginPath: the login shell's PATH is not known");
                Captured::Failed(why)
            }
        }
    }

    async fn ask_login_shell(&self) -> Result<Vec<PathBuf>, String> {
        let variable = std::env::var_os("SHELL");
        let user = rustix::process::getuid().as_raw();
        let shell = login_path::shell(variable.as_deref(), &passwd(), user)
            .map_err(|error| error.to_string())?;
        let said = |why: String| format!("{}: {why}", shell.display());
        let mut argv: Vec<OsString> = vec![shell.clone().into()];
        argv.extend(login_path::arguments());
        let home = std::env::var_os("HOME").map(PathBuf::from).filter(|home| home.is_dir());
        let spec = LaunchSpec {
            argv,
            cwd: home.unwrap_or_else(|| PathBuf::from("/")),
            env: environment::filtered(std::env::vars_os()),
            instance: self.runtime().new_instance(),
            sandbox: None,
        };
        // What a profile writes to standard error may be a secret of its owner: it is not logged.
        let answer = self.run_program(None, spec, "", SHELL_MAX).await.map_err(said)?;
        let service = std::env::var_os("PATH");
        login_path::directories(&answer, service.as_deref())
            .map_err(|error| said(error.to_string()))
    }
}

/// The system's users, as far as the file goes; empty if it cannot be read.
fn passwd() -> String {
    let mut text = Vec::new();
    let read = std::fs::File::open("/etc/passwd")
        .and_then(|file| file.take(PASSWD_BYTES_MAX).read_to_end(&mut text));
    read.map(|_| String::from_utf8_lossy(&text).into_owned()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn doctor_tells_what_agents_get_and_what_to_do_where_npx_is_not_on_it() {
        let bin = tempfile::tempdir().unwrap();
        for program in SOUGHT.map(|program| bin.path().join(program)) {
            std::fs::write(&program, "").unwrap();
            std::fs::set_permissions(&program, PermissionsExt::from_mode(0o755)).unwrap();
        }
        let (with, without) = (bin.path().as_os_str(), OsStr::new("/nowhere"));
        let more = Captured::Directories(vec![bin.path().to_owned()]);
        let failed = Captured::Failed("/bin/x: it took longer than 5s".to_owned());
        for (captured, path, state, hint) in [
            (&Captured::Off, with, GuardState::Present, ""),
            (&Captured::Off, without, GuardState::Weak, "loginPath: capture"),
            (&more, with, GuardState::Present, ""),
            (&more, without, GuardState::Weak, "spec.path"),
            (&failed, with, GuardState::Weak, "spec.path"),
            (&failed, without, GuardState::Weak, "spec.path"),
        ] {
            let guard = captured.guard(Some(path));
            assert_eq!(guard.state, state, "{guard:?}");
            assert!(guard.hint.contains(hint) && guard.hint.is_empty() == hint.is_empty());
            assert!(guard.found.contains(&*path.to_string_lossy()), "{guard:?}");
        }
        assert!(failed.guard(Some(with)).found.contains("it took longer"));
        std::fs::remove_file(bin.path().join("npx")).unwrap();
        let guard = Captured::Off.guard(Some(with));
        assert!(guard.lost.starts_with("not found on it: npx; "), "{guard:?}");
    }
}
