//! Carries a plan out: one file whole or not at all, one deletion at a time.
//!
//! Every step may be done twice: a second run finds the object as the first one left it, or the
//! mark. If the daemon dies between two objects of a file, the next look applies the rest; between
//! an object and its mark, the object is taken up again by the file that it names.

use std::collections::BTreeMap;

use super::diff::{DocumentHash, ObjectId};
use super::document::Checked;
use super::gate::{self, Found, Gate, Written};
use super::ledger::{Entry, Ledger};
use super::yaml::Error;
use crate::admission::Refusal;
use crate::api::{Kind, Uid};
use crate::failpoint::{self, Point};
use crate::store::SharedStore;

/// A file that is applied.
pub(super) struct Applying<'a> {
    /// Its path as people see it, and as its objects name it.
    pub(super) source: &'a str,
    /// What the marks of its objects are to say, but for hash and uid.
    pub(super) place: &'a Entry,
    /// All its documents.
    pub(super) documents: &'a [Checked],
    /// Those that are not applied yet.
    pub(super) wanted: &'a [usize],
}

/// How it went.
#[derive(Default)]
pub(super) struct Outcome {
    /// Why it was not applied; then nothing of it was.
    pub(super) faults: Vec<Error>,
    /// What its author should know.
    pub(super) warnings: Vec<Error>,
    /// Whether an old object has to go before the new one is made.
    pub(super) is_waiting: bool,
    /// Whether anything was written.
    pub(super) has_written: bool,
}

/// The store or admission cannot answer: it is no fault of a file, and tried again.
#[derive(Debug, thiserror::Error)]
pub(super) enum Stalled {
    /// The store.
    #[error("{0}")]
    Store(#[from] crate::store::Error),
    /// Admission, because of the store.
    #[error("{0}")]
    Refused(Refusal),
}

/// What is to be done for a document.
enum Action {
    /// Only its mark is new.
    Mark(Uid),
    /// It is written.
    Write,
    /// What has its name goes first.
    Wait,
}

/// Writes through admission and keeps the marks.
pub(super) struct Applier<'a> {
    pub(super) gate: &'a Gate,
    pub(super) store: &'a SharedStore,
    pub(super) ledger: &'a mut Ledger,
}

impl Applier<'_> {
    /// Applies what a file says. All of it is tried in a dry run first.
    pub(super) async fn file(&mut self, file: &Applying<'_>) -> Result<Outcome, Stalled> {
        let mut outcome = Outcome::default();
        let mut actions = Vec::new();
        for document in in_order(file) {
            match self.decide(file, document).await? {
                Ok(action) => actions.push((document, action)),
                Err(fault) => outcome.faults.push(fault),
            }
        }
        for (document, action) in &actions {
            if matches!(action, Action::Write)
                && let Err(refusal) = self.gate.apply(document, file.source, true).await
                && !waits_for_its_file(file, document, &refusal)
            {
                outcome.faults.extend(gate::faults(document, &unless_stalled(refusal)?));
            }
        }
        if !outcome.faults.is_empty() {
            return Ok(outcome);
        }
        for (document, action) in actions {
            self.carry_out(file, document, action, &mut outcome).await?;
        }
        Ok(outcome)
    }

    async fn carry_out(
        &mut self,
        file: &Applying<'_>,
        document: &Checked,
        action: Action,
        outcome: &mut Outcome,
    ) -> Result<(), Stalled> {
        let object = &document.claim.object;
        let entry =
            |hash: &DocumentHash, uid: Uid| Entry { hash: hash.clone(), uid, ..file.place.clone() };
        failpoint::reach(Point::ManifestBefore);
        match action {
            Action::Wait => outcome.is_waiting = true,
            Action::Mark(uid) => {
                let mark = entry(&document.claim.hash, uid);
                self.ledger.put(self.store, object, mark).await?;
            }
            Action::Write => match self.gate.apply(document, file.source, false).await {
                Ok(Written::Done { uid, warnings }) => {
                    let warning = |text| document.fault(text);
                    outcome.warnings.extend(warnings.into_iter().map(warning));
                    outcome.has_written = true;
                    failpoint::reach(Point::ManifestAfter);
                    self.ledger.put(self.store, object, entry(&document.claim.hash, uid)).await?;
                }
                Ok(Written::Replacing) => {
                    // No document has this hash: whatever the file says once the old object is
                    // gone, it is made.
                    let uid = self.ledger.get(object).map(|mark| mark.uid.clone());
                    let mark = entry(&DocumentHash(String::new()), uid.unwrap_or_default());
                    self.ledger.put(self.store, object, mark).await?;
                    outcome.is_waiting = true;
                    outcome.has_written = true;
                }
                // It was taken in the dry run, and something changed since: the next look tries
                // the rest of the file again.
                Err(refusal) => {
                    outcome.faults.extend(gate::faults(document, &unless_stalled(refusal)?));
                }
            },
        }
        Ok(())
    }

    async fn decide(
        &self,
        file: &Applying<'_>,
        document: &Checked,
    ) -> Result<Result<Action, Error>, Stalled> {
        let object = &document.claim.object;
        let found = self.gate.find(object).await.map_err(Stalled::Refused)?;
        let mark = self.ledger.get(object);
        let is_same = mark.is_some_and(|mark| mark.hash == document.claim.hash);
        let Some(found) = found else {
            return Ok(Ok(match mark {
                // Somebody else removed it: the mark is its tombstone until the document changes.
                Some(mark) if is_same => Action::Mark(mark.uid.clone()),
                Some(_) | None => Action::Write,
            }));
        };
        let is_ours = mark.is_some_and(|mark| mark.uid == found.uid);
        if found.is_deleting {
            return Ok(Ok(match mark {
                Some(mark) if is_same => Action::Mark(mark.uid.clone()),
                Some(_) | None => Action::Wait,
            }));
        }
        if object.kind == Kind::Namespace && found.source.is_none() {
            // Namespaces are made with what is in them. One that no document made is not this
            // document's to delete.
            return Ok(Ok(Action::Mark(Uid::default())));
        }
        if found.source.is_none() {
            let why = if is_ours { "was taken over from its file" } else { "is not a file's" };
            let message = format!(
                "{object} exists and {why}, expected a free name; delete the object or rename it here"
            );
            return Ok(Err(document.fault(message)));
        }
        let is_in_place = found.source.as_deref() == Some(file.source);
        Ok(Ok(match mark {
            Some(_) if is_same && is_ours && is_in_place => Action::Mark(found.uid),
            Some(_) | None => Action::Write,
        }))
    }

    /// Deletes what a file made and no file has any more. An object that is not the one that was
    /// made, or that somebody took over, stays.
    pub(super) async fn delete(&mut self, object: &ObjectId) -> Result<(), Stalled> {
        let Some(mark) = self.ledger.get(object) else { return Ok(()) };
        let found = self.gate.find(object).await.map_err(Stalled::Refused)?;
        if let Some(Found { uid, source: Some(_), .. }) = found
            && uid == mark.uid
        {
            match self.gate.delete(object, &uid).await {
                Ok(()) | Err(Refusal::Conflict { .. }) => {}
                Err(refusal) => {
                    let refusal = unless_stalled(refusal)?;
                    tracing::warn!(%object, %refusal, "what a manifest made cannot be deleted");
                }
            }
        }
        self.ledger.remove(self.store, object).await?;
        Ok(())
    }
}

/// A refusal that is a fault of the document; the store's trouble is none.
fn unless_stalled(refusal: Refusal) -> Result<Refusal, Stalled> {
    match refusal {
        Refusal::Unavailable { .. } | Refusal::Internal { .. } => Err(Stalled::Refused(refusal)),
        refusal => Ok(refusal),
    }
}

/// What is referred to comes first: by kind, and a session after its parent of the same file.
fn in_order<'a>(file: &Applying<'a>) -> Vec<&'a Checked> {
    let wanted = || file.wanted.iter().filter_map(|index| file.documents.get(*index));
    let parents: BTreeMap<&ObjectId, &str> = wanted()
        .filter_map(|document| {
            let parent = document.document.value["spec"]["parent"].as_str()?;
            Some((&document.claim.object, parent))
        })
        .collect();
    let depth = |object: &ObjectId| {
        let mut object = object.clone();
        let mut depth = 0;
        while let Some(parent) = parents.get(&object) {
            depth += 1;
            if depth > parents.len() {
                break;
            }
            object.name = (*parent).into();
        }
        depth
    };
    let mut documents: Vec<&Checked> = wanted().collect();
    documents.sort_by_key(|document| {
        let object = &document.claim.object;
        (Kind::ALL.iter().position(|kind| *kind == object.kind), depth(object))
    });
    documents
}

/// Whether a dry run was refused only because a session of the same file is not made yet.
fn waits_for_its_file(file: &Applying<'_>, document: &Checked, refusal: &Refusal) -> bool {
    let fields = refusal.field_errors();
    !fields.is_empty()
        && fields.iter().all(|error| {
            let name = match error.field.as_str() {
                "spec.session" => document.document.value["spec"]["session"].as_str(),
                "spec.parent" => document.document.value["spec"]["parent"].as_str(),
                _ => None,
            };
            let Some(name) = name else { return false };
            let session = ObjectId {
                kind: Kind::Session,
                namespace: document.claim.object.namespace.clone(),
                name: name.into(),
            };
            session != document.claim.object
                && file.documents.iter().any(|other| other.claim.object == session)
        })
}
