//! `spawnlet completion`.

use clap::{Args, Command};
use clap_complete::Shell;

use super::Context;
use super::failure::Failure;

/// Print a completion script for a shell.
#[derive(Debug, Args)]
pub(super) struct Completion {
    /// The shell.
    #[arg(value_enum)]
    shell: Shell,
}

impl Completion {
    pub(super) fn run(
        self,
        context: &mut Context<'_>,
        command: &mut Command,
    ) -> Result<(), Failure> {
        // Made in memory first: the generator panics if its writer fails.
        let mut script = Vec::new();
        clap_complete::generate(self.shell, command, "spawnlet", &mut script);
        context.out.write_all(&script)?;
        Ok(())
    }
}
