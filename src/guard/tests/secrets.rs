//! Tokens that are not good, and what the log says of them: nothing.

use std::io::Write;
use std::sync::Mutex;

use super::*;
use crate::admission::DeleteOptions;
use crate::api::{Kind, SessionSpec};
use crate::store::records::{Records, Txn};

/// What was logged.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl Log {
    /// Logs everything that this thread does from now on.
    fn start(&self) -> (tracing::subscriber::DefaultGuard, tracing::Dispatch) {
        let log = self.clone();
        let subscriber = tracing_subscriber::fmt()
            .with_max_level(tracing::Level::TRACE)
            .with_writer(move || log.clone())
            .finish();
        // As long as there is but one, `tracing` asks the thread that first comes by a line whether
        // anybody wants it, and that may be a test without a log. With two it asks them both.
        let second = tracing::Dispatch::new(tracing_subscriber::registry());
        (tracing::subscriber::set_default(subscriber), second)
    }

    fn text(&self) -> String {
        String::from_utf8(self.0.lock().unwrap().clone()).unwrap()
    }
}

/// Takes a session's record away, as the daemon does at the end of its deletion.
async fn remove(gate: &Gate, name: &str) {
    let admission = &gate.admission;
    let options = DeleteOptions::default();
    admission.delete(Kind::Session, &"default".into(), &name.into(), &options).await.unwrap();
    let records: &Records = admission.records();
    let session = records.get::<SessionSpec>(&"default".into(), &name.into()).await.unwrap();
    if let Some(session) = session {
        Txn::new().remove(&session).commit(&**records.store()).await.unwrap();
    }
}

#[tokio::test]
async fn a_bad_token_opens_nothing_and_is_never_logged() {
    let log = Log::default();
    let _logging = log.start();
    let gate = Gate::new().await;
    let other_store = Gate::new().await;
    let good = gate.token("good", &[Toolset::Spawn], None).await;
    let narrow = gate.token("good", &[Toolset::Fleet], None).await;
    let expired = gate.expired().await;
    let orphan = gate.token("gone", &[Toolset::Spawn], None).await;
    assert_eq!(gate.get("/mcp/spawn", &orphan).await.code, 200);
    remove(&gate, "gone").await;
    let foreign = other_store.token("good", &[Toolset::Spawn], None).await;
    let reached = gate.reached();

    let bearer = |token: &str| format!("Bearer {token}");
    let mut cases: Vec<(String, Vec<String>, u16)> = vec![
        ("/mcp/spawn".to_owned(), vec![bearer(&narrow)], 403),
        ("/mcp/spawn".to_owned(), vec![bearer(&good), bearer(&good)], 401),
        ("/mcp/spawn".to_owned(), vec![format!("Bearer {good}, Bearer {good}")], 401),
        (format!("/mcp/spawn?access_token={good}"), vec![], 401),
        (format!("/mcp/spawn?token={OPERATOR}"), vec![], 401),
        (format!("/mcp/{good}"), vec![], 401),
        (format!("/apis/{good}/x"), vec![bearer(&expired)], 401),
    ];
    for token in [&expired, &orphan, &foreign] {
        cases.push(("/mcp/spawn".to_owned(), vec![bearer(token)], 401));
        cases.push(("/apis".to_owned(), vec![bearer(token)], 401));
        cases.push(("/".to_owned(), vec![bearer(token)], 401));
    }
    for scheme in ["Basic", "Token", "Digest", "Bearer:", "", "Negotiate", "DPoP", "OAuth", "MAC"] {
        cases.push(("/mcp".to_owned(), vec![format!("{scheme} {good}")], 401));
    }
    let (first, last) = (good[..good.len() - 1].to_owned(), good[1..].to_owned());
    for near in [first, last, good.to_uppercase(), format!("{good}0"), format!("x{good}")] {
        cases.push(("/mcp".to_owned(), vec![bearer(&near)], 401));
    }
    for (path, authorizations, code) in &cases {
        let mut headers = vec![("host", "localhost")];
        headers.extend(authorizations.iter().map(|value| ("authorization", value.as_str())));
        let answer = gate.send("GET", path, &headers, Body::empty()).await;
        assert_eq!(answer.code, *code, "{path} {authorizations:?}");
        let secrets = [&good, &narrow, &expired, &orphan, &foreign];
        assert!(!secrets.iter().any(|secret| answer.text.contains(*secret)), "{}", answer.text);
    }
    assert!(cases.len() >= 30, "{}", cases.len());
    assert_eq!(gate.reached(), reached, "nothing of this reached a handler");

    let text = log.text();
    assert!(text.contains("refused by the guard"), "the log is looked at: {text}");
    for secret in [&good, &narrow, &expired, &orphan, &foreign] {
        let random = secret.trim_start_matches("spawnlet_");
        assert!(!text.contains(random), "a token is in the log");
        assert!(!text.to_lowercase().contains(&random[1..40]), "half a token is in the log");
    }
    assert!(!text.contains(OPERATOR), "the operator's token is in the log");
}

#[tokio::test]
async fn a_token_ends_at_once_when_it_is_revoked_and_others_go_on() {
    let gate = Gate::new().await;
    let (one, other) = (gate.token("a", &[], None).await, gate.token("a", &[], None).await);
    assert_eq!(gate.get("/mcp/spawn", &one).await.code, 200);
    let records = gate.admission.records();
    let session =
        records.get::<SessionSpec>(&"default".into(), &"a".into()).await.unwrap().unwrap();
    let id = &session.status.tokens[0].id;
    gate.admission.revoke_token(&"default".into(), &"a".into(), id).await.unwrap();
    assert_eq!(gate.get("/mcp/spawn", &one).await.code, 401);
    assert_eq!(gate.get("/mcp/spawn", &other).await.code, 200);
}

#[test]
fn what_looks_like_a_token_is_crossed_out_of_paths() {
    let digits = "0123456789abcdef".repeat(4);
    assert_eq!(shown(&format!("/mcp/spawnlet_{digits}/x")), "/mcp/spawnlet_[...]/x");
    assert_eq!(shown(&format!("/{}", digits.to_uppercase())), "/[...]");
    for path in
        ["/", "", "/apis/spawnlet.dev/v1alpha1/sessions/01900000-0000-7000-8000-abcdef", "/ä"]
    {
        assert_eq!(shown(path), path);
    }
}
