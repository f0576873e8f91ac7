//! The way in for desired state, as the configuration bounds it.

use std::path::Path;
use std::sync::Arc;

use super::start::{tree_limits, turn_limits};
use crate::admission::{self, Admission};
use crate::api::config::Config;
use crate::clock::SharedClock;
use crate::ports::Hooks;
use crate::slots::SharedSlots;
use crate::store::{SharedBlobs, SharedStore};

/// The operator's programs.
pub(super) type SharedHooks = Arc<dyn Hooks>;

/// What admission shares with the rest of the daemon.
pub(super) struct Held<'a> {
    pub(super) store: &'a SharedStore,
    pub(super) blobs: &'a SharedBlobs,
    pub(super) clock: &'a SharedClock,
    pub(super) slots: &'a SharedSlots,
}

impl Held<'_> {
    /// The one way in.
    pub(super) fn admission(
        &self,
        data_dir: &Path,
        config: &Config,
        hooks: SharedHooks,
    ) -> Admission {
        let Self { store, blobs, clock, slots } = self;
        let (store, blobs) = (Arc::clone(store), Arc::clone(blobs));
        let (clock, slots) = (Arc::clone(clock), Arc::clone(slots));
        let admission = Admission::new(store, blobs, clock, slots, admission_limits(config));
        // It is there by now; what has no name of its own is compared as it was told.
        let data_dir = std::fs::canonicalize(data_dir).unwrap_or_else(|_| data_dir.to_path_buf());
        admission.with_hooks(hooks).with_data_dir(data_dir)
    }
}

fn admission_limits(config: &Config) -> admission::Limits {
    admission::Limits {
        inbox: config.limits.inbox as usize,
        prompt_bytes: usize::try_from(config.limits.prompt_bytes.get()).unwrap_or(usize::MAX),
        turns: turn_limits(config),
        ttl_max: config.limits.max_ttl.get(),
        default_child_ttl: config.limits.default_child_ttl.get(),
        children_per_root: config.limits.max_children_total_per_root as usize,
        spawns_per_minute_per_root: config.limits.spawns_per_minute_per_root as usize,
        tree: tree_limits(config),
    }
}
