//! `spawnlet config`: what the daemon would run with, key by key.

use std::path::PathBuf;

use clap::Args;
use serde_json::{Value, json};

use super::Context;
use super::doctor::Form;
use super::failure::Failure;
use super::output::TablePrinter;
use crate::api::config::{Entry, load};
use crate::manifests::yaml::{Document, FILE_BYTES_MAX, Format, parse_documents};

/// Print the configuration: every key, its value, where it comes from, and whether a change needs
/// a restart.
#[derive(Debug, Args)]
pub(super) struct Config {
    /// The configuration file, as given to `spawnlet serve`.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Sets one key, as given to `spawnlet serve`; repeatable.
    #[arg(long = "set", value_name = "KEY=VALUE")]
    sets: Vec<String>,
    /// The form of output.
    #[arg(short, long, value_enum, default_value_t)]
    output: Form,
}

impl Config {
    pub(super) fn run(self, context: &mut Context<'_>) -> Result<(), Failure> {
        let document = self.config.as_ref().map(read).transpose()?.flatten();
        let value = document.as_ref().map(|document| &document.value);
        let loaded = load(value, &self.sets).map_err(|errors| {
            let shown = self.config.as_ref().map(|path| path.display().to_string());
            let lines: Vec<String> = errors
                .0
                .iter()
                .map(|error| match (&document, &shown) {
                    (Some(document), Some(path)) => {
                        format!("{path}:{}", document.fault(error.field.as_str(), &error.message))
                    }
                    _ => error.to_string(),
                })
                .collect();
            Failure::Data(lines.join("\n"))
        })?;
        let entries = loaded.entries();
        match self.output {
            Form::Json => writeln!(context.out, "{:#}", json!(entries))?,
            Form::Text => {
                TablePrinter::default().print(&table(&entries), context.out)?;
            }
        }
        Ok(())
    }
}

/// The file's one document; none if it is empty.
fn read(path: &PathBuf) -> Result<Option<Document>, Failure> {
    use std::io::Read;
    let shown = path.display();
    let fault = |error: &dyn std::fmt::Display| Failure::Data(format!("{shown}: {error}"));
    let mut bytes = Vec::new();
    std::fs::File::open(path)
        .and_then(|file| file.take(FILE_BYTES_MAX as u64 + 1).read_to_end(&mut bytes))
        .map_err(|error| fault(&error))?;
    let mut documents = parse_documents(&bytes, Format::of_path(path))
        .map_err(|error| Failure::Data(format!("{shown}:{error}")))?;
    if documents.len() > 1 {
        return Err(fault(&"it has several documents, a configuration is one"));
    }
    Ok(documents.pop())
}

fn table(entries: &[Entry]) -> Value {
    let columns =
        ["Key", "Value", "Source", "Restart"].map(|name| json!({"name": name, "priority": 0}));
    let rows: Vec<Value> = entries
        .iter()
        .map(|entry| {
            let value = match &entry.value {
                Value::Null => "(found at start)".to_owned(),
                Value::String(text) => text.clone(),
                other => other.to_string(),
            };
            let restart = if entry.needs_restart { "yes" } else { "no" };
            json!({"cells": [entry.key, value, entry.source.as_str(), restart]})
        })
        .collect();
    json!({"columnDefinitions": columns, "rows": rows})
}
