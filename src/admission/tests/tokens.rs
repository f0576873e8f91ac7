//! Tokens of callers: made with their session, found by their hash, ended with it.

use std::time::Duration;

use super::*;
use crate::admission::token::{NewToken, TokenRequest};
use crate::api::agent::Permissions;
use crate::api::session::{ControlMode, DesiredState, EndOutcome, Provider, SessionEnd, Toolset};
use crate::api::token::TOKENS_MAX;
use crate::api::{Dur, Incarnation, Time};
use crate::clock::Clock as _;
use crate::store::fault::Fault;
use crate::store::{Store as _, keys};

impl Bench {
    async fn caller(&self, name: &str, request: &TokenRequest) -> Result<NewToken, Refusal> {
        self.admission.create_token(&"default".into(), &name.into(), request).await
    }

    async fn bearer(&self, token: &str) -> Option<Bearer> {
        self.admission.bearer(token).await.unwrap()
    }
}

fn request() -> TokenRequest {
    TokenRequest { cwd: Some("/srv".to_owned()), ..TokenRequest::default() }
}

/// What a refused request says.
fn refused(made: Result<NewToken, Refusal>) -> Refusal {
    match made {
        Ok(_) => panic!("it was taken"),
        Err(refusal) => refusal,
    }
}

async fn bench() -> Bench {
    let bench = Bench::new();
    bench.admission.ensure_default_namespace().await.unwrap();
    bench
}

#[tokio::test]
async fn a_token_makes_its_session_and_tells_whose_it_is() {
    let bench = bench().await;
    let wanted = TokenRequest {
        toolsets: vec![Toolset::Fleet, Toolset::Spawn, Toolset::Fleet],
        control_mode: ControlMode::Message,
        permissions: Some(Permissions::ApproveReads),
        ..request()
    };
    let made = bench.caller("me", &wanted).await.map_err(|refusal| refusal.to_string()).unwrap();
    assert!(made.token.starts_with("spawnlet_"));
    assert_eq!(made.token.len(), "spawnlet_".len() + 64);
    let session = bench.session("me").await;
    assert_eq!(session.spec.provider, Provider::External);
    assert!(session.spec.delegation.enabled);
    assert_eq!(session.spec.cwd.as_deref(), Some("/srv"));
    assert_eq!(session.spec.permissions, Some(Permissions::ApproveReads));
    assert_eq!(session.status.tokens, std::slice::from_ref(&made.stored));
    let stored = serde_json::to_string(&session).unwrap();
    assert!(!stored.contains(&made.token["spawnlet_".len()..]), "the token itself is stored");

    let bearer = bench.bearer(&made.token).await.unwrap();
    assert_eq!(bearer.caller.session, session.metadata.uid);
    assert_eq!((bearer.caller.name.as_str(), bearer.caller.namespace.as_str()), ("me", "default"));
    assert_eq!(bearer.id, made.stored.id);
    assert_eq!(bearer.toolsets, [Toolset::Spawn, Toolset::Fleet]);
    assert_eq!(bearer.control_mode, ControlMode::Message);
    assert!(bearer.is_live);
    for other in ["", "spawnlet_", &made.token[..40], &made.stored.sha256, &made.stored.id] {
        assert_eq!(bench.bearer(other).await, None, "{other}");
    }
}

#[tokio::test]
async fn a_second_token_has_its_own_toolsets_and_the_same_session() {
    let bench = bench().await;
    let one = refused_or(bench.caller("me", &request()).await);
    let fleet = TokenRequest { toolsets: vec![Toolset::Fleet], ..TokenRequest::default() };
    let two = refused_or(bench.caller("me", &fleet).await);
    assert_ne!(one.token, two.token);
    let (first, second) = (bench.bearer(&one.token).await, bench.bearer(&two.token).await);
    let (first, second) = (first.unwrap(), second.unwrap());
    assert_eq!(first.caller, second.caller);
    assert_eq!((first.toolsets, second.toolsets), (vec![Toolset::Spawn], vec![Toolset::Fleet]));
}

fn refused_or(made: Result<NewToken, Refusal>) -> NewToken {
    made.unwrap_or_else(|refusal| panic!("{refusal}"))
}

#[tokio::test]
async fn a_token_does_not_make_another_session_of_what_is_there() {
    let bench = bench().await;
    refused_or(bench.caller("me", &request()).await);
    refused_or(bench.caller("me", &request()).await);
    for (field, other) in [
        ("cwd", TokenRequest { cwd: Some("/other".to_owned()), ..TokenRequest::default() }),
        ("workspace", TokenRequest { workspace: Some("w".to_owned()), ..TokenRequest::default() }),
        (
            "permissions",
            TokenRequest { permissions: Some(Permissions::DenyAll), ..TokenRequest::default() },
        ),
    ] {
        let refusal = refused(bench.caller("me", &other).await);
        assert_eq!(refusal.code(), 409, "{field}");
        assert!(refusal.to_string().contains(field), "{refusal}");
    }
    // The daemon's own sessions get theirs from it.
    bench.create(Kind::Session, session("acp")).await.unwrap();
    assert_eq!(refused(bench.caller("acp", &TokenRequest::default()).await).code(), 409);
    assert_eq!(bench.session("me").await.status.tokens.len(), 2);
}

#[tokio::test]
async fn what_cannot_be_a_session_is_refused_and_leaves_nothing() {
    let bench = bench().await;
    let nowhere = bench.admission.create_token(&"nowhere".into(), &"me".into(), &request()).await;
    assert_eq!(refused(nowhere).code(), 404);
    for (name, wrong) in [
        ("me", TokenRequest::default()),
        ("Not A Name", request()),
        ("me", TokenRequest { cwd: Some("relative".to_owned()), ..TokenRequest::default() }),
        ("me", TokenRequest { workspace: Some("w".to_owned()), ..request() }),
        ("me", TokenRequest { expires_in: Some(Dur::ZERO), ..request() }),
        ("me", TokenRequest { expires_at: Some(bench.clock.now().time), ..request() }),
        (
            "me",
            TokenRequest {
                expires_at: Some(bench.clock.now().time.plus(Duration::from_secs(9))),
                expires_in: Some(Dur::from_secs(9)),
                ..request()
            },
        ),
    ] {
        assert_eq!(refused(bench.caller(name, &wrong).await).code(), 422, "{name} {wrong:?}");
    }
    assert!(bench.find::<SessionSpec>("me").await.is_none());
}

#[tokio::test]
async fn a_token_expires_and_makes_room_for_another() {
    let bench = bench().await;
    let short = TokenRequest { expires_in: Some(Dur::from_secs(60)), ..request() };
    let made = refused_or(bench.caller("me", &short).await);
    let end: Time = bench.clock.now().time.plus(Duration::from_secs(60));
    assert_eq!(made.stored.expires_at, Some(end));
    let lasting = refused_or(bench.caller("me", &request()).await);
    for _ in 2..TOKENS_MAX {
        refused_or(bench.caller("me", &short).await);
    }
    assert_eq!(refused(bench.caller("me", &request()).await).code(), 429);
    bench.clock.advance(Duration::from_millis(59_999));
    assert!(bench.bearer(&made.token).await.is_some());
    bench.clock.advance(Duration::from_millis(1));
    assert_eq!(bench.bearer(&made.token).await, None);
    assert!(bench.bearer(&lasting.token).await.is_some());
    refused_or(bench.caller("me", &request()).await);
    assert_eq!(bench.session("me").await.status.tokens.len(), 2);
    // With the token its way in has gone.
    let gone = bench.store.get(&keys::token(&made.stored.sha256)).await.unwrap();
    assert!(gone.is_none());
}

#[tokio::test]
async fn a_revoked_token_is_nobodys() {
    let bench = bench().await;
    let made = refused_or(bench.caller("me", &request()).await);
    let revoke = |name: &'static str, id: String| {
        let admission = &bench.admission;
        async move { admission.revoke_token(&"default".into(), &name.into(), &id).await }
    };
    assert_eq!(revoke("me", "000000000000".to_owned()).await.unwrap(), None);
    assert_eq!(code(revoke("nobody", made.stored.id.clone()).await), 404);
    assert!(bench.bearer(&made.token).await.is_some());
    let revoked = revoke("me", made.stored.id.clone()).await.unwrap();
    assert_eq!(revoked, Some(made.stored.clone()));
    assert_eq!(bench.bearer(&made.token).await, None);
    assert_eq!(revoke("me", made.stored.id.clone()).await.unwrap(), None);
}

#[tokio::test]
async fn a_caller_that_is_ending_is_known_but_not_live_and_gone_with_its_record() {
    let bench = bench().await;
    let made = refused_or(bench.caller("me", &request()).await);
    let is_live = || async { bench.bearer(&made.token).await.map(|bearer| bearer.is_live) };
    assert_eq!(is_live().await, Some(true));

    bench.patch(Kind::Session, "me", json!({"spec": {"desiredState": "cancelled"}})).await.unwrap();
    assert_eq!(is_live().await, Some(false));
    assert_eq!(refused(bench.caller("me", &TokenRequest::default()).await).code(), 409);
    let session = bench.session("me").await;
    assert_eq!(session.spec.desired_state, DesiredState::Cancelled);
    let at = bench.clock.now().time;
    bench
        .write(&session, |session| {
            let outcome = EndOutcome::Stopped;
            let (reason, message) = ("Cancelled".to_owned(), String::new());
            session.status.end = Some(SessionEnd { outcome, reason, message, code: None, at });
        })
        .await;
    assert_eq!(is_live().await, Some(false));
    bench.delete(Kind::Session, "me").await.unwrap();
    assert_eq!(is_live().await, Some(false));
    bench.remove::<SessionSpec>("me").await;
    assert_eq!(is_live().await, None);

    // A session of the same name is another one.
    refused_or(bench.caller("me", &request()).await);
    assert_eq!(is_live().await, None);
}

#[tokio::test]
async fn a_token_of_one_run_ends_with_the_next() {
    let bench = bench().await;
    let made = refused_or(bench.caller("me", &request()).await);
    let session = bench.session("me").await;
    bench
        .write(&session, |session| {
            session.status.incarnation = Incarnation(3);
            session.status.tokens[0].incarnation = Some(Incarnation(3));
        })
        .await;
    assert!(bench.bearer(&made.token).await.is_some());
    let session = bench.session("me").await;
    bench.write(&session, |session| session.status.incarnation = Incarnation(4)).await;
    assert_eq!(bench.bearer(&made.token).await, None);
}

#[tokio::test]
async fn a_store_that_fails_lets_nobody_in() {
    let (bench, faults) = Bench::faulty();
    bench.admission.ensure_default_namespace().await.unwrap();
    let made = refused_or(bench.caller("me", &request()).await);
    faults.script(Fault::Unavailable);
    assert_eq!(code(bench.admission.bearer(&made.token).await), 503);
    assert!(bench.bearer(&made.token).await.is_some());
}

#[tokio::test]
async fn a_commit_of_unknown_outcome_gives_no_token_that_opens_nothing() {
    for fault in [Fault::UnknownApplied, Fault::UnknownNotApplied] {
        let (bench, faults) = Bench::faulty();
        bench.admission.ensure_default_namespace().await.unwrap();
        refused_or(bench.caller("me", &request()).await);
        faults.script(fault);
        let made = refused_or(bench.caller("me", &request()).await);
        assert!(bench.bearer(&made.token).await.is_some(), "{fault:?}");
        assert_eq!(bench.session("me").await.status.tokens.len(), 2, "{fault:?}");
        faults.script(fault);
        let id = &made.stored.id;
        let revoked = bench.admission.revoke_token(&"default".into(), &"me".into(), id).await;
        // If it was done, the second look finds that there is nothing more to do.
        assert!(revoked.is_ok(), "{fault:?}");
        assert_eq!(bench.bearer(&made.token).await, None, "{fault:?}");
    }
}

#[tokio::test]
async fn tokens_made_at_once_are_all_there() {
    let bench = bench().await;
    refused_or(bench.caller("me", &request()).await);
    let request = request();
    let all = futures::future::join_all((0..8).map(|_| bench.caller("me", &request))).await;
    for made in all {
        let made = refused_or(made);
        assert!(bench.bearer(&made.token).await.is_some());
    }
    assert_eq!(bench.session("me").await.status.tokens.len(), 9);
}
