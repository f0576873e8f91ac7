//! The PATH of a login shell: what a person's programs are found on, and a service's are not.
//!
//! Service managers start a daemon with a short PATH; version managers (nvm, fnm, volta) put theirs
//! into the shell's profile. Which shell is asked, what it is asked, and what its answer is worth is
//! here, as pure functions; `server` runs it, once, at the start. Invariants: a directory of the
//! login shell never comes before one of the service; what is no absolute directory is left out.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

/// Stands around the answer: a profile may write whatever it likes before and behind.
const MARK: &str = "<spawnlet-path>";
/// What the shell is told to do. Every shell has `printf`; fish joins `"$PATH"` by colons too.
const SCRIPT: &str = r#"printf '<spawnlet-path>%s<spawnlet-path>' "$PATH""#;
/// The most directories that are taken: more is no PATH that anybody wrote.
const DIRECTORIES_MAX: usize = 256;

/// Why a login shell told nothing.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// Nobody knows which one.
    #[error("no login shell is known: SHELL is not set and /etc/passwd has none for this user")]
    NoShell,
    /// Its answer was not found in what it wrote.
    #[error("it did not tell its PATH")]
    NoAnswer,
}

/// The arguments by which a login shell tells its PATH.
#[must_use]
pub fn arguments() -> [OsString; 2] {
    ["-lc".into(), SCRIPT.into()]
}

/// The user's login shell: `$SHELL`, else what `/etc/passwd` (its text is `passwd`) says of the user.
///
/// # Errors
///
/// [`Error::NoShell`].
pub fn shell(variable: Option<&OsStr>, passwd: &str, user: u32) -> Result<PathBuf, Error> {
    let absolute = |path: &Path| path.is_absolute().then(|| path.to_owned());
    let of_passwd = || {
        let mut entries = passwd.lines().map(|line| line.split(':').collect::<Vec<_>>());
        let user = user.to_string();
        let entry = entries.find(|fields| fields.get(2) == Some(&user.as_str()))?;
        absolute(Path::new(entry.get(6)?))
    };
    variable.and_then(|shell| absolute(Path::new(shell))).or_else(of_passwd).ok_or(Error::NoShell)
}

/// The directories of a login shell's answer that the service's own PATH lacks, in their order.
///
/// # Errors
///
/// [`Error::NoAnswer`].
pub fn directories(answer: &[u8], service: Option<&OsStr>) -> Result<Vec<PathBuf>, Error> {
    let mark = MARK.as_bytes();
    let at = |from: usize| {
        let rest = answer.get(from..)?;
        rest.windows(mark.len()).position(|window| window == mark).map(|found| from + found)
    };
    let start = at(0).ok_or(Error::NoAnswer)? + mark.len();
    let end = at(start).ok_or(Error::NoAnswer)?;
    let path = OsStr::from_bytes(answer.get(start..end).unwrap_or_default());
    let mut known: Vec<PathBuf> =
        service.map(|path| std::env::split_paths(path).collect()).unwrap_or_default();
    let of_service = known.len();
    for directory in std::env::split_paths(path).filter(|path| path.is_absolute()) {
        if !known.contains(&directory) && known.len() - of_service < DIRECTORIES_MAX {
            known.push(directory);
        }
    }
    Ok(known.split_off(of_service))
}

/// A PATH with more directories behind it; none if there would be nothing on it.
#[must_use]
pub fn appended(service: Option<OsString>, directories: &[PathBuf]) -> Option<OsString> {
    if directories.is_empty() {
        return service;
    }
    let mut path = service.unwrap_or_default().into_vec();
    for directory in directories {
        if !path.is_empty() {
            path.push(b':');
        }
        path.extend_from_slice(directory.as_os_str().as_bytes());
    }
    Some(OsString::from_vec(path))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_shell_is_that_of_the_variable_or_of_the_user_s_entry() {
        let passwd = "root:x:0:0::/root:/bin/bash\na:x:1000:1000:A,,:/home/a:/usr/bin/zsh\nb:x:7\n";
        let of = |variable: Option<&str>, user| shell(variable.map(OsStr::new), passwd, user);
        assert_eq!(of(Some("/bin/fish"), 1000), Ok("/bin/fish".into()));
        assert_eq!(of(None, 1000), Ok("/usr/bin/zsh".into()));
        // Nothing is looked up on a PATH to find out a PATH.
        assert_eq!(of(Some("zsh"), 0), Ok("/bin/bash".into()));
        assert_eq!(of(Some(""), 7), Err(Error::NoShell));
        assert_eq!(of(None, 8), Err(Error::NoShell));
    }

    #[test]
    fn an_answer_is_found_among_whatever_a_profile_writes() {
        let service = Some(OsStr::new("/usr/bin:/bin"));
        let told = |answer: &str| directories(answer.as_bytes(), service);
        let expected: Vec<PathBuf> = vec!["/home/a/.nvm/bin".into(), "/opt/x y".into()];
        assert_eq!(
            told(
                "hello\n<spawnlet-path>/home/a/.nvm/bin:/bin:rel::/opt/x y:/opt/x y\
                 <spawnlet-path>bye"
            ),
            Ok(expected)
        );
        assert_eq!(told("<spawnlet-path>/usr/bin<spawnlet-path>"), Ok(Vec::new()));
        assert_eq!(told("<spawnlet-path>/usr/bin"), Err(Error::NoAnswer));
        assert_eq!(told("This account is not available.\n"), Err(Error::NoAnswer));
        let many: String = (0..1000).map(|n| format!("/{n}:")).collect();
        let many = told(&format!("{MARK}{many}{MARK}")).unwrap();
        assert_eq!(many.len(), DIRECTORIES_MAX);
        assert!(SCRIPT.contains(MARK));
    }

    #[test]
    fn directories_of_the_login_shell_come_last() {
        let more = [PathBuf::from("/a"), PathBuf::from("/b")];
        assert_eq!(appended(Some("/bin".into()), &more), Some("/bin:/a:/b".into()));
        assert_eq!(appended(None, &more), Some("/a:/b".into()));
        assert_eq!(appended(Some("/bin".into()), &[]), Some("/bin".into()));
        assert_eq!(appended(None, &[]), None);
    }
}
