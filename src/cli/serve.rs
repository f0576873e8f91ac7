//! `spawnlet serve`: the arguments of the daemon.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

use super::connect::default_data_dir;

/// Run the daemon.
#[derive(Debug, Args)]
pub(super) struct Serve {
    /// The loopback address to listen on; port 0 takes a free one [default: 127.0.0.1:7420].
    #[arg(long, value_name = "ADDR:PORT")]
    listen: Option<String>,
    /// A directory of manifest files; repeatable [default: ~/.config/spawnlet/manifests, if it
    /// exists].
    #[arg(long, value_name = "DIR")]
    manifests: Vec<PathBuf>,
    /// Do not delete what a removed document or file made.
    #[arg(long)]
    no_prune: bool,
    /// The configuration file, YAML; none is looked for. `spawnlet config` shows its keys.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Sets one configuration key; repeatable.
    #[arg(long = "set", value_name = "KEY=VALUE")]
    sets: Vec<String>,
    /// What is logged (error, warn, info, debug, trace, or a tracing filter).
    #[arg(long, value_name = "LEVEL")]
    log_level: Option<String>,
    /// The form of the log.
    #[arg(long, value_enum)]
    log_format: Option<LogFormat>,
}

/// The form of the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// For people.
    Text,
    /// One JSON object a line.
    Json,
}

/// What the daemon was told on its command line. What is `None` or empty comes from the
/// configuration file or is the default there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServeOptions {
    /// `listen`.
    pub listen: Option<String>,
    /// `dataDir`; `None` only if neither the flag nor a home directory is there.
    pub data_dir: Option<PathBuf>,
    /// `manifests`.
    pub manifests: Vec<PathBuf>,
    /// Whether what a removed document made is deleted.
    pub prune: bool,
    /// The configuration file.
    pub config: Option<PathBuf>,
    /// `key=value`, over the configuration file.
    pub sets: Vec<String>,
    /// `log.level`.
    pub log_level: Option<String>,
    /// `log.format`.
    pub log_format: Option<LogFormat>,
}

impl Serve {
    pub(super) fn options(self, data_dir: Option<PathBuf>) -> ServeOptions {
        ServeOptions {
            listen: self.listen,
            data_dir: data_dir.or_else(|| default_data_dir(&|name| std::env::var_os(name))),
            manifests: self.manifests,
            prune: !self.no_prune,
            config: self.config,
            sets: self.sets,
            log_level: self.log_level,
            log_format: self.log_format,
        }
    }
}
