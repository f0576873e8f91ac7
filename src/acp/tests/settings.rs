//! From what a turn wants to what is set, in which order, and where it fails closed.

use serde_json::{Value, json};

use crate::options::settings::Setting;
use crate::options::settings::{Done, Next, Wanted, next_setting};
use crate::options::tests::select;
use crate::options::{
    Choice, IssueReason, LiveOption, MODE, MODEL, Modes, OptionState, Setter, Snapshot,
    THOUGHT_LEVEL,
};

/// An agent that takes what it is told, and after a model with a dash offers thought levels.
fn apply(snapshot: &Snapshot, what: &Setting) -> Snapshot {
    let mut after = snapshot.clone();
    match what {
        Setting::Mode(id) => after.modes.as_mut().unwrap().current.clone_from(id),
        Setting::Model(id) => set(&mut after, "model", &json!(id)),
        Setting::Option { id, value } => set(&mut after, id, value),
    }
    let deep = after.option("model").is_some_and(|m| m.current().to_string().contains('-'));
    if deep && after.option("effort").is_none() {
        after.options.push(select("effort", THOUGHT_LEVEL, "low", &["low", "high"]));
    }
    after
}

fn set(snapshot: &mut Snapshot, id: &str, value: &Value) {
    let option = snapshot.options.iter_mut().find(|option| option.id == id).unwrap();
    match &mut option.state {
        OptionState::Select { current, .. } => *current = value.as_str().unwrap().to_owned(),
        OptionState::Boolean { current } => *current = value.as_bool().unwrap(),
    }
}

fn boolean(id: &str) -> LiveOption {
    LiveOption {
        id: id.into(),
        name: id.into(),
        category: None,
        state: OptionState::Boolean { current: false },
        setter: Setter::ConfigOption,
    }
}

fn agent() -> Snapshot {
    let mode =
        |id: &str| Choice { value: id.into(), name: id.into(), group: None, description: None };
    Snapshot {
        options: vec![
            boolean("fast"),
            select("model", MODEL, "small", &["small", "big-1", "big-2"]),
            select("ctx", "model_config", "8k", &["8k", "1m"]),
        ],
        modes: Some(Modes {
            current: "ask".into(),
            available: vec![mode("ask"), mode("Full-Access")],
        }),
    }
}

/// Runs to the end; the sets, each as a word, and the end.
fn run(wanted: &Wanted, start: Snapshot) -> (Vec<String>, Next) {
    run_with(wanted, start, apply)
}

fn run_with(
    wanted: &Wanted,
    mut now: Snapshot,
    agent: impl Fn(&Snapshot, &Setting) -> Snapshot,
) -> (Vec<String>, Next) {
    let (mut done, mut sets) = (Done::default(), Vec::new());
    loop {
        match next_setting(wanted, &now, &done) {
            Next::Set(what) => {
                sets.push(match &what {
                    Setting::Mode(id) => format!("mode={id}"),
                    Setting::Model(id) => format!("set_model={id}"),
                    Setting::Option { id, value } => format!("{id}={value}"),
                });
                assert!(sets.len() < 50, "{sets:?}");
                let after = agent(&now, &what);
                done.record(wanted, &now, &what, Ok(&after));
                now = after;
            }
            end => return (sets, end),
        }
    }
}

fn wanted(model: Option<&str>, level: Option<&str>, config: Value) -> Wanted {
    Wanted {
        modes: vec!["full-access".into(), "auto".into()],
        only_these_modes: false,
        model: model.map(str::to_owned),
        thought_level: level.map(str::to_owned),
        config: serde_json::from_value(config).unwrap(),
    }
}

#[test]
fn the_order_is_mode_model_model_config_thought_level_others() {
    let wanted = wanted(Some("big 1"), Some("HIGH"), json!({"fast": true, "ctx": "1m"}));
    let (sets, end) = run(&wanted, agent());
    let order =
        ["mode=Full-Access", "model=\"big-1\"", "ctx=\"1m\"", "effort=\"high\"", "fast=true"];
    assert_eq!(sets, order);
    assert_eq!(end, Next::Done(vec![]));
}

#[test]
fn what_stands_already_is_not_set() {
    let wanted = wanted(Some("small"), None, json!({"fast": false, "model": "small"}));
    let mut start = agent();
    start.modes.as_mut().unwrap().current = "Full-Access".into();
    assert_eq!(run(&wanted, start), (vec![], Next::Done(vec![])));
}

#[test]
fn a_semantic_field_that_does_not_resolve_is_required() {
    let reasons = |wanted: &Wanted| match run(wanted, agent()) {
        (_, Next::Required(issues)) => issues.iter().map(|i| i.reason).collect::<Vec<_>>(),
        other => panic!("{other:?}"),
    };
    let config = json!({});
    assert_eq!(reasons(&wanted(Some("big"), None, config.clone())), [IssueReason::Ambiguous]);
    let both = wanted(Some("huge"), Some("high"), config.clone());
    assert_eq!(reasons(&both), [IssueReason::Unsupported]);
    let level = wanted(None, Some("high"), config.clone());
    assert_eq!(reasons(&level), [IssueReason::MissingCategoryOption]);
    let level = wanted(Some("big-1"), Some("extreme"), config);
    assert_eq!(reasons(&level), [IssueReason::Unsupported]);
}

#[test]
fn a_session_that_may_not_do_everything_names_no_other_mode_by_its_option() {
    let mut start = agent();
    start.modes = None;
    start.options.push(select("mode", MODE, "read-only", &["read-only", "plan", "full-access"]));
    let limited = |mode: &str| Wanted {
        modes: vec!["read-only".into(), "plan".into()],
        only_these_modes: true,
        ..wanted(None, None, json!({ "mode": mode }))
    };
    let (sets, end) = run(&limited("full-access"), start.clone());
    assert!(sets.is_empty() && matches!(end, Next::Denied(_)), "{sets:?} {end:?}");
    let (sets, end) = run(&limited("plan"), start.clone());
    assert_eq!((sets.as_slice(), end), (&["mode=\"plan\"".to_owned()][..], Next::Done(vec![])));
    let free = wanted(None, None, json!({"mode": "full-access"}));
    assert!(matches!(run(&free, start).1, Next::Done(_)));
}

#[test]
fn unknown_ids_illegal_values_and_contradictions_are_invalid() {
    for (model, config) in [
        (None, json!({"no such": true})),
        (None, json!({"fast": "yes"})),
        (None, json!({"ctx": "2m"})),
        (None, json!({"ctx": true})),
        (Some("big-1"), json!({"model": "big-2"})),
    ] {
        let (_, end) = run(&wanted(model, None, config.clone()), agent());
        assert!(matches!(end, Next::Invalid(_)), "{config} {end:?}");
    }
    let same = wanted(Some("BIG 1"), None, json!({"model": "big-1"}));
    assert!(matches!(run(&same, agent()).1, Next::Done(_)));
    let later = wanted(Some("big-1"), None, json!({"effort": "high"}));
    assert!(matches!(run(&later, agent()).1, Next::Done(_)), "it is there after the model");
}

#[test]
fn an_agent_that_takes_no_model_fails_closed_and_one_that_takes_no_config_warns() {
    let ignore = |snapshot: &Snapshot, _: &Setting| snapshot.clone();
    let (sets, end) = run_with(&wanted(Some("big-1"), None, json!({})), agent(), ignore);
    assert_eq!(sets, ["mode=Full-Access", "model=\"big-1\""]);
    assert!(matches!(end, Next::Failed(_)), "{end:?}");
    let (sets, end) = run_with(&wanted(None, None, json!({"fast": true})), agent(), ignore);
    assert_eq!(sets, ["mode=Full-Access", "fast=true"]);
    let Next::Done(warnings) = end else { panic!("{end:?}") };
    assert_eq!(warnings.iter().map(|w| &*w.option_id).collect::<Vec<_>>(), [MODE, "fast"]);
}

#[test]
fn a_failed_set_is_a_failure_or_a_warning() {
    let start = agent();
    for (wanted, fails) in [
        (wanted(Some("big-1"), None, json!({})), true),
        (wanted(None, None, json!({"model": "big-1"})), false),
    ] {
        let mut done = Done::default();
        let what = Setting::Option { id: "model".into(), value: json!("big-1") };
        done.record(&wanted, &start, &Setting::Mode("Full-Access".into()), Err("no"));
        done.record(&wanted, &start, &what, Err("no"));
        match next_setting(&wanted, &start, &done) {
            Next::Failed(_) => assert!(fails),
            Next::Done(warnings) => assert_eq!((fails, warnings.len()), (false, 2)),
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn options_that_never_settle_are_given_up() {
    let flicker = std::cell::Cell::new(0);
    let agent_that_moves = |snapshot: &Snapshot, _: &Setting| {
        flicker.set(flicker.get() + 1);
        let mut after = snapshot.clone();
        after.options[2] = select("ctx", "model_config", &flicker.get().to_string(), &["8k"]);
        after
    };
    let (sets, end) = run_with(&wanted(Some("big-1"), None, json!({})), agent(), agent_that_moves);
    assert!(matches!(end, Next::Failed(_)), "{end:?}");
    assert_eq!(sets.len(), 9);
}

#[test]
fn a_synthetic_model_is_set_by_its_own_method_and_a_mode_option_stands_for_modes() {
    let mut start = agent();
    start.options[1].setter = Setter::Model;
    start.modes = None;
    start.options.push(select("perm", MODE, "ask", &["ask", "auto"]));
    let (sets, end) = run(&wanted(Some("big-2"), None, json!({})), start.clone());
    assert_eq!(sets, ["perm=\"auto\"", "set_model=big-2"]);
    assert_eq!(end, Next::Done(vec![]));
    let (sets, _) = run(&wanted(None, None, json!({"perm": "ask"})), start);
    assert!(sets.is_empty(), "the user's own choice of a mode counts");
}
