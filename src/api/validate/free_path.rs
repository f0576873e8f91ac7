//! Which paths may be given free to a sandboxed agent, by their text alone.

use std::path::Path;

/// Why a sandboxed agent must not have a path to write: it holds the daemon's own files, or is one.
/// Both paths are absolute.
#[must_use]
pub fn why_not_free(path: &Path, data_dir: &Path) -> Option<&'static str> {
    if path.starts_with(data_dir) {
        Some("is in the daemon's data directory, which a sandboxed agent must not have")
    } else if data_dir.starts_with(path) {
        Some("holds the daemon's data directory, which a sandboxed agent must not have")
    } else {
        None
    }
}
