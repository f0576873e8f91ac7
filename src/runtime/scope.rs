//! The directories of a session: checked, canonical, without duplicates.
//!
//! They are pinned in the record at the first launch: later starts use what was pinned and check
//! with [`still_there`] only. A check here holds for the moment of the check; what an agent does
//! with paths later is checked when it asks.

use std::path::Path;

use crate::api::session::Scope;

/// A directory that cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {value:?} {problem}, expected {expected}")]
pub struct Error {
    /// `cwd` or `additionalDirectories[N]`.
    pub field: String,
    /// What it held.
    pub value: String,
    /// What is wrong with it.
    pub problem: String,
    /// What it should be.
    pub expected: &'static str,
}

const EXPECTED: &str = "the absolute path of an existing directory";

/// Resolves a session's directories. `label` names them for people. Additional ones that are the
/// working directory, or came before, are left out.
///
/// # Errors
///
/// The first one that is empty, relative, absent, no directory, or has a path that is no UTF-8.
pub fn resolve(cwd: &str, additional: &[String], label: &str) -> Result<Scope, Error> {
    let cwd = directory("cwd", cwd)?;
    let mut kept: Vec<String> = Vec::new();
    for (index, value) in additional.iter().enumerate() {
        let path = directory(&format!("additionalDirectories[{index}]"), value)?;
        if path != cwd && !kept.contains(&path) {
            kept.push(path);
        }
    }
    Ok(Scope { cwd, additional_directories: kept, label: label.to_owned(), folders: Vec::new() })
}

/// Whether pinned directories are still what they were: the same path without a link in it.
///
/// # Errors
///
/// The first one that is gone, no directory any more, or reached over a link now.
pub fn still_there(scope: &Scope) -> Result<(), Error> {
    let now = resolve(&scope.cwd, &scope.additional_directories, &scope.label)?;
    let mut moved =
        std::iter::once(("cwd".to_owned(), &scope.cwd, &now.cwd)).chain(
            scope.additional_directories.iter().zip(&now.additional_directories).enumerate().map(
                |(index, (before, now))| (format!("additionalDirectories[{index}]"), before, now),
            ),
        );
    match moved.find(|(_, before, now)| before != now) {
        Some((field, before, now)) => Err(Error {
            field,
            value: before.clone(),
            problem: format!("leads to {now:?} now"),
            expected: "the directory that the session began in",
        }),
        None => Ok(()),
    }
}

fn directory(field: &str, value: &str) -> Result<String, Error> {
    let error = |problem: String| Error {
        field: field.to_owned(),
        value: value.to_owned(),
        problem,
        expected: EXPECTED,
    };
    if value.is_empty() {
        return Err(error("is empty".to_owned()));
    }
    if !Path::new(value).is_absolute() {
        return Err(error("is relative".to_owned()));
    }
    let path = std::fs::canonicalize(value)
        .map_err(|source| error(format!("cannot be resolved ({source})")))?;
    if !path.is_dir() {
        return Err(error("is not a directory".to_owned()));
    }
    path.into_os_string()
        .into_string()
        .map_err(|path| error(format!("leads to a path that is not UTF-8 ({})", path.display())))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problem(cwd: &str, additional: &[&str]) -> String {
        let additional: Vec<String> = additional.iter().map(|&path| path.to_owned()).collect();
        resolve(cwd, &additional, "").unwrap_err().to_string()
    }

    #[test]
    fn directories_are_canonical_and_come_once() {
        let base = tempfile::tempdir().unwrap();
        let root = base.path().canonicalize().unwrap();
        for name in ["work", "extra"] {
            std::fs::create_dir(root.join(name)).unwrap();
        }
        std::os::unix::fs::symlink("extra", root.join("link")).unwrap();
        let text = |name: &str| root.join(name).to_str().unwrap().to_owned();
        let additional =
            [text("link"), text("work/../work"), text("extra"), root.to_str().unwrap().to_owned()];
        let scope = resolve(&text("work/."), &additional, "here").unwrap();
        let expected = Scope {
            cwd: text("work"),
            additional_directories: vec![text("extra"), root.to_str().unwrap().to_owned()],
            label: "here".into(),
            folders: Vec::new(),
        };
        assert_eq!(scope, expected);
        assert_eq!(still_there(&scope), Ok(()));
    }

    #[test]
    fn a_directory_that_cannot_be_used_is_named_with_what_was_expected() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let file = file.path().to_str().unwrap();
        let expected = "expected the absolute path of an existing directory";
        assert_eq!(problem("", &[]), format!("cwd: \"\" is empty, {expected}"));
        assert_eq!(problem("a/b", &[]), format!("cwd: \"a/b\" is relative, {expected}"));
        assert_eq!(
            problem("/", &["/", file]),
            format!("additionalDirectories[1]: {file:?} is not a directory, {expected}")
        );
        assert!(problem("/no/such/place", &[]).contains("cannot be resolved"));
    }

    #[test]
    fn a_pinned_directory_that_became_a_link_is_noticed() {
        let base = tempfile::tempdir().unwrap();
        let root = base.path().canonicalize().unwrap();
        std::fs::create_dir(root.join("work")).unwrap();
        let scope = resolve(root.join("work").to_str().unwrap(), &[], "").unwrap();
        std::fs::rename(root.join("work"), root.join("elsewhere")).unwrap();
        assert!(still_there(&scope).unwrap_err().problem.contains("cannot be resolved"));
        std::os::unix::fs::symlink("elsewhere", root.join("work")).unwrap();
        assert!(still_there(&scope).unwrap_err().problem.contains("elsewhere"));
    }
}
