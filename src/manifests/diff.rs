//! What a look at the watched directories means: what to apply, what to delete, what to hold.
//!
//! Pure: a [`World`] in, a [`Plan`] out, the same for the same world. The service looks, plans,
//! carries out, and looks again.
//!
//! Invariants: nothing is deleted because it could not be seen, only because it was seen to be
//! gone, twice, in the directory that it was in; an object belongs to one file at a time; whatever
//! is held says why.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use crate::api::{Kind, Name, Namespace, Uid};
use crate::clock::Mono;

use super::directory::Identity;
use super::yaml::Place;

/// How long something must be gone before what it made is deleted. Editors and `git checkout` have
/// files back within two seconds. The two listings that a deletion needs lie this far apart.
pub const ABSENCE: Duration = Duration::from_secs(2);
/// The most objects of one directory that may be gone at once without being held.
pub const GONE_MAX: usize = 10;
/// From how many gone objects on more than half of a directory is held.
pub const GONE_HALF_MIN: usize = 5;

/// An object that a document names.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ObjectId {
    /// Its kind.
    pub kind: Kind,
    /// Empty for cluster kinds.
    pub namespace: Namespace,
    /// Its name.
    pub name: Name,
}

impl fmt::Display for ObjectId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.namespace.is_empty() {
            write!(f, "{}/{}", self.kind, self.name)
        } else {
            write!(f, "{}/{}/{}", self.kind, self.namespace, self.name)
        }
    }
}

/// A file: which of the directories, and its path below it. The order is the path order that
/// decides between two files.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Source {
    /// The directory's place in the configuration.
    pub directory: usize,
    /// The path below it.
    pub path: String,
}

/// The hash of a document's canonical text; comments, order and layout do not count.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct DocumentHash(pub String);

/// What is durably known of an object that a file made. An object with a mark and without a record
/// was removed by somebody else: the mark is its tombstone until the document changes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Mark {
    /// The file that has the object.
    pub source: Source,
    /// The document that was applied last.
    pub hash: DocumentHash,
    /// The object that was made.
    pub uid: Uid,
    /// The directory as it was when the object was last seen in it.
    pub identity: Identity,
}

/// A document of a valid file.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Claim {
    /// The object that it names.
    pub object: ObjectId,
    /// What it says.
    pub hash: DocumentHash,
    /// Where its name stands in the file.
    pub place: Place,
}

/// A file as it was seen.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum FileView {
    /// All its documents are in order.
    Valid(Vec<Claim>),
    /// Its documents are in order, and admission refused them: it is tried again, and keeps what
    /// it last applied.
    Refused(Vec<Claim>),
    /// It is broken or cannot be read: it keeps what it last applied.
    Broken,
}

/// A directory as it was seen.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum DirectoryView {
    /// Gone or unreadable.
    Gone,
    /// Listed.
    Listed {
        /// Which directory it is.
        identity: Identity,
        /// Whether what is not in `files` does not exist.
        complete: bool,
        /// Every file by its path.
        files: BTreeMap<String, FileView>,
    },
}

/// All that a plan depends on.
#[derive(Clone, Debug, Default)]
pub struct World {
    /// The directories in the order of the configuration.
    pub directories: Vec<DirectoryView>,
    /// What their files made.
    pub marks: BTreeMap<ObjectId, Mark>,
    /// What was absent in the look before, and since when.
    pub absences: BTreeMap<ObjectId, Mono>,
    /// Whether what is gone from the files is deleted at all.
    pub prune: bool,
}

/// Why an object that is gone from the files is not deleted.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Hold {
    /// Another directory is at the path, with nothing of what was in the one before: a mount is
    /// missing, or it was made anew.
    OtherDirectory,
    /// Too much is gone at once.
    TooMany,
}

/// A file whose document names an object that another file has.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Conflict {
    /// The file that does not get it.
    pub source: Source,
    /// Which of its documents.
    pub document: usize,
    /// The file that has it.
    pub first: Source,
}

/// What to do.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Plan {
    /// Documents to apply, by file; what is not here is applied already.
    pub apply: BTreeMap<Source, Vec<usize>>,
    /// Objects to delete.
    pub delete: Vec<ObjectId>,
    /// Objects that are gone from the files and stay for now, with the directory that had them.
    pub held: BTreeMap<ObjectId, (usize, Hold)>,
    /// Files that are not applied because of another.
    pub conflicts: Vec<Conflict>,
    /// What is absent, for the next plan.
    pub absences: BTreeMap<ObjectId, Mono>,
    /// When to look again at the latest for an absence to count.
    pub wake: Option<Mono>,
}

/// Decides.
#[must_use]
pub fn plan(world: &World, now: Mono) -> Plan {
    let mut plan = Plan::default();
    let owners = owners(world, &mut plan);
    for (object, owner) in &owners {
        let Owner::Document { source, index, hash, identity } = owner else { continue };
        let is_applied = world.marks.get(*object).is_some_and(|mark| {
            mark.source == *source && mark.hash == **hash && mark.identity == *identity
        });
        if !is_applied {
            plan.apply.entry(source.clone()).or_default().push(*index);
        }
    }
    for documents in plan.apply.values_mut() {
        documents.sort_unstable();
    }
    if world.prune {
        for (index, directory) in world.directories.iter().enumerate() {
            if let DirectoryView::Listed { identity, complete, .. } = directory {
                let marks =
                    || world.marks.iter().filter(|(_, mark)| mark.source.directory == index);
                let look = Look {
                    // What is there at all makes it the successor of the directory before: a clone
                    // made anew, a ConfigMap mounted again.
                    is_known: marks().any(|(_, mark)| mark.identity == *identity),
                    complete: *complete,
                    made: marks().count(),
                    gone: marks().filter(|(object, _)| !owners.contains_key(object)).collect(),
                };
                judge(world, &look, now, &mut plan);
            }
        }
    }
    plan
}

/// Who has an object.
enum Owner<'a> {
    /// A document.
    Document { source: Source, index: usize, hash: &'a DocumentHash, identity: Identity },
    /// A file that keeps what it last applied.
    Kept(Source),
}

impl Owner<'_> {
    const fn source(&self) -> &Source {
        match self {
            Self::Document { source, .. } | Self::Kept(source) => source,
        }
    }
}

/// Goes through the files in path order: the first that names an object has it.
fn owners<'a>(world: &'a World, plan: &mut Plan) -> BTreeMap<&'a ObjectId, Owner<'a>> {
    let mut made: BTreeMap<&Source, Vec<&ObjectId>> = BTreeMap::new();
    for (object, mark) in &world.marks {
        made.entry(&mark.source).or_default().push(object);
    }
    let mut owners = BTreeMap::new();
    for (directory, view) in world.directories.iter().enumerate() {
        let DirectoryView::Listed { identity, files, .. } = view else {
            for (object, mark) in &world.marks {
                if mark.source.directory == directory {
                    owners.entry(object).or_insert_with(|| Owner::Kept(mark.source.clone()));
                }
            }
            continue;
        };
        for (path, file) in files {
            let source = Source { directory, path: path.clone() };
            let (documents, mut keeps) = match file {
                FileView::Valid(documents) => (documents.as_slice(), false),
                FileView::Refused(documents) => (documents.as_slice(), true),
                FileView::Broken => (&[][..], true),
            };
            let conflict = documents.iter().enumerate().find_map(|(index, claim)| {
                Some((index, owners.get(&claim.object)?.source().clone()))
            });
            if let Some((document, first)) = conflict {
                plan.conflicts.push(Conflict { source: source.clone(), document, first });
                keeps = true;
            } else {
                for (index, claim) in documents.iter().enumerate() {
                    let (source, hash, identity) = (source.clone(), &claim.hash, *identity);
                    let owner = Owner::Document { source, index, hash, identity };
                    owners.insert(&claim.object, owner);
                }
            }
            if keeps {
                for object in made.get(&source).into_iter().flatten() {
                    owners.entry(object).or_insert_with(|| Owner::Kept(source.clone()));
                }
            }
        }
    }
    owners
}

/// What one listing says of the objects of its directory.
struct Look<'a> {
    /// Whether any object was seen in exactly this directory.
    is_known: bool,
    complete: bool,
    /// How many objects the directory's files made.
    made: usize,
    /// Those that no file has any more.
    gone: BTreeMap<&'a ObjectId, &'a Mark>,
}

/// Decides of what is gone: waits, holds or deletes.
fn judge(world: &World, look: &Look<'_>, now: Mono, plan: &mut Plan) {
    let since_of = |object: &ObjectId| world.absences.get(object).copied().unwrap_or(now);
    // "At once" is what went within the time that an absence takes to count: what was held before
    // does not hold what goes later.
    let is_one_of_many = |since: Mono| {
        let goes_with = |other: Mono| other.since(since).max(since.since(other)) <= ABSENCE;
        let count = look.gone.keys().filter(|object| goes_with(since_of(object))).count();
        count > GONE_MAX || (count >= GONE_HALF_MIN && count * 2 > look.made)
    };
    for (object, mark) in &look.gone {
        if !look.is_known {
            plan.held.insert((*object).clone(), (mark.source.directory, Hold::OtherDirectory));
            continue;
        }
        let since = world.absences.get(*object).copied();
        if !look.complete {
            // An absence that was seen before goes on, a new one is not seen.
            if let Some(since) = since {
                plan.absences.insert((*object).clone(), since);
            }
            continue;
        }
        let since = since.unwrap_or(now);
        let due = since.plus(ABSENCE);
        plan.absences.insert((*object).clone(), since);
        if now < due {
            plan.wake = Some(plan.wake.map_or(due, |wake| wake.min(due)));
        } else if is_one_of_many(since) {
            plan.held.insert((*object).clone(), (mark.source.directory, Hold::TooMany));
        } else {
            plan.delete.push((*object).clone());
        }
    }
    // What is made last is deleted first: a session goes before the agent that it uses.
    plan.delete.sort_by_key(|object| {
        std::cmp::Reverse(Kind::ALL.iter().position(|kind| *kind == object.kind))
    });
}

#[cfg(test)]
mod tests;
