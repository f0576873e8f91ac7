//! The home of an agent with `homePolicy: isolated`: directories below the data directory.
//!
//! `DATA/providers/<agent>/home` is its HOME, and what is known to hold logins is below that: the
//! XDG directories, and those that some agents have variables of their own for. An agent is known
//! by the words of its command. Nothing is copied in. Invariants: every directory is made 0700, and
//! no part of it below the data directory is a link.

use std::ffi::OsString;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Component, Path, PathBuf};

use rustix::fs::{Mode, OFlags};

use crate::api::AgentSpec;

/// Where homes are, in the data directory.
const PROVIDERS: &str = "providers";

/// Agents that look into a variable of their own: the word that they are known by, the variable,
/// and the directory below HOME, the same that they take where the variable is not set.
const KNOWN: [(&str, &str, &str); 4] = [
    ("claude", "CLAUDE_CONFIG_DIR", ".claude"),
    ("codex", "CODEX_HOME", ".codex"),
    ("opencode", "OPENCODE_CONFIG_DIR", ".config/opencode"),
    ("pi", "PI_CODING_AGENT_DIR", ".pi/agent"),
];

/// An agent's home.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Home {
    data_dir: PathBuf,
    /// Variables, and their directories below the data directory.
    directories: Vec<(&'static str, PathBuf)>,
}

/// A home that cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("homePolicy isolated: {} cannot be used as a directory: {source}", path.display())]
pub struct Error {
    /// Which directory.
    pub path: PathBuf,
    /// What the system said.
    pub source: io::Error,
}

impl Home {
    /// The home of an agent, by its name and command. Nothing is made yet.
    #[must_use]
    pub fn of(data_dir: &Path, agent: &str, spec: &AgentSpec) -> Self {
        let home = Path::new(PROVIDERS).join(agent).join("home");
        let mut directories = vec![
            ("HOME", home.clone()),
            ("XDG_CONFIG_HOME", home.join(".config")),
            ("XDG_DATA_HOME", home.join(".local/share")),
            ("XDG_CACHE_HOME", home.join(".cache")),
        ];
        let families = families(spec);
        let known = KNOWN.iter().filter(|(word, ..)| families.contains(word));
        directories.extend(known.map(|(_, variable, path)| (*variable, home.join(path))));
        Self { data_dir: data_dir.to_owned(), directories }
    }

    /// Where it is.
    #[must_use]
    pub fn path(&self) -> PathBuf {
        let home = self.directories.first().map(|(_, path)| path.as_path());
        self.data_dir.join(home.unwrap_or(Path::new(PROVIDERS)))
    }

    /// The variables that lead there, with absolute paths.
    pub fn variables(&self) -> impl Iterator<Item = (OsString, OsString)> + '_ {
        let absolute = |path: &PathBuf| self.data_dir.join(path).into_os_string();
        self.directories.iter().map(move |(name, path)| (OsString::from(name), absolute(path)))
    }

    /// Makes the directories that are not there, and checks those that are.
    ///
    /// # Errors
    ///
    /// One is a link, no directory, or cannot be made.
    pub fn prepare(&self) -> Result<(), Error> {
        for (_, path) in &self.directories {
            make(&self.data_dir, path)
                .map_err(|source| Error { path: self.data_dir.join(path), source })?;
        }
        Ok(())
    }
}

/// The known families of agents that a command belongs to, by whole words of its words' names:
/// `npx -y @scope/codex-acp@1.2` is one of `codex`.
#[must_use]
pub fn families(spec: &AgentSpec) -> Vec<&'static str> {
    let words = spec.words().unwrap_or_default();
    let names = words.iter().filter(|word| !word.starts_with('-'));
    let parts: Vec<&str> = names
        .flat_map(|word| word.rsplit('/').next())
        .flat_map(|name| name.split(|part: char| !part.is_ascii_alphanumeric()))
        .collect();
    KNOWN.iter().map(|(word, ..)| *word).filter(|word| parts.contains(word)).collect()
}

/// Makes a directory below a base, part for part, over no link; each 0700.
pub(super) fn make(base: &Path, below: &Path) -> io::Result<()> {
    let flags = OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::RDONLY;
    let mut at: OwnedFd = rustix::fs::open(base, flags, Mode::empty())?;
    for part in below.components() {
        let Component::Normal(name) = part else {
            return Err(io::Error::other("its path has a part that is no name"));
        };
        match rustix::fs::mkdirat(&at, name, Mode::RWXU) {
            Ok(()) | Err(rustix::io::Errno::EXIST) => {}
            Err(error) => return Err(error.into()),
        }
        at = rustix::fs::openat(&at, name, flags | OFlags::NOFOLLOW, Mode::empty()).map_err(
            |error| match error {
                rustix::io::Errno::LOOP | rustix::io::Errno::NOTDIR => io::Error::other(format!(
                    "{} is a link or no directory; remove it",
                    name.display()
                )),
                other => other.into(),
            },
        )?;
        let mode = rustix::fs::fstat(&at)?.st_mode;
        if mode & 0o077 != 0 {
            rustix::fs::fchmod(&at, Mode::RWXU)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};

    use super::*;

    fn spec(command: &str) -> AgentSpec {
        AgentSpec { command: Some(command.to_owned()), ..AgentSpec::default() }
    }

    #[test]
    fn an_agent_is_known_by_whole_words_of_its_command() {
        for (command, expected) in [
            ("/usr/bin/codex app", &["codex"][..]),
            ("npx -y @scope/claude-code-acp@1.2", &["claude"]),
            ("opencode acp", &["opencode"]),
            ("npx pi-acp", &["pi"]),
            ("python api.py --codex", &[]),
            ("/home/pi/bin/agent", &[]),
        ] {
            assert_eq!(families(&spec(command)), expected, "{command}");
        }
    }

    #[test]
    fn its_directories_are_private_and_no_link_leads_out_of_them() {
        let base = tempfile::tempdir().unwrap();
        let home = Home::of(base.path(), "a", &spec("codex"));
        home.prepare().unwrap();
        for (name, path) in home.variables() {
            let mode = std::fs::metadata(&path).unwrap().mode() & 0o777;
            assert_eq!(mode, 0o700, "{name:?}");
        }
        let codex = base.path().join("providers/a/home/.codex");
        std::fs::set_permissions(&codex, std::fs::Permissions::from_mode(0o755)).unwrap();
        home.prepare().unwrap();
        assert_eq!(std::fs::metadata(&codex).unwrap().mode() & 0o777, 0o700);

        for part in ["providers/a/home/.codex", "providers/a"] {
            let path = base.path().join(part);
            std::fs::remove_dir_all(&path).unwrap();
            std::os::unix::fs::symlink("/tmp", &path).unwrap();
            let error = home.prepare().unwrap_err().to_string();
            assert!(error.contains("is a link"), "{error}");
        }
    }
}
