//! What only this engine promises: durability, refusals, the full disk, shared fsyncs.

use std::path::Path;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex};

use rusqlite::{Connection, ffi};
use tempfile::TempDir;

use super::*;
use crate::store::conformance;

/// Lets the engine fail at a step that a test names.
#[derive(Default)]
pub(super) struct Trips {
    next: Mutex<Option<(u32, i32)>>,
    quota_pages: AtomicI64,
}

impl Shared {
    /// A place where tests let the engine fail.
    pub(super) fn trip(&self) -> rusqlite::Result<()> {
        let mut next = self.trips.next.lock().unwrap();
        match &mut *next {
            None => Ok(()),
            Some((0, code)) => {
                let error = ffi::Error::new(*code);
                *next = None;
                Err(rusqlite::Error::SqliteFailure(error, None))
            }
            Some((steps, _)) => {
                *steps -= 1;
                Ok(())
            }
        }
    }

    /// The ballast of a pretended disk gives back pages instead of bytes.
    pub(super) fn lift_quota(&self, connection: &Connection) {
        let pages = self.trips.quota_pages.swap(0, Ordering::SeqCst);
        if pages > 0 {
            connection.pragma_update(None, "max_page_count", pages).unwrap();
        }
    }
}

fn options() -> Options {
    Options { ballast_bytes: 64 * 1024, ..Options::default() }
}

fn open_in(dir: &Path) -> Arc<SqliteStore> {
    Arc::new(open(dir, options()).unwrap().0)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sqlite_conforms() {
    let dir = TempDir::new().unwrap();
    conformance::run_all_on(open_in(dir.path())).await;
}
