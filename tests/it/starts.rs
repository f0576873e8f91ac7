//! `accepted` is true (C6): an agent that dies, errs or falls silent before it has the prompt is
//! told of as what it is, in the time that a start may take.
//!
//! Each stage a few times; fifty times with `SPAWNLET_TIER` 1 or 2.

use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tokio::task::JoinSet;

use crate::chaos::tier;
use crate::harness::{Caller, Daemon};

/// What an agent does wrong, and where.
struct Stage {
    name: &'static str,
    flags: &'static [&'static str],
    /// What is asked of it beside the prompt.
    wants: fn() -> Value,
    code: &'static str,
}

const FAILED: &str = "SPAWN_AGENT_START_FAILED";

const STAGES: [Stage; 9] = [
    stage("dies-at-start", &["--exit=start=3"], FAILED),
    stage("dies-in-initialize", &["--exit=initialize=3"], FAILED),
    stage("silent-in-initialize", &["--silent=initialize"], FAILED),
    stage("errs-in-initialize", &["--fail=initialize=-32603:no"], FAILED),
    stage("dies-in-new", &["--exit=new=3"], FAILED),
    stage("silent-in-new", &["--silent=new"], FAILED),
    stage("errs-in-new", &["--fail=new=-32603:no"], FAILED),
    Stage {
        wants: || json!({"model": "deep"}),
        ..stage("dies-in-set-option", &["--options", "--exit=set_option=3"], FAILED)
    },
    Stage {
        wants: || json!({"model": "deep"}),
        ..stage("silent-in-set-option", &["--options", "--silent=set_option"], FAILED)
    },
];

const fn stage(name: &'static str, flags: &'static [&'static str], code: &'static str) -> Stage {
    Stage { name, flags, wants: || json!({}), code }
}

/// How long a start may take here.
const START_TIMEOUT: &str = "1s";
/// That, and what a busy machine needs for the rest.
const ANSWER_MAX: Duration = Duration::from_secs(6);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_agent_that_fails_before_it_has_the_prompt_is_never_accepted() {
    let times = if tier() == 0 { 2 } else { 50 };
    let daemon = Daemon::start();
    let spec = json!({
        "startTimeout": START_TIMEOUT,
        "stop": {"cancel": "100ms", "close": "100ms", "eof": "100ms", "term": "100ms"},
    });
    for stage in &STAGES {
        let log = format!("--prompt-log={}", daemon.path("log").join("prompts").display());
        let flags: Vec<&str> = stage.flags.iter().copied().chain(["--cap=all", &log]).collect();
        daemon.agent(stage.name, &flags, spec.clone());
        daemon
            .until(&format!("agents/{}", stage.name), |agent| agent["status"]["installed"] == true);
    }
    // A caller of its own for each round: what one tree may spawn in a minute is bounded. Two of
    // them have as many turns at once as there may be.
    for pair in (0..times).step_by(2) {
        let mut rounds = JoinSet::new();
        for round in pair..pair + 2 {
            let caller = Caller::of(&daemon, &format!("round-{round}")).await;
            rounds.spawn(every_stage(Arc::new(caller)));
        }
        rounds.join_all().await;
    }
    assert_eq!(daemon.logged("prompts"), Vec::<Value>::new(), "a prompt was given");
    // The slots are free again, and the same caller's next agent is none of the failed ones.
    daemon.agent("good", &["--cap=all"], json!({}));
    daemon.until("agents/good", |agent| agent["status"]["installed"] == true);
    let caller = Caller::of(&daemon, "last").await;
    let arguments = json!({"agentId": "good", "prompt": "[[say:hello]]", "background": false});
    assert_eq!(caller.prompt(&arguments).await["content"], "hello");
    for round in 0..times {
        daemon.ok(&["delete", "session", &format!("round-{round}"), "--wait"]);
    }
    daemon.ok(&["delete", "session", "last", "--wait"]);
    assert_eq!(daemon.processes(), Vec::<String>::new());
}

/// As many at once as one caller may have.
async fn every_stage(caller: Arc<Caller>) {
    for group in STAGES.chunks(4) {
        let mut calls = JoinSet::new();
        for stage in group {
            let caller = Arc::clone(&caller);
            calls.spawn(async move { fails(&caller, stage).await });
        }
        calls.join_all().await;
    }
}

/// A prompt in the background, which such an agent never has.
async fn fails(caller: &Caller, stage: &Stage) {
    let mut arguments = json!({"agentId": stage.name, "prompt": "[[say:given]]"});
    for (name, value) in (stage.wants)().as_object().unwrap() {
        arguments[name] = value.clone();
    }
    let since = Instant::now();
    let told = caller.prompt(&arguments).await;
    let took = since.elapsed();
    let name = stage.name;
    assert_eq!(
        (&told["status"], &told["code"]),
        (&json!("error"), &json!(stage.code)),
        "{name}: {told:#}"
    );
    assert!(took < ANSWER_MAX, "{name}: told after {took:?}");
    let status = caller.status(&told["sessionId"]).await;
    assert_ne!(status["status"], "running", "{name}: {status:#}");
}

/// What an agent offers and asks for is bounded in the records, so that its turns can always end.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_agent_that_offers_too_much_ends_its_turn_and_gives_its_slot_back() {
    let daemon = Daemon::start();
    let models: Vec<String> = (0..3000).map(|n| format!("model-{n:044}")).collect();
    for (name, script) in [
        ("login", format!("auth {}", "m".repeat(300_000))),
        ("models", format!("models {}", models.join(","))),
    ] {
        let file = daemon.path(name);
        std::fs::write(&file, script).unwrap();
        daemon.agent(name, &["--cap=all", &format!("--script={}", file.display())], json!({}));
        daemon.until(&format!("agents/{name}"), |agent| agent["status"]["installed"] == true);
    }
    let caller = Caller::of(&daemon, "caller").await;
    let ask = |agent: &str, model: Option<&str>| {
        let mut asked = json!({"agentId": agent, "prompt": "[[say:x]]", "background": false});
        if let Some(model) = model {
            asked["model"] = json!(model);
        }
        asked
    };
    let told = caller.prompt(&ask("login", None)).await;
    assert_eq!(
        (&told["status"], &told["code"]),
        (&json!("error"), &json!("SPAWN_AGENT_AUTH_REQUIRED"))
    );
    let told = caller.prompt(&ask("models", Some("no-such"))).await;
    assert_eq!(told["status"], "configuration_required", "{told:#}");
    let candidates = told["issues"][0]["candidates"].as_array().unwrap();
    assert!(!candidates.is_empty() && candidates.len() < models.len(), "{}", candidates.len());
    // Every slot of the caller's is free.
    for _ in 0..5 {
        let told = caller.prompt(&ask("models", Some(&models[1]))).await;
        assert_eq!(told["status"], "completed", "{told:#}");
    }
    daemon.ok(&["delete", "session", "caller", "--wait"]);
    assert_eq!(daemon.processes(), Vec::<String>::new());
}
