//! What is known of the files of one directory between two looks at it.
//!
//! A file's content is taken once two listings, [`SETTLE`] apart, found the same: so a file that is
//! being written is never read as if it were whole. What each file said last is kept as names and
//! hashes; its documents are read again when they are applied.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use super::diff::{Claim, FileView};
use super::directory::{self, ContentHash, Entry, Listing};
use super::document::{Checked, check_file};
use super::yaml::{Error, Format};
use crate::api::Time;
use crate::clock::Mono;

/// How long a file's content must have stood still.
pub(super) const SETTLE: Duration = Duration::from_millis(200);

/// What a file said when it was last taken.
#[derive(Clone, Debug)]
pub(super) struct Taken {
    /// Its content then; `None` if it could not be read.
    pub(super) content: Option<ContentHash>,
    /// Its documents, or what is wrong with it.
    pub(super) documents: Result<Vec<Claim>, Vec<Error>>,
    /// What is allowed and should not be so.
    pub(super) warnings: Vec<Error>,
    /// Why admission or another file stands against it; set by the service, as all that follows.
    pub(super) refused: Vec<Error>,
    /// What admission says beside taking it.
    pub(super) notes: Vec<Error>,
    /// Whether an old object has to go before its successor is made.
    pub(super) is_waiting: bool,
    /// When the file was last applied whole, with this content or an earlier one.
    pub(super) applied_at: Option<Time>,
}

#[derive(Clone, Debug, Default)]
struct File {
    taken: Option<Taken>,
    /// Content that is not taken yet, and since when it stands there.
    unsettled: Option<(Entry, Mono)>,
}

/// The files of a directory.
#[derive(Clone, Debug, Default)]
pub(super) struct Shelf {
    files: BTreeMap<String, File>,
}

impl Shelf {
    /// Takes in a listing. Tells when to look again for content to settle. Blocking: it reads what
    /// is new. `at_once`: at the start there is nothing that a half-written file could harm.
    pub(super) fn take(
        &mut self,
        root: &Path,
        listing: &Listing,
        now: Mono,
        at_once: bool,
    ) -> Option<Mono> {
        self.files.retain(|path, _| listing.files.contains_key(path));
        let mut wake: Option<Mono> = None;
        for (path, entry) in &listing.files {
            let file = self.files.entry(path.clone()).or_default();
            let is_known = file.taken.as_ref().is_some_and(|taken| match entry {
                Entry::Content(hash) => taken.content == Some(*hash),
                Entry::Unreadable(why) => {
                    taken.content.is_none()
                        && taken.documents.as_ref().is_err_and(|faults| {
                            faults.first().is_some_and(|fault| fault.message == *why)
                        })
                }
            });
            if is_known {
                file.unsettled = None;
                continue;
            }
            let since = match &file.unsettled {
                Some((seen, since)) if seen == entry => *since,
                _ => now,
            };
            let due = since.plus(SETTLE);
            if !at_once && now < due {
                file.unsettled = Some((entry.clone(), since));
                wake = Some(wake.map_or(due, |wake| wake.min(due)));
                continue;
            }
            match taken(root, path, entry) {
                Some(mut taken) => {
                    taken.applied_at = file.taken.as_ref().and_then(|last| last.applied_at);
                    *file = File { taken: Some(taken), unsettled: None };
                }
                None => {
                    // It changed between listing and reading.
                    file.unsettled = Some((entry.clone(), now));
                    wake = Some(now.plus(SETTLE));
                }
            }
        }
        wake
    }

    /// What the planner may know. A new file that has not settled is not there yet.
    pub(super) fn views(&self) -> BTreeMap<String, FileView> {
        self.taken()
            .map(|(path, taken)| {
                let view = match &taken.documents {
                    Err(_) => FileView::Broken,
                    Ok(claims) if taken.refused.is_empty() => FileView::Valid(claims.clone()),
                    Ok(claims) => FileView::Refused(claims.clone()),
                };
                (path.clone(), view)
            })
            .collect()
    }

    pub(super) fn taken(&self) -> impl Iterator<Item = (&String, &Taken)> {
        self.files.iter().filter_map(|(path, file)| Some((path, file.taken.as_ref()?)))
    }

    pub(super) fn taken_mut(&mut self) -> impl Iterator<Item = (&String, &mut Taken)> {
        self.files.iter_mut().filter_map(|(path, file)| Some((path, file.taken.as_mut()?)))
    }

    /// The content that a file was taken with.
    pub(super) fn content(&self, path: &str) -> Option<ContentHash> {
        self.files.get(path)?.taken.as_ref()?.content
    }

    /// A document of a valid file.
    pub(super) fn claim(&self, path: &str, document: usize) -> Option<&Claim> {
        self.files.get(path)?.taken.as_ref()?.documents.as_ref().ok()?.get(document)
    }

    pub(super) fn get_mut(&mut self, path: &str) -> Option<&mut Taken> {
        self.files.get_mut(path)?.taken.as_mut()
    }
}

/// Reads and checks a file; `None` if it is not what was listed.
fn taken(root: &Path, path: &str, entry: &Entry) -> Option<Taken> {
    let (content, documents) = match entry {
        Entry::Unreadable(why) => (None, Err(vec![unreadable(why.clone())])),
        Entry::Content(hash) => (Some(*hash), read(root, path, hash)?),
    };
    let mut warnings = Vec::new();
    let documents = documents.map(|documents| {
        let claim = |document: Checked| {
            warnings.extend(document.warnings);
            document.claim
        };
        documents.into_iter().map(claim).collect()
    });
    Some(Taken {
        content,
        documents,
        warnings,
        refused: Vec::new(),
        notes: Vec::new(),
        is_waiting: false,
        applied_at: None,
    })
}

/// Reads a file's documents if its content is still the one that was listed.
pub(super) fn read(
    root: &Path,
    path: &str,
    content: &ContentHash,
) -> Option<Result<Vec<Checked>, Vec<Error>>> {
    match directory::read(root, path) {
        Ok(Some(bytes)) if directory::hash(&bytes) == *content => {
            Some(check_file(&bytes, Format::of_path(Path::new(path))))
        }
        Ok(_) => None,
        Err(why) => Some(Err(vec![unreadable(why)])),
    }
}

fn unreadable(why: String) -> Error {
    Error { place: super::yaml::Place::START, field: String::new(), message: why }
}

#[cfg(test)]
mod tests {
    use super::*;

    const AGENT: &str =
        "apiVersion: spawnlet.dev/v1alpha1\nkind: Agent\nmetadata: {name: a}\nspec: {argv: [a]}\n";

    #[test]
    fn content_is_taken_once_it_stands_still() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("a.yaml");
        let mut shelf = Shelf::default();
        let look = |shelf: &mut Shelf, at: u64| {
            let listing = directory::list(root.path()).unwrap();
            shelf.take(root.path(), &listing, Mono(at), false)
        };
        // Written in many steps, each sooner than the content could settle.
        for (step, end) in (0..AGENT.len()).step_by(7).enumerate() {
            std::fs::write(&path, &AGENT[..end]).unwrap();
            let at = 150 * step as u64;
            assert_eq!(look(&mut shelf, at), Some(Mono(at + 200)));
            assert!(shelf.views().is_empty());
        }
        std::fs::write(&path, AGENT).unwrap();
        assert_eq!(look(&mut shelf, 10_000), Some(Mono(10_200)));
        assert_eq!(look(&mut shelf, 10_199), Some(Mono(10_200)));
        assert_eq!(look(&mut shelf, 10_200), None);
        assert!(matches!(&shelf.views()["a.yaml"], FileView::Valid(claims) if claims.len() == 1));

        // What was taken stays while the next content is being written.
        std::fs::write(&path, "").unwrap();
        assert_eq!(look(&mut shelf, 20_000), Some(Mono(20_200)));
        assert!(matches!(&shelf.views()["a.yaml"], FileView::Valid(claims) if claims.len() == 1));
        std::fs::write(&path, AGENT).unwrap();
        assert_eq!(look(&mut shelf, 20_100), None);
        std::fs::write(&path, "{").unwrap();
        look(&mut shelf, 30_000);
        look(&mut shelf, 30_200);
        assert_eq!(shelf.views()["a.yaml"], FileView::Broken);
    }

    #[test]
    fn a_file_that_cannot_be_read_is_told_once() {
        let root = tempfile::tempdir().unwrap();
        std::os::unix::fs::symlink("/dev/null", root.path().join("a.yaml")).unwrap();
        let listing = directory::list(root.path()).unwrap();
        let mut shelf = Shelf::default();
        assert_eq!(shelf.take(root.path(), &listing, Mono(0), true), None);
        assert_eq!(shelf.views()["a.yaml"], FileView::Broken);
        assert_eq!(shelf.take(root.path(), &listing, Mono(1), false), None);
    }
}
