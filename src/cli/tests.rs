//! The verbs against the API as it is served, over a socket.

use std::path::Path;
use std::sync::Arc;

use axum::body::Body;
use clap::CommandFactory;
use serde_json::{Value, json};
use tokio::net::UnixListener;

use super::*;
use crate::api::Kind;
use crate::rest::tests::{Fixture, TOKEN, session, session_key, turn, uid};
use crate::rest::{Listener, Peer, serve};
use crate::store::{Change, Rev, Store, Stream};

struct Daemon {
    api: Fixture,
    directory: tempfile::TempDir,
    _server: tokio::task::JoinSet<()>,
}

impl Daemon {
    async fn start() -> Self {
        let api = Fixture::new();
        api.admission.ensure_default_namespace().await.unwrap();
        let directory = tempfile::tempdir().unwrap();
        let socket = UnixListener::bind(directory.path().join("spawnlet.sock")).unwrap();
        std::fs::write(directory.path().join("operator.token"), format!("{TOKEN}\n")).unwrap();
        let mut server = tokio::task::JoinSet::new();
        let listeners = vec![Listener::Unix(socket, Arc::new(|_| Peer::Other))];
        server.spawn(serve(listeners, api.router.clone(), 8, api.shutdown.clone()));
        Self { api, directory, _server: server }
    }

    fn path(&self) -> &Path {
        self.directory.path()
    }

    fn file(&self, name: &str, text: &str) -> String {
        let path = self.path().join(name);
        std::fs::write(&path, text).unwrap();
        path.display().to_string()
    }

    async fn try_run(&self, arguments: &[&str]) -> (Result<ExitCode, Failure>, String) {
        let data_dir = self.path().display().to_string();
        let all =
            ["spawnlet", "--data-dir", &data_dir].into_iter().chain(arguments.iter().copied());
        run_verb(all).await
    }

    /// Runs a verb that succeeds and gives its output.
    async fn run(&self, arguments: &[&str]) -> String {
        let (result, out) = self.try_run(arguments).await;
        result.unwrap_or_else(|failure| panic!("{arguments:?}: {failure}\n{out}"));
        out
    }

    /// Runs a verb that fails and gives its exit code and message.
    async fn refused(&self, arguments: &[&str]) -> (u8, String) {
        let (result, out) = self.try_run(arguments).await;
        let failure = result.expect_err(&out);
        (failure.exit_code(), failure.to_string())
    }
}

async fn run_verb<'a>(
    arguments: impl Iterator<Item = &'a str>,
) -> (Result<ExitCode, Failure>, String) {
    let cli = Cli::try_parse_from(arguments).unwrap();
    let mut out: Vec<u8> = Vec::new();
    let mut context = Context {
        connection: Connection::find(&cli.global, |_| None),
        namespace: cli.global.namespace,
        out: &mut out,
        is_terminal: false,
        guards: Box::new(crate::rest::tests::machine_guards),
    };
    let result = carry_out(cli.verb, &mut context).await;
    (result, String::from_utf8(out).unwrap())
}

const AGENT: &str = "apiVersion: spawnlet.dev/v1alpha1
kind: Agent
metadata: {name: echo}
spec: {argv: [echo-agent]}
";

fn session_yaml(title: &str) -> String {
    format!(
        "---
apiVersion: spawnlet.dev/v1alpha1
kind: Session
metadata: {{name: a, labels: {{team: x}}}}
spec: {{agent: echo, cwd: /tmp{title}}}
"
    )
}

#[test]
fn the_command_line_is_well_formed_and_documents_its_exit_codes() {
    Cli::command().debug_assert();
    let help = Cli::command().render_long_help().to_string();
    for code in ["65", "69", "75", "77", "78"] {
        assert!(help.contains(&format!("  {code}  ")), "{help}");
    }
}

#[test]
fn serve_takes_its_options_and_nothing_else_runs() {
    let arguments = [
        "spawnlet",
        "serve",
        "--listen",
        "127.0.0.1:0",
        "--data-dir",
        "/d",
        "--manifests",
        "/m",
        "--manifests",
        "/n",
        "--set",
        "limits.inbox=3",
        "--log-format",
        "json",
    ];
    let mut seen = None;
    let serve = |options| {
        seen = Some(options);
        ExitCode::from(7)
    };
    let code = run(
        arguments.map(OsString::from),
        serve,
        |_| ExitCode::FAILURE,
        |_| ExitCode::FAILURE,
        |_| vec![],
    );
    assert_eq!(code, ExitCode::from(7));
    let options = seen.unwrap();
    assert_eq!(options.listen.as_deref(), Some("127.0.0.1:0"));
    assert_eq!(options.data_dir.as_deref(), Some(Path::new("/d")));
    assert_eq!(options.manifests, [Path::new("/m"), Path::new("/n")]);
    assert_eq!(options.sets, ["limits.inbox=3"]);
    assert!(options.prune);
    assert_eq!(options.log_format, Some(serve::LogFormat::Json));
}

#[test]
fn demo_gets_what_it_was_told() {
    for (arguments, keep) in
        [(&["spawnlet", "demo"][..], false), (&["spawnlet", "demo", "--keep"], true)]
    {
        let mut seen = None;
        let demo = |options| {
            seen = Some(options);
            ExitCode::from(7)
        };
        let arguments = arguments.iter().map(OsString::from);
        assert_eq!(
            run(arguments, |_| ExitCode::FAILURE, demo, |_| ExitCode::FAILURE, |_| vec![]),
            ExitCode::from(7)
        );
        assert_eq!(seen, Some(DemoOptions { keep }));
    }
}

#[test]
fn wrong_usage_is_exit_code_2() {
    for arguments in [
        &["spawnlet"][..],
        &["spawnlet", "get"],
        &["spawnlet", "get", "se", "-o", "xml"],
        &["spawnlet", "apply"],
        &["spawnlet", "wait", "se/a", "--for", "jsonpath=x"],
        &["spawnlet", "prompt", "a", "--wait", "--detach"],
    ] {
        let error = Cli::try_parse_from(arguments).unwrap_err();
        assert_eq!(error.exit_code(), 2, "{arguments:?}");
    }
}

#[tokio::test]
async fn a_file_is_applied_changed_shown_and_deleted() {
    let daemon = Daemon::start().await;
    let file = daemon.file("a.yaml", &format!("{AGENT}{}", session_yaml(", title: one")));
    let dry = daemon.run(&["apply", "-f", &file, "--dry-run"]).await;
    assert_eq!(dry, "agent/echo created (dry run)\nsession/a created (dry run)\n");
    let made = daemon.run(&["apply", "-f", &file]).await;
    assert_eq!(made, "agent/echo created\nsession/a created\n");
    let same = daemon.run(&["apply", "-f", &file]).await;
    assert_eq!(same, "agent/echo unchanged\nsession/a unchanged\n");
    daemon.file("a.yaml", &format!("{AGENT}{}", session_yaml("")));
    let changed = daemon.run(&["apply", "-f", &file]).await;
    assert_eq!(changed, "agent/echo unchanged\nsession/a configured\n");

    let shown: Value =
        serde_json::from_str(&daemon.run(&["get", "se", "a", "-o", "json"]).await).unwrap();
    assert!(shown["spec"].get("title").is_none(), "what left the file is gone");
    let table = daemon.run(&["get", "sessions"]).await;
    let header: Vec<&str> = table.lines().next().unwrap().split_whitespace().collect();
    assert_eq!(header, ["NAME", "AGENT", "PHASE", "REASON", "TURN", "QUEUED", "AGE"]);
    assert!(daemon.run(&["get", "se", "-A", "-o", "wide"]).await.starts_with("NAMESPACE"));
    assert_eq!(daemon.run(&["get", "se", "-o", "name", "-l", "team=x"]).await, "session/a\n");
    assert_eq!(daemon.run(&["get", "se", "-o", "name", "-l", "team!=x"]).await, "");
    assert!(daemon.run(&["get", "agent/echo", "-o", "yaml"]).await.contains("kind: Agent"));
    let tables = daemon.run(&["get", "agents,se"]).await;
    assert!(tables.contains("\nagent/echo ") && tables.contains("\n\nNAME"), "{tables}");
    assert!(tables.contains("\nsession/a "), "{tables}");
    assert_eq!(daemon.run(&["get", "agents,se", "-o", "name"]).await, "agent/echo\nsession/a\n");
    let both: Value =
        serde_json::from_str(&daemon.run(&["get", "ag,se", "-o", "json"]).await).unwrap();
    assert_eq!((&both["kind"], &both["items"][1]["kind"]), (&json!("List"), &json!("Session")));
    assert_eq!(daemon.refused(&["get", "agents,se", "a"]).await.0, 2);
    let list = daemon.run(&["get", "se", "-o", "json"]).await;
    assert_eq!(serde_json::from_str::<Value>(&list).unwrap()["kind"], "SessionList");

    let text = daemon.run(&["describe", "session", "a"]).await;
    for part in ["Name:           a\n", "Labels:\n  team: x\n", "  agent: echo\n", "Events: none\n"]
    {
        assert!(text.contains(part), "{part} in {text}");
    }
    assert_eq!(daemon.run(&["delete", "agent", "echo", "--wait"]).await, "agent/echo deleted\n");
    let asked = daemon.run(&["delete", "session/a"]).await;
    assert_eq!(asked, "session/a is being deleted\n");
}

#[tokio::test]
async fn faults_have_their_place_and_their_exit_code() {
    let daemon = Daemon::start().await;
    let wrong = daemon.file("w.yaml", "apiVersion: spawnlet.dev/v1alpha1\nkind: Session\nmetadata: {name: a}\nspec:\n  agent: e\n  titel: x\n");
    for verb in ["apply", "validate"] {
        let (code, message) = daemon.refused(&[verb, "-f", &wrong]).await;
        assert_eq!(code, 65);
        assert!(message.starts_with(&format!("{wrong}:6:")), "{message}");
        assert!(message.contains("titel"), "{message}");
    }
    let good = daemon.file("g.yaml", AGENT);
    assert_eq!(
        daemon.run(&["validate", "-f", &good]).await,
        format!("{good}: agent/echo is valid\n")
    );
    assert_eq!(daemon.refused(&["get", "se", "nobody"]).await.0, 1);
    assert_eq!(daemon.refused(&["get", "pods"]).await.0, 2);
    assert_eq!(daemon.refused(&["get", "se", "a", "--token", "wrong"]).await.0, 77);
    assert_eq!(daemon.refused(&["get", "se", "--field-selector", "a=b"]).await.0, 65);
    let (code, message) = daemon.refused(&["get", "se", "--server", "unix:/nowhere"]).await;
    assert_eq!(code, 69);
    assert!(message.contains("spawnlet serve"), "{message}");
    let (code, message) = daemon.refused(&["apply", "-f", "/nowhere.yaml"]).await;
    assert_eq!((code, message.starts_with("/nowhere.yaml: ")), (65, true), "{message}");
}

#[tokio::test]
async fn a_watch_goes_on_below_the_list_until_the_daemon_stops() {
    let daemon = Daemon::start().await;
    daemon.api.put(Kind::Session, session("a", "Idle", json!({}))).await;
    let change = async {
        // The list and the watch are two requests; the watch goes on from the list's revision, so
        // it does not matter between which of them this happens.
        daemon.api.put(Kind::Session, session("a", "Running", json!({}))).await;
        daemon.run(&["wait", "se/a", "--for", "phase=Running"]).await;
        daemon.api.shutdown.cancel();
    };
    let (watched, ()) = tokio::join!(daemon.try_run(&["get", "se", "-w"]), change);
    assert_eq!(watched.0.unwrap_err().exit_code(), 69);
    assert!(watched.1.starts_with("NAME"), "{}", watched.1);
    assert!(watched.1.contains("Running"), "{}", watched.1);
}

/// Ends the first turn of a session as a controller would.
async fn answer(daemon: &Daemon, phase: &str) -> String {
    let prefix = crate::store::keys::kind_prefix(Kind::Turn);
    let mut turns = daemon.api.store.watch(&prefix, Rev(0)).await.unwrap();
    let record = loop {
        if let Some(Change::Put(record)) = turns.next().await {
            break record;
        }
    };
    let mut turn: Value = serde_json::from_slice(&record.value).unwrap();
    let (name, uid) = (turn["metadata"]["name"].clone(), turn["metadata"]["uid"].clone());
    let update = json!({"sessionUpdate": "agent_message_chunk", "content": {"text": "Hello."}});
    let line = format!("{update}\n");
    daemon.api.append(uid.as_str().unwrap(), Stream::Transcript, line.as_bytes()).await;
    turn["status"]["phase"] = json!(phase);
    turn["status"]["finishedAt"] = json!("2026-01-01T00:00:00Z");
    turn["status"]["message"] = json!("why");
    daemon.api.put(Kind::Turn, turn).await;
    name.as_str().unwrap().to_owned()
}

#[tokio::test]
async fn a_prompt_shows_the_answer_and_ends_as_its_turn_does() {
    for (phase, code) in [("Completed", 0), ("Cancelled", 3), ("Interrupted", 75)] {
        let daemon = Daemon::start().await;
        let file = daemon.file("a.yaml", &session_yaml(""));
        daemon.run(&["apply", "-f", &file]).await;
        let prompt = daemon.try_run(&["prompt", "a", "say hello"]);
        let ((result, out), _) = tokio::join!(prompt, answer(&daemon, phase));
        assert_eq!(result.unwrap(), ExitCode::from(code), "{phase}");
        assert_eq!(out, "Hello.\n");
    }
}

#[tokio::test]
async fn a_detached_prompt_prints_the_turn_and_makes_a_session_of_an_agent() {
    let daemon = Daemon::start().await;
    let out = daemon.run(&["prompt", "--agent", "echo", "--cwd", "/tmp", "hi", "--detach"]).await;
    assert!(out.starts_with("turn/echo-"), "{out}");
    let text = daemon.run(&["get", "se", "-o", "json"]).await;
    let list: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(list["items"][0]["spec"]["agent"], "echo");
    let session = list["items"][0]["metadata"]["name"].as_str().unwrap();

    let cancelled = daemon.run(&["cancel", session]).await;
    assert!(cancelled.contains("is being cancelled"), "{cancelled}");
    assert_eq!(daemon.run(&["cancel", session]).await, "no turn to cancel\n");
    let stopped = daemon.run(&["stop", session]).await;
    assert_eq!(stopped, format!("session/{session} is being stopped\n"));
    assert_eq!(daemon.refused(&["prompt", "--agent", "echo", "a", "b"]).await.0, 2);
}

#[tokio::test]
async fn what_a_prompt_waits_for_is_told_whenever_it_changes() {
    let daemon = Daemon::start().await;
    let data_dir = daemon.path().display().to_string();
    let cli = Cli::try_parse_from(["spawnlet", "--data-dir", &data_dir, "doctor"]).unwrap();
    let client = Client::new(Connection::find(&cli.global, |_| None).unwrap());
    let mut waiting = session("s", "Pending", json!({}));
    waiting["status"]["reason"] = json!("AgentNotFound");
    daemon.api.put(Kind::Session, waiting).await;
    let mut next = ["Starting", "Running"].into_iter();
    let (said, mut heard) = tokio::sync::mpsc::channel(8);
    let subject = observe::Subject {
        resource: crate::rest::resource::Resource::Records(Kind::Session),
        namespace: "default",
        name: "s",
    };
    let wait = waiting::Wait {
        client: &client,
        session: subject,
        turn: "t",
        made_at: "",
        quiet: std::time::Duration::ZERO,
        patience: None,
    };
    let telling = wait.tell(|why| said.try_send(why.to_owned()).unwrap());
    let changing = async {
        let mut all = Vec::new();
        for phase in next.by_ref() {
            all.push(heard.recv().await.unwrap());
            let mut changed = session("s", phase, json!({}));
            changed["status"]["activeTurn"] = json!("t");
            daemon.api.put(Kind::Session, changed).await;
        }
        all
    };
    let (told, all) = tokio::join!(telling, changing);
    assert_eq!(told.unwrap(), None);
    assert_eq!(all, ["waiting: Pending AgentNotFound", "waiting: Starting"]);
}

#[tokio::test]
async fn a_prompt_to_an_ended_session_is_told_how_to_make_a_new_one() {
    let daemon = Daemon::start().await;
    let file = daemon.file("a.yaml", &session_yaml(""));
    daemon.run(&["apply", "-f", &file]).await;
    daemon.run(&["stop", "a"]).await;
    let failure = daemon.try_run(&["prompt", "a", "hi"]).await.0.unwrap_err();
    assert_eq!(failure.exit_code(), 65, "{failure}");
    assert!(failure.hint().unwrap().contains("spawnlet prompt --agent"), "{failure}");
    let modified = Failure::of_status(
        409,
        br#"{"reason":"Conflict","message":"x: the object has been modified; please"}"#,
    );
    assert!(modified.hint().unwrap().contains("somebody else"));
    let precondition = Failure::of_status(409, br#"{"reason":"Conflict","message":"uid is a"}"#);
    assert_eq!(precondition.hint(), None);
}

#[tokio::test]
async fn logs_responses_reports_and_events_are_shown() {
    let daemon = Daemon::start().await;
    daemon.api.put(Kind::Session, session("s", "Idle", json!({}))).await;
    daemon.api.put(Kind::Turn, turn("t", "s", "Completed")).await;
    let update = json!({"sessionUpdate": "agent_message_chunk", "content": {"text": "one"}});
    let line = format!("{update}\n");
    daemon.api.append(&uid("t"), Stream::Transcript, line.as_bytes()).await;
    daemon.api.append(&uid("t"), Stream::Response, b"raw").await;
    assert_eq!(daemon.run(&["logs", "s"]).await, "one\n");
    assert_eq!(daemon.run(&["logs", "s", "--turn", "t", "-o", "acp"]).await, line);
    assert_eq!(daemon.run(&["response", "t"]).await, "raw");
    assert_eq!(daemon.run(&["response", &uid("t")]).await, "raw");
    assert_eq!(daemon.refused(&["logs", "s", "--stderr"]).await.0, 1);
    assert_eq!(daemon.run(&["report", "se/s"]).await, "");
    let events: Value = serde_json::from_str(&daemon.run(&["events", "-o", "json"]).await).unwrap();
    assert_eq!(events["items"], json!([]));
    assert_eq!(daemon.run(&["get", "manifests"]).await, "");
}

#[tokio::test]
async fn names_are_taken_as_they_are_printed() {
    let daemon = Daemon::start().await;
    let mut whole = session("s", "Idle", json!({}));
    whole["spec"]["cwd"] = json!("/tmp");
    daemon.api.put(Kind::Session, whole).await;
    daemon.api.put(Kind::Turn, turn("t", "s", "Completed")).await;
    daemon.api.append(&uid("t"), Stream::Response, b"raw").await;
    assert_eq!(daemon.run(&["response", "turn/t"]).await, "raw");
    assert_eq!(daemon.run(&["logs", "session/s", "--turn", "turn/t"]).await, "");
    let made = daemon.run(&["prompt", "session/s", "hi", "--detach"]).await;
    let one = made.trim_end();
    assert_eq!(daemon.run(&["cancel", one]).await, format!("{one} is being cancelled\n"));
    assert_eq!(daemon.run(&["cancel", one]).await, "no turn to cancel\n");
    assert_eq!(daemon.run(&["cancel", "session/s"]).await, "no turn to cancel\n");
    assert_eq!(daemon.run(&["stop", "session/s"]).await, "session/s is being stopped\n");
    for (arguments, expected) in [
        (&["prompt", "turn/t", "hi"][..], "session/NAME"),
        (&["logs", "turn/t"], "session/NAME"),
        (&["logs", "s", "--turn", "session/s"], "turn/NAME"),
        (&["cancel", "agent/a"], "session/NAME"),
        (&["cancel", "turn/t", "--keep-inbox"], "--keep-inbox"),
        (&["stop", "turn/t"], "session/NAME"),
        (&["extend", "turn/t", "1m"], "session/NAME"),
        (&["response", "session/s"], "turn/NAME"),
        (&["approve", "session/s"], "permissionrequest/NAME"),
    ] {
        let (code, message) = daemon.refused(arguments).await;
        assert_eq!((code, message.contains(expected)), (2, true), "{arguments:?}: {message}");
    }
}

#[tokio::test]
async fn an_empty_prompt_makes_nothing() {
    let daemon = Daemon::start().await;
    let prompt = ["prompt", "--agent", "echo", "--cwd", "/tmp", " \n"];
    let (code, message) = daemon.refused(&prompt).await;
    assert_eq!((code, message.contains("the prompt is empty")), (65, true), "{message}");
    assert_eq!(daemon.run(&["get", "se", "-o", "name"]).await, "");
}

#[tokio::test]
async fn what_is_being_deleted_is_not_said_to_be_applied() {
    let daemon = Daemon::start().await;
    let file = daemon.file("a.yaml", &format!("{AGENT}{}", session_yaml("")));
    daemon.run(&["apply", "-f", &file]).await;
    let shown = daemon.run(&["get", "se", "a", "-o", "json"]).await;
    let mut going: Value = serde_json::from_str(&shown).unwrap();
    going["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00.000Z".into();
    daemon.api.put(Kind::Session, going).await;
    let (code, why) = daemon.refused(&["apply", "-f", &file]).await;
    assert_eq!(code, 75, "{why}");
    assert!(why.contains("session/a is being deleted"), "{why}");
}

#[test]
fn the_help_of_get_names_every_kind() {
    let mut cli = Cli::command();
    let help = cli.find_subcommand_mut("get").unwrap().render_long_help().to_string();
    for resource in crate::rest::resource::Resource::ALL {
        assert!(help.contains(resource.plural()), "{} in {help}", resource.plural());
    }
}

#[tokio::test]
async fn waiting_ends_with_the_goal_the_time_or_the_object() {
    let daemon = Daemon::start().await;
    daemon.api.put(Kind::Session, session("s", "Idle", json!({}))).await;
    let met = daemon.run(&["wait", "se/s", "--for", "phase=Idle"]).await;
    assert_eq!(met, "session/s condition met\n");
    let late = &["wait", "se/s", "--for", "condition=ProcessReady", "--timeout", "10ms"];
    assert_eq!(daemon.refused(late).await.0, 75);
    let slip = daemon.refused(&["wait", "se/s", "--for", "phase=Nope"]).await;
    assert_eq!(slip.0, 2, "{slip:?}");
    let mut over = session("over", "Stopped", json!({}));
    over["status"]["finishedAt"] = "2026-01-01T00:00:00Z".into();
    daemon.api.put(Kind::Session, over).await;
    let (code, why) = daemon.refused(&["wait", "se/over", "--for", "phase=Running"]).await;
    assert_eq!(code, 1, "{why}");
    assert!(why.contains("over is Stopped and stays so"), "{why}");
    let gone = daemon.try_run(&["wait", "se/s", "--for", "delete"]);
    let ((result, _), ()) = tokio::join!(gone, daemon.api.remove(session_key("s")));
    result.unwrap();
    daemon.run(&["wait", "se/s", "--for", "delete"]).await;
}

#[tokio::test]
async fn doctor_version_and_completion_answer() {
    let daemon = Daemon::start().await;
    let text = daemon.run(&["doctor"]).await;
    assert!(text.contains("ready       yes"), "{text}");
    assert!(text.contains("ok          StoreAvailable=True Open"), "{text}");
    let guards = "guards, as the daemon sees its machine:\nok          Landlock      ABI 7\n\
                  missing     Cgroup        none\n                          lost: time\n\
                  \x20                         hint: Delegate=yes\n";
    assert!(text.contains(guards), "{text}");
    let version: Value =
        serde_json::from_str(&daemon.run(&["version", "-o", "json"]).await).unwrap();
    assert_eq!(version["daemon"]["gitVersion"], "v1.37.0+spawnlet.0.1.0");
    let unready = &daemon.api.ports.is_unready;
    unready.store(true, std::sync::atomic::Ordering::SeqCst);
    let (code, message) = daemon.refused(&["doctor"]).await;
    assert_eq!((code, message.contains("ask again in a moment")), (1, true), "{message}");
    let is_faulty = &daemon.api.ports.is_store_faulty;
    is_faulty.store(true, std::sync::atomic::Ordering::SeqCst);
    let (_, message) = daemon.refused(&["doctor"]).await;
    assert_eq!(message, "the daemon is not ready: StoreAvailable=False ReadOnly");
    let told = daemon.api.send("GET", "/readyz?verbose", &[], Body::empty()).await;
    assert!(told.to_string().ends_with("readyz check failed: StoreAvailable\n"), "{told}");
    unready.store(false, std::sync::atomic::Ordering::SeqCst);
    let (_, message) = daemon.refused(&["doctor"]).await;
    assert_eq!(message, "it is not well: StoreAvailable=False ReadOnly");
    assert!(daemon.run(&["completion", "bash"]).await.contains("spawnlet"));
    let (result, out) =
        run_verb(["spawnlet", "--server", "unix:/nowhere", "version"].into_iter()).await;
    result.unwrap();
    assert!(out.contains("daemon  not reached"), "{out}");
    for form in ["text", "json"] {
        let arguments = ["spawnlet", "--server", "unix:/nowhere", "doctor", "-o", form];
        let (result, out) = run_verb(arguments.into_iter()).await;
        assert_eq!(result.unwrap_err().exit_code(), 69);
        let is_told = out.contains("as this command sees") || out.contains("\"client\"");
        assert!(is_told && out.contains("Delegate=yes"), "{out}");
    }
}

#[tokio::test]
async fn the_configuration_is_shown_with_its_sources_and_its_faults_with_their_places() {
    let daemon = Daemon::start().await;
    let file = daemon.file("c.yaml", "limits:\n  inbox: 3\n");
    let text = daemon.run(&["config", "--config", &file, "--set", "limits.maxActiveTurns=2"]).await;
    let row = |key: &str| {
        let line = text.lines().find(|line| line.starts_with(key)).unwrap();
        line.split_whitespace().map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(row("limits.inbox"), ["limits.inbox", "3", "file", "yes"]);
    assert_eq!(row("limits.maxActiveTurns "), ["limits.maxActiveTurns", "2", "--set", "yes"]);
    assert_eq!(row("listen "), ["listen", "127.0.0.1:7420", "default", "yes"]);
    let wrong = daemon.file("w.yaml", "limits:\n  inbocks: 3\n");
    let (code, message) = daemon.refused(&["config", "--config", &wrong]).await;
    assert_eq!(code, 65);
    assert!(message.starts_with(&format!("{wrong}:2:")), "{message}");
}

#[tokio::test]
async fn definitions_and_schemas_are_printed() {
    let daemon = Daemon::start().await;
    let crds = daemon.run(&["crds"]).await;
    assert!(crds.contains("name: sessions.spawnlet.dev"), "{crds}");
    let list: Value = serde_json::from_str(&daemon.run(&["crds", "-o", "json"]).await).unwrap();
    assert_eq!(list["items"].as_array().unwrap().len(), 6);
    let schema: Value = serde_json::from_str(&daemon.run(&["schema", "se"]).await).unwrap();
    assert!(schema["properties"]["spec"].is_object());
    assert_eq!(daemon.refused(&["schema", "pods"]).await.0, 2);
}

#[tokio::test]
async fn the_daemon_answers_over_tcp_too() {
    let api = Fixture::new();
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let mut server = tokio::task::JoinSet::new();
    server.spawn(serve(vec![Listener::Tcp(listener)], api.router.clone(), 8, api.shutdown.clone()));
    api.put(Kind::Session, session("s", "Idle", json!({}))).await;
    let arguments = ["spawnlet", "--server", &url, "--token", TOKEN, "get", "se", "-o", "name"];
    let (result, out) = run_verb(arguments.into_iter()).await;
    result.unwrap();
    assert_eq!(out, "session/s\n");
    let answer = api.send("GET", "/healthz", &[], Body::empty()).await;
    assert_eq!(answer.code, 200);
}
