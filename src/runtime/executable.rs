//! The program of an Agent's command, found on the path that its process will have.
//!
//! The words come from `api::command`. Looking a program up is the only thing here that touches
//! the file system, and it changes nothing.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use rustix::fs::Access;

/// Why a command cannot be started.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// No such program.
    #[error("{program:?} was not found in {}", list(searched))]
    NotFound {
        /// What was looked for.
        program: String,
        /// Where, in this order.
        searched: Vec<PathBuf>,
    },
    /// A path that is no program.
    #[error("{} is not an executable file", path.display())]
    NotExecutable {
        /// Which.
        path: PathBuf,
    },
}

fn list(directories: &[PathBuf]) -> String {
    if directories.is_empty() {
        return "any directory: the PATH is empty".to_owned();
    }
    let names: Vec<String> = directories.iter().map(|path| path.display().to_string()).collect();
    names.join(", ")
}

/// The absolute path of a program: the Agent's `path` entries first, then the child's own `PATH`.
/// A program with a slash is looked for below `cwd` alone. Links are not followed: many programs
/// go by the name that they were started by. Relative entries are left out: they would make the
/// program depend on what lies in the session's directory.
///
/// # Errors
///
/// [`Error::NotFound`] with the directories that were searched, or [`Error::NotExecutable`].
pub fn resolve(
    program: &str,
    agent_path: &[String],
    child_path: Option<&OsStr>,
    cwd: &Path,
) -> Result<PathBuf, Error> {
    if program.contains('/') {
        let path = cwd.join(program);
        return if is_executable(&path) { Ok(path) } else { Err(Error::NotExecutable { path }) };
    }
    let own = child_path.map(|text| std::env::split_paths(text).collect::<Vec<_>>());
    let entries = agent_path.iter().map(PathBuf::from).chain(own.unwrap_or_default());
    let mut searched: Vec<PathBuf> = Vec::new();
    for directory in entries.filter(|entry| entry.is_absolute()) {
        if searched.contains(&directory) {
            continue;
        }
        let path = directory.join(program);
        if is_executable(&path) {
            return Ok(path);
        }
        searched.push(directory);
    }
    Err(Error::NotFound { program: program.to_owned(), searched })
}

fn is_executable(path: &Path) -> bool {
    path.is_file() && rustix::fs::access(path, Access::EXEC_OK).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn program(directory: &Path, name: &str, mode: u32) {
        use std::os::unix::fs::PermissionsExt;
        std::fs::write(directory.join(name), "").unwrap();
        let mode = PermissionsExt::from_mode(mode);
        std::fs::set_permissions(directory.join(name), mode).unwrap();
    }

    #[test]
    fn the_agents_directories_come_before_the_path() {
        let (first, second) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        program(first.path(), "only-first", 0o755);
        program(first.path(), "both", 0o755);
        program(second.path(), "both", 0o755);
        program(second.path(), "shadowed", 0o755);
        program(first.path(), "shadowed", 0o644);
        let agent = [first.path().to_str().unwrap().to_owned()];
        let find = |name| resolve(name, &agent, Some(second.path().as_os_str()), Path::new("/"));
        assert_eq!(find("only-first"), Ok(first.path().join("only-first")));
        assert_eq!(find("both"), Ok(first.path().join("both")));
        // A file that cannot be executed hides nothing.
        assert_eq!(find("shadowed"), Ok(second.path().join("shadowed")));
    }

    #[test]
    fn a_program_that_is_not_found_lists_what_was_searched() {
        let path = OsStr::new("/no/such/a:relative::/no/such/b:/no/such/a");
        let error = resolve("agent", &["/no/such/c".into()], Some(path), Path::new("/"));
        let expected = "\"agent\" was not found in /no/such/c, /no/such/a, /no/such/b";
        assert_eq!(error.unwrap_err().to_string(), expected);
    }

    #[test]
    fn a_path_is_taken_below_the_working_directory() {
        let directory = tempfile::tempdir().unwrap();
        program(directory.path(), "agent", 0o755);
        let found = resolve("./agent", &[], None, directory.path());
        assert_eq!(found, Ok(directory.path().join("./agent")));
        let error = resolve("./absent", &[], None, directory.path()).unwrap_err();
        assert!(matches!(error, Error::NotExecutable { .. }));
        let directory_itself = resolve("/usr", &[], None, Path::new("/")).unwrap_err();
        assert_eq!(directory_itself.to_string(), "/usr is not an executable file");
    }
}
