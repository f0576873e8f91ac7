//! Trees and what they use: counted once, and the end of what they may.

use serde_json::{Value, json};

use super::*;

use crate::plan::spending::Limits;
use crate::plan::usage::Report;

fn report(model: &mut Model, used: u64, cost: f64) {
    let live = model.live_mut().unwrap();
    let currency = Some("USD".into());
    let report = Report { used: Some(used), size: None, cost: Some(cost), currency };
    let spent = live.usage.take(report, true);
    let prompt = live.prompt.as_mut().unwrap();
    prompt.spent.tokens += spent.tokens;
    prompt.spent.cost += spent.cost;
}

fn sums(tokens: u64, cost: f64) -> Option<Value> {
    Some(json!({"tokens": tokens, "cost": {"amount": cost, "currency": "USD"}}))
}

#[test]
fn what_a_running_turn_uses_is_counted_as_it_goes_and_its_answer_once() {
    let mut model = running();
    for (used, cost) in [(900, 0.5), (1000, 0.5), (1000, 0.5), (1500, 0.75)] {
        report(&mut model, used, cost);
        model.pass();
        model.pass();
        assert_eq!(model.tree.used, sums(used, cost));
    }
    // The answer tells of more than the context grew by: the rest is counted.
    let usage = Some(json!({"totalTokens": 1600}));
    let answer = Ok(StopReason::EndTurn);
    model.live_mut().unwrap().prompt.as_mut().unwrap().end =
        Some(PromptEnd { answer, is_after_cancel: false, usage });
    model.pass();
    model.pass();
    let mut wanted = sums(1600, 0.75).unwrap();
    wanted["totalTokens"] = json!(1600);
    assert_eq!(model.tree.used, Some(wanted.clone()));
    assert_eq!(model.session.unwrap().status.tree_usage, Some(wanted));
}

#[test]
fn a_child_wakes_the_session_that_shows_the_sums() {
    let mut model = running();
    model.session.as_mut().unwrap().status.lineage.parent = Some("top".into());
    model.owner = crate::plan::world::Owner::Live;
    (model.tree.id, model.tree.root) = ("top".into(), Some("top".into()));
    report(&mut model, 5, 0.25);
    let decided = plan(&model.world().unwrap(), model.now());
    assert_eq!(decided.wakes, [crate::api::Name::from("top")]);
    model.pass();
    assert_eq!(model.session.unwrap().status.tree_usage, None);
}

#[test]
fn who_takes_the_tree_over_its_limit_wakes_everybody_and_turns_end_by_budget() {
    let mut model = running();
    model.tree.limits = Limits { max_tokens: Some(1000), max_cost: None };
    let woken = |model: &Model| plan(&model.world().unwrap(), model.now()).wakes_processes;
    report(&mut model, 1000, 0.0);
    assert!(!woken(&model));
    model.pass();
    assert_eq!(model.turns[0].status.cancel, None);
    report(&mut model, 1001, 0.0);
    assert!(woken(&model));
    model.pass();
    assert!(!woken(&model), "once");
    model.pass();
    let cancel = model.turns[0].status.cancel.as_ref().unwrap();
    assert_eq!(cancel.by, CancelBy::Budget);
    assert!(cancel.reason.contains("maxTokensPerRoot is 1000"), "{}", cancel.reason);
}

#[test]
fn a_turn_of_a_tree_that_has_nothing_left_waits_or_ends() {
    for (admission, phase) in
        [(Admission::Queue, TurnPhase::Pending), (Admission::Immediate, TurnPhase::Expired)]
    {
        let mut model = Model::new();
        let turn = turn("t-1", UID);
        if admission == Admission::Immediate {
            model.admit_at_once(turn);
        } else {
            model.turns.push(turn);
        }
        model.tree.limits = Limits { max_tokens: None, max_cost: Some(0.5) };
        model.tree.used = sums(1, 0.5);
        model.pass();
        let status = &model.turns[0].status;
        assert_eq!(status.phase, phase, "{status:?}");
        assert!(matches!(model.process, Process::Absent), "nothing is started for it");
        if admission == Admission::Queue {
            assert_eq!(status.reason, "TreeBudgetExhausted");
            let session = &model.session.as_ref().unwrap().status;
            assert_eq!(session.reason, "TreeBudgetExhausted");
            let progressing = session.conditions.get("Progressing").unwrap();
            assert_eq!(progressing.reason, "TreeBudgetExhausted");
            // A higher limit lets it go on.
            model.tree.limits.max_cost = Some(0.6);
            model.pass();
            assert_eq!(model.turns[0].status.phase, TurnPhase::Starting);
        } else {
            assert_eq!(status.code, Some(Code::TurnBudgetExhausted));
        }
    }
}
