//! `spawnlet mcp-config`: the daemon as an MCP server, in the words of a client's configuration.
//!
//! Each client's form is as its documentation has it: `.mcp.json` of Claude Code, `config.toml` of
//! Codex, `mcp.json` of Cursor and VS Code. What is printed holds a token.

use std::io::Read as _;
use std::path::Path;

use clap::{Args, ValueEnum};
use serde_json::{Value, json};

use super::Context;
use super::connect::{Connection, Endpoint};
use super::failure::Failure;
use super::get::eprint_line;
use super::output::text;
use super::token::Terms;

/// The server's name in every client.
const SERVER: &str = "spawnlet";
/// The file in the data directory that says where the daemon listens.
const ADDRESS: &str = "address";
/// The longest address or token that is read.
const LINE_BYTES_MAX: u64 = 4096;
/// The longest name of a session (DNS labels, RFC 1123).
const NAME_CHARS_MAX: usize = 63;

/// Print the MCP configuration of a client, with a new token in it.
#[derive(Debug, Args)]
pub(super) struct McpConfig {
    /// The client.
    #[arg(long, value_enum)]
    client: ClientKind,
    /// The session that calls; made if it is not there [default: the client's name and the
    /// directory's].
    #[arg(long, value_name = "NAME")]
    session: Option<String>,
    /// A token that is there already, or `-` to read it from standard input; no new one is made.
    #[arg(long, value_name = "TOKEN", conflicts_with_all = ["session", "workspace", "cwd", "permissions", "expires"])]
    caller_token: Option<String>,
    #[command(flatten)]
    terms: Terms,
}

/// A client whose configuration is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum ClientKind {
    /// Claude Code, `.mcp.json`.
    ClaudeCode,
    /// Codex, `~/.codex/config.toml`.
    Codex,
    /// Cursor, `.cursor/mcp.json`.
    Cursor,
    /// VS Code, `.vscode/mcp.json`.
    Vscode,
    /// Any other that reads `mcpServers`.
    Generic,
}

impl ClientKind {
    const fn word(self) -> &'static str {
        match self {
            Self::ClaudeCode => "claude-code",
            Self::Codex => "codex",
            Self::Cursor => "cursor",
            Self::Vscode => "vscode",
            Self::Generic => "generic",
        }
    }

    /// Where what is printed belongs.
    const fn place(self) -> &'static str {
        match self {
            Self::ClaudeCode => ".mcp.json in the project",
            Self::Codex => "~/.codex/config.toml",
            Self::Cursor => ".cursor/mcp.json in the project, or ~/.cursor/mcp.json",
            Self::Vscode => ".vscode/mcp.json in the workspace",
            Self::Generic => "the client's configuration",
        }
    }

    /// The configuration.
    fn render(self, url: &str, token: &str) -> String {
        let bearer = format!("Bearer {token}");
        let headers = json!({"Authorization": bearer});
        let typed = json!({"type": "http", "url": url, "headers": headers});
        match self {
            Self::ClaudeCode | Self::Generic => pretty(&json!({"mcpServers": {SERVER: typed}})),
            Self::Cursor => {
                pretty(&json!({"mcpServers": {SERVER: {"url": url, "headers": headers}}}))
            }
            Self::Vscode => pretty(&json!({"servers": {SERVER: typed}})),
            // Codex takes `bearer_token_env_var` too, but a token in the environment of a shell goes
            // to everything that the shell starts. A JSON string is a TOML string for what stands
            // in URLs and tokens.
            Self::Codex => format!(
                "[mcp_servers.{SERVER}]\nurl = {}\nhttp_headers = {{ \"Authorization\" = {} }}\n",
                json!(url),
                json!(bearer)
            ),
        }
    }
}

fn pretty(value: &Value) -> String {
    format!("{value:#}\n")
}

impl McpConfig {
    pub(super) async fn run(self, context: &mut Context<'_>) -> Result<(), Failure> {
        let (url, token) = match &self.caller_token {
            Some(token) => {
                let token = if token == "-" { read_line(std::io::stdin())? } else { token.clone() };
                (mcp_url(context.connection.as_ref().map_err(Clone::clone)?)?, token)
            }
            None => self.make(context).await?,
        };
        if token.is_empty() || !token.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err(Failure::Usage("this is no token".to_owned()));
        }
        write!(context.out, "{}", self.client.render(&url, &token))?;
        eprint_line(&format!(
            "This belongs into {}. It holds a token: keep it out of version control.",
            self.client.place()
        ));
        Ok(())
    }

    /// Makes a token and tells of it.
    async fn make(&self, context: &Context<'_>) -> Result<(String, String), Failure> {
        let client = context.client()?;
        let name = match &self.session {
            Some(name) => name.clone(),
            None => session_name(self.client, &self.terms.directory()?),
        };
        let is_own = self.session.is_none();
        let made = self.terms.make(&client, &context.namespace, &name, is_own).await?;
        eprint_line(&format!(
            "session/{name} calls by token {}; `spawnlet token revoke {name} {}` ends it.",
            text(&made, "/id"),
            text(&made, "/id")
        ));
        Ok((text(&made, "/mcpUrl").to_owned(), text(&made, "/token").to_owned()))
    }
}

/// `claude-code-my-project`.
fn session_name(client: ClientKind, directory: &Path) -> String {
    let last = directory.file_name().map(|name| name.to_string_lossy().to_lowercase());
    let plain: String = last
        .unwrap_or_default()
        .chars()
        .map(|c| if c.is_ascii_alphanumeric() { c } else { '-' })
        .collect();
    let mut name = format!("{}-{}", client.word(), plain.trim_matches('-'));
    name.truncate(NAME_CHARS_MAX);
    name.trim_end_matches('-').to_owned()
}

/// Where the daemon's MCP endpoint is, without asking it.
fn mcp_url(connection: &Connection) -> Result<String, Failure> {
    match &connection.endpoint {
        Endpoint::Tcp(authority) => Ok(format!("http://{authority}/mcp")),
        Endpoint::Unix(socket) => {
            let path = socket.with_file_name(ADDRESS);
            let unknown = |error: &dyn std::fmt::Display| {
                Failure::Unreachable(format!(
                    "{}: {error}; is the daemon running? --server names it too",
                    path.display()
                ))
            };
            let file = std::fs::File::open(&path).map_err(|error| unknown(&error))?;
            let address = read_line(file)?;
            if !address.starts_with("http://") {
                return Err(unknown(&"it holds no address"));
            }
            Ok(format!("{address}/mcp"))
        }
    }
}

fn read_line(source: impl std::io::Read) -> Result<String, Failure> {
    let mut line = String::new();
    source
        .take(LINE_BYTES_MAX)
        .read_to_string(&mut line)
        .map_err(|error| Failure::Failed(format!("it cannot be read: {error}")))?;
    Ok(line.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    const URL: &str = "http://127.0.0.1:7420/mcp";

    #[test]
    fn each_client_gets_its_own_form() {
        let bearer = json!({"Authorization": "Bearer T"});
        for (client, pointer, is_typed) in [
            (ClientKind::ClaudeCode, "/mcpServers/spawnlet", true),
            (ClientKind::Generic, "/mcpServers/spawnlet", true),
            (ClientKind::Cursor, "/mcpServers/spawnlet", false),
            (ClientKind::Vscode, "/servers/spawnlet", true),
        ] {
            let told: Value = serde_json::from_str(&client.render(URL, "T")).unwrap();
            assert_eq!(told.as_object().unwrap().len(), 1);
            let server = told.pointer(pointer).unwrap();
            assert_eq!((&server["url"], &server["headers"]), (&json!(URL), &bearer));
            assert_eq!(server.get("type").is_some(), is_typed, "{client:?}");
        }
        assert_eq!(
            ClientKind::Codex.render(URL, "T"),
            "[mcp_servers.spawnlet]\nurl = \"http://127.0.0.1:7420/mcp\"\n\
             http_headers = { \"Authorization\" = \"Bearer T\" }\n"
        );
    }

    #[test]
    fn a_session_is_named_after_client_and_directory() {
        for (directory, name) in [
            ("/home/me/My Project_2", "claude-code-my-project-2"),
            ("/home/me/.dotfiles", "claude-code-dotfiles"),
            ("/", "claude-code"),
            ("/\u{e9}", "claude-code"),
        ] {
            assert_eq!(session_name(ClientKind::ClaudeCode, Path::new(directory)), name);
        }
        let long = "x".repeat(200);
        assert_eq!(session_name(ClientKind::Codex, Path::new(&long)).len(), NAME_CHARS_MAX);
    }
}
