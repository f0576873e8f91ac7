//! Namespaces: where a new object goes, and how they end.

use tokio_util::sync::CancellationToken;

use super::kinds::Admissible;
use super::{ATTEMPTS_MAX, Admission, Refusal, Writer};
use crate::api::namespace::NamespacePhase;
use crate::api::{
    DEFAULT_NAMESPACE, Kind, Namespace, NamespaceRecord, NamespaceSpec, Object, ObjectMeta,
};
use crate::store::records::{Page, Txn};
use crate::store::{Change, keys};

/// Where a new object goes.
pub(super) enum Home {
    /// Nowhere: its kind has no namespace.
    Cluster,
    /// A namespace that is there.
    Existing(NamespaceRecord),
    /// A namespace that is made with it.
    New(NamespaceRecord),
}

impl Home {
    /// Makes the transaction depend on the namespace staying, or make it too.
    pub(super) fn join(&self, txn: Txn) -> Txn {
        match self {
            Self::Cluster => txn,
            Self::Existing(namespace) => txn.unchanged(namespace),
            Self::New(namespace) => txn.create(namespace),
        }
    }
}

impl Admission {
    /// Makes the namespace `default` if it is not there. For the daemon's start.
    ///
    /// # Errors
    ///
    /// The store's.
    pub async fn ensure_default_namespace(&self) -> Result<(), Refusal> {
        for _ in 0..ATTEMPTS_MAX {
            let found = self.namespace(&DEFAULT_NAMESPACE.into()).await?;
            if found.is_some() {
                return Ok(());
            }
            let mut made = self.new_namespace(&DEFAULT_NAMESPACE.into());
            if self.commit_new(Txn::new().create(&made), &mut made).await?.is_done() {
                return Ok(());
            }
        }
        Err(Refusal::modified(Kind::Namespace, &DEFAULT_NAMESPACE.into()))
    }

    /// Where a new object goes. Files make their namespaces; others get a 404.
    pub(super) async fn home<S: Admissible>(
        &self,
        object: &Object<S>,
        writer: &Writer,
    ) -> Result<Home, Refusal> {
        if !S::KIND.is_namespaced() {
            return Ok(Home::Cluster);
        }
        let namespace = &object.metadata.namespace;
        let is_made =
            namespace.as_str() == DEFAULT_NAMESPACE || matches!(writer, Writer::Manifest { .. });
        let name = namespace.as_str().into();
        match self.namespace(namespace).await? {
            Some(found) if found.metadata.is_deleting() => Err(Refusal::Forbidden {
                kind: S::KIND,
                name: object.metadata.name.clone(),
                why: format!("the namespace {namespace} is being deleted"),
            }),
            Some(found) => Ok(Home::Existing(found)),
            None if is_made => Ok(Home::New(self.new_namespace(namespace))),
            None => Err(Refusal::NotFound { kind: Kind::Namespace, name }),
        }
    }

    pub(super) async fn namespace(
        &self,
        namespace: &Namespace,
    ) -> Result<Option<NamespaceRecord>, Refusal> {
        Ok(self.records.get::<NamespaceSpec>(&"".into(), &namespace.as_str().into()).await?)
    }

    fn new_namespace(&self, name: &Namespace) -> NamespaceRecord {
        let metadata = ObjectMeta {
            name: name.as_str().into(),
            uid: self.uids.make(),
            generation: 1,
            creation_timestamp: Some(self.clock.now().time),
            ..ObjectMeta::default()
        };
        NamespaceRecord::new(metadata, NamespaceSpec {})
    }

    /// Removes every namespace that is being deleted and has nothing left in it that must end
    /// first. To be called at start and when a session's record went.
    ///
    /// # Errors
    ///
    /// The store's.
    pub async fn finish_namespaces(&self) -> Result<(), Refusal> {
        for namespace in self.records.list::<NamespaceSpec>(None, &Page::ALL).await?.items {
            if namespace.metadata.is_deleting() {
                self.finish_namespace(&namespace).await?;
            }
        }
        Ok(())
    }

    /// Removes namespaces when their last session has gone, until `shutdown`.
    ///
    /// # Errors
    ///
    /// The store's; to be run again then.
    ///
    /// # Cancel safety
    ///
    /// A namespace that is left is found by the next run.
    pub async fn watch_namespaces(&self, shutdown: &CancellationToken) -> Result<(), Refusal> {
        while !shutdown.is_cancelled() {
            let head = self.records.store().head().await?;
            let prefix = keys::kind_prefix(Kind::Session);
            let mut watch = self.records.store().watch(&prefix, head).await?;
            self.finish_namespaces().await?;
            loop {
                let change = tokio::select! {
                    biased;
                    () = shutdown.cancelled() => return Ok(()),
                    // Cancel safe: nothing is lost from the watch.
                    change = watch.next() => change,
                };
                match change {
                    Some(Change::Delete { .. }) => self.finish_namespaces().await?,
                    Some(Change::Put(_) | Change::Bookmark(_)) => {}
                    Some(Change::Compacted { .. } | Change::Regressed { .. } | Change::Lost(_)) => {
                        break;
                    }
                    // The store is closed.
                    None => return Ok(()),
                }
            }
        }
        Ok(())
    }

    /// Removes a namespace if no session is left in it; tells whether it did.
    pub(super) async fn finish_namespace(
        &self,
        namespace: &NamespaceRecord,
    ) -> Result<bool, Refusal> {
        let name = Namespace::from(namespace.metadata.name.as_str());
        let one = Page { after: None, limit: 1 };
        for kind in [Kind::Session, Kind::Turn] {
            if !self.records.list_values(kind, Some(&name), &one).await?.items.is_empty() {
                return Ok(false);
            }
        }
        match Txn::new().remove(namespace).commit(&**self.records.store()).await {
            Ok(_) => Ok(true),
            // Somebody else finished it.
            Err(error) if error.is_conflict() => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// A namespace as it is once its deletion was asked for.
    pub(super) fn terminating(&self, namespace: &NamespaceRecord) -> NamespaceRecord {
        let mut ending = namespace.clone();
        ending.metadata.deletion_timestamp.get_or_insert(self.clock.now().time);
        ending.status.phase = NamespacePhase::Terminating;
        ending
    }
}
