//! What a whole tree of sessions used, and the limits of it.

use serde_json::{Value, json};

use crate::budgets::{is_out_of_budget, usage};
use crate::harness::{Caller, Daemon};

fn plain(daemon: &Daemon) {
    let state = format!("--state={}", daemon.path("state").display());
    daemon.agent("plain", &["--cap=all", &state], json!({}));
}

fn used(tokens: u64, cost: f64) -> Value {
    json!({"tokens": tokens, "cost": {"amount": cost, "currency": "USD"}})
}

/// Known failures H11.
#[test]
fn what_a_tree_used_stands_on_its_root_and_outlives_children_and_daemons() {
    let daemon = Daemon::start();
    plain(&daemon);
    let prompt = |tokens, cost| json!({"prompt": format!("{}[[say:x]]", usage(tokens, cost))});
    let below = |parent: &str, mut spec: Value| {
        spec["parent"] = json!(parent);
        spec
    };
    daemon.session("top", "plain", prompt(1000, 0.5));
    daemon.session("child", "plain", below("top", prompt(2000, 0.25)));
    daemon.session("grandchild", "plain", below("child", prompt(500, 0.125)));
    let is = |wanted: Value| move |top: &Value| top["status"]["treeUsage"] == wanted;
    daemon.until("sessions/top", is(used(3500, 0.875)));
    assert_eq!(daemon.get("sessions/child")["status"]["treeUsage"], Value::Null);
    // What is gone stays counted; a daemon that was killed goes on from there.
    daemon.ok(&["delete", "session", "child"]);
    daemon.gone("sessions/child");
    daemon.gone("sessions/grandchild");
    let daemon = daemon.kill9().serve(&[]);
    daemon.until("sessions/top", is(used(3500, 0.875)));
    daemon.session("other", "plain", below("top", prompt(10, 0.0)));
    daemon.until("sessions/top", is(used(3510, 0.875)));
    // The sums go with their root.
    daemon.ok(&["delete", "session", "top"]);
    daemon.gone("sessions/top");
    daemon.session("top", "plain", prompt(1, 0.0));
    daemon.until("sessions/top", |top| top["status"]["treeUsage"]["tokens"] == 1);
}

#[test]
fn a_tree_over_its_limit_is_cancelled_and_goes_on_with_a_higher_one() {
    let limit = |tokens: u64| format!("limits.maxTokensPerRoot={tokens}");
    let daemon = Daemon::with(&["--set", &limit(3000)]);
    plain(&daemon);
    daemon.session("top", "plain", json!({"prompt": "[[say:x]][[never]]"}));
    daemon.said("top", "top-1", "x");
    daemon.session("apart", "plain", json!({"prompt": "[[say:x]][[never]]"}));
    let child = format!("{}[[say:y]]{}[[never]]", usage(2000, 0.0), usage(3001, 0.0));
    daemon.session("child", "plain", json!({"parent": "top", "prompt": child}));
    // Whoever used it, every turn of the tree ends, and no other.
    let words = "3001 tokens; limits.maxTokensPerRoot is 3000";
    is_out_of_budget(&daemon.ended("child-1"), words);
    is_out_of_budget(&daemon.ended("top-1"), words);
    daemon.said("apart", "apart-1", "x");
    assert_eq!(daemon.get("turns/apart-1")["status"]["phase"], "Running");

    // What must not wait is refused, what may waits and says why.
    let turn = |admission: &str, name: &str| {
        json!({"metadata": {"name": name},
            "spec": {"session": "child", "prompt": "[[count]]", "admission": admission}})
    };
    let refused = daemon.create("turns", &turn("immediate", "now"));
    assert_eq!(refused.status, 429, "{}", refused.text());
    let said = refused.text();
    assert!(said.contains("TURN_BUDGET_EXHAUSTED") && said.contains("maxTokensPerRoot"), "{said}");
    assert_eq!(daemon.create("turns", &turn("queue", "later")).status, 201);
    daemon.until("turns/later", |turn| turn["status"]["reason"] == "TreeBudgetExhausted");
    for session in ["top", "child"] {
        daemon.until(&format!("sessions/{session}"), |session| {
            let conditions = session["status"]["conditions"].as_array().unwrap();
            conditions.iter().any(|one| {
                one["type"] == "Progressing"
                    && one["status"] == "False"
                    && one["reason"] == "TreeBudgetExhausted"
            })
        });
    }
    // Nobody waits with a process.
    daemon.until("sessions/child", |child| child["status"]["process"] == Value::Null);

    let (code, home) = daemon.stop();
    assert_eq!(code, Some(0));
    let daemon = home.serve(&["--set", &limit(10_000)]);
    let later = daemon.ended("later");
    assert_eq!(later["status"]["phase"], "Completed", "{later:#}");
    assert_eq!(daemon.response("later"), "prompt 2");
    let top = daemon.get("sessions/top");
    assert_eq!(top["status"]["treeUsage"]["tokens"], 3001, "{top:#}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_caller_whose_tree_has_used_up_its_cost_makes_no_turn() {
    let daemon = Daemon::with(&["--set", "limits.maxCostPerRoot=0.5"]);
    plain(&daemon);
    let caller = Caller::of(&daemon, "desk").await;
    let prompt = |text: &str| json!({"agentId": "plain", "prompt": text, "background": false});
    let told = caller.prompt(&prompt(&format!("{}[[say:x]]", usage(1, 0.5)))).await;
    assert_eq!(told["status"], "completed", "{told:#}");
    daemon.until("sessions/desk", |desk| desk["status"]["treeUsage"] == used(1, 0.5));
    let mut again = prompt("more");
    for session in [None, Some(told["sessionId"].clone())] {
        if let Some(session) = session {
            again["sessionId"] = session;
        }
        let code = caller.refused("prompt_to_agent", &again).await;
        assert_eq!(code, "TURN_BUDGET_EXHAUSTED");
    }
    caller.close().await;
}
