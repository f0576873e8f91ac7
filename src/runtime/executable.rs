//! An Agent's command: split into words, and its program found.
//!
//! No shell is ever started, so what only a shell understands is refused with a hint rather than
//! handed to the agent as it stands. Looking a program up is the only thing here that touches the
//! file system, and it changes nothing.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use rustix::fs::Access;

/// Why a command cannot be started.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// It has no words.
    #[error("empty, expected a program and its arguments")]
    Empty,
    /// A quote is not closed, or a backslash ends it.
    #[error("column {column}: {what} is not closed")]
    Unclosed {
        /// Where it was opened, in characters from 1.
        column: usize,
        /// A single quote, a double quote, or a backslash.
        what: &'static str,
    },
    /// It is written for a shell.
    #[error(
        "column {column}: {what:?} would need a shell, and none is started: quote it, use argv, or \
         start a shell by name"
    )]
    Shell {
        /// Where, in characters from 1.
        column: usize,
        /// The character.
        what: char,
    },
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

/// The words of a command line, by the quoting rules of a POSIX shell.
///
/// # Errors
///
/// [`Error::Empty`], [`Error::Unclosed`] or [`Error::Shell`], with the place.
pub fn split(command: &str) -> Result<Vec<String>, Error> {
    check(command)?;
    // What the crate would refuse was refused above, with the place.
    let words = shell_words::split(command).map_err(|_| Error::Empty)?;
    if words.first().is_none_or(String::is_empty) { Err(Error::Empty) } else { Ok(words) }
}

/// Finds what makes a command line unfit, by the rules that it is split by.
fn check(command: &str) -> Result<(), Error> {
    #[derive(PartialEq)]
    enum In {
        Plain,
        Single(usize),
        Double(usize),
    }
    let mut state = In::Plain;
    let mut word_begins = true;
    let mut characters = command.chars().zip(1..);
    while let Some((character, column)) = characters.next() {
        let begins = std::mem::replace(&mut word_begins, false);
        match (&state, character) {
            (In::Single(_), '\'') | (In::Double(_), '"') => state = In::Plain,
            (In::Single(_), _) => {}
            (_, '\\') => {
                if characters.next().is_none() {
                    return Err(Error::Unclosed { column, what: "a backslash" });
                }
            }
            (_, '$' | '`') => return Err(Error::Shell { column, what: character }),
            (In::Double(_), _) => {}
            (In::Plain, '\'') => state = In::Single(column),
            (In::Plain, '"') => state = In::Double(column),
            (In::Plain, '|' | '&' | ';' | '<' | '>' | '(' | ')') => {
                return Err(Error::Shell { column, what: character });
            }
            (In::Plain, '~' | '#') if begins => {
                return Err(Error::Shell { column, what: character });
            }
            (In::Plain, ' ' | '\t' | '\n') => word_begins = true,
            (In::Plain, _) => {}
        }
    }
    match state {
        In::Plain => Ok(()),
        In::Single(column) => Err(Error::Unclosed { column, what: "a single quote" }),
        In::Double(column) => Err(Error::Unclosed { column, what: "a double quote" }),
    }
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

    fn words(command: &str) -> Result<Vec<String>, String> {
        split(command).map_err(|error| error.to_string())
    }

    #[test]
    fn words_are_split_by_shell_quoting() {
        let expected = ["npx", "-y", "a b", "c\"d", "$e", "", "f#g~"];
        assert_eq!(words(r#"npx -y 'a b' c\"d '$e' "" f#g~"#).unwrap(), expected);
    }

    #[test]
    fn what_cannot_be_split_is_refused_with_its_place() {
        for (command, place) in [
            ("agent 'open", "column 7: a single quote is not closed"),
            ("agent \"open", "column 7: a double quote is not closed"),
            ("é \\", "column 3: a backslash is not closed"),
            ("", "empty, expected a program and its arguments"),
            ("  ", "empty, expected a program and its arguments"),
            ("'' a", "empty, expected a program and its arguments"),
        ] {
            assert_eq!(words(command), Err(place.to_owned()), "{command:?}");
        }
    }

    #[test]
    fn what_needs_a_shell_is_refused_with_its_place() {
        for (command, column, what) in [
            ("a && b", 3, '&'),
            ("a $HOME", 3, '$'),
            ("a \"$HOME\"", 4, '$'),
            ("~/bin/a", 1, '~'),
            ("a | b", 3, '|'),
            ("a `b`", 3, '`'),
            ("a # b", 3, '#'),
            ("a > b", 3, '>'),
        ] {
            assert_eq!(split(command), Err(Error::Shell { column, what }), "{command:?}");
        }
    }

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
