//! Which paths lie inside a session's directories.
//!
//! Only a judgement on what an agent says that it will touch: nothing is opened here, so the race
//! between the look and the use is the agent's. The file services open by `openat2`, whatever was judged here.

use std::path::{Component, Path, PathBuf};

/// The directories that a session may work in: canonical, absolute.
#[derive(Clone, Debug, Default)]
pub struct Roots(Vec<PathBuf>);

/// A longer path is outside: Linux refuses it (PATH_MAX, path_resolution(7)).
const PATH_BYTES_MAX: usize = 4096;

impl Roots {
    /// Roots that are canonical already.
    #[must_use]
    pub fn new(roots: Vec<PathBuf>) -> Self {
        Self(roots)
    }

    /// Whether a path is absolute, without NUL, and inside once its symlinks are followed. Of a
    /// path that does not exist yet the nearest ancestor that does counts; a dangling symlink or a
    /// `..` below that ancestor is outside, as nobody can say where it will lead. Blocks for a few
    /// file system look-ups.
    #[must_use]
    pub fn contain(&self, path: &str) -> bool {
        if path.len() > PATH_BYTES_MAX || path.contains('\0') || !path.starts_with('/') {
            return false;
        }
        let path = Path::new(path);
        for ancestor in path.ancestors() {
            if let Ok(real) = ancestor.canonicalize() {
                let rest = path.strip_prefix(ancestor).unwrap_or(path);
                let plain = rest.components().all(|part| matches!(part, Component::Normal(_)));
                return plain && self.0.iter().any(|root| real.starts_with(root));
            }
            if ancestor.symlink_metadata().is_ok_and(|data| data.is_symlink()) {
                return false;
            }
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_stays_below_a_root_is_inside() {
        let home = tempfile::tempdir().unwrap();
        let base = home.path().canonicalize().unwrap();
        let root = base.join("work");
        std::fs::create_dir_all(root.join("sub")).unwrap();
        std::fs::create_dir_all(base.join("work-too")).unwrap();
        std::fs::write(root.join("file"), "x").unwrap();
        std::os::unix::fs::symlink(base.join("work-too"), root.join("out")).unwrap();
        std::os::unix::fs::symlink(base.join("nothing"), root.join("dangling")).unwrap();
        std::os::unix::fs::symlink(root.join("sub"), root.join("in")).unwrap();
        let roots = Roots::new(vec![root.clone()]);
        let check = |path: &str, inside: bool| {
            let path = format!("{}/{path}", root.display());
            assert_eq!(roots.contain(&path), inside, "{path}");
        };
        check("", true);
        check("file", true);
        check("sub/new/deeper", true);
        check("in/new", true);
        check("sub/../file", true);
        check("../work/file", true);
        check("../work-too/file", false);
        check("out/file", false);
        check("dangling", false);
        check("dangling/x", false);
        check("new/../../x", false);
        check("file\0", false);
        check(&"x/".repeat(3000), false);
        assert!(!roots.contain("file"));
        assert!(!roots.contain(""));
        assert!(!roots.contain("/"));
        assert!(!Roots::default().contain("/tmp"));
    }
}
