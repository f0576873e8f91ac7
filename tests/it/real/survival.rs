//! What a conversation survives: the violent end of its agent, of the agent's shim, and an agent
//! that stands still.
//!
//! That of the daemon, and hibernation, are in the main file.

use rustix::process::Signal as Sig;
use serde_json::json;

use super::rig::{Rig, signal_process};
use super::{agents, remembers, session};

/// Kills one of the session's processes, by the field of its record.
async fn kill(rig: &Rig, which: &str) {
    let record = rig.record("session/one").await;
    signal_process(record["status"]["process"][which].as_u64().unwrap(), Sig::KILL);
}

/// Signals the agent: wrapper, real agent and all that they started.
fn signal(rig: &Rig, signal: Sig) {
    for (pid, _) in rig.tree("one") {
        signal_process(pid, signal);
    }
}

/// A session that was told something and is in a turn.
async fn begin(agent: &str, slow: &str) -> Rig {
    let mut rig = session(agent, "").await;
    rig.cli(&["prompt", "one", "first words"]).await;
    rig.cli(&["prompt", "one", slow, "--detach"]).await;
    rig.asked("slow words").await;
    rig
}

/// Nothing is left of the process before; in a new one the session goes on.
async fn goes_on(rig: &mut Rig, agent: &str) {
    assert_eq!(rig.processes(), [""; 0], "left of the process before");
    if remembers(rig, agent, "first words").await {
        assert_eq!(rig.count_asked("slow words", "[[recall]]").await, 0, "sent again");
    }
}

#[tokio::test]
async fn a_conversation_survives_kill_9_of_its_agent_and_of_its_shim() {
    for agent in agents() {
        for which in ["pid", "shimPid"] {
            let mut rig = begin(&agent, "slow words [[slow:20]]").await;
            kill(&rig, which).await;
            rig.phase("turn/one-2", "Failed").await;
            let turn = rig.record("turn/one-2").await;
            let code = &turn["status"]["code"];
            assert_eq!(*code, json!("AGENT_PROCESS_INVALIDATED"), "{which}: {turn:#}");
            assert_eq!(turn["status"]["delivery"], "Sent", "{turn:#}");
            rig.phase("session/one", "Hibernated").await;
            goes_on(&mut rig, &agent).await;
            rig.finish("session/one").await;
        }
    }
}

#[tokio::test]
async fn an_agent_that_stood_still_goes_on_or_is_ended_and_the_conversation_survives() {
    for agent in agents() {
        let mut rig = begin(&agent, "slow words [[slow:2]]").await;
        signal(&rig, Sig::STOP);
        // The daemon answers meanwhile, and waits.
        let turn = rig.record("turn/one-2").await;
        assert_eq!(turn["status"]["phase"], "Running", "{turn:#}");
        signal(&rig, Sig::CONT);
        rig.phase("turn/one-2", "Completed").await;

        rig.cli(&["prompt", "one", "more slow words [[slow:20]]", "--detach"]).await;
        rig.asked("more slow words").await;
        signal(&rig, Sig::STOP);
        rig.cli(&["cancel", "one"]).await;
        rig.phase("turn/one-3", "Cancelled").await;
        rig.phase("session/one", "Hibernated").await;
        // Only the ladder ended it: some answer the cancel when SIGCONT wakes them, after SIGTERM.
        let reports = rig.cli(&["report", "session/one"]).await;
        assert!(reports.contains("Stop(Eof)"), "{reports}");
        goes_on(&mut rig, &agent).await;
        rig.finish("session/one").await;
    }
}
