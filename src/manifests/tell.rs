//! Tells what is wrong with a file in the log and as an event, once each time that it changes.

use std::collections::BTreeMap;

use sha2::{Digest, Sha256};

use super::report;
use super::watcher::Directory;
use crate::api::event::{EventSource, EventType, ObjectReference};
use crate::api::{API_VERSION, DEFAULT_NAMESPACE, Event, Kind, Name, Namespace, ObjectMeta, Uid};
use crate::clock::Now;
use crate::store::uids::SharedUids;
use crate::store::{self, Commit, Guard, Op, SharedStore, keys};

/// The longest message of an event (core/v1 allows 1 KiB).
const MESSAGE_BYTES_MAX: usize = 1024;

/// What there is to tell of a path.
#[derive(Clone, PartialEq, Eq, Default)]
struct Told {
    error: Option<String>,
    warning: Option<String>,
}

/// Remembers what was told.
pub(super) struct Teller {
    store: SharedStore,
    uids: SharedUids,
    told: BTreeMap<String, Told>,
}

impl Teller {
    pub(super) const fn new(store: SharedStore, uids: SharedUids) -> Self {
        Self { store, uids, told: BTreeMap::new() }
    }

    /// Tells what is new since the last time.
    pub(super) async fn tell(&mut self, directories: &[Directory], now: Now) {
        let mut next = BTreeMap::new();
        for directory in directories {
            let path = directory.root.display().to_string();
            next.insert(path, Told { error: report::problem(directory), warning: None });
            for (path, taken) in directory.shelf.taken() {
                let path = directory.full(path);
                let warnings: Vec<_> = taken.warnings.iter().chain(&taken.notes).cloned().collect();
                let warning = (!warnings.is_empty()).then(|| report::lines(&path, &warnings));
                // That something is being replaced passes by itself.
                let error = report::error(&path, taken).filter(|_| !taken.is_waiting);
                next.insert(path, Told { error, warning });
            }
        }
        let last = std::mem::take(&mut self.told);
        for (path, told) in &next {
            let before = last.get(path).cloned().unwrap_or_default();
            if let Some(error) = told.error.as_ref().filter(|_| told.error != before.error) {
                tracing::warn!(manifest = %path, "{error}");
                self.event(path, EventType::Warning, "ManifestInvalid", error, now).await;
            }
            if before.error.is_some() && told.error.is_none() {
                tracing::info!(manifest = %path, "in order again");
                self.event(path, EventType::Normal, "ManifestApplied", "in order again", now).await;
            }
            if let Some(warning) = told.warning.as_ref().filter(|_| told.warning != before.warning)
            {
                tracing::warn!(manifest = %path, "{warning}");
                self.event(path, EventType::Warning, "ManifestWarning", warning, now).await;
            }
        }
        self.told = next;
    }

    async fn event(&self, path: &str, severity: EventType, reason: &str, message: &str, now: Now) {
        if let Err(error) = self.put_event(path, severity, reason, message, now).await {
            // The log has it, and `get manifests` too.
            tracing::warn!(%error, "an event of a manifest could not be stored");
        }
    }

    /// One event for each path, reason and message; the same again is counted.
    async fn put_event(
        &self,
        path: &str,
        severity: EventType,
        reason: &str,
        message: &str,
        now: Now,
    ) -> Result<(), store::Error> {
        let message = bounded(message);
        let digest = Sha256::digest(format!("{path}\0{reason}\0{message}").as_bytes());
        let digest = crate::api::hex(&digest[..6]);
        let namespace = Namespace::from(DEFAULT_NAMESPACE);
        let name = Name::new(format!("manifest-{digest}"));
        let key = keys::record(Kind::Event, &namespace, &name);
        let stored = self.store.get(&key).await?;
        let last =
            stored.as_ref().and_then(|record| serde_json::from_slice::<Event>(&record.value).ok());
        let (count, first, uid) = match last {
            Some(last) => (last.count.saturating_add(1), last.first_timestamp, last.metadata.uid),
            None => (1, now.time, self.uids.make()),
        };
        let event = Event {
            api_version: Kind::Event.api_version().to_owned(),
            kind: Kind::Event.as_str().to_owned(),
            metadata: ObjectMeta {
                name,
                namespace,
                uid,
                creation_timestamp: Some(first),
                ..ObjectMeta::default()
            },
            involved_object: ObjectReference {
                api_version: API_VERSION.to_owned(),
                kind: "Manifest".to_owned(),
                namespace: Namespace::default(),
                name: Name::new(path),
                uid: Uid::default(),
            },
            severity,
            reason: reason.to_owned(),
            message: message.to_owned(),
            count,
            first_timestamp: first,
            last_timestamp: now.time,
            source: EventSource { component: "spawnlet".to_owned() },
        };
        let value = serde_json::to_vec(&event)
            .map_err(|error| store::Error::Unsupported(error.to_string()))?
            .into();
        let guard = match stored {
            Some(record) => Guard::RevIs(key.clone(), record.rev),
            None => Guard::Absent(key.clone()),
        };
        let commit = Commit { guards: vec![guard], ops: vec![Op::Put { key, value }] };
        self.store.commit(commit).await.map(|_| ())
    }
}

fn bounded(message: &str) -> &str {
    let mut end = message.len().min(MESSAGE_BYTES_MAX);
    while !message.is_char_boundary(end) {
        end -= 1;
    }
    &message[..end]
}
