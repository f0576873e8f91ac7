//! The scratch directory: everything that the demonstration writes is in it.

use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use serde_json::Value;

use super::failure::Failure;

/// What is applied. The repository has it as a file, to be read and applied by hand.
const MANIFEST: &str = include_str!("../../manifests/demo.yaml");
/// The folder in that file, as it is written there.
const FOLDER: &str = "\"/tmp/spawnlet-demo\"";
/// The file's name in the scratch directory.
pub(super) const MANIFEST_NAME: &str = "demo.yaml";

/// A directory of its own, for nobody else to read.
#[derive(Debug)]
pub(super) struct Scratch {
    path: PathBuf,
}

impl Scratch {
    /// Makes the directory with the manifest in it.
    pub(super) fn new() -> Result<Self, Failure> {
        let name = format!("spawnlet-demo-{}", uuid::Uuid::new_v4().simple());
        // Short enough for the path of the daemon's socket, and still nobody else's: an existing
        // directory is refused.
        let path = std::env::temp_dir().join(&name[..name.len() - 24]);
        let path = std::path::absolute(&path)
            .map_err(Failure::system(format!("the path {}", path.display())))?;
        let doing = || Failure::system(format!("the scratch directory {}", path.display()));
        let make = |path: &Path| std::fs::DirBuilder::new().mode(0o700).create(path);
        make(&path).map_err(doing())?;
        let scratch = Self { path };
        scratch.fill().inspect_err(|_| scratch.remove_quietly())?;
        Ok(scratch)
    }

    fn fill(&self) -> Result<(), Failure> {
        let write = |result: std::io::Result<()>| {
            result
                .map_err(Failure::system(format!("the scratch directory {}", self.path.display())))
        };
        write(std::fs::create_dir(self.path.join("work")))?;
        let manifest = manifest(&self.path.join("work"));
        write(std::fs::write(self.path.join(MANIFEST_NAME), manifest))
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// The daemon's log.
    pub(super) fn log(&self) -> PathBuf {
        self.path.join("daemon.log")
    }

    /// What `XDG_STATE_HOME` is for every program of the demonstration.
    pub(super) fn state(&self) -> PathBuf {
        self.path.join("state")
    }

    /// What `XDG_CONFIG_HOME` is: no watched directory of the user's is found there.
    pub(super) fn config(&self) -> PathBuf {
        self.path.join("config")
    }

    /// The id of the daemon's store, which every process of its agents carries in its environment;
    /// none if the daemon never came so far.
    pub(super) fn store_id(&self) -> Option<String> {
        let text = std::fs::read_to_string(self.state().join("spawnlet/store.id")).ok()?;
        text.lines().next().map(str::to_owned).filter(|id| !id.is_empty())
    }

    pub(super) fn remove(&self) -> Result<(), Failure> {
        std::fs::remove_dir_all(&self.path)
            .map_err(Failure::system(format!("removing {}", self.path.display())))
    }

    fn remove_quietly(&self) {
        // What failed before is what is told.
        let _ = self.remove();
    }
}

/// The manifest with the folder of this run.
fn manifest(folder: &Path) -> String {
    // A JSON string is a YAML string, whatever stands in the path.
    let folder = Value::from(folder.display().to_string()).to_string();
    MANIFEST.replace(FOLDER, &folder)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn the_manifest_names_the_folder_of_the_run_once_and_no_other() {
        let text = manifest(Path::new("/a \"b\"/work"));
        assert_eq!(MANIFEST.matches(FOLDER).count(), 1);
        assert_eq!(text.matches(r#"path: "/a \"b\"/work""#).count(), 1, "{text}");
        assert!(!text.contains(FOLDER), "{text}");
    }

    #[test]
    fn the_directory_is_for_its_owner_alone_and_goes_whole() {
        let scratch = Scratch::new().unwrap();
        let mode = std::fs::metadata(scratch.path()).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o700);
        let text = std::fs::read_to_string(scratch.path().join(MANIFEST_NAME)).unwrap();
        assert!(text.contains("kind: Session"), "{text}");
        assert_eq!(scratch.store_id(), None);
        scratch.remove().unwrap();
        assert!(!scratch.path().exists());
    }
}
