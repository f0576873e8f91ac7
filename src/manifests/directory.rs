//! Lists a watched directory: which manifest files it holds, and what is in them.
//!
//! Blocking; the service calls it on a blocking thread. Symlinks are followed, so that a mounted
//! ConfigMap works: its files are links through `..data`, and `..data` itself, being hidden, is
//! not walked.
//!
//! Invariants: only regular files are read, at most [`FILE_BYTES_MAX`] and one byte of each, and
//! no FIFO or device can block the walk; what could not be read is told and never looks like
//! something that is gone; one file is in memory at a time.
//!
//! Absent on purpose: parsing, and any decision of what an absence means (`diff`).

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File, Metadata, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

use rustix::fs::OFlags;
use sha2::{Digest, Sha256};

use super::yaml::FILE_BYTES_MAX;

/// The most files of one directory; more are left out, in path order.
pub const FILES_MAX: usize = 1000;
/// The most directory entries that are looked at; a directory with more is not listed whole.
pub const ENTRIES_MAX: usize = 100_000;
/// The deepest subdirectory.
pub const LEVELS_MAX: usize = 16;

/// Which directory it is, whatever its path: inode and time of birth, since inodes are used again.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Identity {
    inode: u64,
    born_ns: u128,
}

impl Identity {
    /// An identity from its parts: inode, and nanoseconds since 1970 at its birth, 0 if unknown.
    #[must_use]
    pub const fn new(inode: u64, born_ns: u128) -> Self {
        Self { inode, born_ns }
    }

    /// The inode.
    #[must_use]
    pub const fn inode(self) -> u64 {
        self.inode
    }

    /// Nanoseconds since 1970 at its birth, 0 if unknown.
    #[must_use]
    pub const fn born_ns(self) -> u128 {
        self.born_ns
    }

    fn of(metadata: &Metadata) -> Self {
        let born = metadata.created().ok().and_then(|born| born.duration_since(UNIX_EPOCH).ok());
        Self::new(metadata.ino(), born.map_or(0, |born| born.as_nanos()))
    }
}

impl std::fmt::Display for Identity {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}-{}", self.inode, self.born_ns)
    }
}

/// The SHA-256 of a file's bytes.
pub type ContentHash = [u8; 32];

/// What a listing found at a path.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Entry {
    /// A file with this content.
    Content(ContentHash),
    /// Something is there and cannot be had; why.
    Unreadable(String),
}

/// One look at a whole directory.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Listing {
    /// Which directory was listed.
    pub identity: Identity,
    /// Every manifest file by its path below the directory, in path order.
    pub files: BTreeMap<String, Entry>,
    /// Every directory that was walked, and which it is: what a watch must be on.
    pub directories: BTreeMap<PathBuf, Identity>,
    /// Why something may be missing in it. Empty: the listing is complete.
    pub gaps: Vec<String>,
    /// How many files were left out for being more than [`FILES_MAX`].
    pub left_out: usize,
}

impl Listing {
    /// Whether what is not in it does not exist.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        self.gaps.is_empty()
    }
}

/// Lists a directory.
///
/// # Errors
///
/// The directory is gone, is no directory, or cannot be read at all.
pub fn list(root: &Path) -> io::Result<Listing> {
    let metadata = fs::metadata(root)?;
    let identity = Identity::of(&metadata);
    let mut walk = Walk {
        root,
        found: BTreeSet::new(),
        entries: 0,
        listing: Listing {
            identity,
            files: BTreeMap::new(),
            directories: BTreeMap::new(),
            gaps: Vec::new(),
            left_out: 0,
        },
    };
    let top = fs::read_dir(root)?;
    walk.directory(root, &metadata, top, &mut Vec::new());
    let Walk { found, mut listing, .. } = walk;
    for (index, path) in found.into_iter().enumerate() {
        let entry = if index >= FILES_MAX {
            listing.left_out += 1;
            Entry::Unreadable(format!("left out: more than {FILES_MAX} files in the directory"))
        } else {
            match read(root, &path) {
                Ok(Some(bytes)) => Entry::Content(hash(&bytes)),
                Ok(None) => continue,
                Err(why) => Entry::Unreadable(why),
            }
        };
        listing.files.insert(path, entry);
    }
    // A mount or a rename in the middle would mix two directories.
    if fs::metadata(root).map(|after| Identity::of(&after)).ok() != Some(identity) {
        listing.gaps.push("the directory was replaced while it was being listed".to_owned());
    }
    Ok(listing)
}

/// Reads one file of a directory; `None` if it is not there.
///
/// # Errors
///
/// Why it cannot be read, in words for people.
pub fn read(root: &Path, path: &str) -> Result<Option<Vec<u8>>, String> {
    let path = root.join(path);
    let why = |error: io::Error| format!("the file cannot be read: {}", reason(&error));
    // Looked at before it is opened: opening a device can already do something.
    match fs::metadata(&path) {
        Ok(metadata) => check_regular(&metadata)?,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(why(error)),
    }
    // Without blocking, in case that a FIFO took its place in the meantime.
    let flags = OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let file = OpenOptions::new()
        .read(true)
        .custom_flags(i32::try_from(flags.bits()).unwrap_or(0))
        .open(&path);
    match file {
        Ok(file) => read_open(&file, why).map(Some),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(why(error)),
    }
}

fn read_open(file: &File, why: impl Fn(io::Error) -> String) -> Result<Vec<u8>, String> {
    check_regular(&file.metadata().map_err(&why)?)?;
    let mut bytes = Vec::new();
    // One byte more than allowed tells that there is more; the parser refuses it with its words.
    let bound = u64::try_from(FILE_BYTES_MAX).unwrap_or(u64::MAX).saturating_add(1);
    file.take(bound).read_to_end(&mut bytes).map_err(&why)?;
    Ok(bytes)
}

fn check_regular(metadata: &Metadata) -> Result<(), String> {
    if metadata.is_file() {
        return Ok(());
    }
    Err("not a regular file, expected a file or a link to one".to_owned())
}

/// The hash that a listing tells of such bytes.
#[must_use]
pub fn hash(bytes: &[u8]) -> ContentHash {
    Sha256::digest(bytes).into()
}

/// Whether a file of this name is a manifest. Hidden files are none; editor backups and swap files
/// are hidden or end otherwise (`a.yaml~`, `.a.yaml.swp`, `#a.yaml#`, `a.yaml.bak`).
#[must_use]
pub fn is_manifest_name(name: &str) -> bool {
    let Some((stem, extension)) = name.rsplit_once('.') else { return false };
    !stem.is_empty()
        && !name.starts_with(['.', '#', '~'])
        && ["yaml", "yml", "json"].iter().any(|known| extension.eq_ignore_ascii_case(known))
}

struct Walk<'a> {
    root: &'a Path,
    found: BTreeSet<String>,
    entries: usize,
    listing: Listing,
}

impl Walk<'_> {
    /// Walks one directory. `above` are the directories that it lies in, against links in circles.
    fn directory(
        &mut self,
        path: &Path,
        metadata: &Metadata,
        entries: fs::ReadDir,
        above: &mut Vec<(u64, u64)>,
    ) {
        self.listing.directories.insert(path.to_owned(), Identity::of(metadata));
        above.push((metadata.dev(), metadata.ino()));
        for entry in entries {
            let entry = match entry {
                Ok(entry) => entry,
                Err(error) => {
                    self.gap(path, &error);
                    break;
                }
            };
            self.entries += 1;
            if self.entries > ENTRIES_MAX {
                let gap = format!("more than {ENTRIES_MAX} entries in the directory");
                if !self.listing.gaps.contains(&gap) {
                    self.listing.gaps.push(gap);
                }
                break;
            }
            self.entry(&entry, above);
        }
        above.pop();
    }

    fn entry(&mut self, entry: &fs::DirEntry, above: &mut Vec<(u64, u64)>) {
        let name = entry.file_name();
        if name.as_encoded_bytes().starts_with(b".") {
            return;
        }
        let path = entry.path();
        // Follows links, as metadata(2) does. What cannot be looked at is a file if it is named
        // like one: reading it tells why.
        let metadata = fs::metadata(&path).ok();
        let Some(metadata) = metadata.filter(Metadata::is_dir) else {
            self.file(&path, &name.to_string_lossy());
            return;
        };
        let circle = above.contains(&(metadata.dev(), metadata.ino()));
        if circle {
            return;
        }
        if above.len() >= LEVELS_MAX {
            let levels = format!("{} lies deeper than {LEVELS_MAX} levels", path.display());
            self.listing.gaps.push(levels);
            return;
        }
        match fs::read_dir(&path) {
            Ok(entries) => self.directory(&path, &metadata, entries, above),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => self.gap(&path, &error),
        }
    }

    fn file(&mut self, path: &Path, name: &str) {
        if !is_manifest_name(name) {
            return;
        }
        match path.strip_prefix(self.root).ok().and_then(Path::to_str) {
            Some(below) => {
                self.found.insert(below.to_owned());
            }
            None => self.listing.gaps.push(format!("{} is not named in UTF-8", path.display())),
        }
    }

    fn gap(&mut self, path: &Path, error: &io::Error) {
        self.listing.gaps.push(format!("{} cannot be read: {}", path.display(), reason(error)));
    }
}

/// The error without its number.
#[must_use]
pub fn reason(error: &io::Error) -> String {
    let text = error.to_string();
    match text.find(" (os error") {
        Some(at) => text[..at].to_lowercase(),
        None => text,
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    fn write(root: &Path, path: &str, text: &str) {
        let path = root.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    fn names(listing: &Listing) -> Vec<&str> {
        listing.files.keys().map(String::as_str).collect()
    }

    #[test]
    fn manifests_are_found_in_subdirectories_and_other_files_left_out() {
        let root = tempfile::tempdir().unwrap();
        for path in ["b.yaml", "a.yml", "sub/deep/c.JSON", "x.yaml/d.yaml"] {
            write(root.path(), path, path);
        }
        for path in [
            ".hidden.yaml",
            ".git/e.yaml",
            "b.yaml~",
            ".b.yaml.swp",
            "#b.yaml#",
            ".#b.yaml",
            "b.yaml.bak",
            "notes.txt",
            "4913",
            "yaml",
        ] {
            write(root.path(), path, path);
        }
        let listing = list(root.path()).unwrap();
        assert_eq!(names(&listing), ["a.yml", "b.yaml", "sub/deep/c.JSON", "x.yaml/d.yaml"]);
        assert_eq!(listing.files["b.yaml"], Entry::Content(hash(b"b.yaml")));
        assert!(listing.is_complete());
        assert_eq!(listing.directories.len(), 4);
    }

    #[test]
    fn what_is_no_regular_file_is_told_and_never_blocks() {
        let root = tempfile::tempdir().unwrap();
        write(root.path(), "a.yaml", "a: 1");
        rustix::fs::mknodat(
            rustix::fs::CWD,
            root.path().join("fifo.yaml"),
            rustix::fs::FileType::Fifo,
            rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR,
            0,
        )
        .unwrap();
        symlink("/dev/zero", root.path().join("zero.yaml")).unwrap();
        symlink("itself.yaml", root.path().join("itself.yaml")).unwrap();
        symlink("nowhere", root.path().join("dangling.yaml")).unwrap();
        let listing = list(root.path()).unwrap();
        assert_eq!(names(&listing), ["a.yaml", "fifo.yaml", "itself.yaml", "zero.yaml"]);
        for path in ["fifo.yaml", "itself.yaml", "zero.yaml"] {
            assert!(matches!(listing.files[path], Entry::Unreadable(_)), "{path}");
        }
        assert!(listing.is_complete());
    }

    #[test]
    fn the_swap_of_a_mounted_configmap_changes_content_at_once() {
        let root = tempfile::tempdir().unwrap();
        write(root.path(), "..2026_1/a.yaml", "old");
        write(root.path(), "..2026_2/a.yaml", "new");
        symlink("..2026_1", root.path().join("..data")).unwrap();
        symlink("..data/a.yaml", root.path().join("a.yaml")).unwrap();
        let before = list(root.path()).unwrap();
        assert_eq!(before.files["a.yaml"], Entry::Content(hash(b"old")));
        symlink("..2026_2", root.path().join("..data_tmp")).unwrap();
        fs::rename(root.path().join("..data_tmp"), root.path().join("..data")).unwrap();
        let after = list(root.path()).unwrap();
        assert_eq!(names(&after), ["a.yaml"]);
        assert_eq!(after.files["a.yaml"], Entry::Content(hash(b"new")));
        assert_eq!(after.identity, before.identity);
    }

    #[test]
    fn links_in_circles_end() {
        let root = tempfile::tempdir().unwrap();
        write(root.path(), "sub/a.yaml", "a");
        symlink("..", root.path().join("sub/up")).unwrap();
        symlink(".", root.path().join("here")).unwrap();
        let listing = list(root.path()).unwrap();
        assert_eq!(names(&listing), ["sub/a.yaml"]);
        assert!(listing.is_complete());
    }

    #[test]
    fn files_over_the_limits_are_there_but_not_read() {
        let root = tempfile::tempdir().unwrap();
        for index in 0..FILES_MAX + 2 {
            write(root.path(), &format!("f{index:04}.yaml"), "");
        }
        write(root.path(), "a.yaml", &"x".repeat(FILE_BYTES_MAX + 10));
        let listing = list(root.path()).unwrap();
        assert_eq!(listing.files.len(), FILES_MAX + 3);
        assert_eq!(listing.left_out, 3);
        assert!(matches!(listing.files["f1001.yaml"], Entry::Unreadable(_)));
        assert_eq!(read(root.path(), "a.yaml").unwrap().unwrap().len(), FILE_BYTES_MAX + 1);
        assert!(listing.is_complete());
    }

    #[test]
    fn a_directory_that_is_gone_or_a_file_is_an_error() {
        let root = tempfile::tempdir().unwrap();
        write(root.path(), "file", "");
        assert_eq!(list(&root.path().join("gone")).unwrap_err().kind(), io::ErrorKind::NotFound);
        assert!(list(&root.path().join("file")).is_err());
    }

    #[test]
    fn a_directory_made_again_is_another_one() {
        let parent = tempfile::tempdir().unwrap();
        let root = parent.path().join("d");
        fs::create_dir(&root).unwrap();
        let first = list(&root).unwrap().identity;
        // Renamed and not removed, so that its inode cannot be used again at once.
        fs::rename(&root, parent.path().join("e")).unwrap();
        fs::create_dir(&root).unwrap();
        assert_ne!(list(&root).unwrap().identity, first);
    }

    #[test]
    fn an_unreadable_subdirectory_makes_the_listing_incomplete() {
        let root = tempfile::tempdir().unwrap();
        // Deeper than the limit stands for unreadable: root may read everything.
        let deep = "d/".repeat(LEVELS_MAX);
        write(root.path(), &format!("{deep}a.yaml"), "");
        write(root.path(), "b.yaml", "");
        let listing = list(root.path()).unwrap();
        assert_eq!(names(&listing), ["b.yaml"]);
        assert!(!listing.is_complete());
    }
}
