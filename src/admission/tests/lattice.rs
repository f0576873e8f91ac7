//! No child may do more than its parent, nor reach further (test catalogue A6).

use super::spawn::{ask, bench, finish, made, wide};
use super::*;
use crate::admission::spawn::PromptRequest;
use crate::admission::token::{Caller, TokenRequest};
use crate::api::agent::Permissions;
use crate::api::session::Scope;

const MODES: [(Permissions, &str); 4] = [
    (Permissions::DenyAll, "deny-all"),
    (Permissions::ApproveReads, "approve-reads"),
    (Permissions::Ask, "ask"),
    (Permissions::ApproveAll, "approve-all"),
];

/// What a session's agent may do, as its launch works it out.
fn effective(session: &Session, agent: Permissions) -> Permissions {
    session.spec.permissions.unwrap_or(agent).min(agent)
}

fn roots(scope: &Scope) -> Vec<&String> {
    std::iter::once(&scope.cwd).chain(&scope.additional_directories).collect()
}

/// Whether the second may not do or reach all that the first may.
fn is_above(child: (Permissions, &Scope), parent: (Permissions, &Scope)) -> bool {
    let known = roots(parent.1);
    child.0 > parent.0 || roots(child.1).iter().any(|root| !known.contains(root))
}

async fn with_agents() -> Bench {
    let bench = bench(wide()).await;
    for (_, mode) in MODES {
        let body = json!({"metadata": {"name": mode}, "spec": {"argv": ["agent"],
            "permissions": mode}});
        bench.create(Kind::Agent, body).await.unwrap();
    }
    bench
}

#[test]
fn the_modes_are_a_line_from_narrow_to_wide() {
    for (place, (mode, _)) in MODES.into_iter().enumerate() {
        for (other_place, (other, _)) in MODES.into_iter().enumerate() {
            assert_eq!(place.cmp(&other_place), mode.cmp(&other));
        }
    }
}

#[tokio::test]
async fn a_child_that_is_spawned_is_never_above_its_parent() {
    let bench = with_agents().await;
    for (parent_mode, parent_name) in MODES {
        let request = TokenRequest {
            workspace: Some("w".to_owned()),
            permissions: Some(parent_mode),
            ..TokenRequest::default()
        };
        let name = format!("parent-{parent_name}");
        let made_token = bench
            .admission
            .create_token(&"default".into(), &name.as_str().into(), &request)
            .await
            .unwrap();
        let caller: Caller =
            bench.admission.bearer(&made_token.token).await.unwrap().unwrap().caller;
        let parent = bench.session(&name).await;
        let parent_scope = parent.status.scope.clone().unwrap();
        for (agent_mode, agent) in MODES {
            for folder in [None, Some("one"), Some("two")] {
                let request = PromptRequest {
                    agent: agent.to_owned(),
                    folder: folder.map(str::to_owned),
                    ..ask()
                };
                let made = made(&bench, &caller, request).await;
                finish(&bench, &made).await;
                let child = made.session;
                let (may, scope) = (effective(&child, agent_mode), child.status.scope.unwrap());
                assert!(!is_above((may, &scope), (parent_mode, &parent_scope)), "{name} {agent}");
                assert!(may <= agent_mode, "{name} {agent}");
                assert_eq!(may, parent_mode.min(agent_mode), "cut to what both may");
            }
        }
    }
}

#[tokio::test]
async fn a_child_that_an_operator_makes_is_never_above_its_parent() {
    let bench = with_agents().await;
    let mut count = 0;
    for (parent_own, parent_word) in MODES {
        for (parent_agent, parent_agent_name) in MODES {
            let parent = format!("p-{parent_word}-{parent_agent_name}");
            let body = json!({"metadata": {"name": parent}, "spec": {"cwd": "/srv",
                "agent": parent_agent_name, "permissions": parent_word}});
            bench.create(Kind::Session, body).await.unwrap();
            let ceiling = parent_own.min(parent_agent);
            for (agent_mode, agent) in MODES {
                let words = std::iter::once(None).chain(MODES.map(Some));
                for asked in words {
                    count += 1;
                    let child = format!("c-{count}");
                    let mut body = json!({"metadata": {"name": child}, "spec": {"cwd": "/srv",
                        "agent": agent, "parent": parent}});
                    if let Some((_, word)) = asked {
                        body["spec"]["permissions"] = json!(word);
                    }
                    let made = bench.create(Kind::Session, body).await;
                    let what = format!("{parent} {agent} {asked:?}");
                    if asked.is_some_and(|(wanted, _)| wanted > ceiling) {
                        assert_eq!(
                            made.unwrap_err().code(),
                            422,
                            "nothing is narrowed silently: {what}"
                        );
                        continue;
                    }
                    made.unwrap();
                    let may = effective(&bench.session(&child).await, agent_mode);
                    assert!(may <= ceiling && may <= agent_mode, "{what}: {may:?}");
                }
            }
        }
    }
    assert_eq!(count, 4 * 4 * 4 * 5);
}

/// Negative control: what is above is found to be.
#[test]
fn a_child_with_more_of_anything_would_be_found() {
    let scope = |cwd: &str, more: &[&str]| Scope {
        cwd: cwd.to_owned(),
        additional_directories: more.iter().map(|&path| path.to_owned()).collect(),
        label: String::new(),
        folders: Vec::new(),
    };
    let parent = (Permissions::Ask, &scope("/a", &["/b"]));
    assert!(!is_above((Permissions::Ask, &scope("/b", &[])), parent));
    assert!(is_above((Permissions::ApproveAll, &scope("/a", &[])), parent));
    assert!(is_above((Permissions::DenyAll, &scope("/a", &["/c"])), parent));
    assert!(is_above((Permissions::DenyAll, &scope("/c", &[])), parent));
}
