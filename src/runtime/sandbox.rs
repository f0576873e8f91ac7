//! What a sandboxed tree may write and read: the rules that the shim puts around an agent.
//!
//! In the loop it stands behind a launch, beside `environment`: an Agent and a Session become a list
//! of paths. The kernel keeps to it for whatever the agent starts (Landlock), and lets nothing inside
//! signal or trace what is outside. May be written, in every mode: a directory for temporary files
//! that this run alone has (TMPDIR), the agent's isolated home if it has one, `writePaths`, and
//! devices that hold nothing. With `workspace-write` also the session's directories. May be read:
//! everything but the data directory (token, vault, store) and other programs' terminals.
//!
//! Invariants: where the kernel cannot keep to it nothing is started; no path that is given free
//! holds the data directory or lies in it, but those that are made here. Absent on purpose: the
//! network, and modes, owners and times of files, which Landlock does not know.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

use super::home::{self, Home};
use super::{sys, wire};
use crate::api::agent::{self, SandboxMode};
use crate::api::hex;
use crate::api::session::Scope;
use crate::api::validate::free_path::why_not_free;

/// The first version of Landlock's interface that keeps signals inside (Linux 6.12).
pub const ABI_MIN: u32 = 6;

/// Where directories for temporary files are, in the data directory.
const TEMPS: &str = "tmp";
/// Variables that lead there.
const TEMP_VARIABLES: [&str; 3] = ["TMPDIR", "TMP", "TEMP"];
/// Of the digest of a tree's mark: short, because sockets' paths have 108 bytes at most (unix(7)).
const TEMP_NAME_BYTES: usize = 8;
/// Devices that hold nothing, and the terminal of whoever opens it.
const DEVICES: [&str; 6] =
    ["/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom", "/dev/tty"];
const DEVICE_DIRECTORY: &str = "/dev";
/// The terminals of all programs: who reads one takes what is typed there.
const TERMINALS: &str = "/dev/pts";

/// The version of Landlock's interface here; none: the kernel has none, or it is turned off.
#[must_use]
pub fn abi() -> Option<u32> {
    sys::landlock_abi()
}

/// Why nothing can be started in a sandbox.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The kernel cannot keep to it.
    #[error("sandbox: {}", unavailable(*.found))]
    Unavailable {
        /// Its version of Landlock's interface, if any.
        found: Option<u32>,
    },
    /// A path that cannot be given free.
    #[error("{field}: {} {problem}", path.display())]
    Path {
        /// `sandbox.writePaths[N]`, `cwd` or `additionalDirectories[N]`.
        field: String,
        /// Which.
        path: PathBuf,
        /// What is wrong with it.
        problem: String,
    },
}

impl Error {
    /// The reason as it stands in the record.
    #[must_use]
    pub const fn reason(&self) -> &'static str {
        match self {
            Self::Unavailable { .. } => "SandboxUnavailable",
            Self::Path { .. } => "SandboxPathUnusable",
        }
    }
}

fn unavailable(found: Option<u32>) -> String {
    let need = format!("Landlock with ABI {ABI_MIN} (Linux 6.12) is needed");
    match found {
        Some(found) => {
            format!("{need}, this kernel has ABI {found}; sandbox.mode off starts without")
        }
        None => format!(
            "{need}, this kernel has none or it is turned off (`lsm=` on its command line); \
             sandbox.mode off starts without"
        ),
    }
}

/// The sandbox of one tree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sandbox {
    data_dir: PathBuf,
    /// Below the data directory.
    temp: PathBuf,
    /// Kinds of `wire`, and paths without links.
    rules: Vec<(u8, PathBuf)>,
    abi: u32,
}

/// What a sandbox is made for.
#[derive(Clone, Copy, Debug)]
pub struct Asked<'a> {
    /// What the agent's record says.
    pub sandbox: &'a agent::Sandbox,
    /// The session's directories.
    pub scope: &'a Scope,
    /// The agent's own home, if it has one. Made before.
    pub home: Option<&'a Home>,
    /// Where the daemon's own files are.
    pub data_dir: &'a Path,
    /// The tree's mark.
    pub instance: &'a str,
}

impl Sandbox {
    /// The sandbox that is asked for; `None`: none is. Nothing is made yet.
    ///
    /// # Errors
    ///
    /// [`Error`]: it is asked for and cannot be had.
    pub fn of(asked: &Asked<'_>) -> Result<Option<Self>, Error> {
        Self::with_abi(asked, abi())
    }

    fn with_abi(asked: &Asked<'_>, found: Option<u32>) -> Result<Option<Self>, Error> {
        if asked.sandbox.mode == SandboxMode::Off {
            return Ok(None);
        }
        let abi = found.filter(|found| *found >= ABI_MIN).ok_or(Error::Unavailable { found })?;
        let data_dir = canonical("the data directory", asked.data_dir)?;
        let temp = Path::new(TEMPS).join(temp_name(asked.instance));
        let mut rules = vec![
            (wire::RULE_HIDE, data_dir.clone()),
            (wire::RULE_HIDE, TERMINALS.into()),
            (wire::RULE_WRITE, data_dir.join(&temp)),
        ];
        rules.extend(DEVICES.map(|device| (wire::RULE_DEVICE, device.into())));
        if let Some(home) = asked.home {
            rules.push((wire::RULE_WRITE, canonical("homePolicy", &home.path())?));
        }
        for (index, path) in asked.sandbox.write_paths.iter().enumerate() {
            let field = format!("sandbox.writePaths[{index}]");
            let path = canonical(&field, Path::new(path))?;
            apart(&field, &path, &data_dir)?;
            let is_device = path.starts_with(DEVICE_DIRECTORY);
            rules.push((if is_device { wire::RULE_DEVICE } else { wire::RULE_WRITE }, path));
        }
        for (field, path) in directories(asked.scope) {
            let path = canonical(&field, path)?;
            match asked.sandbox.mode {
                SandboxMode::WorkspaceWrite => {
                    apart(&field, &path, &data_dir)?;
                    rules.push((wire::RULE_WRITE, path));
                }
                // It may be read around the data directory, and nothing in that.
                SandboxMode::ReadOnly | SandboxMode::Off => not_inside(&field, &path, &data_dir)?,
            }
        }
        Ok(Some(Self { data_dir, temp, rules, abi }))
    }

    /// The version of Landlock's interface that keeps to it.
    #[must_use]
    pub const fn abi(&self) -> u32 {
        self.abi
    }

    /// Variables that lead to the directory for temporary files.
    pub fn variables(&self) -> impl Iterator<Item = (OsString, OsString)> + '_ {
        let temp = self.data_dir.join(&self.temp).into_os_string();
        TEMP_VARIABLES.into_iter().map(move |name| (name.into(), temp.clone()))
    }

    /// Makes the directory for temporary files. The tree's mark must count as live by then, or
    /// [`remove_leftovers`] takes it away.
    pub(super) fn prepare(&self) -> io::Result<()> {
        home::make(&self.data_dir, &self.temp)
    }

    /// The rules as the shim reads them.
    pub(super) fn encode(&self) -> Vec<Vec<u8>> {
        let one = |(kind, path): &(u8, PathBuf)| {
            let mut rule = vec![*kind];
            rule.extend_from_slice(path.as_os_str().as_bytes());
            rule
        };
        self.rules.iter().map(one).collect()
    }
}

/// Removes the directories for temporary files of trees that are gone. `live` gives the marks of
/// those that are not; it is asked after the directories were listed.
pub fn remove_leftovers<I: IntoIterator<Item = String>>(data_dir: &Path, live: impl FnOnce() -> I) {
    let Ok(entries) = fs::read_dir(data_dir.join(TEMPS)) else { return };
    let found: Vec<fs::DirEntry> = entries.flatten().collect();
    if found.is_empty() {
        return;
    }
    let live: Vec<OsString> =
        live().into_iter().map(|instance| temp_name(&instance).into()).collect();
    for entry in found.iter().filter(|entry| !live.contains(&entry.file_name())) {
        if let Err(error) = fs::remove_dir_all(entry.path()) {
            tracing::warn!(path = %entry.path().display(), %error, "temporary files of a process that is gone cannot be removed");
        }
    }
}

fn temp_name(instance: &str) -> String {
    let digest = Sha256::digest(instance.as_bytes());
    hex(digest.get(..TEMP_NAME_BYTES).unwrap_or_default())
}

fn directories(scope: &Scope) -> impl Iterator<Item = (String, &Path)> {
    let more = scope.additional_directories.iter().enumerate();
    let more = more.map(|(index, path)| (format!("additionalDirectories[{index}]"), path));
    std::iter::once(("cwd".to_owned(), &scope.cwd))
        .chain(more)
        .map(|(field, path)| (field, Path::new(OsStr::new(path))))
}

fn canonical(field: &str, path: &Path) -> Result<PathBuf, Error> {
    fs::canonicalize(path).map_err(|error| Error::Path {
        field: field.to_owned(),
        path: path.to_owned(),
        problem: format!("cannot be used: {error}"),
    })
}

/// What is given free must not give the daemon's own files away.
fn apart(field: &str, path: &Path, data_dir: &Path) -> Result<(), Error> {
    match why_not_free(path, data_dir) {
        None => Ok(()),
        Some(problem) => Err(refused(field, path, problem)),
    }
}

fn not_inside(field: &str, path: &Path, data_dir: &Path) -> Result<(), Error> {
    if path.starts_with(data_dir) { apart(field, path, data_dir) } else { Ok(()) }
}

fn refused(field: &str, path: &Path, problem: &str) -> Error {
    let problem = problem.to_owned();
    Error::Path { field: field.to_owned(), path: path.to_owned(), problem }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runtime::scope;

    fn scope(cwd: &Path) -> Scope {
        scope::resolve(&cwd.display().to_string(), &[], "").unwrap()
    }

    fn asked(
        root: &Path,
        mode: SandboxMode,
        write: &[&Path],
        cwd: &Path,
    ) -> Result<Option<Sandbox>, Error> {
        let write_paths = write.iter().map(|path| path.display().to_string()).collect();
        let sandbox = agent::Sandbox { mode, write_paths };
        let scope = scope(cwd);
        let asked = Asked {
            sandbox: &sandbox,
            scope: &scope,
            home: None,
            data_dir: &root.join("data"),
            instance: "store.1",
        };
        Sandbox::with_abi(&asked, Some(7))
    }

    fn ground() -> (tempfile::TempDir, PathBuf) {
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path().canonicalize().unwrap();
        for name in ["data/tmp", "work", "cache"] {
            fs::create_dir_all(root.join(name)).unwrap();
        }
        (directory, root)
    }

    #[test]
    fn the_session_s_directories_are_written_in_one_mode_alone() {
        let (_guard, root) = ground();
        let (work, cache) = (root.join("work"), root.join("cache"));
        let written = |mode| {
            let found = asked(&root, mode, &[&cache], &work).unwrap();
            found.map(|found| {
                let rules = found.rules.into_iter();
                let mut paths: Vec<PathBuf> = rules
                    .filter(|(kind, _)| *kind == wire::RULE_WRITE)
                    .map(|(_, path)| path)
                    .collect();
                assert!(paths.remove(0).starts_with(root.join("data/tmp")));
                paths
            })
        };
        assert_eq!(written(SandboxMode::Off), None);
        assert_eq!(written(SandboxMode::ReadOnly), Some(vec![cache.clone()]));
        assert_eq!(written(SandboxMode::WorkspaceWrite), Some(vec![cache, work]));
    }

    #[test]
    fn nothing_is_given_free_that_holds_the_data_directory_or_is_in_it() {
        let (_guard, root) = ground();
        let (work, data) = (root.join("work"), root.join("data"));
        std::os::unix::fs::symlink(&data, root.join("link")).unwrap();
        let link = root.join("link");
        for path in [&*root, &*data, &*data.join("tmp"), &*link, Path::new("/")] {
            for mode in [SandboxMode::WorkspaceWrite, SandboxMode::ReadOnly] {
                let error = asked(&root, mode, &[path], &work).unwrap_err();
                assert_eq!(error.reason(), "SandboxPathUnusable", "{error}");
                assert!(error.to_string().starts_with("sandbox.writePaths[0]: "), "{error}");
            }
        }
        asked(&root, SandboxMode::WorkspaceWrite, &[], &root).unwrap_err();
        asked(&root, SandboxMode::ReadOnly, &[], &data.join("tmp")).unwrap_err();
        asked(&root, SandboxMode::ReadOnly, &[], &root).unwrap();
        let error = asked(&root, SandboxMode::ReadOnly, &[&root.join("none")], &work).unwrap_err();
        assert!(error.to_string().contains("cannot be used: No such file"), "{error}");
    }

    #[test]
    fn a_kernel_that_cannot_keep_to_it_starts_nothing() {
        let (_guard, root) = ground();
        let sandbox = agent::Sandbox { mode: SandboxMode::ReadOnly, ..agent::Sandbox::default() };
        let scope = scope(&root.join("work"));
        let asked = Asked {
            sandbox: &sandbox,
            scope: &scope,
            home: None,
            data_dir: &root.join("data"),
            instance: "store.1",
        };
        for found in [None, Some(1), Some(ABI_MIN - 1)] {
            let error = Sandbox::with_abi(&asked, found).unwrap_err();
            assert_eq!(error.reason(), "SandboxUnavailable");
            assert!(error.to_string().contains("ABI 6 (Linux 6.12) is needed"), "{error}");
        }
        Sandbox::with_abi(&asked, Some(ABI_MIN)).unwrap().unwrap();
    }

    #[test]
    fn temporary_files_go_when_their_tree_is_gone() {
        let (_guard, root) = ground();
        let data = root.join("data");
        let made = |instance: &str| {
            let path = data.join(TEMPS).join(temp_name(instance));
            fs::create_dir_all(path.join("deep")).unwrap();
            path
        };
        let (live, gone) = (made("store.1"), made("store.2"));
        remove_leftovers(&data, || ["store.1".to_owned()]);
        assert!(live.exists() && !gone.exists());
    }
}
