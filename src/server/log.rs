//! The daemon's log, on standard error, without the secrets that are in use.

use std::io::{self, Write};

use tracing_subscriber::fmt::MakeWriter;

use crate::api::config::{Config, LogFormat};
use crate::secret::Redactor;

/// Starts logging as the configuration says.
pub(super) fn start(config: &Config, redactor: &Redactor) {
    // The MCP library tells of each message at our level; whoever names it hears it.
    let level = match &config.log.level {
        level if level.contains("rmcp") => level.clone(),
        level => format!("{level},rmcp=warn"),
    };
    let filter = tracing_subscriber::EnvFilter::try_new(&level)
        .unwrap_or_else(|_| tracing_subscriber::EnvFilter::new("info"));
    let log = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_ansi(io::IsTerminal::is_terminal(&io::stderr()))
        .with_writer(Writer { redactor: redactor.clone() });
    // A second subscriber in one process (tests) is no fault.
    let _ = match config.log.format {
        LogFormat::Json => log.json().try_init(),
        LogFormat::Text => log.try_init(),
    };
}

/// Writes whole events: the subscriber gives each in one piece.
#[derive(Clone)]
struct Writer {
    redactor: Redactor,
}

impl<'a> MakeWriter<'a> for Writer {
    type Writer = Self;

    fn make_writer(&'a self) -> Self {
        self.clone()
    }
}

impl Write for Writer {
    fn write(&mut self, event: &[u8]) -> io::Result<usize> {
        io::stderr().write_all(&self.redactor.bytes(event))?;
        Ok(event.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        io::stderr().flush()
    }
}
