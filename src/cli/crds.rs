//! `spawnlet crds` and `spawnlet schema`: what the records are, for clusters, editors and programs.

use clap::{Args, ValueEnum};

use super::Context;
use super::failure::Failure;
use crate::api::{Kind, schema};
use crate::rest::resource::Resource;

/// The form of a schema.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
enum Form {
    /// YAML.
    #[default]
    Yaml,
    /// JSON.
    Json,
}

/// Print the custom resource definitions of all kinds.
#[derive(Debug, Args)]
pub(super) struct Crds {
    /// The form of output.
    #[arg(short, long, value_enum, default_value_t)]
    output: Form,
}

impl Crds {
    pub(super) fn run(self, context: &mut Context<'_>) -> Result<(), Failure> {
        let crds: Vec<serde_json::Value> = Kind::ALL.into_iter().filter_map(schema::crd).collect();
        match self.output {
            Form::Json => {
                let list = serde_json::json!({"kind": "List", "apiVersion": "v1", "items": crds});
                writeln!(context.out, "{list:#}")?;
            }
            Form::Yaml => {
                for crd in &crds {
                    writeln!(context.out, "---\n{}", schema::yaml(crd).trim_end())?;
                }
            }
        }
        Ok(())
    }
}

/// Print the JSON schema of a kind.
#[derive(Debug, Args)]
pub(super) struct Schema {
    /// The kind.
    kind: String,
    /// The form of output.
    #[arg(short, long, value_enum, default_value = "json")]
    output: Form,
}

impl Schema {
    pub(super) fn run(self, context: &mut Context<'_>) -> Result<(), Failure> {
        let Some(Resource::Records(kind)) = Resource::parse(&self.kind) else {
            let kinds: Vec<&str> = Kind::ALL.into_iter().map(Kind::as_str).collect();
            return Err(Failure::Usage(format!(
                "there is no schema of {:?}; there are those of {}",
                self.kind,
                kinds.join(", ")
            )));
        };
        let schema = schema::schema(kind);
        match self.output {
            Form::Json => writeln!(context.out, "{schema:#}")?,
            Form::Yaml => writeln!(context.out, "{}", schema::yaml(&schema).trim_end())?,
        }
        Ok(())
    }
}
