//! What a conversation survives: the violent end of its agent, of the agent's shim, and an agent
//! that stands still.
//!
//! That of the daemon, and hibernation, are in the main file.

use rustix::process::Signal as Sig;
use serde_json::json;

use super::rig::{Rig, signal_process};
use super::{agents, session, traits};

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

/// The session goes on with a new process and knows what it was told, or says that it cannot.
async fn remembers(rig: &mut Rig, agent: &str) {
    assert_eq!(rig.processes(), [""; 0], "left of the process before");
    if traits(agent).can_resume {
        let memory = rig.cli(&["prompt", "one", "[[recall]]"]).await;
        assert!(memory.contains("first words"), "{memory}");
        assert_eq!(rig.count_asked("slow words", "[[recall]]").await, 0, "sent again");
    } else {
        rig.try_cli(&["prompt", "one", "are you there"]).await;
        rig.phase("session/one", "Expired").await;
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
            remembers(&mut rig, &agent).await;
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
        let turn = rig.record("turn/one-3").await;
        let message = turn["status"]["message"].as_str().unwrap();
        assert!(message.contains("did not confirm"), "{turn:#}");
        rig.phase("session/one", "Hibernated").await;
        remembers(&mut rig, &agent).await;
        rig.finish("session/one").await;
    }
}
