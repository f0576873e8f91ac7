//! How the daemon is: readiness and its own conditions.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::launcher::RuntimeLauncher;
use crate::api::condition::ConditionStatus::{False, True, Unknown};
use crate::api::machine::Guard;
use crate::api::{Condition, ConditionStatus, Time};
use crate::clock::SharedClock;
use crate::manifests;
use crate::ports::Health;
use crate::runtime::machine::Facts;
use crate::store::Store as _;
use crate::store::sqlite::SqliteStore;

/// A wall clock that is off by more is told of.
const CLOCK_SKEW_MAX_MS: u64 = 5000;

/// Reads how the daemon is.
pub(super) struct Status {
    pub(super) store: Arc<SqliteStore>,
    pub(super) manifests: manifests::Handle,
    pub(super) clock: SharedClock,
    pub(super) started: Time,
    machine: Machine,
    is_ready: AtomicBool,
}

/// What the machine is looked at with.
pub(super) struct Machine {
    pub(super) data_dir: PathBuf,
    /// Where cgroups are made, found at the start.
    pub(super) cgroup: Option<PathBuf>,
    pub(super) listener: SocketAddr,
    /// Where agents' programs are looked for.
    launcher: Arc<RuntimeLauncher>,
}

impl Machine {
    pub(super) fn of(
        launcher: &Arc<RuntimeLauncher>,
        data_dir: &Path,
        listener: SocketAddr,
    ) -> Self {
        let cgroup = launcher.runtime().options().cgroup_base.clone();
        let launcher = Arc::clone(launcher);
        Self { data_dir: data_dir.to_owned(), cgroup, listener, launcher }
    }
}

impl Status {
    pub(super) fn new(
        store: &Arc<SqliteStore>,
        manifests: &manifests::Handle,
        clock: &SharedClock,
        machine: Machine,
    ) -> Arc<Self> {
        let started = clock.now().time;
        Arc::new(Self {
            store: Arc::clone(store),
            manifests: manifests.clone(),
            clock: Arc::clone(clock),
            started,
            machine,
            is_ready: AtomicBool::new(false),
        })
    }

    pub(super) fn set_ready(&self) {
        self.is_ready.store(true, Ordering::SeqCst);
    }

    fn condition(
        &self,
        kind: &str,
        status: ConditionStatus,
        reason: &str,
        message: String,
    ) -> Condition {
        Condition {
            kind: kind.to_owned(),
            status,
            reason: reason.to_owned(),
            message,
            observed_generation: 0,
            last_transition_time: self.started,
        }
    }
}

impl Health for Status {
    fn is_ready(&self) -> bool {
        self.is_ready.load(Ordering::SeqCst) && self.store.fault().is_none()
    }

    fn conditions(&self) -> Vec<Condition> {
        let store = match self.store.fault() {
            None => self.condition("StoreAvailable", True, "Open", String::new()),
            Some(fault) => self.condition("StoreAvailable", False, "ReadOnly", fault),
        };
        let disk = if self.store.is_disk_low() {
            let message =
                "the disk is full: new work is refused, cancel and delete still work; free space";
            self.condition("DiskPressure", True, "Full", message.to_owned())
        } else {
            self.condition("DiskPressure", False, "Enough", String::new())
        };
        let skew = self.clock.wall_skew_ms();
        let clock = if skew.unsigned_abs() > CLOCK_SKEW_MAX_MS {
            let message = format!(
                "the wall clock has moved by {skew} ms since the daemon started; times in records go on from \
                 its start, deadlines are not touched"
            );
            self.condition("ClockSteady", False, "ClockJumped", message)
        } else {
            self.condition("ClockSteady", True, "Steady", String::new())
        };
        let report = self.manifests.report();
        let watch = report.conditions.get("WatchNative").cloned().unwrap_or_else(|| {
            let message = "no directory was looked at yet".to_owned();
            self.condition("WatchNative", Unknown, "NotLooked", message)
        });
        vec![store, disk, clock, watch]
    }

    fn guards(&self) -> Vec<Guard> {
        let Machine { data_dir, cgroup, listener, launcher } = &self.machine;
        let mut guards = Facts::look(data_dir, cgroup.clone()).of_daemon(*listener).guards();
        guards.push(launcher.path_guard());
        guards
    }
}
