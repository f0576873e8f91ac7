//! `spawnlet demo`: the arguments of the demonstration.

use clap::Args;

/// What the help says beyond the first line.
const ABOUT: &str = "\
It needs no network, no agent and no configuration, and touches nothing outside of a scratch \
directory that it removes. A step that does not come out as it should ends it with exit code 1; the \
scratch directory then stays and is named.";

/// Show the main job on one screen, in a scratch directory.
#[derive(Debug, Args)]
#[command(after_help = ABOUT)]
pub(super) struct Demo {
    /// Keep the scratch directory: the daemon's log and store, and the applied file.
    #[arg(long)]
    keep: bool,
}

/// What the demonstration was told on its command line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DemoOptions {
    /// Whether the scratch directory stays.
    pub keep: bool,
}

impl Demo {
    pub(super) const fn options(&self) -> DemoOptions {
        DemoOptions { keep: self.keep }
    }
}
