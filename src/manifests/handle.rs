//! What the rest of the daemon may know of the watched directories.

use std::sync::Arc;

use tokio::sync::watch;

use crate::api::Conditions;
use crate::ports::{Manifest, Manifests};

/// The state after a look.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Report {
    /// Every file, in path order, and each directory that something is wrong with.
    pub files: Vec<Manifest>,
    /// `WatchNative`.
    pub conditions: Conditions,
    /// Whether every directory was listed and applied once.
    pub is_synced: bool,
}

/// Reads the service's reports. Cheap to clone.
#[derive(Clone)]
pub struct Handle {
    reports: watch::Receiver<Arc<Report>>,
}

impl Handle {
    pub(super) const fn new(reports: watch::Receiver<Arc<Report>>) -> Self {
        Self { reports }
    }

    /// The newest report.
    #[must_use]
    pub fn report(&self) -> Arc<Report> {
        self.reports.borrow().clone()
    }

    /// Waits until every directory was listed and applied once. Tells `false` if the service ended
    /// before that.
    ///
    /// # Cancel safety
    ///
    /// Nothing is lost if the future is dropped.
    pub async fn synced(&mut self) -> bool {
        self.reports.wait_for(|report| report.is_synced).await.is_ok()
    }

    /// Waits for a report that `holds`. `None` if the service ended before that.
    ///
    /// # Cancel safety
    ///
    /// Nothing is lost if the future is dropped.
    pub async fn when(&mut self, holds: impl FnMut(&Arc<Report>) -> bool) -> Option<Arc<Report>> {
        self.reports.wait_for(holds).await.ok().map(|report| report.clone())
    }
}

impl Manifests for Handle {
    fn manifests(&self) -> Vec<Manifest> {
        self.report().files.clone()
    }
}
