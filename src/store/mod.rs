//! The store: one ordered log of small records, and blobs beside it.
//!
//! [`Store`] is what the loop, the API and the manifests are built on, engine-neutral; [`Blobs`]
//! holds what is too large for records (prompts, transcripts, responses). SQLite serves both; a
//! second engine must pass the same conformance suite. Accepted desired state is on disk before
//! anybody is told.
//!
//! Invariants: every write is a compare-and-swap on a [`Guard`]; all operations of a commit happen
//! at one revision or not at all; a watch sees every change after its start, in order, once.
//!
//! Absent on purpose: queries. What must be found is a key, or a secondary key that is written in
//! the same commit as what it indexes (see [`keys`]).

pub mod memory;
pub mod records;
pub mod uids;

use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;

use crate::api::Uid;

#[doc(hidden)]
pub mod conformance;
#[doc(hidden)]
pub mod fault;
pub mod journal;
pub mod sqlite;

/// The largest record value. Larger things are blobs.
pub const RECORD_BYTES_MAX: usize = 256 * 1024;
/// The most operations in one commit.
pub const COMMIT_OPS_MAX: usize = 64;
/// The largest chunk of one append to a blob.
pub const BLOB_CHUNK_BYTES_MAX: usize = 64 * 1024;

/// A revision of the whole store: ordered within one store id, opaque to users.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Rev(pub u64);

impl fmt::Display for Rev {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// A record's key: `/<kind>/<namespace>/<name>`, or a secondary one.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Key(String);

impl Key {
    /// Takes the text as it is; only [`keys`] makes keys outside tests.
    #[must_use]
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    /// The text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A record as the store has it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Record {
    /// Its key.
    pub key: Key,
    /// JSON, for records of ours.
    pub value: Bytes,
    /// The revision of its last write.
    pub rev: Rev,
    /// The revision of its creation.
    pub create_rev: Rev,
}

/// What must hold for a commit to happen. May name keys that the commit does not write.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Guard {
    /// No record has the key.
    Absent(Key),
    /// The record of the key was last written at this revision.
    RevIs(Key, Rev),
}

/// One write of a commit.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Op {
    /// Writes a record, at most [`RECORD_BYTES_MAX`].
    Put {
        /// Where.
        key: Key,
        /// What.
        value: Bytes,
    },
    /// Removes a record; no fault if there is none.
    Delete {
        /// Which.
        key: Key,
    },
    /// Removes every blob of an owner.
    DropBlobs {
        /// Whose.
        owner: Uid,
    },
}

/// Writes that happen together or not at all.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Commit {
    /// All must hold.
    pub guards: Vec<Guard>,
    /// At most [`COMMIT_OPS_MAX`], all at one revision.
    pub ops: Vec<Op>,
}

/// What a watch tells.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Change {
    /// A record was written.
    Put(Record),
    /// A record was removed.
    Delete {
        /// Which.
        key: Key,
        /// What it held last, so that selectors can be judged.
        last: Bytes,
        /// When.
        rev: Rev,
    },
    /// Everything up to this revision has been told.
    Bookmark(Rev),
    /// The start lies before what the store still remembers: list anew.
    Compacted {
        /// The oldest revision that a watch may start after.
        oldest: Rev,
    },
    /// The start lies after the store's newest revision: it was put back to an older state.
    Regressed {
        /// The newest revision.
        head: Rev,
    },
    /// The watch was lost; start anew from the last revision seen.
    Lost(String),
}

/// Why the store did not do it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// A guard does not hold.
    #[error("the record {key} was changed or exists in the meantime")]
    Conflict {
        /// The first guard's key that does not hold.
        key: Key,
    },
    /// A value, chunk or commit over its bound.
    #[error("{what} is larger than the limit of {limit}")]
    TooLarge {
        /// What was too large.
        what: String,
        /// The limit, with its unit.
        limit: String,
    },
    /// Surely not applied.
    #[error("the store is unavailable: {0}")]
    Unavailable(String),
    /// Perhaps applied: read back.
    #[error("whether the store took the write is unknown: {0}")]
    Unknown(String),
    /// This engine cannot do it.
    #[error("the store does not support {0}")]
    Unsupported(String),
}

/// A running watch.
pub struct Watch {
    receiver: tokio::sync::mpsc::Receiver<Change>,
}

impl Watch {
    /// A watch that tells what comes out of `receiver`.
    #[must_use]
    pub const fn new(receiver: tokio::sync::mpsc::Receiver<Change>) -> Self {
        Self { receiver }
    }

    /// The next change; `None` once the store is closed.
    ///
    /// # Cancel safety
    ///
    /// Nothing is lost if the future is dropped.
    pub async fn next(&mut self) -> Option<Change> {
        self.receiver.recv().await
    }
}

/// The records.
#[async_trait]
pub trait Store: Send + Sync {
    /// One record.
    async fn get(&self, key: &Key) -> Result<Option<Record>, Error>;

    /// Up to `limit` records whose keys begin with `prefix` and follow `after`, in key order, and
    /// the revision that they are a consistent picture of. `limit` 0: all.
    async fn list(
        &self,
        prefix: &str,
        after: Option<&Key>,
        limit: usize,
    ) -> Result<(Vec<Record>, Rev), Error>;

    /// The last record, in key order, whose key begins with `prefix`.
    async fn last(&self, prefix: &str) -> Result<Option<Record>, Error>;

    /// Writes if every guard holds, durably, and tells the revision.
    async fn commit(&self, commit: Commit) -> Result<Rev, Error>;

    /// Every change of keys with this prefix after a revision, in order, once.
    async fn watch(&self, prefix: &str, after: Rev) -> Result<Watch, Error>;

    /// The newest revision.
    async fn head(&self) -> Result<Rev, Error>;

    /// Forgets history up to a revision; records stay.
    async fn compact(&self, keep_after: Rev) -> Result<(), Error>;

    /// The random id that the store was made with.
    async fn identity(&self) -> Result<String, Error>;

    /// The nonce that the commit of a revision left, for [`Store::verify`].
    async fn nonce(&self, rev: Rev) -> Result<Option<u64>, Error>;

    /// Whether the commit of this revision is the one that left this nonce. `false`: the store was
    /// put back to an older state since (`StoreRegressed`).
    async fn verify(&self, rev: Rev, nonce: u64) -> Result<bool, Error>;

    /// Reopens the engine after an error that made it read-only.
    async fn reset(&self) -> Result<(), Error>;

    /// Whether there is room for new work. `false`: the disk is full or nearly so; only what ends
    /// or shrinks something should be written. Cheap; asking also makes an engine look again.
    fn has_room(&self) -> bool {
        true
    }

    /// Why the engine is read-only until [`Store::reset`], if it is.
    fn fault(&self) -> Option<String> {
        None
    }
}

/// Which blob of an owner.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Stream {
    /// A turn's prompt, appended before its admission.
    Prompt,
    /// A turn's session updates: one JSON object a line, in wire order.
    Transcript,
    /// A turn's response text.
    Response,
}

/// A blob.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct BlobId {
    /// The record that owns it: it goes with that record's commit.
    pub owner: Uid,
    /// Which of the owner's.
    pub stream: Stream,
}

/// One append: `bytes` go to `offset`, which must be the blob's length, so that a repeated append
/// is seen.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Append {
    /// To which blob.
    pub blob: BlobId,
    /// The blob's length before it.
    pub offset: u64,
    /// At most [`BLOB_CHUNK_BYTES_MAX`].
    pub bytes: Bytes,
}

/// What is too large for records.
#[async_trait]
pub trait Blobs: Send + Sync {
    /// Appends all or nothing, durably. An append at an offset below the blob's length whose bytes
    /// are already there is done and no fault; any other wrong offset is a `Conflict`.
    async fn append(&self, appends: Vec<Append>) -> Result<(), Error>;

    /// Up to `max` bytes from `offset`; fewer at the end, none behind it.
    async fn read(&self, blob: &BlobId, offset: u64, max: usize) -> Result<Bytes, Error>;

    /// The blob's length, 0 if there is none.
    async fn len(&self, blob: &BlobId) -> Result<u64, Error>;

    /// Removes blobs whose owner `is_owned` does not know; for the sweep at start.
    async fn sweep(
        &self,
        is_owned: &(dyn for<'a> Fn(&'a Uid) -> bool + Send + Sync),
    ) -> Result<u64, Error>;
}

/// What sorts behind every key with this prefix: keys hold no such character.
fn past(prefix: &str) -> String {
    format!("{prefix}{}", char::MAX)
}

/// A store that the whole program shares.
pub type SharedStore = Arc<dyn Store>;
/// Blobs that the whole program shares.
pub type SharedBlobs = Arc<dyn Blobs>;

pub mod keys {
    //! Every key of the store is made here.

    use super::Key;
    use crate::api::{Kind, Name, Namespace, Time, Uid};

    /// Stands for the namespace of cluster kinds.
    const CLUSTER: &str = "_";

    /// A record's key.
    #[must_use]
    pub fn record(kind: Kind, namespace: &Namespace, name: &Name) -> Key {
        Key::new(format!("{}{name}", namespace_prefix(kind, namespace)))
    }

    /// The prefix of every record of a kind in one namespace.
    #[must_use]
    pub fn namespace_prefix(kind: Kind, namespace: &Namespace) -> String {
        let namespace = if kind.is_namespaced() { namespace.as_str() } else { CLUSTER };
        format!("/{}/{namespace}/", kind.singular())
    }

    /// The prefix of every record of a kind.
    #[must_use]
    pub fn kind_prefix(kind: Kind) -> String {
        format!("/{}/", kind.singular())
    }

    /// The prefix of [`uid`].
    pub const UIDS: &str = "/uid/";

    /// Finds a record's key by uid. The value is the record's key.
    #[must_use]
    pub fn uid(uid: &Uid) -> Key {
        Key::new(format!("/uid/{uid}"))
    }

    /// The turns of a session, oldest first. The value is the turn's key.
    #[must_use]
    pub fn turn_of(session: &Uid, turn: &Uid) -> Key {
        Key::new(format!("{}{turn}", turns_of(session)))
    }

    /// The prefix of [`turn_of`]. Uids are time-ordered, so key order is creation order.
    #[must_use]
    pub fn turns_of(session: &Uid) -> String {
        format!("/owner/{session}/turn/")
    }

    /// A turn that is not final. The value is the turn's key.
    #[must_use]
    pub fn open_turn(session: &Uid, turn: &Uid) -> Key {
        Key::new(format!("{}{turn}", open_turns(session)))
    }

    /// The prefix of [`open_turn`].
    #[must_use]
    pub fn open_turns(session: &Uid) -> String {
        format!("/open/{session}/turn/")
    }

    /// A request for permission that waits. The value is the request's key.
    #[must_use]
    pub fn asking(session: &Uid, request: &Uid) -> Key {
        Key::new(format!("{}{request}", asking_of(session)))
    }

    /// The prefix of [`asking`] for one session, oldest first.
    #[must_use]
    pub fn asking_of(session: &Uid) -> String {
        format!("{ASKING}{session}/")
    }

    /// The prefix of [`asking`].
    pub const ASKING: &str = "/asking/";

    /// A turn that has ended and of which its caller is not told yet. The value is the turn's key.
    #[must_use]
    pub fn notice(caller: &Uid, turn: &Uid) -> Key {
        Key::new(format!("{}{turn}", notices_for(caller)))
    }

    /// The prefix of [`notice`] for one caller, oldest turn first.
    #[must_use]
    pub fn notices_for(caller: &Uid) -> String {
        format!("{NOTICES}{caller}/")
    }

    /// The prefix of [`notice`].
    pub const NOTICES: &str = "/notice/";

    /// A request for permission of a session or a turn. The value is the request's key.
    #[must_use]
    pub fn request_of(owner: &Uid, request: &Uid) -> Key {
        Key::new(format!("{}{request}", requests_of(owner)))
    }

    /// The prefix of [`request_of`], oldest first.
    #[must_use]
    pub fn requests_of(owner: &Uid) -> String {
        format!("/owner/{owner}/permissionrequest/")
    }

    /// A child session of a session. The value is the child's key.
    #[must_use]
    pub fn child_of(parent: &Uid, child: &Uid) -> Key {
        Key::new(format!("{}{child}", children_of(parent)))
    }

    /// The prefix of [`child_of`].
    #[must_use]
    pub fn children_of(parent: &Uid) -> String {
        format!("/owner/{parent}/session/")
    }

    /// The turn that a session's idempotency key made. The value is the turn's key; after the turn a
    /// mark that the key is spent.
    #[must_use]
    pub fn idempotency(scope: &Uid, key_sha256: &str) -> Key {
        Key::new(format!("/idempotency/{scope}/{key_sha256}"))
    }

    /// The child that an idempotency key of its parent made. The value is the child's key; after the
    /// child a mark that the key is spent.
    #[must_use]
    pub fn spawn_key(parent: &Uid, key_sha256: &str) -> Key {
        Key::new(format!("/spawned/{parent}/{key_sha256}"))
    }

    /// When an idempotency key whose record is gone may be forgotten; keys sort by time. The value
    /// is the idempotency key's own key; `uid` is that of the record.
    #[must_use]
    pub fn spent(until_ms: i64, uid: &Uid) -> Key {
        timed(SPENT, until_ms, uid)
    }

    /// What sorts before this key is every [`spent`] of this time or an earlier one.
    #[must_use]
    pub fn spent_by(now_ms: i64) -> Key {
        Key::new(format!("{SPENT}{:015}/", now_ms.saturating_add(1).max(0)))
    }

    /// The prefix of [`spent`].
    pub const SPENT: &str = "/spent/";

    /// A session that the loop must look at after a start: everything but the sessions at rest.
    /// The value is the session's key.
    #[must_use]
    pub fn awake(session: &Uid) -> Key {
        Key::new(format!("{AWAKE}{session}"))
    }

    /// The prefix of [`awake`].
    pub const AWAKE: &str = "/awake/";

    /// A session's earliest deadline; keys sort by time. The value is the session's key.
    #[must_use]
    pub fn deadline(at_ms: i64, session: &Uid) -> Key {
        timed(DEADLINES, at_ms, session)
    }

    /// The prefix of [`deadline`].
    pub const DEADLINES: &str = "/deadline/";

    /// A session that has finished; keys sort by time, so the last one tells the newest end. The value
    /// is the session's key.
    #[must_use]
    pub fn finished(at_ms: i64, session: &Uid) -> Key {
        timed(FINISHED, at_ms, session)
    }

    /// The prefix of [`finished`].
    pub const FINISHED: &str = "/finished/";

    /// A key of an index that sorts by time; [`time_in`] reads it.
    fn timed(prefix: &str, at_ms: i64, uid: &Uid) -> Key {
        Key::new(format!("{prefix}{:015}/{uid}", at_ms.max(0)))
    }

    /// The time in a key of an index that sorts by time.
    #[must_use]
    pub fn time_in(key: &Key, prefix: &str) -> Option<Time> {
        let millis = key.as_str().strip_prefix(prefix)?.split('/').next()?;
        millis.parse().ok().map(Time::from_millis)
    }

    /// Finds the session of a caller's token by the token's SHA-256. The value is the session's key.
    #[must_use]
    pub fn token(sha256: &str) -> Key {
        Key::new(format!("/token/{sha256}"))
    }

    /// What a whole tree of sessions used of its bounds; `root` is the uppermost session's uid.
    #[must_use]
    pub fn quota_root(root: &Uid) -> Key {
        Key::new(format!("/quota/root/{root}"))
    }

    /// The sums of what the sessions of a tree reported of tokens and cost.
    #[must_use]
    pub fn quota_usage(root: &Uid) -> Key {
        Key::new(format!("/quota/usage/{root}"))
    }

    /// Sums of a tree that its uppermost session does not show yet. The value is that session's key.
    #[must_use]
    pub fn quota_untold(root: &Uid) -> Key {
        Key::new(format!("{QUOTA_UNTOLD}{root}"))
    }

    /// The prefix of [`quota_untold`].
    pub const QUOTA_UNTOLD: &str = "/quota/untold/";

    /// The turns that hold one of the daemon's slots. The value is a list of turn uids.
    #[must_use]
    pub fn quota_global() -> Key {
        Key::new("/quota/global")
    }

    /// A session whose references name this object and do not resolve. The value is the session's
    /// key.
    #[must_use]
    pub fn waiting_for(kind: Kind, namespace: &Namespace, name: &Name, session: &Uid) -> Key {
        Key::new(format!("{}{session}", waiting_for_prefix(kind, namespace, name)))
    }

    /// The prefix of [`waiting_for`].
    #[must_use]
    pub fn waiting_for_prefix(kind: Kind, namespace: &Namespace, name: &Name) -> String {
        let namespace = if kind.is_namespaced() { namespace.as_str() } else { CLUSTER };
        format!("/waiting/{}/{namespace}/{name}/", kind.singular())
    }

    /// A report of an object.
    #[must_use]
    pub fn report(object: &Uid, sequence: u64) -> Key {
        Key::new(format!("/report/{object}/{sequence:012}"))
    }

    /// The prefix of the reports of an object, oldest first.
    #[must_use]
    pub fn reports_of(object: &Uid) -> String {
        format!("{REPORTS}{object}/")
    }

    /// The prefix of every report.
    pub const REPORTS: &str = "/report/";

    /// An object that names the manifest file that it belongs to. The value is the object's key.
    #[must_use]
    pub fn managed(object: &Uid) -> Key {
        Key::new(format!("{MANAGED}{object}"))
    }

    /// The prefix of [`managed`], oldest first.
    pub const MANAGED: &str = "/managed/";

    /// The prefix of [`manifest`].
    pub const MANIFESTS: &str = "/manifest/";

    /// What a manifest file made of an object: the tombstone or the source mark.
    #[must_use]
    pub fn manifest(kind: Kind, namespace: &Namespace, name: &Name) -> Key {
        let namespace = if kind.is_namespaced() { namespace.as_str() } else { CLUSTER };
        Key::new(format!("/manifest/{}/{namespace}/{name}", kind.singular()))
    }
}
