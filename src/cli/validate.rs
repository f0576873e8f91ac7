//! `spawnlet validate`: files are checked as the watched directory checks them, without a daemon.

use std::path::PathBuf;

use clap::Args;

use super::Context;
use super::failure::Failure;
use super::files::load;
use super::get::eprint_line;
use super::output::name_of;
use crate::rest::resource::Resource;

/// Check files without a daemon.
#[derive(Debug, Args)]
pub(super) struct Validate {
    /// A file, a directory, or - for standard input; repeatable.
    #[arg(short = 'f', long = "filename", required = true, value_name = "FILE|DIR|-")]
    files: Vec<PathBuf>,
}

impl Validate {
    pub(super) fn run(self, context: &mut Context<'_>) -> Result<(), Failure> {
        for one in load(&self.files, &context.namespace)? {
            for warning in &one.checked.warnings {
                eprint_line(&format!("warning: {}:{warning}", one.source));
            }
            let resource = Resource::Records(one.checked.claim.object.kind);
            let name = name_of(&one.checked.document.value, resource);
            writeln!(context.out, "{}: {name} is valid", one.source)?;
        }
        Ok(())
    }
}
