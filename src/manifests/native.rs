//! Native notification: hints that something changed, never what.
//!
//! Each directory that a listing walked is watched by itself, so that links are followed and a
//! directory that was removed and made again is watched anew. Where that does not work, the
//! service looks at short intervals and says so in the condition `WatchNative`.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use notify::{EventKind, RecommendedWatcher, RecursiveMode, Watcher};
use tokio::sync::Notify;

use super::directory::Identity;

/// Watches, as far as the machine lets us.
pub(super) struct Native {
    watcher: Option<RecommendedWatcher>,
    armed: BTreeMap<PathBuf, Identity>,
    /// Why notification does not work at all.
    broken: Option<String>,
    /// Why it does not work for some directory; found anew by each arming.
    problem: Option<String>,
}

impl Native {
    /// Every change hints through `hint`. Reading is no change: our own listing would set off the
    /// next one.
    pub(super) fn new(hint: Arc<Notify>) -> Self {
        let watcher = notify::recommended_watcher(move |event: notify::Result<notify::Event>| {
            // An error is a hint too: what was missed is found by looking.
            if !event.is_ok_and(|event| matches!(event.kind, EventKind::Access(_))) {
                hint.notify_one();
            }
        });
        let (watcher, broken) = match watcher {
            Ok(watcher) => (Some(watcher), None),
            Err(error) => (None, Some(error.to_string())),
        };
        Self { watcher, armed: BTreeMap::new(), broken, problem: None }
    }

    /// Without any notification.
    pub(super) fn off() -> Self {
        let broken = Some("native notification is switched off".to_owned());
        Self { watcher: None, armed: BTreeMap::new(), broken, problem: None }
    }

    /// Watches exactly these directories. Tells whether a watch is new: what happened before it
    /// was there must be looked for once more.
    pub(super) fn arm(&mut self, wanted: &BTreeMap<PathBuf, Identity>) -> bool {
        let Some(watcher) = &mut self.watcher else { return false };
        self.problem = None;
        self.armed.retain(|path, identity| {
            let is_wanted = wanted.get(path) == Some(identity);
            if !is_wanted {
                // Fails for a directory that is gone, whose watch went with it.
                let _ = watcher.unwatch(path);
            }
            is_wanted
        });
        let mut is_new = false;
        for (path, identity) in wanted {
            if let Some(kind) = network_mount(path) {
                self.problem = Some(format!("{} is on a network mount ({kind})", path.display()));
            }
            if self.armed.contains_key(path) {
                continue;
            }
            match watcher.watch(path, RecursiveMode::NonRecursive) {
                Ok(()) => {
                    self.armed.insert(path.clone(), *identity);
                    is_new = true;
                }
                Err(error) => self.problem = Some(error.to_string()),
            }
        }
        is_new
    }

    /// Why looking at short intervals is needed; `None` if notification works.
    pub(super) fn problem(&self) -> Option<&str> {
        self.broken.as_deref().or(self.problem.as_deref())
    }
}

/// File systems whose changes on other machines the kernel does not tell (statfs(2)).
#[cfg(target_os = "linux")]
fn network_mount(path: &Path) -> Option<&'static str> {
    let kind = rustix::fs::statfs(path).ok()?.f_type;
    match u32::try_from(kind).ok()? {
        0x6969 => Some("nfs"),
        0x517b | 0xfe53_4d42 | 0xff53_4d42 => Some("smb"),
        0x6573_5546 => Some("fuse"),
        0x0102_1997 => Some("9p"),
        0x00c3_6400 => Some("ceph"),
        0x5346_414f => Some("afs"),
        _ => None,
    }
}

#[cfg(not(target_os = "linux"))]
fn network_mount(_: &Path) -> Option<&'static str> {
    None
}
