//! `spawnlet prompt`: makes a turn, shows what the agent says, and ends as the turn does.
//!
//! The text of the answer goes to standard output, what the agent does to standard error. Ending
//! this command does not end the turn: `spawnlet cancel` does.

use std::convert::Infallible;
use std::io::{IsTerminal, Read};
use std::process::ExitCode;

use clap::Args;
use serde_json::{Value, json};

use super::Context;
use super::client::{Client, collection, item, with_query};
use super::failure::Failure;
use super::get::eprint_line;
use super::named::name_of;
use super::observe::{Subject, until};
use super::output::{Output, readable, text};
use super::waiting::{self, Stuck, Wait};
use crate::api::Kind;
use crate::rest::{printable, resource::Resource};

const SESSION: Resource = Resource::Records(Kind::Session);
const TURN: Resource = Resource::Records(Kind::Turn);
/// The largest prompt that the daemon takes.
const PROMPT_BYTES_MAX: usize = 768 * 1024;

/// Give a session a prompt and show the answer. The exit code tells how the turn ended.
#[derive(Debug, Args)]
#[command(after_help = "Exit codes: Completed 0, Failed 1, Cancelled 3, Expired 4, Discarded 65, \
                        Interrupted 75.")]
pub(super) struct Prompt {
    /// SESSION [TEXT|-], or [TEXT|-] with --agent. Without TEXT, or with -, it is read from
    /// standard input.
    #[arg(value_name = "SESSION | TEXT", num_args = 0..=2)]
    words: Vec<String>,
    /// Make a new session of this agent.
    #[arg(long, value_name = "AGENT")]
    agent: Option<String>,
    /// The new session's directory [default: the current one].
    #[arg(long, value_name = "DIR", requires = "agent", conflicts_with = "workspace")]
    cwd: Option<std::path::PathBuf>,
    /// The new session's workspace.
    #[arg(long, requires = "agent")]
    workspace: Option<String>,
    /// The model for this turn and on.
    #[arg(long)]
    model: Option<String>,
    /// Wait for the turn's end whatever it takes. Without this, a turn that waits for what no time
    /// alone mends (an agent that is not there, a login, starts that failed too often) is left as
    /// it is, with exit code 1.
    #[arg(long, conflicts_with = "detach")]
    wait: bool,
    /// Do not wait; print the turn's name.
    #[arg(long)]
    detach: bool,
    /// Print the turn in this form, at its end (--detach: as it was made), instead of the answer.
    #[arg(short, long, value_enum)]
    output: Option<Output>,
}

/// Who leaves `--agent` out has given the prompt in the session's place.
const NEW_SESSION: &str =
    "; for a new session name its agent: spawnlet prompt --agent AGENT PROMPT";

impl Prompt {
    pub(super) async fn run(self, context: &mut Context<'_>) -> Result<ExitCode, Failure> {
        let (session, words) = self.addressee()?;
        let session = session.map(|given| name_of(Kind::Session, given)).transpose()?;
        // Before anything is made: a session without its prompt would stay behind.
        let prompt = prompt_text(words, NEW_SESSION)?;
        let client = context.client()?;
        let session = match session {
            Some(session) => {
                let path = item(SESSION, &context.namespace, session);
                text(&client.get(&path).await?, "/metadata/name").to_owned()
            }
            None => self.new_session(&client, context).await?,
        };
        let mut spec = json!({"session": session, "prompt": prompt});
        if let Some(model) = &self.model {
            spec["model"] = json!(model);
        }
        let turns = collection(TURN, Some(&context.namespace));
        let path = with_query(&turns, &[("fieldManager", "spawnlet-prompt")]);
        let turn = client.post(&path, &json!({"spec": spec})).await?;
        let name = text(&turn, "/metadata/name").to_owned();
        if self.detach {
            self.output.unwrap_or(Output::Name).write(&turn, TURN, context.out)?;
            return Ok(ExitCode::SUCCESS);
        }
        let turn = self.outcome_of(&client, &session, &turn, context).await?;
        if let Some(output) = self.output {
            output.write(&turn, TURN, context.out)?;
        }
        let code = exit_code(text(&turn, "/status/phase"));
        if code != 0 {
            eprint_line(&outcome(&name, &turn));
        }
        Ok(ExitCode::from(code))
    }

    /// The turn at its end. Until then its answer is shown, if that is wanted, and what it waits
    /// for.
    async fn outcome_of(
        &self,
        client: &Client,
        session: &str,
        made: &Value,
        context: &mut Context<'_>,
    ) -> Result<Value, Failure> {
        let namespace = context.namespace.clone();
        let turn = text(made, "/metadata/name");
        let wait = Wait {
            client,
            session: Subject { resource: SESSION, namespace: &namespace, name: session },
            turn,
            made_at: text(made, "/metadata/creationTimestamp"),
            quiet: waiting::QUIET,
            patience: (!self.wait).then_some(waiting::PATIENCE),
        };
        let ending = async {
            if self.output.is_none() {
                show(client, session, turn, context).await?;
            }
            ended(client, &namespace, turn).await
        };
        let ending = async {
            tokio::select! {
                ended = ending => ended,
                never = tell_questions(client, &namespace, turn) => match never {},
            }
        };
        tokio::pin!(ending);
        let told = tokio::select! {
            turn = &mut ending => return turn,
            told = wait.tell(eprint_line) => told,
        };
        // What goes wrong with it goes wrong with the turn's own watch too, or does not matter.
        let Ok(Some(stuck)) = told else { return ending.await };
        let now = client.get(&item(TURN, &namespace, turn)).await?;
        if now.pointer("/status/finishedAt").is_some_and(Value::is_string) {
            return ending.await;
        }
        Err(given_up(session, self.agent.is_some(), turn, &stuck))
    }

    /// The session, if one is named, and the words of the prompt.
    fn addressee(&self) -> Result<(Option<&str>, Option<&str>), Failure> {
        match (self.agent.is_some(), self.words.as_slice()) {
            (true, []) => Ok((None, None)),
            (true, [prompt]) => Ok((None, Some(prompt))),
            (true, _) => Err(Failure::Usage(
                "--agent makes a new session: leave the session's name out".to_owned(),
            )),
            (false, [session]) => Ok((Some(session), None)),
            (false, [session, prompt]) => Ok((Some(session), Some(prompt))),
            (false, _) => {
                Err(Failure::Usage("whom? give a session, or --agent for a new one".to_owned()))
            }
        }
    }

    async fn new_session(&self, client: &Client, context: &Context<'_>) -> Result<String, Failure> {
        let mut spec = json!({"agent": self.agent});
        match (&self.workspace, &self.cwd) {
            (Some(workspace), _) => spec["workspace"] = json!(workspace),
            (None, directory) => {
                let directory = directory.clone().unwrap_or_else(|| ".".into());
                let absolute = std::path::absolute(&directory).map_err(|error| {
                    Failure::Usage(format!("--cwd {}: {error}", directory.display()))
                })?;
                spec["cwd"] = json!(absolute);
            }
        }
        let path = collection(SESSION, Some(&context.namespace));
        let session = client.post(&path, &json!({"spec": spec})).await?;
        let name = text(&session, "/metadata/name").to_owned();
        eprint_line(&format!("session/{name} made"));
        Ok(name)
    }
}

/// A turn that is left as it is. `is_made`: its session was made for it.
fn given_up(session: &str, is_made: bool, turn: &str, stuck: &Stuck) -> Failure {
    let undo = if is_made { "delete session" } else { "cancel" };
    let then = if stuck.is_looping {
        "a change of the agent or the session, or the next prompt, tries again, and this turn then \
         goes first"
    } else {
        "once that is there the turn goes on by itself"
    };
    Failure::Failed(format!(
        "turn/{turn} waits, and no time alone mends it: {}\nhint: {then}; `spawnlet {undo} {session}` \
         takes it back; with --wait this command waits on",
        stuck.why
    ))
}

/// The prompt of a command line. `hint`: what its author may have meant, if there is none.
pub(super) fn prompt_text(words: Option<&str>, hint: &str) -> Result<String, Failure> {
    match words {
        Some(words) if words != "-" => return not_empty(words.to_owned(), hint),
        None if std::io::stdin().is_terminal() => {
            return Err(Failure::Usage(format!(
                "what? give the prompt as an argument or on standard input{hint}"
            )));
        }
        Some(_) | None => {}
    }
    let mut prompt = String::new();
    std::io::stdin()
        .take(PROMPT_BYTES_MAX as u64 + 1)
        .read_to_string(&mut prompt)
        .map_err(|error| Failure::Data(format!("standard input cannot be read: {error}")))?;
    if prompt.len() > PROMPT_BYTES_MAX {
        return Err(Failure::Data(format!(
            "the prompt is larger than the limit of {PROMPT_BYTES_MAX} bytes"
        )));
    }
    not_empty(prompt, hint)
}

fn not_empty(prompt: String, hint: &str) -> Result<String, Failure> {
    if prompt.trim().is_empty() {
        return Err(Failure::Data(format!(
            "the prompt is empty: give it as an argument or on standard input{hint}"
        )));
    }
    Ok(prompt)
}

/// Shows a turn's text as it comes, until the turn ends.
async fn show(
    client: &Client,
    session: &str,
    turn: &str,
    context: &mut Context<'_>,
) -> Result<(), Failure> {
    let path = format!("{}/transcript", item(SESSION, &context.namespace, session));
    let query = [("turn", turn), ("follow", "true"), ("format", "json")];
    let mut entries = client.stream(&with_query(&path, &query), "*/*").await?;
    let mut is_line_open = false;
    while let Some(entry) = entries.json_line().await? {
        match text(&entry, "/kind") {
            "agent_message_chunk" => {
                let said = text(&entry, "/text");
                let shown = if context.is_terminal { printable(said) } else { said.to_owned() };
                context.out.write_all(shown.as_bytes())?;
                context.out.flush()?;
                is_line_open =
                    !shown.is_empty() && !shown.ends_with('\n') || shown.is_empty() && is_line_open;
            }
            "tool_call" => {
                let title = readable(text(&entry, "/tool/title"));
                eprint_line(&format!("[tool] {title}"));
            }
            _ => {}
        }
    }
    if is_line_open {
        writeln!(context.out)?;
    }
    Ok(())
}

/// Tells the person what the turn's agent asks for: without an answer it waits, and then it is a no.
async fn tell_questions(client: &Client, namespace: &str, turn: &str) -> Infallible {
    let subject = Subject { resource: TURN, namespace, name: turn };
    let mut told = String::new();
    // What goes wrong with it goes wrong with the turn's own watch too, or does not matter.
    let _ = until(client, subject, None, |turn| {
        let asked = turn.and_then(|turn| turn.pointer("/status/waitingFor"));
        let name = asked.map(|asked| text(asked, "/permission")).unwrap_or_default();
        if let Some(asked) = asked.filter(|_| name != told) {
            eprint_line(&format!(
                "waiting: the agent asks for: {}; `spawnlet approve {name}` or `spawnlet deny {name}`",
                readable(text(asked, "/tool"))
            ));
            name.clone_into(&mut told);
        }
        Ok(None::<()>)
    })
    .await;
    std::future::pending().await
}

/// The turn, once it has ended.
async fn ended(client: &Client, namespace: &str, name: &str) -> Result<Value, Failure> {
    let subject = Subject { resource: TURN, namespace, name };
    until(client, subject, None, |turn| match turn {
        None => Err(Failure::Failed(format!("turn/{name} was deleted"))),
        Some(turn) => {
            let is_over = turn.pointer("/status/finishedAt").is_some_and(Value::is_string);
            Ok(is_over.then(|| turn.clone()))
        }
    })
    .await
}

/// The exit code that a turn's final phase stands for.
fn exit_code(phase: &str) -> u8 {
    match phase {
        "Completed" => 0,
        "Cancelled" => 3,
        "Expired" => 4,
        "Discarded" => 65,
        "Interrupted" => 75,
        _ => 1,
    }
}

fn outcome(name: &str, turn: &Value) -> String {
    let phase = text(turn, "/status/phase");
    let why = [text(turn, "/status/code"), text(turn, "/status/message")]
        .into_iter()
        .filter(|part| !part.is_empty())
        .map(printable)
        .collect::<Vec<_>>()
        .join(": ");
    let hint = match phase {
        "Interrupted" => "\nhint: the daemon stopped in this turn; prompt the session again",
        "Discarded" => "\nhint: the prompt was not given to the agent",
        _ => "",
    };
    format!("turn/{name} ended: {phase}{}{why}{hint}", if why.is_empty() { "" } else { ": " })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_takes_a_stuck_turn_back_takes_back_all_that_the_prompt_made() {
        let stuck = Stuck { why: "AgentNotFound".to_owned(), is_looping: false };
        for (is_made, undo) in
            [(true, "`spawnlet delete session s`"), (false, "`spawnlet cancel s`")]
        {
            let told = given_up("s", is_made, "t", &stuck).to_string();
            assert!(told.contains(undo), "{told}");
        }
    }

    #[test]
    fn the_exit_code_tells_how_the_turn_ended() {
        for (phase, code) in [
            ("Completed", 0),
            ("Failed", 1),
            ("Cancelled", 3),
            ("Expired", 4),
            ("Discarded", 65),
            ("Interrupted", 75),
        ] {
            assert_eq!(exit_code(phase), code, "{phase}");
        }
        let turn = json!({"status": {"phase": "Failed", "code": "TURN_FAILED", "message": "no"}});
        assert_eq!(outcome("t", &turn), "turn/t ended: Failed: TURN_FAILED: no");
    }
}
