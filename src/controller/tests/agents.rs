//! What Agents tell of whether they can run.

use serde_json::json;

use super::bench::Bench;
use crate::api::{Agent, AgentSpec, Kind};
use crate::store::records::Records;

async fn find(bench: &Bench, name: &str) -> Agent {
    let records = Records::new(bench.memory.clone());
    records.get::<AgentSpec>(&"".into(), &name.into()).await.unwrap().unwrap()
}

/// The reason of the condition `Available`, and whether it holds.
fn available(agent: &Agent) -> (String, bool) {
    let conditions = &agent.status.conditions;
    let reason = conditions.get("Available").map(|found| found.reason.clone());
    (reason.unwrap_or_default(), conditions.is_true("Available"))
}

async fn settle(bench: &Bench) {
    bench.pass_time(std::time::Duration::from_millis(50)).await;
}

#[tokio::test(start_paused = true)]
async fn an_agent_is_looked_at_when_it_is_made_changed_and_when_the_daemon_starts() {
    let mut bench = Bench::new().await;
    bench.ground.install("gone", false);
    bench.agent("a", "answer").await;
    settle(&bench).await;
    let agent = find(&bench, "a").await;
    assert_eq!(available(&agent), ("Found".to_owned(), true));
    assert_eq!(agent.status.executable.as_deref(), Some("/bin/answer"));

    bench.patch(Kind::Agent, "a", json!({"spec": {"command": "gone"}})).await;
    settle(&bench).await;
    let agent = find(&bench, "a").await;
    assert_eq!(available(&agent), ("NotInstalled".to_owned(), false));
    assert_eq!((agent.status.installed, agent.status.executable.as_ref()), (Some(false), None));
    let message = &agent.status.conditions.get("Available").unwrap().message;
    assert!(message.contains("/bin"), "{message}");

    bench.patch(Kind::Agent, "a", json!({"spec": {"enabled": false}})).await;
    settle(&bench).await;
    assert_eq!(available(&find(&bench, "a").await), ("Disabled".to_owned(), false));

    bench.patch(Kind::Agent, "a", json!({"spec": {"enabled": true}})).await;
    bench.stop().await;
    bench.ground.install("gone", true);
    bench.start().await;
    settle(&bench).await;
    assert_eq!(available(&find(&bench, "a").await), ("Found".to_owned(), true));
}

#[tokio::test(start_paused = true)]
async fn a_request_is_answered_by_a_fresh_look_and_by_nothing_else() {
    let bench = Bench::new().await;
    bench.ground.install("late", false);
    bench.agent("a", "late").await;
    settle(&bench).await;
    let before = find(&bench, "a").await;
    assert_eq!(available(&before), ("NotInstalled".to_owned(), false));

    // Nothing polls.
    bench.ground.install("late", true);
    bench.pass_time(std::time::Duration::from_secs(3600)).await;
    assert_eq!(find(&bench, "a").await, before);

    let request =
        |value: &str| json!({"metadata": {"annotations": {"spawnlet.dev/check-requested": value}}});
    bench.patch(Kind::Agent, "a", request("one")).await;
    settle(&bench).await;
    let agent = find(&bench, "a").await;
    assert_eq!(available(&agent), ("Found".to_owned(), true));
    assert_eq!(agent.status.last_check.as_ref().unwrap().request, "one");

    // Its own write sets off one more look, which finds nothing to write.
    bench.pass_time(std::time::Duration::from_secs(3600)).await;
    assert_eq!(find(&bench, "a").await, agent);
}

#[tokio::test(start_paused = true)]
async fn a_session_that_waits_for_its_agent_starts_when_a_check_finds_it() {
    let bench = Bench::new().await;
    bench.ground.install("answer", false);
    bench.agent("a", "answer").await;
    bench.session("s", "a", json!({"prompt": "p"})).await;
    bench.until_session("s", |s| s.is_some_and(|s| s.status.reason == "AgentNotInstalled")).await;
    bench.ground.install("answer", true);
    let request = json!({"metadata": {"annotations": {"spawnlet.dev/check-requested": "now"}}});
    bench.patch(Kind::Agent, "a", request).await;
    settle(&bench).await;
    bench.until_final("s-1").await;
    let agent = find(&bench, "a").await;
    assert!(agent.status.last_start.is_some(), "{agent:#?}");
    assert_eq!(agent.status.version.as_deref(), Some("1.2.3"));
    assert_eq!(agent.status.capabilities.as_ref().unwrap()["loadSession"], true);
    assert_eq!(available(&agent), ("Found".to_owned(), true));
    bench.check_quiet().await;
}

/// The agents' loop goes on when the store does not take a write.
#[tokio::test(start_paused = true)]
async fn a_faulty_store_holds_a_look_up_and_loses_none() {
    let (mut bench, faults) = Bench::faulty(2, 11);
    for number in 0..20 {
        bench.agent(&format!("a{number}"), "answer").await;
    }
    bench.start().await;
    bench.pass_time(std::time::Duration::from_secs(5)).await;
    while bench.has_ended() {
        bench.crash().await;
        bench.start().await;
        bench.pass_time(std::time::Duration::from_millis(1)).await;
    }
    faults.set_on(false);
    bench.pass_time(std::time::Duration::from_secs(120)).await;
    for number in 0..20 {
        let agent = find(&bench, &format!("a{number}")).await;
        assert_eq!(available(&agent), ("Found".to_owned(), true), "{agent:#?}");
    }
}
