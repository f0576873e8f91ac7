//! The command line: one file a verb, all of them clients of the API but `serve` and `demo`.
//!
//! Output is on standard output, everything else (progress, hints, errors) on standard error.
//! Exit codes are stable and in `--help`. The rest of the program is not used here but for the
//! vocabulary of resources and the reading of manifest files.

mod agents;
mod apply;
mod bundled;
mod cancel;
mod client;
mod completion;
mod config;
mod connect;
mod crds;
mod decide;
mod delete;
pub mod demo;
mod demo_agent;
mod describe;
mod doctor;
mod doing;
mod events;
mod extend;
mod failure;
mod files;
mod get;
pub mod login;
mod logs;
mod mcp_config;
mod named;
mod observe;
mod output;
mod prompt;
mod report;
mod response;
mod secret;
pub mod serve;
mod spawn;
mod stop;
#[cfg(test)]
mod tests;
mod token;
mod validate;
mod version;
mod wait;
mod waiting;
mod warm;

use std::ffi::OsString;
use std::io::{self, Write};
use std::path::Path;
use std::process::ExitCode;

use clap::{Args, CommandFactory, Parser, Subcommand};

use client::Client;
use connect::Connection;
pub use demo::DemoOptions;
use failure::Failure;
pub use login::LoginOptions;
pub use serve::ServeOptions;

use crate::api::machine::Guard;
use crate::api::permission::Decision;

/// What every page of help says about exit codes.
const EXIT_CODES: &str = "\
Exit codes:
  0   done
  1   failed: the turn or the wait did not end well, the object does not exist, anything else
  2   wrong usage
  3   prompt: the turn was cancelled
  4   prompt: a clock or a budget ended the turn
  65  the data was refused: a file or a field is wrong
  69  the daemon cannot be reached
  75  try again: a limit, a time-out, history that is gone, a turn that was interrupted;
      serve: another daemon has the data directory
  77  not allowed: the token, or an object that belongs to a manifest file
  78  serve: the configuration is wrong";

/// spawnlet keeps coding agents as declarative records and drives their processes toward them.
#[derive(Debug, Parser)]
#[command(name = "spawnlet", version, after_help = EXIT_CODES, propagate_version = true)]
struct Cli {
    #[command(flatten)]
    global: Global,
    #[command(subcommand)]
    verb: Verb,
}

/// Flags of every verb.
#[derive(Debug, Args)]
struct Global {
    /// The namespace.
    #[arg(short, long, global = true, env = "SPAWNLET_NAMESPACE", default_value = "default")]
    namespace: String,
    /// The daemon's address, http://HOST:PORT or unix:PATH.
    #[arg(long, global = true, env = "SPAWNLET_URL", value_name = "URL")]
    server: Option<String>,
    /// The token; otherwise the operator's in the data directory.
    #[arg(long, global = true, env = "SPAWNLET_TOKEN", hide_env_values = true)]
    token: Option<String>,
    /// The daemon's data directory, where its socket and the operator's token are
    /// [default: $XDG_STATE_HOME/spawnlet].
    #[arg(long, global = true, value_name = "DIR")]
    data_dir: Option<std::path::PathBuf>,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Run the daemon.
    Serve(serve::Serve),
    /// Create or change objects as files say.
    Apply(apply::Apply),
    /// Show objects.
    Get(get::Get),
    /// Show everything about one object: record, conditions, reports, events.
    Describe(describe::Describe),
    /// Delete objects.
    Delete(delete::Delete),
    /// Cancel a session's turns.
    Cancel(cancel::Cancel),
    /// Stop a session for good; its record and transcript stay.
    Stop(stop::Stop),
    /// Allow what agents ask, this once.
    Approve(decide::Decide),
    /// Reject what agents ask.
    Deny(decide::Decide),
    /// Let a session live longer: adds to its ttl.
    Extend(extend::Extend),
    /// Give a session a prompt and show the answer.
    Prompt(prompt::Prompt),
    /// Make a child of one's own session, as an agent does.
    Spawn(spawn::Spawn),
    /// Show what a session's turns said.
    Logs(logs::Logs),
    /// Write a turn's response to standard output, byte for byte.
    Response(response::Response),
    /// Make, list, replace and revoke tokens of callers.
    Token(token::Token),
    /// Keep secrets of agents in the vault.
    Secret(secret::Secret),
    /// Print the MCP configuration of a client, with a new token in it.
    McpConfig(mcp_config::McpConfig),
    /// Show what the loop saw, decided and did, newest first.
    Report(report::Report),
    /// Show events.
    Events(events::Events),
    /// Wait until an object is as told.
    Wait(wait::Wait),
    /// Show agents and whether they are there; check again; add those that are known.
    Agents(agents::Agents),
    /// Check files without a daemon.
    Validate(validate::Validate),
    /// Show the main job on one screen, in a scratch directory.
    Demo(demo::Demo),
    /// Be an ACP agent that repeats its prompts, to try things with.
    #[command(hide = true)]
    DemoAgent(demo_agent::DemoAgent),
    /// Print the custom resource definitions of all kinds.
    Crds(crds::Crds),
    /// Print the JSON schema of a kind.
    Schema(crds::Schema),
    /// Print the configuration with the source of each value.
    Config(config::Config),
    /// Ask the daemon how it is.
    Doctor(doctor::Doctor),
    /// Print the versions of client and daemon.
    Version(version::Version),
    /// Print a completion script for a shell.
    Completion(completion::Completion),
}

/// What a verb works with.
struct Context<'a> {
    namespace: String,
    connection: Result<Connection, Failure>,
    out: &'a mut dyn Write,
    is_terminal: bool,
    /// Looks at the machine where no daemon does.
    guards: Box<dyn Fn() -> Vec<Guard>>,
}

impl Context<'_> {
    /// The daemon.
    fn client(&self) -> Result<Client, Failure> {
        self.connection.clone().map(Client::new)
    }
}

/// Runs a command line and gives the process's exit code. `serve` is what runs the daemon and `demo`
/// what shows it, `login` what logs in to an agent and `guards` what looks at the machine (with a data
/// directory); they are given in, because only the program's top may put API and loop together, start
/// programs or know the kernel.
pub fn run(
    arguments: impl IntoIterator<Item = OsString>,
    serve: impl FnOnce(ServeOptions) -> ExitCode,
    demo: impl FnOnce(DemoOptions) -> ExitCode,
    login: impl FnOnce(LoginOptions) -> ExitCode,
    guards: impl Fn(&Path) -> Vec<Guard> + 'static,
) -> ExitCode {
    let mut cli = match Cli::try_parse_from(arguments) {
        Ok(cli) => cli,
        Err(error) => {
            // Help and versions are no errors to clap: they go to standard output with code 0.
            // Nothing can be done if they cannot be written.
            let _ = error.print();
            return ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(1));
        }
    };
    let connection = Connection::find(&cli.global, |name| std::env::var_os(name));
    match cli.verb {
        Verb::Serve(verb) => return serve(verb.options(cli.global.data_dir)),
        Verb::Demo(verb) => return demo(verb.options()),
        Verb::DemoAgent(verb) => return verb.run(),
        verb => cli.verb = verb,
    }
    let stdout = io::stdout();
    let is_terminal = io::IsTerminal::is_terminal(&stdout);
    let data_dir = cli.global.data_dir.clone();
    let data_dir = data_dir.or_else(|| connect::default_data_dir(&|name| std::env::var_os(name)));
    let mut context = Context {
        namespace: cli.global.namespace,
        connection,
        out: &mut stdout.lock(),
        is_terminal,
        guards: Box::new(move || guards(data_dir.as_deref().unwrap_or(Path::new("")))),
    };
    let outcome = match cli.verb {
        Verb::Agents(agents::Agents { what: Some(agents::What::Login(verb)) }) => {
            block_on(verb.options(&context, cli.global.data_dir)).map(login)
        }
        verb => block_on(carry_out(verb, &mut context)),
    };
    match outcome {
        Ok(code) => code,
        Err(failure) => {
            let hint = failure.hint().map(|hint| format!("\nhint: {hint}")).unwrap_or_default();
            if !failure.is_silent() {
                // Nothing can be done if the error cannot be written.
                let _ = writeln!(io::stderr(), "error: {failure}{hint}");
            }
            ExitCode::from(failure.exit_code())
        }
    }
}

fn block_on<T>(verb: impl Future<Output = Result<T, Failure>>) -> Result<T, Failure> {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| Failure::Failed(format!("the runtime did not start: {error}")))?
        .block_on(verb)
}

async fn carry_out(verb: Verb, context: &mut Context<'_>) -> Result<ExitCode, Failure> {
    let done = |()| ExitCode::SUCCESS;
    match verb {
        // `run` took them before.
        Verb::Serve(_) | Verb::Demo(_) | Verb::DemoAgent(_) => Ok(ExitCode::FAILURE),
        Verb::Apply(verb) => verb.run(context).await.map(done),
        Verb::Get(verb) => verb.run(context).await.map(done),
        Verb::Describe(verb) => verb.run(context).await.map(done),
        Verb::Delete(verb) => verb.run(context).await.map(done),
        Verb::Cancel(verb) => verb.run(context).await.map(done),
        Verb::Stop(verb) => verb.run(context).await.map(done),
        Verb::Approve(verb) => verb.run(Decision::Allow, context).await.map(done),
        Verb::Deny(verb) => verb.run(Decision::Deny, context).await.map(done),
        Verb::Extend(verb) => verb.run(context).await.map(done),
        Verb::Prompt(verb) => verb.run(context).await,
        Verb::Spawn(verb) => verb.run(context).await.map(done),
        Verb::Logs(verb) => verb.run(context).await.map(done),
        Verb::Response(verb) => verb.run(context).await.map(done),
        Verb::Token(verb) => verb.run(context).await.map(done),
        Verb::Secret(verb) => verb.run(context).await.map(done),
        Verb::McpConfig(verb) => verb.run(context).await.map(done),
        Verb::Report(verb) => verb.run(context).await.map(done),
        Verb::Events(verb) => verb.run(context).await.map(done),
        Verb::Wait(verb) => verb.run(context).await.map(done),
        Verb::Agents(verb) => verb.run(context).await.map(done),
        Verb::Validate(verb) => verb.run(context).map(done),
        Verb::Crds(verb) => verb.run(context).map(done),
        Verb::Schema(verb) => verb.run(context).map(done),
        Verb::Config(verb) => verb.run(context).map(done),
        Verb::Doctor(verb) => verb.run(context).await.map(done),
        Verb::Version(verb) => verb.run(context).await.map(done),
        Verb::Completion(verb) => verb.run(context, &mut Cli::command()).map(done),
    }
}
