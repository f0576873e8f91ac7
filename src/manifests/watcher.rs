//! The service: looks at the directories, plans, carries out, tells.
//!
//! What makes it look is a hint or the clock, never a content: a native notification, content that
//! has to settle, an absence that has to be confirmed, an object that has to go before its
//! successor, a try again, or the interval. Each look lists everything anew.
//!
//! Invariants: one look at a time; the plan is made of values that one look found; what the store
//! could not do is tried again by the next look, which begins with the marks as they are stored.
//!
//! Absent on purpose: any knowledge of what changed.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Notify, watch};
use tokio_util::sync::CancellationToken;

use super::apply::{Applier, Applying, Outcome, Stalled};
use super::diff::{self, Conflict, DirectoryView, Hold, Mark, ObjectId, Plan, Source, World};
use super::directory::{self, Listing};
use super::gate::Gate;
use super::handle::{Handle, Report};
use super::ledger::{Entry, Ledger};
use super::native::Native;
use super::report;
use super::shelf::{self, SETTLE, Shelf};
use super::tell::Teller;
use super::yaml::Error;
use crate::admission::Admission;
use crate::clock::{Mono, Now, SharedClock};
use crate::store::SharedStore;

/// How often the directories are looked at where notification works: for what it misses, such as
/// changes behind a link to a file.
const RESYNC: Duration = Duration::from_secs(10);
/// How often where it does not work, and for a directory that is gone.
const POLL: Duration = Duration::from_secs(2);
/// How often it is looked whether an object is gone that is being replaced. Its process may take
/// seconds to end; a quarter of one is not noticed beside them.
const REPLACING: Duration = Duration::from_millis(250);
/// How long after the store could not answer it is asked again.
const STALLED: Duration = Duration::from_secs(1);

/// How the directories are watched.
#[derive(Clone, Debug)]
pub struct Options {
    /// The directories, in the order that decides between two files.
    pub directories: Vec<PathBuf>,
    /// Whether what is gone from the files is deleted (`--no-prune`: false).
    pub prune: bool,
    /// Whether native notification is tried.
    pub native: bool,
}

/// Watches the directories and applies what they hold.
pub struct Service {
    directories: Vec<Directory>,
    prune: bool,
    gate: Gate,
    store: SharedStore,
    clock: SharedClock,
    /// `None`: to be read from the store.
    ledger: Option<Ledger>,
    absences: BTreeMap<ObjectId, Mono>,
    native: Native,
    hint: Arc<Notify>,
    teller: Teller,
    is_synced: bool,
    reports: watch::Sender<Arc<Report>>,
}

/// One directory between two looks.
pub(super) struct Directory {
    pub(super) root: PathBuf,
    pub(super) shelf: Shelf,
    /// Why it could not be listed.
    pub(super) gone: Option<String>,
    pub(super) listing: Option<Listing>,
    pub(super) held: BTreeMap<ObjectId, Hold>,
    /// Whether its objects without a mark were looked for.
    is_adopted: bool,
}

impl Directory {
    fn new(root: PathBuf) -> Self {
        Self {
            root,
            shelf: Shelf::default(),
            gone: None,
            listing: None,
            held: BTreeMap::new(),
            is_adopted: false,
        }
    }

    /// A file's path as people see it, and as its objects name it.
    pub(super) fn full(&self, path: &str) -> String {
        self.root.join(path).display().to_string()
    }
}

/// When to look again: the earliest of all reasons.
struct Due(Mono);

impl Due {
    fn at(&mut self, due: Mono) {
        self.0 = self.0.min(due);
    }
}

impl Service {
    /// A service and the handle that reads its reports. Nothing is looked at before
    /// [`Service::run`].
    #[must_use]
    pub fn new(
        options: Options,
        admission: Arc<Admission>,
        store: SharedStore,
        clock: SharedClock,
    ) -> (Self, Handle) {
        let hint = Arc::new(Notify::new());
        let native = if options.native { Native::new(hint.clone()) } else { Native::off() };
        // A relative path would mean another directory after a restart elsewhere.
        let directory = |root| Directory::new(std::path::absolute(&root).unwrap_or(root));
        let uids = admission.uids().clone();
        let (reports, receiver) = watch::channel(Arc::new(Report::default()));
        let service = Self {
            directories: options.directories.into_iter().map(directory).collect(),
            prune: options.prune,
            gate: Gate::new(admission),
            store: store.clone(),
            clock,
            ledger: None,
            absences: BTreeMap::new(),
            native,
            hint,
            teller: Teller::new(store, uids),
            is_synced: false,
            reports,
        };
        (service, Handle::new(receiver))
    }

    /// Looks until `shutdown`.
    ///
    /// # Cancel safety
    ///
    /// A dropped look leaves a part of a file unapplied; the next start applies the rest.
    pub async fn run(mut self, shutdown: CancellationToken) {
        let hint = self.hint.clone();
        loop {
            let started = self.clock.now().mono;
            let Due(mut due) = self.look().await;
            loop {
                let wait = due.since(self.clock.now().mono);
                // Both branches wait only; nothing is lost with the one that is dropped.
                tokio::select! {
                    biased;
                    () = shutdown.cancelled() => return,
                    () = tokio::time::sleep(wait) => break,
                    // Many hints make one look; the next comes when content may have settled.
                    () = hint.notified() => due = due.min(started.plus(SETTLE)),
                }
            }
        }
    }

    /// One look: list, plan, carry out, tell. Tells when the next is due.
    async fn look(&mut self) -> Due {
        let now = self.clock.now();
        let mut due = Due(now.mono.plus(RESYNC));
        self.list(now.mono, &mut due).await;
        if self.native.problem().is_some()
            || self.directories.iter().any(|directory| directory.gone.is_some())
        {
            due.at(now.mono.plus(POLL));
        }
        match self.reconcile(now, &mut due).await {
            Ok(()) => self.is_synced = true,
            Err(stalled) => {
                tracing::warn!(%stalled, "manifests are not applied; it is tried again");
                // What was committed is not certain: the marks are read anew.
                self.ledger = None;
                due.at(now.mono.plus(STALLED));
            }
        }
        self.report(now).await;
        due
    }

    /// Lists every directory and reads what is new, on a blocking thread.
    async fn list(&mut self, now: Mono, due: &mut Due) {
        let at_once = !self.is_synced;
        let mut directories = std::mem::take(&mut self.directories);
        let roots: Vec<PathBuf> = directories.iter().map(|d| d.root.clone()).collect();
        let mut native = std::mem::replace(&mut self.native, Native::off());
        let looked = tokio::task::spawn_blocking(move || {
            let mut wake: Option<Mono> = None;
            list_all(&mut directories);
            let wanted = |directories: &[Directory]| {
                let listings =
                    directories.iter().filter_map(|directory| directory.listing.as_ref());
                listings.flat_map(|listing| listing.directories.clone()).collect()
            };
            if native.arm(&wanted(&directories)) {
                // What happened between listing and watching is in no hint.
                list_all(&mut directories);
                native.arm(&wanted(&directories));
            }
            for Directory { root, shelf, listing, .. } in &mut directories {
                if let Some(listing) = listing {
                    let settled = shelf.take(root, listing, now, at_once);
                    wake = [wake, settled].into_iter().flatten().min();
                }
            }
            (directories, native, wake)
        })
        .await;
        match looked {
            Ok((directories, native, wake)) => {
                (self.directories, self.native) = (directories, native);
                if let Some(wake) = wake {
                    due.at(wake);
                }
            }
            // A panic in the listing. Nothing is known of the directories, so nothing is deleted.
            Err(error) => {
                tracing::error!(%error, "listing the manifest directories failed");
                let lost = |root| Directory {
                    gone: Some("the listing failed".to_owned()),
                    ..Directory::new(root)
                };
                self.directories = roots.into_iter().map(lost).collect();
            }
        }
    }

    /// Plans and carries out.
    async fn reconcile(&mut self, now: Now, due: &mut Due) -> Result<(), Stalled> {
        let mut ledger = match self.ledger.take() {
            Some(ledger) => ledger,
            None => Ledger::load(&self.store).await?,
        };
        self.adopt(&mut ledger).await?;
        let mut plan = diff::plan(&self.world(&ledger), now.mono);
        self.let_go(&mut plan).await?;
        self.absences.clone_from(&plan.absences);
        if let Some(wake) = plan.wake {
            due.at(wake);
        }
        let mut refused = self.conflicts(&plan);
        let mut has_written = false;
        for (source, wanted) in &plan.apply {
            let outcome = self.apply(&mut ledger, source, wanted).await?;
            let Some(outcome) = outcome else {
                // It is not what was listed any more; a look at what it is now follows.
                due.at(now.mono.plus(SETTLE));
                continue;
            };
            has_written |= outcome.has_written;
            if outcome.is_waiting {
                due.at(now.mono.plus(REPLACING));
            }
            self.settle(source, &outcome, now);
            if !outcome.faults.is_empty() {
                refused.insert(source.clone(), outcome.faults);
            }
        }
        if has_written && !refused.is_empty() {
            // What was refused may have waited for what another file made.
            due.at(now.mono.plus(SETTLE));
        }
        for object in &plan.delete {
            tracing::info!(%object, "no manifest file has this object any more: it is deleted");
            let (gate, store) = (&self.gate, &self.store);
            Applier { gate, store, ledger: &mut ledger }.delete(object).await?;
        }
        self.conclude(plan, refused, now);
        self.ledger = Some(ledger);
        Ok(())
    }

    /// What is held and was removed by somebody else meanwhile needs no confirmation.
    async fn let_go(&self, plan: &mut diff::Plan) -> Result<(), Stalled> {
        let held: Vec<ObjectId> = plan.held.keys().cloned().collect();
        for object in held {
            if self.gate.find(&object).await.map_err(Stalled::Refused)?.is_none() {
                plan.held.remove(&object);
                plan.delete.push(object);
            }
        }
        Ok(())
    }

    /// Objects that name a file of ours and have no mark: the daemon died between the two. Looked
    /// for once, when a directory is first listed.
    async fn adopt(&mut self, ledger: &mut Ledger) -> Result<(), Stalled> {
        let is_new = |directory: &&Directory| !directory.is_adopted && directory.listing.is_some();
        if !self.directories.iter().any(|directory| is_new(&directory)) {
            return Ok(());
        }
        for (object, found) in self.gate.managed().await.map_err(Stalled::Refused)? {
            let Some(source) = found.source.filter(|_| ledger.get(&object).is_none()) else {
                continue;
            };
            for directory in self.directories.iter().filter(is_new) {
                let below = Path::new(&source).strip_prefix(&directory.root);
                if let (Ok(path), Some(listing)) = (below, &directory.listing) {
                    let entry = Entry {
                        directory: directory.root.display().to_string(),
                        path: path.display().to_string(),
                        // No document has this hash, so the file's document is applied.
                        hash: diff::DocumentHash(String::new()),
                        uid: found.uid.clone(),
                        identity: listing.identity,
                    };
                    ledger.put(&self.store, &object, entry).await?;
                    break;
                }
            }
        }
        for directory in &mut self.directories {
            directory.is_adopted |= directory.listing.is_some();
        }
        Ok(())
    }

    fn world(&self, ledger: &Ledger) -> World {
        let index: BTreeMap<String, usize> = (self.directories.iter().enumerate())
            .map(|(index, directory)| (directory.root.display().to_string(), index))
            .collect();
        let mark = |(object, entry): (&ObjectId, &Entry)| {
            let source =
                Source { directory: *index.get(&entry.directory)?, path: entry.path.clone() };
            let Entry { hash, uid, identity, .. } = entry.clone();
            Some((object.clone(), Mark { source, hash, uid, identity }))
        };
        let view = |directory: &Directory| match &directory.listing {
            Some(listing) if directory.gone.is_none() => DirectoryView::Listed {
                identity: listing.identity,
                complete: listing.is_complete(),
                files: directory.shelf.views(),
            },
            Some(_) | None => DirectoryView::Gone,
        };
        World {
            directories: self.directories.iter().map(view).collect(),
            marks: ledger.iter().filter_map(mark).collect(),
            absences: self.absences.clone(),
            prune: self.prune,
        }
    }

    /// The files that are not applied because of another.
    fn conflicts(&self, plan: &Plan) -> BTreeMap<Source, Vec<Error>> {
        let fault = |conflict: &Conflict| {
            let first = self.directories.get(conflict.first.directory)?.full(&conflict.first.path);
            let taken = self.directories.get(conflict.source.directory)?;
            let claim = taken.shelf.claim(&conflict.source.path, conflict.document)?;
            let fault = Error {
                place: claim.place,
                field: "metadata.name".to_owned(),
                message: format!(
                    "{} is in {first} too, which has it, expected one file",
                    claim.object
                ),
            };
            Some((conflict.source.clone(), vec![fault]))
        };
        plan.conflicts.iter().filter_map(fault).collect()
    }

    /// Applies one file; `None` if it is not what was listed any more.
    async fn apply(
        &self,
        ledger: &mut Ledger,
        source: &Source,
        wanted: &[usize],
    ) -> Result<Option<Outcome>, Stalled> {
        let directory = self.directories.get(source.directory);
        let Some((directory, listing)) = directory.and_then(|d| Some((d, d.listing.as_ref()?)))
        else {
            return Ok(None);
        };
        let Some(content) = directory.shelf.content(&source.path) else { return Ok(None) };
        let (root, path) = (directory.root.clone(), source.path.clone());
        let read = tokio::task::spawn_blocking(move || shelf::read(&root, &path, &content)).await;
        let Ok(Some(Ok(documents))) = read else { return Ok(None) };
        let place = Entry {
            directory: directory.root.display().to_string(),
            path: source.path.clone(),
            hash: diff::DocumentHash(String::new()),
            uid: crate::api::Uid::default(),
            identity: listing.identity,
        };
        let full = directory.full(&source.path);
        let file = Applying { source: &full, place: &place, documents: &documents, wanted };
        let mut applier = Applier { gate: &self.gate, store: &self.store, ledger };
        applier.file(&file).await.map(Some)
    }

    /// Keeps what came of a file.
    fn settle(&mut self, source: &Source, outcome: &Outcome, now: Now) {
        let directory = self.directories.get_mut(source.directory);
        if let Some(taken) = directory.and_then(|directory| directory.shelf.get_mut(&source.path)) {
            taken.notes.clone_from(&outcome.warnings);
            if outcome.faults.is_empty() && !outcome.is_waiting {
                taken.applied_at = Some(now.time);
            }
            taken.is_waiting = outcome.is_waiting;
        }
    }

    /// Keeps what the look found for the next one and for the report.
    fn conclude(&mut self, plan: Plan, mut refused: BTreeMap<Source, Vec<Error>>, now: Now) {
        for (index, directory) in self.directories.iter_mut().enumerate() {
            for (path, taken) in directory.shelf.taken_mut() {
                let source = Source { directory: index, path: path.clone() };
                taken.refused = refused.remove(&source).unwrap_or_default();
                let is_whole = taken.documents.is_ok() && taken.refused.is_empty();
                if is_whole && !plan.apply.contains_key(&source) {
                    taken.applied_at.get_or_insert(now.time);
                    taken.is_waiting = false;
                }
            }
            directory.held.clear();
        }
        for (object, (directory, hold)) in plan.held {
            if let Some(directory) = self.directories.get_mut(directory) {
                directory.held.insert(object, hold);
            }
        }
    }

    async fn report(&mut self, now: Now) {
        let ledger = self.ledger.as_ref();
        let files: Vec<_> =
            self.directories.iter().flat_map(|d| report::of_directory(d, ledger)).collect();
        let mut conditions = self.reports.borrow().conditions.clone();
        report::watch_native(&mut conditions, self.native.problem(), now.time);
        let report = Report { files, conditions, is_synced: self.is_synced };
        self.reports.send_if_modified(|last| {
            let is_new = **last != report;
            if is_new {
                *last = Arc::new(report);
            }
            is_new
        });
        // Last: who reads of it in the log or an event finds it in the report.
        self.teller.tell(&self.directories, now).await;
    }
}

/// Lists every directory; one that cannot be listed keeps nothing but why.
fn list_all(directories: &mut [Directory]) {
    for directory in directories {
        match directory::list(&directory.root) {
            Ok(listing) => {
                directory.listing = Some(listing);
                directory.gone = None;
            }
            Err(error) => {
                directory.listing = None;
                directory.gone = Some(directory::reason(&error));
            }
        }
    }
}

#[cfg(test)]
mod tests;
