//! `spawnlet secret`: the vault's values go in and are never shown.
//!
//! A value comes from standard input: typed at a prompt without echo if that is a terminal, else
//! read to its end. It is no argument and no variable, which other processes could read.

use std::io::{self, IsTerminal as _, Read as _, Write as _};

use clap::{Args, Subcommand};
use hyper::{Method, header};
use rustix::termios::{LocalModes, OptionalActions, Termios, tcgetattr, tcsetattr};
use serde_json::json;
use zeroize::Zeroizing;

use super::Context;
use super::failure::Failure;
use super::get::eprint_line;
use crate::api::secret::SecretName;

/// What is read at most; the daemon takes 16 KiB.
const VALUE_BYTES_MAX: u64 = 64 * 1024;

/// Keep secrets of agents in the vault. They are encrypted there, and nothing shows them.
#[derive(Debug, Args)]
pub(super) struct Secret {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Keep a value. It is asked for, or read from standard input; a line break at its end does
    /// not count.
    Set(Named),
    /// Show the names of all secrets.
    List(List),
    /// Remove a value.
    Delete(Named),
}

/// Which secret.
#[derive(Debug, Args)]
struct Named {
    /// Its name, providers/AGENT/SLOT. An Agent names it as secretRef: vault:providers/AGENT/SLOT.
    #[arg(value_parser = name)]
    name: SecretName,
}

/// Show the names of all secrets.
#[derive(Debug, Args)]
struct List {
    /// The form of the output.
    #[arg(short, long, value_parser = ["name", "json"], default_value = "name")]
    output: String,
}

fn name(text: &str) -> Result<SecretName, &'static str> {
    SecretName::parse(text)
}

impl Secret {
    pub(super) async fn run(self, context: &mut Context<'_>) -> Result<(), Failure> {
        match self.verb {
            Verb::Set(named) => set(&named.name, context).await,
            Verb::List(list) => show(&list, context).await,
            Verb::Delete(named) => {
                let path = path(&named.name);
                let accept = [(header::ACCEPT, "application/json")];
                let empty = bytes::Bytes::new();
                context.client()?.open(Method::DELETE, &path, &accept, empty).await?;
                Ok(writeln!(context.out, "secret/{} deleted", named.name.as_str())?)
            }
        }
    }
}

fn path(name: &SecretName) -> String {
    // Its parts have no character that would have to be encoded.
    format!("/secrets/{}", name.as_str())
}

async fn set(name: &SecretName, context: &mut Context<'_>) -> Result<(), Failure> {
    let client = context.client()?;
    let value = read_value(name)?;
    let body = Zeroizing::new(json!({"value": value.as_str()}).to_string());
    let headers =
        [(header::ACCEPT, "application/json"), (header::CONTENT_TYPE, "application/json")];
    let body = bytes::Bytes::copy_from_slice(body.as_bytes());
    client.open(Method::PUT, &path(name), &headers, body).await?;
    Ok(writeln!(context.out, "secret/{} set", name.as_str())?)
}

async fn show(list: &List, context: &mut Context<'_>) -> Result<(), Failure> {
    let told = context.client()?.get("/secrets").await?;
    if list.output == "json" {
        return Ok(writeln!(context.out, "{told:#}")?);
    }
    let items = told["items"].as_array().cloned().unwrap_or_default();
    if items.is_empty() {
        eprint_line("no secrets found; `spawnlet secret set providers/AGENT/SLOT` keeps one");
    }
    for name in items.iter().filter_map(|item| item["name"].as_str()) {
        writeln!(context.out, "{name}")?;
    }
    Ok(())
}

fn read_value(name: &SecretName) -> Result<Zeroizing<String>, Failure> {
    let failed = |error: io::Error| Failure::Failed(format!("the value was not read: {error}"));
    let mut bytes = Zeroizing::new(Vec::new());
    if io::stdin().is_terminal() {
        // Nothing can be done if the terminal takes no prompt.
        let _ = write!(io::stderr(), "value of {} (not shown): ", name.as_str());
        let typed = typed(&mut bytes);
        let _ = writeln!(io::stderr());
        typed.map_err(failed)?;
    } else {
        io::stdin().lock().take(VALUE_BYTES_MAX + 1).read_to_end(&mut bytes).map_err(failed)?;
    }
    if bytes.len() as u64 > VALUE_BYTES_MAX {
        return Err(Failure::Data(format!("the value is longer than {VALUE_BYTES_MAX} bytes")));
    }
    let value = match std::str::from_utf8(&bytes) {
        Ok(value) => value,
        // Without the error: it tells of the value.
        Err(_) => return Err(Failure::Data("the value is no UTF-8".to_owned())),
    };
    let value = value.strip_suffix('\n').unwrap_or(value);
    let value = value.strip_suffix('\r').unwrap_or(value);
    if value.is_empty() {
        return Err(Failure::Data("the value is empty; nothing was changed".to_owned()));
    }
    Ok(Zeroizing::new(value.to_owned()))
}

/// Puts the terminal back as it was.
struct Restore(Termios);

impl Drop for Restore {
    fn drop(&mut self) {
        // A terminal that is gone needs nothing.
        let _ = tcsetattr(io::stdin(), OptionalActions::Now, &self.0);
    }
}

/// What a key means at the prompt.
const INTERRUPT: u8 = 0x03;
const END: u8 = 0x04;
const BACKSPACE: [u8; 2] = [0x08, 0x7f];
const CLEAR: u8 = 0x15;

/// Reads a line from the terminal key by key, without showing it. Keys that would end the program
/// end the prompt first, so that the terminal is never left without echo.
fn typed(line: &mut Vec<u8>) -> io::Result<()> {
    let before = tcgetattr(io::stdin())?;
    let mut quiet = before.clone();
    quiet.local_modes.remove(LocalModes::ECHO | LocalModes::ICANON | LocalModes::ISIG);
    let _restore = Restore(before);
    tcsetattr(io::stdin(), OptionalActions::Flush, &quiet)?;
    let mut input = io::stdin().lock();
    let mut key = [0];
    while input.read(&mut key)? == 1 {
        match key[0] {
            b'\n' | b'\r' | END => break,
            INTERRUPT => return Err(io::Error::from(io::ErrorKind::Interrupted)),
            CLEAR => line.clear(),
            key if BACKSPACE.contains(&key) => {
                // A whole character: continuation bytes begin with the bits 10.
                while line.pop().is_some_and(|byte| byte & 0xc0 == 0x80) {}
            }
            key if line.len() as u64 <= VALUE_BYTES_MAX => line.push(key),
            _ => {}
        }
    }
    Ok(())
}
