//! The bundled agents: the manifests of `manifests/agents`, carried in the program, and
//! `spawnlet agents import`, which adds them.
//!
//! They are applied as `spawnlet apply` does, with its annotation, so that a later apply of a
//! changed copy merges. What is there already is somebody's and stays as it is.

use std::ffi::OsStr;
use std::path::Path;

use clap::Args;
use serde_json::Value;

use super::Context;
use super::agents::AGENTS;
use super::apply::{MANAGER, annotated};
use super::client::{collection, with_query};
use super::failure::Failure;
use super::files::documents;
use super::output::{name_of, text};
use crate::api::AgentSpec;
use crate::manifests::yaml::Format;

/// Each file's name without its ending, which is its agent's, and its text.
const BUNDLED: [(&str, &str); 14] = [
    ("claude", include_str!("../../manifests/agents/claude.yaml")),
    ("cline", include_str!("../../manifests/agents/cline.yaml")),
    ("codex", include_str!("../../manifests/agents/codex.yaml")),
    ("copilot", include_str!("../../manifests/agents/copilot.yaml")),
    ("cursor", include_str!("../../manifests/agents/cursor.yaml")),
    ("fastagent", include_str!("../../manifests/agents/fastagent.yaml")),
    ("gemini", include_str!("../../manifests/agents/gemini.yaml")),
    ("goose", include_str!("../../manifests/agents/goose.yaml")),
    ("kimi", include_str!("../../manifests/agents/kimi.yaml")),
    ("opencode", include_str!("../../manifests/agents/opencode.yaml")),
    ("openhands", include_str!("../../manifests/agents/openhands.yaml")),
    ("pi", include_str!("../../manifests/agents/pi.yaml")),
    ("qwen", include_str!("../../manifests/agents/qwen.yaml")),
    ("vibe", include_str!("../../manifests/agents/vibe.yaml")),
];

/// Add bundled agents. Objects that are there are left alone.
#[derive(Debug, Args)]
pub(super) struct Import {
    /// Bundled agents; all if none is named.
    names: Vec<String>,
    /// Only those whose program is found on this command's PATH.
    #[arg(long)]
    installed: bool,
}

impl Import {
    pub(super) async fn run(self, context: &mut Context<'_>) -> Result<(), Failure> {
        let chosen = chosen(&self.names)?;
        let client = context.client()?;
        let path = std::env::var_os("PATH").unwrap_or_default();
        for (file, text) in chosen {
            for document in read(file, text)? {
                let name = name_of(&document, AGENTS);
                if self.installed
                    && let Some(program) = absent_program(&document, &path)?
                {
                    writeln!(context.out, "{name} skipped: {program} is not on the PATH")?;
                    continue;
                }
                let query = [("fieldManager", MANAGER), ("fieldValidation", "Strict")];
                let path = with_query(&collection(AGENTS, None), &query);
                match client.post(&path, &annotated(&document)).await {
                    Ok(_) => writeln!(context.out, "{name} created")?,
                    Err(Failure::Refused { reason, .. }) if reason == "AlreadyExists" => {
                        writeln!(context.out, "{name} exists already, left alone")?;
                    }
                    Err(failure) => return Err(failure),
                }
            }
        }
        Ok(())
    }
}

/// The bundled agents of these names, in their order; all if there is none.
fn chosen(names: &[String]) -> Result<Vec<(&'static str, &'static str)>, Failure> {
    if names.is_empty() {
        return Ok(BUNDLED.to_vec());
    }
    let find = |name: &String| {
        BUNDLED.into_iter().find(|(file, _)| file == name).ok_or_else(|| {
            let all: Vec<&str> = BUNDLED.iter().map(|(file, _)| *file).collect();
            Failure::Usage(format!("no agent {name:?} is bundled; there are {}", all.join(", ")))
        })
    };
    names.iter().map(find).collect()
}

fn read(file: &str, text: &str) -> Result<Vec<Value>, Failure> {
    let format = Format::of_path(Path::new("bundled.yaml"));
    let checked = documents(text.as_bytes(), format, "").map_err(|errors| {
        let errors: Vec<String> = errors.iter().map(ToString::to_string).collect();
        Failure::Failed(format!("the bundled {file}.yaml: {}", errors.join("; ")))
    })?;
    Ok(checked.into_iter().map(|checked| checked.document.value).collect())
}

/// The program of a document's command, if it is not on the path.
fn absent_program(document: &Value, path: &OsStr) -> Result<Option<String>, Failure> {
    let name = text(document, "/metadata/name");
    let fault = |error: String| Failure::Failed(format!("the bundled agent {name}: {error}"));
    let spec = document.get("spec").cloned().unwrap_or_default();
    let spec: AgentSpec = serde_json::from_value(spec).map_err(|error| fault(error.to_string()))?;
    let words = spec.words().map_err(|errors| fault(errors.to_string()))?;
    let program = words.into_iter().next().unwrap_or_default();
    let is_there = std::env::split_paths(path).any(|directory| {
        let file = directory.join(&program);
        directory.is_absolute()
            && file.is_file()
            && rustix::fs::access(&file, rustix::fs::Access::EXEC_OK).is_ok()
    });
    Ok((!is_there).then_some(program))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[test]
    fn every_manifest_file_is_bundled_and_has_what_others_choose_by() {
        let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("manifests/agents");
        let files: BTreeMap<String, String> = std::fs::read_dir(directory)
            .unwrap()
            .map(|entry| {
                let path = entry.unwrap().path();
                let name = path.file_stem().unwrap().to_str().unwrap().to_owned();
                (name, std::fs::read_to_string(path).unwrap())
            })
            .collect();
        let bundled = BUNDLED.map(|(name, text)| (name.to_owned(), text.to_owned()));
        assert_eq!(files, BTreeMap::from(bundled));
        for (file, text) in BUNDLED {
            let [document] = read(file, text).unwrap().try_into().unwrap();
            assert_eq!(document["kind"], "Agent");
            assert_eq!(document["metadata"]["name"], file);
            for field in ["displayName", "description"] {
                assert!(document["spec"][field].as_str().is_some_and(|text| !text.is_empty()));
            }
            let description = document["spec"]["description"].as_str().unwrap();
            assert!(description.len() < 200 && !description.contains('\n'), "{description}");
        }
    }

    #[test]
    fn names_choose_and_an_unknown_one_is_told_the_others() {
        assert_eq!(chosen(&[]).unwrap().len(), BUNDLED.len());
        let names =
            |names: &[&str]| chosen(&names.iter().map(|&name| name.to_owned()).collect::<Vec<_>>());
        let [(first, _), (second, _)] = names(&["pi", "codex"]).unwrap().try_into().unwrap();
        assert_eq!((first, second), ("pi", "codex"));
        let failure = names(&["nobody"]).unwrap_err();
        assert_eq!(failure.exit_code(), 2);
        assert!(failure.to_string().contains("claude, cline"), "{failure}");
    }

    #[test]
    fn a_program_counts_if_it_can_be_executed_from_the_path() {
        use std::os::unix::fs::PermissionsExt;
        let directory = tempfile::tempdir().unwrap();
        let document = serde_json::json!({"spec": {"command": "some-agent --acp"}});
        let absent = || absent_program(&document, directory.path().as_os_str()).unwrap();
        assert_eq!(absent().as_deref(), Some("some-agent"));
        let file = directory.path().join("some-agent");
        std::fs::write(&file, "").unwrap();
        assert_eq!(absent().as_deref(), Some("some-agent"));
        std::fs::set_permissions(&file, PermissionsExt::from_mode(0o755)).unwrap();
        assert_eq!(absent(), None);
    }
}
