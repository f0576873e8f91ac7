//! What `get manifests` shows: each file, and each directory that something is wrong with.

use std::collections::BTreeMap;

use super::diff::Hold;
use super::ledger::Ledger;
use super::shelf::Taken;
use super::watcher::Directory;
use super::yaml::Error;
use crate::api::{ConditionStatus, Conditions, Time};
use crate::ports::Manifest;

/// The most faults of one file that are shown; who has mended these sees the rest.
const FAULTS_SHOWN_MAX: usize = 20;
/// The most objects or reasons that one message names.
const NAMES_SHOWN_MAX: usize = 5;
/// The condition of the daemon that tells whether notification works.
const WATCH_NATIVE: &str = "WatchNative";

/// The files of a directory, after the directory itself if it has a problem.
pub(super) fn of_directory(directory: &Directory, ledger: Option<&Ledger>) -> Vec<Manifest> {
    let mut manifests = Vec::new();
    if let Some(error) = problem(directory) {
        manifests.push(Manifest {
            path: directory.root.display().to_string(),
            documents: 0,
            objects: Vec::new(),
            error: Some(error),
            applied_at: None,
        });
    }
    let root = directory.root.display().to_string();
    let mut made: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    for (object, entry) in ledger.into_iter().flat_map(Ledger::iter) {
        if entry.directory == root {
            made.entry(&entry.path).or_default().push(object.to_string());
        }
    }
    for (path, taken) in directory.shelf.taken() {
        let objects = made.remove(path.as_str()).unwrap_or_default();
        let documents = taken.documents.as_ref().map_or(0, Vec::len);
        manifests.push(Manifest {
            path: directory.full(path),
            documents: u32::try_from(documents).unwrap_or(u32::MAX),
            objects,
            error: error(&directory.full(path), taken),
            applied_at: taken.applied_at,
        });
    }
    manifests
}

/// Why a file is not applied, one fault a line.
pub(super) fn error(path: &str, taken: &Taken) -> Option<String> {
    let faults = taken.documents.as_ref().err().unwrap_or(&taken.refused);
    if faults.is_empty() {
        let waiting = "an object is being replaced: the old one has to end first";
        return taken.is_waiting.then(|| format!("{path}: {waiting}"));
    }
    Some(lines(path, faults))
}

/// Faults or warnings with the file before each.
pub(super) fn lines(path: &str, faults: &[Error]) -> String {
    let mut lines: Vec<String> =
        faults.iter().take(FAULTS_SHOWN_MAX).map(|fault| format!("{path}:{fault}")).collect();
    if faults.len() > FAULTS_SHOWN_MAX {
        lines.push(format!("{path}: and {} more", faults.len() - FAULTS_SHOWN_MAX));
    }
    lines.join("\n")
}

/// What is wrong with a directory as a whole.
pub(super) fn problem(directory: &Directory) -> Option<String> {
    let root = directory.root.display();
    if let Some(why) = &directory.gone {
        return Some(format!(
            "{root}: cannot be listed: {why}; nothing is deleted, and it is looked for every 2 s"
        ));
    }
    let mut problems = Vec::new();
    if let Some(listing) = &directory.listing {
        if !listing.is_complete() {
            let gaps = shown(listing.gaps.iter().cloned());
            problems.push(format!("{root}: listed in part, nothing of it is deleted: {gaps}"));
        }
        if listing.left_out > 0 {
            let (count, most) = (listing.left_out, super::directory::FILES_MAX);
            problems.push(format!("{root}: {count} files left out, expected at most {most}"));
        }
    }
    let held = |hold: Hold| {
        let objects = directory.held.iter().filter(move |(_, held)| **held == hold);
        objects.map(|(object, _)| object.to_string())
    };
    if held(Hold::TooMany).next().is_some() {
        problems.push(format!(
            "{root}: {} objects are gone from the files at once, their deletion is held ({}); put \
             the files back, or delete the objects by name (`manifests confirm` is not supported \
             yet)",
            held(Hold::TooMany).count(),
            shown(held(Hold::TooMany)),
        ));
    }
    if held(Hold::OtherDirectory).next().is_some() {
        problems.push(format!(
            "{root}: another directory than before is at this path (is a mount missing?), {} objects \
             of the one before stay ({}); put their files here, or delete the objects by name",
            held(Hold::OtherDirectory).count(),
            shown(held(Hold::OtherDirectory)),
        ));
    }
    if problems.is_empty() { None } else { Some(problems.join("\n")) }
}

fn shown(names: impl Iterator<Item = String>) -> String {
    let mut names: Vec<String> = names.collect();
    if names.len() > NAMES_SHOWN_MAX {
        names.truncate(NAMES_SHOWN_MAX);
        names.push("...".to_owned());
    }
    names.join(", ")
}

/// Whether changes are told by the system or have to be looked for.
pub(super) fn watch_native(conditions: &mut Conditions, problem: Option<&str>, now: Time) {
    match problem {
        None => conditions.set(WATCH_NATIVE, ConditionStatus::True, "Watching", "", 0, now),
        Some(why) => {
            let message = format!("{why}; the manifest directories are looked at every 2 s");
            conditions.set(WATCH_NATIVE, ConditionStatus::False, "Polling", message, 0, now);
        }
    }
}
