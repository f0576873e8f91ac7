//! What only the daemon that takes it knows to be wrong with an Agent: a path of its sandbox that
//! can never be given free, because of where the daemon's own files are.
//!
//! Stands beside validation, which knows of no machine. By the text of the path alone: links are
//! followed at the start, which says the same words. Absent: whether a path exists, which may change.

use std::any::Any;
use std::path::{Path, PathBuf};

use super::Admission;
use super::kinds::Admissible;
use crate::api::agent::SandboxMode;
use crate::api::field::FieldErrorReason::FieldValueForbidden;
use crate::api::validate::free_path::why_not_free;
use crate::api::{AgentSpec, FieldErrors, FieldPath};

impl Admission {
    /// The same for a daemon whose files are there: an absolute path without links.
    #[must_use]
    pub fn with_data_dir(self, data_dir: PathBuf) -> Self {
        Self { data_dir: Some(data_dir), ..self }
    }

    /// Adds the faults of a spec that has to do with this daemon's files.
    pub(super) fn check_free_paths<S: Admissible>(&self, spec: &S, errors: &mut FieldErrors) {
        let any: &dyn Any = spec;
        let (Some(agent), Some(data_dir)) = (any.downcast_ref::<AgentSpec>(), &self.data_dir)
        else {
            return;
        };
        if agent.sandbox.mode == SandboxMode::Off {
            return;
        }
        for (index, path) in agent.sandbox.write_paths.iter().enumerate() {
            // Validation has said the same of this one.
            if Path::new(path) == Path::new("/") {
                continue;
            }
            if let Some(why) = why_not_free(Path::new(path), data_dir) {
                let at = FieldPath::new("spec.sandbox.writePaths").index(index);
                errors.push(at, FieldValueForbidden, format!("{path} {why}"));
            }
        }
    }
}
