//! What a real agent asks, and somebody decides: allowed, denied, withdrawn, left alone.

use std::path::Path;

use super::rig::Rig;
use super::{agents, assert_answers, session, session_of};

/// A prompt whose tool call makes a file, if it is allowed to.
fn touch(path: &Path) -> String {
    format!("[[tool:bash touch {}]]", path.display())
}

/// The request ended like this, and the session goes on.
async fn told(rig: &Rig, request: &str, phase: &str, decision: Option<&str>) {
    let answer = rig.cli(&["prompt", "one", "and now"]).await;
    assert_answers(&answer, "and now");
    let request = rig.record(&format!("permissionrequest/{request}")).await;
    assert_eq!(request["status"]["phase"], phase, "{request:#}");
    assert_eq!(request["spec"]["decision"].as_str(), decision, "{request:#}");
}

#[tokio::test]
async fn what_it_asks_is_done_if_it_is_allowed_and_only_then() {
    for agent in agents() {
        let rig = session(&agent, "  permissions: ask\n").await;
        let paths = ["allowed", "denied", "withdrawn"].map(|name| rig.work().join(name));
        let [allowed, denied, withdrawn] = &paths;

        rig.cli(&["prompt", "one", &touch(allowed), "--detach"]).await;
        let request = rig.asks("one-1").await;
        let record = rig.record("session/one").await;
        assert_eq!(record["status"]["reason"], "WaitingForPermission", "{record:#}");
        assert!(!allowed.exists(), "it was done before it was allowed");
        rig.cli(&["approve", &request]).await;
        rig.phase("turn/one-1", "Completed").await;
        assert!(allowed.exists(), "it was allowed and not done");
        told(&rig, &request, "Answered", Some("allow")).await;

        // Agents differ in how they end such a turn (page 80); it ends, and the session goes on.
        rig.cli(&["prompt", "one", &touch(denied), "--detach"]).await;
        let request = rig.asks("one-3").await;
        rig.cli(&["deny", &request]).await;
        told(&rig, &request, "Answered", Some("deny")).await;

        rig.cli(&["prompt", "one", &touch(withdrawn), "--detach"]).await;
        let request = rig.asks("one-5").await;
        rig.cli(&["cancel", "one"]).await;
        rig.phase("turn/one-5", "Cancelled").await;
        told(&rig, &request, "Cancelled", None).await;
        assert!(!denied.exists() && !withdrawn.exists(), "what nobody allowed was done");
        rig.finish("session/one").await;
    }
}

#[tokio::test]
async fn what_it_asks_and_nobody_decides_is_not_done() {
    for agent in agents() {
        let rig = session_of(&agent, "  permissions: ask\n", &["permissionTimeout=2s"]).await;
        let path = rig.work().join("touched");
        rig.cli(&["prompt", "one", &touch(&path), "--detach"]).await;
        let request = rig.asks("one-1").await;
        told(&rig, &request, "TimedOut", None).await;
        assert!(!path.exists(), "what nobody allowed was done");
        rig.finish("session/one").await;
    }
}
