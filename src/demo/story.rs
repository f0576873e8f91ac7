//! The steps, in the order in which they are shown. Each prints what a user or an agent would send
//! and what came back, and is checked.

use serde_json::{Value, json};

use super::Stage;
use super::client::{Client, Updates};
use super::failure::Failure;
use super::process::Ran;
use super::scratch::MANIFEST_NAME;

/// What the session's first turn says.
const FIRST_ANSWER: &str = "You said: Hello from a YAML file.";
/// A task that takes a second, so that it is seen to run.
const TASK: &str = "[[slow:1]] Count the files";
/// A task that does not end by itself.
const HANGING_TASK: &str = "[[hang]] Wait for a mail";
/// How often an update is waited for: a minute in all.
const HINTS_MAX: usize = 6;
/// The header and the three newest reports: of the turn's cancel, its end, the process's end.
const REPORT_LINES: usize = 4;
/// The three newest reports of the parent: its end, the wait for its children, its removal.
const DELETION_LINES: usize = 3;
/// The characters of a token that are shown.
const TOKEN_SHOWN: usize = 12;

/// Plays it from the daemon's start to its end.
pub(super) async fn play(stage: &mut Stage) -> Result<(), Failure> {
    stage.screen.say(&format!(
        "spawnlet {}: the main job on one screen, offline. Scratch directory: {}",
        env!("CARGO_PKG_VERSION"),
        stage.scratch.path().display()
    ))?;
    start(stage).await?;
    first_turn(stage).await?;
    let client = connect(stage).await?;
    let done = delegate(stage, &client).await?;
    let cancelled = cancel(stage, &client).await?;
    client.close().await?;
    look(stage, &done, &cancelled).await?;
    delete(stage, &done).await?;
    stop(stage).await
}

/// The last lines, when everything is taken away.
pub(super) fn close(stage: &mut Stage, is_kept: bool) -> std::io::Result<()> {
    stage.screen.say("no shim, no agent, nothing that one started is left")?;
    stage.screen.say(&if is_kept {
        format!("its files are in {}", stage.scratch.path().display())
    } else {
        "the scratch directory is removed".to_owned()
    })?;
    stage.screen.say(
        "\nSeen: records become processes, an agent delegates and cancels over MCP, a deletion takes the\n\
         whole family, and the reports say why. Next: \"A short tour\" in README.md, with agents of yours.",
    )
}

async fn start(stage: &mut Stage) -> Result<(), Failure> {
    stage.screen.heading("A daemon, and what it should keep")?;
    let arguments = ["serve", "--listen", "127.0.0.1:0"];
    stage.screen.command(&format!("spawnlet {} &", arguments.join(" ")))?;
    // The stage's at once: whatever comes now, it is stopped.
    let daemon = stage.daemon.insert(stage.programs.serve(&stage.scratch, &arguments)?);
    let address = daemon.ready().await?;
    stage.screen.output(&format!("listening on {address}"))?;
    let applied = shown(stage, &["apply", "-f", MANIFEST_NAME]).await?;
    for object in ["workspace/demo created", "agent/demo created", "session/hello created"] {
        expect("spawnlet apply", &applied, object)?;
    }
    Ok(())
}

async fn first_turn(stage: &mut Stage) -> Result<(), Failure> {
    stage.screen.heading("The session's first turn")?;
    shown(stage, &["wait", "turn/hello-1", "--for", "phase=Completed", "--timeout", "60s"]).await?;
    let logs = shown(stage, &["logs", "hello"]).await?;
    expect("spawnlet logs hello", &logs, FIRST_ANSWER)
}

/// A session for a caller that the daemon does not run, its token, and an MCP client with it.
async fn connect(stage: &mut Stage) -> Result<Client, Failure> {
    stage.screen.heading("An MCP client, with a session and a token of its own")?;
    let arguments = ["token", "create", "--session", "demo", "--workspace", "demo", "-o", "json"];
    stage.screen.command(&line(&arguments))?;
    let made = ran(stage, &arguments).await?;
    let step = line(&arguments);
    let made: Value = serde_json::from_str(&made.out)
        .map_err(|error| Failure::unexpected(&step, "JSON", format!("{error}: {}", made.out)))?;
    let token = text(&step, &made, "token")?;
    let mut visible = made.clone();
    let start: String = token.chars().take(TOKEN_SHOWN).collect();
    visible["token"] = json!(format!("{start}…"));
    stage.screen.output(&visible.to_string())?;
    let client = Client::connect(&text(&step, &made, "mcpUrl")?, &token).await?;
    let tools = client.tools().await?.join(", ");
    stage.screen.output(&format!("connected to {}; its tools: {tools}", client.server()))?;
    for tool in ["available_agents", "prompt_to_agent", "check_session_status"] {
        expect("tools/list", &tools, tool)?;
    }
    let agents = called(stage, &client, "available_agents", json!({})).await?;
    equal("available_agents", &agents["agents"][0]["agentId"], "demo")?;
    Ok(client)
}

/// A task in the background; gives its session.
async fn delegate(stage: &mut Stage, client: &Client) -> Result<String, Failure> {
    stage
        .screen
        .heading("It delegates a task and goes on; told of the end, it reads the answer")?;
    let session = accepted(stage, client, TASK).await?;
    let mut updates = subscribed(stage, client, &session).await?;
    // On a busy machine it may have ended already; then no update comes any more.
    let standing = standing(stage, client, &session).await?;
    let standing = ended(stage, client, &session, standing, &mut updates).await?;
    equal("check_session_status", &standing["status"], "idle")?;
    let response = &standing["latestResponseId"];
    let arguments = json!({"sessionId": session, "responseId": response});
    let read = called(stage, client, "read_response", arguments).await?;
    expect("read_response", read["content"].as_str().unwrap_or_default(), "Count the files")?;
    equal("read_response", &read["done"], true)?;
    Ok(session)
}

/// A task that hangs; gives its session.
async fn cancel(stage: &mut Stage, client: &Client) -> Result<String, Failure> {
    stage.screen.heading("Another task hangs, so it cancels it")?;
    let session = accepted(stage, client, HANGING_TASK).await?;
    let mut updates = subscribed(stage, client, &session).await?;
    let running = standing(stage, client, &session).await?;
    equal("check_session_status", &running["status"], "running")?;
    let asked = called(stage, client, "cancel_session", json!({"sessionId": session})).await?;
    equal("cancel_session", &asked["cancelled"], true)?;
    let standing = ended(stage, client, &session, running, &mut updates).await?;
    equal("check_session_status", &standing["status"], "error")?;
    equal("check_session_status", &standing["code"], "TURN_CANCELLED_BY_PARENT")?;
    Ok(session)
}

/// What is on record of all that.
async fn look(stage: &mut Stage, done: &str, cancelled: &str) -> Result<(), Failure> {
    stage
        .screen
        .heading("What the operator sees: records, a transcript, what the loop did and why")?;
    let sessions = shown(stage, &["get", "sessions"]).await?;
    for uid in [done, cancelled] {
        expect("spawnlet get sessions", &sessions, &name(stage, uid).await?)?;
    }
    let turns = shown(stage, &["get", "turns"]).await?;
    expect("spawnlet get turns", &turns, "Completed")?;
    expect("spawnlet get turns", &turns, "Cancelled")?;
    let logs = shown(stage, &["logs", &name(stage, done).await?]).await?;
    expect("spawnlet logs", &logs, "Count the files")?;
    let subject = format!("session/{}", name(stage, cancelled).await?);
    // Reports and events are written together, a moment after what they tell of; events can be
    // waited for.
    let turn = format!("turn/{}-1", name(stage, cancelled).await?);
    stage.programs.run_until(&stage.scratch, &["events", "-w"], &["TurnCancelled", &turn]).await?;
    let arguments = ["report", &subject];
    stage.screen.command(&format!("{} | head -n {REPORT_LINES}", line(&arguments)))?;
    let report = ran(stage, &arguments).await?.out;
    let newest: Vec<&str> = report.lines().take(REPORT_LINES).collect();
    stage.screen.output(&newest.join("\n"))?;
    expect(&line(&arguments), &report, "Stop(Cancel)")
}

async fn delete(stage: &mut Stage, child: &str) -> Result<(), Failure> {
    /// The parent and not its children, whose names begin with the parent's.
    const PARENT: &str = "session/demo ";
    stage.screen.heading("The parent is deleted, and its children go with it")?;
    let child = format!("session/{}", name(stage, child).await?);
    let deleted = shown(stage, &["delete", "session", "demo", "--wait"]).await?;
    expect("spawnlet delete", &deleted, "session/demo deleted")?;
    shown(stage, &["get", "sessions"]).await?;
    for (kind, expected) in [("sessions", "session/hello"), ("turns", "turn/hello-1")] {
        let arguments = ["get", kind, "-o", "name"];
        let left = ran(stage, &arguments).await?.out;
        equal(&line(&arguments), &json!(left.trim()), expected)?;
    }
    let events = ["events", "-w"];
    stage.programs.run_until(&stage.scratch, &events, &["ParentDeleted", &child]).await?;
    stage
        .screen
        .command(&format!("spawnlet report | grep '{PARENT}' | head -n {DELETION_LINES}"))?;
    let report = ran(stage, &["report"]).await?.out;
    let of_parent = report.lines().filter(|line| line.contains(PARENT));
    let of_parent: Vec<&str> = of_parent.take(DELETION_LINES).collect();
    stage.screen.output(&of_parent.join("\n"))?;
    expect("spawnlet report", &of_parent.join("\n"), "its deletion was asked for")
}

async fn stop(stage: &mut Stage) -> Result<(), Failure> {
    stage.screen.heading("The daemon stops")?;
    let Some(daemon) = &mut stage.daemon else { return Ok(()) };
    let pid = daemon.pid().map_or_else(String::new, |pid| pid.to_string());
    stage.screen.command(&format!("kill -TERM {pid}"))?;
    let status = daemon.stop().await?;
    stage.daemon = None;
    if !status.success() {
        return Err(Failure::unexpected("the daemon's end", "exit code 0", status.to_string()));
    }
    stage.screen.say("the daemon ended with exit code 0")?;
    match stage.scratch.store_id() {
        // With one, `clear` looks for its processes.
        Some(_) => Ok(()),
        None => Err(Failure::unexpected("the store", "its id in store.id", "none")),
    }
}

/// Hands a task to the demo agent, in the background.
async fn accepted(stage: &mut Stage, client: &Client, prompt: &str) -> Result<String, Failure> {
    let step = "prompt_to_agent";
    let arguments = json!({"agentId": "demo", "prompt": prompt, "background": true});
    let answer = called(stage, client, step, arguments).await?;
    equal(step, &answer["status"], "accepted")?;
    text(step, &answer, "sessionId")
}

async fn subscribed(stage: &mut Stage, client: &Client, session: &str) -> Result<Updates, Failure> {
    let filter = json!({"resourceSubscriptions": [uri(session)]});
    stage.screen.call("subscriptions/listen", &filter)?;
    client.subscribe(&uri(session)).await
}

async fn standing(stage: &mut Stage, client: &Client, session: &str) -> Result<Value, Failure> {
    called(stage, client, "check_session_status", json!({"sessionId": session})).await
}

/// How a session stands once its turn has ended. `last` is how it stood when it was asked last.
async fn ended(
    stage: &mut Stage,
    client: &Client,
    session: &str,
    mut last: Value,
    updates: &mut Updates,
) -> Result<Value, Failure> {
    for _ in 0..HINTS_MAX {
        if last["status"] != "running" {
            return Ok(last);
        }
        if updates.next().await? {
            let update = json!({"uri": uri(session)});
            stage.screen.notification("notifications/resources/updated", &update)?;
        }
        last = standing(stage, client, session).await?;
    }
    Ok(last)
}

fn uri(session: &str) -> String {
    format!("spawnlet://sessions/{session}")
}

/// Calls a tool and shows call and answer.
async fn called(
    stage: &mut Stage,
    client: &Client,
    tool: &str,
    arguments: Value,
) -> Result<Value, Failure> {
    stage.screen.call(tool, &arguments)?;
    let answer = client.call(tool, &arguments).await?;
    stage.screen.answer(&answer)?;
    Ok(answer)
}

/// Runs a verb, shows it with its output, and gives its standard output.
async fn shown(stage: &mut Stage, arguments: &[&str]) -> Result<String, Failure> {
    stage.screen.command(&line(arguments))?;
    let ran = ran(stage, arguments).await?;
    stage.screen.output(&ran.out)?;
    stage.screen.output(&ran.err)?;
    Ok(ran.out)
}

/// Runs a verb that must succeed.
async fn ran(stage: &Stage, arguments: &[&str]) -> Result<Ran, Failure> {
    let ran = stage.programs.run(&stage.scratch, arguments).await?;
    if ran.status.success() {
        return Ok(ran);
    }
    let came = format!("{}: {}{}", ran.status, ran.out, ran.err);
    Err(Failure::unexpected(line(arguments), "exit code 0", came.trim()))
}

/// The name of a session.
async fn name(stage: &Stage, uid: &str) -> Result<String, Failure> {
    let arguments = ["get", "session", uid, "-o", "json"];
    let found = ran(stage, &arguments).await?.out;
    let found: Value = serde_json::from_str(&found).unwrap_or_default();
    text(&line(&arguments), &found["metadata"], "name")
}

fn line(arguments: &[&str]) -> String {
    format!("spawnlet {}", arguments.join(" "))
}

fn expect(step: &str, output: &str, part: &str) -> Result<(), Failure> {
    if output.contains(part) {
        return Ok(());
    }
    Err(Failure::unexpected(step, format!("\"{part}\" in it"), output.trim()))
}

fn equal(step: &str, came: &Value, expected: impl Into<Value>) -> Result<(), Failure> {
    let expected = expected.into();
    if *came == expected {
        return Ok(());
    }
    Err(Failure::unexpected(step, expected.to_string(), came.to_string()))
}

/// A text of an answer.
fn text(step: &str, answer: &Value, field: &str) -> Result<String, Failure> {
    match answer[field].as_str() {
        Some(text) if !text.is_empty() => Ok(text.to_owned()),
        _ => Err(Failure::unexpected(step, format!("a text in {field}"), answer.to_string())),
    }
}
