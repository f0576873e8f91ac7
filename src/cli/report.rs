//! `spawnlet report`.

use clap::Args;

use super::Context;
use super::client::{collection, with_query};
use super::failure::Failure;
use super::get::{eprint_line, parse_subject};
use super::output::{Output, TablePrinter};
use crate::rest::resource::Resource;

/// Show what the loop saw, decided and did, newest first.
#[derive(Debug, Args)]
pub(super) struct Report {
    /// KIND/NAME; all objects of the namespace if absent.
    object: Option<String>,
    /// Only what failed, backs off or waits now, with why and the next try.
    #[arg(long)]
    failing: bool,
    /// All namespaces.
    #[arg(short = 'A', long, conflicts_with = "object")]
    all_namespaces: bool,
    /// The form of output.
    #[arg(short, long, value_enum, default_value_t)]
    output: Output,
}

impl Report {
    pub(super) async fn run(self, context: &mut Context<'_>) -> Result<(), Failure> {
        let client = context.client()?;
        let object = match &self.object {
            None => String::new(),
            Some(text) => {
                let (resource, name) = parse_subject(text, None)?;
                let name = name.ok_or_else(|| {
                    Failure::Usage("of which one? give KIND/NAME, or nothing".to_owned())
                })?;
                if resource.is_namespaced() {
                    format!("{}/{}/{name}", resource.kind(), context.namespace)
                } else {
                    format!("{}/{name}", resource.kind())
                }
            }
        };
        // An object says itself where it is; cluster kinds are in no namespace.
        let namespace =
            (!self.all_namespaces && object.is_empty()).then_some(context.namespace.as_str());
        let query =
            [("object", object.as_str()), ("failing", if self.failing { "true" } else { "" })];
        let path = with_query(&collection(Resource::Reports, namespace), &query);
        if !self.output.is_table() {
            let list = client.get(&path).await?;
            return self.output.write(&list, Resource::Reports, context.out);
        }
        let table = client.table(&path).await?;
        let mut printer = TablePrinter::new(self.output == Output::Wide, self.all_namespaces);
        if printer.print(&table, context.out)? == 0 {
            eprint_line(if self.failing {
                "nothing failed, backs off or waits"
            } else {
                "no reports found"
            });
        }
        Ok(())
    }
}
