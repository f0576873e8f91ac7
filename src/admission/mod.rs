//! The one way in for desired state. The API, the manifests and later MCP call it, so that the
//! same rules hold for all of them: decoding with field paths, defaults, validation, names, who
//! owns what, and one commit that decides what must be decided together.
//!
//! Stands before the loop: what is admitted here is on disk, and the controller sees it by its
//! watch. Invariants: only spec and metadata are taken from writers, never status (the counters
//! of a session's turns are moved on with the turn that they count); every write is a
//! compare-and-swap; a write that changes nothing is no write; desired state only goes forward.
//!
//! Absent on purpose: processes, agents and waiting. Whether a reference resolves is found out by
//! the controller.

mod agent;
mod apply;
mod decode;
mod delete;
mod kinds;
mod metadata;
mod namespace;
mod ownership;
mod refusal;
mod session;
mod slot;
pub mod spawn;
mod spending;
pub mod token;
mod turn;
mod update;

use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;

use crate::api::{
    AgentSpec, DEFAULT_NAMESPACE, FieldErrors, Kind, Name, Namespace, NamespaceSpec, Object,
    PROCESS_FINALIZER, PermissionRequestSpec, RoleSpec, SessionSpec, TurnSpec, WorkspaceSpec,
    naming,
};
use crate::clock::SharedClock;
use crate::plan::capacity;
use crate::ports::Hooks;
use crate::slots::SharedSlots;
use crate::store::records::{self, Records, Txn};
use crate::store::uids::{SharedUids, Uids};
use crate::store::{Error as StoreError, SharedBlobs, SharedStore};

pub use apply::Applied;
pub use delete::{DeleteOptions, Deleted, Propagation};
pub use refusal::{Details, Refusal};
pub use token::{Bearer, Caller};

use kinds::Admissible;

/// How often a write is tried again after somebody else was faster. Others are the controller
/// (at most one status write of a session in 2 s, unless its phase changes) and writers of the
/// same object; whoever loses this often has lost to a storm and is told so.
const ATTEMPTS_MAX: usize = 16;

/// The largest object as a writer gives it, in bytes of JSON: it leaves room in its record (256 KiB)
/// for all that a status may come to hold (`plan::bounds`).
const WRITTEN_BYTES_MAX: usize = 144 * 1024;

/// The bounds that the configuration sets.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Limits {
    /// The most turns of one session that are not final (`limits.inbox`).
    pub inbox: usize,
    /// The largest prompt in bytes (`limits.promptBytes`).
    pub prompt_bytes: usize,
    /// Turns at the same time.
    pub turns: capacity::Limits,
    /// The longest ttl that a caller may ask for (`limits.maxTtl`).
    pub ttl_max: Duration,
    /// The ttl of a child that asks for none (`limits.defaultChildTtl`).
    pub default_child_ttl: Duration,
    /// Sessions of one tree that can still run (`limits.maxChildrenTotalPerRoot`).
    pub children_per_root: usize,
    /// Sessions of one tree made in a minute (`limits.spawnsPerMinutePerRoot`).
    pub spawns_per_minute_per_root: usize,
    /// What a tree of sessions may use (`limits.maxTokensPerRoot`, `limits.maxCostPerRoot`).
    pub tree: crate::plan::spending::Limits,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            inbox: 64,
            prompt_bytes: 768 * 1024,
            turns: capacity::Limits { max_active_turns: 8, max_active_turns_per_parent: 4 },
            ttl_max: Duration::from_secs(24 * 3600),
            default_child_ttl: Duration::from_secs(24 * 3600),
            children_per_root: 64,
            spawns_per_minute_per_root: 30,
            tree: crate::plan::spending::Limits::default(),
        }
    }
}

/// Who writes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Writer {
    /// A person or program with the operator's token.
    Operator,
    /// The parent of a session, by its own token: it moves desired state on.
    Parent,
    /// A manifest file.
    Manifest {
        /// Its path, as `get manifests` shows it.
        source: String,
    },
}

/// What becomes of fields that no kind of ours has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FieldValidation {
    /// The write is refused.
    Strict,
    /// A warning each.
    #[default]
    Warn,
    /// Nothing.
    Ignore,
}

/// How a write is to be done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WriteOptions {
    /// Check all, write nothing.
    pub dry_run: bool,
    /// What becomes of unknown fields.
    pub field_validation: FieldValidation,
    /// Take over an object that belongs to a manifest file.
    pub force: bool,
}

/// What a write did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The object is new.
    Created,
    /// The object was changed.
    Updated,
    /// There was nothing to change, or the same request had made it before.
    Unchanged,
}

/// A write that was taken.
#[derive(Clone, Debug, PartialEq)]
pub struct Admitted {
    /// The object as it is now (dry run: as it would be; a new one without `resourceVersion`).
    pub object: Value,
    /// What the writer should know, for `Warning` headers and reports.
    pub warnings: Vec<String>,
    /// What was done, or would be.
    pub outcome: Outcome,
}

/// The one way in.
pub struct Admission {
    records: Records,
    blobs: SharedBlobs,
    clock: SharedClock,
    uids: SharedUids,
    slots: SharedSlots,
    limits: Limits,
    hooks: Option<Arc<dyn Hooks>>,
    /// Where the daemon's own files are.
    data_dir: Option<std::path::PathBuf>,
    /// One turn at a time: each moves its session's counters, so two at once would only make each
    /// other try again.
    turns: tokio::sync::Mutex<()>,
}

impl Admission {
    /// A way into this store.
    #[must_use]
    pub fn new(
        store: SharedStore,
        blobs: SharedBlobs,
        clock: SharedClock,
        slots: SharedSlots,
        limits: Limits,
    ) -> Self {
        let uids = SharedUids::new(Uids::new(clock.clone()));
        let records = Records::new(store);
        let turns = tokio::sync::Mutex::default();
        let (hooks, data_dir) = (None, None);
        Self { records, blobs, clock, uids, slots, limits, hooks, data_dir, turns }
    }

    /// The same with the operator's programs before and behind what callers make.
    #[must_use]
    pub fn with_hooks(self, hooks: Arc<dyn Hooks>) -> Self {
        Self { hooks: Some(hooks), ..self }
    }

    /// The reader of the same store.
    #[must_use]
    pub const fn records(&self) -> &Records {
        &self.records
    }

    /// What must be so before anything is taken: new uids go on behind the newest one, and the
    /// namespace `default` is there. For the daemon's start.
    ///
    /// # Errors
    ///
    /// The store's.
    pub async fn begin(&self) -> Result<(), Refusal> {
        if let Some(newest) = self.records.newest_uid().await? {
            self.uids.go_behind(&newest);
        }
        self.ensure_default_namespace().await
    }

    /// The maker of uids, for whoever else makes records: uids of one maker sort by their making.
    #[must_use]
    pub const fn uids(&self) -> &SharedUids {
        &self.uids
    }

    /// Makes an object of a document. The namespace is the request's, if it has one; a document
    /// without one goes to `default`.
    ///
    /// A turn whose idempotency key was used before with the same body answers with the turn that
    /// it made then. A session with a prompt is made together with its first turn.
    ///
    /// # Errors
    ///
    /// [`Refusal`]; nothing was written.
    ///
    /// # Cancel safety
    ///
    /// The object may or may not have been made; a large prompt's blob may be left without its
    /// turn, which the sweep at start removes. So for all writes here.
    pub async fn create(
        &self,
        kind: Kind,
        namespace: Option<&Namespace>,
        mut body: Value,
        options: &WriteOptions,
        writer: &Writer,
    ) -> Result<Admitted, Refusal> {
        decode::address(&mut body, namespace, None)?;
        if !options.dry_run && !self.records.store().has_room() {
            return Err(Refusal::Unavailable {
                why: "the disk of the data directory is full: nothing new is taken until space is freed; \
                      cancel and delete still work"
                    .to_owned(),
                is_surely_not_applied: true,
            });
        }
        match kind {
            Kind::Agent => self.create_alone::<AgentSpec>(body, options, writer).await,
            Kind::Workspace => self.create_alone::<WorkspaceSpec>(body, options, writer).await,
            Kind::Role => self.create_alone::<RoleSpec>(body, options, writer).await,
            Kind::Namespace => self.create_alone::<NamespaceSpec>(body, options, writer).await,
            Kind::Session => {
                let incoming = self.incoming::<SessionSpec>(body, options, writer)?;
                Box::pin(self.create_session(incoming, options, writer)).await
            }
            Kind::Turn => {
                let incoming = self.incoming::<TurnSpec>(body, options, writer)?;
                Box::pin(self.create_turn(incoming, options)).await
            }
            Kind::PermissionRequest | Kind::Event => Err(Refusal::MethodNotAllowed { kind }),
        }
    }

    /// Replaces an object (PUT): what a document leaves out goes back to its default, but for what
    /// the daemon set. `metadata.resourceVersion` is a precondition if it is given.
    ///
    /// # Errors
    ///
    /// [`Refusal`]; nothing was written.
    pub async fn update(
        &self,
        kind: Kind,
        namespace: &Namespace,
        name: &Name,
        body: Value,
        options: &WriteOptions,
        writer: &Writer,
    ) -> Result<Admitted, Refusal> {
        let change = update::Change::Whole(body);
        self.change(kind, namespace, name, change, options, writer).await
    }

    /// Changes an object by a JSON merge patch (RFC 7386). `metadata.resourceVersion` in the patch
    /// is a precondition; without it a concurrent change makes the patch be applied anew.
    ///
    /// # Errors
    ///
    /// [`Refusal`]; nothing was written.
    pub async fn patch(
        &self,
        kind: Kind,
        namespace: &Namespace,
        name: &Name,
        patch: Value,
        options: &WriteOptions,
        writer: &Writer,
    ) -> Result<Admitted, Refusal> {
        if !patch.is_object() {
            let why = "a merge patch is a JSON object".to_owned();
            return Err(Refusal::BadRequest { why });
        }
        let change = update::Change::Patch(patch);
        self.change(kind, namespace, name, change, options, writer).await
    }

    async fn change(
        &self,
        kind: Kind,
        namespace: &Namespace,
        name: &Name,
        change: update::Change,
        options: &WriteOptions,
        writer: &Writer,
    ) -> Result<Admitted, Refusal> {
        let target = update::Target { namespace, name, options, writer };
        match kind {
            Kind::Agent => self.change_object::<AgentSpec>(&target, change).await,
            Kind::Workspace => self.change_object::<WorkspaceSpec>(&target, change).await,
            Kind::Role => self.change_object::<RoleSpec>(&target, change).await,
            Kind::Namespace => self.change_object::<NamespaceSpec>(&target, change).await,
            Kind::Session => Box::pin(self.change_object::<SessionSpec>(&target, change)).await,
            Kind::Turn => Box::pin(self.change_object::<TurnSpec>(&target, change)).await,
            Kind::PermissionRequest => {
                Box::pin(self.change_object::<PermissionRequestSpec>(&target, change)).await
            }
            Kind::Event => Err(Refusal::MethodNotAllowed { kind }),
        }
    }

    /// A document as a new object: decoded, with everything that the daemon sets and that needs no
    /// look into the store, and validated.
    fn incoming<S: Admissible>(
        &self,
        body: Value,
        options: &WriteOptions,
        writer: &Writer,
    ) -> Result<Incoming<S>, Refusal> {
        let (mut object, warnings) = decode::decode::<S>(body, options.field_validation)?;
        let uid = self.uids.make();
        let metadata = &mut object.metadata;
        if S::KIND.is_namespaced() && metadata.namespace.is_empty() {
            metadata.namespace = DEFAULT_NAMESPACE.into();
        }
        if metadata.name.is_empty()
            && let Some(prefix) = &metadata.generate_name
        {
            metadata.name = naming::generated_name(prefix, &uid);
        }
        if metadata.name.is_empty()
            && let Some(name) = object.spec.name_from(&uid)
        {
            metadata.name = name;
        }
        metadata.uid = uid;
        metadata.generation = 1;
        metadata.creation_timestamp = Some(self.clock.now().time);
        metadata.deletion_timestamp = object.spec.wants_removal().then_some(self.clock.now().time);
        metadata.resource_version.clear();
        metadata.owner_references.clear();
        ownership::mark(metadata, writer);
        let mut errors = FieldErrors::default();
        // A turn without a name gets one from its session, which is not known yet.
        if S::KIND != Kind::Turn || !metadata.name.is_empty() {
            metadata::check(S::KIND, metadata, &mut errors);
        }
        if S::KIND == Kind::Session {
            metadata.finalizers = vec![PROCESS_FINALIZER.to_owned()];
        }
        errors.0.extend(object.spec.validate().err().unwrap_or_default().0);
        self.check_free_paths(&object.spec, &mut errors);
        let name = object.metadata.name.clone();
        errors.into_result().map_err(|errors| Refusal::Invalid { kind: S::KIND, name, errors })?;
        Ok(Incoming { object, warnings })
    }

    /// Makes an object that nothing else has to be made or counted with.
    async fn create_alone<S: Admissible>(
        &self,
        body: Value,
        options: &WriteOptions,
        writer: &Writer,
    ) -> Result<Admitted, Refusal> {
        let Incoming { mut object, warnings } = self.incoming::<S>(body, options, writer)?;
        for _ in 0..ATTEMPTS_MAX {
            let home = self.home(&object, writer).await?;
            if options.dry_run {
                self.expect_free(&object).await?;
                return created(&object, warnings);
            }
            let txn = home.join(Txn::new().create(&object));
            if self.commit_new(txn, &mut object).await?.is_done() {
                return created(&object, warnings);
            }
            self.expect_free(&object).await?;
        }
        Err(Refusal::modified(S::KIND, &object.metadata.name))
    }

    /// Refuses if the name of a new object is taken.
    async fn expect_free<S: Admissible>(&self, object: &Object<S>) -> Result<(), Refusal> {
        let found = self.records.store().get(&records::key_of(object)).await?;
        match found {
            None => Ok(()),
            Some(_) => {
                Err(Refusal::AlreadyExists { kind: S::KIND, name: object.metadata.name.clone() })
            }
        }
    }

    /// Commits a transaction that writes `object`, and fills in its revision.
    async fn commit_new<S: Admissible>(
        &self,
        txn: Txn,
        object: &mut Object<S>,
    ) -> Result<Attempt, Refusal> {
        match txn.commit(&**self.records.store()).await {
            Ok(rev) => {
                object.metadata.resource_version = rev.to_string();
                Ok(Attempt::Done)
            }
            Err(error) if error.is_conflict() => Ok(Attempt::Overtaken),
            Err(records::Error::Store(StoreError::Unknown(why))) => {
                self.read_back(object, why).await
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Finds out whether a write of unknown outcome is in the store.
    async fn read_back<S: Admissible>(
        &self,
        object: &mut Object<S>,
        why: String,
    ) -> Result<Attempt, Refusal> {
        // If it cannot be read, it may still have been written: nothing of it may be cleaned up.
        let found = self.records.at::<S>(&records::key_of(object)).await.unwrap_or_default();
        if let Some(found) = found
            && found.spec == object.spec
        {
            // Status may have moved on since; what writers write must be as it was written.
            object.metadata.resource_version.clone_from(&found.metadata.resource_version);
            if found.metadata == object.metadata {
                *object = found;
                return Ok(Attempt::Done);
            }
        }
        Err(Refusal::Unavailable { why, is_surely_not_applied: false })
    }
}

/// A document that was decoded and checked.
struct Incoming<S: Admissible> {
    object: Object<S>,
    warnings: Vec<String>,
}

/// How a commit went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Attempt {
    Done,
    /// A guard did not hold: look again.
    Overtaken,
}

impl Attempt {
    const fn is_done(self) -> bool {
        matches!(self, Self::Done)
    }
}

/// Refuses what would leave its record no room for its status.
fn expect_room<S: Admissible>(spec: &S) -> Result<(), Refusal> {
    let bytes = serde_json::to_vec(spec).map_or(usize::MAX, |json| json.len());
    if bytes <= WRITTEN_BYTES_MAX {
        return Ok(());
    }
    let kind = S::KIND;
    let why =
        format!("the spec of this {kind} has {bytes} bytes; at most {WRITTEN_BYTES_MAX} are taken");
    Err(Refusal::TooLarge { why })
}

fn created<S: Admissible>(object: &Object<S>, warnings: Vec<String>) -> Result<Admitted, Refusal> {
    admitted(object, warnings, Outcome::Created)
}

fn admitted<S: Admissible>(
    object: &Object<S>,
    warnings: Vec<String>,
    outcome: Outcome,
) -> Result<Admitted, Refusal> {
    Ok(Admitted { object: to_value(object)?, warnings, outcome })
}

fn to_value<S: Admissible>(object: &Object<S>) -> Result<Value, Refusal> {
    serde_json::to_value(object).map_err(|error| Refusal::Internal { why: error.to_string() })
}

#[cfg(test)]
mod tests;
